"""Storage of events: one ring per queue, all within one budget of bytes.

An event is a tuple of numbers about a whole batch: (kind, seconds, first, end, who, extra). It is appended to a list
and read only by requests. A full list is *sealed*: written into one bytes string (a sixth of the size, at the speed of
C) with the bounds of its contents, so that a request reads few of them.

Fairness. When the budget is used up, the oldest sealed part of all rings goes; open events stay. So a flood in one
queue does not displace the last events of others. Open events are paid for in advance, by *grants* that double with
use: each of ten thousand queues has room for a few events, a busy one for 256. When grants reach half of the budget,
the ring with the oldest grant is sealed, and its grant is returned. An event that lists elements (where others lie in
between, as with selectors) pays for them, too, while it is open; a ring that lists many is sealed early.

Invariants: `used_bytes` is the sum of all grants, listed elements and sealed parts, and at most `bytes_max`, one grant
and one event. Within a ring forgotten events are always older than kept ones.

Source: issue 6 ("where is my message"), anchors e12, c52.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any, Final

EVENT_BYTES: Final = 240
"""Size of an open event (measured: 194 as a tuple, 234 as a list)."""

GRANT_MIN: Final = 8
GRANT_MAX: Final = 256
"""Maximum number of open events: sealing them takes 30 microseconds."""

LISTED_BYTES: Final = 40
"""Size of an element in the list of an open event. Sealed it takes 5."""
LISTED_BYTES_MAX: Final = 16 * 1024
"""Maximum size of lists in the open events of one ring."""

PART_BYTES: Final = 320
"""Size of a sealed part beside its bytes."""

Event = SequenceOf[Any]


class SealedPart:
    """Sealed events of one ring, the oldest first, and their bounds."""

    __slots__ = ("data", "end", "first", "last_seconds", "numbers_end", "numbers_first", "ring")

    def __init__(self, ring: Ring, events: list[Event]) -> None:
        self.ring = ring
        self.last_seconds: float = events[-1][1]
        columns = list(zip(*events, strict=True))  # takes half the time of rows, for writing and for the bounds
        self.first, self.end, self.numbers_first, self.numbers_end = ring.bounds_of(columns)
        self.data = marshal.dumps(columns)

    @property
    def size_bytes(self) -> int:
        """Charged size."""
        return len(self.data) + PART_BYTES

    def events(self) -> list[Event]:
        """Return all events. Takes some 40 microseconds."""
        return list(zip(*marshal.loads(self.data), strict=True))


class Budget:
    """Bytes shared by all rings."""

    __slots__ = ("_granted_bytes", "_rings", "_sealed", "_sealed_bytes", "bytes_max", "clock", "keep_seconds")

    def __init__(self, bytes_max: int, keep_seconds: float, clock: Callable[[], float]) -> None:
        """Take `keep_seconds`, the age at which events are forgotten, too."""
        self.bytes_max = bytes_max
        self.keep_seconds = keep_seconds
        self.clock = clock
        self._rings: OrderedDict[Ring, None] = OrderedDict()
        """Rings with a grant, the one with the oldest grant first."""
        self._sealed: deque[SealedPart] = deque()
        """All parts, in the order of sealing."""
        self._granted_bytes = 0
        self._sealed_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes charged for all events."""
        return self._granted_bytes + self._sealed_bytes

    @property
    def oldest_seconds(self) -> float | None:
        """Time at which the oldest sealed part ended, by the clock; None: nothing is sealed."""
        return self._sealed[0].last_seconds if self._sealed else None

    def grant(self, ring: Ring) -> int:
        """Grant this ring room for more open events; return for how many in all."""
        count = min(GRANT_MAX, max(GRANT_MIN, ring.granted_count * 8))
        self._granted_bytes += (count - ring.granted_count) * EVENT_BYTES
        self._rings[ring] = None
        self._rings.move_to_end(ring)
        self._seal_idle()
        self._make_room()
        return count

    def list_open(self, ring: Ring, count: int) -> None:
        """Charge the next event of this ring for `count` listed elements. May seal the ring's open events."""
        size_bytes = count * LISTED_BYTES
        if ring.listed_bytes + size_bytes > LISTED_BYTES_MAX:
            ring.seal()
        ring.listed_bytes += size_bytes
        self._granted_bytes += size_bytes

    def listed_sealed(self, ring: Ring) -> None:
        """Release what the ring's listed elements were charged."""
        self._granted_bytes -= ring.listed_bytes
        ring.listed_bytes = 0

    def _seal_idle(self) -> None:
        while self._granted_bytes > self.bytes_max // 2 and len(self._rings) > 1:
            next(iter(self._rings)).seal(give_back=True)

    def give_back(self, ring: Ring) -> None:
        """Take back the grant of a ring without open events."""
        if ring in self._rings:
            del self._rings[ring]
            self._granted_bytes -= ring.granted_count * EVENT_BYTES

    def keep(self, part: SealedPart) -> None:
        """Keep a sealed part."""
        self._sealed.append(part)
        self._sealed_bytes += part.size_bytes
        if part.ring in self._rings:
            self._rings.move_to_end(part.ring)
        self._make_room()

    def _make_room(self) -> None:
        while self._sealed and self.used_bytes > self.bytes_max:
            self._forget_oldest()
        self.forget_old()

    def forget_old(self) -> None:
        """Forget sealed events older than `keep_seconds`."""
        before = self.clock() - self.keep_seconds
        while self._sealed and self._sealed[0].last_seconds < before:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        part = self._sealed.popleft()
        self._sealed_bytes -= part.size_bytes
        oldest = part.ring.parts.pop(0)
        assert oldest is part, "the parts of a ring are sealed in order"
        part.ring.has_forgotten = True
        part.ring.forgotten()

    def resize(self, bytes_max: int, keep_seconds: float) -> None:
        """Set other limits."""
        self.bytes_max = bytes_max
        self.keep_seconds = keep_seconds
        self._seal_idle()
        self._make_room()


