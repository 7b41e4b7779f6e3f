"""A world with a store, whose disk is cranked by hand as well.

`StoreWorld` is the world of `tests.queues.rig` with a StoreQueue on any engine. Its worker does nothing until told to:
what is to be written and what is to be read wait in two lines, as they do in front of the two threads of a broker, and
answers arrive with the next turn. `tight` makes blocks, leases and batches so small that every border is crossed all
the time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest

from sluiceway.flow import Flow, FlowResource, SourceController
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.exclusive import SingleDistribution
from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.message import Envelope, Message
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.shared import shared_queue
from sluiceway.queues.taking import PATIENCE_SECONDS
from sluiceway.store import keys
from sluiceway.store.config import StoreConfig
from sluiceway.store.engine import Change, Engine, EngineError, FencedError, raise_it
from sluiceway.store.queue_records import QueueRecords
from sluiceway.store.recovery import Recovered, closing_records, opening_records, recover
from sluiceway.store.storequeue import NUMBERS_AHEAD, DataFolder, StoreQueue
from tests.queues.rig import Head, World

T = TypeVar("T")

WIRE_BYTES = 20
"""Wire bytes of a message, if a test does not care."""


def block_of(head: Envelope) -> bytes:
    """The header block of a rig's head: what queues ask of it again when it is read back."""
    said = (head.group or "") + (f",{color}" if (color := head.header("color")) else "")
    return b"%c%s\n" % (b"P" if head.persistent else b"v", said.encode())


class RigHeads:
    """The codec of the rig's heads."""

    def describe(self, head: Envelope) -> tuple[int, int]:
        return 0, len(block_of(head))

    def restore(self, dialect: int, block: bytes) -> Envelope:
        if dialect or block[:1] not in b"Pv" or block[-1:] != b"\n":
            raise ValueError(f"no header block of the rig: {block!r}")
        group, _comma, color = block[1:-1].decode().partition(",")
        return Head(persistent=block[:1] == b"P", group=group or None, color=color)


class CrankedWorker:
    """A worker that does one thing when told to. Reads overtake writes, as with two threads."""

    def __init__(self, engine: Engine, submit: Callable[[Callable[[], None]], None]) -> None:
        self.engine = engine
        self._submit = submit
        self._writes: deque[Callable[[], None]] = deque()
        self._reads: deque[Callable[[], None]] = deque()
        self.batches: list[tuple[list[Change], bool]] = []
        """What was asked to be written so far, and whether synced."""

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        self.batches.append((list(changes), sync))

        def job() -> None:
            error: EngineError | None = None
            try:
                self.engine.write(changes, sync=sync)
            except EngineError as raised:
                error = raised
            self._submit(lambda: done(error))

        self._writes.append(job)

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._reads.append(self._job(function, done))

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._writes.append(self._job(function, done))

    def _job(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> Callable[[], None]:
        def job() -> None:
            result: T | EngineError
            try:
                result = function(self.engine)
            except EngineError as raised:
                result = raised
            self._submit(lambda: done(result))

        return job

    def step(self, *, read: bool) -> bool:
        """Do the next of one line. False: there is none."""
        jobs = self._reads if read else self._writes
        if not jobs:
            return False
        jobs.popleft()()
        return True

    @property
    def has_work(self) -> bool:
        return bool(self._writes or self._reads)

    @property
    def reads_count(self) -> int:
        """Reads that wait."""
        return len(self._reads)

    def close(self) -> None:
        while self.step(read=False) or self.step(read=True):
            pass


class RecordingLog:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **facts: Any) -> None:
        self.events.append(("info", event, facts))

    def warning(self, event: str, **facts: Any) -> None:
        self.events.append(("warning", event, facts))

    def error(self, event: str, **facts: Any) -> None:
        self.events.append(("error", event, facts))

    def names(self, level: str) -> list[str]:
        """What was said at this level, in order."""
        return [event for at, event, _facts in self.events if at == level]


class FakeFolder:
    """A folder with as much room as a test says."""

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self.room_bytes = free_bytes
        self.attic: list[tuple[str, bytes]] = []

    def free_bytes(self) -> int:
        return self.room_bytes

    def attic_put(self, name: str, data: bytes) -> str:
        self.attic.append((name, data))
        return f"attic/{name}"


