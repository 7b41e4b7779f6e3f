"""Answers put together from events on request.

A message's number selects the runs it may have been in; the run gives its sequence in that queue; the sequence selects
the queue's other events about it. Events about other messages are skipped. All work goes in bounded steps, as in
locating.py.

An answer is *complete* if it begins with the message's arrival; later events are never forgotten before earlier ones.
An answer without the beginning still tells where the message is, if it is in a queue.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final, Protocol, TypeVar

import attrs

from ...flow.graph import sorted_in_steps
from ..message import Message
from ..queue import MessageQueue
from ..topic import Topic
from . import recording as kinds
from .locating import ElementPlace, Elements, Step, locate, place_of
from .recording import QueueTrail, Trails
from .rings import Event

EVENTS_PER_STEP: Final = 2048
TOLD_PER_STEP: Final = 512
"""Entries of one message per step."""

ENTRIES_MAX: Final = 400
"""Maximum entries per message: a topic with ten thousand subscribers makes twice as many. The first and the last ones
are returned.
"""

T = TypeVar("T")
Steps = Generator[Step, Elements, T]


@attrs.frozen
class TrailEntry:
    """One event in the history of a message."""

    seconds: float
    """Time by the broker's monotonic clock."""
    what: str
    """Kind: accepted, parked, stored, paged_out, paged_in, sent, acked, nacked, returned, expired, dropped,
    dead_lettered, moved or consumed.
    """
    where: str
    """Name of the queue."""
    detail: str


@attrs.frozen
class Found:
    """Known history of one message."""

    number: int
    correlation_id: str | None
    destination: str
    """Present or last queue."""
    entries: tuple[TrailEntry, ...]
    omitted_count: int
    """Number of entries left out in the middle."""
    complete: bool
    """Whether the history begins with the message's arrival."""
    place: ElementPlace | None
    """Present place; None: in no queue."""
    words: str
    """Outcome, in a sentence."""


class Surroundings(Protocol):
    """Port of a search to data outside the trails."""

    def queues(self) -> Iterable[MessageQueue]:
        """Return all queues."""

    def holder_of(self, queue: MessageQueue, sequence: int) -> Steps[str | None]:
        """Return, in steps, the consumer that holds this element unsettled."""

    def correlation_of(self, message: Message) -> str | None:
        """Return the correlation id that the sender set."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds, as in due dates."""


@attrs.define
class _Home:
    """A queue that holds or held the message, and the events there."""

    trail: QueueTrail | None
    queue: MessageQueue | None
    """Queue; None: deleted."""
    name: str
    sequence: int
    entries: list[TrailEntry] = attrs.field(factory=list)
    accepted: bool = False
    sent_to: dict[str, bool] = attrs.field(factory=dict)
    """Consumers with an unsettled delivery, and whether the delivery needs no ACK."""
    sent_count: int = 0
    settled_by: set[str] = attrs.field(factory=set)
    last: str = ""
    """Last final event."""
    reason: str = ""
    """Reason for giving the message up."""


