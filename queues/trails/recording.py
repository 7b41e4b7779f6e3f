"""Recording: notifications of queues become events in rings.

Events are (kind, seconds, first, end, who, extra). `first` and `end` are sequences of the queue, or message numbers for
kinds below `BY_SEQUENCE`. `extra` lists the elements if some between `first` and `end` are left out, else None. For
ACCEPTED it is the number of the first message.

Single messages would make an event each. So within a *moment*, a millisecond, an accepted, sent or settled batch that
begins where the last such event ends extends that event. A topic sends one batch to many consumers: within a moment
that is one event, whose `who` is a list of up to WHO_MAX. A new event closes those of later stages, and any other event
closes all: so for each message and consumer the events are in the order in which they happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ...flow.bounds import UNBOUNDED
from ..cursored import BLOCK_BITS
from ..message import Message
from ..observer import Fate
from .rings import GRANT_MAX, Budget, Event, Ring

if TYPE_CHECKING:
    from ...flow import SourceController
    from ..queue import MessageQueue

PARKED: Final = 0
TURNED_AWAY: Final = 1
BY_SEQUENCE: Final = 2
"""Lowest kind whose events hold sequences."""
ACCEPTED: Final = 2
SENT: Final = 3
SENT_AUTO: Final = 4
SETTLED: Final = 5
RETURNED: Final = 6
"""Requeued, never received by the consumer."""
RETURNED_SEEN: Final = 7
REFUSED: Final = 8
EXPIRED: Final = 9
DROPPED: Final = 10
GIVEN_UP: Final = 11
DEAD_LETTERED: Final = 12
MOVED: Final = 13
MISSED: Final = 14
STORED: Final = 15
STORED_SYNCED: Final = 16
PAGED_OUT: Final = 17
PAGED_IN: Final = 18
RESTORED: Final = 19
CLOSED: Final = 20
RECALLED: Final = 21
"""Block of an earlier run read from disk, at each read. `extra` is the number of the first message, or, if numbers are
not dense, a list with a number for each sequence (-1: it has left).
"""

_OF_FATE: Final[Mapping[Fate, int]] = {
    Fate.EXPIRED: EXPIRED,
    Fate.DROPPED: DROPPED,
    Fate.GIVEN_UP: GIVEN_UP,
    Fate.DEAD_LETTERED: DEAD_LETTERED,
    Fate.MOVED: MOVED,
}

CORRELATION_LENGTH_MAX: Final = 256
"""Maximum length in characters: ids are stored individually, so a long one would displace many others."""

WHO_MAX: Final = 16
"""Maximum consumers in one event."""
_WHO_ELEMENTS: Final = 5
"""Size of a list of consumers, in listed elements."""

MOMENT_SECONDS: Final = 0.001
"""Duration in which contiguous batches extend one event, which has the time of its beginning."""

NOTHING: Final = (UNBOUNDED, -1)
"""Bounds of an empty range of numbers."""


class QueueTrail(Ring):
    """Events of one queue. Implements queues.observer.Observer."""

    __slots__ = (
        "_accepted", "_clock", "_restored_end", "_sent", "_settled", "_trails", "_until_seconds", "origin", "queue",
        "queue_name",
    )  # fmt: skip

    def __init__(self, trails: Trails, queue: MessageQueue) -> None:
        super().__init__(trails.budget)
        self._trails = trails
        self._clock = trails.budget.clock
        self.queue: MessageQueue | None = queue
        """Queue; None: deleted."""
        self.queue_name = queue.name
        self.origin: SourceController | None = None
        self._until_seconds = -math.inf
        self._restored_end = 0
        """Sequence below which the elements are of an earlier run: their numbers are known when they are read."""
        self._accepted: list[Any] | None = None
        """Open event of this moment, which may be extended; None: none. Likewise the next two."""
        self._sent: list[Any] | None = None
        self._settled: list[Any] | None = None

    def seal(self, *, give_back: bool = False) -> None:
        self._accepted = self._sent = self._settled = None
        super().seal(give_back=give_back)

    # ------------------------------------------------------------------ notifications of the queue

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        origin, self.origin = self.origin, None
        who = "" if origin is None else origin.resource.name
        count = len(messages)
        number = messages[0].number
        if end - first != count or messages[-1].number - number != count - 1:
            self._accepted_with_gaps(messages, first, end, who)
            return
        now = self._clock()
        if now >= self._until_seconds:
            self._begin_moment(now)
        last = self._accepted
        if last is not None and last[3] == first and last[5] + first - last[2] == number and last[4] is who:
            last[3] = end
            return
        self._sent = self._settled = None
        self._accepted = event = [ACCEPTED, now, first, end, who, number]
        events = self.events
        events.append(event)
        if len(events) >= self.granted_count:
            self.is_full()

    def _accepted_with_gaps(self, messages: list[Message], first: int, end: int, who: str) -> None:
        """Add one event for each part with dense sequences and numbers. Blocks of large messages are closed early, so
        gaps are common; O(blocks), and O(n) only where numbers have gaps.
        """
        assert self.queue is not None, "it has just taken these"
        seconds, start = self._clock(), 0
        dense = messages[-1].number - messages[0].number == len(messages) - 1
        block_of = self.queue.elements.block
        for index in range(first >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1):
            block = block_of(index)
            if block is None:
                continue
            low, high = max(first, block.base), min(end, block.base + block.length)
            if low >= high:
                continue
            stop = start + high - low
            cuts = [start] if dense else [start, *_cuts(messages, start, stop)]
            for cut, following in pairwise([*cuts, stop]):
                sequence = low + cut - start
                self._add((ACCEPTED, seconds, sequence, sequence + following - cut, who, messages[cut].number))
            start = stop

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        if type(sequences) is not range:
            self._add_listed(SENT_AUTO if auto else SENT, sequences, to)
            return
        now = self._clock()
        if now >= self._until_seconds:
            self._begin_moment(now)
        kind = SENT_AUTO if auto else SENT
        last = self._sent
        if last is not None:
            start, stop = sequences.start, sequences.stop
            if last[3] == start and last[4] is to:
                last[3] = stop
                return
            if last[2] == start and last[3] == stop and last[0] == kind and self._joins(last, to):
                return
        self._settled = None
        self._sent = event = [kind, now, sequences.start, sequences.stop, to, None]
        events = self.events
        events.append(event)
        if len(events) >= self.granted_count:
            self.is_full()

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        if type(sequences) is not range:
            self._add_listed(SETTLED, sequences, by)
            return
        now = self._clock()
        if now >= self._until_seconds:
            self._begin_moment(now)
        last = self._settled
        if last is not None:
            start, stop = sequences.start, sequences.stop
            if last[3] == start and last[4] is by:
                last[3] = stop
                return
            if last[2] == start and last[3] == stop and self._joins(last, by):
                return
        self._settled = event = [SETTLED, now, sequences.start, sequences.stop, by, None]
        events = self.events
        events.append(event)
        if len(events) >= self.granted_count:
            self.is_full()

    def _joins(self, event: list[Any], who: str) -> bool:
        """Add a consumer to this open event; return False if the event is full."""
        names = event[4]
        if type(names) is not str:
            if len(names) == WHO_MAX:
                return False
            names.append(who)
            return True
        self._budget.list_open(self, _WHO_ELEMENTS)
        if not self.events:
            return False  # the call has sealed the event
        event[4] = [names, who]
        return True

    def _begin_moment(self, now: float) -> None:
        """Begin a new moment and close the open events."""
        self._until_seconds = now + MOMENT_SECONDS
        self._accepted = self._sent = self._settled = None

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        self._add_listed(REFUSED if refused else RETURNED_SEEN if attempted else RETURNED, sequences, by)

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        self._add_listed(_OF_FATE[fate], sequences, detail)

    def missed(self, by: str, first: int, end: int) -> None:
        if first < end:
            self._add((MISSED, self._clock(), first, end, by, None))

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        kind, seconds = PARKED if fate is Fate.PARKED else TURNED_AWAY, self._clock()
        number, count = messages[0].number, len(messages)
        if messages[-1].number - number == count - 1:
            self._add((kind, seconds, number, number + count, detail, None))
        else:
            numbers = sorted([message.number for message in messages])
            self._add((kind, seconds, numbers[0], numbers[-1] + 1, detail, numbers))

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        self._add_listed(STORED_SYNCED if synced else STORED, sequences, "")

    def paged(self, first: int, end: int, *, paged_in: bool) -> None:
        self._add((PAGED_IN if paged_in else PAGED_OUT, self._clock(), first, end, "", None))
        if paged_in and first < self._restored_end:
            self._recall(first)

    def _recall(self, first: int) -> None:
        """Record the numbers of the earlier run's block that begins at `first`."""
        assert self.queue is not None, "it has just read this"
        block = self.queue.elements.block(first >> BLOCK_BITS)
        if block is None or block.outside is not None:
            return
        numbers = [-1 if message is None else message.number for message in block.elements]
        if max(numbers, default=-1) < 0:
            return
        end, lowest = block.base + len(numbers), numbers[0]
        if lowest >= 0 and numbers == list(range(lowest, lowest + len(numbers))):
            self._add((RECALLED, self._clock(), block.base, end, "", lowest))
        else:
            self._budget.list_open(self, len(numbers))
            self._add((RECALLED, self._clock(), block.base, end, "", numbers))

    def restored(self, end: int) -> None:
        if end:
            self._restored_end = end
            self._add((RESTORED, self._clock(), 0, end, "", None))

    def closed(self, reason: str) -> None:
        if self.queue is not None:
            self._add((CLOSED, self._clock(), 0, UNBOUNDED, reason, None))
            self.queue = None
            self._trails.ended(self)

    # ------------------------------------------------------------------ the ring

    def _add(self, event: Event) -> None:
        self._accepted = self._sent = self._settled = None  # later batches happened after this event
        events = self.events
        events.append(event)
        if len(events) >= self.granted_count:
            self.is_full()

    def _add_listed(self, kind: int, sequences: SequenceOf[int], who: str) -> None:
        """Add an event about the sequences: a range, a list with gaps, or a list that does not ascend."""
        if not sequences:
            return
        if type(sequences) is range:
            first, last = sorted((sequences[0], sequences[-1]))
        else:
            first, last = min(sequences), max(sequences)
        if last - first == len(sequences) - 1:
            self._add((kind, self._clock(), first, last + 1, who, None))
        else:
            # A copy, as the caller may change its list. Separate elements cost work for each anyway.
            self._budget.list_open(self, len(sequences))
            self._add((kind, self._clock(), first, last + 1, who, list(sequences)))

    def bounds_of(self, columns: list[tuple[Any, ...]]) -> tuple[int, int, int, int]:
        found, _seconds, lows, highs, _who, extras = columns
        numbers_first, numbers_end = NOTHING
        if ACCEPTED in found:
            accepted = [place for place, kind in enumerate(found) if kind == ACCEPTED]
            numbers_first = min([extras[place] for place in accepted])
            numbers_end = max([extras[place] + highs[place] - lows[place] for place in accepted])
        if RECALLED in found:
            for place, kind in enumerate(found):
                if kind == RECALLED:
                    extra = extras[place]
                    known = [extra, extra + highs[place] - lows[place] - 1] if type(extra) is int else extra
                    numbers_first = min(numbers_first, *[number for number in known if number >= 0])
                    numbers_end = max(numbers_end, max(known) + 1)
        if min(found) >= BY_SEQUENCE:
            return min(lows), max(highs), numbers_first, numbers_end
        first, end = NOTHING
        for kind, low, high in zip(found, lows, highs, strict=True):
            if kind < BY_SEQUENCE:
                numbers_first, numbers_end = min(numbers_first, low), max(numbers_end, high)
            else:
                first, end = min(first, low), max(end, high)
        return first, end, numbers_first, numbers_end

    def forgotten(self) -> None:
        if self.queue is None and not self.parts:
            self._trails.forget(self)


