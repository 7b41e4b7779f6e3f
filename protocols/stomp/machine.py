"""Machines of both sides of a STOMP connection: input is checked, answers are written.

`ServerMachine` is what a listener gives to each connection; `ClientMachine` is the other end, for clients and for
tests. Both own a `Parser` and one `State`, and move by the tables in `transitions`.

How to drive the server: feed `receive_data` whatever arrived and work through the events in order. On a `Connect`
answer with `accept` (then call ``receive_data(b"")``: the client may have sent more already) or `reject`. On a `Fault`,
or when the session itself finds a mistake, write `fail(error)` and close.

Invariants: what was valid before a fault is returned before it; after a fault, `fail` or `reject` the machine is parked
and returns nothing any more; after DISCONNECT everything else is dropped (b57).

Deliberately not here: subscriptions, transactions, receipts and settlement (the session), time (heart-beats are only
negotiated here), and MESSAGE and RECEIPT, which the broker writes by the batch through `encoder`.

Source: STOMP 1.2 "Connecting", "Heart-beating", "Client Frames"; checklist b15-b26, b31-b34, b40-b42, b52-b57.
"""

from __future__ import annotations

import abc
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from .dialects import subscribe_headers, unsubscribe_headers
from .encoder import encode_frame, error_frame
from .errors import LocalProtocolError, ProtocolError
from .escaping import SUPPORTED_VERSIONS, Version, escape_value, unescape
from .frames import Connect, Event, Fault, Frame
from .head import ORIGIN_HEADER, HeadAccount, SendHead
from .limits import StompLimits
from .parser import Parser
from .passing import PassingParser
from .receive_buffer import ReceiveBuffer
from .transitions import (
    ACK_MODES,
    ARRIVALS,
    BODY_IGNORED,
    DEPARTURES,
    WITH_BODY,
    Role,
    State,
    check_required_headers,
)
from .unheard import Unheard

STEP_EVENTS: Final = 16
"""Events of one step of the parser: some 200 µs where each has a head of its own."""

STEP_BYTES: Final = 48 * 1024
"""Bytes of one step: some 2 ms where each frame has a few bytes and the head of the one before. A SEND of less than 48
bytes counts as 48.
"""

_HEART_BEAT: Final = re.compile(r"\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*")
_BAD_IN_SESSION_ID: Final = re.compile(r"[:\\\x00-\x20\x7f]")


def negotiate(client: tuple[int, int], server: tuple[int, int]) -> tuple[int, int]:
    """Agree on heart-beats (b24): each side says (what it can send, what it wants), in milliseconds.

    Returns ``(read_every_ms, write_every_ms)`` as the *server* sees them; 0 is never. A client swaps its arguments.
    """
    client_sends, client_wants = client
    server_sends, server_wants = server
    read_every_ms = max(client_sends, server_wants) if client_sends and server_wants else 0
    write_every_ms = max(server_sends, client_wants) if server_sends and client_wants else 0
    return read_every_ms, write_every_ms


def parse_heart_beat(value: str | None) -> tuple[int, int]:
    """The two numbers of a `heart-beat` header, (0, 0) without one (b23). Raises `ProtocolError` for anything else."""
    if value is None:
        return 0, 0
    match = _HEART_BEAT.fullmatch(value)
    if match is None:
        raise ProtocolError(
            "bad-heart-beat",
            "header heart-beat is not two whole numbers",
            f"Its value is {value[:40]!r}. Send two numbers of milliseconds with a comma between them,"
            " such as 10000,10000.",
        )
    return int(match[1]), int(match[2])


