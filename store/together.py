"""What transactions bind together: shelves whose changes go to disk in one batch, or not at all.

A transaction that takes effect in one go is *bound* at its end (`bind`): whatever gathers one of its shelves gathers
all of them. One that takes effect in steps is a `Joint`: what it has changed so far is kept back, whole, until its end;
then it is bound like any other. A shelf that is bound to one that is kept back is kept back with it.

*One joint at a time*, and none while a batch is gathered in steps: so a shelf never has half of a transaction when it
is gathered. A gathering that a joint has kept back comes before the next joint. While the disk fails nothing is
gathered, and joints do not wait for it: the one batch that is tried again holds nothing of theirs.

*Gathering in steps.* Where much is bound together (HEAVY_COUNT), or very many durable subscriptions have moved, it is
encoded in steps, into a batch that counts as under way meanwhile. So what is added or settled between two steps belongs
to the next batch, as it does during a write. But for other transactions: one that was bound meanwhile may lie half in
what is gathered already. Its shelves are gathered again, until there is none left, the last time at once. What a batch
has of a queue that is deleted meanwhile it deletes as well (beside.py).

Bound: the shelves of joints and bound sets, some 100 bytes each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final

from ..flow import FlowResource, WaitEdge
from ..queues.storage import Confirms
from . import keys
from .batch import Batch
from .dirty import Dirty
from .engine import Change, delete, delete_range
from .places import Place
from .shelf import Shelf

if TYPE_CHECKING:
    from .storequeue import StoreQueue

Attached = Iterable[tuple[list[Change], Callable[[], None] | None]]
"""Changes that go into the batch of a shelf, and who is told when they are written."""

Kept = Shelf | Place
"""Whose records are written when the store has time: queues, and groups of logs."""

HEAVY_COUNT: Final = 24
"""Steps: more than this of them are done in turns with others. A shelf is one, and so are STEP_ELEMENTS elements."""

STEP_ELEMENTS: Final = 64
STEP_STATES: Final = 16
"""States of blocks."""

STEP_PLACES: Final = 8
"""Places of durable subscriptions."""

PLACES_TURNS: Final = 8
"""So many times as long as the places that are due take at first may writing them go on while readers move on."""

ROUNDS_MAX: Final = 4
"""So often what was bound meanwhile is gathered in steps. Each round has only what came during the one before."""


class Joint:
    """One transaction that takes effect in steps. Satisfies `sluiceway.queues.storage.Joint`."""

    __slots__ = ("_go_on", "_shelves", "_since", "_together", "has_ended", "is_broken", "owner", "waits")

    def __init__(self, together: Together, owner: FlowResource, since: float) -> None:
        self._together = together
        self._since = since
        self.owner = owner
        """Whose transaction it is."""
        self._shelves: dict[Kept, None] = {}
        self._go_on: Callable[[], None] | None = None
        self.waits = False
        self.is_broken = False
        self.has_ended = False

    @property
    def shelves(self) -> list[Kept]:
        return [shelf for shelf in self._shelves if self._together.is_known(shelf)]

    def begin(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on

    def edge(self) -> WaitEdge:
        sink, reason = self._together.in_the_way()
        return WaitEdge(sink, self._since, reason)

    def its_turn(self) -> None:
        """It waits no more."""
        self.waits = False
        if self._go_on is not None:
            self._go_on()

    def add(self, shelf: Confirms) -> None:
        if shelf not in self._shelves and isinstance(shelf, Shelf | Place) and self._together.is_known(shelf):
            self._shelves[shelf] = None
            self._together.keep_back(self, shelf)

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._together.end(self)


class Together:
    """Those of one store."""

    def __init__(self, store: StoreQueue, dirty: Dirty) -> None:
        self._store = store
        self._dirty = dirty
        self._bound: dict[Kept, set[Kept]] = {}
        """All that transactions bind to each, that included: one set for all of them."""
        self._active: dict[Joint, None] = {}
        """One, but at the end of the broker, when nobody waits any more."""
        self._waiting: deque[Joint] = deque()
        self._held: set[Kept] = set()
        """Of active joints."""
        self._skipped: set[Kept] = set()
        """Kept back by the active joint, when a batch was gathered last."""
        self._later: set[Kept] = set()
        """For the next batch: this one gathers another heavy set."""
        self._wanted = False
        """A gathering waits for the active joint."""
        self.heavy: set[Kept] = set()
        """What is gathered in steps, or is to be."""

    def is_known(self, shelf: Kept) -> bool:
        """Its queue or group is there."""
        return shelf.queue_id in self._store.shelves

    # ------------------------------------------------------------------ what is bound

    def bind(self, shelves: Iterable[Confirms]) -> None:
        """What was added to and settled in these is one transaction."""
        together: set[Kept] = {
            shelf for shelf in shelves if isinstance(shelf, Shelf | Place) and shelf.queue_id in self._store.shelves
        }
        for shelf in together:
            shelf.bound_to = shelf.elements_end
            shelf.is_bound = True
        if len(together) > 1:
            found = {id(each): each for shelf in together if (each := self._bound.get(shelf)) is not None}
            whole = max(found.values(), key=len, default=together)
            for each in [together, *found.values()]:
                if each is not whole or each is together:
                    whole |= each
                    self._bound.update(dict.fromkeys(each, whole))

    def abandon(self, shelf: Kept) -> set[Kept]:
        """This is not written any more. Returns what is bound to it, which must not be written either."""
        if shelf in self.heavy:
            self._store.finish_gathering()  # it is in the batch, in part
        joints = [joint for joint in self._active if shelf in joint._shelves]
        bound = {shelf}
        self._take_bound_to(bound)
        for joint in joints:
            bound |= joint._shelves.keys()
            joint.is_broken = True
            joint.end()
        return bound - {shelf}

    def gone(self, shelf: Kept) -> None:
        """It is there no more, and binds nothing."""
        bound = self._bound.pop(shelf, None)
        if bound is not None:
            bound.discard(shelf)
            if len(bound) == 1:
                self._bound.pop(bound.pop(), None)

    # ------------------------------------------------------------------ queues that are deleted meanwhile

    def bequeath(self, shelf: Kept, attached: Attached, waiting: list[Callable[[], None]]) -> None:
        """The queue or group of this one is deleted. What was to go into its batch (that a spooled transaction is
        committed, for one), and who waits for that, goes with those that it is bound to.
        """
        heir = self._heir(shelf)
        if heir is None:
            for changes, done in attached:
                self._store.change(changes, written=done)
            self._store.when_flushed(waiting)
            return
        # Where the transaction ends there: at its present end the record may come batches after what it is about.
        for changes, done in attached:
            heir.attach(heir.bound_to, heir.bound_to, changes, done)
        for callback in waiting:
            heir.when_settled(callback)

    def _heir(self, shelf: Kept) -> Kept | None:
        """One that goes into the same batch."""
        return next((other for other in self._bound.get(shelf, ()) if other is not shelf), None)

    def _found(self, together: set[Kept]) -> list[set[Kept]]:
        """The sets of all that are bound to these."""
        bound = self._bound
        if not bound:
            return []
        return list({id(each): each for shelf in together if (each := bound.get(shelf)) is not None}.values())

    def _bind_to(self, together: set[Kept]) -> bool:
        """`together` grows by all that is bound to it. Returns whether something is."""
        found = self._found(together)
        together.update(*found)
        return bool(found)

    def _take_bound_to(self, together: set[Kept]) -> set[Kept]:
        """What is bound to these, and maybe some of themselves, is bound no more. `together` grows by them."""
        taken: set[Kept] = set().union(*self._found(together))
        for shelf in taken:
            del self._bound[shelf]
        together |= taken
        return taken

    # ------------------------------------------------------------------ joints

    def join(self, owner: FlowResource) -> Joint:
        """A new one; see `sluiceway.queues.storage.Store.join`."""
        joint = Joint(self, owner, self._store.clock())
        if self._may_begin and not self._waiting:
            self._active[joint] = None
        else:
            joint.waits = True
            self._waiting.append(joint)
        return joint

    @property
    def _may_begin(self) -> bool:
        return not self._active and not self.heavy and (not self._wanted or self._store.is_failing)

    def in_the_way(self) -> tuple[FlowResource, str]:
        """Whom those wait for that have not begun, and why."""
        for joint in self._active:
            return joint.owner, "a large transaction of it takes effect first"
        return self._store, "what large transactions before it have changed is written first"

    def keep_back(self, joint: Joint, shelf: Kept) -> None:
        """This joint has changed this shelf."""
        self._active[joint] = None  # at the end of the broker it has not waited for its turn
        joint.waits = False
        self._held.add(shelf)
        shelf.is_bound = True

    def end(self, joint: Joint) -> None:
        """All of it has taken effect."""
        if joint in self._waiting:
            self._waiting.remove(joint)
        self._active.pop(joint, None)
        self._held = set().union(*(each._shelves for each in self._active))
        self._skipped.clear()
        if not joint.is_broken:
            self.bind(joint._shelves)
        self._dirty.put_back()
        if self._wanted:
            self._store.ask()
        self.next_joint()

    def next_joint(self) -> None:
        """Let the next one begin, if it may."""
        if self._waiting and self._may_begin:
            joint = self._waiting.popleft()
            self._active[joint] = None
            joint.its_turn()

    # ------------------------------------------------------------------ gathering

    def begin_gathering(self) -> None:
        """A new batch."""
        self._skipped.clear()
        self._later.clear()
        if not self._active:
            self._wanted = False

    def is_kept_back(self, shelf: Kept) -> bool:
        """A joint has it, or something that is bound to it: it is no use to look at it before that has ended."""
        return shelf in self._skipped

    def passes_over(self, shelf: Kept) -> bool:
        """It does not go into this batch by itself: it is kept back, or gathered in steps."""
        if shelf in self._held:
            self._skipped.add(shelf)
            self._wanted = True
            return True
        return shelf in self.heavy or shelf in self._later or shelf in self._skipped

    def gathered_with(self, shelf: Kept) -> list[Kept]:
        """What goes into the batch with this shelf, that included, in order; nothing, if it is kept back with another,
        or gathered in steps.
        """
        together = {shelf}
        found = self._bind_to(together)
        may_be_heavy = found or shelf.bound_to > shelf.saved_to or _places_of(shelf) > STEP_PLACES
        is_heavy = may_be_heavy and _is_heavy(together)
        if self._active and (is_heavy or not self._held.isdisjoint(together)):
            self._skipped |= together
            self._wanted = True
            return []
        if is_heavy and self.heavy:
            self._later |= together
            return []
        self._take_bound_to(together)
        if is_heavy:
            self.heavy = together
            return []
        return sorted(together, key=_number) if found else [shelf]

    def gathering(self, batch: Batch) -> Iterator[None]:
        """Put what is heavy into this batch, in steps."""
        together = set(self.heavy)
        wanted = together
        for round_number in range(ROUNDS_MAX + 1):
            in_steps = round_number < ROUNDS_MAX
            self.heavy |= wanted  # before the first step: one may be deleted or abandoned when a part of it is in
            for one in sorted(wanted, key=_number):
                if in_steps and isinstance(one, Shelf):
                    for step in _saving(one, batch):
                        yield step
                        if not self.is_known(one):
                            break  # its queue was deleted: the batch deletes what it has of it
                self._store.collect_one(one, batch, urgent=True)
                if in_steps:
                    yield
            together |= wanted
            wanted = self._take_bound_to(together)
            if not wanted:
                break
        self.heavy = set()


def records_of(queue_id: int) -> list[Change]:
    """What deletes all records of a queue."""
    families = (keys.CHUNK, keys.PAGED, keys.SUMMARY, keys.STATE, keys.CURSOR)
    changes = [delete_range(*keys.queue_range(family, queue_id)) for family in families]
    return [*changes, delete(keys.queue_key(queue_id)), delete(keys.head_key(queue_id))]


def _saving(shelf: Shelf, batch: Batch) -> Iterator[None]:
    """Write what a transaction has put into it, in steps, and where the many readers of a topic stand; what comes in
    meanwhile is left to `collect`.
    """
    end = min(shelf.bound_to, shelf.elements_end)
    while shelf.saved_to < end:
        yield from repeat(None, 1 + shelf.save_next(batch, end) // STEP_ELEMENTS)
    while shelf.touched_count > STEP_STATES:
        shelf.write_states(batch, STEP_STATES)
        yield
    if shelf.places_count > STEP_PLACES:
        due_count = shelf.save_before_places(batch)
        for _ in range(PLACES_TURNS * due_count // STEP_PLACES):
            yield
            if shelf.write_places(batch, STEP_PLACES) <= STEP_PLACES:
                break


def _number(shelf: Kept) -> int:
    return shelf.queue_id


def _is_heavy(together: set[Kept]) -> bool:
    return len(together) > HEAVY_COUNT or sum(map(_steps_of, together)) > HEAVY_COUNT


def _steps_of(shelf: Kept) -> int:
    if not isinstance(shelf, Shelf):
        return 1
    elements_count = max(0, shelf.bound_to - shelf.saved_to)
    steps_count = elements_count // STEP_ELEMENTS + shelf.touched_count // STEP_STATES
    return 1 + steps_count + shelf.places_count // STEP_PLACES


def _places_of(shelf: Kept) -> int:
    return shelf.places_count if isinstance(shelf, Shelf) else 0