class StoreWorld(World):
    """See the module."""

    def __init__(
        self,
        engine: Engine,
        *,
        config: StoreConfig | None = None,
        now_seconds: float = 100.0,
        later: bool = False,
        budget_count: int = 1024,
        folder: DataFolder | None = None,
        pages: Path | None = None,
        fenced: Callable[[FencedError], None] = raise_it,
    ) -> None:
        """Opens what an earlier world left in `engine`."""
        super().__init__(later=later, budget_count=budget_count)
        self.now_seconds = now_seconds
        self.engine = engine
        self.log = RecordingLog()
        self.recovered: Recovered = recover(engine, _ignore, RigHeads())
        engine.write(opening_records(b"token", self.recovered.next_number + NUMBERS_AHEAD), sync=True)
        self.worker = CrankedWorker(engine, self.core.submit)
        self.store = StoreQueue(
            config if config is not None else StoreConfig(),
            worker=self.worker,
            heads=RigHeads(),
            scheduling=self.core,
            at_turn_end=self.core.at_turn_end,
            clock=lambda: self.now_seconds,
            manager=self.manager,
            log=self.log,
            folder=folder,
            pages=pages,
            recovered=self.recovered,
            fenced=fenced,
        )
        self.environment = attrs.evolve(self.environment, store=self.store)

    def messages(self, count: int, *, wire_bytes: int = WIRE_BYTES, head: Head | None = None) -> list[Message]:
        """A run; each wire begins with its header block, and goes on with its number as far as there is room."""
        envelope = head or Head(persistent=True)
        block = block_of(envelope)
        first, self.made_count = self.made_count, self.made_count + count
        return [
            Message(envelope, (block + b"%d." % number).ljust(wire_bytes, b"x")[: max(wire_bytes, len(block))], number)
            for number in range(first, first + count)
        ]

    def queue(self, **policy: object) -> ConsumedQueue:
        return shared_queue("/queue/a", QueuePolicy(**policy), self.environment)  # type: ignore[arg-type]

    def exclusive(self, **policy: object) -> ConsumedQueue:
        return ConsumedQueue("/queue/a", QueuePolicy(**policy), self.environment, SingleDistribution)  # type: ignore[arg-type]

    def restored(self, **policy: object) -> ConsumedQueue:
        """The queue of that name with what an earlier world left of it."""
        queue = self.queue(**policy)
        queue.open_stored()
        return queue

    def put(self, queue: MessageQueue, count: int = 1, *, wire_bytes: int = WIRE_BYTES, **head: Any) -> list[Message]:
        """Add persistent messages (unless the head says otherwise), without a source."""
        run = self.messages(count, wire_bytes=wire_bytes, head=Head(**{"persistent": True, **head}))
        queue.add(run, sum(len(message.wire) for message in run), None)
        return run

    # The disk

    def write(self) -> None:
        """Do what waits to be written, once, and let the answer arrive."""
        assert self.worker.step(read=False), "nothing waits to be written"
        self.run()

    def read(self) -> None:
        """Do what waits to be read first, and let the answer arrive."""
        assert self.worker.step(read=True), "nothing waits to be read"
        self.run()

    @property
    def is_idle(self) -> bool:
        """Nothing happens until time passes."""
        return not self.core.has_work() and not self.worker.has_work

    @property
    def is_flushed(self) -> bool:
        """The store has nothing to write, and nothing is being written."""
        return not self.store._dirty and self.store._batch is None

    def settle_down(self) -> None:
        """Turn the dispatcher and the disk until nothing is left to do now."""
        self.run()
        while self.worker.has_work:
            while self.worker.step(read=False) or self.worker.step(read=True):
                pass
            self.run()

    def wait_in_vain(self) -> None:
        """Let the time pass for which queues wait for consumers, which take nothing."""
        for _ in range(2):
            self.now_seconds += PATIENCE_SECONDS
            self.settle_down()

    def flush(self, *, seconds: float = 3.0, steps: int = 15) -> None:
        """Let time pass until all delays are over, and the disk do its work meanwhile."""
        self.settle_down()
        for _ in range(steps):
            self.now_seconds += seconds / steps
            self.settle_down()

    def close_in_order(self) -> Engine:
        """As a broker does when it stops: all queues are idle. The engine stays open."""
        changes = self.store.last_batch()
        self.worker.close()
        if changes:
            self.engine.write(changes, sync=True)
        self.store.last_batch_is_written()
        self.engine.write(closing_records(self.made_count + 1), sync=True)
        return self.engine

    def records(self, family: bytes) -> list[bytes]:
        """Keys of this family on the disk."""
        return list(self.engine.iterate_keys(*keys.family_range(family)))

    def leftovers(self) -> dict[str, int]:
        """How many records tell of messages, by family; none if there are no messages."""
        families = {"chunk": keys.CHUNK, "paged": keys.PAGED, "summary": keys.SUMMARY, "state": keys.STATE}
        found = {name: count for name, family in families.items() if (count := len(self.records(family)))}
        files = self.store.paged.files
        return found if files is None or not files.segments_count else {**found, "segments": files.segments_count}


