"""Who is told something by one log: in order and a few at a time, so ten thousand who wait for one sync hold up nobody.

What has happened (a write, a sync, a failure, the end of the log) leaves a run of answers behind; runs are given one
after the other. The first few are given at once, the rest by dispatches of the log; when that is closed, in steps.

Invariant: what one answer raises is no matter of the others, nor of the log.
Bound: as those who wait, who are counted where they wait: receipts by their connection, requests by their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..environment import QueueEnvironment

AT_ONCE_COUNT: Final = 64
"""In one dispatch: two milliseconds, if each is the RECEIPT of one SEND."""

SENDS_PER_ANSWER: Final = 8
"""So many SENDs of one answer weigh as much as an answer more."""

Answer = tuple[Callable[[], object], int]
"""What to call, and how many answers that is as much as."""


class Answers:
    """Those of one log."""

    __slots__ = ("_closed", "_environment", "_is_answering", "_owner", "_request", "_runs")

    def __init__(self, environment: QueueEnvironment, request: Callable[[], None], *, owner: str) -> None:
        """`request`: have `go_on` called soon; `owner`: whose steps the last ones are."""
        self._owner = owner
        self._environment = environment
        self._request = request
        self._runs: deque[Iterator[Answer]] = deque()
        self._is_answering = False
        self._closed = False

    @property
    def waits(self) -> bool:
        """Somebody is still to be told."""
        return bool(self._runs)

    def add(self, run: Iterable[Answer]) -> None:
        """Give these behind all that were added before: now, as far as that goes. Whoever is answered may do anything,
        so the state of the log is whole when this is called. `run` is gone through when its turn comes.
        """
        self._runs.append(iter(run))
        if len(self._runs) == 1 and not self._is_answering and self.go_on():
            self._go_on_soon()

    def tell(self, callback: Callable[[], object]) -> None:
        """The same for one."""
        self.add(((callback, 1),))

    def go_on(self, count: int = AT_ONCE_COUNT) -> bool:
        """Give the next ones. Returns whether there are more."""
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
        """The log is dispatched no more: what is left is given in steps."""
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