class _Machine(abc.ABC):
    """Common part of both sides: a parser, a state, a version, and the end by a fault."""

    def __init__(self, limits: StompLimits, role: Role, state: State, parser: Parser) -> None:
        self._limits = limits
        self._role: Role = role
        self._parser = parser
        self._state = state
        self._version: Version | None = None
        #: Interval in which input must arrive, in milliseconds; 0 if none was promised. Grace is up to the owner.
        self.read_every_ms = 0
        #: Interval in which output must be written, in milliseconds; 0 if none was asked for.
        self.write_every_ms = 0

    @property
    def state(self) -> State:
        """State of this side of the connection."""
        return self._state

    @property
    def version(self) -> Version | None:
        """The agreed version, None before CONNECTED."""
        return self._version

    @property
    def pending_bytes(self) -> int:
        """Bytes of unfinished frames, and of those not parsed yet, held in memory, to be charged to the connection."""
        return self._parser.pending_bytes

    @property
    def receive_buffer(self) -> ReceiveBuffer:
        """Buffer of an unfinished frame, always the same object. `receive_data` takes the next bytes in any case; the
        rest of a large frame may be written into the `room` of the buffer instead.
        """
        return self._parser.receive_buffer

    def fill(self, size_bytes: int) -> None:
        """Note that `size_bytes` were written into `room`, which is released. Then receive ``b""``."""
        self._parser.receive_buffer.fill(size_bytes)

    def park(self) -> None:
        """Ignore all further input, and drop held bytes."""
        self._state = State.PARKED
        self._parser.park()

    def _enter(self, state: State) -> None:
        self._state = state
        self._parser.expect(state, self._version)

    def _judge(self, events: list[Event], start: int = 0) -> None:
        """Check the single frames in `events` from `start` on, in place. Cuts the list at the first fault, which
        becomes its last event."""
        for at in range(start, len(events)):
            event = events[at]
            if type(event) is Frame:
                try:
                    events[at] = self._arrive(event)
                except ProtocolError as error:
                    error.identify(event.command, event.headers)
                    self.park()
                    events[at:] = [Fault(error)]
                    return
            elif type(event) is Fault:
                self.park()

    @abc.abstractmethod
    def _arrive(self, frame: Frame) -> Event:
        """Judge one frame and move; returns the event it becomes. Raises `ProtocolError`."""

    def _move(self, command: str) -> None:
        move = ARRIVALS[self._role][self._state][command]
        if move.to is not self._state:
            self._state = move.to


