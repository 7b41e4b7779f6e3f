"""Long work of a queue between its deliveries: a portion of each piece at the beginning of a dispatch.

What asks all subscribers (who leads, who lags, who waited for a block) is done as a chore, so that no dispatch is long.
"""

from __future__ import annotations

from collections.abc import Callable

from .environment import DispatchHandle

Chore = Callable[[int], int]
"""Do a portion, within about this budget of a dispatch, and return its cost. A chore with more to do adds itself again.
One whose work was done or given up meanwhile does nothing.
"""


class Chores:
    """The chores of one queue.

    Attributes:
        due: chores for the next dispatch, the first one added first. Plain, because the hot path reads it.
    """

    __slots__ = ("_context", "due")

    def __init__(self, context: DispatchHandle) -> None:
        self._context = context
        self.due: dict[Chore, None] = {}

    def add(self, chore: Chore) -> None:
        """Do a portion of this with the next dispatch. A chore that is due already keeps its place."""
        self.due[chore] = None
        self._context.request_dispatch()

    def do(self, budget: int) -> int:
        """Do a portion of each chore that is due. Return what is left of the budget. A chore that an earlier one adds
        is done once: now if it was due, else with the next dispatch.
        """
        due = self.due
        for _ in range(len(due)):
            chore = next(iter(due))
            del due[chore]
            budget -= chore(budget)
        return budget