def shelf_of(queue: MessageQueue) -> QueueRecords:
    """Its shelf, which is there."""
    assert isinstance(queue.storage, QueueRecords)
    return queue.storage


class OfferingProducer(FlowResource):
    """Sends runs in order as a lane of a connection does: it offers, and what is refused waits here."""

    def __init__(
        self,
        world: World,
        queue: MessageQueue,
        *,
        on_taken: Callable[[list[Message], int], None] | None = None,
        on_refused: Callable[[list[Message]], None] | None = None,
    ) -> None:
        """`on_taken` gets a run that went in, and the first sequence it may have; `on_refused` what was rejected."""
        super().__init__(f"producer {len(world.manager.resources)}", "connection", world.manager)
        self._queue = queue
        self._on_taken = on_taken
        self._on_refused = on_refused
        self._pumping = False
        self.outbox: deque[list[Message]] = deque()
        self.source = SourceController(
            self, Flow("sends"), on_resume=lambda _sink: self._pump(), clock=world.environment.clock
        )
        self.open()

    @property
    def is_blocked(self) -> bool:
        return self.source.blocked

    def send(self, *runs: list[Message]) -> None:
        self.outbox.extend(runs)
        self._pump()

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.outbox and not self.source.blocked and not self._queue.closed:
                self._offer(self.outbox[0])
        finally:
            self._pumping = False

    def _offer(self, run: list[Message]) -> None:
        first = self._queue.elements.next_sequence
        try:
            taken = self._queue.offer(run, sum(len(message.wire) for message in run), self.source)
        except QueueFullError:
            self.outbox.popleft()
            if self._on_refused is not None:
                self._on_refused(run)
            return
        assert taken or self.source.blocked, "refused, and nobody will wake it"
        if taken:
            self.outbox.popleft()
            if self._on_taken is not None:
                self._on_taken(run, first)


@contextmanager
def tight(
    *,
    block_bits: int = 2,
    lease_count: int = 8,
    seal_count: int = 1,
    block_bytes_max: int | None = None,
    batch_bytes: int | None = None,
    ahead_count: int | None = None,
    blocks_min: int | None = None,
) -> Iterator[None]:
    """Small numbers in place of the large ones, everywhere they were imported. None: as it is."""
    patch = pytest.MonkeyPatch()
    try:
        for name, module in list(sys.modules.items()):
            if name.startswith(("sluiceway.queues", "sluiceway.store")):
                if hasattr(module, "BLOCK_BITS"):
                    patch.setattr(module, "BLOCK_BITS", block_bits)
                if hasattr(module, "BLOCK_SIZE"):
                    patch.setattr(module, "BLOCK_SIZE", 1 << block_bits)
        patch.setattr("sluiceway.store.queue_records.LEASE_COUNT", lease_count)
        patch.setattr("sluiceway.store.queue_records.SEAL_COUNT", seal_count)
        if block_bytes_max is not None:
            patch.setattr("sluiceway.queues.paging.BLOCK_BYTES_MAX", block_bytes_max)
        if batch_bytes is not None:
            patch.setattr("sluiceway.store.batch.BATCH_BYTES", batch_bytes)
        if ahead_count is not None:
            patch.setattr("sluiceway.queues.paging.AHEAD_COUNT", ahead_count)
        if blocks_min is not None:
            patch.setattr("sluiceway.queues.paging.BLOCKS_MIN", blocks_min)
        yield
    finally:
        patch.undo()


def _ignore(_count: int) -> None:
    """Nobody watches the progress."""
