"""Every shell of the broker catches what one connection, request, look or signal raised; the rest goes on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio

import sluiceway.broker as brokers
from flow.graph import Steps
from protocols.listener import Listener as Accepting
from protocols.listener import bind_now
from protocols.streams import ByteStream
from sluiceway.answering import Answers
from sluiceway.broker import Broker
from sluiceway.config import Config, Listener
from sluiceway.draining import Draining
from sluiceway.steps import Pace
from store.memory import MemoryEngine
from tests.scenarios.stage import Stage
from tests.scenarios.test_faults import GOOD, Injected, check_good


class Knocked(socket.socket):
    """A listening socket whose `accept` fails as it is told to."""

    failures: list[BaseException]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return super().accept()


def knocked(failures: list[BaseException]) -> Knocked:
    (listening,) = bind_now("127.0.0.1:0")
    found = Knocked(fileno=listening.detach())
    found.setblocking(False)
    found.failures = failures
    return found


@pytest.mark.parametrize(
    ("failure", "contained_count"),
    [
        (OSError(errno.ECONNABORTED, "aborted"), 0),
        (OSError(errno.EMFILE, "too many open files"), 0),
        (OSError(errno.EINVAL, "who knows"), 1),
        (Injected("accept"), 1),
    ],
    ids=["aborted", "descriptors", "unknown", "bug"],
)
async def test_a_listener_goes_on_whatever_accept_says(failure: Exception, contained_count: int) -> None:
    contained: list[Exception] = []
    came: list[ByteStream] = []
    is_there = trio.Event()

    def accepted(_listener: Accepting, stream: ByteStream) -> None:
        came.append(stream)
        is_there.set()

    listening = knocked([failure])
    listener = Accepting(listening, connections_max=5, accepted=accepted, contain=contained.append)
    with socket.create_connection(listening.getsockname()):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run)
            with trio.fail_after(5):
                await is_there.wait()
            listener.close()
    came[0].abandon()
    assert len(contained) == contained_count
    assert listener.connections_count == 1


async def test_a_connection_that_can_t_be_made_is_closed_and_not_counted() -> None:
    contained: list[Exception] = []
    came: list[ByteStream] = []
    are_there = trio.Event()

    def accepted(_listener: Accepting, stream: ByteStream) -> None:
        came.append(stream)
        if len(came) == 1:
            raise Injected("connection")
        are_there.set()

    listening = knocked([])
    listener = Accepting(listening, connections_max=5, accepted=accepted, contain=contained.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        first, second = [await trio.open_tcp_stream(*listening.getsockname()) for _ in range(2)]
        assert await first.receive_some() == b""
        with trio.fail_after(5):
            await are_there.wait()
        listener.close()
    await trio.aclose_forcefully(first)
    await trio.aclose_forcefully(second)
    came[1].abandon()
    assert len(contained) == 1
    assert listener.connections_count == 1


@pytest.mark.parametrize("protocol", ["stomp", "websocket"])
async def test_a_broker_goes_on_when_a_connection_breaks_on_its_way_in(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = brokers.Connection
    made: list[Any] = []

    def connection(*arguments: Any, **named: Any) -> Any:
        made.append(1)
        if len(made) == 1:
            raise Injected("connection")
        return real(*arguments, **named)

    config = Config(listeners=(Listener(address="127.0.0.1:0", protocol=protocol),))
    async with Broker(config) as broker:
        monkeypatch.setattr(brokers, "Connection", connection)
        host, _colon, port = broker.addresses[0].rpartition(":")
        hello = b"GET /stomp HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + (
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: v12.stomp\r\n\r\n"
        )
        with trio.fail_after(10):
            for number in range(2):
                stream = await trio.open_tcp_stream(host, int(port))
                if protocol == "websocket":
                    await stream.send_all(hello)
                else:
                    await stream.send_all(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
                while number == 0:
                    try:
                        if not await stream.receive_some():
                            break
                    except trio.BrokenResourceError:
                        break
                if number == 1:
                    assert await stream.receive_some()
                await trio.aclose_forcefully(stream)
        assert broker.faults.counts["other"] == 1
        assert broker.listeners[0].accepted_count == 2


async def test_one_that_can_t_take_a_shared_answer_does_not_keep_others_from_it() -> None:
    contained: list[Exception] = []
    tasks: list[Any] = []
    answers = Answers(Pace(lambda: 0), tasks.append, contained.append, clock=lambda: 0.0)
    answers._inline_seconds, answers._inline_until = 1.0, 1.0  # nothing is made at once
    told: list[bytes] = []

    def steps() -> Steps[bytes]:
        yield
        return b"answer"

    def broken(_body: bytes) -> None:
        raise Injected("reply")

    def broken_steps() -> Steps[bytes]:
        yield
        raise Injected("steps")

    for reply in (told.append, broken, told.append):
        answers.make(steps, reply, key="same")
    answers.make(broken_steps, told.append)
    answers.make(steps, told.append)
    await tasks[0]()
    assert [b"INTERNAL_ERROR" in body for body in told] == [False, False, True, False]
    assert len(contained) == 2
    assert answers.waiting_count == 0


async def test_a_broker_whose_looks_break_while_it_drains_stops_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.sent(GOOD, "x")
        await consumer.subscribe(GOOD, ack="client")
        await consumer.next_message()

        async def broken(_self: Draining) -> bool:
            raise Injected("look")

        monkeypatch.setattr(Draining, "_is_drained", broken)
        stage.broker.drain(5.0)
        await trio.sleep(30)
        assert stage.broker.is_closed
        assert stage.broker.stop_wanted.is_set()
        assert stage.broker.faults.count > 1


async def test_what_is_broken_for_all_ends_the_broker_also_where_a_shell_swallows_it() -> None:
    with pytest.raises(BaseException) as caught:
        async with Stage(engine=MemoryEngine()) as stage:
            store: Any = stage.broker.store

            def request() -> None:
                try:
                    store.reserve_numbers(None)
                except TypeError as error:
                    with pytest.raises(TypeError):
                        stage.broker.faults.contain(error)

            request()
            await trio.sleep(1)
    assert caught.group_contains(TypeError)


def _raising() -> None:
    raise Injected("timer")


async def test_faults_of_one_place_are_said_once_and_counted_each_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Stage() as stage:
        client = await stage.connect()
        for _ in range(5):
            stage.broker.dispatcher.call_later(0.0, _raising)
        await trio.sleep(1)
        assert stage.broker.faults.counts["other"] == 5
        assert stage.broker.report()["faults"]["count"] == 5
        await check_good(stage, client)
    assert capsys.readouterr().err.count("Traceback") == 1
