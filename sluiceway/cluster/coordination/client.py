"""A hub's side of the coordination service of one host, without I/O: requests with numbers, a session that is taken up
again after a lost connection, beats, watches.

The shell makes connections (`Channel`), and calls `connected`, `received` and `disconnected`.

The client closes its end of a connection only when it has no session, or has ended it: the service may take the end of
a connection for the end of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import attrs

from sluiceway.store.compare_and_set import (
    BadVersionError,
    MetadataError,
    MetadataFailedError,
    NoRecordError,
    OnDone,
    OnNames,
    OnRead,
    OnWritten,
    Version,
    Versioned,
    checked_path,
    checked_value,
)

from .messages import Message, MessageError, hub_fields, hub_of, number_of, text_of, value_of, value_text
from .port import CoordinationEvents, Hub, OnHubs, Scheduling, SessionState, TimerHandle
from .session import SessionClock

BEATS_COUNT: Final = 6
"""Beats in a session time: three may be missed before the hub is uncertain."""

RETRY_SHARE: Final = 0.05
"""Share of the session time between two attempts to connect, or to be given a session."""


class Channel(Protocol):
    """Port to the connection of a hub."""

    def connect(self) -> None:
        """Begin to connect. `connected` or `disconnected` of the client follows, never from inside the call."""

    def send(self, message: Message) -> None: ...

    def hang_up(self) -> None:
        """Close the connection. `disconnected` follows, never from inside the call."""


class HubWatch:
    """Watch of one path."""

    def __init__(self, path: str, changed: Callable[[], None], ended: Callable[[HubWatch], object]) -> None:
        self.path = path
        self.changed = changed
        self._ended = ended

    def cancel(self) -> None:
        """See Watch."""
        self._ended(self)


class Watches:
    """All watches of a hub by path: told in one place, also when one is cancelled meanwhile."""

    def __init__(self) -> None:
        self._watches: dict[str, list[HubWatch]] = {}

    @property
    def paths(self) -> list[str]:
        """Watched paths."""
        return list(self._watches)

    def add(self, watch: HubWatch) -> bool:
        """Add a watch. Returns whether the path was not watched before."""
        watches = self._watches.setdefault(watch.path, [])
        watches.append(watch)
        return len(watches) == 1

    def remove(self, watch: HubWatch) -> bool:
        """Remove a watch. Returns whether the path is watched no longer."""
        watches = self._watches.get(watch.path, [])
        if watch in watches:
            watches.remove(watch)
            if not watches:
                del self._watches[watch.path]
                return True
        return False

    def changed(self, path: str) -> None:
        """Tell the watches of a path."""
        for watch in list(self._watches.get(path, ())):
            if watch in self._watches.get(path, ()):
                watch.changed()

    def all_changed(self) -> None:
        """Tell every watch: a session began."""
        for path in self.paths:
            self.changed(path)


@attrs.frozen
class _Request:
    asked_at_seconds: float
    answered: Callable[[Message | MetadataError], None]


class ServiceClient:
    """Coordination by way of a Channel."""

    def __init__(
        self, channel: Channel, scheduling: Scheduling, clock: Callable[[], float], *, session_seconds: float = 10.0
    ) -> None:
        """`clock`: monotonic seconds."""
        self._channel = channel
        self._scheduling = scheduling
        self._clock = clock
        self._session_seconds = session_seconds
        self._hub: Hub | None = None
        self._session: SessionClock | None = None
        self._requests: dict[int, _Request] = {}
        self._requests_count = 0
        self._watches = Watches()
        self._connected = False
        self._attached = False
        """Whether the session is attached to the connection."""
        self._attaching: TimerHandle | None = None
        """Limit of time for an answer to `open`; None: it is not under way."""
        self._given_up = ""
        """Session that the service need not keep."""
        self._closed = False
        self._closing: Callable[[], None] | None = None
        self._beat_timer: TimerHandle | None = None
        self._silent_since_seconds = clock()
        self._words = "not started"

    # State.

    @property
    def certain_until_seconds(self) -> float:
        """See Coordination."""
        return -1.0 if self._session is None else self._session.certain_until_seconds

    @property
    def state(self) -> SessionState:
        """See Coordination."""
        return SessionState.NONE if self._session is None else self._session.state

    @property
    def session(self) -> str | None:
        """See Coordination."""
        return None if self._session is None else self._session.session

    @property
    def words(self) -> str:
        """See Coordination."""
        if self.state is SessionState.CERTAIN:
            return ""
        silent_seconds = self._clock() - self._silent_since_seconds
        if self.state is SessionState.UNCERTAIN:
            return f"the coordination service has not answered for {silent_seconds:.1f} s"
        return self._words

    # Calls of the user.

    def start(self, hub: Hub, events: CoordinationEvents) -> None:
        """See Coordination."""
        self._hub = hub
        self._hubs_changed = events.hubs_changed
        self._session = SessionClock(self._scheduling, self._clock, events, self._gave_up)
        self._words = "connecting to the coordination service"
        self._channel.connect()
        self._beat()

    def advertise(self, hub: Hub) -> None:
        """See Coordination."""
        self._hub = hub
        if self._attached:
            self._send("advertise", _ignore, hub=hub_fields(hub))

    def read(self, path: str, done: OnRead[bytes]) -> None:
        """See Records."""
        self._ask("read", path, done, _read)

    def write(self, path: str, value: bytes, version: Version, done: OnWritten) -> None:
        """See Records."""
        fields = {"value": value_text(checked_value(value)), "version": version.number}
        self._ask("write", path, done, _written, given=version, **fields)

    def delete(self, path: str, version: Version, done: OnDone) -> None:
        """See Records."""
        self._ask("delete", path, done, _done, given=version, version=version.number)

    def children(self, path: str, done: OnNames) -> None:
        """See Records."""
        self._ask("children", path, done, _names)

    def read_hubs(self, done: OnHubs) -> None:
        """See Coordination."""
        self._ask("hubs", None, done, _hubs)

    def watch(self, path: str, changed: Callable[[], None]) -> HubWatch:
        """See Coordination."""
        watch = HubWatch(checked_path(path), changed, self._unwatch)
        if self._watches.add(watch) and self._attached:
            self._send("watch", _ignore, path=path)
        return watch

    def close(self, done: Callable[[], None]) -> None:
        """See Coordination."""
        self._closing = done
        if self._attached and self._session is not None:
            self._send("close", lambda _answer: self._channel.hang_up())
            self._session.close()
            # A service that does not answer ends the session by itself.
            self._scheduling.call_later(self._session_seconds * RETRY_SHARE * 4, self._end)
        else:
            if self._session is not None:
                self._session.close()
            self._scheduling.call_later(0, self._end)

    # Calls of the shell.

    def connected(self) -> None:
        """Ask for a session: the connection is there."""
        if self._hub is None or self._session is None or self._closing is not None:
            self._channel.hang_up()
            return
        self._connected = True
        self._attach()

    def disconnected(self, words: str) -> None:
        """Connect anew soon: the connection is lost, or could not be made."""
        self._connected = self._attached = False
        self._words = words
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.answered(MetadataFailedError(f"{words}: whether it happened is not known"))
        if self._closing is not None:
            self._end()
        else:
            self._scheduling.call_later(self._session_seconds * RETRY_SHARE, self._connect)

    def received(self, message: Message) -> None:
        """Take an answer or an event. Raises MessageError: the peer is no coordination service."""
        self._silent_since_seconds = self._clock()
        event = message.get("event")
        if event == "changed":
            self._watches.changed(text_of(message, "path"))
        elif event == "hubs":
            self._look_at_hubs()
        elif event == "ended":
            self._lost_session(text_of(message, "words"))
        else:
            request = self._requests.pop(int(number_of(message, "n")), None)
            if request is not None:
                self._answered(request, message)

    # Requests.

    def _ask(
        self,
        operation: str,
        path: str | None,
        done: Callable[[Any], None],
        decode: Callable[[Message], Any],
        given: Version = Version.ANY,
        **fields: Any,
    ) -> None:
        if path is not None:
            fields["path"] = checked_path(path)

        def answered(answer: Message | MetadataError) -> None:
            done(answer if isinstance(answer, MetadataError) else _outcome(answer, path or "", given, decode))

        if self._attached:
            self._send(operation, answered, **fields)
        else:
            error = MetadataFailedError(f"no session with the coordination service: {self._words}")
            self._scheduling.call_later(0, lambda: done(error))

    def _send(self, operation: str, answered: Callable[[Message | MetadataError], None], **fields: Any) -> None:
        self._requests_count += 1
        self._requests[self._requests_count] = _Request(self._clock(), answered)
        self._channel.send({"op": operation, "n": self._requests_count, **fields})

    def _answered(self, request: _Request, message: Message) -> None:
        lost = self._attached and message.get("error") == "session-ended"
        if self._attached and not lost and self._session is not None:
            self._session.heard(request.asked_at_seconds)
        request.answered(message)
        if lost:
            self._lost_session(text_of(message, "words"))

    def _unwatch(self, watch: HubWatch) -> None:
        if self._watches.remove(watch) and self._attached:
            self._send("unwatch", _ignore, path=watch.path)

    def _look_at_hubs(self) -> None:
        def looked(hubs: Mapping[str, Hub] | MetadataError) -> None:
            if not isinstance(hubs, MetadataError) and self.session is not None:
                self._hubs_changed(hubs)

        self.read_hubs(looked)

    # The session.

    def _connect(self) -> None:
        if self._closing is None:
            self._channel.connect()

    def _attach(self) -> None:
        """Ask for the session, or for a new one."""
        if self._hub is None or not self._connected or self._attached or self._attaching is not None:
            return
        if self._closing is not None:
            return
        asked_at_seconds = self._clock()
        wanted = self.session or ""
        hub = self._hub
        ended, self._given_up = self._given_up, ""
        self._attaching = self._scheduling.call_later(self._session_seconds, self._channel.hang_up)

        def answered(answer: Message | MetadataError) -> None:
            if self._attaching is not None:
                self._attaching.cancel()
                self._attaching = None
            if isinstance(answer, MetadataError):
                self._given_up = self._given_up or ended
            elif answer.get("error") == "session-ended":
                self._lost_session(text_of(answer, "words"))
            elif "error" in answer:
                self._words = text_of(answer, "words")
                self._scheduling.call_later(self._session_seconds * RETRY_SHARE * 4, self._attach)
            else:
                self._given(text_of(answer, "session"), number_of(answer, "session_seconds"), wanted, asked_at_seconds)
                if self._attached and self._hub is not None and (wanted or self._hub != hub):
                    self.advertise(self._hub)

        self._send(
            "open",
            answered,
            hub=hub_fields(hub),
            session=wanted,
            session_seconds=self._session_seconds,
            ended=ended,
        )

    def _given(self, session: str, session_seconds: float, wanted: str, asked_at_seconds: float) -> None:
        """Go on with the session that the service gave."""
        if self._session is None or self._closing is not None:
            return
        self._session_seconds = session_seconds
        self._attached = True
        for path in self._watches.paths:
            self._send("watch", _ignore, path=path)
        if wanted:
            self._session.heard(asked_at_seconds)
        elif not self._session.began(session, session_seconds, asked_at_seconds):
            self._attached = False
            self._given_up = session
            self._attach()
        if self._attached:
            self._look_at_hubs()
            self._watches.all_changed()

    def _lost_session(self, words: str) -> None:
        """Ask for another session: the service has ended this one."""
        self._words = words
        self._attached = False
        if self._session is not None:
            self._session.end(words)
        self._attach()

    def _gave_up(self, session: str, words: str) -> None:
        """Connect anew: the session has ended by the clock of the hub, and the connection may be good for nothing."""
        self._words = words
        self._attached = False
        self._given_up = session
        if self._connected:
            self._channel.hang_up()

    def _beat(self) -> None:
        if self._closing is not None:
            return
        self._beat_timer = self._scheduling.call_later(self._session_seconds / BEATS_COUNT, self._beat)
        if self._attached:
            self._send("beat", _ignore)

    def _end(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        if self._connected:
            self._connected = False
            self._channel.hang_up()
        if not self._closed and self._closing is not None:
            self._closed = True
            self._closing()


def _ignore(_answer: Message | MetadataError) -> None:
    """Take an answer that changes nothing."""


def _outcome(answer: Message, path: str, given: Version, decode: Callable[[Message], Any]) -> Any:
    """Return the result of a request, or its error."""
    match answer.get("error"):
        case None:
            return decode(answer)
        case "bad-version":
            return BadVersionError(path, given=given, current=Version(int(number_of(answer, "current"))))
        case "no-record":
            return NoRecordError(text_of(answer, "words"))
        case _:
            return MetadataFailedError(text_of(answer, "words"))


def _read(answer: Message) -> Versioned[bytes] | None:
    return Versioned(value_of(answer), _written(answer)) if "version" in answer else None


def _written(answer: Message) -> Version:
    return Version(int(number_of(answer, "version")))


def _done(_answer: Message) -> None:
    return None


def _names(answer: Message) -> list[str]:
    names = answer.get("names")
    if not isinstance(names, list):
        raise MessageError("an answer without names")
    return [str(name) for name in names]


def _hubs(answer: Message) -> Mapping[str, Hub]:
    hubs = answer.get("hubs")
    if not isinstance(hubs, list):
        raise MessageError("an answer without hubs")
    return {hub.name: hub for hub in map(hub_of, hubs)}
