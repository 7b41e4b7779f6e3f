"""Turns of the consumers of one log reader: consumers that may have credit are served round-robin.

A consumer without credit leaves the line, and rejoins at the end when it gets credit. So a dispatch visits only
consumers that it can serve, and each other one once, however many there are.

A source that gets credit holds its turn (flow/waiting.py) until its consumer was served, or nothing is left to deliver.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from ..subscription import Subscription

R = TypeVar("R", bound=Subscription)

TURNS_COUNT: Final = 256
"""Turns ended per call when there is nothing to deliver."""


class ReaderLine(Generic[R]):
    """Consumers of one log reader, by their subscriptions. Each change and each query is O(1)."""

    __slots__ = ("_ready", "_turns", "all")

    def __init__(self) -> None:
        self.all: dict[R, None] = {}
        """Consumers in the order of their arrival."""
        self._ready: OrderedDict[R, None] = OrderedDict()
        self._turns: OrderedDict[R, None] = OrderedDict()
        """Consumers that got credit and hold their turn."""

    def add(self, reader: R) -> None:
        """Add a new consumer."""
        self.all[reader] = self._ready[reader] = None

    def discard(self, reader: R) -> None:
        """Remove a consumer that has left; its closed source holds no turn."""
        self.all.pop(reader, None)
        self._ready.pop(reader, None)
        self._turns.pop(reader, None)

    def resumed(self, reader: R) -> bool:
        """Note that the consumer has credit again; return whether its source holds the turn."""
        if reader not in self.all:
            return False
        self._ready[reader] = self._turns[reader] = None
        return True

    def rest(self, reader: R) -> None:
        """Take a consumer out of the line that must not be served now."""
        self._ready.pop(reader, None)

    def wake(self, reader: R) -> None:
        """Put a consumer into the line that may be served again, if it may have credit."""
        if reader in self.all and not reader.source.blocked:
            self._ready[reader] = None

    @property
    def ready(self) -> OrderedDict[R, None]:
        """Consumers that may have credit, the next one first; by_key.py rotates it."""
        return self._ready

    @property
    def first(self) -> R | None:
        """Next consumer; None if none may have credit."""
        return next(iter(self._ready), None)

    @property
    def ready_count(self) -> int:
        """Number of consumers that may have credit."""
        return len(self._ready)

    def served(self, reader: R) -> None:
        """Move a served consumer to the end of the line; a blocked one rejoins when it is resumed."""
        if reader.source.blocked:
            self._ready.pop(reader, None)
        elif reader in self._ready:
            self._ready.move_to_end(reader)
        if self._turns and reader in self._turns:
            del self._turns[reader]
            reader.source.end_turn()

    def end_turns(self) -> bool:
        """End some turns, as there is nothing to deliver; return whether more are held."""
        for _ in range(min(TURNS_COUNT, len(self._turns))):
            if not self._turns:
                break
            reader, _none = self._turns.popitem(last=False)
            reader.source.end_turn()
        return bool(self._turns)
