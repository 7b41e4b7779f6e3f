"""Every legal transition of a STOMP connection, as data.

A connection is two conversations over one socket, and each side keeps one state. Received and sent frames move it. The
tables below say which commands may *arrive* in which state, from which version on, where they lead, and what the parser
must do with the bytes behind them. There is no other place that knows.

The server's life::

    GREETING --CONNECT/STOMP--> DECIDING --we send CONNECTED--> CONNECTED --DISCONNECT--> DISCONNECTING
        \\________________________\\____ fault, or we send ERROR ____\\___________________________\\---> PARKED

The client's life::

    IDLE --we send CONNECT--> GREETING --CONNECTED--> CONNECTED --we send DISCONNECT--> DISCONNECTING
                                  \\________________ ERROR, or a fault ____________________\\---> PARKED

Three rules need saying:

* The bytes behind a CONNECT can't be read before it is answered: the answer picks the version, and the version picks
  the escapes. So the parser *holds* there. A client that pipelines its first SENDs behind its CONNECT is served all
  the same.
* The bytes behind a DISCONNECT (or, at a client, behind an ERROR) mean nothing any more (b57): the parser *ends*
  there.
* PARKED is for ever. A machine that saw a fault is never used again: after bytes that made no sense nobody knows
  where a frame begins.

The second half of the file says what a frame must contain: required headers, bodies, ack modes.
Deliberately not here: whether a subscription or a transaction of that name exists (the session).

Source: STOMP 1.0, 1.1, 1.2; checklist b4, b15, b22, b28, b31-b34, b40, b41, b45, b54, b57.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

import attrs

from .errors import ProtocolError
from .escaping import SUPPORTED_VERSIONS, Version

Role = Literal["server", "client"]


class State(enum.Enum):
    """State of one side of a connection."""

    IDLE = "idle"
    GREETING = "greeting"
    DECIDING = "deciding"
    CONNECTED = "connected"
    DISCONNECTING = "disconnecting"
    PARKED = "parked"


class Then(enum.Enum):
    """Handling of the bytes behind a frame by the parser."""

    GO_ON = "go on"
    HOLD = "hold"
    END = "end"


@attrs.frozen(slots=True)
class Move:
    """One legal arrival: in which versions, into which state, and what becomes of the bytes behind it."""

    to: State
    versions: frozenset[Version] = frozenset(SUPPORTED_VERSIONS)
    then: Then = Then.GO_ON


_FROM_1_1: Final[frozenset[Version]] = frozenset(("1.1", "1.2"))
_STAY: Final = Move(State.CONNECTED)

_CLIENT_HEARS: Final[Mapping[str, Move]] = {
    "MESSAGE": _STAY,
    "RECEIPT": _STAY,
    "ERROR": Move(State.PARKED, then=Then.END),
}

ARRIVALS: Final[Mapping[Role, Mapping[State, Mapping[str, Move]]]] = {
    "server": {
        State.GREETING: {
            "CONNECT": Move(State.DECIDING, then=Then.HOLD),
            "STOMP": Move(State.DECIDING, then=Then.HOLD),
        },
        State.CONNECTED: {
            "SEND": _STAY,
            "SUBSCRIBE": _STAY,
            "UNSUBSCRIBE": _STAY,
            "ACK": _STAY,
            "NACK": Move(State.CONNECTED, _FROM_1_1),
            "BEGIN": _STAY,
            "COMMIT": _STAY,
            "ABORT": _STAY,
            "DISCONNECT": Move(State.DISCONNECTING, then=Then.END),
        },
    },
    "client": {
        State.GREETING: {
            "CONNECTED": Move(State.CONNECTED, then=Then.HOLD),
            "ERROR": Move(State.PARKED, then=Then.END),
        },
        State.CONNECTED: _CLIENT_HEARS,
        # A client that said DISCONNECT still reads what was under way, at least the RECEIPT (b56).
        State.DISCONNECTING: {name: attrs.evolve(move, to=State.DISCONNECTING) for name, move in _CLIENT_HEARS.items()}
        | {"ERROR": _CLIENT_HEARS["ERROR"]},
    },
}

#: What a client may send, where it leads. (What a server sends is spread over the queues; `ServerMachine` guards
#: accept and reject.)
DEPARTURES: Final[Mapping[State, Mapping[str, Move]]] = {
    State.IDLE: {"CONNECT": Move(State.GREETING), "STOMP": Move(State.GREETING)},
    State.CONNECTED: {
        name: attrs.evolve(move, then=Then.GO_ON) for name, move in ARRIVALS["server"][State.CONNECTED].items()
    },
}

CLIENT_COMMANDS: Final = frozenset(ARRIVALS["server"][State.GREETING]) | frozenset(ARRIVALS["server"][State.CONNECTED])
SERVER_COMMANDS: Final = frozenset(("CONNECTED", "MESSAGE", "RECEIPT", "ERROR"))

#: Frames that are never escaped, in any version (b10).
NEVER_ESCAPED: Final = frozenset(("CONNECT", "STOMP", "CONNECTED"))

#: Frames that may carry a body (b4).
WITH_BODY: Final = frozenset(("SEND", "MESSAGE", "ERROR"))

#: Frames whose body is thrown away instead of being refused: the samples of 1.0 have one here (b4).
BODY_IGNORED: Final[frozenset[tuple[str, Version]]] = frozenset({("SUBSCRIBE", "1.0")})

_TRANSACTION: Final = dict.fromkeys(SUPPORTED_VERSIONS, (("transaction",),))

#: Headers that a frame needs. Each requirement is a tuple of names of which one must be there and not be empty. The
#: destination of a SEND is not listed: `SendHead` can't exist without it.
REQUIRED_HEADERS: Final[Mapping[str, Mapping[Version, tuple[tuple[str, ...], ...]]]] = {
    "SUBSCRIBE": {
        "1.0": (("destination",),),
        "1.1": (("destination",), ("id",)),
        "1.2": (("destination",), ("id",)),
    },
    "UNSUBSCRIBE": {"1.0": (("id", "destination"),), "1.1": (("id",),), "1.2": (("id",),)},
    "ACK": {"1.0": (("message-id",),), "1.1": (("message-id",), ("subscription",)), "1.2": (("id",),)},
    "NACK": {"1.1": (("message-id",), ("subscription",)), "1.2": (("id",),)},
    "BEGIN": _TRANSACTION,
    "COMMIT": _TRANSACTION,
    "ABORT": _TRANSACTION,
}

#: Values that the `ack` header of a SUBSCRIBE may have (b32).
ACK_MODES: Final = ("auto", "client", "client-individual")
"""The last one is of 1.1; clients of 1.0 say it all the same, and brokers that speak all versions take it."""

_HTTP: Final = re.compile(r"[A-Z]{3,10} \S+(?: HTTP/\d|$)")


@cache
def arrivals(role: Role, state: State, version: Version | None) -> Mapping[bytes, tuple[str, Then]]:
    """The commands that may arrive now, by their bytes: the form the parser looks them up in. One for all connections:
    only to be read.
    """
    moves = ARRIVALS[role].get(state, {})
    return {
        name.encode(): (name, move.then) for name, move in moves.items() if version is None or version in move.versions
    }


def refusal(role: Role, state: State, version: Version | None, command: str) -> ProtocolError:
    """Make the error for a `command` (the whole first line of a frame) that may not arrive now."""
    if state is State.GREETING:
        if _HTTP.match(command) is not None:
            return ProtocolError(
                "http-request",
                "this is a STOMP port, not HTTP",
                "The first line looks like an HTTP request. Use a STOMP client, or the HTTP port of the broker.",
            )
        expected = "CONNECT or STOMP" if role == "server" else "CONNECTED or ERROR"
        return ProtocolError(
            "not-connected",
            f"expected {expected}, got {command[:40]!r}",
            f"The first frame on a connection must be {expected}.",
        )
    if command in NEVER_ESCAPED and role == "server":
        return ProtocolError(
            "already-connected",
            f"{command} on a connection that is already connected",
            "Send CONNECT once per connection; open another connection for another login.",
        )
    if role == "server" and command in CLIENT_COMMANDS:
        return ProtocolError(
            "not-in-this-version",
            f"{command} does not exist in STOMP {version}",
            f"Connect with accept-version 1.1 or 1.2 to use {command}.",
        )
    if command in SERVER_COMMANDS | CLIENT_COMMANDS:
        return ProtocolError(
            "wrong-direction",
            f"{command} may not be sent to a {role}",
            f"Only the other side of a connection sends {command}.",
        )
    return ProtocolError(
        "unknown-command",
        f"unknown command {command[:40]!r}",
        "Commands are case sensitive."
        " If the body of the frame before held a NUL, that frame needed a content-length header.",
    )


def check_required_headers(command: str, headers: Mapping[str, str], version: Version) -> None:
    """Raise `ProtocolError` unless `headers` has all that `command` needs in `version`."""
    for names in REQUIRED_HEADERS.get(command, {}).get(version, ()):
        if not any(headers.get(name) for name in names):
            wanted = " or ".join(names)
            raise ProtocolError(
                "missing-header",
                f"{command} without {wanted}",
                f"STOMP {version} requires {wanted} on {command}; add the header with a value.",
            )
