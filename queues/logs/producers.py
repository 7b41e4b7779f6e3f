"""Producers whose SENDs a log knows, so that a repeated one is confirmed and not appended a second time.

The records themselves say what the log knows: each append that names a producer carries a line in its header (`STAMP`),
so both are on the disk or neither. A start looks for these lines behind the last *snapshot*, which the store keeps: all
that the log knew of records below an index. A snapshot is made every SNAPSHOT_COUNT appends, and saved when the records
that it covers are synced. The first append with a producer waits until the store knows that the log has producers: a
start looks at no records of other logs.

The last RECENT_COUNT SENDs of a producer are remembered with their places, so that the RECEIPT of a repeated one tells
the same index.

Bound: `producers_max` of the destination; the one that was quiet for longest is forgotten, and all after
`producers_keep_seconds` without a SEND. A start looks at twice SNAPSHOT_COUNT appends at most, while the store works.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import attrs

from ..message import Message
from ..policy import QueuePolicy
from ..producers import NO_SEQUENCE, Origin, origin_of
from .ports import GroupKeeper, Records, batches_here

STAMP: Final = b"sluiceway-producer"
"""Name of the header line: the log's id, the sequence, and the name of the producer."""
SNAPSHOT_COUNT: Final = 2048
RECENT_COUNT: Final = 16
"""More than a producer of `sluiceway.client` has under way."""
ENTRY_BYTES: Final = 3400
"""Memory of an entry with its places, beside its name (tracemalloc, CPython 3.11)."""
FORGOTTEN_AT_ONCE: Final = 64
_ESCAPE: Final = re.compile(r"\\[c\\]")


Place = tuple[int, int, int]
"""Sequence of a SEND, the index of its first record, the number of its records."""


@attrs.frozen
class KnownProducer:
    """A producer as it is kept."""

    name: str
    sequence: int
    used_ms: int
    places: tuple[Place, ...] = ()


@attrs.frozen
class ProducerSnapshot:
    """Knowledge of a log about the producers of records below `end_index`."""

    log_id: str
    end_index: int
    producers: tuple[KnownProducer, ...] = ()


class ProducerKeeper(Protocol):
    """Storage of snapshots."""

    def save_producers(self, log: str, snapshot: ProducerSnapshot, done: Callable[[], None]) -> None:
        """Keep this snapshot in place of the one before; `done` is called on the loop when it is on the disk."""

    def forget_producers(self, log: str) -> None:
        """Delete what is kept for a log."""


def stamp_of(log_id: str, origin: Origin) -> bytes:
    """Return the header line of a SEND of this origin."""
    name = origin[0].replace("\\", "\\\\").replace(":", "\\c")
    return STAMP + f":{log_id} {origin[1]} {name}".encode()


def origin_in(head: bytes, log_id: str) -> Origin | None:
    """Return the origin that the header lines of a batch name; None: they name none, or it was in another log."""
    start = b"\n" + STAMP + b":" + log_id.encode() + b" "
    place = (b"\n" + head).find(start)
    if place < 0:
        return None
    line = (b"\n" + head)[place + len(start) :].partition(b"\n")[0].decode("utf-8", "replace")
    digits, _blank, name = line.partition(" ")
    if not digits.isdigit() or not name:
        return None
    return _ESCAPE.sub(lambda found: ":" if found[0] == r"\c" else "\\", name), int(digits)


def continued(records: Records, snapshot: ProducerSnapshot) -> ProducerSnapshot:
    """Return a snapshot with what the records behind it say. Blocks. O(batches behind it). Raises DiskError."""
    known: OrderedDict[str, KnownProducer] = OrderedDict((each.name, each) for each in snapshot.producers)
    end = records.next_index
    for batch in batches_here(records, snapshot.end_index, end):
        origin = origin_in(batch.head, snapshot.log_id)
        if origin is not None:
            name, sequence = origin
            before = known.pop(name, None)
            places = () if before is None else before.places
            known[name] = KnownProducer(
                name,
                max(sequence, -1 if before is None else before.sequence),
                batch.timestamp_ms,
                (*places, (sequence, batch.first_index, batch.count))[-RECENT_COUNT:],
            )
    return ProducerSnapshot(snapshot.log_id, end, tuple(known.values()))


class _Entry:
    """One producer."""

    __slots__ = ("places", "sequence", "used_ms", "written")

    def __init__(
        self, sequence: int, used_ms: int, places: Iterable[Place] = (), *, written: int = NO_SEQUENCE
    ) -> None:
        self.sequence = sequence
        self.written = written
        """Highest sequence whose records are written."""
        self.used_ms = used_ms
        self.places: deque[Place] = deque(places, RECENT_COUNT)


