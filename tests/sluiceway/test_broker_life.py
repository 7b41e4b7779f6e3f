"""How a broker starts, stops and dies: as a process with signals, and as an object inside a trio program."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import attrs
import pytest
import trio

from perf.peers.daemon import free_port
from sluiceway import Broker, Config
from sluiceway.broker import ListenError
from sluiceway.client.address import Address
from sluiceway.client.link import Link
from sluiceway.config import BrokerConfig, Listener
from sluiceway.shards import Shards
from tests.interop.raw_client import RawClient, frame, poll
from tests.log_lines import LogLines
from tests.sluiceway.broker_process import BrokerProcess

LOOPBACK = Config(listeners=(Listener(address="127.0.0.1:0"),), broker=BrokerConfig(shutdown_seconds=5.0))


# -- a process ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    """Code 0; who is connected gets what was written for it, and an ERROR that says why."""
    with BrokerProcess(tmp_path) as broker, RawClient(broker.address) as client:
        client.connect()
        client.send(frame("SUBSCRIBE", id="1", destination="/queue/q", receipt="on"))
        client.expect("RECEIPT")
        client.send(frame("SEND", b"last words", destination="/queue/q"))
        assert client.expect("MESSAGE").body == b"last words"
        broker.signal(number)
        error = client.expect("ERROR")
        assert error["message"] == "the broker is shutting down"
        assert client.bytes_to_end() == b""
        client.close()
        assert broker.wait() == 0
        assert "Traceback" not in broker.log
        assert '"level": "warning"' not in broker.log


def test_it_stops_accepting_at_once(tmp_path: Path) -> None:
    """While one that does not read is still being waited for, nobody new gets in."""
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.address) as client:
            client.connect()
            broker.signal(signal.SIGTERM)
            client.expect("ERROR")
            with pytest.raises(ConnectionRefusedError):
                RawClient(broker.address)
        assert broker.wait() == 0


def test_what_was_written_is_delivered_before_the_end(tmp_path: Path) -> None:
    """A slow reader gets all that its connection held when the signal came."""
    with BrokerProcess(tmp_path) as broker, RawClient(broker.address, receive_buffer_bytes=16384) as client:
        client.connect()
        client.send(frame("SUBSCRIBE", id="1", destination="/queue/q", ack="client", receipt="on"))
        client.expect("RECEIPT")
        body = b"x" * 10_000
        client.send(b"".join(frame("SEND", body, destination="/queue/q", length=True) for _ in range(90)))
        with Link(Address(*broker.address)) as observer:
            for _ in poll("everything is handed to the connection"):
                queue = next((d for d in observer.ask("stat")["destinations"] if d["name"] == "/queue/q"), None)
                if queue is not None and queue["unsettled_count"] == 90:
                    break
        broker.signal(signal.SIGTERM)
        commands = [f.command for f in client.frames_to_end()]
        assert commands[-1] == "ERROR"
        assert commands.count("MESSAGE") == 90
        client.close()
        assert broker.wait() == 0


def test_a_second_signal_cuts(tmp_path: Path) -> None:
    """For whoever has no patience with peers that do not read; still an end with code 0, and said in the log."""
    config = tmp_path / "patient.toml"
    config.write_text(
        '[broker]\nshutdown_seconds = 600\n\n[[listeners]]\naddress = "127.0.0.1:0"\nlimits.linger_seconds = 600\n'
    )
    with (
        BrokerProcess(tmp_path, "--config", str(config), listen=None) as broker,
        RawClient(broker.address, receive_buffer_bytes=16384) as stalled,
    ):
        stalled.connect()
        stalled.send(frame("SUBSCRIBE", id="1", destination="/queue/q", receipt="on"))
        stalled.expect("RECEIPT")
        with RawClient(broker.address) as producer:
            producer.connect()
            body = b"x" * 65536
            producer.send(b"".join(frame("SEND", body, destination="/queue/q", length=True) for _ in range(160)))
            producer.send(frame("DISCONNECT", receipt="bye"))
            producer.expect("RECEIPT")
        broker.signal(signal.SIGTERM)
        for _ in poll("it stops"):
            assert broker.process.poll() is None
            if "broker stops" in broker.log:
                break
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert "connections cut" in broker.log
        assert "Traceback" not in broker.log


def test_it_says_where_it_listens(tmp_path: Path) -> None:
    """One line per listener, with the ports that it really has; clients can connect to each."""
    with BrokerProcess(tmp_path, "--listen", "127.0.0.1:0") as broker:
        host, port = broker.address
        assert host == "127.0.0.1"
        assert port > 0
        with RawClient(broker.address) as client:
            client.connect()


def test_after_kill_9_the_next_one_starts_on_the_same_port(tmp_path: Path) -> None:
    """Nothing that the dead one left (sockets in TIME_WAIT, its data folder) is in the way."""
    address = ("127.0.0.1", free_port())
    listen = "{}:{}".format(*address)
    with BrokerProcess(tmp_path, listen=listen) as broker, RawClient(address) as client:
        client.connect()
        client.send(frame("SEND", b"x", destination="/queue/q", receipt="r"))
        client.expect("RECEIPT")
        broker.kill()
        assert client.bytes_to_end() == b""
    with BrokerProcess(tmp_path, listen=listen) as broker:
        assert broker.address == address
        with RawClient(address) as client:
            client.connect()


# -- an object in a trio program ---------------------------------------------------------------------------------------


async def test_a_broker_inside_trio_serves_sockets_and_memory() -> None:
    async with Broker(LOOPBACK) as broker:
        host, port = broker.addresses[0].split(":")
        with trio.fail_after(20):
            stream = await trio.open_tcp_stream(host, int(port))
            memory = broker.connect_memory()
            async with stream:
                for send in (stream.send_all, memory.send_all):
                    await send(frame("CONNECT", accept_version="1.2", host="h"))
                assert (await stream.receive_some()).startswith(b"CONNECTED\n")
                assert (await memory.receive_some()).startswith(b"CONNECTED\n")
                memory.close()
        assert broker.urls == [f"stomp://{host}:{port}"]


async def test_two_brokers_in_one_program_know_nothing_of_each_other() -> None:
    async with Broker(LOOPBACK) as one, Broker(LOOPBACK) as other:
        assert one.addresses != other.addresses
        stream = one.connect_memory()
        with trio.fail_after(20):
            await stream.send_all(frame("CONNECT", accept_version="1.2", host="h"))
            await stream.send_all(frame("SEND", b"x", destination="/queue/q", receipt="r"))
            answered = b""
            while b"RECEIPT" not in answered:
                answered += await stream.receive_some()
        assert [d["name"] for d in one.report()["destinations"]] == ["/queue/q"]
        assert other.report()["destinations"] == []
        stream.close()


async def test_after_the_end_of_the_block_the_port_is_free() -> None:
    port = free_port()
    async with Broker(attrs.evolve(LOOPBACK, listeners=(Listener(address=f"127.0.0.1:{port}"),))):
        pass
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_an_error_in_the_block_ends_the_broker_and_comes_out() -> None:
    """Without waiting for anybody's good manners."""
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="mine"), allow_unwrapped=True, flatten_subgroups=True):
        async with Broker(LOOPBACK) as broker:
            broker.connect_memory()
            raise ValueError("mine")


