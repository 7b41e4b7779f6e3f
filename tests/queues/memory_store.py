"""A store in memory: the port of queues to a store (`sluiceway.queues.storage`) without threads, records or a disk.

`MemoryStore` keeps in a `Disk`, a plain dict, what outlives it. Nothing is written or read until a test says so:
`write` is one batch of all that is there, `answer` does what queues wait for. A store that is dropped has crashed; the
next one on the same disk finds what was written.

tests/contract/test_queue_storage.py holds this store and the store of the broker to the same contract.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial

import attrs

from sluiceway.flow import Account, Flow, FlowResource, SourceController, WaitEdge, WindowLimiter
from sluiceway.flow.kinds import ResourceKind
from sluiceway.queues.blocks import Outside, bits_of, dates_of
from sluiceway.queues.cursored import BLOCK_BITS
from sluiceway.queues.durables import DurableReader
from sluiceway.queues.message import Message
from sluiceway.queues.producers import Remembered
from sluiceway.queues.storage import DISK, Confirms, PulledQueue, Saved
from tests.queues.rig import World

LEASE_COUNT = 1000
"""How far the note "may have been seen" runs ahead of the consumers of a queue."""


@attrs.frozen
class StoredReader:
    """The place of a durable subscription. Satisfies RestoredCursor."""

    front: int
    handed_to: int
    settled: tuple[range, ...]
    attempts: Mapping[int, int]


@attrs.define
class StoredQueue:
    """What a disk has of one queue. Satisfies Restored."""

    next_sequence: int = 0
    handed_to: int = 0
    messages: dict[int, Message] = attrs.field(factory=dict)
    attempts: dict[int, int] = attrs.field(factory=dict)
    cursors: dict[int, StoredReader] = attrs.field(factory=dict)
    producers: dict[str, Remembered] = attrs.field(factory=dict)

    def block(self, index: int) -> dict[int, Message]:
        return {sequence: message for sequence, message in self.messages.items() if sequence >> BLOCK_BITS == index}

    def _blocks_with(self, condition: Callable[[Message], object]) -> set[int]:
        return {sequence >> BLOCK_BITS for sequence, message in self.messages.items() if condition(message)}

    @property
    def outside(self) -> Mapping[int, tuple[Outside, int]]:
        found = {}
        for index in sorted(self._blocks_with(lambda _message: True)):
            alive = self.block(index)
            bits = bits_of([sequence - (index << BLOCK_BITS) for sequence in alive])
            wire_bytes = sum(len(message.wire) for message in alive.values())
            found[index] = Outside(bits, bits.bit_length(), wire_bytes, dates_of(alive.values())), len(alive)
        return found

    @property
    def grouped(self) -> set[int]:
        return self._blocks_with(lambda message: message.head.group)

    @property
    def due(self) -> set[int]:
        return self._blocks_with(lambda message: message.head.delay_ms)


Disk = dict[tuple[str, int, bool], StoredQueue]
"""By name, priority, and whether it is a topic."""


class MemoryStorage:
    """The stored side of one queue. Satisfies QueueStorage."""

    def __init__(self, store: MemoryStore, queue: PulledQueue, stored: StoredQueue, *, topic: bool) -> None:
        self._store = store
        self._queue = queue
        self.stored = stored
        self.key = (queue.name_on_disk, queue.priority, topic)
        self.is_bound = self.is_forgotten = False
        self._saved_to = queue.elements.next_sequence
        self._held_to = self._trimmed_to = 0
        self._left: set[int] = set()
        self._produced: list[tuple[Mapping[str, Remembered], SequenceOf[str]]] = []
        self._returned: dict[int, int] = {}
        self._moved: set[int] = set()
        self._gone: set[int] = set()
        self._waits_for_note = False
        self._paged: dict[int, dict[int, Message]] = {}
        self._page_outs: list[tuple[int, Callable[[int], None], Callable[[], None] | None]] = []
        self._saves: list[tuple[int, int, Saved]] = []
        self._settles: list[Callable[[], None]] = []

    def added(self, count: int) -> None:
        """The next write looks for them."""

    def settled(self, sequences: SequenceOf[int]) -> None:
        self._left.update(sequences)

    def trimmed(self, floor: int) -> None:
        self._trimmed_to = floor

    def returned(self, attempts: Mapping[int, int]) -> None:
        self._returned.update(attempts)

    def lost(self, index: int, sequences: SequenceOf[int]) -> None:
        self.settled(sequences)

    def rested(self) -> None:
        """The next write takes the lease back."""

    def hold(self, first: int, end: int) -> None:
        if first < end:
            self._held_to = end

    def produced(self, first: int, end: int, noted: Mapping[str, Remembered], gone: SequenceOf[str]) -> None:
        self.hold(first, end)
        self._produced.append((noted, gone))

    def may_hand_over(self, position: int, end: int, reader: DurableReader | None = None) -> bool:
        lease = self.stored.handed_to if reader is None else reader.lease
        is_noted = min(end, self._saved_to) <= lease or position >= self._saved_to
        if reader is not None:
            self._moved.add(reader.durable_id)
        elif not self.stored.messages or not self._queue.keeps:
            is_noted = True
        if is_noted and position >= self._held_to:
            return True
        self._waits_for_note = True
        return False

    def reader_moved(self, durable_id: int, *, is_new: bool = False) -> None:
        self._moved.add(durable_id)

    def reader_gone(self, durable_id: int) -> None:
        self._moved.discard(durable_id)
        self._gone.add(durable_id)

    def page_out(self, index: int, done: Callable[[int], None], refused: Callable[[], None] | None = None) -> None:
        self._page_outs.append((index, done, refused))

    def load(self, index: int, arrived: Callable[[int, dict[int, Message]], None]) -> None:
        self._store.loads.append(lambda: arrived(index, self.block(index)))

    def block(self, index: int) -> dict[int, Message]:
        """What the store has of a block."""
        return {} if self.is_forgotten else {**self._paged.get(index, {}), **self.stored.block(index)}

    def lose(self, index: int, sequence: int) -> None:
        """Damage the record of one element: a later load does not find it."""
        self._paged[index].pop(sequence, None)
        self.stored.messages.pop(sequence, None)

    def when_saved(self, first: int, end: int, callback: Saved) -> None:
        if self.is_forgotten:
            callback("consumed")
        else:
            self._saves.append((first, end, callback))

    def when_settled(self, callback: Callable[[], None]) -> None:
        (self._store.waiting if self.is_forgotten else self._settles).append(callback)

    @property
    def puts_out(self) -> bool:
        """Blocks are to leave memory."""
        return bool(self._page_outs)

    def forget(self) -> None:
        self.is_forgotten = True
        for _first, _end, callback in self._saves:
            callback("consumed")
        self._store.forget(self, self._settles)

    # ------------------------------------------------------------------ a batch

    def write(self, *, exactly: bool = False) -> list[Callable[[], None]]:
        """Bring the disk up to date. Returns what is to be called then. `exactly`: the broker stops, and notes what
        consumers have seen in place of a lease.
        """
        stored, queue, elements = self.stored, self._queue, self._queue.elements
        end = stored.next_sequence = elements.next_sequence
        new: dict[int, Message] = {}
        for index in range(self._saved_to >> BLOCK_BITS, (end >> BLOCK_BITS) + 1) if queue.keeps else ():
            first, stop = max(self._saved_to, index << BLOCK_BITS), min(end, (index + 1) << BLOCK_BITS)
            new.update(zip(*elements.resident(first, stop, persistent=True), strict=True))
        self._saved_to = end
        alive = {n: m for n, m in {**stored.messages, **new}.items() if n >= self._trimmed_to and n not in self._left}
        attempts = {**stored.attempts, **self._returned, **queue.attempts_among(list(new))}
        answers: list[Callable[[], None]] = []
        if exactly:
            attempts.update(queue.seen())
        stored.messages, stored.attempts = alive, {n: count for n, count in attempts.items() if n in alive}
        stored.handed_to = 0 if exactly else queue.handed_to + (LEASE_COUNT if queue.is_consumed else 0)
        self._write_readers(answers, exactly=exactly)
        for noted, gone in self._produced:
            for name in gone:
                stored.producers.pop(name, None)
            for name, remembered in noted.items():
                stored.producers.pop(name, None)
                stored.producers[name] = remembered
        self._produced.clear()
        if self._waits_for_note:
            answers.append(queue.may_go_on)
        for index, done, refused in self._page_outs:
            answers.append(self._page(index, done, refused))
        for first, stop, saved in self._saves:
            answers.append(partial(saved, "disk" if self.is_bound or elements.holds_any(first, stop) else "consumed"))
        answers += self._settles
        self._left, self._returned, self._page_outs, self._saves, self._settles = set(), {}, [], [], []
        self.is_bound = self._waits_for_note = False
        self._held_to = 0
        return answers

    def _write_readers(self, answers: list[Callable[[], None]], *, exactly: bool) -> None:
        queue = self._queue
        queue.make_readers(queue.make_readers(0))
        readers = queue.reader_states()
        for durable_id in self._gone:
            self.stored.cursors.pop(durable_id, None)
        for durable_id in readers if exactly else self._moved & set(readers):
            state = readers[durable_id].state(exactly=exactly)
            settled = tuple([range(*run) for run in state.settled])
            self.stored.cursors[durable_id] = StoredReader(state.front, state.handed_to, settled, dict(state.attempts))
            answers.append(partial(queue.reader_noted, readers[durable_id]))
        self._moved, self._gone = set(), set()

    def _page(self, index: int, done: Callable[[int], None], refused: Callable[[], None] | None) -> Callable[[], None]:
        extent = self._queue.elements.extent(index)
        block = dict(zip(*self._queue.elements.resident(extent.start, extent.stop), strict=True))
        if refused is not None and not self._store.paged.accepting and not block.keys() <= self.stored.messages.keys():
            return refused
        self._paged[index] = block
        return partial(done, index)


class MemoryJoint:
    """A transaction that takes effect in steps. Satisfies Joint."""

    is_broken = False

    def __init__(self, store: MemoryStore, owner: FlowResource) -> None:
        self._store = store
        self._owner = owner
        self._storages: list[MemoryStorage] = []
        self.go_on: Callable[[], None] = lambda: None

    @property
    def waits(self) -> bool:
        return self is not self._store.joints[0]

    @property
    def some_storage(self) -> Confirms | None:
        return next((storage for storage in self._storages if not storage.is_forgotten), None)

    def begin(self, go_on: Callable[[], None]) -> None:
        self.go_on = go_on

    def edge(self) -> WaitEdge:
        return WaitEdge(self._store.joints[0]._owner, 0.0, "a large transaction takes effect first")

    def add(self, storage: Confirms) -> None:
        assert isinstance(storage, MemoryStorage)
        self._storages.append(storage)
        storage.is_bound = True

    def end(self) -> None:
        joints = self._store.joints
        if self in joints:
            was_first = not self.waits
            joints.remove(self)
            if was_first and joints:
                joints[0].go_on()


class Gate(FlowResource):
    """Room on a disk. Satisfies Room."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, ResourceKind.STORE, world.manager)
        clock = world.environment.clock
        self._account = Account(self, Flow(name), WindowLimiter(1, None, clock=clock), clock=clock, counts_memory=False)
        self.open()

    @property
    def accepting(self) -> bool:
        return not self._account.limiter.throttled

    def accepts(self, source: SourceController) -> bool:
        return self._account.accepts(source)

    def hold_back(self, source: SourceController) -> None:
        self._account.wait_in_line(source)

    def shut(self) -> None:
        """The disk has no room."""
        self._account.charge(1, 0, None)

    def reopen(self) -> None:
        """The disk has room again."""
        self._account.release(1, 0)


