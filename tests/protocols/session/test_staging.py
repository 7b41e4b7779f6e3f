"""Large SENDs of one session, on a disk that answers when the test says so: what waits for it and what does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluiceway.dispatcher.core import DispatcherCore
from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController
from sluiceway.protocols.outbound import Piece
from sluiceway.protocols.reading import Reason
from sluiceway.protocols.stomp.authorization import ANYBODY, Action, Identity, RateGate
from sluiceway.protocols.stomp.left_behind import LeftBehind
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.session import Session
from sluiceway.protocols.stomp.staging import BodyStaging
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.large import BodyError, BodyReference
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry

CAPACITY_BYTES = 1000


class SlowStaging:
    """Keeps what was written, and answers nothing by itself."""

    def __init__(self, disk: SlowDisk, source: SourceController, failed: Callable[[BodyError], None]) -> None:
        self.disk = disk
        self.source = source
        self.failed = failed
        self.written = b""
        self.collected_bytes = 0
        self.done: Callable[[BodyReference | BodyError], None] | None = None
        self.aborted = False

    def write(self, piece: bytes) -> None:
        self.written += piece
        self.disk.waiting.charge(0, len(piece), self.source)

    def commit(self, done: Callable[[BodyReference | BodyError], None]) -> None:
        self.done = done

    def abort(self) -> None:
        self.aborted = True

    def complete(self, result: BodyError | None = None) -> None:
        """The disk has it, or not."""
        assert self.done is not None
        self.disk.references_count += result is None
        self.done(BodyReference(self.disk, 1, len(self.written)) if result is None else result)


class SlowDisk(FlowResource):
    """The port `Bodies`, and the keeper of its references."""

    def __init__(self, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__("disk", "disk", manager)
        self.stagings: list[SlowStaging] = []
        self.references_count = 0
        self.refuses = False
        self.waiting = Account(self, Flow("in"), SizeLimiter(CAPACITY_BYTES, clock=clock), clock=clock)
        self.open()

    def begin(
        self, length_bytes: int, *, durable: bool, source: SourceController, failed: Callable[[BodyError], None]
    ) -> BodyStaging:
        if self.refuses:
            raise BodyError("full")
        self.stagings.append(SlowStaging(self, source, failed))
        return self.stagings[-1]

    def read(
        self, body: BodyReference, offset: int, size_bytes: int, done: Callable[[bytes | Exception], None]
    ) -> None:
        raise AssertionError("nobody reads here")

    def keep(self, file_id: int) -> None: ...
    def forget(self, file_id: int) -> None: ...

    def reference_died(self, file_id: int) -> None:
        self.references_count -= 1


class OpenGuard:
    """Everybody may do everything."""

    generation = 0
    allows_everything = True
    stamps_user = False

    def may(self, identity: Identity, action: Action, destination: str | None = None) -> bool:
        return True

    def refused(self, action: Action) -> None:
        raise AssertionError("nobody is refused anything")

    def rates_of(self, identity: Identity, listener: str) -> list[RateGate]:
        return []


class World:
    """A session that has been let in, and all around it."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.core = DispatcherCore(self.clock)
        self.scheduling = self.core
        self.manager = FlowManager(self.clock)
        self.left_behind = LeftBehind(
            1 << 20, manager=self.manager, clock=self.clock, scheduling=self.core, unheard=lambda count: None
        )
        self.store = None
        self.guard = OpenGuard()
        self.on_marked_sends = None
        self.bodies = SlowDisk(self.manager, self.clock)
        self.message_token = b"token"
        self.logs = None
        self.hosts = None
        self.server_name = "test/1"
        self.ack_prefix, self.elsewhere = b"", None
        self.registry = DestinationRegistry(
            QueueEnvironment(manager=self.manager, scheduling=self.core, clock=self.clock, now_ms=lambda: 0),
            lambda address: QueuePolicy(),
            destinations_max=100,
        )
        self.written = b""
        self.next_number = 1
        hub: Any = self
        self.session = Session(
            hub,
            StompLimits(large_body_bytes=100),
            peer="client",
            write=self.write,
            wake_writer=lambda: None,
            changed=lambda: None,
        )
        self.receive(b"CONNECT\naccept-version:1.2\nhost:h\nheart-beat:1000,0\n\n\0")
        self.written = b""

    def clock(self) -> float:
        return self.now_seconds

    shard_of = None

    def store_of(self, _shard: int | None) -> None:
        return None

    spools_of = store_of

    def bodies_for(self, _destination: str) -> tuple[SlowDisk, None]:
        return self.bodies, None

    def take_numbers(self, count: int) -> int:
        first = self.next_number
        self.next_number += count
        return first

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self.core.at_turn_end(callback)

    def new_session_id(self) -> str:
        return "session"

    def begin_login(self, *_who: Any, decided: Callable[[Identity], None], **_whence: Any) -> Callable[[], None]:
        decided(ANYBODY)
        return lambda: None

    def write(self, pieces: Sequence[Piece]) -> int:
        data = b"".join(pieces)
        self.written += data
        return len(data)

    def receive(self, data: bytes) -> None:
        """Bytes arrive. A transport asks before."""
        assert self.session.reading_blocked_by is None
        self.session.receive(data)
        self.run()

    def run(self) -> None:
        """What a transport and a dispatcher do by themselves."""
        self.session.resume()
        while self.core.has_work():
            self.core.run_turn()
        self.session.update_reading()

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_seconds += 1
            self.core.run_turn()
            self.run()

    def depth(self, name: str) -> int:
        found = self.registry.destinations.get(name)
        return 0 if found is None else sum(q.elements.live_count for q in found.queue.partitions.values())


