"""Shelves that go into one batch, as sets that are united at once, however large they are.

A `Bond` is a set of shelves. Two of them become one when a transaction changes shelves of both: the smaller one becomes
a part of the larger. So a shelf in a bond finds the whole of it in a few steps (union by size with path compression),
and no element is ever moved from one set to another.

A shelf knows the bond that it was put into (`bond`), and is in one at a time. A bond that is *taken* goes into a batch,
and binds nothing more: a transaction that comes behind puts its shelves into another one.

Bound: some 100 bytes for each shelf that is bound, and 250 for each bond; there are at most as many bonds as shelves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .together import Shelf


class Bond:
    """A set of shelves, and of the bonds that are parts of it."""

    __slots__ = ("_members", "_part_of", "_parts", "count", "held_count", "is_taken", "is_wanted")

    def __init__(self) -> None:
        self._members: dict[Shelf, None] = {}
        """Shelves that were put into this bond itself, not into its parts."""
        self._parts: list[Bond] = []
        self._part_of: Bond | None = None
        self.count = 0
        """Number of shelves in the whole bond, parts included. The attributes below also describe the whole."""
        self.held_count = 0
        """Joints that are in the midst of changing shelves of it."""
        self.is_taken = False
        """A batch has its shelves, or is getting them."""
        self.is_wanted = False
        """The batch that is gathered in steps must have it, too: it has some of it already."""

    @property
    def whole(self) -> Bond:
        """The whole bond of which this one is a part, or itself. O(log n)."""
        bond = self
        while (above := bond._part_of) is not None:
            if above._part_of is not None:
                bond._part_of = above = above._part_of
            bond = above
        return bond

    def add(self, shelf: Shelf) -> None:
        """Put this one in, which is in no other that is not taken. To be called of a whole."""
        self._members[shelf] = None
        self.count += 1
        shelf.bond = self

    def unite(self, other: Bond) -> Bond:
        """Two wholes become one, which is returned. O(1)."""
        large, small = (self, other) if self.count >= other.count else (other, self)
        small._part_of = large
        large._parts.append(small)
        large.count += small.count
        large.held_count += small.held_count
        large.is_wanted = large.is_wanted or small.is_wanted
        return large

    def remove(self, shelf: Shelf) -> None:
        """Remove a shelf whose queue is deleted. Call it on the bond that the shelf was put into."""
        del self._members[shelf]
        self.whole.count -= 1
        shelf.bond = None

    def other_than(self, shelf: Shelf | None) -> Shelf | None:
        """Return a shelf of a whole bond that is not `shelf`; None if there is no other."""
        return next((each for each in self if each is not shelf), None)

    def __iter__(self) -> Iterator[Shelf]:
        """Yield all shelves of a whole, in an order that is the same in each run."""
        waiting = [self]
        while waiting:
            bond = waiting.pop()
            yield from bond._members
            waiting += bond._parts


def bond_of(shelf: Shelf) -> Bond | None:
    """Return the whole bond to which `shelf` belongs, if it still waits for a batch, else None."""
    if shelf.bond is None:
        return None
    whole = shelf.bond.whole
    return None if whole.is_taken else whole