class ServerMachine(_Machine):
    """The broker's side of one connection."""

    def __init__(
        self,
        limits: StompLimits,
        *,
        server_name: str = "sluiceway/0.1",
        versions: Iterable[Version] = SUPPORTED_VERSIONS,
        stages: bool = False,
        heads: HeadAccount | None = None,
        may_pass: Callable[[SendHead], bool] | None = None,
    ) -> None:
        """Make the server's side. `server_name` is ``name/version`` (b18), `versions` those that this listener speaks;
        `stages`: the owner takes large bodies in pieces (`LargeSendStart`); `heads` counts the memory of heads.
        `may_pass`: whether SENDs with this head go to another hub, as `PassedRun`s; None: there is none.
        """
        parser = (
            Parser(limits, role="server", stages=stages)
            if may_pass is None
            else PassingParser(limits, stages=stages, may_pass=may_pass)
        )
        super().__init__(limits, "server", State.GREETING, parser)
        if heads is not None:
            self._parser.count_heads(heads)
        self._server_name = server_name
        offered = frozenset(versions)
        self._versions = tuple(version for version in SUPPORTED_VERSIONS if version in offered)
        self._connect: Connect | None = None

    def pass_over(self, unheard: Unheard) -> None:
        """Pass over SENDs to these topics from now on (`UnheardRun`)."""
        self._parser.unheard = unheard

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order; call it with ``b""`` after `accept`. A `Fault` is always the
        last one."""
        events = self._parser.feed(data)
        if events:
            self._judge(events)
        return events

    def receive_in_steps(self, data: bytes) -> Iterator[Event]:
        """The same, but the bytes are read as far as their events are taken, STEP_EVENTS or so at a time. To be taken
        to the end, or not at all any more, before the next call.
        """
        parser = self._parser
        parser.events_max, parser.step_bytes = STEP_EVENTS, STEP_BYTES
        yield from self.receive_data(data)
        while parser.has_more:
            yield from self.receive_data(b"")

    def accept(
        self,
        session_id: str,
        *,
        heart_beat: tuple[int, int] = (0, 0),
        extra: Iterable[tuple[str, str]] = (),
        stamped_user: str | None = None,
        origin: str = "",
    ) -> bytes:
        """Accept the login: returns the CONNECTED frame to write. `heart_beat`: the intervals that the broker offers
        and wants, in milliseconds. `stamped_user`: value of the header `user` of each SEND; None: SENDs get no such
        header. `origin`: likewise of the header `origin-region`; empty: none.

        Sets `version`, `read_every_ms` and `write_every_ms`. Raises `LocalProtocolError` unless a CONNECT is being
        decided, and for a session id that clients could trip over (a colon, a backslash, blanks: CONNECTED is never
        escaped, and some build ids from it).
        """
        connect = self._deciding()
        if not session_id or _BAD_IN_SESSION_ID.search(session_id) is not None:
            raise LocalProtocolError(
                f"session id {session_id!r} must be there, without colon, backslash, blanks and control characters"
            )
        version = connect.version
        headers = [("session", session_id), ("server", self._server_name)]
        if version != "1.0":
            headers += [("version", version), ("heart-beat", f"{heart_beat[0]},{heart_beat[1]}")]
        elif "accept-version" in connect.headers:
            headers.append(("version", version))
        answer = encode_frame("CONNECTED", [*headers, *extra], version=version)
        if version != "1.0":
            read_every_ms, write_every_ms = negotiate(connect.heart_beat, heart_beat)
            most = self._limits.heart_beat_max_ms
            self.read_every_ms = read_every_ms if read_every_ms <= most else 0
            self.write_every_ms = min(write_every_ms, most)
        stamps = [] if stamped_user is None else [("user", stamped_user)]
        if origin:
            stamps.append((ORIGIN_HEADER, origin))
        self._parser.stamp = "\n".join(f"{name}:{escape_value(value, version)}" for name, value in stamps).encode()
        client_id = connect.headers.get("client-id")
        # Of a durable subscription the same in the next session.
        sender = session_id if not client_id else f"{connect.login or ''}/{client_id}"
        self._parser.sender_lasts = bool(client_id)
        self._parser.sender = hashlib.sha256(sender.encode()).hexdigest()[:16]
        self._version = version
        self._connect = None
        self._enter(State.CONNECTED)
        return answer

    def reject(self, message: str, *, headers: Iterable[tuple[str, str]] = (), body: str = "") -> bytes:
        """Turn the peer away (b20): the ERROR frame to write before the connection is closed. Parks the machine.

        Raises `LocalProtocolError` unless a CONNECT is being decided.
        """
        connect = self._deciding()
        self._connect = None
        self.park()
        return error_frame(message, headers=headers, body=body, version=connect.version)

    def fail(self, error: ProtocolError) -> bytes:
        """The ERROR frame for `error`, to be written before the connection is closed (b29, b52, b53). Parks the
        machine.

        Use it for a `Fault`, and for a mistake that the session found (an unknown transaction, for instance).
        """
        headers: list[tuple[str, str]] = [("code", error.code)]
        if error.receipt_id is not None:
            headers.append(("receipt-id", error.receipt_id))
        if error.command is not None:
            headers.append(("command", error.command))
        headers += [*error.headers.items(), *error.extra]
        version = self._version if self._connect is None else self._connect.version
        self.park()
        return error_frame(error.message, headers=headers, body=error.detail, version=version)

    def _deciding(self) -> Connect:
        if self._connect is None:
            raise LocalProtocolError(f"there is no CONNECT to answer; the connection is {self._state.value}")
        return self._connect

    def _arrive(self, frame: Frame) -> Event:
        command = frame.command
        version = self._version
        if frame.body and command not in WITH_BODY:
            if version is None or (command, version) not in BODY_IGNORED:
                raise ProtocolError(
                    "unexpected-body",
                    f"{command} with a body of {len(frame.body)} bytes",
                    "Only SEND may carry a body. Is a NUL missing behind the frame?",
                )
            frame.body = b""
        if version is None:
            event: Event = self._greet(frame)
        else:
            check_required_headers(command, frame.headers, version)
            if command == "SUBSCRIBE":
                frame.headers = subscribe_headers(frame.headers)
                _check_ack_mode(frame.headers)
            elif command == "UNSUBSCRIBE":
                frame.headers = unsubscribe_headers(frame.headers)
            event = frame
        self._move(command)
        return event

    def _greet(self, frame: Frame) -> Connect:
        headers = frame.headers
        accepted = headers.get("accept-version")
        if accepted is None:
            # A 1.0 client. There blanks around a value are padding (b12); and what it says of receipts or heart-beats
            # means nothing.
            headers = frame.headers = {name.strip(" \t"): value.strip(" \t") for name, value in headers.items()}
            offered = {"1.0"}
        else:
            offered = {version.strip() for version in accepted.split(",")}
        version = next((version for version in self._versions if version in offered), None)
        if version is None:
            spoken = ",".join(reversed(self._versions))
            raise ProtocolError(
                "no-common-version",
                "no common protocol version",
                f"The client accepts {(accepted or '1.0')[:80]}; this listener speaks {spoken}.",
                extra=(("version", spoken),),
            )
        heart_beat = parse_heart_beat(headers.get("heart-beat")) if version != "1.0" else (0, 0)
        self._connect = Connect(
            frame=frame,
            version=version,
            login=headers.get("login"),
            passcode=headers.get("passcode"),
            host=headers.get("host"),
            heart_beat=heart_beat,
        )
        return self._connect


def _check_ack_mode(headers: Mapping[str, str]) -> None:
    mode = headers.get("ack", "auto")
    if mode not in ACK_MODES:
        raise ProtocolError(
            "bad-ack-mode",
            f"SUBSCRIBE with ack mode {mode[:40]!r}",
            f"There are {', '.join(ACK_MODES)}; leave the header out for auto.",
        )


class ClientMachine(_Machine):
    """A client's side of one connection: encodes what it may send, and turns what arrives into `Frame` events.

    An ERROR frame is the last event; the server closes behind it.
    """

    def __init__(self, limits: StompLimits | None = None) -> None:
        limits = limits if limits is not None else StompLimits()
        super().__init__(limits, "client", State.IDLE, Parser(limits, role="client"))
        self._heart_beat = (0, 0)
        self._offered: tuple[Version, ...] = ()
        self.session_id: str | None = None
        self.server: str | None = None
        """Name of the broker, as `name/version`; None before CONNECTED."""

    def connect(
        self,
        host: str,
        *,
        login: str | None = None,
        passcode: str | None = None,
        heart_beat: tuple[int, int] = (0, 0),
        versions: Iterable[Version] = SUPPORTED_VERSIONS,
        extra: Iterable[tuple[str, str]] = (),
    ) -> bytes:
        """Return the CONNECT frame to write. `heart_beat`: the intervals that the client offers and wants, in
        milliseconds.
        """
        offered = self._offered = tuple(versions)
        headers = [("accept-version", ",".join(sorted(offered))), ("host", host)]
        if heart_beat != (0, 0):
            headers.append(("heart-beat", f"{heart_beat[0]},{heart_beat[1]}"))
        if login is not None:
            headers.append(("login", login))
        if passcode is not None:
            headers.append(("passcode", passcode))
        self._heart_beat = heart_beat
        return self.send("CONNECT", [*headers, *extra])

    def send(self, command: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> bytes:
        """The bytes of a frame. Raises `LocalProtocolError` if `command` may not be sent now, in this version, or
        with a body."""
        move = DEPARTURES.get(self._state, {}).get(command)
        if move is None or (self._version is not None and self._version not in move.versions):
            raise LocalProtocolError(
                f"{command} may not be sent while the connection is {self._state.value}"
                f" (STOMP {self._version or 'undecided'})"
            )
        if body and command not in WITH_BODY:
            raise LocalProtocolError(f"{command} may not carry a body; only SEND does")
        wire = encode_frame(command, headers, body, version=self._version or "1.0")
        if move.to is not self._state:
            self._enter(move.to)
        return wire

    def receive_data(self, data: bytes) -> list[Event]:
        """The events that `data` completes, in order. A `Fault` is always the last one."""
        events = self._parser.feed(data)
        self._judge(events)
        # The parser holds behind CONNECTED; the version is known by now, so what was held is read at once.
        while self._parser.held and self._state is State.CONNECTED:
            self._enter(State.CONNECTED)
            judged = len(events)
            events += self._parser.feed(b"")
            self._judge(events, judged)
        return events

    def _arrive(self, frame: Frame) -> Event:
        if frame.command == "CONNECTED":
            self._welcome(frame.headers)
        elif self._version is None and len(self._offered) == 1:  # an ERROR: its version is the only one offered
            (version,) = self._offered
            frame.headers = {unescape(name, version): unescape(said, version) for name, said in frame.headers.items()}
        self._move(frame.command)
        return frame

    def _welcome(self, headers: Mapping[str, str]) -> None:
        said = headers.get("version", "1.0")
        version = next((version for version in SUPPORTED_VERSIONS if version == said), None)
        if version is None:
            raise ProtocolError(
                "no-common-version", f"the server chose STOMP {said[:20]!r}", "Offer a version that both sides speak."
            )
        server_sends, server_wants = parse_heart_beat(headers.get("heart-beat"))
        self._version = version
        self.session_id = headers.get("session")
        self.server = headers.get("server")
        self.read_every_ms, self.write_every_ms = negotiate((server_sends, server_wants), self._heart_beat)