def _cuts(messages: list[Message], start: int, stop: int) -> list[int]:
    """Return the places between `start` and `stop` where the number does not follow that of the message before."""
    return [p for p in range(start + 1, stop) if messages[p].number != messages[p - 1].number + 1]


class Correlations(Ring):
    """Correlation ids of message numbers: (number, seconds, end, correlation id)."""

    __slots__ = ()

    def note(self, number: int, count: int, correlation_id: str, seconds: float) -> None:
        """Record the correlation id of `count` messages from `number` on."""
        events = self.events
        events.append((number, seconds, number + count, correlation_id))
        if len(events) >= self.granted_count:
            self.is_full()

    def bounds_of(self, columns: list[tuple[Any, ...]]) -> tuple[int, int, int, int]:
        return (*NOTHING, min(columns[0]), max(columns[2]))

    def numbers_of(self, correlation_id: str) -> Iterator[list[int]]:
        """Yield the numbers of messages with this id, the latest first; one list per step of bounded work."""
        needle = correlation_id.encode(errors="surrogatepass")
        yield self._among(reversed(self.events), correlation_id)
        for part in reversed(list(self.parts)):
            yield self._among(reversed(part.events()), correlation_id) if needle in part.data else []

    @staticmethod
    def _among(events: Iterator[Event], correlation_id: str) -> list[int]:
        return [
            number
            for first, _seconds, end, other in events
            if other == correlation_id
            for number in range(end - 1, max(first, end - GRANT_MAX) - 1, -1)
        ]

    def of_number(self, number: int) -> str | None:
        """Return the correlation id of this message; None: it had none, or it was forgotten."""
        for events in self.all_events(lambda part: part.numbers_first <= number < part.numbers_end):
            for first, _seconds, end, correlation_id in events:
                if first <= number < end:
                    return str(correlation_id)
        return None


