"""Repeated work: a sweep, a check of the disk, a pulse.

The next run is scheduled before the work begins. So work that raises loses only this run: the error goes to the error
hook of the dispatcher, and the work is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class _Handle(Protocol):
    def cancel(self) -> None: ...


class Periodic:
    """One kind of periodic work, from `start` to `stop`."""

    __slots__ = ("_call_later", "_interval_seconds", "_timer", "_work")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], _Handle],
        interval_seconds: float,
        work: Callable[[], object],
    ) -> None:
        """Take `call_later` of the dispatcher, and `interval_seconds` between the beginnings of two runs."""
        self._call_later = call_later
        self._interval_seconds = interval_seconds
        self._work = work
        self._timer: _Handle | None = None

    def start(self, delay_seconds: float | None = None) -> None:
        """Schedule a run after this delay (None: the interval), then every interval. Replaces the scheduled run, so the
        work itself may ask for an earlier one.
        """
        self.stop()
        delay_seconds = self._interval_seconds if delay_seconds is None else delay_seconds
        self._timer = self._call_later(delay_seconds, self._due)

    def stop(self) -> None:
        """Stop the work. A second call does nothing; `start` begins again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self.start()
        self._work()
