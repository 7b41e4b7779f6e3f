"""Sessions by their names: those with a connection, and those whose connection has ended while SENDs of theirs are
still on their way to queues or logs that had no room.

Bound: of the second kind each has something in what was left behind, which is bounded; those that are through go when
there have come to be twice as many as were left the last time.
"""

from __future__ import annotations

from typing import Final

from protocols.stomp.session import Session

PRUNE_MIN: Final = 64


class SessionTable:
    """Of one broker."""

    __slots__ = ("_connected", "_leaving", "_prune_at")

    def __init__(self) -> None:
        self._connected: dict[str, Session] = {}
        self._leaving: dict[str, Session] = {}
        self._prune_at = PRUNE_MIN

    def began(self, session: Session) -> None:
        """It has a connection."""
        self._connected[session.session_id] = session

    def ended(self, session: Session) -> None:
        """Its connection is no more, and the session is closed."""
        del self._connected[session.session_id]
        if not session.is_drained:
            self._leaving[session.session_id] = session
            if len(self._leaving) >= self._prune_at:
                self._leaving = {name: each for name, each in self._leaving.items() if not each.is_drained}
                self._prune_at = max(PRUNE_MIN, 2 * len(self._leaving))

    def may_act(self, session_id: str) -> bool:
        """Whether anything may still come of what it has sent."""
        if session_id in self._connected:
            return True
        leaving = self._leaving.get(session_id)
        if leaving is None:
            return False
        if leaving.is_drained:
            del self._leaving[session_id]
            return False
        return True
