"""Where events are remembered: one ring for each queue, all of them within one budget of bytes.

An event is a tuple of numbers about a whole batch: (kind, seconds, first, end, who, extra). It is appended to a list
and looked at again only when somebody asks. When the list is full it is *sealed*: written into one bytes string (a
sixth of the size, at the speed of C) with the bounds of what it is about, so that a question reads few of them.

Fairness. When the budget is used up the oldest sealed part of all goes, whosever it is; what a ring has open stays. So
a flood in one queue does not make others forget their last events. What is open is paid for in advance, by *grants*
that double with use: of ten thousand queues each has room for a few events, a busy one for 256. When grants come to
half of the budget, the ring that has had none for the longest time is sealed, and its grant goes back. An event that
lists elements one by one (where others lie between them, as with selectors) pays for these, too, as long as it is
open; a ring that lists many is sealed early.

Invariants: `used_bytes` is the sum of all grants, listed elements and sealed parts, and at most `bytes_max`, one grant
and one event. Within a ring what is forgotten is always older than what is not.

Source: issue 6 ("where is my message"), anchors e12, c52.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any, Final

EVENT_BYTES: Final = 240
"""An open event in memory (measured: 194 as a tuple, 234 as a list)."""

GRANT_MIN: Final = 8
GRANT_MAX: Final = 256
"""Events that are open at most: sealing them takes 30 microseconds."""

LISTED_BYTES: Final = 40
"""An element in the list of an open event. Sealed it takes 5."""
LISTED_BYTES_MAX: Final = 16 * 1024
"""In the open events of one ring."""

PART_BYTES: Final = 320
"""What a sealed part costs beside its bytes."""

Event = SequenceOf[Any]


class Part:
    """Sealed events of one ring, the oldest first, and what they are about."""

    __slots__ = ("data", "end", "first", "last_seconds", "numbers_end", "numbers_first", "ring")

    def __init__(self, ring: Ring, events: list[Event]) -> None:
        self.ring = ring
        self.last_seconds: float = events[-1][1]
        columns = list(zip(*events, strict=True))  # half the time of rows, to write them and to find the bounds
        self.first, self.end, self.numbers_first, self.numbers_end = ring.bounds_of(columns)
        self.data = marshal.dumps(columns)

    @property
    def size_bytes(self) -> int:
        """What it is charged."""
        return len(self.data) + PART_BYTES

    def events(self) -> list[Event]:
        """All of them. Some 40 microseconds."""
        return list(zip(*marshal.loads(self.data), strict=True))


class Budget:
    """The bytes that all rings share."""

    __slots__ = ("_granted_bytes", "_rings", "_sealed", "_sealed_bytes", "bytes_max", "clock", "keep_seconds")

    def __init__(self, bytes_max: int, keep_seconds: float, clock: Callable[[], float]) -> None:
        """`keep_seconds`: what is older is forgotten, too."""
        self.bytes_max = bytes_max
        self.keep_seconds = keep_seconds
        self.clock = clock
        self._rings: OrderedDict[Ring, None] = OrderedDict()
        """Those with a grant; the one that has had none for the longest time first."""
        self._sealed: deque[Part] = deque()
        """All parts, in the order in which they were sealed."""
        self._granted_bytes = 0
        self._sealed_bytes = 0

    @property
    def used_bytes(self) -> int:
        """What is remembered costs so much."""
        return self._granted_bytes + self._sealed_bytes

    @property
    def oldest_seconds(self) -> float | None:
        """When the oldest sealed part ended, by the clock; None: nothing is sealed."""
        return self._sealed[0].last_seconds if self._sealed else None

    def grant(self, ring: Ring) -> int:
        """Room for more open events of this ring; returns for how many in all."""
        count = min(GRANT_MAX, max(GRANT_MIN, ring.granted_count * 8))
        self._granted_bytes += (count - ring.granted_count) * EVENT_BYTES
        self._rings[ring] = None
        self._rings.move_to_end(ring)
        self._seal_idle()
        self._make_room()
        return count

    def list_open(self, ring: Ring, count: int) -> None:
        """The next event of this ring lists so many elements. May seal those that it has open."""
        size_bytes = count * LISTED_BYTES
        if ring.listed_bytes + size_bytes > LISTED_BYTES_MAX:
            ring.seal()
        ring.listed_bytes += size_bytes
        self._granted_bytes += size_bytes

    def listed_sealed(self, ring: Ring) -> None:
        """What this ring had listed is put together."""
        self._granted_bytes -= ring.listed_bytes
        ring.listed_bytes = 0

    def _seal_idle(self) -> None:
        while self._granted_bytes > self.bytes_max // 2 and len(self._rings) > 1:
            next(iter(self._rings)).seal(give_back=True)

    def give_back(self, ring: Ring) -> None:
        """This ring has nothing open."""
        if ring in self._rings:
            del self._rings[ring]
            self._granted_bytes -= ring.granted_count * EVENT_BYTES

    def keep(self, part: Part) -> None:
        """This is sealed."""
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
        """Forget what is older than `keep_seconds`, of what is sealed."""
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
        """Other limits from now on."""
        self.bytes_max = bytes_max
        self.keep_seconds = keep_seconds
        self._seal_idle()
        self._make_room()


class Ring:
    """Events of one queue. Hot: whoever appends to `events` compares its length with `granted_count` and calls
    `is_full`.
    """

    __slots__ = ("_budget", "events", "granted_count", "has_forgotten", "listed_bytes", "parts")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.events: list[Event] = []
        self.granted_count = 0
        self.listed_bytes = 0
        """What the lists in open events cost."""
        self.parts: list[Part] = []  # not a deque: that takes 600 bytes more, of each of many queues
        self.has_forgotten = False
        """Something of it is forgotten."""

    def bounds_of(self, columns: list[tuple[Any, ...]]) -> tuple[int, int, int, int]:
        """What these are about: the first sequence and the one behind the last; likewise of message numbers. A kind of
        ring says. `columns` of the events, in order.
        """
        raise NotImplementedError

    def forgotten(self) -> None:
        """Hook: its oldest part has gone."""

    def is_full(self) -> None:
        """There are as many open events as were granted: ask for more, or seal them."""
        if self.granted_count < GRANT_MAX:
            self.granted_count = self._budget.grant(self)
        else:
            self.seal()

    def seal(self, *, give_back: bool = False) -> None:
        """Put the open events together. `give_back`: the next ones need a new grant."""
        events = self.events
        if self.listed_bytes:
            self._budget.listed_sealed(self)
        if give_back:
            self._budget.give_back(self)
            self.granted_count = 0
        if events:
            self.events = []
            part = Part(self, events)
            self.parts.append(part)
            self._budget.keep(part)

    def all_events(self, wanted: Callable[[Part], bool]) -> Iterator[Iterable[Event]]:
        """Those of the sealed parts that are wanted, part by part, and the open ones; the oldest first. The ring may
        change in between.
        """
        for part in list(self.parts):
            if wanted(part):
                yield part.events()
        yield tuple(self.events)
