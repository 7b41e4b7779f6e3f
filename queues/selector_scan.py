"""Selector scan: consumers with a selector on a queue whose messages are shared out look for what they select.

The cursor of the queue passes no element for them. Each has a *search* with its own position. Selected elements are
taken from where they are (`Cursor.acquire_at`), so order holds for all other consumers: an element that no present
consumer selects stays where it is, does not block the elements behind it, and is available to later consumers. A search
does not go back: an element that becomes available below its position (given back, due, its group free) is noted for it
by name, and looked at first. So each message is looked at once per consumer, and once more whenever it comes back.

    looked_to    all elements below have been looked at
    again        elements below that, available since: to be looked at first, the lowest first
    held_up      selected elements whose group another consumer holds: `again` when the group is free

A search passes over messages of a group like others: its selector decides what it wants of a group. One consumer per
group at a time, and order among the selected messages of a group, hold all the same.

*Outside.* For a search that reaches a block outside, the block is read for that search alone: it stays outside, and no
other memory changes. Such blocks are read one at a time in each queue, for all searches that are at that block;
selected elements are handed out from there. Only a block of which a search selects more than it has credit for, or many
elements (DENSE_SHARE), is paged in as for other readers, and stays while the search is in it. So a search for one in a
million reads each block once, holds one block meanwhile, and gives all other consumers their turn in between.

*Turns.* Consumers with a selector come first, with at most their share of the waiting elements (for all in line the
same); where there is less than one element for each, the others come first every second time.

Bound: one block for each queue that is being read; one for each search that is in it with selected elements; for each
search the names of returned elements, and HELD_UP_COUNT of those held up by groups.

Source: issue 6; anchors d7, d17.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Final, Protocol

import attrs

from ..flow import Account, Flow, SizeLimiter
from ..flow.bounds import UNBOUNDED
from .consumed import ConsumedQueue
from .cursored import BLOCK_BITS
from .cursors import Wait
from .environment import QueueEnvironment
from .message import Message, size_of
from .paging import BLOCK_BYTES_MAX
from .selectors.selector import LOOK_COUNT_MIN, LOOKS_PER_COST, Selection
from .slices import Slice, fit
from .subscription import Subscription

LOOK_COUNT_MAX: Final = 1024
"""Largest number of elements looked at together. Begins with LOOK_COUNT_MIN and doubles each time that nothing was
found.
"""

DENSE_SHARE: Final = 8
"""Divisor of the elements looked at: a search that selects at least this part is better served by paging blocks in."""

HELD_UP_COUNT: Final = 1024
"""Elements that a search remembers because their group is held by others. Beyond that it waits."""

AGAIN_MIN: Final = 64
"""Dead entries that are always allowed among those to be looked at again."""


class Search:
    """Progress of one subscription's search. See the module."""

    __slots__ = (
        "_again",
        "_again_set",
        "_tidy_count",
        "held_up",
        "held_up_count",
        "is_dense",
        "looked_to",
        "near",
        "selection",
        "subscription",
        "waiting_for",
    )

    def __init__(self, subscription: Subscription, selection: Selection, looked_to: int) -> None:
        self.subscription = subscription
        self.selection = selection
        self.looked_to = looked_to
        self.waiting_for: int | Wait | None = None
        """A block that is not in memory, or why it waits otherwise."""
        self.near: int | None = None
        """A block in which it stands and takes something: it is to be in memory."""
        self.is_dense = False
        self.held_up: dict[str, dict[int, None]] = {}
        """Elements by group that another consumer holds. Each element once, however often the search reaches it: it
        stops for lack of credit, and starts again.
        """
        self.held_up_count = 0
        self._again: list[int] = []
        self._again_set: set[int] = set()
        self._tidy_count = AGAIN_MIN

    def look_again(self, sequences: Iterable[int]) -> bool:
        """Look again at elements that are available now. Returns whether the search has passed any of them.
        O(n log n).
        """
        fresh = [s for s in sequences if s < self.looked_to and s not in self._again_set]
        for sequence in fresh:
            self._again_set.add(sequence)
            heapq.heappush(self._again, sequence)
        return bool(fresh)

    def next_again(self) -> int | None:
        """Return the lowest element to be looked at again, or None."""
        return self._again[0] if self._again else None

    @property
    def next_place(self) -> int:
        """Next element to look at."""
        return self._again[0] if self._again else self.looked_to

    def take_again(self) -> int:
        """Take out and return the lowest element to be looked at again."""
        sequence = heapq.heappop(self._again)
        self._again_set.discard(sequence)
        return sequence

    def again_below(self, end: int) -> list[int]:
        """Take out all below this, ascending."""
        taken: list[int] = []
        while self._again and self._again[0] < end:
            taken.append(self.take_again())
        return taken

    @property
    def again_count(self) -> int:
        """Largest number of elements that are to be looked at again."""
        return len(self._again)

    def tidy(self, is_free: Callable[[int], bool]) -> None:
        """Forget elements to look at again that another consumer has got, or that left. O(n), O(1) amortised."""
        if len(self._again) > self._tidy_count:
            self._again = sorted(filter(is_free, self._again))
            self._again_set = set(self._again)
            self._tidy_count = AGAIN_MIN + 2 * len(self._again)

    def hold_up(self, key: str, sequence: int) -> None:
        """Note an element that the selector takes, but whose group another consumer holds."""
        sequences = self.held_up.setdefault(key, {})
        if sequence not in sequences:
            sequences[sequence] = None
            self.held_up_count += 1

    def free(self, key: str) -> bool:
        """Note that no consumer holds the group any more. Returns whether the search waited for that."""
        sequences = self.held_up.pop(key, {})
        self.held_up_count -= len(sequences)
        return self.look_again(sequences)