class TrailSearch:
    """Search in the trails. Its methods are generators of steps; `run` executes them at once."""

    __slots__ = ("_clock", "_surroundings", "_trails")

    def __init__(self, trails: Trails, surroundings: Surroundings) -> None:
        self._trails = trails
        self._surroundings = surroundings
        self._clock = trails.budget.clock

    # ------------------------------------------------------------------ requests

    def by_number(self, number: int) -> Steps[Found | None]:
        """Return the history of the message with this number; None: nothing is known."""
        self._trails.budget.forget_old()
        homes, outside = yield from self._sightings(number)
        if not any(home.queue is not None and home.queue.elements.is_alive(home.sequence) for home in homes):
            located = yield from locate(number, self._surroundings.queues())
            if located is not None:
                queue, sequence = located
                homes.append(_Home(self._trails.trail_of(queue), queue, queue.name, sequence))
        for home in homes:
            if home.trail is not None:
                yield from self._follow(home)
        if not homes and not outside:
            return None
        found = yield from self._found(number, homes, outside)
        return found

    def by_correlation(self, correlation_id: str, limit: int) -> Steps[list[Found]]:
        """Return the histories of the latest `limit` messages with this correlation id, in ascending order of
        number.
        """
        numbers: dict[int, None] = {}
        for some in self._trails.correlations.numbers_of(correlation_id):
            numbers.update(dict.fromkeys(some))
            if len(numbers) >= limit:
                break
            yield None
        if len(numbers) < limit:
            yield from self._in_memory(correlation_id, limit, numbers)
        found: list[Found] = []
        for number in sorted(numbers, reverse=True)[:limit]:
            one = yield from self.by_number(number)
            if one is not None:
                found.append(one)
        return found[::-1]

    def _in_memory(self, correlation_id: str, limit: int, numbers: dict[int, None]) -> Steps[None]:
        """Add messages in memory whose correlation id was forgotten or never recorded."""
        correlation_of = self._surroundings.correlation_of
        for queue in self._surroundings.queues():
            for index in queue.elements.block_indices():
                block = queue.elements.block(index)
                if block is None or block.outside is not None:
                    continue
                for message in block.elements:
                    if message is not None and correlation_of(message) == correlation_id:
                        numbers[message.number] = None
                        if len(numbers) >= limit:
                            return
                yield None
            yield None

    # ------------------------------------------------------------------ events

    def _sightings(self, number: int) -> Steps[tuple[list[_Home], list[TrailEntry]]]:
        """Return the queues that took the message, and the events before them."""
        homes: list[_Home] = []
        outside: list[TrailEntry] = []
        looked_count = 0
        for trail in self._trails.queue_trails():
            for events in trail.all_events(lambda part: part.numbers_first <= number < part.numbers_end):
                for event in events:
                    looked_count += 1
                    kind, _seconds, first, end, _who, extra = event
                    if kind == kinds.ACCEPTED:
                        sequence = first + number - extra
                        if first <= sequence < end:
                            homes.append(_Home(trail, _queue_of(trail), trail.queue_name, sequence))
                    elif kind == kinds.RECALLED:
                        found = _recalled(event, number)
                        if found is not None and not any(it.trail is trail and it.sequence == found for it in homes):
                            homes.append(_Home(trail, _queue_of(trail), trail.queue_name, found))
                    elif kind < kinds.BY_SEQUENCE and first <= number < end and (extra is None or number in extra):
                        outside.append(_outside_entry(trail, event))
                if looked_count >= EVENTS_PER_STEP:
                    looked_count = 0
                    yield None
            looked_count += 8
        return homes, outside

    def _follow(self, home: _Home) -> Steps[None]:
        """Collect the message's events in this queue."""
        sequence, trail = home.sequence, home.trail
        assert trail is not None, "it was asked for"
        before = self._clock() - self._trails.budget.keep_seconds
        told_count = 0
        for events in trail.all_events(lambda part: part.first <= sequence < part.end):
            for event in events:
                kind, seconds, first, end, who, extra = event
                if (
                    kinds.BY_SEQUENCE <= kind != kinds.RECALLED
                    and first <= sequence < end
                    and seconds >= before
                    and (extra is None or kind == kinds.ACCEPTED or sequence in extra)
                ):
                    for each in (who,) if type(who) is str else who:
                        _tell(home, kind, seconds, each)
                        told_count += 1
                    if told_count >= TOLD_PER_STEP:
                        told_count = 0
                        yield None
            yield None

    # ------------------------------------------------------------------ the answer

    def _found(self, number: int, homes: list[_Home], outside: list[TrailEntry]) -> Steps[Found]:
        homes.sort(key=_first_seconds)
        entries = outside
        for home in homes:
            entries += home.entries
        entries = yield from sorted_in_steps(entries, _moment_of)
        omitted_count = max(0, len(entries) - ENTRIES_MAX)
        if omitted_count:
            entries = entries[: ENTRIES_MAX // 4] + entries[omitted_count + ENTRIES_MAX // 4 :]
        place, at_home = None, None
        for home in homes:
            if home.queue is not None and place is None:
                holder = next(reversed(home.sent_to), None)
                place = yield from place_of(home.queue, home.sequence, holder, self._surroundings.holder_of)
                at_home = home if place is not None else None
        correlation_id = self._trails.correlations.of_number(number)
        if at_home is not None and at_home.queue is not None:
            message = at_home.queue.elements.get(at_home.sequence)
            if message is not None and correlation_id is None:
                correlation_id = self._surroundings.correlation_of(message)
        last = at_home or (max(homes, key=_last_seconds) if homes else None)
        return Found(
            number,
            correlation_id,
            last.name if last is not None else entries[-1].where,
            tuple(entries),
            omitted_count,
            # The queue that parked it last accepted it later, if at all, and then that is known, too.
            complete=any(home.accepted for home in homes) or not homes,
            place=place,
            words=_words_of_end(last, entries)
            if place is None
            else _words_of_place(place, at_home, self._clock(), self._surroundings.now_ms()),
        )


def run(steps: Steps[T]) -> T:
    """Run all steps at once, without reading the disk."""
    try:
        next(steps)
        while True:
            steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _queue_of(trail: QueueTrail) -> MessageQueue | None:
    return trail.queue if isinstance(trail.queue, MessageQueue) else None


def _recalled(event: Event, number: int) -> int | None:
    """Return the message's sequence in a block read back; None: it is not in that block."""
    _kind, _seconds, first, end, _who, extra = event
    if type(extra) is not int:
        return first + extra.index(number) if number in extra else None
    return first + number - extra if extra <= number < extra + end - first else None


def _moment_of(entry: TrailEntry) -> float:
    """Return the rank of a moment. Within one moment queues stay in order: a message is accepted by the next queue
    slightly before it leaves the last one.
    """
    return round(entry.seconds / kinds.MOMENT_SECONDS)


def _first_seconds(home: _Home) -> float:
    return home.entries[0].seconds if home.entries else 0.0


def _last_seconds(home: _Home) -> float:
    return home.entries[-1].seconds if home.entries else 0.0


def _outside_entry(trail: QueueTrail, event: Event) -> TrailEntry:
    kind, seconds, _first, _end, who, _extra = event
    what = "parked" if kind == kinds.PARKED else "dropped"
    return TrailEntry(seconds, what, trail.queue_name, str(who))


def _tell(home: _Home, kind: int, seconds: float, who: str) -> None:
    """Add the text of an event about the message."""
    what, detail = _PLAIN.get(kind, ("", ""))
    is_topic = isinstance(home.queue, Topic)
    match kind:
        case kinds.ACCEPTED:
            home.accepted = True
            detail = f"from {who}" if who else "from the broker itself"
        case kinds.SENT | kinds.SENT_AUTO:
            home.sent_count += 1
            home.sent_to[who] = kind == kinds.SENT_AUTO
            again = f", for the {_ordinal(home.sent_count)} time" if home.sent_count > 1 and not is_topic else ""
            detail = f"to {who}{again}"
        case kinds.SETTLED:
            auto = home.sent_to.pop(who, False)
            what, detail = ("consumed", f"taken by {who}, which needs no ACK") if auto else ("acked", f"by {who}")
            home.settled_by.add(who)
            home.last = f"was {what}: {detail}" if auto else f"was acknowledged by {who}"
        case kinds.RETURNED:
            home.sent_to.pop(who, None)
            detail = f"by {who}, which it never reached"
        case kinds.RETURNED_SEEN:
            home.sent_to.pop(who, None)
            detail = f"by {who}, which may have seen it: its connection ended"
        case kinds.REFUSED:
            home.sent_to.pop(who, None)
            detail = f"by {who}"
        case kinds.MISSED:
            if who in home.settled_by:
                return  # delivered before
            what, detail = "dropped", f"for {who}, which was too slow"
            home.last = f"was dropped {detail}"
        case kinds.GIVEN_UP:
            home.reason = who
            detail = f"dead-lettered ({_REASONS.get(who, who)}), on its way to the dead-letter queue"
        case kinds.DEAD_LETTERED:
            if home.entries and home.entries[-1].what == "dead_lettered":
                del home.entries[-1]  # it has arrived there
            reason = f", for {_REASONS.get(home.reason, home.reason)}" if home.reason else ""
            detail = f"to {who}{reason}"
            home.last = f"went {detail}"
        case kinds.EXPIRED | kinds.DROPPED | kinds.MOVED:
            detail = f"to {who}" if kind == kinds.MOVED else str(who)
            home.last = {kinds.EXPIRED: "expired", kinds.DROPPED: "was dropped", kinds.MOVED: "was moved"}[kind]
            home.last += f" {detail}" if kind == kinds.MOVED else f": {detail}" if detail else ""
        case kinds.CLOSED:
            if home.last and not home.sent_to:
                return  # it had left before
            detail = f"the queue was deleted: {who}"
            home.last = f"was dropped: {detail}"
    home.entries.append(TrailEntry(seconds, what, home.name, detail))


_PLAIN: Final = {
    kinds.ACCEPTED: ("accepted", ""),
    kinds.SENT: ("sent", ""),
    kinds.SENT_AUTO: ("sent", ""),
    kinds.RETURNED: ("returned", ""),
    kinds.RETURNED_SEEN: ("returned", ""),
    kinds.REFUSED: ("nacked", ""),
    kinds.EXPIRED: ("expired", ""),
    kinds.DROPPED: ("dropped", ""),
    kinds.GIVEN_UP: ("dead_lettered", ""),
    kinds.DEAD_LETTERED: ("dead_lettered", ""),
    kinds.MOVED: ("moved", ""),
    kinds.STORED: ("stored", "written; the disk has not confirmed it yet"),
    kinds.STORED_SYNCED: ("stored", "written and synced"),
    kinds.PAGED_OUT: ("paged_out", "its block left memory"),
    kinds.PAGED_IN: ("paged_in", "its block is in memory again"),
    kinds.RESTORED: ("stored", "an earlier run of the broker left it here"),
    kinds.CLOSED: ("dropped", ""),
}

_REASONS: Final = {
    "redeliveries": "it was refused too often",
    "rejected": "it was rejected permanently",
    "expired": "it was past its date",
    "full": "it had to make room",
}


def _ordinal(count: int) -> str:
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"


def _words_of_place(place: ElementPlace, home: _Home | None, now_seconds: float, now_ms: int) -> str:
    where = f"It is in {place.queue_name}, {'on the disk' if place.on_disk else 'in memory'}"
    if place.needed_by_count:
        names = ", ".join(place.needed_by)
        more = f" and {place.needed_by_count - len(place.needed_by)} more" if place.needed_by_count > 20 else ""
        return f"{where}; not yet settled by {names}{more}."
    if place.holder is not None:
        since = next(
            (
                f" since {max(0.0, now_seconds - entry.seconds):.0f} s"
                for entry in reversed(home.entries if home is not None else [])
                if entry.what == "sent"
            ),
            "",
        )
        auto = home is not None and home.sent_to.get(place.holder, False)
        waits = "on its way to" if auto else "not acknowledged by"
        return f"{where}; {waits} {place.holder}{since}."
    if home is not None and home.entries and home.entries[-1].what == "dead_lettered":
        return f"{where}; {home.entries[-1].detail}."
    if place.due_at_ms > now_ms:
        return f"{where}; it waits for its time, in {(place.due_at_ms - now_ms) / 1000:.0f} s."
    ahead = f"{place.ahead_count} ahead of it" if place.ahead_count else "the first one"
    return f"{where}; it waits for a consumer, {ahead}."


def _words_of_end(home: _Home | None, entries: list[TrailEntry]) -> str:
    if home is None:
        last = entries[-1]
        if last.what == "parked":
            return f"It waits in front of {last.where}: {last.detail}."
        return f"It never was in {last.where}: {last.detail}."
    if home.last:
        return f"It {home.last}."
    return f"It has left {home.name}; how is forgotten."
