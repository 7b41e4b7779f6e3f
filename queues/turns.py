"""Turns of transactions that take effect in steps, where no store gives them: one at a time.

What one of them finds free in its queues is so until it has taken it, but for what others bring in one go. With a store
the joints of that are the turns (`sluiceway.queues.storage.Store.join`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..flow import FlowResource, WaitEdge
from .storage import Confirms


class Turn:
    """Turn of one transaction. Satisfies `sluiceway.queues.storage.Joint`: nothing of it is ever written."""

    __slots__ = ("_go_on", "_since", "_turns", "owner")

    is_broken = False

    def __init__(self, turns: Turns, owner: FlowResource, since: float) -> None:
        self._turns = turns
        self.owner = owner
        """Owner of the transaction."""
        self._since = since
        self._go_on: Callable[[], None] | None = None

    @property
    def waits(self) -> bool:
        return self._turns.first is not self

    @property
    def some_storage(self) -> Confirms | None:
        return None

    def begin(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on

    def edge(self) -> WaitEdge:
        return WaitEdge(self._turns.first.owner, self._since, "a large transaction of it takes effect first")

    def add(self, storage: Confirms) -> None:
        return

    def end(self) -> None:
        self._turns.end(self)

    def its_turn(self) -> None:
        """Continue the transaction, whose turn has come."""
        if self._go_on is not None:
            self._go_on()


class Turns:
    """Turns of the transactions of one broker. Bound: one for each connection."""

    __slots__ = ("_clock", "_line")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line: deque[Turn] = deque()

    @property
    def first(self) -> Turn:
        """Turn that is active; there must be one."""
        return self._line[0]

    def join(self, owner: FlowResource) -> Turn:
        """A new one, behind all others."""
        turn = Turn(self, owner, self._clock())
        self._line.append(turn)
        return turn

    def end(self, turn: Turn) -> None:
        """End a turn, or a wait for it. A second call does nothing."""
        if turn not in self._line:
            return
        was_first = self._line[0] is turn
        self._line.remove(turn)
        if was_first and self._line:
            self._line[0].its_turn()
