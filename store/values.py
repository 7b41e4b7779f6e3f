"""Value log: large values of an engine in files of their own, which no compaction reads or writes.

LevelDB writes each value three times and more: its log, a table, each level that the table sinks to. Chunks of waiting
messages are large, are written once, read once and deleted. So where a batch has many bytes of them, they are appended
to a *segment*, and the engine below gets their *pointer* instead: segment, offset, length and checksum, under a key of
the family `l`. For its callers this is an engine like any other.

*Order.* A value is synced before the engine is given the batch that names it, also if no callback waits for that batch:
the system may bring the batch to the disk at any time, and later changes (such as deletions) rely on all of it. So the
surviving batches are still a prefix of whole ones, and the promises of engine.py hold. One more sync of some
milliseconds for each such batch is why a batch with little in it (`batch_bytes_min`) goes to the engine as it is: there
a receipt costs one.

*After a crash* a value without a pointer was never written: `tidy` frees it, whole segments and the part behind the
last value of one. Not where pointers may have been lost: after a repair of LevelDB, beside a pointer that can't be
read, or where a value has a summary and nothing else. A segment is written by one run only; numbers continue from the
highest.

*Space.* A segment without live values is removed with the next sync, not sooner: a power cut could bring back the
pointers to it. Where less than a quarter of it is live, that part is written anew, some with each batch, so that one
message does not keep a segment. So segments take at most four times their live values, plus the one that is written to,
and those that are due.

*Missing segments.* A value was synced before its pointer was written, so a start finds every segment that has values,
complete up to the last one. A segment that is missing or shorter was taken away, or is not mounted, or not restored
yet: a broker that continued would lose each message in it that it reads. So that is an error, which a tool has to
accept explicitly.

*After a write that raised* the existing pointers are unknown. Until a write succeeds and the pointers have been counted
anew, no space is freed, and values that were written already stay where they are when they are written again.

One thread writes; others may read meanwhile. If a reader finds its segment gone, the value was moved or deleted.

Bound: some hundred bytes for each segment, and for each queue that has such values.

Source: WiscKey (FAST '16), for keys and values apart. Normative: FORMAT.md.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeVar
from weakref import WeakSet

import attrs
from zlib_ng.zlib_ng import adler32

from ..flow.words import count_in_words
from . import keys
from .engine import (
    DELETE,
    PUT,
    Change,
    CorruptionError,
    DiskFullError,
    Engine,
    EngineError,
    UnreadableError,
    delete,
    put,
    raise_it,
)
from .segments import Segments
from .valuecodec import (
    START_BYTES,
    PointerError,
    ValuePointer,
    decode_pointer,
    decode_start,
    encode_pointer,
    encode_start,
    is_right,
    pointer_or_none,
)
from .valuekeys import name_of, names_within, parts_around, queue_of
from .valueplans import KnownSegment, ValuePlan, ValueWalk, taken_bytes

MOVED_LOOKS: Final = 256
"""Number of values that are examined at once when a segment is written anew."""

T = TypeVar("T")

UNREADABLE_KEPT_MAX: Final = 100

SUFFIX: Final = ".values"
"""Suffix of the names of segments."""


@attrs.frozen
class ValueOptions:
    """Options: which values go to segments, and how segments are kept. Figures: bodies that wait in one queue, one
    producer, a broker of 64 MiB, 2 cores shared with others, beside all of it in LevelDB.
    """

    record_bytes_min: int = 16 << 10
    """Smaller values stay with the engine: each one here costs a look-up of its pointer when it is deleted."""

    batch_bytes_min: int = 128 << 10
    """Bytes of such values that make a batch worth a sync of its own: the receipt of one message of 64 KiB waits for
    one sync, not for two. A backlog that grows fills whole batches of 768 KiB: with bodies of 64 KiB 1.9 and 2.9 times
    the rate and half of the processor time, with 8 KiB about the rate and 0.7 of the processor time, with 1 KiB the
    same and 0.85; a quarter to a third of what was written to the disk; 110 MiB of memory at most, not 180 to 250.
    """

    segment_bytes: int = 32 << 20
    """Size at which a segment is closed. Smaller segments are freed sooner; each costs two syncs to make."""

    sparse_share: int = 4
    """A closed segment is written anew when less than this part of it is left."""

    moved_bytes: int = 1 << 20
    """Bytes that are moved with each batch; batches behind it wait for some milliseconds."""

    ahead_bytes: int = 2 << 20
    """Bytes that are fetched from the disk behind a value that is read: a consumer that drains a backlog wants them
    next.
    """


class ValuesMissingError(EngineError):
    """Files with stored messages are missing, or too short. Nothing was changed."""


class ValueLog:
    """An engine whose large chunks lie in segments. See the module."""

    def __init__(
        self,
        engine: Engine,
        segments: Segments,
        options: ValueOptions | None = None,
        *,
        begin: Callable[[], None] | None = None,
        trouble: Callable[[EngineError], None] = raise_it,
        accept_missing: bool = False,
        keeps_all: bool = False,
    ) -> None:
        """`begin` is called before the first write to segments in this run: the folder's format has to be raised first.
        `trouble` is called, by the writing thread, for segments that can't be removed or written anew; that is tried
        again. `accept_missing`: segments may be missing; their values then count as damaged from now on. `keeps_all`:
        pointers may have been lost, so that values without one are kept.

        Reads all pointers. Raises EngineError; ValuesMissingError if segments are missing, or end before their last
        value.
        """
        self._engine = engine
        self._segments = segments
        self._options = options or ValueOptions()
        self._begin = begin
        self._trouble = trouble
        self._told: set[int] = set()
        """Segments of which it knows."""
        self._known: dict[int, KnownSegment] = {}
        self._by_queue: Counter[bytes] = Counter()
        """Values that lie in segments."""
        self._open: int | None = None
        """Segment of the next value."""
        self._doomed: dict[int, int] = {}
        """Segments that go with the next sync, with their sizes."""
        self._sparse: set[int] = set()
        self._unread_count = 0
        """Pointers that can't be read."""
        self._is_uncertain = False
        """Whether a write raised whose result is not known yet."""
        self._written: dict[bytes, tuple[bytes, ValuePointer]] = {}
        """Values of batches that raised, by key."""
        self._walks: WeakSet[ValueWalk] = WeakSet()
        self._ends: dict[int, int] = {}
        """End of the last value, for segments whose files extend beyond it or have no value: the rest is of no use."""
        self._kept: set[int] = set()
        """Segments that stay in this run, even without values."""
        self._count()
        sizes = segments.sizes()
        self.missing = [
            f"{segments.name(number)} {_is_missing(sizes.get(number), segment.size_bytes)}"
            for number, segment in sorted(self._known.items())
            if sizes.get(number, 0) < segment.size_bytes
        ]
        """Missing segments: their places and missing parts, in words."""
        self._lost = {number for number in self._known if number not in sizes}
        """Segments that were missing at the start."""
        if self.missing and not accept_missing:
            more = f" (and {len(self.missing) - 1} more)" if len(self.missing) > 1 else ""
            raise ValuesMissingError(
                f"{self.missing[0]}{more}, and stored messages are in them. Mount the disk that has the folder, "
                "or restore it. If they are permanently lost: `sluiceway store repair` discards them, and keeps all"
                " others."
            )
        for number, size_bytes in sizes.items():
            segment = self._known.setdefault(number, KnownSegment())
            if segment.size_bytes < size_bytes or not segment.live_count:
                self._ends[number] = segment.size_bytes
            segment.size_bytes = size_bytes
        self._next = max(self._known, default=-1) + 1
        self.kept_because: str | None = None
        """Reason why unnamed values are kept in this run, though they are of no use as they are."""
        self.unreadable: list[str] = []
        """Bad sectors that iterations met, in words; the first of them."""
        if keeps_all:
            self.kept_because = "LevelDB was repaired, and may have lost the pointers of values"
        elif self._unread_count:
            self.kept_because = f"{count_in_words(self._unread_count, 'pointer')} of values can't be read"
        if self.kept_because is not None:
            self._kept.update(self._known)

    # ------------------------------------------------------------------ reading

    def get(self, key: bytes) -> bytes | None:
        name = name_of(key)
        found = self._engine.get(name) if self._may_have(key) else None
        while True:
            if found is not None:
                try:
                    return self._read(key, found)
                except EngineError:
                    again = self._engine.get(name)
                    if again == found:
                        raise
            else:
                value = self._engine.get(key)
                if value is not None or not self._may_have(key):
                    return value
                again = self._engine.get(name)  # the value may have moved to a segment between the two reads
                if again is None:
                    return None
            found = again

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as the port says; but during a write chunk by chunk, each as it is at some moment of this call. A
        value that can't be read is yielded as far as it can: its decoder reports that, and the others are still found.
        See `unreadable`. Raises where the disk reads nothing at all.
        """
        walk = ValueWalk()
        self._walks.add(walk)  # before the moment that it is of
        parts, names = self._opened_twice(lambda *part: self._engine.iterate(*part, reverse=reverse), start, stop)
        if len(parts) == 1 and not names:
            return parts[0]
        walk.rows = self._walked(parts, names, reverse=reverse)
        return walk

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        parts, names = self._opened_twice(self._engine.iterate_keys, start, stop)
        for rows in names:
            parts.append(keys.CHUNK + name[1:] for name in rows)
        return (key for key, _group in groupby(heapq.merge(*parts)))

    def _opened_twice(
        self, opened: Callable[[bytes, bytes], Iterator[T]], start: bytes, stop: bytes
    ) -> tuple[list[Iterator[T]], list[Iterator[T]]]:
        """Open iterators over this range of the engine and over the pointers of its chunks, before and after: a chunk
        that comes to a segment or from one meanwhile is found by one of them, or by both.
        """
        within = names_within(start, stop)
        names = [opened(*within)] if within is not None and self._has_any else []
        parts = [opened(*part) for part in parts_around(start, stop)]
        if within is not None and self._has_any:
            names.insert(0, opened(*within))
        return parts, names

    def _walked(
        self, parts: list[Iterator[tuple[bytes, bytes]]], names: list[Iterator[tuple[bytes, bytes]]], *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries in order of their keys; of entries with the same key, the first."""
        rows: list[Iterator[tuple[bytes, bytes, bytes | None]]]
        rows = [((key, value, None) for key, value in part) for part in parts]
        rows += [((keys.CHUNK + name[1:], b"", found) for name, found in part) for part in names]
        last: bytes | None = None
        for key, value, found in heapq.merge(*rows, key=itemgetter(0), reverse=reverse):
            if key != last:
                last = key
                yield key, value if found is None else self._read_anyway(found)

    def _read(self, key: bytes, found: bytes) -> bytes:
        try:
            pointer = decode_pointer(found)
        except PointerError as error:
            raise CorruptionError(f"where the value of {key.hex()} lies can't be read: {error}") from error
        if pointer.segment in self._lost:
            raise CorruptionError(f"{self._segments.name(pointer.segment)} is missing")
        value = self._segments.read(pointer.segment, pointer.offset, pointer.size_bytes, self._options.ahead_bytes)
        if not is_right(pointer, value):
            raise CorruptionError(f"segment {pointer.segment} is damaged or cut at {pointer.offset}: look at the disk")
        return value

    def _read_anyway(self, found: bytes) -> bytes:
        try:
            pointer = decode_pointer(found)
            if pointer.segment in self._lost:
                return b""
            return self._segments.read(pointer.segment, pointer.offset, pointer.size_bytes, self._options.ahead_bytes)
        except (PointerError, CorruptionError):
            return b""
        except UnreadableError as error:
            value = error.read_around()
            if value is None:
                raise
            if len(self.unreadable) < UNREADABLE_KEPT_MAX and str(error) not in self.unreadable:
                self.unreadable.append(str(error))
            return value

    def _may_have(self, key: bytes) -> bool:
        """Whether the value of this key may lie in a segment."""
        return key.startswith(keys.CHUNK) and (self._is_uncertain or queue_of(key) in self._by_queue)

    @property
    def _has_any(self) -> bool:
        return self._is_uncertain or bool(self._by_queue)

    # ------------------------------------------------------------------ writing

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        least_bytes = self._options.record_bytes_min
        chunks = [value for _kind, key, value in changes if len(value) >= least_bytes and key.startswith(keys.CHUNK)]
        separates = sum(map(len, chunks)) >= self._options.batch_bytes_min
        if separates or self._has_any:
            plan = ValuePlan()
            try:
                self._plan(plan, changes, separates=separates)
            except EngineError:
                self._give_up(plan)
                raise
            self._carry_out(plan, sync=sync)
        else:
            self._engine.write(changes, sync=sync)
        if sync:
            self._remove_doomed()
        if self._sparse and not self._is_uncertain:
            number = min(self._sparse)
            try:
                self._move_some(number)
            except DiskFullError:
                return  # the batch is written; this is removed when there is room again
            except EngineError as error:
                self._tell(number, error)

    def _plan(self, plan: ValuePlan, changes: Sequence[Change], *, separates: bool) -> None:
        """Plan which of these changes go to segments. Raises EngineError."""
        out = plan.changes
        for change in changes:
            kind, key, value = change
            if kind == PUT:
                if key.startswith(keys.CHUNK):
                    self._take_away(plan, key)
                    if separates and len(value) >= self._options.record_bytes_min:
                        self._place(plan, key, value)
                        out.append(delete(key))  # should the engine have had it
                        continue
                out.append(change)
            elif kind == DELETE:
                # Records of other families have the same numbers in their keys.
                if not (key.startswith(keys.CHUNK) and self._take_away(plan, key)):
                    out.append(change)
            else:
                out += [(kind, *part) for part in parts_around(key, value)]
                within = names_within(key, value)
                if within is not None and (self._has_any or plan.new):
                    there = [name for name, _found in self._engine.iterate(*within)] if self._has_any else []
                    for name in {*there, *(name for name in plan.new if within[0] <= name < within[1])}:
                        self._take_away(plan, keys.CHUNK + name[1:])

    def _take_away(self, plan: ValuePlan, key: bytes) -> bool:
        """Whether the value of this key lies in a segment. It does not any more."""
        name = name_of(key)
        if name in plan.new:
            del plan.new[name], plan.values[name]
        elif name in plan.gone or not self._may_have(key):
            return False
        else:
            try:
                found = self._engine.get(name)
            except CorruptionError:  # it goes, if there is one; the next start counts what that leaves of a segment
                plan.changes.append(delete(name))
                return False
            if found is None:
                return False
            try:
                plan.gone[name] = decode_pointer(found)
            except PointerError:
                plan.gone[name] = None
        plan.changes.append(delete(name))
        return True

    def _place(self, plan: ValuePlan, key: bytes, value: bytes) -> None:
        """Give it a pointer."""
        name = name_of(key)
        earlier = self._written.get(name)
        if earlier is not None and earlier[0] is value:
            pointer = earlier[1]
        else:
            number, segment = self._opened(plan)
            start = encode_start(key, len(value))
            plan.writes.setdefault(number, (segment.size_bytes, []))[1].extend((start, value))
            pointer = ValuePointer(number, segment.size_bytes + len(start), len(value), adler32(value))
            segment.size_bytes += len(start) + len(value)
        plan.new[name] = pointer
        plan.values[name] = value
        plan.changes.append(put(name, encode_pointer(pointer)))

    def _opened(self, plan: ValuePlan) -> tuple[int, KnownSegment]:
        """The segment for the next value."""
        number = self._open
        if number is not None and self._known[number].size_bytes < self._options.segment_bytes:
            return number, self._known[number]
        if number is not None:
            plan.closed.add(number)
        self._open = number = self._next
        self._next += 1
        segment = self._known[number] = KnownSegment()
        return number, segment

    def _give_up(self, plan: ValuePlan) -> None:
        """Undo a plan of which nothing was written: its pointers are free again."""
        for number, (offset, _parts) in plan.writes.items():
            if offset:
                self._known[number].size_bytes = offset
            else:
                del self._known[number]
                self._open = None
        if not self._is_uncertain:
            self._look_over(plan.closed)

    def _carry_out(self, plan: ValuePlan, *, sync: bool) -> None:
        """Write this. Raises EngineError: then write it again."""
        self._write_values(plan)
        self._by_queue.update(map(queue_of, plan.new))  # before readers could miss them
        try:
            self._engine.write(plan.changes, sync=sync)
        except EngineError:
            self._is_uncertain = True
            self._written = {name: (plan.values[name], pointer) for name, pointer in plan.new.items()}
            raise
        self._written.clear()
        if self._is_uncertain:
            self._count()
            self._is_uncertain = False
        else:
            self._book(plan)
        touched = {pointer.segment for pointer in plan.gone.values() if pointer is not None}
        self._look_over({*touched, *plan.writes, *plan.closed})

    def _write_values(self, plan: ValuePlan) -> None:
        """Write the values and sync them. What can't be written is cut off, and its segment is not written to again:
        data behind a failed sync is not to be trusted.
        """
        if not plan.writes:
            return
        try:
            if self._begin is not None:
                self._begin()
                self._begin = None
            for number, (offset, parts) in plan.writes.items():
                if not offset:
                    self._segments.make(number)
                self._segments.write(number, offset, parts, sync=True)
        except EngineError:
            self._give_up(plan)
            self._open = None
            for number, (offset, _parts) in plan.writes.items():
                self._undo(number, offset)
            if not self._is_uncertain:
                self._look_over(set(plan.writes))
            raise

    def _undo(self, number: int, size_bytes: int) -> None:
        try:
            if size_bytes:
                self._segments.cut(number, size_bytes)
            else:
                self._segments.remove(number)
        except EngineError:
            return  # the caller reports the first error; the next start frees this space

    # ------------------------------------------------------------------ live values

    def _book(self, plan: ValuePlan) -> None:
        """Take over a plan that is written."""
        for name, pointer in plan.new.items():
            self._known[pointer.segment].add(name, pointer)
        for name, gone in plan.gone.items():
            queue = queue_of(name)
            self._by_queue[queue] -= 1
            if not self._by_queue[queue]:
                del self._by_queue[queue]
            if gone is not None and gone.segment in self._known:
                segment = self._known[gone.segment]
                segment.live_count -= 1
                segment.live_bytes -= taken_bytes(name, gone)

    def _count(self) -> None:
        """Count all pointers anew. Raises EngineError: the known ones stay then."""
        by_queue: Counter[bytes] = Counter()
        found: dict[int, KnownSegment] = {}
        unread_count = 0
        for name, value in self._engine.iterate(*keys.family_range(keys.VALUE)):
            by_queue[queue_of(name)] += 1
            pointer = pointer_or_none(value)
            if pointer is None:
                unread_count += 1
            else:
                found.setdefault(pointer.segment, KnownSegment()).add(name, pointer)
        self._by_queue = by_queue
        self._unread_count = unread_count
        for number, segment in self._known.items():
            counted = found.pop(number, None) or KnownSegment()
            segment.live_count, segment.live_bytes = counted.live_count, counted.live_bytes
        self._known.update(found)
        self._look_over(set(self._known))

    def _look_over(self, numbers: set[int]) -> None:
        """Look for segments of these numbers that are of no more use, or of little."""
        for number in numbers:
            segment = self._known.get(number)
            if segment is None or self._stays(number):
                continue
            if not segment.live_count:
                if number == self._open:
                    self._open = None
                del self._known[number]
                self._sparse.discard(number)
                self._doomed[number] = segment.size_bytes
            elif number != self._open and segment.is_sparse(self._options.sparse_share):
                self._sparse.add(number)

    def _stays(self, number: int) -> bool:
        """Return whether this segment may hold something that no pointer names, and so must stay."""
        return number in self._ends or number in self._kept

    def _remove_doomed(self) -> None:
        """No power cut brings back who named them."""
        if self._doomed and not self._walks and not self._is_uncertain:
            for number in list(self._doomed):
                try:
                    self._segments.remove(number)
                except EngineError as error:
                    self._tell(number, error)
                    continue
                self._told.discard(number)
                del self._doomed[number]

    def _tell(self, number: int, error: EngineError) -> None:
        """Log once that a segment can't be deleted: no reason for a successful write to fail."""
        if number not in self._told:
            self._told.add(number)
            self._trouble(error)

    def _move_some(self, number: int) -> None:
        """Write anew some live values of a segment that has few. Raises EngineError."""
        segment = self._known[number]
        plan = ValuePlan()
        at, moved_bytes, looks_count = segment.looked_to, 0, 0
        while at < segment.size_bytes and moved_bytes < self._options.moved_bytes and looks_count < MOVED_LOOKS:
            looks_count += 1
            found = self._value_at(number, at)
            if found is None:
                segment.is_stuck = True
                break
            key, offset, size_bytes = found
            at = offset + size_bytes
            name = name_of(key)
            try:
                pointer = pointer_or_none(self._engine.get(name) or b"")
            except CorruptionError:  # the damaged pointer may be of this segment: a read of its value raises
                segment.is_stuck = True
                break
            except EngineError:
                self._give_up(plan)
                raise
            if pointer is not None and (pointer.segment, pointer.offset) == (number, offset):
                value = self._value_of(pointer)
                if value is None:
                    segment.is_stuck = True
                    break
                plan.gone[name] = pointer
                self._place(plan, key, value)
                moved_bytes += size_bytes
        if plan.new:
            self._carry_out(plan, sync=False)
        segment.looked_to = at
        if at >= segment.size_bytes or segment.is_stuck:  # then the rest is found by its readers, or by a check
            segment.is_stuck = True
            self._sparse.discard(number)

    def _value_at(self, number: int, at: int) -> tuple[bytes, int, int] | None:
        """Key, offset and length of the value that begins here; None: none does."""
        try:
            start = decode_start(self._segments.read(number, at, START_BYTES))
            if start is None:
                return None
            key_length, size_bytes = start
            at += START_BYTES
            key = self._segments.read(number, at, key_length)
        except EngineError:
            return None  # a read of its values raises
        return (key, at + key_length, size_bytes) if len(key) == key_length else None

    def _value_of(self, pointer: ValuePointer) -> bytes | None:
        """Return the value at a pointer; None: it can't be read, or is not what was written."""
        try:
            value = self._segments.read(pointer.segment, pointer.offset, pointer.size_bytes)
        except EngineError:
            return None
        return value if is_right(pointer, value) else None

    @property
    def useless_bytes(self) -> int:
        """Bytes of segments of an earlier run that no pointer names; after `tidy` those that were kept."""
        return sum([self._known[number].size_bytes - end for number, end in self._ends.items()])

    def tidy(self) -> tuple[int, int]:
        """Free values without a pointer, which were on their way when an earlier run ended. Returns the number of
        segments removed, and the bytes with the ends of others. Values that may have lost their pointer are kept; see
        `kept_because`.

        Raises EngineError.
        """
        count = size_bytes = 0
        useless = self.find_useless()
        if useless:
            self._engine.write([], sync=True)  # or a power cut could bring back what an earlier run deleted
        for number in useless:
            segment, end = self._known[number], self._ends[number]
            size_bytes += segment.size_bytes - end
            if end:
                self._segments.cut(number, end)
                segment.size_bytes = end
            else:
                self._segments.remove(number)
                del self._known[number]
                count += 1
            del self._ends[number]
        self._look_over(set(self._known))
        return count, size_bytes

    def find_useless(self) -> list[int]:
        """The segments of which `tidy` would give something back. Says in `kept_because` why not of others. Raises
        EngineError.
        """
        useless = [number for number in self._ends if number not in self._kept and not self._has_lost(number)]
        if len(useless) < len(self._ends) and self.kept_because is None:
            self.kept_because = "chunks are among it that have a summary and no pointer"
        return useless

    def _has_lost(self, number: int) -> bool:
        """Whether a value behind the last one with a pointer is missed. Raises EngineError."""
        at = self._ends[number]
        while (found := self._value_at(number, at)) is not None:
            key, offset, size_bytes = found
            at = offset + size_bytes
            if at > self._known[number].size_bytes or not key.startswith(keys.CHUNK):
                return False
            is_missed = self._engine.get(keys.SUMMARY + key[1:]) is not None
            if is_missed and self._engine.get(name_of(key)) is None and self._engine.get(key) is None:
                return True
        return False

    # ------------------------------------------------------------------ the rest

    def size_bytes(self) -> int:
        segments_bytes = sum([segment.size_bytes for segment in list(self._known.values())])
        return self._engine.size_bytes() + segments_bytes + sum(list(self._doomed.values()))

    def compact(self, start: bytes, stop: bytes) -> None:
        """Compact, see the port; with the chunks, write all segments anew that have deleted values."""
        self._engine.compact(start, stop)
        if names_within(start, stop) is None or self._is_uncertain:
            return
        self.tidy()
        self._open = None
        self._sparse = {
            number
            for number, segment in self._known.items()
            if segment.live_bytes < segment.size_bytes and not segment.is_stuck and not self._stays(number)
        }
        while True:
            if self._doomed or not self._sparse:  # one by one, or all of them would lie there twice
                self._engine.write([], sync=True)
                self._remove_doomed()
            if not self._sparse:
                return
            self._move_some(min(self._sparse))

    def close(self) -> None:
        self._engine.close()


def _is_missing(size_bytes: int | None, needed_bytes: int) -> str:
    if size_bytes is None:
        return "is missing"
    return f"has {size_bytes} bytes of {needed_bytes}"