class Trails:
    """Trails of one broker's messages."""

    def __init__(self, *, bytes_max: int, keep_seconds: float, clock: Callable[[], float]) -> None:
        """Take `bytes_max` for all events, and `keep_seconds`, their maximum age."""
        self.budget = Budget(bytes_max, keep_seconds, clock)
        self.correlations = Correlations(self.budget)
        self._live: dict[QueueTrail, None] = {}
        self._ended: dict[QueueTrail, None] = {}
        """Trails of deleted queues, removed when all their events are forgotten."""

    def observer_of(self, queue: MessageQueue) -> QueueTrail:
        """Return the trail of a new queue."""
        trail = QueueTrail(self, queue)
        self._live[trail] = None
        return trail

    def came(self, number: int, count: int, correlation_id: str) -> None:
        """Record the correlation id of new messages. Ids beyond CORRELATION_LENGTH_MAX are not recorded."""
        if len(correlation_id) <= CORRELATION_LENGTH_MAX:
            self.correlations.note(number, count, correlation_id, self.budget.clock())

    def queue_trails(self) -> list[QueueTrail]:
        """Return all trails, also of deleted queues."""
        return [*self._live, *self._ended]

    def trail_of(self, queue: object) -> QueueTrail | None:
        """Return the trail of this queue."""
        return next((trail for trail in self._live if trail.queue is queue), None)

    def ended(self, trail: QueueTrail) -> None:
        """Note that the trail's queue was deleted."""
        self._live.pop(trail, None)
        self._ended[trail] = None
        trail.seal(give_back=True)

    def forget(self, trail: QueueTrail) -> None:
        """Remove a trail without events."""
        self._ended.pop(trail, None)

    def configure(self, *, bytes_max: int, keep_seconds: float) -> None:
        """Set other limits."""
        self.budget.resize(bytes_max, keep_seconds)
