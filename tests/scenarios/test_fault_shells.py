"""Every shell of the broker catches what one connection, request, look or signal raised; the rest goes on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import structlog
import trio
import trio.testing

import sluiceway.broker as brokers
from sluiceway.admin.http import HttpServer
from sluiceway.admin.sampling import Sampler
from sluiceway.answering import Answers
from sluiceway.broker import Broker
from sluiceway.config import Config, Listener
from sluiceway.draining import Draining
from sluiceway.flow.graph import Steps
from sluiceway.protocols.listener import SocketListener as Accepting
from sluiceway.protocols.listener import bind_now
from sluiceway.protocols.streams import ByteStream
from sluiceway.steps import StepPace
from sluiceway.store.memory import MemoryEngine
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
    answers = Answers(StepPace(lambda: 0), tasks.append, contained.append, clock=lambda: 0.0)
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


@pytest.mark.parametrize("where", ["accept", "connection", "descriptors"])
async def test_the_admin_port_goes_on_whatever_its_look_for_connections_raises(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def broken(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made.append(1)
            if len(made) == 1:
                raise OSError(errno.EMFILE, "too many") if where == "descriptors" else Injected(where)
            return real(*arguments)

        return call

    class Knocking:
        """A socket of trio."""

        def __init__(self, listening: socket.socket) -> None:
            self._accept = broken(socket.socket.accept) if where != "connection" else socket.socket.accept
            self._listening = listening

        async def accept(self) -> Any:
            await trio.lowlevel.wait_readable(self._listening)
            connected, peer = self._accept(self._listening)
            connected.setblocking(False)
            return from_stdlib_socket(connected), peer

    from_stdlib_socket = trio.socket.from_stdlib_socket
    (listening,) = bind_now("127.0.0.1:0")
    address = listening.getsockname()
    contained: list[Exception] = []
    served: list[str] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        served.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    kept: list[int] = []
    server = HttpServer(
        app, [listening], connections_max=5, client_seconds=5.0, contain=contained.append, keep=kept.append
    )
    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr("sluiceway.admin.http.trio.socket.from_stdlib_socket", Knocking)
            nursery.start_soon(server.run)
            await trio.testing.wait_all_tasks_blocked()
        if where == "connection":
            monkeypatch.setattr("sluiceway.admin.http.trio.SocketStream", broken(trio.SocketStream))
        with trio.fail_after(10):
            for _ in range(2):
                with trio.socket.socket() as client, suppress(ConnectionResetError):
                    await client.connect(address)
                    await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    while await client.recv(4096):
                        pass
        server.close()
    assert served == ["/health"] * (1 if where == "connection" else 2)
    assert len(contained) == (0 if where == "descriptors" else 1)
    assert server.tasks.connections_count == sum(kept) == 0


async def test_the_admin_port_says_once_that_descriptors_are_short_or_connections_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long that lasts, and however often somebody knocks."""
    looks_count = 0

    class Short:
        """A listening socket of trio while there are no descriptors; then one that many use."""

        def __init__(self, _listening: socket.socket) -> None:
            pass

        async def accept(self) -> Any:
            nonlocal looks_count
            looks_count += 1
            if looks_count <= 20:
                raise OSError(errno.EMFILE, "too many open files")
            if looks_count > 40:
                await trio.sleep_forever()
            return trio.socket.socket(), "somebody"

    (listening,) = bind_now("127.0.0.1:0")
    kept: list[int] = []
    server = HttpServer(None, [listening], connections_max=0, client_seconds=5.0, contain=pytest.fail, keep=kept.append)
    with structlog.testing.capture_logs() as said:
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr("sluiceway.admin.http.trio.socket.from_stdlib_socket", Short)
                nursery.start_soon(server.run)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(30)
            server.close()
    assert (looks_count, server.tasks.refused_count, kept) == (41, 20, [])
    assert [line["event"] for line in said] == ["no more HTTP connections for now", "too many HTTP connections"]


def unhurried(stage: Stage) -> StepPace:
    """Steps that take no time by its clock. By that of the machine a sample would rest after each pause of the machine,
    for longer than a test lasts.
    """
    return StepPace(lambda: stage.broker.dispatcher.statistics().turns_count, lambda: 0.0)


async def test_a_sample_that_breaks_leaves_the_last_good_numbers_and_right_ones_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rates are of the time since the last good sample."""
    async with Stage() as stage:
        producer = await stage.connect()
        sampler = Sampler(stage.broker.shards, stage.broker.connections, unhurried(stage), contain=stage.broker.contain)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sampler.run)
            await sampler.ready()

            async def pass_seconds(count: int) -> None:
                for _ in range(10 * count):
                    await producer.send_all("/queue/load", range(10))
                    await trio.sleep(0.1)
                    await sampler.ready()

            await pass_seconds(10)
            rate = sampler.totals.in_per_second
            assert 90 <= rate <= 110
            with monkeypatch.context() as patch:
                fail_always(Sampler, "_sample_destination", patch)
                await pass_seconds(4)
                assert sampler.totals.in_per_second == rate
                assert stage.broker.faults.counts["other"] >= 3
            most = 0.0
            for _ in range(5):
                await pass_seconds(1)
                most = max(most, sampler.totals.in_per_second)
            assert most <= 110
            nursery.cancel_scope.cancel()
        await check_good(stage, producer)


async def test_who_waits_for_samples_that_always_break_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await client.sent(GOOD, "x")
        sampler = Sampler(stage.broker.shards, stage.broker.connections, unhurried(stage), contain=stage.broker.contain)
        fails = fail_always(Sampler, "_sample_destination", monkeypatch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sampler.run)
            with trio.fail_after(5):
                await sampler.ready()
            nursery.cancel_scope.cancel()
        assert fails and sampler.totals.in_per_second == 0


def fail_always(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every call of this method raises; returns where it says so."""
    fails: list[int] = []

    def broken(*_arguments: Any, **_named: Any) -> Any:
        fails.append(1)
        raise Injected(name)

    monkeypatch.setattr(owner, name, broken)
    return fails
