"""Questions about logs, against a broker that fails on command."""

from __future__ import annotations

import threading

import pytest

from sluiceway.client import ConnectionLostError, LogClient, RequestError
from tests.client.fake_broker import FakeBroker


def test_a_log_is_described(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", [b"a"] * 12)
    with LogClient(fake_broker.address) as client:
        info = client.describe("orders")
        assert (info.log, info.first, info.next, info.size) == ("orders", 0, 12, 12)


def test_what_can_not_be_answered_has_a_code(fake_broker: FakeBroker) -> None:
    with LogClient(fake_broker.address) as client:
        with pytest.raises(RequestError, match="there is no log x") as caught:
            client.describe("x")
        assert caught.value.code == "TOPIC_NOT_EXIST"
        fake_broker.fill("orders", [b"a"])
        assert client.describe("orders").size == 1


def test_after_a_lost_connection_the_next_request_makes_another(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", [b"a"])
    with LogClient(fake_broker.address) as client:
        client.describe("orders")
        fake_broker.cut()
        fake_broker.wait_until(lambda: not fake_broker.sessions)
        assert client.describe("orders").size == 1


def test_a_connection_that_is_lost_while_an_answer_is_waited_for_is_told(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", [b"a"])
    with LogClient(fake_broker.address) as client:
        client.describe("orders")
        fake_broker.faults.silent = True
        cutting = threading.Timer(0.05, fake_broker.cut)
        cutting.start()
        with pytest.raises(ConnectionLostError):
            client.describe("orders")
        cutting.join()
        fake_broker.faults.silent = False
        assert client.describe("orders").size == 1


def test_an_answer_is_waited_for_only_so_long(fake_broker: FakeBroker) -> None:
    with LogClient(fake_broker.address, timeout_seconds=0.05) as client:
        fake_broker.fill("orders", [b"a"])
        client.describe("orders")
        fake_broker.faults.silent = True
        with pytest.raises(TimeoutError, match="is it a Sluiceway broker"):
            client.describe("orders")
