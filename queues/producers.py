"""Producers whose SENDs a queue knows, so that a repeated one is confirmed and not taken a second time.

A SEND may say who sends it and how many it is (`producer-id`, `producer-sequence`). A queue remembers the last sequence
of each producer: the same or a lower one is a duplicate. Gaps are allowed. A SEND may have an id of its own in place of
that (`_AMQ_DUPL_ID`, as Artemis has it): then the queue remembers the last ids.

What a queue remembers is noted with each message that is taken, and is on the disk in the very batch that saves the
message (`QueueStorage.produced`): a crash leaves both or neither. Messages that are not persistent are remembered in
memory, and forgotten with the messages. Each queue has a table of its own (a destination at one priority, or one part
of it), for within one of these the order of a sender is kept.

Bound: `producers_max` and `duplicate_ids_max` of the destination; the one that was quiet for longest is forgotten, and
all after `producers_keep_seconds` without a SEND.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .message import Message
from .policy import QueuePolicy

ENTRY_BYTES: Final = 420
"""Memory of an entry beside its name (tracemalloc, CPython 3.11)."""
FORGOTTEN_AT_ONCE: Final = 64
"""Entries that are forgotten with one new one, at most."""
NO_SEQUENCE: Final = -1
"""Sequence of a SEND that has an id of its own."""
ORIGIN_BYTES_MAX: Final = 200
"""Longest name of a producer, and longest id, in bytes: what a SEND may have (`protocols/stomp/head.py`)."""
_PRODUCER: Final = "p"
_ID: Final = "i"
"""First letters of the names on disk."""


Origin = tuple[str, int]
"""Origin of a SEND: the name of its producer and its number among what that one sent; or an id of its own, and
NO_SEQUENCE.
"""

Remembered = tuple[int, int]
"""Last sequence of a producer, and when it was sent, in milliseconds since the epoch."""


def origin_of(message: Message) -> Origin | None:
    """Return the origin of a message; None: its sender does not say."""
    return getattr(message.head, "origin", None)


def name_on_disk(origin: Origin) -> str:
    """Return the name that an origin has on the disk, where producers and ids are apart."""
    return (_ID if origin[1] == NO_SEQUENCE else _PRODUCER) + origin[0]


def origin_on_disk(name: str, sequence: int) -> Origin:
    """Return the origin with this name on the disk."""
    return name[1:], NO_SEQUENCE if name[0] == _ID else sequence


class _Entry:
    """One producer or id."""

    __slots__ = ("is_stored", "place", "sequence", "used_ms")

    def __init__(self, sequence: int, used_ms: int, place: int, *, is_stored: bool) -> None:
        self.sequence = sequence
        self.used_ms = used_ms
        self.place = place
        """First element of the last SEND in the queue; -1: that is on the disk since an earlier run."""
        self.is_stored = is_stored
        """Whether the disk knows the entry, or is told of it."""


class ProducerTable:
    """The producers that one queue knows."""

    __slots__ = ("_gone", "_ids", "_keep", "_now_ms", "_policy", "_producers", "duplicates_count")

    def __init__(
        self, policy: Callable[[], QueuePolicy], now_ms: Callable[[], int], keep: Callable[[int], object]
    ) -> None:
        """Make an empty table. `policy`: returns the present limits; `keep`: called with the bytes of memory that the
        table takes more, or fewer.
        """
        self._policy = policy
        self._now_ms = now_ms
        self._keep = keep
        self._producers: OrderedDict[str, _Entry] = OrderedDict()
        self._ids: OrderedDict[str, _Entry] = OrderedDict()
        """Entries of both kinds by name, the one that was quiet for longest first."""
        self._gone: list[str] = []
        """Names on disk of forgotten entries that are still there."""
        self.duplicates_count = 0
        """SENDs that were not taken, since they had been before."""

    def __len__(self) -> int:
        return len(self._producers) + len(self._ids)

    def restore(self, found: Mapping[str, Remembered]) -> None:
        """Take over what an earlier run left: by name on disk, the one that was quiet for longest first."""
        for name, (sequence, used_ms) in found.items():
            entries = self._ids if name[0] == _ID else self._producers
            entries[name[1:]] = _Entry(sequence, used_ms, -1, is_stored=True)
            self._keep(ENTRY_BYTES + len(name))

    def knows(self, origin: Origin) -> bool:
        """Return whether a SEND of this origin was taken before."""
        entry = self._entries_of(origin).get(origin[0])
        return entry is not None and origin[1] <= entry.sequence

    def seen_again(self, origin: Origin, count: int = 1) -> None:
        """Note SENDs that are not taken, for this origin is known."""
        self.duplicates_count += count
        entries = self._entries_of(origin)
        entries[origin[0]].used_ms = self._now_ms()
        entries.move_to_end(origin[0])

    def has(self, origin: Origin) -> bool:
        """Return whether its producer is known: then one more SEND of it takes no memory."""
        return origin[0] in self._entries_of(origin)

    def place_of(self, origin: Origin) -> int:
        """Return the first element of the last SEND of a producer that is known; -1: it is on the disk since an earlier
        run.
        """
        return self._entries_of(origin)[origin[0]].place

    def fresh(self, messages: list[Message]) -> list[Message]:
        """Return those that were not taken before, each once."""
        last: dict[tuple[str, bool], int] = {}
        found: list[Message] = []
        for message in messages:
            origin = origin_of(message)
            if origin is not None:
                key = origin[0], origin[1] == NO_SEQUENCE
                if self.knows(origin) or last.get(key, NO_SEQUENCE - 1) >= origin[1]:
                    continue
                last[key] = origin[1]
            found.append(message)
        return found

    def note(self, messages: Iterable[Message], place: int, *, stored: bool) -> dict[str, Remembered]:
        """Note messages that were taken, from the element `place` on. Returns what the disk is to know, by name on
        disk, if they are `stored`.
        """
        noted: dict[str, Remembered] = {}
        now_ms = self._now_ms()
        for message in messages:
            origin = origin_of(message)
            if origin is None:
                continue
            entries = self._entries_of(origin)
            entry = entries.get(origin[0])
            if entry is None:
                entry = entries[origin[0]] = _Entry(origin[1], now_ms, place, is_stored=stored)
                self._keep(ENTRY_BYTES + 1 + len(origin[0]))
                self._forget_some(entries)
            else:
                entry.sequence, entry.used_ms, entry.place = max(origin[1], entry.sequence), now_ms, place
                entry.is_stored |= stored
                entries.move_to_end(origin[0])
            if stored:
                noted[name_on_disk(origin)] = entry.sequence, now_ms
        return noted

    def take_gone(self) -> list[str]:
        """Return the names that the disk is to forget, once."""
        gone, self._gone = self._gone, []
        return gone

    @property
    def is_wanted(self) -> bool:
        """Whether a SEND may still be repeated: some producer was not quiet for `producers_keep_seconds`."""
        oldest_ms = self._oldest_ms
        newest = [entries[next(reversed(entries))] for entries in (self._producers, self._ids) if entries]
        return any(entry.used_ms > oldest_ms for entry in newest)

    @property
    def _oldest_ms(self) -> float:
        return self._now_ms() - 1000 * self._policy().producers_keep_seconds

    def _entries_of(self, origin: Origin) -> OrderedDict[str, _Entry]:
        return self._ids if origin[1] == NO_SEQUENCE else self._producers

    def _forget_some(self, entries: OrderedDict[str, _Entry]) -> None:
        """Forget the first ones, if there are too many or they were quiet for too long."""
        policy, oldest_ms = self._policy(), self._oldest_ms
        count_max = policy.duplicate_ids_max if entries is self._ids else policy.producers_max
        for _ in range(FORGOTTEN_AT_ONCE):
            name = next(iter(entries))
            entry = entries[name]
            if len(entries) <= count_max and entry.used_ms > oldest_ms:
                break
            del entries[name]
            stored_name = (_ID if entries is self._ids else _PRODUCER) + name
            self._keep(-ENTRY_BYTES - len(stored_name))
            if entry.is_stored:
                self._gone.append(stored_name)
