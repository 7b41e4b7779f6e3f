"""Life of a session: its states, and the events that lead from one to the next, as data.

A state says what the session still does: whether frames take effect, whether bytes may be written, what is left to be
sent on. Why a session ends, and whether that is a failure, are facts beside the state. The life only goes forward, so
`state >= SessionState.ENDING` asks whether it has come so far.

The states of the protocol, one side of the conversation each, are in transitions.py: a parked machine and an ending
session are different things, since an ERROR has to reach the peer. Picture: docs/design/session.md, made from `MOVES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final


class SessionState(IntEnum):
    """States of a session, in the order of its life."""

    GREETING = 0
    """Waits for CONNECT."""
    DECIDING = 1
    """Waits for the check of a login. What came behind the CONNECT is held back."""
    OPEN = 2
    """Frames take effect."""
    LEAVING = 3
    """Has seen DISCONNECT, and sends on the SENDs parked before it. Nothing but the end of the stream is read."""
    CONFIRMING = 4
    """Waits until the disk has everything that the RECEIPT of the DISCONNECT promises."""
    ENDING = 5
    """Writes the rest, such as an ERROR; then the transport closes."""
    DRAINING = 6
    """Has no socket. Requeues unacknowledged deliveries, and sends on parked SENDs."""
    MOVING = 7
    """Parks nothing. Transactions on the disk still go to their queues; answers to requests are dropped."""
    ENDED = 8
    """Holds nothing."""


class SessionEvent(Enum):
    """Events that move a session to another state."""

    CONNECT = "CONNECT"
    ACCEPTED = "login accepted"
    DISCONNECT = "DISCONNECT"
    SENT_ON = "nothing is parked"
    END = "end or ERROR"
    CLOSE = "socket closed"
    RELEASED = "nothing is left"


_ANY_TIME: Final = {SessionEvent.END: SessionState.ENDING, SessionEvent.CLOSE: SessionState.DRAINING}

MOVES: Final[Mapping[SessionState, Mapping[SessionEvent, SessionState]]] = MappingProxyType(
    {
        SessionState.GREETING: {SessionEvent.CONNECT: SessionState.DECIDING, **_ANY_TIME},
        SessionState.DECIDING: {SessionEvent.ACCEPTED: SessionState.OPEN, **_ANY_TIME},
        SessionState.OPEN: {SessionEvent.DISCONNECT: SessionState.LEAVING, **_ANY_TIME},
        SessionState.LEAVING: {SessionEvent.SENT_ON: SessionState.CONFIRMING, **_ANY_TIME},
        SessionState.CONFIRMING: _ANY_TIME,
        SessionState.ENDING: {SessionEvent.CLOSE: SessionState.DRAINING},
        SessionState.DRAINING: {SessionEvent.SENT_ON: SessionState.MOVING},
        SessionState.MOVING: {SessionEvent.RELEASED: SessionState.ENDED},
        SessionState.ENDED: {},
    }
)
"""Legal moves: from each state, by which event, to which state. All other events are bugs of the broker."""


def moved(state: SessionState, event: SessionEvent) -> SessionState:
    """The state that `event` leads to from `state`. Raises AssertionError if there is none."""
    after = MOVES[state].get(event)
    assert after is not None, f"{event.value!r} can't happen to a session that is {state.name}"
    return after
