"""CursoredQueue against a plain list, with tiny blocks: any interleaving of reading and leaving gives the same elements
in the same order.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sluiceway.queues.cursored as cursored
from sluiceway.queues.blocks import Gone
from sluiceway.queues.cursored import CursoredQueue
from sluiceway.queues.cursors import Cursor, TrackingCursor
from sluiceway.queues.message import Message
from tests.how_often import rounds
from tests.queues.rig import Head

COUNTS = st.integers(1, 9)
SIZES = st.sampled_from([0, 1, 7, 30])
PRODUCTION_BITS = cursored.BLOCK_BITS


class _Small(RuleBasedStateMachine):
    """Blocks of four, put back to what they were at the end."""

    def __init__(self) -> None:
        super().__init__()
        cursored.BLOCK_BITS = 2  # type: ignore[misc]
        self.queue = CursoredQueue()
        self.all: list[Message] = []
        self.gone: set[int] = set()

    def teardown(self) -> None:
        cursored.BLOCK_BITS = PRODUCTION_BITS  # type: ignore[misc]

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=11))
    def extend(self, sizes: list[int]) -> None:
        run = [Message(Head(), b"x" * size, len(self.all) + i) for i, size in enumerate(sizes)]
        assert self.queue.extend(run) == len(self.all)
        self.all += run

    @invariant()
    def holds_exactly_what_is_alive(self) -> None:
        alive = [s for s in range(len(self.all)) if s not in self.gone]
        assert self.queue.live_count == len(alive)
        assert self.queue.first_sequence == (alive[0] if alive else len(self.all))
        assert self.queue.next_sequence == len(self.all)
        for sequence, message in enumerate(self.all):
            assert self.queue.get(sequence) is (None if sequence in self.gone else message)
        blocks = {s >> 2 for s in alive}
        assert self.queue.block_count == len(blocks)


class ConsumingMachine(_Small):
    """One cursor; elements leave by name, read or unread."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(self.queue, 0)
        self.ahead: list[int] = []
        self.held: list[int] = []
        self.attempts: dict[int, int] = {}

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=11))
    def extend(self, sizes: list[int]) -> None:
        self.ahead += range(len(self.all), len(self.all) + len(sizes))
        super().extend(sizes)

    @rule(count_max=COUNTS, bytes_max=st.sampled_from([0, 8, 40, 1 << 30]), untaken=st.integers(0, 3))
    def take(self, count_max: int, bytes_max: int, untaken: int) -> None:
        part = self.cursor.acquire(count_max, bytes_max)
        if part is None:
            assert not self.ahead
            return
        count = len(part)
        assert list(part.sequences) == sorted(self.ahead)[:count]
        assert part.messages == [self.all[s] for s in part.sequences]
        assert count <= count_max
        assert part.wire_bytes == sum(len(message.wire) for message in part.messages)
        assert part.wire_bytes <= bytes_max or count == 1
        assert (part.attempts or {}) == {s: self.attempts[s] for s in part.sequences if s in self.attempts}
        assert (part.first, part.end) == (part.sequences[0], part.sequences[-1] + 1)
        kept = max(0, count - untaken)
        self.cursor.rewind(part, kept)
        taken = set(part.sequences[:kept])
        self.ahead = [s for s in self.ahead if s not in taken]
        self.held += sorted(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), as_range=st.booleans())
    def remove(self, data: st.DataObject, as_range: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        if as_range:
            first = end = min(chosen)
            while end in self.held:
                end += 1
            chosen = list(range(first, end))
            self.queue.remove(range(first, end))
        else:
            self.queue.remove(chosen)
        self.cursor.forget(chosen)
        self._left(chosen)

    @precondition(lambda self: self.ahead)
    @rule(data=st.data())
    def remove_unread(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.ahead), min_size=1, unique=True))
        self.queue.remove(chosen, unread=True)
        self.cursor.forget(chosen)
        self._left(chosen)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), attempted=st.booleans())
    def requeue(self, data: st.DataObject, attempted: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        assert self.cursor.requeue(chosen, attempted=attempted) == 0
        for sequence in chosen:
            self.held.remove(sequence)
            if attempted:
                self.attempts[sequence] = self.attempts.get(sequence, 0) + 1
        self.ahead += chosen

    def _left(self, sequences: list[int]) -> None:
        out = set(sequences)
        self.gone |= out
        self.held = [s for s in self.held if s not in out]
        self.ahead = [s for s in self.ahead if s not in out]
        self.attempts = {s: n for s, n in self.attempts.items() if s not in out}

    @invariant()
    def knows_what_is_ahead(self) -> None:
        assert self.cursor.ahead_count >= len(self.ahead)
        assert self.cursor.has_more or not self.ahead
        for sequence in range(len(self.all)):
            if sequence not in self.gone:
                assert self.cursor.is_available(sequence) == (sequence in self.ahead)
                assert self.cursor.attempts_of(sequence) == self.attempts.get(sequence, 0)


class _Reader:
    """What a tracking cursor should be."""

    def __init__(self, queue: CursoredQueue) -> None:
        self.cursor = TrackingCursor(queue, queue.next_sequence)
        self.ahead: list[int] = []
        self.held: list[int] = []
        self.given_up: set[int] = set()

    @property
    def needs(self) -> set[int]:
        return {*self.ahead, *self.held}


class TrackingMachine(_Small):
    """Many cursors; an element leaves when all of them have passed it, or gave it up."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[_Reader] = []

    @initialize(count=st.integers(1, 3))
    def start(self, count: int) -> None:
        for _ in range(count):
            self.open()

    @precondition(lambda self: len(self.readers) < 4)
    @rule()
    def open(self) -> None:
        self.readers.append(_Reader(self.queue))

    @precondition(lambda self: self.readers)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=11))
    def extend(self, sizes: list[int]) -> None:
        """Only with readers: a topic keeps nothing without."""
        for reader in self.readers:
            reader.ahead += range(len(self.all), len(self.all) + len(sizes))
        super().extend(sizes)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count_max=COUNTS, bytes_max=st.sampled_from([0, 8, 40, 1 << 30]))
    def take(self, data: st.DataObject, count_max: int, bytes_max: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        part = reader.cursor.acquire(count_max, bytes_max)
        if part is None:
            assert not reader.ahead
            return
        assert list(part.sequences) == sorted(reader.ahead)[: len(part)]
        assert part.messages == [self.all[s] for s in part.sequences]
        assert len(part) <= count_max
        assert part.wire_bytes == sum(len(message.wire) for message in part.messages)
        assert part.wire_bytes <= bytes_max or len(part) == 1
        taken = set(part.sequences)
        reader.ahead = [s for s in reader.ahead if s not in taken]
        reader.held += part.sequences

    @precondition(lambda self: any(reader.held for reader in self.readers))
    @rule(data=st.data(), in_order=st.booleans())
    def settle(self, data: st.DataObject, in_order: bool) -> None:
        reader = data.draw(st.sampled_from([reader for reader in self.readers if reader.held]))
        if in_order:
            reader.held.sort()
            chosen = reader.held[: data.draw(COUNTS)]
            if chosen[-1] - chosen[0] == len(chosen) - 1:
                gone = reader.cursor.settle(range(chosen[0], chosen[-1] + 1))
            else:
                gone = reader.cursor.settle(chosen)
        else:
            chosen = data.draw(st.lists(st.sampled_from(reader.held), min_size=1, unique=True))
            gone = reader.cursor.settle(chosen)
        reader.held = [s for s in reader.held if s not in chosen]
        self._left(gone)

    @precondition(lambda self: any(reader.held for reader in self.readers))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from([reader for reader in self.readers if reader.held]))
        chosen = data.draw(st.lists(st.sampled_from(reader.held), min_size=1, unique=True))
        lost = [s for s in chosen if s in reader.given_up]
        assert reader.cursor.requeue(chosen, attempted=True) == len(lost)
        reader.held = [s for s in reader.held if s not in chosen]
        reader.ahead += [s for s in chosen if s not in lost]

    @precondition(lambda self: self.readers and self.all)
    @rule(data=st.data(), floor=st.integers(0, 60))
    def skip(self, data: st.DataObject, floor: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        floor = min(floor, len(self.all))
        missed_count, gone = reader.cursor.skip_to(floor)
        assert missed_count == sum(1 for s in reader.ahead if s < floor)
        reader.ahead = [s for s in reader.ahead if s >= floor]
        reader.given_up |= set(range(floor))
        self._left(gone)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        self._left(reader.cursor.close())

    @precondition(lambda self: self.readers and self.all)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Some that nobody holds go by name, read or not, as when they are past their date."""
        held = {s for reader in self.readers for s in reader.held}
        alive = [s for s in range(len(self.all)) if s not in self.gone]
        free = [s for s in alive if s not in held]
        chosen = sorted(data.draw(st.lists(st.sampled_from(free), unique=True))) if free else []
        for reader in self.readers:
            assert reader.cursor.held_of(alive) == {s for s in reader.held if s not in reader.given_up and s in alive}
            reader.ahead = [s for s in reader.ahead if s not in chosen]
        self.queue.remove(chosen, unread=True)
        self.gone |= set(chosen)
        for reader in self.readers:
            self._left(reader.cursor.pass_over(chosen))

    def _left(self, gone: Gone) -> None:
        """Whatever is not there any more left just now, and was counted; the rest of many blocks is trimmed on."""
        while (floor := self.queue.trims_to) is not None:
            more = self.queue.trim(floor)
            gone = gone[0] + more[0], gone[1] + more[1]
        left = [s for s in range(len(self.all)) if s not in self.gone and self.queue.get(s) is None]
        assert gone == (len(left), sum(len(self.all[s].wire) for s in left))
        self.gone |= set(left)

    @invariant()
    def nobody_loses_what_it_needs(self) -> None:
        for reader in self.readers:
            assert not self.gone & {s for s in reader.needs if s not in reader.given_up}
            assert reader.cursor.has_more or not reader.ahead

    @invariant()
    def nothing_stays_that_nobody_needs(self) -> None:
        """Up to order: what lies behind a front may be settled and wait for that front."""
        fronts = [min((s for s in r.needs if s not in r.given_up), default=len(self.all)) for r in self.readers]
        lowest = min(fronts, default=len(self.all))
        assert self.gone >= set(range(lowest))


TestConsuming = ConsumingMachine.TestCase
TestTracking = TrackingMachine.TestCase
TestConsuming.settings = TestTracking.settings = settings(max_examples=rounds(30), stateful_step_count=40)
