"""Answers of one log: callbacks in order and a few at a time, so that ten thousand waiters for one sync delay nothing
else.

Each event (a write, a sync, a failure, the end of the log) adds a run of answers; runs are given one after the other.
The first few answers are given at once, the rest by dispatches of the log, or in steps after the log was closed.

Invariant: an exception of one answer affects neither the other answers nor the log.
Bound: the number of waiters, which are counted where they wait: receipts by their connection, requests by their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..environment import QueueEnvironment

AT_ONCE_COUNT: Final = 64
"""Answers per dispatch: two milliseconds, if each is the RECEIPT of one SEND."""

SENDS_PER_ANSWER: Final = 8
"""Number of SENDs in one answer that weigh as much as one more answer."""

Answer = tuple[Callable[[], object], int]
"""Callback, and the number of answers it weighs as much as."""


class LogAnswers:
    """Answers of one log."""

    __slots__ = ("_closed", "_environment", "_is_answering", "_owner", "_request", "_runs")

    def __init__(self, environment: QueueEnvironment, request: Callable[[], None], *, owner: str) -> None:
        """Take `request`, which schedules a call of `go_on`, and `owner`, the owner of the steps after `close`."""
        self._owner = owner
        self._environment = environment
        self._request = request
        self._runs: deque[Iterator[Answer]] = deque()
        self._is_answering = False
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether answers are still to be given."""
        return bool(self._runs)

    def add(self, run: Iterable[Answer]) -> None:
        """Queue `run` behind all earlier runs and give as many answers as one call may. An answer may do anything, so
        the state of the log must be whole when `add` is called. `run` is iterated when its turn comes.
        """
        self._runs.append(iter(run))
        if len(self._runs) == 1 and not self._is_answering and self.go_on():
            self._go_on_soon()

    def tell(self, callback: Callable[[], object]) -> None:
        """Queue one callback behind all earlier runs."""
        self.add(((callback, 1),))

    def go_on(self, count: int = AT_ONCE_COUNT) -> bool:
        """Give the next answers; return whether more are left."""
        runs = self._runs
        was_answering, self._is_answering = self._is_answering, True
        try:
            while runs and count > 0:
                found = next(runs[0], None)
                if found is None:
                    runs.popleft()
                    continue
                callback, weight = found
                count -= weight
                self._environment.carefully(callback)  # type: ignore[arg-type]
        finally:
            self._is_answering = was_answering
        return bool(runs)

    def close(self) -> None:
        """Give the remaining answers in steps, as the log is no longer dispatched."""
        self._closed = True
        if self._runs:
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self._closed:
            self._environment.do_in_steps(self._owner, self._in_steps())
        else:
            self._request()

    def _in_steps(self) -> Iterator[None]:
        while self.go_on(1):
            yield
