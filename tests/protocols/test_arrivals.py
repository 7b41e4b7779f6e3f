"""Many sockets are waited for together: each that has input is taken, and none that nobody waits for is asked again."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import trio
import trio.testing

from sluiceway.protocols.arrivals import IS_AVAILABLE, Arrivals, Watched

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="the system has no epoll")
PATIENCE_SECONDS = 15.0


class Peer:
    """One connected pair: what the broker's end has taken, and who waits there."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.far, self.near = socket.socketpair()
        self.near.setblocking(False)
        self.stage = stage
        self.name = name
        self.wants_on = True
        """What the callback answers."""
        self.taken: list[bytes] = []
        self.watched: Watched = stage.arrivals.watch(self.near.fileno(), self.take)

    def take(self) -> bool:
        self.stage.order.append(self.name)
        self.stage.now_seconds += self.stage.cost_seconds
        self.taken.append(self.near.recv(1))
        return self.wants_on

    def close(self) -> None:
        self.watched.close()
        self.near.close()
        self.far.close()


class Stage:
    """`Arrivals` on a counted clock."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.cost_seconds = 0.0
        """Of a callback."""
        self.order: list[str] = []
        self.turns_count = 0
        self.turned = trio.lowlevel.ParkingLot()
        self.arrivals = Arrivals(self.turn_with, lambda: self.now_seconds)
        self.stack = ExitStack()

    def turn_with(self, work: Callable[[], None]) -> None:
        self.turns_count += 1
        work()
        self.turned.unpark_all()

    def peer(self, name: str) -> Peer:
        return self.stack.enter_context(closing(Peer(self, name)))

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            while not condition():
                await self.turned.park()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        stage = Stage()
        nursery.start_soon(stage.arrivals.run)
        with stage.stack:
            yield stage
        nursery.cancel_scope.cancel()


async def test_what_comes_to_many_is_taken_in_one_turn_and_their_tasks_sleep_on(
    stage: Stage, nursery: trio.Nursery
) -> None:
    peers = [stage.peer(str(number)) for number in range(10)]
    for peer in peers:
        nursery.start_soon(peer.watched.wait)
        peer.far.send(b"a")
    await stage.until(lambda: len(stage.order) == 10)
    assert stage.turns_count == 1
    assert [peer.taken for peer in peers] == [[b"a"]] * 10
    assert len(nursery.child_tasks) == 10


async def test_the_task_goes_on_when_the_callback_says_so(stage: Stage) -> None:
    peer = stage.peer("one")
    peer.wants_on = False
    peer.far.send(b"a")
    with trio.fail_after(PATIENCE_SECONDS):
        await peer.watched.wait()
    assert peer.taken == [b"a"]


async def test_input_that_nobody_waits_for_is_not_named_again_and_not_lost(stage: Stage) -> None:
    """It would keep the loop busy; and it is there when somebody waits."""
    peer, other = stage.peer("one"), stage.peer("other")
    peer.wants_on = other.wants_on = False
    with trio.fail_after(PATIENCE_SECONDS):
        peer.far.send(b"abc")
        await peer.watched.wait()
        for _ in range(20):  # nobody waits for the rest of it
            other.far.send(b"x")
            await other.watched.wait()
        before = stage.turns_count
        await trio.testing.wait_all_tasks_blocked()
        assert stage.turns_count == before
        assert stage.order.count("one") == 1
        await peer.watched.wait()
        await peer.watched.wait()
    assert peer.taken == [b"a", b"b", b"c"]


async def test_who_always_has_more_keeps_nobody_from_a_turn(stage: Stage, nursery: trio.Nursery) -> None:
    stage.cost_seconds = math.inf  # each callback takes more than all of a turn
    peers = [stage.peer(name) for name in "abc"]
    for peer in peers:
        peer.far.send(b"x" * 4)
        nursery.start_soon(peer.watched.wait)
    await stage.until(lambda: len(stage.order) == 12)
    assert stage.turns_count == 12
    assert [sorted(stage.order[start : start + 3]) for start in range(0, 12, 3)] == [["a", "b", "c"]] * 4


async def test_many_get_their_turns_in_few_passes_of_the_loop(stage: Stage, nursery: trio.Nursery) -> None:
    """Tasks that are always busy have one turn in each pass."""
    stage.cost_seconds = math.inf
    passes_count = 0

    async def busy() -> None:
        nonlocal passes_count
        while True:
            await trio.lowlevel.checkpoint()
            passes_count += 1

    for number in range(12):
        peer = stage.peer(str(number))
        peer.far.send(b"x")
        nursery.start_soon(peer.watched.wait)
    nursery.start_soon(busy)
    await stage.until(lambda: bool(stage.order))
    began_count = passes_count
    await stage.until(lambda: len(stage.order) == 12)
    assert passes_count - began_count <= 3
    assert stage.turns_count == 12


async def test_a_cancelled_wait_takes_nothing_any_more(stage: Stage, nursery: trio.Nursery) -> None:
    peer, other = stage.peer("one"), stage.peer("other")
    with trio.CancelScope() as scope:
        scope.cancel()
        await peer.watched.wait()
    assert scope.cancelled_caught
    peer.far.send(b"a")
    nursery.start_soon(other.watched.wait)
    other.far.send(b"x")
    await stage.until(lambda: bool(other.taken))
    assert peer.taken == []


async def test_a_callback_may_cancel_its_own_task(stage: Stage) -> None:
    """A connection that has come to its end does that."""
    peer = stage.peer("one")
    with trio.fail_after(PATIENCE_SECONDS), trio.CancelScope() as scope:

        def take() -> bool:
            scope.cancel()
            return False

        peer.watched = stage.arrivals.watch(peer.near.fileno(), take)
        peer.far.send(b"a")
        await peer.watched.wait()
    assert scope.cancelled_caught


async def test_what_a_callback_raises_is_raised_by_the_task_that_waits(stage: Stage, nursery: trio.Nursery) -> None:
    peer, other = stage.peer("one"), stage.peer("other")

    def take() -> bool:
        raise RuntimeError("injected")

    peer.watched = stage.arrivals.watch(peer.near.fileno(), take)
    nursery.start_soon(other.watched.wait)
    peer.far.send(b"a")
    with trio.fail_after(PATIENCE_SECONDS), pytest.raises(RuntimeError, match="injected"):
        await peer.watched.wait()
    other.far.send(b"x")
    await stage.until(lambda: bool(other.taken))


async def test_a_socket_closed_by_another_callback_is_not_taken(stage: Stage, nursery: trio.Nursery) -> None:
    first, second = stage.peer("first"), stage.peer("second")
    for peer, other in ((first, second), (second, first)):

        def take(peer: Peer = peer, other: Peer = other) -> bool:
            other.close()
            return peer.take()

        peer.watched = stage.arrivals.watch(peer.near.fileno(), take)
        nursery.start_soon(peer.watched.wait)
        peer.far.send(b"a")
    await stage.until(lambda: bool(stage.order))
    assert len(stage.order) == 1


async def test_the_end_of_the_peer_is_input(stage: Stage) -> None:
    peer = stage.peer("one")
    peer.wants_on = False
    peer.far.close()
    with trio.fail_after(PATIENCE_SECONDS):
        await peer.watched.wait()
    assert peer.taken == [b""]


@pytest.fixture
def ended() -> Iterator[Arrivals]:
    arrivals = Arrivals(lambda work: work(), lambda: 0.0)

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await arrivals.run()

    trio.run(cancelled)
    yield arrivals


def test_sockets_may_be_closed_after_the_end(ended: Arrivals) -> None:
    """A broker that dies of a fault cancels all of its tasks at once."""
    near, far = socket.socketpair()
    with near, far:
        watched = ended.watch(near.fileno(), lambda: True)

        async def waits() -> None:
            with trio.move_on_after(0):
                await watched.wait()

        trio.run(waits)
        watched.close()
