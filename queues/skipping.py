"""Skipping: messages that readers of a topic with a selector don't take are settled for them as their cursor passes.

Skipping uses no window, does not hold up the lead and is no lag: a reader without credit, too, and a durable
subscription whose consumer is away, moves over messages that it does not take, up to the next one that it does. Readers
with the same selector at one position share the slice of selected messages.

Messages passed over behind one that is held are pinned (pinned.py).

Source: issue 6.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from typing import Final

from ..flow.bounds import UNBOUNDED
from .chores import Chores
from .cursors import TrackingCursor
from .durables import DurableReader
from .message import wire_bytes_of
from .pinned import Pinned
from .queue import MessageQueue
from .readers import Readers
from .selectors.selector import LOOKS_PER_COST, Selection
from .slices import FAN_OUT_COUNT, VISIT_COST, Slice, fit
from .subscription import Subscription

PASS_COUNT: Final = 128
"""Messages that a reader without credit passes at once."""


class Skipping:
    """The readers of one topic with a selector.

    Attributes:
        away: durable subscriptions whose consumer is away. Plain, because the hot path reads it.
    """

    __slots__ = ("_chores", "_elements", "_pinned", "_queue", "_readers", "_seeking", "away")

    def __init__(self, queue: MessageQueue, readers: Readers, pinned: Pinned, chores: Chores) -> None:
        self._queue = queue
        self._elements = queue.elements
        self._readers = readers
        self._pinned = pinned
        self._chores = chores
        self.away: dict[DurableReader, None] = {}
        self._seeking: OrderedDict[DurableReader, None] = OrderedDict()
        """Readers that may pass elements, the next one first."""

    # ------------------------------------------------------------------ consumers that are away

    def left(self, reader: DurableReader) -> None:
        """Note that a consumer of a durable subscription has gone."""
        if not reader.subscriptions and reader.selection is not None:
            self.away[reader] = None

    def forget(self, reader: DurableReader) -> None:
        """Note that a durable subscription has a consumer, or is gone."""
        self._seeking.pop(reader, None)
        self.away.pop(reader, None)

    def seek(self) -> None:
        """Continue durable subscriptions whose consumer is away: an element came in."""
        self._seeking.update(self.away)
        self._chores.add(self._pass_for_absent)

    def _pass_for_absent(self, budget: int) -> int:
        """Let readers whose consumer is away pass messages that they do not take, in turns. Half of the dispatch is for
        present consumers.
        """
        cost, seeking = 0, self._seeking
        for _turn in range(len(seeking)):
            if cost * 2 >= budget:
                break
            reader = next(iter(seeking))
            assert reader.selection is not None, "only readers with a selector are there"
            passed, _at_end, one_cost = self._pass_ahead(reader.cursor, reader.selection, FAN_OUT_COUNT)
            cost += VISIT_COST + one_cost
            if passed is not None:
                seeking.move_to_end(reader)
                self._readers.moved(reader)
            else:
                del seeking[reader]  # it is before a selected message, or at the end
        if seeking:
            self._chores.add(self._pass_for_absent)
        return cost

    # ------------------------------------------------------------------ consumers that are there

    def pass_without_credit(
        self, subscription: Subscription, cursor: TrackingCursor, selection: Selection
    ) -> tuple[Slice | None, bool, int]:
        """Let a subscription without credit pass messages that it does not take. Returns the elements passed, whether
        it has reached the end, and the cost.
        """
        passed, at_end, cost = self._pass_ahead(cursor, selection, PASS_COUNT)
        if passed is not None and subscription.durable_id is not None:
            self._readers.moved(self._readers.by_id[subscription.durable_id])
        return passed, at_end, cost

    def choose(
        self, subscription: Subscription, cursor: TrackingCursor, selection: Selection, part: Slice, room_count: int,
        room_bytes: int,
    ) -> tuple[Slice, Slice | None, int]:  # fmt: skip
        """Return all of this, which the cursor has taken, up to where its subscription has to stop; what of that the
        subscription takes, within this room (None: nothing); and the cost. The rest lies ahead again, and what is not
        taken is settled.
        """
        selector, count = selection.selector, len(part.messages)
        if subscription.durable_id is not None:
            self._readers.moved(self._readers.by_id[subscription.durable_id])
        known = part.selected
        if known is not None and known[0] is selector and len(known[1]) <= room_count:
            places = known[1]
            chosen = part if len(places) == count else known[2]
            if chosen is None or chosen.wire_bytes <= room_bytes or len(places) == 1:
                if chosen is not part:
                    self._pass_over(cursor, selection, part, places)
                return part, chosen, 1 + count // LOOKS_PER_COST
        before_units = selector.spent_units
        places = selector.places(part.messages)
        looked = self._up_to_room(cursor, part, places, room_count, room_bytes)
        if len(places) == len(looked.messages):
            chosen = looked
        else:
            chosen = _chosen_of(part, places) if places else None
            self._pass_over(cursor, selection, looked, places)
        if looked is part:
            # Not the slice itself: it would hold its messages for longer than they are needed.
            part.selected = selector, places, None if chosen is part else chosen
        return looked, chosen, 1 + len(looked.messages) // LOOKS_PER_COST + selector.cost_since(before_units)

    @staticmethod
    def _up_to_room(cursor: TrackingCursor, part: Slice, places: list[int], room_count: int, room_bytes: int) -> Slice:
        """Return this up to the first of the places for which there is no room: these places go, and what lies from
        there on lies ahead again.
        """
        if not places:
            return part
        messages = part.messages
        count, _wire_bytes = fit([messages[place].wire for place in places[:room_count]], room_bytes)
        if count == len(places):
            return part
        stop = places[count]
        del places[count:]
        if part.returned:
            cursor.requeue(part.sequences[stop:], attempted=False)
        else:
            cursor.position = part.sequences[stop]
        return part.head(stop)

    def _pass_over(self, cursor: TrackingCursor, selection: Selection, looked: Slice, places: list[int]) -> None:
        """Settle all elements except those at `places`, at least one."""
        sequences: SequenceOf[int] = looked.sequences
        if places:
            kept = {sequences[place] for place in places}
            sequences = [sequence for sequence in sequences if sequence not in kept]
        selection.passed_count += len(sequences)
        self._queue.free(cursor.settle(sequences))
        if cursor.front < sequences[0]:
            self._pinned.passed(len(sequences), looked.charge_bytes)

    def _pass_ahead(
        self, cursor: TrackingCursor, selection: Selection, count_max: int
    ) -> tuple[Slice | None, bool, int]:
        """Move a cursor without reading for its consumer up to the next selected message, over `count_max` elements at
        most. Returns the elements passed, whether it has reached the end, and the cost.
        """
        selector = selection.selector
        part, position = self._elements.read(cursor.position, min(count_max, selector.looks_max), UNBOUNDED)
        if part is None:
            if self._elements.missing is not None:
                return None, False, 1
            cursor.position = max(cursor.position, position)
            return None, True, 1
        before_units = selector.spent_units
        if selector.takes(part.messages[0]):
            return None, False, 1 + selector.cost_since(before_units)
        place = next(iter(selector.places(part.messages)), None)
        cost = 1 + len(part.messages) // LOOKS_PER_COST + selector.cost_since(before_units)
        passed = part if place is None else part.head(place)
        cursor.position = part.end if place is None else part.sequences[place]
        self._pass_over(cursor, selection, passed, [])
        return passed, False, cost


def _chosen_of(part: Slice, places: list[int]) -> Slice:
    """Return the elements at `places` of a slice, as a slice."""
    messages, sequences = [part.messages[place] for place in places], [part.sequences[place] for place in places]
    return Slice(messages, sequences, wire_bytes_of(messages), part.attempts, returned=part.returned)
