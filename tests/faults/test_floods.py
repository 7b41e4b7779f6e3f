"""More connections than there may be, or than the process has file descriptors for."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluiceway import EmbeddedBroker
from tests.faults.broker_log import BrokerLog
from tests.faults.bystander import Bystander
from tests.faults.conftest import StartBroker
from tests.interop.raw_client import RawClient, frame, poll
from tests.sluiceway.broker_process import BrokerProcess


def only_the_bystander_is_left(broker: EmbeddedBroker) -> None:
    """Waits until the broker has noticed that the others went."""
    for _ in poll("there is room again"):
        if len(broker.report()["connections"]) == 2:
            break


def test_one_connection_too_many_is_told_so_and_closed(start_broker: StartBroker, broker_log: BrokerLog) -> None:
    """Those inside go on; the flood is logged once; when one leaves, the next gets in."""
    broker = start_broker(connections_max=5)
    address = (broker.host, broker.port)
    with Bystander(address) as bystander, ExitStack() as inside:
        for _ in range(3):
            inside.enter_context(RawClient(address)).connect()
        for _ in range(50):
            with RawClient(address) as refused:
                error = refused.frames_to_end()[0]
                assert (error.command, "5 connections" in error["message"]) == ("ERROR", True)
                assert error["code"] == "too-many-connections"
        bystander.is_served()
        inside.close()
        only_the_bystander_is_left(broker)
        with RawClient(address) as accepted:
            accepted.connect()
    refused_lines = broker_log.lines(event="connection refused")
    assert [line["connections_max"] for line in refused_lines] == [5]
    assert [line["refused"] for line in broker_log.lines(event="accepting again")] == [50]


def test_a_listener_that_is_full_now_and_then_says_so_once(start_broker: StartBroker, broker_log: BrokerLog) -> None:
    broker = start_broker(connections_max=3)
    address = (broker.host, broker.port)
    with Bystander(address) as bystander:
        for _ in range(5):
            with RawClient(address) as inside:
                inside.connect()
                with RawClient(address) as refused:
                    assert refused.frames_to_end()[0]["code"] == "too-many-connections"
            only_the_bystander_is_left(broker)
        bystander.is_served()
    assert len(broker_log.lines(event="connection refused")) == 1
    assert len(broker_log.lines(event="accepting again")) == 1


def test_connections_stop_where_the_upkeep_does(start_broker: StartBroker, broker_log: BrokerLog) -> None:
    """Those inside go on; when one leaves, the next gets in."""
    broker = start_broker(upkeep_bytes_max=200_000)
    address = (broker.host, broker.port)
    with Bystander(address) as bystander, ExitStack() as inside:
        for _ in range(20):
            client = inside.enter_context(RawClient(address))
            client.send(frame("CONNECT", accept_version="1.2", host="x"))
            answer = client.frame()
            if answer.command == "ERROR":
                break
        assert answer["code"] == "upkeep-full"
        assert "upkeep_bytes_max of [broker]" in answer["message"]
        assert 4 <= len(broker.report()["connections"]) <= 8
        bystander.is_served()
        inside.close()
        only_the_bystander_is_left(broker)
        with RawClient(address) as accepted:
            accepted.connect()
    assert broker.report()["memory"]["upkeep_refused_count"] == 1
    (line,) = broker_log.lines(event="connection refused")
    assert "upkeep_bytes_max" in line["reason"]


def test_a_refused_client_that_spoke_first_can_read_why(start_broker: StartBroker) -> None:
    """Its CONNECT is under way when it is refused; the ERROR must survive that."""
    broker = start_broker(connections_max=1)
    address = (broker.host, broker.port)
    with RawClient(address) as inside:
        inside.connect()
        for _ in range(50):
            with RawClient(address) as refused:
                try:
                    refused.send(frame("CONNECT", accept_version="1.2", host="h"))
                except (BrokenPipeError, ConnectionResetError):
                    pass  # closed already, with the ERROR in our buffer
                assert refused.expect("ERROR")["message"]


def test_a_broker_without_file_descriptors_serves_on_and_recovers(tmp_path: Path) -> None:
    """Accepting pauses, said once in the log; those who wait are served as soon as others leave."""
    with BrokerProcess(tmp_path, open_files_max=96) as broker, Bystander(broker.address) as bystander:
        with ExitStack() as flood:
            clients = [flood.enter_context(RawClient(broker.address)) for _ in range(100)]
            for client in clients:
                client.send(frame("CONNECT", accept_version="1.2", host="h"))
            for _ in poll("the broker has run out"):
                if "cannot accept" in broker.log:
                    break
            bystander.is_served(100)
            waiting = [client for client in clients if not _is_answered(client)]
            assert waiting, "it has served them all"
            for client in clients:
                if client not in waiting:
                    client.close()
            for client in waiting:
                client.expect("CONNECTED")
        bystander.is_served()
        assert broker.log.count("cannot accept") == 1
        assert "raise the limit of open files" in broker.log


def _is_answered(client: RawClient) -> bool:
    client.socket.setblocking(False)
    try:
        return bool(client.socket.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        client.socket.settimeout(20.0)


IDLE_COUNT = 500


@pytest.mark.slow
def test_idle_connections_cost_little(tmp_path: Path) -> None:
    """Hundreds that only sit there: a bystander is served as ever, and each costs some kilobytes.

    `python -m perf` measures ten thousand; the ceiling here is generous, to catch a buffer per connection.
    """
    with BrokerProcess(tmp_path) as broker, Bystander(broker.address) as bystander, ExitStack() as idle:
        first = idle.enter_context(RawClient(broker.address))
        first.connect()
        before = broker.rss_bytes()
        clients = [idle.enter_context(RawClient(broker.address)) for _ in range(IDLE_COUNT)]
        for client in clients:
            client.connect()
        each_bytes = (broker.rss_bytes() - before) / IDLE_COUNT
        bystander.is_served(50)
        assert each_bytes < 100_000
        for client in clients:
            client.send(frame("SEND", b"awake", destination="/queue/awake", receipt="r"))
        for client in clients:
            client.expect("RECEIPT")