class Ring:
    """Events of one queue. Hot: code that appends to `events` compares its length with `granted_count` and calls
    `is_full`.
    """

    __slots__ = ("_budget", "events", "granted_count", "has_forgotten", "listed_bytes", "parts")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.events: list[Event] = []
        self.granted_count = 0
        self.listed_bytes = 0
        """Charge for the lists in open events."""
        self.parts: list[SealedPart] = []  # not a deque, which takes 600 bytes more for each of many queues
        self.has_forgotten = False
        """Whether events of this ring were forgotten."""

    def bounds_of(self, columns: list[tuple[Any, ...]]) -> tuple[int, int, int, int]:
        """Return the bounds of the events: the first sequence and the one behind the last, likewise of message numbers.
        Defined by each kind of ring. `columns` of the events, in order.
        """
        raise NotImplementedError

    def forgotten(self) -> None:
        """Note that the oldest part was forgotten. Hook."""

    def is_full(self) -> None:
        """Get a larger grant when all granted events are open, or seal the events."""
        if self.granted_count < GRANT_MAX:
            self.granted_count = self._budget.grant(self)
        else:
            self.seal()

    def seal(self, *, give_back: bool = False) -> None:
        """Seal the open events. `give_back`: the next events need a new grant."""
        events = self.events
        if self.listed_bytes:
            self._budget.listed_sealed(self)
        if give_back:
            self._budget.give_back(self)
            self.granted_count = 0
        if events:
            self.events = []
            part = SealedPart(self, events)
            self.parts.append(part)
            self._budget.keep(part)

    def all_events(self, wanted: Callable[[SealedPart], bool]) -> Iterator[Iterable[Event]]:
        """Yield the events of the wanted sealed parts, part by part, then the open events, in the order of time. The
        ring may change in between.
        """
        for part in list(self.parts):
            if wanted(part):
                yield part.events()
        yield tuple(self.events)
