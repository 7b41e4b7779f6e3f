"""Work that comes again and again: a sweep, a look at the disk, a pulse.

The next time is arranged before the work begins. So work that raises has lost this one time only: the error goes to the
error hook of the dispatcher, and the work comes again.
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
        """`call_later`: that of the dispatcher; `interval_seconds` from the begin of the work to the next one's."""
        self._call_later = call_later
        self._interval_seconds = interval_seconds
        self._work = work
        self._timer: _Handle | None = None

    def start(self, delay_seconds: float | None = None) -> None:
        """Work after this delay (None: the interval), then every interval. What was arranged before is not done; so
        the work itself may say that it comes again sooner.
        """
        self.stop()
        delay_seconds = self._interval_seconds if delay_seconds is None else delay_seconds
        self._timer = self._call_later(delay_seconds, self._due)

    def stop(self) -> None:
        """Work no more. A second call does nothing; `start` begins again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self.start()
        self._work()
