"""Readers of a topic with a selector: what they don't take is settled for them as their cursor comes by.

It takes no window, holds no lead up and is no lag: also a reader without credit, and a durable subscription whose
consumer is away, moves on over what it does not take, up to the next message that it does.

An element leaves a topic when all fronts have passed it, so one that is held for long would keep all that its reader
passes over behind it. Such elements, which no reader needs, are let go by name: now and then (PINNED_COUNT), and before
anything else has to make room.

Base of the topic, which says when. Readers with the same selector at one place share the slice of what they take.
Source: issue 6.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Unpack

from ..flow.bounds import UNBOUNDED
from .blocks import NOTHING_GONE, Gone
from .cursors import TrackingCursor
from .durables import DurableReader
from .environment import QueueEnvironment
from .message import wire_bytes_of
from .policy import QueuePolicy
from .queue import QueueOptions
from .ranges import RangeSet
from .readers import ReaderQueue
from .selectors.selector import Selection
from .slices import VISIT_COST, Slice, fit

LOOK_COUNT_MIN: Final = 16
"""Messages that a reader with little credit looks at together."""

PINNED_COUNT: Final = 256
"""Messages passed over behind one that is held, after which is looked whether anybody needs them. Where a look takes
more steps than that, as many as those: it never costs more than the passing itself."""

PINNED_SHARE: Final = 8
"""Or this part of the topic's memory, when half of that is in use."""

LOOKED_AT_ONCE: Final = 64
"""Readers that are asked in one dispatch what they need."""

RUNS_PER_STEP: Final = 16
FREED_AT_ONCE: Final = 256
FREED_PER_STEP: Final = 8
"""What one of them has settled, and what goes, in steps that take about as long as to ask one reader."""

PASS_COUNT: Final = 128
"""Messages that a reader without credit passes at once."""

LOOKS_PER_COST: Final = 8
"""Of a dispatch's budget: so many messages passed over cost as much as one that is handed over."""