@pytest.fixture
def world() -> World:
    return World()


def large(size: int = 200, extra: bytes = b"receipt:large\n") -> bytes:
    return b"SEND\ndestination:/queue/q\ncontent-length:%d\n%s\n" % (size, extra) + b"x" * size + b"\0"


SMALL = b"SEND\ndestination:/queue/q\nreceipt:small\n\nsmall\0"


def test_a_receipt_waits_until_the_file_is_complete(world: World) -> None:
    world.receive(large())
    world.wait(5)
    assert (world.written, world.depth("/queue/q")) == (b"", 0)
    world.bodies.stagings[0].complete()
    world.run()
    assert b"receipt-id:large" in world.written
    assert world.depth("/queue/q") == 1


def test_what_came_behind_it_waits_too_and_nothing_more_is_read(world: World) -> None:
    """In order, whatever it is: ACKs as well, for as long as a disk takes. The map says what for."""
    world.receive(large() + SMALL + large(300, b"receipt:second\n") + SMALL)
    assert world.session.reading_blocked_by is Reason.LARGE_MESSAGE
    assert world.session.lanes.facts()["waiting for"] == "the disk, for its large message"
    world.bodies.stagings[0].complete()
    world.run()
    assert world.depth("/queue/q") == 2
    assert world.session.reading_blocked_by is Reason.LARGE_MESSAGE
    assert b"receipt-id:second" not in world.written
    world.bodies.stagings[1].complete()
    world.run()
    assert world.depth("/queue/q") == 4
    assert world.session.reading_blocked_by is None


def test_a_disk_that_does_not_keep_up_stops_the_socket_it_comes_from(world: World) -> None:
    world.receive(large(5000)[:1500])
    assert world.session.reading_blocked_by is Reason.LARGE_MESSAGE
    world.bodies.waiting.release(0, 1000)
    assert world.session.reading_blocked_by is None


def test_a_client_is_not_dead_while_nobody_reads_from_it(world: World) -> None:
    """Its heart-beats wait in the socket. They are due again when it is read."""
    world.receive(large())
    assert world.session.reading_blocked_by is Reason.LARGE_MESSAGE
    world.wait(100)
    assert world.session.ending is None
    world.bodies.stagings[0].complete()
    world.run()
    assert world.session.reading_blocked_by is None
    world.wait(100)
    assert "heart-beat-missed" in str(world.session.ending)


def test_a_disk_that_refuses_is_an_error_about_that_frame(world: World) -> None:
    """Whether it says so before the body, in the middle, or at the end. Where on the disk is nobody's business."""
    for moment in ("before", "between", "behind"):
        world = World()
        if moment == "before":
            world.bodies.refuses = True
            world.receive(large())
        elif moment == "between":
            world.receive(large(5000)[:300])
            world.bodies.stagings[0].failed(BodyError("/secret/place is full"))
            assert world.bodies.stagings[0].aborted
        else:
            world.receive(large() + SMALL)
            world.bodies.stagings[0].complete(BodyError("/secret/place is full"))
        world.run()
        assert b"ERROR" in world.written, moment
        assert b"receipt-id:large" in world.written
        assert b"can't store the body" in world.written
        assert b"secret" not in world.written
        assert world.depth("/queue/q") == 0


def test_an_end_in_the_middle_of_a_body_gives_it_up(world: World) -> None:
    for how in ("closed", "failed"):
        world = World()
        world.receive(large(5000)[:300])
        if how == "closed":
            world.session.close()
        else:
            world.wait(100)  # no heart-beats
        assert world.bodies.stagings[0].aborted, how


def test_a_body_that_was_complete_counts_though_its_connection_is_gone(world: World) -> None:
    """What came behind it does not: there was no receipt for it."""
    world.receive(large() + SMALL)
    world.session.close()
    world.run()
    assert not world.session.is_drained
    world.bodies.stagings[0].complete()
    world.run()
    assert world.depth("/queue/q") == 1
    assert world.session.is_drained


@pytest.mark.parametrize(
    "extra, begin",
    [(b"transaction:t\n", b"BEGIN\ntransaction:t\n\n\0"), (b"reply-to:/temp-queue/t\n", b"")],
    ids=["in a transaction", "with a temporary reply-to"],
)
def test_what_ended_with_its_connection_takes_the_body_along(world: World, extra: bytes, begin: bytes) -> None:
    world.receive(begin + large(200, extra))
    world.session.close()
    world.run()
    world.bodies.stagings[0].complete()
    world.run()
    assert (world.depth("/queue/q"), world.bodies.references_count) == (0, 0)
    assert world.session.is_drained
    assert len(world.registry.destinations) == 0


def test_what_a_body_holds_in_memory_is_on_the_map(world: World) -> None:
    world.receive(large(5000)[:300])
    world.bodies.stagings[0].collected_bytes = 70
    world.receive(b"x")
    assert world.session.lanes.unfinished.limiter.used_bytes == 70
    world.session.close()
    assert world.session.lanes.unfinished.limiter.used_bytes == 0


def test_bodies_that_arrive_in_turn_are_the_bodies_that_were_sent(world: World) -> None:
    stream = large(150) + large(160, b"") + large(170, b"")
    position = 0
    pending = deque(stream[at : at + 7] for at in range(0, len(stream), 7))
    while pending:
        if world.session.reading_blocked_by is None:
            world.receive(pending.popleft())
        else:
            world.bodies.stagings[position].complete()
            position += 1
            world.run()
    assert [len(staging.written) for staging in world.bodies.stagings] == [150, 160, 170]