@attrs.define(eq=False)
class _Hand:
    """A block that was read for searches."""

    index: int
    messages: dict[int, Message]
    charge: tuple[int, int]
    users: dict[Search, None]
    """Searches that have not looked at the block yet."""


@attrs.define(eq=False)
class _Portion:
    """Elements that a search looks at together."""

    sequences: SequenceOf[int]
    messages: list[Message]
    end: int | None
    """Position where the search continues after the portion; None: the elements are looked at again."""
    in_hand: bool = False
    whole: Slice | None = None
    """The same as a slice, if it is one."""


class ScanOwner(Protocol):
    """Strategy of a scan, as the scan uses it."""

    @property
    def has_groups(self) -> bool:
        """Whether an element may belong to a message group."""

    def is_ready(self, subscription: Subscription) -> bool:
        """Return whether the subscription may be asked for its room."""

    def group_is_held(self, key: str, subscription: Subscription) -> bool:
        """Whether another consumer holds this group."""

    def taken_out(self, subscription: Subscription, sequences: SequenceOf[int], messages: list[Message]) -> None:
        """Let this subscription have these elements, wherever they lie."""


class SelectorScan:
    """Searches over the elements of one queue.

    Attributes:
        searches: searches by subscription.
        seeking: searches that may find something and have credit, the next one first.
    """

    __slots__ = (
        "_awaited",
        "_cursor",
        "_environment",
        "_hand",
        "_hand_limit",
        "_in_line",
        "_owner",
        "_queue",
        "_states",
        "searches",
        "seeking",
    )

    def __init__(self, queue: ConsumedQueue, owner: ScanOwner, environment: QueueEnvironment) -> None:
        self._queue = queue
        self._owner = owner
        self._environment = environment
        self._states = queue.states
        self._cursor = queue.states.cursor
        self.searches: dict[Subscription, Search] = {}
        self.seeking: dict[Search, None] = {}
        self._in_line: dict[Search, None] = {}
        """Searches for which a block is to be read."""
        self._awaited: int | None = None
        """The block that the store has been asked for."""
        self._hand: _Hand | None = None
        self._hand_limit: Account | None = None

    @property
    def is_reading(self) -> bool:
        """Whether the store has been asked for a block."""
        return self._awaited is not None

    @property
    def has_more(self) -> bool:
        """Whether a search can continue at once."""
        return bool(self.seeking) or (self._hand is not None and bool(self._hand.users))

    # ------------------------------------------------------------------ who seeks

    def begin(self, subscription: Subscription, selection: Selection) -> None:
        """Begin a search for this subscription."""
        search = Search(subscription, selection, self._cursor.position)
        search.look_again(self._states.passed_sequences())
        self.searches[subscription] = search

    def end(self, subscription: Subscription) -> None:
        """End the search of a subscription that is gone."""
        search = self.searches.pop(subscription, None)
        if search is None:
            return
        self.seeking.pop(search, None)
        self._in_line.pop(search, None)
        if self._hand is not None and search in self._hand.users:
            del self._hand.users[search]
            if not self._hand.users:
                self._drop_hand()
        self._ask()

    def seek(self, search: Search) -> None:
        """Continue a search with the next dispatch, if it waits for nothing."""
        if search.waiting_for is None and self._owner.is_ready(search.subscription):
            self.seeking[search] = None
            self._queue.context.request_dispatch()

    def seek_all(self) -> None:
        """Continue all searches: an element came in."""
        for search in self.searches.values():
            self.seek(search)

    def resume(self, why: int | Wait) -> None:
        """Continue the searches that wait for `why`."""
        for search in list(self.searches.values()):
            if search.waiting_for == why:
                search.waiting_for = None
                self._in_line.pop(search, None)
                self.seek(search)

    def group_is_free(self, key: str) -> None:
        """Continue the searches that wait for this group, or for any."""
        for search in self.searches.values():
            if search.free(key):
                self._look_first(search)
        self.resume(Wait.GROUPS)

    def available_again(self, sequences: SequenceOf[int]) -> None:
        """Have the searches that have passed these elements look at them again."""
        for search in self.searches.values():
            if search.look_again(sequences):
                self._look_first(search)

    def after_drop(self) -> None:
        """Continue the searches that wait for a block of which nothing is left: its elements left unread."""
        for search in list(self.searches.values()):
            waiting_for = search.waiting_for
            if isinstance(waiting_for, int) and self._queue.elements.block(waiting_for) is None:
                if waiting_for == self._awaited:
                    self._awaited = None
                self.resume(waiting_for)
                self._ask()

    def may_read(self, sequences: SequenceOf[int]) -> bool:
        """Return whether a search may yet reach one of the elements."""
        last = max(sequences)
        return any(search.looked_to <= last for search in self.searches.values())

    @property
    def awaits_disk(self) -> bool:
        """A search waits for the store."""
        return any(
            isinstance(search.waiting_for, int) or search.waiting_for is Wait.NOTED for search in self.searches.values()
        )

    def reading_blocks(self) -> list[int]:
        """Return the blocks that searches are in and that have to be in memory."""
        return [search.near for search in self.searches.values() if search.near is not None]

    def _look_first(self, search: Search) -> None:
        """Continue a search with an element that goes before what it waits for."""
        search.tidy(lambda sequence: self._queue.elements.is_alive(sequence) and self._states.is_free(sequence))
        search.waiting_for = None
        self._in_line.pop(search, None)
        self.seek(search)

    # ------------------------------------------------------------------ dispatch

    def serve(self, budget: int) -> int:
        """Let each search look on until it gets something, up to its share. Returns what is left of the budget."""
        if self._hand is not None:
            budget = self._serve_hand(budget)
        takers_count = len(self.seeking) + len(self._queue.ring)
        if not takers_count:
            return budget
        end = self._queue.elements.next_sequence
        for search in list(self.seeking):
            if budget <= 0:
                break
            if search not in self.seeking:  # ended by what another one was handed
                continue
            room_count, room_bytes = self._room_for(search)
            if room_count:
                share_count = max(1, -(-(end - search.looked_to + search.again_count) // takers_count))
                if self._owner.has_groups and takers_count > 1:
                    share_count = 1  # or the first one would hold all groups
                cost, count = self._look_on(search, min(room_count, share_count, budget), room_bytes, budget)
                budget -= cost
                if count:
                    self._be_last(search)
        return budget

    def _be_last(self, search: Search) -> None:
        """Put a search that has got an element last: the others have their turn first, now and when an element comes
        in.
        """
        if search in self.seeking:
            del self.seeking[search]
            self.seeking[search] = None
        subscription = search.subscription
        if len(self.searches) > 1 and subscription in self.searches:
            del self.searches[subscription]
            self.searches[subscription] = search

    def _room_for(self, search: Search) -> tuple[int, int]:
        """Return the credit of a search; (0, 0): it is out of line until it has some."""
        room = self._queue.room_of(search.subscription) if self._owner.is_ready(search.subscription) else (0, 0)
        if not room[0]:
            self.seeking.pop(search, None)
        return room

    def _look_on(self, search: Search, count_max: int, bytes_max: int, budget: int) -> tuple[int, int]:
        """Let it look until it gets something, has to wait or has used up the budget. Returns what that cost, and how
        many messages it got.
        """
        cost = count = 0
        selector = search.selection.selector
        look_count = min(LOOK_COUNT_MAX, max(LOOK_COUNT_MIN, 2 * count_max))
        while cost < budget and search in self.seeking:
            portion = self._next_portion(search, min(look_count, selector.looks_max))
            if portion is None:
                break
            cost += 1 + len(portion.messages) // LOOKS_PER_COST
            before_units = selector.spent_units
            count = self._hand_out(search, portion, count_max, bytes_max)
            cost += selector.cost_since(before_units)
            if count:
                cost += count
                break
            look_count = min(LOOK_COUNT_MAX, 2 * look_count)
        return cost, count

    def _next_portion(self, search: Search, count_max: int) -> _Portion | None:
        """Return what a search looks at next. None: nothing is there, or it has to be paged in; then the search is out
        of line.
        """
        elements = self._queue.elements
        if search.next_again() is not None:
            sequences: list[int] = []
            messages: list[Message] = []
            while len(messages) < count_max and (sequence := search.next_again()) is not None:
                elements.forget_missing()
                message = elements.get(sequence)
                if elements.missing is not None:
                    break
                search.take_again()
                if message is not None:
                    sequences.append(sequence)
                    messages.append(message)
            if messages:
                return _Portion(sequences, messages, None)
            if elements.missing is not None:
                self._wait_for_outside(search, elements.missing)
                return None
        while True:
            part, position = elements.read(search.looked_to, count_max, UNBOUNDED)
            if part is not None:
                return _Portion(part.sequences, part.messages, part.end, whole=part)
            search.looked_to = max(search.looked_to, position)
            if elements.missing is None:
                self.seeking.pop(search, None)
                return None
            if not self._pass_waiting(search, elements.missing):
                self._wait_for_outside(search, elements.missing)
                return None

    def _pass_waiting(self, search: Search, index: int) -> bool:
        """Whether all of this block waits for its time; then it is passed without a look."""
        block = self._queue.elements.block(index)
        if self._states.delayed is None or block is None or block.outside is None:
            return False
        start = max(block.base, search.looked_to)
        if (block.outside.bits >> (start - block.base)) & ~self._states.delayed.bits_from(start):
            return False
        search.looked_to = block.base + block.length
        return True

    # ------------------------------------------------------------------ selected elements

    def _hand_out(self, search: Search, portion: _Portion, count_max: int, bytes_max: int) -> int:
        """Look at the elements of a portion, and hand out those that the subscription selects and has room for. Returns
        their number.
        """
        selection, sequences, messages = search.selection, portion.sequences, portion.messages
        places = selection.selector.places(messages)
        taken, stop = self._choose(search, portion, places, count_max)
        wire_bytes = 0
        if taken:
            count, wire_bytes = fit([messages[place].wire for place in taken], bytes_max)
            if count < len(taken):
                stop = taken[count]
                taken = taken[:count]
        if taken and not self._queue.may_hand_over(sequences[taken[0]], sequences[taken[-1]] + 1):
            search.waiting_for = Wait.NOTED
            self.seeking.pop(search, None)
            taken, stop = [], taken[0]
        if stop is None:
            selection.passed_count += len(messages) - len(places)
        else:
            selection.passed_count += stop - bisect_left(places, stop)
        self._note_place(search, portion, stop, len(places))
        if search.waiting_for is Wait.NOTED and portion.in_hand:
            search.near = None  # the block is read again then, which costs less than paging it in
        if not taken:
            return 0
        chosen: SequenceOf[int]
        part = portion.whole if len(taken) == len(messages) else None
        if part is not None:
            chosen, given = sequences, messages
        elif len(taken) == taken[-1] + 1 - taken[0]:  # of a range a range, which is settled much faster
            chosen = sequences[taken[0] : taken[-1] + 1]
            given = messages[taken[0] : taken[-1] + 1]
        else:
            chosen = [sequences[place] for place in taken]
            given = [messages[place] for place in taken]
        cursor = self._cursor
        attempts = self._queue.seen_of(chosen, given) if chosen[0] < max(cursor.noted_to, cursor.position) else None
        self._owner.taken_out(search.subscription, chosen, given)
        if part is None or attempts:
            part = Slice(given, chosen, wire_bytes, attempts)
        self._queue.hand_over(search.subscription, part)
        return len(given)

    def _choose(
        self, search: Search, portion: _Portion, places: list[int], count_max: int
    ) -> tuple[list[int], int | None]:
        """Return the places, of those that the selector takes, whose elements may be handed over now; and the place
        where the search has to stop, or None.
        """
        taken: list[int] = []
        sequences, messages = portion.sequences, portion.messages
        if self._all_are_free(portion):
            if len(places) <= count_max:
                return places, None
            return places[:count_max], places[count_max]
        now_ms = self._environment.now_ms() if self._queue.expiry.is_needed or self._states.delayed is not None else 0
        for place in places:
            sequence, message = sequences[place], messages[place]
            if not self._states.is_free(sequence) or 0 < message.expires_at_ms <= now_ms:
                continue
            if message.due_at_ms and message.due_at_ms > (now_ms or self._environment.now_ms()):
                if self._queue.delays.index().is_full and portion.end is not None:
                    self._wait(search, Wait.CROWDED)
                    return taken, place
                self._queue.delays.put([sequence], message.due_at_ms)
                continue
            key = message.head.group
            if key is not None:
                if self._owner.group_is_held(key, search.subscription):
                    if search.held_up_count >= HELD_UP_COUNT:
                        self._wait(search, Wait.GROUPS)
                        return taken, place
                    search.hold_up(key, sequence)
                    continue
                if portion.in_hand:
                    return taken, place  # blocks with groups are counted when they come in
            if len(taken) >= count_max:
                return taken, place
            taken.append(place)
        return taken, None

    def _all_are_free(self, portion: _Portion) -> bool:
        """Return whether no element of the portion needs a check of its own: all may be handed over at once."""
        return (
            portion.end is not None
            and not self._owner.has_groups
            and not self._queue.expiry.is_needed
            and self._states.delayed is None
            and self._states.dead_lettering is None
            and self._cursor.are_ahead(portion.sequences)
        )

    def _wait(self, search: Search, why: int | Wait) -> None:
        search.waiting_for = why
        self.seeking.pop(search, None)

    def _note_place(self, search: Search, portion: _Portion, stop: int | None, takes_count: int) -> None:
        """Note that the search has looked at the portion, up to the place where it stops."""
        sequences = portion.sequences
        if stop is not None:
            search.near = sequences[stop] >> BLOCK_BITS
            if portion.end is None:
                search.look_again(sequences[stop:])
            else:
                search.looked_to = sequences[stop]
            return
        if portion.end is not None:
            search.looked_to = portion.end
            if len(sequences) >= LOOK_COUNT_MIN:
                search.is_dense = takes_count * DENSE_SHARE >= len(sequences)
        if search.near is not None and search.near != search.next_place >> BLOCK_BITS:
            search.near = None

    # ------------------------------------------------------------------ outside

    def _wait_for_outside(self, search: Search, index: int) -> None:
        """Let a search wait until a block that is outside is read, or comes into memory."""
        assert self._queue.pager is not None, "only what pages is outside"
        self._wait(search, index)
        if search.is_dense or search.near == index:
            search.near = index
            self._queue.pager.want(index, ahead=search.is_dense)
        else:
            self._in_line[search] = None
            self._ask()

    def _ask(self) -> None:
        """Have the block read that the first in line waits for."""
        if self._awaited is not None or self._hand is not None or not self._in_line or self._queue.closed:
            return
        index = next(iter(self._in_line)).waiting_for
        assert isinstance(index, int), "in line are those that wait for a block"
        self._awaited = index
        self._queue.open_storage().load(index, self._was_read)

    def _was_read(self, index: int, by_sequence: dict[int, Message]) -> None:
        if index == self._awaited:
            self._awaited = None
        if self._queue.closed or self._hand is not None:
            return
        users = [search for search in self._in_line if search.waiting_for == index]
        for search in users:
            del self._in_line[search]
            search.waiting_for = None
        block = self._queue.elements.block(index)
        if not users:
            self._ask()
        elif block is None or block.outside is None:  # the block is gone, or was paged in
            for search in users:
                self.seek(search)
            self._ask()
        else:
            charge = len(by_sequence), size_of(by_sequence.values())
            self._hand = _Hand(index, by_sequence, charge, dict.fromkeys(users))
            self._limit_of_hand().charge(*charge, None)
            self._queue.context.request_dispatch()

    def _limit_of_hand(self) -> Account:
        if self._hand_limit is None:
            self._hand_limit = Account(
                self._queue,
                Flow(f"{self._queue.name} read for selectors"),
                SizeLimiter(BLOCK_BYTES_MAX, clock=self._environment.clock),
                clock=self._environment.clock,
            )
        return self._hand_limit

    def _serve_hand(self, budget: int) -> int:
        """Let the searches that waited for the block in hand look at it; then release it, and request the next one."""
        hand = self._hand
        assert hand is not None, "asked for before"
        while hand.users and budget > 0:
            search = next(iter(hand.users))
            del hand.users[search]
            room_count, room_bytes = self._room_for(search)
            if room_count:
                budget -= self._look_into(search, hand, min(room_count, budget), room_bytes)
                if search not in hand.users:
                    self.seek(search)
        if not hand.users and self._hand is hand:
            self._drop_hand()
            self._ask()
        return budget

    def _look_into(self, search: Search, hand: _Hand, count_max: int, bytes_max: int) -> int:
        """Let a search look at the block in hand. Returns the cost."""
        block = self._queue.elements.block(hand.index)
        if block is None or block.outside is None:
            return 1
        end = block.base + block.length
        again = search.next_again()
        sequences: list[int]
        if again is not None:
            if again >> BLOCK_BITS != hand.index:
                return 1  # something else has come back meanwhile, which goes first
            sequences = [sequence for sequence in search.again_below(end) if self._queue.elements.is_alive(sequence)]
        elif search.looked_to >> BLOCK_BITS == hand.index:
            sequences = self._queue.elements.live_sequences(search.looked_to, end)
        else:
            return 1
        selector, rest = search.selection.selector, list[int]()
        if len(sequences) > selector.looks_max:
            rest = sequences[selector.looks_max :]
            sequences = sequences[: selector.looks_max]
        messages = [hand.messages[sequence] for sequence in sequences if sequence in hand.messages]
        if len(messages) < len(sequences):
            # Not all of the block could be read. Paging it in finds the lost elements.
            search.near = hand.index
            if again is not None:
                search.look_again([*sequences, *rest])
            return 1
        if not messages:
            return 1
        if rest and again is not None:
            search.look_again(rest)
        portion = _Portion(sequences, messages, None if again is not None else (rest or [end])[0], in_hand=True)
        before_units = selector.spent_units
        count = self._hand_out(search, portion, count_max, bytes_max)
        if rest and search.waiting_for is None and search.near is None:
            hand.users[search] = None  # the search has not looked at all of the block
        return 1 + count + len(messages) // LOOKS_PER_COST + selector.cost_since(before_units)

    def _drop_hand(self) -> None:
        hand, self._hand = self._hand, None
        if hand is not None:
            self._limit_of_hand().release(*hand.charge)

    # ------------------------------------------------------------------ end, and what people see

    def close(self) -> None:
        """Hold no block any more."""
        self._drop_hand()

    def facts(self) -> dict[str, object]:
        """Return facts about the searches, for people."""
        facts: dict[str, object] = {}
        if self.searches:
            facts["with a selector"] = len(self.searches)
        if any(search.waiting_for is Wait.CROWDED for search in self.searches.values()):
            facts["too many are delayed"] = "a selector waits until some of them are due (delayed_count_max)"
        if any(search.waiting_for is Wait.GROUPS for search in self.searches.values()):
            facts["a selector waits"] = "too many of its messages belong to groups that other consumers hold"
        return facts