class SkippingQueue(ReaderQueue):
    """Not for direct use."""

    def __init__(
        self, name: str, policy: QueuePolicy, environment: QueueEnvironment, **options: Unpack[QueueOptions]
    ) -> None:
        super().__init__(name, policy, environment, **options)
        self.pinned_count = self._pinned_bytes = 0
        """What was passed over behind something that is held, since somebody looked."""
        self._look_count = PINNED_COUNT
        """After so many of these the next look is due."""
        self._look: Iterator[list[int]] | None = None
        """A look at what is pinned is under way."""
        self._away: OrderedDict[DurableReader, None] = OrderedDict()
        """Readers with a selector whose consumer is away, and that may pass something."""
        self._selecting_away: dict[DurableReader, None] = {}
        """All readers with a selector whose consumer is away."""

    def _select(
        self, cursor: TrackingCursor, selection: Selection, part: Slice, room: tuple[int, int]
    ) -> tuple[Slice, Slice | None]:
        """Returns all of this, which the cursor has taken, up to where its reader has to stop; and what of that the
        reader takes (None: nothing). The rest lies ahead again, and what is not taken is settled.
        """
        room_count, room_bytes = room
        selector, messages = selection.selector, part.messages
        known = part.selected
        if known is not None and known[0] is selector and len(known[1]) <= room_count:
            places = known[1]
            chosen = part if len(places) == len(part.messages) else known[2]
            if chosen is None or chosen.wire_bytes <= room_bytes or len(places) == 1:
                self._pass_over(cursor, selection, part, places)
                return part, chosen
        places = selector.places(messages)
        looked = part
        if places:
            count, _wire_bytes = fit([messages[place].wire for place in places[:room_count]], room_bytes)
            if count < len(places):
                stop = places[count]
                places = places[:count]
                looked = _part_of(part, range(stop))
                if part.returned:
                    cursor.give_back(part.sequences[stop:], attempted=False)
                else:
                    cursor.position = part.sequences[stop]
        if len(places) == len(looked.messages):
            chosen = looked
        else:
            chosen = _part_of(part, places) if places else None
        if looked is part:
            # Not the slice itself: it would hold its messages for longer than anybody needs them.
            part.selected = selector, places, None if chosen is part else chosen
        self._pass_over(cursor, selection, looked, places)
        return looked, chosen

    def _pass_over(self, cursor: TrackingCursor, selection: Selection, looked: Slice, places: list[int]) -> None:
        """Settle all of this but what lies at these places."""
        passed_count = len(looked.messages) - len(places)
        if passed_count:
            selection.passed_count += passed_count
            kept = {looked.sequences[place] for place in places}
            sequences = looked.sequences if not kept else [s for s in looked.sequences if s not in kept]
            self._gone(cursor.settle(sequences))
            if cursor.front < sequences[0]:
                self.pinned_count += passed_count
                self._pinned_bytes += looked.charge_bytes
                if self.pinned_count >= self._look_count or self._pinned_much():
                    self._begin_look()  # and the dispatch goes on with it: one look for all that are passed over

    def _pinned_much(self) -> bool:
        """It may be a good part of the memory, and that is needed. (Of many readers each has counted the same.)"""
        memory_bytes = self.policy.memory_bytes
        return (
            self._pinned_bytes * PINNED_SHARE >= memory_bytes and self.controller.limiter.used_bytes * 2 >= memory_bytes
        )

    def looking_for_pinned(self) -> Iterator[Gone]:
        """Let go of what no reader needs, though one holds something older; in steps of whoever asks."""
        yield from self._rest_of_look()  # it began before the latest was passed over
        if self.pinned_count:
            self._begin_look()
            yield from self._rest_of_look()

    def _rest_of_look(self) -> Iterator[Gone]:
        while self._look is not None:
            self._look_on(1)
            yield NOTHING_GONE

    @property
    def pins(self) -> bool:
        """It may hold what no reader needs."""
        return self.pinned_count > 0 or self._look is not None

    def _begin_look(self) -> None:
        """Look for what no reader needs, unless that is under way. The next dispatch goes on with it."""
        if self._look is None:
            self.pinned_count = self._pinned_bytes = 0
            self._look = self._looking()
            self.context.request_dispatch()

    def _look_on(self, count: int) -> None:
        """Go on with the look, so many steps."""
        look, gone_count, gone_bytes = self._look, 0, 0
        while count > 0 and look is not None:
            free = next(look, None)
            if free is None:
                look = self._look = None
                break
            count -= 1
            if free:
                count -= len(free) // FREED_PER_STEP
                gone_count += len(free)
                gone_bytes += self._let_go_of(free)
        if look is not None:
            self.context.request_dispatch()
        if gone_count:
            self._gone((gone_count, gone_bytes))

    def _let_go_of(self, free: list[int]) -> int:
        """No reader needs these. Returns their bytes."""
        get, outside_bytes = self.elements.get, self.elements.outside_gone_bytes
        wires = [len(message.wire) for sequence in free if (message := get(sequence)) is not None]
        self.elements.remove(free, unread=True)
        if self._storage is not None:
            self._storage.settled(free)
        self._overdue.difference_update(free)
        return sum(wires) + self.elements.outside_gone_bytes - outside_bytes

    def _looking(self) -> Iterator[list[int]]:
        """Ask all readers what they need of what is there now, one after the other; then say what nobody does, some at
        a time. What one has no need for it will never need again, and who comes meanwhile begins behind all that, or
        with the beginning, which is asked first. O(holes in what each of them has settled).
        """
        end, steps_count = self.elements.next_sequence, 0
        lowest, needed = end, RangeSet()
        # All from the lowest on is needed, and more.
        for cursor in self._cursors_now():
            steps_count += 1
            if cursor.front < lowest:
                settled = cursor.settled_above()
                if not settled:
                    lowest = cursor.front
                    if self.elements.first_live(0) >= lowest:
                        break  # all that is there is needed
                start = cursor.front
                for number, (first, stop) in enumerate(settled, 1):
                    if first >= lowest:
                        break
                    needed.add(start, first)
                    start = stop
                    if number % RUNS_PER_STEP == 0:
                        steps_count += 1
                        yield []
                if settled:
                    needed.add(start, lowest)
            yield []
        self._look_count = max(PINNED_COUNT, steps_count)
        for first, stop in needed.holes(self.elements.first_live(0), lowest):
            for start in range(first, stop, FREED_AT_ONCE):
                yield self.elements.live_sequences(start, min(stop, start + FREED_AT_ONCE))

    def _cursors_now(self) -> Iterator[TrackingCursor]:
        """All that are there now, the beginning first. Some may be gone when it comes to them, and are left out."""
        subscriptions, readers = list(self.subscriptions.values()), list(self.readers.values())
        if self.beginning is not None:
            yield self.beginning
        for subscription in subscriptions:
            if subscription.durable_id is None and subscription.cursor is not None and not subscription.closed:
                yield subscription.cursor
        for reader in readers:
            if reader.durable_id in self.readers:
                yield reader.cursor

    def _pass_ahead(
        self, cursor: TrackingCursor, selection: Selection, count_max: int
    ) -> tuple[Slice | None, bool, int]:
        """Move a cursor that nobody may read with now up to the next message that its reader takes, over `count_max` at
        most. Returns what it passed, whether it has come to the end, and what that cost.
        """
        selector = selection.selector
        part, position = self.elements.read(cursor.position, min(count_max, selector.looks_max), UNBOUNDED)
        if part is None:
            if self.elements.missing is not None:
                return None, False, 1
            cursor.position = max(cursor.position, position)
            return None, True, 1
        before_units = selector.spent_units
        if selector.takes(part.messages[0]):
            return None, False, 1 + selector.cost_since(before_units)
        place = next(iter(selector.places(part.messages)), None)
        cost = 1 + len(part.messages) // LOOKS_PER_COST + selector.cost_since(before_units)
        passed = part if place is None else _part_of(part, range(place))
        cursor.position = part.end if place is None else part.sequences[place]
        self._pass_over(cursor, selection, passed, [])
        return passed, False, cost

    def _pass_for_those_away(self, count_max: int, budget: int) -> int:
        """Durable subscriptions with a selector whose consumer is away pass what they do not take, in turns. Returns
        what that cost; those that have more to pass stay in `_away`.
        """
        cost = 0
        for _turn in range(len(self._away)):
            if cost >= budget:
                break
            reader = next(iter(self._away))
            assert reader.selection is not None, "only those are there"
            passed, _at_end, one_cost = self._pass_ahead(reader.cursor, reader.selection, count_max)
            cost += VISIT_COST + one_cost
            if passed is not None:
                self._away.move_to_end(reader)
                self._reader_moved(reader)
            else:
                del self._away[reader]  # it stands before one that it takes, or has come to the end
        if self._away:
            self.context.request_dispatch()
        return cost

    def remove_reader(self, durable_id: int) -> None:
        reader = self.readers.get(durable_id)
        if reader is not None:
            self._away.pop(reader, None)
            self._selecting_away.pop(reader, None)
        super().remove_reader(durable_id)

    def _may_select_away(self, durable_id: int) -> None:
        """A consumer of this durable subscription has gone."""
        reader = self.readers.get(durable_id)
        if reader is not None and not reader.subscriptions and reader.selection is not None:
            self._selecting_away[reader] = None


def _part_of(part: Slice, places: range | list[int]) -> Slice:
    """These places of a slice, as a slice."""
    if isinstance(places, range):
        return part.head(places.stop)
    messages, sequences = [part.messages[place] for place in places], [part.sequences[place] for place in places]
    wire_bytes = wire_bytes_of(messages)
    return Slice(messages, sequences, wire_bytes, part.attempts, returned=part.returned)
