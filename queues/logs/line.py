"""The consumers of one outlet, and whose turn it is: those that may have credit come one after the other.

A consumer without credit leaves the line, and is at its end again when it gets some. So a dispatch looks at those only
that it can serve, and at each of the others once, however many there are.

A source that gets credit holds its turn (flow/waiting.py) until its consumer was served, or there is nothing for it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .epochs import Reader

TURNS_COUNT: Final = 256
"""Turns that are given back in one go where nothing is there to be handed over."""


class ReaderLine:
    """Of one outlet. Each change and each question is O(1)."""

    __slots__ = ("_ready", "_turns", "all")

    def __init__(self) -> None:
        self.all: dict[Reader, None] = {}
        """In the order in which they came."""
        self._ready: OrderedDict[Reader, None] = OrderedDict()
        self._turns: OrderedDict[Reader, None] = OrderedDict()
        """Have got credit, and hold their turn."""

    def add(self, reader: Reader) -> None:
        """A new one."""
        self.all[reader] = self._ready[reader] = None

    def discard(self, reader: Reader) -> None:
        """It has left; its source is closed, and holds no turn any more."""
        self.all.pop(reader, None)
        self._ready.pop(reader, None)
        self._turns.pop(reader, None)

    def resumed(self, reader: Reader) -> bool:
        """It has credit again. Returns whether it holds its turn."""
        if reader not in self.all:
            return False
        self._ready[reader] = self._turns[reader] = None
        return True

    @property
    def first(self) -> Reader | None:
        """Whose turn it is; None: nobody may have credit."""
        return next(iter(self._ready), None)

    @property
    def ready_count(self) -> int:
        """How many may have credit."""
        return len(self._ready)

    def served(self, reader: Reader) -> None:
        """The first was looked at: it comes behind all others, or if it is blocked only when it is resumed."""
        if reader.source.blocked:
            self._ready.pop(reader, None)
        elif reader in self._ready:
            self._ready.move_to_end(reader)
        if self._turns and reader in self._turns:
            del self._turns[reader]
            reader.source.end_turn()

    def end_turns(self) -> bool:
        """There is nothing to be handed over: give some turns back. Returns whether there are more."""
        for _ in range(min(TURNS_COUNT, len(self._turns))):
            if not self._turns:
                break
            reader, _none = self._turns.popitem(last=False)
            reader.source.end_turn()
        return bool(self._turns)
