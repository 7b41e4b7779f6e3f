"""Plain sockets are served together; what happens to one of them is no matter of the others."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from sluiceway.broker import Broker
from sluiceway.config import Config, DestinationPolicy, Listener
from sluiceway.protocols.arrivals import IS_AVAILABLE
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.session import Session
from tests.network.talking import PATIENCE_SECONDS, Talker, dial

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="the system has no epoll")


def config(**policy: int) -> Config:
    policies = (DestinationPolicy("/>", dict(policy)),)
    return Config(
        listeners=(Listener(address="127.0.0.1:0", limits=StompLimits(stash_bytes_max=1 << 20)),), destinations=policies
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@asynccontextmanager
async def talker(broker: Broker) -> AsyncIterator[Talker]:
    async with await dial(broker.addresses[0]) as stream:
        talker = Talker(stream)
        await talker.connect()
        yield talker


def plain(address: str, stack: ExitStack) -> socket.socket:
    """A blocking client: what it sends is in the broker's kernel at once."""
    host, _colon, port = address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS))


async def test_what_ten_send_at_once_is_worth_one_turn(stack: ExitStack) -> None:
    async with Broker(config()) as broker, talker(broker) as reader:
        await reader.send("SUBSCRIBE", {"destination": "/queue/a", "id": "1", "receipt": "r"})
        await reader.expect("RECEIPT")
        senders = [plain(broker.addresses[0], stack) for _ in range(10)]
        for sender in senders:
            sender.sendall(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
        for sender in senders:
            assert b"CONNECTED" in await trio.to_thread.run_sync(sender.recv, 4096)
        await trio.testing.wait_all_tasks_blocked()
        turns_count = broker.dispatcher.statistics().turns_count
        for number, sender in enumerate(senders):
            sender.sendall(b"SEND\ndestination:/queue/a\n\n%d\0" % number)
        bodies = [(await reader.expect("MESSAGE")).body for _ in range(10)]
        assert sorted(map(int, bodies)) == list(range(10))
        # One for all of them, one for the ACKs; a busy machine may add those of a timer, or deliver in two parts.
        assert broker.dispatcher.statistics().turns_count - turns_count <= 5


async def test_our_own_mistake_costs_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Session.receive

    def broken(self: Session, data: bytes) -> None:
        if b"/queue/broken" in data:
            raise RuntimeError("injected")
        receive(self, data)

    monkeypatch.setattr(Session, "receive", broken)
    async with Broker(config()) as broker, talker(broker) as one, talker(broker) as other:
        await one.send("SEND", {"destination": "/queue/broken"})
        error = await one.expect("ERROR")
        assert error.headers["code"] == "internal-error"
        assert await other.round_trip(b"body") == b"body"


async def test_so_does_one_in_the_question_whether_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(config()) as broker, talker(broker) as one, talker(broker) as other:
        asked = next(iter(broker.connections)).session

        def broken(self: Session) -> bool:
            if self is asked:
                raise RuntimeError("injected")
            return True

        monkeypatch.setattr(Session, "is_read_as_usual", property(broken))
        await one.send("SEND", {"destination": "/queue/a"})
        error = await one.expect("ERROR")
        assert error.headers["code"] == "internal-error"
        assert await other.round_trip(b"body") == b"body"


async def test_so_does_one_in_giving_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(config()) as broker, talker(broker) as one, talker(broker) as other:
        failing, receive, fail = next(iter(broker.connections)).session, Session.receive, Session.fail
        left = ["when it is abandoned", "when it is ended"]

        def broken(self: Session, data: bytes) -> None:
            if self is failing:
                raise RuntimeError("injected")
            receive(self, data)

        def broken_fail(self: Session, error: ProtocolError, *, peers_fault: bool = True) -> None:
            if self is failing and left:
                raise RuntimeError(f"injected {left.pop(0)}")
            fail(self, error, peers_fault=peers_fault)

        monkeypatch.setattr(Session, "receive", broken)
        monkeypatch.setattr(Session, "fail", broken_fail)
        await one.send("SEND", {"destination": "/queue/a"})
        error = await one.expect("ERROR")
        assert error.headers["code"] == "internal-error"
        assert not left
        assert await other.round_trip(b"body") == b"body"


async def test_a_connection_that_breaks_is_given_up() -> None:
    async with Broker(config()) as broker, talker(broker) as other:
        async with talker(broker) as one:
            await one.send("SUBSCRIBE", {"destination": "/queue/a", "id": "1", "receipt": "r"})
            await one.expect("RECEIPT")
            assert isinstance(one.stream, trio.SocketStream)
            one.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
        with trio.fail_after(PATIENCE_SECONDS):
            while len(broker.connections) > 1:
                await trio.lowlevel.checkpoint()
        assert await other.round_trip(b"body", "/queue/a") == b"body"


async def test_a_sender_that_must_wait_goes_on_where_it_stood() -> None:
    """Its socket is not read while its queue is full, and still has input when it may go on."""
    count, body = 500, b"x" * 40_000
    async with Broker(config(memory_bytes=1 << 20)) as broker, talker(broker) as sender, talker(broker) as reader:

        async def send_all() -> None:
            for _ in range(count):
                await sender.send("SEND", {"destination": "/queue/a"}, body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            with trio.fail_after(PATIENCE_SECONDS):
                while all(connection.session.reading_blocked_by is None for connection in broker.connections):
                    await trio.lowlevel.checkpoint()
            await reader.send("SUBSCRIBE", {"destination": "/queue/a", "id": "1"})
            for _ in range(count):
                assert (await reader.expect("MESSAGE")).body == body
