"""Parts of a simulation that stand still, as a process does behind SIGSTOP: none of its tasks runs, time goes on.

    with Standstill() as standstill:
        standstill.stop(task)         this task, and all in nurseries below it
        standstill.go_on(task)        with all that has happened to them meanwhile, in that order

What comes for a task that stands still waits: the event that it waited for, the end of its sleep, its cancellation.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import trio

_trio_run: Any = trio._core._run  # as sluiceway.simulation.running: trio has no public way to hold a task back


class Standstill:
    """Decides which tasks of this run of trio go on. A context manager."""

    def __init__(self) -> None:
        self._missed: dict[trio.lowlevel.Task, list[tuple[trio.lowlevel.Task, Any]]] = {}

    def __enter__(self) -> Self:
        self._reschedule = reschedule = _trio_run.Runner.reschedule
        missed = self._missed

        def held_back(runner: Any, task: Any, next_send: Any = _trio_run._NO_SEND) -> None:
            if missed and (root := self._root_of(task)) is not None:
                task._abort_func = None  # it has its answer
                missed[root].append((task, next_send))
            else:
                reschedule(runner, task, next_send)

        _trio_run.Runner.reschedule = held_back
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in list(self._missed):
            self.go_on(task)
        _trio_run.Runner.reschedule = self._reschedule

    def _root_of(self, task: trio.lowlevel.Task) -> trio.lowlevel.Task | None:
        """Return the task that stands still with all below it, of which this is one."""
        at: trio.lowlevel.Task | None = task
        while at is not None:
            if at in self._missed:
                return at
            nursery = at.parent_nursery
            at = None if nursery is None else nursery.parent_task
        return None

    def stop(self, task: trio.lowlevel.Task) -> None:
        """Have a task and all below it stand still. Those that are to run now take one step more."""
        self._missed.setdefault(task, [])

    def go_on(self, task: trio.lowlevel.Task) -> None:
        """Have them go on. Does nothing if they do."""
        for each, next_send in self._missed.pop(task, ()):
            self._reschedule(trio._core._run.GLOBAL_RUN_CONTEXT.runner, each, next_send)