class MemoryStore(Gate):
    """The store of one world. Satisfies Store."""

    durability = DISK

    def __init__(self, world: World, disk: Disk | None = None) -> None:
        """Make the store, and give it to the world's environment."""
        super().__init__("store", world)
        self.disk: Disk = {} if disk is None else disk
        self.paged = Gate("room for pages", world)
        self.loads: deque[Callable[[], None]] = deque()
        """What is being read."""
        self.storages: list[MemoryStorage] = []
        self.joints: list[MemoryJoint] = []
        self.waiting: list[Callable[[], None]] = []
        self._forgotten: list[tuple[str, int, bool]] = []
        world.environment = attrs.evolve(world.environment, store=self)

    def storage_of(self, queue: PulledQueue, *, topic: bool) -> MemoryStorage:
        key = (queue.name_on_disk, queue.priority, topic)
        stored = None if key in self._forgotten else self.disk.get(key)
        if stored is not None:
            last = max(stored.messages, default=-1)
            stored.next_sequence = max(stored.next_sequence, ((last >> BLOCK_BITS) + 1) << BLOCK_BITS)
            queue.restored(stored)
        self.storages.append(MemoryStorage(self, queue, stored or StoredQueue(), topic=topic))
        return self.storages[-1]

    def forget(self, storage: MemoryStorage, waiting: Iterable[Callable[[], None]]) -> None:
        """The queue of this storage is deleted."""
        self.storages.remove(storage)
        self._forgotten.append(storage.key)
        self.waiting += waiting

    def when_flushed(self, callbacks: list[Callable[[], None]]) -> None:
        self.waiting += callbacks

    def when_all_saved(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def bind(self, storages: Iterable[Confirms]) -> None:
        for storage in storages:
            assert isinstance(storage, MemoryStorage)
            storage.is_bound = True

    def join(self, owner: FlowResource) -> MemoryJoint:
        self.joints.append(MemoryJoint(self, owner))
        return self.joints[-1]

    # ------------------------------------------------------------------ what tests do

    def write(self, *, exactly: bool = False) -> None:
        """Write all that is there, in one batch, unless a transaction takes effect in steps."""
        if self.joints:
            return
        for key in self._forgotten:
            self.disk.pop(key, None)
        waiting, self.waiting, self._forgotten = self.waiting, [], []
        answers: list[Callable[[], None]] = []
        for storage in self.storages:
            answers += storage.write(exactly=exactly)
            self.disk[storage.key] = storage.stored
        for answer in [*answers, *waiting]:
            answer()

    def answer(self, world: World) -> None:
        """Read what is asked for, write blocks that are to leave memory, and all that this leads to."""
        world.run()
        while self.loads or any(storage.puts_out for storage in self.storages):
            if self.loads:
                self.loads.popleft()()
            else:
                self.write()
            world.run()
