"""Bonds of transactions: shelves whose changes go to disk in one batch, or not at all.

A transaction that takes effect at once is *bound* at its end (`bind`): a gathering of one of its shelves gathers all of
them. One that takes effect in steps is a `StoreJoint`: it binds each shelf in the step that changes it (bonds.py), and
the bond is kept back, whole, until its end. A shelf that is bound to one that is kept back is kept back with it. So the
end costs nothing, for any number of shelves.

*One joint at a time*, and none while a batch is gathered in steps: so a shelf never has half of a transaction when it
is gathered. A gathering that a joint has kept back comes before the next joint. While the disk fails nothing is
gathered, and joints do not wait for it: the one batch that is repeated contains none of their changes.

*Gathering in steps.* Where much is bound together (HEAVY_COUNT), or very many durable subscriptions have moved, it is
encoded in steps, into a batch that counts as under way meanwhile. So changes between two steps belong to the next
batch, as they do during a write. Except for other transactions: one that is bound meanwhile to a shelf that is not
gathered yet will be in the batch in part. All of its shelves are gathered after that, until there are none left, the
last time at once. A batch also deletes its own records of a queue that is deleted meanwhile (beside.py).

Bound: see bonds.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Final

from ..flow import FlowResource, WaitEdge
from ..queues.storage import Confirms
from . import keys
from .batch import StoreBatch
from .bonds import Bond, bond_of
from .dirty import Dirty
from .engine import Change, delete, delete_range
from .places import GroupRecord
from .queue_records import QueueRecords
from .write_fence import FencedChanges

if TYPE_CHECKING:
    from .storequeue import StoreQueue

Shelf = QueueRecords | GroupRecord
"""A source of batches: the records of a queue, or the place of a group of a log."""

HEAVY_COUNT: Final = 24
"""Steps: more than this of them are done in turns with others. A shelf is one, and so are STEP_ELEMENTS elements."""

STEP_ELEMENTS: Final = 64
STEP_STATES: Final = 16
"""States of blocks."""

STEP_PLACES: Final = 8
"""Places of durable subscriptions."""

PLACES_TURNS: Final = 8
"""Factor of the time that writing the due places takes at first, during which more places are written while readers
move on.
"""

ROUNDS_MAX: Final = 4
"""Rounds in which shelves that were bound meanwhile are gathered in steps. Each round has only shelves bound in the
round before.
"""


class StoreJoint:
    """One transaction that takes effect in steps. Satisfies `sluiceway.queues.storage.Joint`."""

    __slots__ = ("_go_on", "_since", "_together", "bond", "has_ended", "is_broken", "owner", "waits")

    def __init__(self, together: Together, owner: FlowResource, since: float) -> None:
        self._together = together
        self._since = since
        self.owner = owner
        """Resource whose transaction it is."""
        self.bond: Bond | None = None
        """Bond of the shelves that it has changed so far, and of those bound to them before; perhaps a part of a larger
        one since.
        """
        self._go_on: Callable[[], None] | None = None
        self.waits = False
        self.is_broken = False
        self.has_ended = False

    @property
    def some_storage(self) -> Shelf | None:
        return None if self.bond is None else self.bond.whole.other_than(None)

    def begin(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on

    def edge(self) -> WaitEdge:
        sink, reason = self._together.in_the_way()
        return WaitEdge(sink, self._since, reason)

    def its_turn(self) -> None:
        """Continue the transaction, whose turn has come."""
        self.waits = False
        if self._go_on is not None:
            self._go_on()

    def add(self, shelf: Confirms) -> None:
        if isinstance(shelf, QueueRecords | GroupRecord) and not self.has_ended and self._together.is_known(shelf):
            self._together.keep_back(self, shelf)

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._together.end(self)


class Together:
    """The bonds and joints of one store."""

    def __init__(self, store: StoreQueue, dirty: Dirty) -> None:
        self._store = store
        self._dirty = dirty
        self._active: dict[StoreJoint, None] = {}
        """The active joint; several at the end of the broker, when no joint waits any more."""
        self._waiting: deque[StoreJoint] = deque()
        self._skipped: set[Shelf | Bond] = set()
        """Shelves and bonds that the active joint kept back when a batch was gathered last."""
        self._later: set[Shelf | Bond] = set()
        """Shelves for the next batch: this one gathers another heavy bond."""
        self._wanted = False
        """A gathering waits for the active joint."""
        self.heavy: list[Bond] = []
        """Bonds that are gathered in steps, or are to be: taken, and each shelf of them stays taken until it is
        gathered.
        """
        self._heavy_next: list[Bond] = []
        """Bonds that were bound meanwhile to the heavy ones: whole when they were added, perhaps parts since."""

    def is_known(self, shelf: Shelf) -> bool:
        """Return whether the queue or group of this shelf exists."""
        return shelf.queue_id in self._store.shelves

    # ------------------------------------------------------------------ bonds

    def bind(self, shelves: Iterable[Confirms]) -> None:
        """Bind shelves: the elements added to and settled in them are one transaction. O(n): not for many."""
        known = self._store.shelves
        together = {
            shelf: None
            for shelf in shelves
            if isinstance(shelf, QueueRecords | GroupRecord) and shelf.queue_id in known
        }
        whole: Bond | None = None
        for shelf in together:
            shelf.bound_to = shelf.elements_end
            shelf.is_bound = True
            if len(together) > 1:
                whole = self._bind_to(whole, shelf)

    def _bind_to(self, whole: Bond | None, shelf: Shelf) -> Bond:
        """Bind a shelf, with all shelves bound to it, to bond `whole`, if there is one. Returns the bond."""
        own = None if shelf.bond is None else shelf.bond.whole
        if own is None or own.is_taken:
            whole = whole or Bond()
            if own is not None and not whole.is_wanted:  # a batch has others of `own` already, and will have this one
                whole.is_wanted = True
                self._heavy_next.append(whole)
            whole.add(shelf)
            return whole
        return own if whole is None or whole is own else whole.unite(own)

    def abandon(self, shelf: Shelf) -> set[Shelf]:
        """Stop writing this shelf. Returns the shelves that are bound to it, which must not be written either."""
        if shelf.bond is not None and ((whole := shelf.bond.whole).is_taken or whole.is_wanted):
            self._store.finish_gathering()  # a part of it is in the batch
        bond = bond_of(shelf)
        if bond is None:
            return set()
        joints = [joint for joint in self._active if joint.bond is not None and joint.bond.whole is bond]
        bond.is_taken = True
        bound = set(bond)
        for each in bound:
            each.bond = None
        for joint in joints:
            joint.is_broken = True
            joint.end()
        return bound - {shelf}

    def gone(self, shelf: Shelf) -> None:
        """Remove a shelf that is gone, and does not bind others any more."""
        if bond_of(shelf) is None:
            shelf.bond = None  # gathering in steps passes over it
        elif shelf.bond is not None:
            shelf.bond.remove(shelf)

    # ------------------------------------------------------------------ queues that are deleted meanwhile

    def bequeath(self, shelf: Shelf, attached: Iterable[FencedChanges], waiting: list[Callable[[], None]]) -> None:
        """Pass on the changes (such as the commit record of a spooled transaction) and callbacks of a shelf whose queue
        or group is deleted: they go with the shelves to which it is bound.
        """
        bond = bond_of(shelf)
        heir = None if bond is None else bond.other_than(shelf)
        if heir is None:
            for each in attached:
                self._store.change(each.changes, written=each.done)
            self._store.when_flushed(waiting)
            return
        # Where the transaction ends there: at its present end the record may come batches after what it is about.
        for each in attached:
            heir.attach(heir.bound_to, heir.bound_to, each.changes, each.done, each.undone)
        for callback in waiting:
            heir.when_settled(callback)

    # ------------------------------------------------------------------ joints

    def join(self, owner: FlowResource) -> StoreJoint:
        """A new one; see `sluiceway.queues.storage.Store.join`."""
        joint = StoreJoint(self, owner, self._store.clock())
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
        """Return the resource and the reason for which transactions wait that have not begun."""
        for joint in self._active:
            return joint.owner, "a large transaction of it takes effect first"
        return self._store, "what large transactions before it have changed is written first"

    def keep_back(self, joint: StoreJoint, shelf: Shelf) -> None:
        """Bind a shelf that this joint has just changed."""
        shelf.bound_to = shelf.elements_end
        before = joint.bond
        if before is not None:
            before = before.whole
            if shelf.bond is not None and shelf.bond.whole is before:
                return
        shelf.is_bound = True
        joint.bond = self._bind_to(before, shelf)
        if before is None:
            joint.bond.held_count += 1
            self._active[joint] = None  # at the end of the broker it has not waited for its turn
            joint.waits = False

    def end(self, joint: StoreJoint) -> None:
        """End a transaction that has taken effect completely."""
        if joint in self._waiting:
            self._waiting.remove(joint)
        self._active.pop(joint, None)
        if joint.bond is not None:
            joint.bond.whole.held_count -= 1
        self._skipped.clear()
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

    def is_kept_back(self, shelf: Shelf) -> bool:
        """Return whether a joint keeps the shelf back, or one that is bound to it: checking it before that has ended is
        useless.
        """
        return bool(self._skipped) and (bond_of(shelf) or shelf) in self._skipped

    def passes_over(self, shelf: Shelf) -> bool:
        """Whether the shelf does not go into this batch by itself: it is kept back, or gathered in steps."""
        bond = bond_of(shelf)
        if bond is not None and bond.held_count:
            self._skipped.add(bond)
            self._wanted = True
            return True
        if bond is None and shelf.bond is not None:
            return True  # taken
        return (bond or shelf) in self._later or (bond or shelf) in self._skipped

    def gathered_with(self, shelf: Shelf) -> list[Shelf]:
        """Return the shelves that go into the batch with this shelf, that included; none, if it is kept back with
        another, or gathered in steps. Do not call it for a shelf that is passed over.
        """
        bond = bond_of(shelf)
        together = [shelf] if bond is None else list(islice(bond, HEAVY_COUNT + 1))
        may_be_heavy = bond is not None or shelf.bound_to > shelf.saved_to or _places_of(shelf) > STEP_PLACES
        is_heavy = may_be_heavy and _is_heavy(together)
        if is_heavy and self._active:
            self._skipped.add(bond or shelf)
            self._wanted = True
            return []
        if is_heavy and self.heavy:
            self._later.add(bond or shelf)
            return []
        if is_heavy and bond is None:
            bond = Bond()
            bond.add(shelf)
        if bond is not None:
            bond.is_taken = True
        if is_heavy and bond is not None:
            self.heavy = [bond]
            return []
        for one in together:
            one.bond = None
        return together

    def gathering(self, batch: StoreBatch) -> Iterator[None]:
        """Put heavy bonds into this batch, in steps."""
        for round_number in range(ROUNDS_MAX + 1):
            in_steps = round_number < ROUNDS_MAX
            for one in chain.from_iterable(self.heavy):
                if in_steps and isinstance(one, QueueRecords):
                    for step in _saving(one, batch):
                        yield step
                        if not self.is_known(one):
                            break  # its queue was deleted: the batch deletes its own records of it
                self._store.collect_one(one, batch, urgent=True)
                if one.bond is not None and one.bond.whole.is_taken:  # otherwise it was bound anew
                    one.bond = None
                if in_steps:
                    yield
            wanted = dict.fromkeys(bond.whole for bond in self._heavy_next)
            self._heavy_next.clear()
            if not wanted:
                break
            for bond in wanted:
                bond.is_taken = True
            self.heavy = list(wanted)
        self.heavy = []


def records_of(queue_id: int) -> list[Change]:
    """Return the changes that delete all records of a queue."""
    families = (keys.CHUNK, keys.PAGED, keys.SUMMARY, keys.STATE, keys.CURSOR, keys.PRODUCER)
    changes = [delete_range(*keys.queue_range(family, queue_id)) for family in families]
    return [*changes, delete(keys.queue_key(queue_id)), delete(keys.head_key(queue_id))]


def _saving(shelf: QueueRecords, batch: StoreBatch) -> Iterator[None]:
    """Write the changes of a shelf by a transaction, in steps, and the positions of the many readers of a topic; later
    changes are left to `collect`.
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


def _is_heavy(together: list[Shelf]) -> bool:
    return len(together) > HEAVY_COUNT or sum(map(_steps_of, together)) > HEAVY_COUNT


def _steps_of(shelf: Shelf) -> int:
    if not isinstance(shelf, QueueRecords):
        return 1
    elements_count = max(0, shelf.bound_to - shelf.saved_to)
    steps_count = elements_count // STEP_ELEMENTS + shelf.touched_count // STEP_STATES
    return 1 + steps_count + shelf.places_count // STEP_PLACES


def _places_of(shelf: Shelf) -> int:
    return shelf.places_count if isinstance(shelf, QueueRecords) else 0
