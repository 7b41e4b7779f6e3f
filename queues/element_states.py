"""States of the elements of a consumed queue: each element is in exactly one, and moves between them by legal moves.

The states are not stored: each is an index that knows its elements (the cursor, the delayed ones, group lines, dead
letters), and an element that is in none of them is held by a consumer. This module asks them in one order, so that all
parts of a queue mean the same by "waits". `MOVES` is the table of legal moves. The conservation model of the tests
holds every element to it, and to the rule that no two indexes have the same element.

Source: seed 002 "CursoredQueue"; ARCHITECTURE, invariant 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .cursored import CursoredQueue
from .cursors import Cursor
from .delayed import DelayedElements
from .group_backlog import GroupBacklog
from .groups import HeldBack

if TYPE_CHECKING:
    from .dead_letters import DeadLettering


class State(Enum):
    """State of one element."""

    AHEAD = "ahead"
    """Ahead of the cursor."""
    RETURNED = "returned"
    """A consumer gave it back; it is handed out before anything that lies ahead."""
    SET_ASIDE = "set aside"
    """The cursor has passed it; another consumer holds its message group, or the group's line is before it."""
    DELAYED = "delayed"
    """Delayed: not to be handed out before a time."""
    DEAD_LETTERING = "dead-lettering"
    """Given up, on its way to the dead-letter queue."""
    HELD = "held"
    """A consumer has it."""
    GONE = "gone"
    """Left the queue."""


WORDS: Final[Mapping[State, str]] = MappingProxyType(
    {
        State.AHEAD: "waiting",
        State.RETURNED: "waiting",
        State.SET_ASIDE: "waiting",
        State.DELAYED: "delayed",
        State.DEAD_LETTERING: "given up",
        State.HELD: "unsettled",
        State.GONE: "gone",
    }
)
"""Words for the states, for people."""

MOVES: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.AHEAD: frozenset({State.HELD, State.SET_ASIDE, State.DELAYED, State.DEAD_LETTERING, State.GONE}),
        State.RETURNED: frozenset({State.HELD, State.SET_ASIDE, State.DELAYED, State.DEAD_LETTERING, State.GONE}),
        State.SET_ASIDE: frozenset({State.HELD, State.DEAD_LETTERING, State.GONE}),
        # A due element is where it would be without its delay.
        State.DELAYED: frozenset({State.AHEAD, State.RETURNED, State.SET_ASIDE, State.DEAD_LETTERING, State.GONE}),
        # An element taken from ahead of the cursor, by a selector, is there again when it comes back.
        State.HELD: frozenset(
            {State.AHEAD, State.RETURNED, State.SET_ASIDE, State.DELAYED, State.DEAD_LETTERING, State.GONE}
        ),
        # What an operator moves to another hub is given up so, and comes back if that hub does not take it.
        State.DEAD_LETTERING: frozenset({State.AHEAD, State.RETURNED, State.SET_ASIDE, State.GONE}),
        State.GONE: frozenset(),
    }
)
"""Legal moves: from each state to which ones."""


class ElementStates:
    """Indexes over the elements of one consumed queue.

    Attributes:
        cursor: position up to which elements were handed out, and returned elements.
        delayed: delayed elements; None: there never were any.
        dead_lettering: elements on their way to the dead-letter queue; None: there never were any.
        set_aside: elements that wait for their message group; None: a queue without groups.
        held_back: message groups that delayed elements hold back; None: a queue without groups.
    """

    __slots__ = ("cursor", "dead_lettering", "delayed", "elements", "held_back", "set_aside")

    def __init__(self, elements: CursoredQueue) -> None:
        self.elements = elements
        self.cursor = Cursor(elements, 0)
        self.delayed: DelayedElements | None = None
        self.dead_lettering: DeadLettering | None = None
        self.set_aside: GroupBacklog | None = None
        self.held_back: HeldBack | None = None

    def of(self, sequence: int) -> State:
        """The state of this element. O(1)."""
        cursor = self.cursor
        if not self.elements.is_alive(sequence):
            return State.GONE
        if self.dead_lettering is not None and sequence in self.dead_lettering:
            return State.DEAD_LETTERING
        if self.delayed is not None and self.delayed.holds(sequence):
            return State.DELAYED
        if self.set_aside and self.set_aside.key_of(sequence) is not None:
            return State.SET_ASIDE
        if cursor.is_available(sequence):
            return State.AHEAD if sequence >= cursor.position else State.RETURNED
        return State.HELD

    def is_free(self, sequence: int) -> bool:
        """Return whether the element, which is in the queue, waits for nothing but a consumer with room. O(1)."""
        if self.dead_lettering is not None and sequence in self.dead_lettering:
            return False
        if self.delayed is not None and self.delayed.holds(sequence):
            return False
        if self.cursor.is_available(sequence):
            return True
        return self.set_aside is not None and self.set_aside.key_of(sequence) is not None

    def waits(self, sequence: int) -> bool:
        """Return whether the element, if it is in the queue, is neither held by a consumer nor given up. O(1)."""
        if self.dead_lettering is not None and sequence in self.dead_lettering:
            return False
        if self.cursor.is_available(sequence) or (self.delayed is not None and self.delayed.holds(sequence)):
            return True
        return self.set_aside is not None and self.set_aside.key_of(sequence) is not None

    def passed_sequences(self) -> Iterable[int]:
        """Elements that the cursor has passed and that lie free, in any order."""
        returned = self.cursor.returned_sequences
        return [*returned, *self.set_aside.sequences()] if self.set_aside else returned

    def withdraw(self, sequences: SequenceOf[int]) -> None:
        """Withdraw elements: they stay in the queue, and are not handed out any more. O(n)."""
        self.cursor.withdraw(sequences)
        self._leave_lines(sequences)

    def forget(self, sequences: SequenceOf[int]) -> None:
        """Forget elements that have left the queue without having been held. O(n)."""
        self.cursor.forget(sequences)
        self._leave_lines(sequences)

    def _leave_lines(self, sequences: SequenceOf[int]) -> None:
        if self.delayed is not None:
            self.delayed.discard(sequences)
        lines = self.set_aside
        if lines:
            for sequence in sequences:
                if lines.key_of(sequence) is not None:
                    lines.discard(sequence)
        if self.held_back:
            self.held_back.discard(sequences)
