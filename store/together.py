"""What transactions bind together: shelves whose changes go to disk in one batch, or not at all.

A transaction that takes effect in one go is *bound* at its end (`bind`): whatever gathers one of its shelves gathers
all of them. One that takes effect in steps is a `Joint`: what it has changed so far is kept back, whole, until its end;
then it is bound like any other. A shelf that is bound to one that is kept back is kept back with it.

*One joint at a time*, and none while a batch is gathered in steps: so a shelf never has half of a transaction when it
is gathered. A gathering that a joint has kept back comes before the next joint. While the disk fails nothing is
gathered, and joints do not wait for it: the one batch that is tried again holds nothing of theirs.

*Gathering in steps.* Where much is bound together (HEAVY_COUNT) it is encoded in steps, into a batch that counts as
under way meanwhile. So what is added or settled between two steps belongs to the next batch, as it does during a write.
But for other transactions: one that was bound meanwhile may lie half in what is gathered already. Its shelves are
gathered again, until there is none left, the last time at once.

Bound: the shelves of joints and bound sets, some 100 bytes each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final

from queues.storage import Confirms
from store.batch import Batch
from store.places import Place
from store.shelf import Shelf

if TYPE_CHECKING:
    from store.storequeue import StoreQueue

Kept = Shelf | Place
"""Whose records are written when the store has time: queues, and groups of logs."""

HEAVY_COUNT: Final = 24
"""Steps: more than this of them are done in turns with others. A shelf is one, and so are STEP_ELEMENTS elements."""

STEP_ELEMENTS: Final = 64
STEP_STATES: Final = 16
"""States of blocks."""

ROUNDS_MAX: Final = 4
"""So often what was bound meanwhile is gathered in steps. Each round has only what came during the one before."""


class Joint:
    """One transaction that takes effect in steps. Satisfies `queues.storage.Joint`."""

    __slots__ = ("_go_on", "_shelves", "_together", "has_ended", "is_broken", "waits")

    def __init__(self, together: Together) -> None:
        self._together = together
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

    def __init__(self, store: StoreQueue) -> None:
        self._store = store
        self._bound: list[set[Kept]] = []
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
            self._bound.append(together)

    def abandon(self, shelf: Kept) -> set[Kept]:
        """This is not written any more. Returns what is bound to it, which must not be written either."""
        if shelf in self.heavy:
            self._store.finish_gathering()  # it is in the batch, in part
        joints = [joint for joint in self._active if shelf in joint._shelves]
        bound = [each for each in self._bound if shelf in each]
        self._bound = [each for each in self._bound if shelf not in each]
        for joint in joints:
            bound.append(set(joint._shelves))
            joint.is_broken = True
            joint.end()
        return set().union(*bound) - {shelf}

    def _bound_to(self, together: set[Kept]) -> list[set[Kept]]:
        """Sets that touch these, or one another; `together` grows by them."""
        found: list[set[Kept]] = []
        left = self._bound
        grown = bool(left)
        while grown:
            apart: list[set[Kept]] = []
            for each in left:
                if each.isdisjoint(together):
                    apart.append(each)
                else:
                    together |= each
                    found.append(each)
            grown = len(apart) < len(left)
            left = apart
        return found

    def _unbind(self, found: list[set[Kept]]) -> None:
        if found:
            gone = set(map(id, found))
            self._bound = [each for each in self._bound if id(each) not in gone]

    # ------------------------------------------------------------------ joints

    def join(self) -> Joint:
        """A new one; see `queues.storage.Store.join`."""
        joint = Joint(self)
        if self._may_begin and not self._waiting:
            self._active[joint] = None
        else:
            joint.waits = True
            self._waiting.append(joint)
        return joint

    @property
    def _may_begin(self) -> bool:
        return not self._active and not self.heavy and (not self._wanted or self._store.is_failing)

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
        # Of those whose queues were all deleted nothing is ever gathered.
        self._bound = [each for each in self._bound if any(map(self.is_known, each))]

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
        found = self._bound_to(together)
        is_heavy = (bool(found) or shelf.bound_to > shelf.saved_to) and _is_heavy(together)
        if self._active and (is_heavy or not self._held.isdisjoint(together)):
            self._skipped |= together
            self._wanted = True
            return []
        if is_heavy and self.heavy:
            self._later |= together
            return []
        self._unbind(found)
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
            for one in sorted(wanted, key=_number):
                if in_steps and isinstance(one, Shelf):
                    yield from _saving(one, batch)
                self._store.collect_one(one, batch, urgent=True)
                if in_steps:
                    yield
            together |= wanted
            grown = set(together)
            found = self._bound_to(grown)
            if not found:
                break
            self._unbind(found)
            wanted = set().union(*found)
        self.heavy = set()


def _saving(shelf: Shelf, batch: Batch) -> Iterator[None]:
    """Write what a transaction has put into it, in steps; what comes in meanwhile is left to `collect`."""
    end = min(shelf.bound_to, shelf.elements_end)
    while shelf.saved_to < end:
        yield from repeat(None, 1 + shelf.save_next(batch, end) // STEP_ELEMENTS)
    while shelf.touched_count > STEP_STATES:
        shelf.write_states(batch, STEP_STATES)
        yield


def _number(shelf: Kept) -> int:
    return shelf.queue_id


def _is_heavy(together: set[Kept]) -> bool:
    return len(together) > HEAVY_COUNT or sum(map(_steps_of, together)) > HEAVY_COUNT


def _steps_of(shelf: Kept) -> int:
    if not isinstance(shelf, Shelf):
        return 1
    return 1 + max(0, shelf.bound_to - shelf.saved_to) // STEP_ELEMENTS + shelf.touched_count // STEP_STATES
