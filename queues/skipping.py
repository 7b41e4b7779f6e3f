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
from typing import Final

from queues.blocks import NOTHING_GONE, Gone
from queues.cursors import TrackingCursor
from queues.durables import DurableReader
from queues.environment import QueueEnvironment
from queues.leaving import UNLIMITED_BYTES
from queues.policy import QueuePolicy
from queues.ranges import RangeSet
from queues.readers import ReaderQueue
from queues.selectors.selector import Selection
from queues.slices import Slice, fit

LOOK_COUNT_MIN: Final = 16
"""Messages that a reader with little credit looks at together."""

PINNED_COUNT: Final = 256
"""Messages passed over behind one that is held, after which is looked whether anybody needs them. Where a look takes
more steps than that, as many as those: it never costs more than the passing itself."""

PINNED_SHARE: Final = 8
"""Or this part of the topic's memory, when half of that is in use."""

VISIT_COST: Final = 5
"""Of the budget, beside the messages: ten thousand readers of one message are not one dispatch."""

PASS_COUNT: Final = 128
"""Messages that a reader without credit passes at once."""

LOOKS_PER_COST: Final = 8
"""Of a dispatch's budget: so many messages passed over cost as much as one that is handed over."""


class SkippingQueue(ReaderQueue):
    """Not for direct use."""

    def __init__(
        self,
        name: str,
        policy: QueuePolicy,
        environment: QueueEnvironment,
        *,
        priority: int = 4,
        destination: str | None = None,
        lasting: bool = True,
    ) -> None:
        super().__init__(name, policy, environment, priority=priority, destination=destination, lasting=lasting)
        self._pinned_count = self._pinned_bytes = 0
        """What was passed over behind something that is held, since somebody looked."""
        self._look_count = PINNED_COUNT
        """After so many of these the next look is due."""
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
                self._pinned_count += passed_count
                self._pinned_bytes += looked.charge_bytes
                if self._pinned_count >= self._look_count or self._pinned_much():
                    self._let_go_of_pinned()

    def _pinned_much(self) -> bool:
        """It may be a good part of the memory, and that is needed. (Of many readers each has counted the same.)"""
        memory_bytes = self.policy.memory_bytes
        return (
            self._pinned_bytes * PINNED_SHARE >= memory_bytes and self.controller.limiter.used_bytes * 2 >= memory_bytes
        )

    def _let_go_of_pinned(self) -> Gone:
        """Let go of what no reader needs, though one holds something older. Returns what that was. O(n log n) of holes
        in what all readers have settled, and O(elements that go).
        """
        self._pinned_count = self._pinned_bytes = 0
        cursors = self._cursors()
        end = min((cursor.position for cursor in cursors), default=0)
        start = min((cursor.front for cursor in cursors), default=0)
        runs = [run for cursor in cursors for run in cursor.unsettled_below(end)]
        self._look_count = max(PINNED_COUNT, len(cursors) + len(runs))
        needed = RangeSet(runs)
        live_sequences = self.elements.live_sequences
        free = [sequence for first, stop in needed.holes(start, end) for sequence in live_sequences(first, stop)]
        if not free:
            return NOTHING_GONE
        messages = [message for sequence in free if (message := self.elements.get(sequence)) is not None]
        self.elements.remove(free, unread=True)
        if self._shelf is not None:
            self._shelf.settled(free)
        gone_bytes = sum([len(message.wire) for message in messages]) + self.elements.outside_gone_bytes
        self._overdue.difference_update(free)
        self._gone((len(free), gone_bytes))
        return len(free), gone_bytes

    def _pass_ahead(
        self, cursor: TrackingCursor, selection: Selection, count_max: int
    ) -> tuple[Slice | None, bool, int]:
        """Move a cursor that nobody may read with now up to the next message that its reader takes, over `count_max` at
        most. Returns what it passed, whether it has come to the end, and what that cost.
        """
        selector = selection.selector
        part, position = self.elements.read(cursor.position, min(count_max, selector.looks_max), UNLIMITED_BYTES)
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
        messages, sequences = part.messages[: places.stop], part.sequences[: places.stop]
    else:
        messages, sequences = [part.messages[place] for place in places], [part.sequences[place] for place in places]
    wire_bytes = sum([len(message.wire) for message in messages])
    return Slice(messages, sequences, wire_bytes, part.attempts, returned=part.returned)
