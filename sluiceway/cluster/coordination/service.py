"""The coordination service of one host, without I/O: sessions, records and watches in one place.

A shell brings connections and messages (messages.py), calls `expire` in time, and makes `take_changes` durable before
it sends what the calls have given to the peers. `restore` makes the service go on from these changes: records, epochs
in them and sessions outlive it, so a hub that is stopped while the service is started anew loses nothing to another hub
before its session time has passed.

Sessions end when nothing was heard for their time, when the hub closes them, and, with `ends_with_connection`, when a
hub's end of its connection is closed: a process that is gone is known at once. A hub never closes its end while it
believes in its session (client.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import attrs

from sluiceway.store.compare_and_set import (
    BadVersionError,
    NoRecordError,
    Version,
    Versioned,
    checked_path,
    checked_value,
    next_version,
)

from . import port
from .messages import (
    Message,
    MessageError,
    decoded,
    hub_fields,
    hub_of,
    number_of,
    text_of,
    value_of,
    value_text,
)
from .port import Hub

SESSION_SECONDS_MIN: Final = 0.2
SESSION_SECONDS_MAX: Final = 300.0

Change = Mapping[str, Any]
"""Change to be made durable: JSON."""


class Peer(Hashable, Protocol):
    """Port to one connection, seen from the service."""

    def send(self, message: Message) -> None: ...
    def hang_up(self, why: str) -> None: ...


class Table:
    """Values by key: records by path, live hubs by `hub:NAME`."""

    def __init__(self) -> None:
        self._values: dict[str, Versioned[bytes]] = {}

    def get(self, key: str, reader: str) -> Versioned[bytes] | None:
        """Read a value, for a session."""
        return self._values.get(key)

    def names(self, prefix: str, reader: str) -> list[str]:
        """Return the first parts of all keys behind a prefix, sorted, for a session."""
        return sorted({key[len(prefix) :].partition("/")[0] for key in self._values if key.startswith(prefix)})

    def latest(self, key: str) -> Versioned[bytes] | None:
        """Read what a write is compared with."""
        return self._values.get(key)

    def records(self) -> Iterator[tuple[str, Versioned[bytes]]]:
        """Yield the latest records with their paths."""
        yield from ((key, value) for key, value in self._values.items() if key.startswith("/"))

    def put(self, key: str, value: Versioned[bytes] | None, writer: str) -> None:
        """Change a value (None: delete it), for a session or for the service (empty)."""
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value


@attrs.define
class _Session:
    name: str
    hub: Hub
    seconds: float
    deadline_seconds: float


@attrs.define
class _Attached:
    """Session and watches of one connection."""

    session: str = ""
    watches: set[str] = attrs.field(factory=set)


class _RefusedError(Exception):
    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class Service:
    """Sessions, records and watches of all hubs."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        table: Table | None = None,
        ends_with_connection: bool = False,
        run_number: int = 1,
    ) -> None:
        """`run_number`: another one for each start, part of the names of sessions."""
        self._clock = clock
        self._table = Table() if table is None else table
        self._ends_with_connection = ends_with_connection
        self._run_number = run_number
        self._sessions_count = 0
        self._sessions: dict[str, _Session] = {}
        self._peers: dict[Peer, _Attached] = {}
        self._changes: list[Change] = []
        self.on_expired: Callable[[str], None] = _nobody_asks
        """Callback with the name of a hub whose session has ended in time: it is silent, and may still run."""

    # State, for shells.

    @property
    def next_deadline_seconds(self) -> float:
        """Time at which `expire` has something to do, at the earliest; infinity without sessions. O(hubs)."""
        return min((session.deadline_seconds for session in self._sessions.values()), default=math.inf)

    @property
    def hubs(self) -> Mapping[str, Hub]:
        """Live hubs by name."""
        return {session.hub.name: session.hub for session in self._sessions.values()}

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, to be made durable before anything is sent."""
        changes, self._changes = self._changes, []
        return changes

    def snapshot(self) -> list[Change]:
        """Return the state as changes."""
        records = [_put(path, value) for path, value in self._table.records()]
        return [*records, *(_opened(session) for session in self._sessions.values())]

    def restore(self, changes: Iterable[Change]) -> None:
        """Go on from changes of an earlier run. Sessions have their whole time again. Raises MessageError."""
        for change in changes:
            if "opened" in change:
                hub = hub_of(change["hub"])
                seconds = float(number_of(change, "seconds"))
                name = text_of(change, "opened")
                self._sessions[name] = _Session(name, hub, seconds, self._clock() + seconds)
                self._show(hub, "")
            elif "ended" in change:
                gone = self._sessions.pop(text_of(change, "ended"), None)
                if gone is not None:
                    self._table.put(f"hub:{gone.hub.name}", None, "")
            elif "value" in change:
                version = Version(int(number_of(change, "version")))
                self._table.put(text_of(change, "path"), Versioned(value_of(change), version), "")
            else:
                self._table.put(text_of(change, "path"), None, "")

    # Calls of the shell.

    def connected(self, peer: Peer) -> None:
        """Begin with a connection."""
        self._peers[peer] = _Attached()

    def disconnected(self, peer: Peer) -> None:
        """End with a connection whose other end was closed."""
        attached = self._peers.pop(peer, None)
        if attached is not None and attached.session and self._ends_with_connection:
            self._end(attached.session, "the connection ended")

    def received(self, peer: Peer, message: Message) -> None:
        """Carry out a request, and answer."""
        attached = self._peers.get(peer)
        if attached is None:
            return
        self.expire()  # what is past its time is over, whether or not the shell has looked
        try:
            number = number_of(message, "n")
            answer = self._answer(peer, attached, message)
        except _RefusedError as refused:
            answer = {"error": refused.code, "words": str(refused)}
        except BadVersionError as error:
            answer = {"error": "bad-version", "words": str(error), "current": error.current.number}
        except NoRecordError as error:
            answer = {"error": "no-record", "words": str(error)}
        except ValueError as error:  # MessageError is one
            self._peers.pop(peer)
            peer.hang_up(str(error))
            return
        peer.send({"n": number, **answer})

    def expire(self) -> None:
        """End the sessions whose time has passed."""
        now_seconds = self._clock()
        for session in [one for one in self._sessions.values() if one.deadline_seconds <= now_seconds]:
            self._end(session.name, f"nothing was heard for {session.seconds:g} s")
            self.on_expired(session.hub.name)

    def renew(self) -> None:
        """Give every session its whole time: nothing could be heard for a while."""
        for session in self._sessions.values():
            session.deadline_seconds = self._clock() + session.seconds

    def end(self, session: str, words: str) -> None:
        """End a session, for whatever reason."""
        self._end(session, words)

    # Requests.

    def _answer(self, peer: Peer, attached: _Attached, message: Message) -> Message:
        operation = text_of(message, "op")
        if operation == "open":
            return self._open(peer, attached, message)
        session = self._sessions.get(attached.session)
        if session is None:
            raise _RefusedError("session-ended", f"the session {attached.session or 'of this connection'} is over")
        session.deadline_seconds = self._clock() + session.seconds
        match operation:
            case "beat":
                return {}
            case "advertise":
                self._advertise(session, hub_of(message.get("hub")))
                return {}
            case "read":
                return self._read(session, checked_path(text_of(message, "path")))
            case "write":
                return self._write(session, message)
            case "delete":
                return self._delete(session, message)
            case "children":
                path = text_of(message, "path")
                return {"names": self._table.names(f"{checked_path(path)}/", session.name)}
            case "hubs":
                return {"hubs": self._hubs_for(session.name)}
            case "watch":
                attached.watches.add(checked_path(text_of(message, "path")))
                return {}
            case "unwatch":
                attached.watches.discard(text_of(message, "path"))
                return {}
            case "close":
                attached.session = ""
                self._end(session.name, "the hub closed it")
                return {}
        raise MessageError(f"{operation[:80]!r} is no request")

    def _open(self, peer: Peer, attached: _Attached, message: Message) -> Message:
        seconds = min(max(float(number_of(message, "session_seconds")), SESSION_SECONDS_MIN), SESSION_SECONDS_MAX)
        hub = hub_of(message.get("hub"))
        ended = self._sessions.get(text_of(message, "ended"))
        if ended is not None and ended.hub.name == hub.name:
            self._end(ended.name, "the hub gave it up")
        wanted = text_of(message, "session")
        if wanted:
            session = self._sessions.get(wanted)
            if session is None or session.hub.name != hub.name:
                raise _RefusedError("session-ended", f"the session {wanted} is over")
            for other, theirs in list(self._peers.items()):
                if theirs.session == wanted and other is not peer:
                    self._peers.pop(other)
                    other.hang_up("the hub has connected anew")
            session.deadline_seconds = self._clock() + session.seconds
        else:
            self._refuse_second(hub.name)
            if len(self._sessions) >= port.HUBS_MAX:
                raise _RefusedError("too-many", port.too_many())
            self._sessions_count += 1
            name = f"{self._run_number}-{self._sessions_count}"
            session = _Session(name, attrs.evolve(hub, session=name), seconds, self._clock() + seconds)
            self._sessions[name] = session
            self._changes.append(_opened(session))
            self._show(session.hub, name)
        attached.session = session.name
        return {"session": session.name, "session_seconds": session.seconds}

    def _refuse_second(self, name: str) -> None:
        for session in self._sessions.values():
            if session.hub.name == name:
                left_seconds = session.deadline_seconds - self._clock()
                raise _RefusedError(
                    "name-taken",
                    f"{name} is in the cluster already, from {session.hub.address or 'an unknown address'}: every hub "
                    f"needs a name of its own. If that is an earlier run of this hub, its session ends in "
                    f"{left_seconds:.0f} s",
                )

    def _advertise(self, session: _Session, hub: Hub) -> None:
        if hub.name != session.hub.name:
            raise MessageError(f"{session.hub.name} can't become {hub.name}: a hub keeps its name")
        session.hub = attrs.evolve(hub, session=session.name)
        self._changes.append(_opened(session))
        self._show(session.hub, session.name)

    def _read(self, session: _Session, path: str) -> Message:
        value = self._table.get(path, session.name)
        return {} if value is None else {"value": value_text(value.value), "version": value.version.number}

    def _write(self, session: _Session, message: Message) -> Message:
        path = checked_path(text_of(message, "path"))
        value = checked_value(value_of(message))
        given = Version(int(number_of(message, "version")))
        current = self._table.latest(path)
        version = next_version(path, None if current is None else current.version, given, NoRecordError)
        self._change(path, Versioned(value, version), session.name, new=current is None)
        return {"version": version.number}

    def _delete(self, session: _Session, message: Message) -> Message:
        path = checked_path(text_of(message, "path"))
        given = Version(int(number_of(message, "version")))
        current = self._table.latest(path)
        next_version(path, None if current is None else current.version, given, NoRecordError, new=False)
        self._change(path, None, session.name, new=False)
        return {}

    def _change(self, path: str, value: Versioned[bytes] | None, writer: str, *, new: bool) -> None:
        self._table.put(path, value, writer)
        self._changes.append({"path": path} if value is None else _put(path, value))
        self._tell_watchers(path)
        while (value is None or new) and path.rpartition("/")[0]:
            path = path.rpartition("/")[0]
            self._tell_watchers(path)

    def _tell_watchers(self, path: str) -> None:
        for peer, attached in list(self._peers.items()):
            if path in attached.watches:
                peer.send({"event": "changed", "path": path})

    # Hubs.

    def _hubs_for(self, reader: str) -> list[Message]:
        keys = [f"hub:{name}" for name in self._table.names("hub:", reader)]
        return [decoded(found.value) for key in keys if (found := self._table.get(key, reader)) is not None]

    def _show(self, hub: Hub, writer: str) -> None:
        """Put a hub into the list of live ones, or change the entry."""
        self._table.put(f"hub:{hub.name}", Versioned(json.dumps(hub_fields(hub)).encode(), Version(0)), writer)
        self._tell_of_hubs()

    def _end(self, name: str, words: str) -> None:
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._changes.append({"ended": name})
        self._table.put(f"hub:{session.hub.name}", None, "")
        for peer, attached in list(self._peers.items()):
            if attached.session == name:
                attached.session = ""
                attached.watches.clear()
                peer.send({"event": "ended", "words": words})
        self._tell_of_hubs()

    def _tell_of_hubs(self) -> None:
        for peer, attached in list(self._peers.items()):
            if attached.session:
                peer.send({"event": "hubs"})


def _opened(session: _Session) -> Change:
    return {"opened": session.name, "hub": hub_fields(session.hub), "seconds": session.seconds}


def _put(path: str, value: Versioned[bytes]) -> Change:
    return {"path": path, "value": value_text(value.value), "version": value.version.number}


def _nobody_asks(_hub: str) -> None:
    return
