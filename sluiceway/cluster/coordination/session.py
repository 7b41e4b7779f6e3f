"""Certainty of one hub's session, by its own monotonic clock.

           began              2/3 without an answer
    NONE ─────────▶ CERTAIN ─────────────────────────▶ UNCERTAIN
     ▲                 │  ◀───────────────────────────────┤ heard
     └─────────────────┴──── ended ◀──────────────────────┘ 9/10 without an answer, or the service says so

The time counts from the moment at which the hub *asked* what was answered last: the service heard it no earlier than
that. So the session ends here before it ends there, however long the answer took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from .port import CoordinationEvents, Scheduling, SessionState, TimerHandle

CERTAIN_SHARE: Final = 2 / 3
"""Share of the session time after which a hub that has heard nothing confirms nothing."""

ENDED_SHARE: Final = 0.9
"""Share after which the hub gives the session up: clocks may run apart by a tenth."""


class SessionClock:
    """State of the session, its timers and its events."""

    def __init__(
        self,
        scheduling: Scheduling,
        clock: Callable[[], float],
        events: CoordinationEvents,
        gave_up: Callable[[str, str], None],
    ) -> None:
        """`gave_up` is called with session and reason before a session ends by this clock."""
        self._gave_up = gave_up
        self._scheduling = scheduling
        self._clock = clock
        self._events = events
        self._timer: TimerHandle | None = None
        self._seconds = 0.0
        self._asked_at_seconds = -math.inf
        self.state = SessionState.NONE
        self.session: str | None = None
        self.certain_until_seconds = -math.inf
        """See Coordination."""

    def began(self, session: str, session_seconds: float, asked_at_seconds: float) -> bool:
        """Begin a session that was asked for at that time. Returns False, and does nothing, if it is over already."""
        self._end_timer()
        if self._clock() >= asked_at_seconds + session_seconds * CERTAIN_SHARE:
            return False
        self.session = session
        self._seconds = session_seconds
        self._count_from(asked_at_seconds)
        self.state = SessionState.CERTAIN
        self._due()
        self._events.session_began(session)
        return True

    def heard(self, asked_at_seconds: float) -> None:
        """Note an answer to what was asked at that time."""
        if self.session is None:
            return
        if asked_at_seconds > self._asked_at_seconds:
            was_certain_seconds = self.certain_until_seconds
            self._count_from(asked_at_seconds)
            if self.state is SessionState.CERTAIN and self._clock() >= was_certain_seconds:
                # A process that stood, or was busy, hears this before its timer: who has looked at the clock in between
                # has held back what nobody else would let go.
                self.state = SessionState.UNCERTAIN
                self._events.session_uncertain()
        self._look()

    def end(self, reason: str) -> None:
        """End the session: the service said so, or it can't be used any more."""
        self._end_timer()
        if self.session is None:
            return
        self.session = None
        self.state = SessionState.NONE
        self.certain_until_seconds = -math.inf
        self._events.session_ended(reason)

    def close(self) -> None:
        """End the session without an event."""
        self._end_timer()
        self.session = None
        self.state = SessionState.CLOSED
        self.certain_until_seconds = -math.inf

    def _count_from(self, asked_at_seconds: float) -> None:
        self._asked_at_seconds = asked_at_seconds
        self.certain_until_seconds = asked_at_seconds + self._seconds * CERTAIN_SHARE

    def _look(self) -> None:
        """Compare with the clock, and report what has changed since the last look."""
        now_seconds = self._clock()
        if now_seconds >= self._asked_at_seconds + self._seconds * ENDED_SHARE:
            words = f"nothing was heard from the coordination service for {now_seconds - self._asked_at_seconds:.1f} s"
            if self.session is not None:
                self._gave_up(self.session, words)
            self.end(words)
        elif now_seconds >= self.certain_until_seconds:
            if self.state is SessionState.CERTAIN:
                self.state = SessionState.UNCERTAIN
                self._events.session_uncertain()
        elif self.state is SessionState.UNCERTAIN:
            self.state = SessionState.CERTAIN
            self._events.session_certain()

    def _due(self) -> None:
        self._timer = None
        self._look()
        if self.session is not None and self._timer is None:
            share = CERTAIN_SHARE if self.state is SessionState.CERTAIN else ENDED_SHARE
            due_seconds = self._asked_at_seconds + self._seconds * share
            self._timer = self._scheduling.call_later(max(due_seconds - self._clock(), 0.001), self._due)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