class LogProducers:
    """The producers that one log knows."""

    __slots__ = (
        "_entries",
        "_frozen",
        "_is_saving",
        "_keep",
        "_keeper",
        "_log",
        "_log_id",
        "_now_ms",
        "_policy",
        "_request",
        "_since_count",
        "awaits_mark",
        "duplicates_count",
        "is_marked",
    )

    def __init__(
        self,
        log: str,
        log_id: str,
        keeper: ProducerKeeper,
        policy: Callable[[], QueuePolicy],
        now_ms: Callable[[], int],
        keep: Callable[[int], object],
        request: Callable[[], None],
    ) -> None:
        """`keep`: called with the bytes of memory that the table takes more, or fewer; `request`: the log may write."""
        self._log = log
        self._log_id = log_id
        self._keeper = keeper
        self._policy = policy
        self._now_ms = now_ms
        self._keep = keep
        self._request = request
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """Entries by name, the one that was quiet for longest first."""
        self._since_count = 0
        """Appends since the last snapshot."""
        self._frozen: ProducerSnapshot | None = None
        """Snapshot that waits until its records are synced."""
        self._is_saving = False
        self.is_marked = False
        """Whether the store has a snapshot of the log."""
        self.awaits_mark = False
        """Whether the log must not write yet: the store is to know first that it has producers."""
        self.duplicates_count = 0
        """SENDs that were not appended, since they had been before."""

    def __len__(self) -> int:
        return len(self._entries)

    def restore(self, snapshot: ProducerSnapshot) -> None:
        """Take over what an earlier run left."""
        self.is_marked = True
        for known in snapshot.producers:
            self._entries[known.name] = _Entry(known.sequence, known.used_ms, known.places, written=known.sequence)
            self._keep(ENTRY_BYTES + len(known.name))

    def knows(self, origin: Origin) -> bool:
        """Return whether a SEND of this origin was taken before."""
        entry = self._entries.get(origin[0])
        return entry is not None and origin[1] <= entry.sequence

    def has(self, name: str) -> bool:
        """Return whether this producer is known."""
        return name in self._entries

    def place_of(self, origin: Origin) -> tuple[int, int] | None:
        """Return the index of the first record of a SEND that was taken, and the number of its records; None: not
        known, or not any more.
        """
        entry = self._entries.get(origin[0])
        if entry is not None:
            for sequence, index, count in reversed(entry.places):
                if sequence == origin[1]:
                    return index, count
        return None

    def fresh(self, messages: list[Message]) -> list[Message]:
        """Return those that were not taken before, each once."""
        last: dict[str, int] = {}
        found: list[Message] = []
        for message in messages:
            origin = origin_of(message)
            if origin is not None and origin[1] != NO_SEQUENCE:
                if self.knows(origin) or last.get(origin[0], -1) >= origin[1]:
                    continue
                last[origin[0]] = origin[1]
            found.append(message)
        return found

    def seen_again(self, origin: Origin, count: int = 1) -> None:
        """Note SENDs that are not taken, for this origin is known."""
        self.duplicates_count += count
        self._entries[origin[0]].used_ms = self._now_ms()
        self._entries.move_to_end(origin[0])

    def take(self, origin: Origin, next_index: int) -> None:
        """Note a SEND that is taken, and is to be written at `next_index` or behind."""
        if not self.is_marked:
            self.is_marked = self.awaits_mark = True
            self._keeper.save_producers(self._log, ProducerSnapshot(self._log_id, next_index), self._marked)
        entry = self._entries.get(origin[0])
        if entry is None:
            self._entries[origin[0]] = _Entry(origin[1], self._now_ms())
            self._keep(ENTRY_BYTES + len(origin[0]))
            self._forget_some()
        else:
            entry.sequence, entry.used_ms = max(origin[1], entry.sequence), self._now_ms()
            self._entries.move_to_end(origin[0])

    def written(self, origin: Origin, index: int, count: int) -> None:
        """Note that a SEND that was taken is written, and where; `count` 0: it is not known where."""
        entry = self._entries.get(origin[0])
        if entry is not None:
            entry.written = max(origin[1], entry.written)
            if count:
                entry.places.append((origin[1], index, count))

    def grew(self, count: int, end_index: int) -> bool:
        """Note that `count` appends were written, up to `end_index`. Returns whether a sync is needed."""
        self._since_count += count
        if self._since_count < SNAPSHOT_COUNT or self._is_saving or self._frozen is not None:
            return False
        self._since_count = 0
        known = [
            KnownProducer(name, entry.written, entry.used_ms, tuple(entry.places))
            for name, entry in self._entries.items()
            if entry.written != NO_SEQUENCE
        ]
        self._frozen = ProducerSnapshot(self._log_id, end_index, tuple(known))
        return True

    def synced(self, index: int) -> None:
        """Note that all records below `index` are synced."""
        frozen = self._frozen
        if frozen is not None and frozen.end_index <= index:
            self._frozen, self._is_saving = None, True
            self._keeper.save_producers(self._log, frozen, self._saved)

    def forget(self) -> None:
        """Keep nothing any more: the log is deleted."""
        if self.is_marked:
            self._keeper.forget_producers(self._log)

    def _marked(self) -> None:
        self.awaits_mark = False
        self._request()

    def _saved(self) -> None:
        self._is_saving = False

    def _forget_some(self) -> None:
        """Forget the first ones, if there are too many or they were quiet for too long."""
        policy = self._policy()
        oldest_ms = self._now_ms() - 1000 * policy.producers_keep_seconds
        for _ in range(FORGOTTEN_AT_ONCE):
            name = next(iter(self._entries))
            if len(self._entries) <= policy.producers_max and self._entries[name].used_ms > oldest_ms:
                break
            del self._entries[name]
            self._keep(-ENTRY_BYTES - len(name))


class NoProducers:
    """Keeper that keeps nothing: there is no store. Satisfies ProducerKeeper."""

    def save_producers(self, _log: str, _snapshot: ProducerSnapshot, done: Callable[[], None]) -> None:
        done()

    def forget_producers(self, _log: str) -> None:
        """Do nothing: nothing is kept."""


class LogKeeper(GroupKeeper, ProducerKeeper, Protocol):
    """Storage of what logs need beside their records."""