async def test_cancelling_the_block_ends_the_broker() -> None:
    with trio.fail_after(20):
        with trio.CancelScope() as scope:
            async with Broker(LOOPBACK) as broker:
                broker.connect_memory()
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_a_broker_that_can_not_listen_leaves_nothing_behind() -> None:
    """The listener that was bound first is closed again."""
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = (f"127.0.0.1:{free}", f"127.0.0.1:{taken.getsockname()[1]}")
        config = attrs.evolve(LOOPBACK, listeners=tuple(Listener(address=address) for address in addresses))
        with pytest.raises(ListenError, match="the port is in use"):
            async with Broker(config):
                raise AssertionError("not reached")
        with socket.create_server(("127.0.0.1", free)):
            pass


@pytest.mark.parametrize("step", ["open", "recover"])
async def test_what_a_start_raises_comes_out_by_itself_and_the_port_is_free(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a group, whichever of the broker's tasks run already."""

    async def break_it(_shards: Shards) -> None:
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(Shards, step, break_it)
    port = free_port()
    with pytest.raises(ZeroDivisionError, match="mine"):
        async with Broker(attrs.evolve(LOOPBACK, listeners=(Listener(address=f"127.0.0.1:{port}"),))):
            raise AssertionError("not reached")
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_that_it_has_stopped_is_said_once_at_the_end(log_lines: LogLines) -> None:
    async with Broker(LOOPBACK) as broker:
        await broker.stop()
        await broker.stop()
    assert [line["event"] for line in log_lines.all()][-2:] == ["broker stops", "broker stopped"]
