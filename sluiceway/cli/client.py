"""stomp.py behind a small blocking face: what `send`, `receive` and `stat` need, and its exceptions mapped.

stomp.py reads in a thread of its own and calls a listener there. The listener only puts events into a bounded queue;
when nobody takes them the thread stops reading, and the broker sees a slow reader, as it should. All methods are for
one thread, the command's.

Not here: reconnecting. A command that lost its broker says so and ends.
"""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import unquote

import attrs
import stomp
from stomp.connect import BaseConnection, StompConnection12
from stomp.exception import StompException
from stomp.protocol import Protocol12

from sluiceway.client.address import DEFAULT_PORT, DEFAULT_TLS_PORT, TLS_SCHEME, Tls, split_address, tls_of
from sluiceway.client.secure import SecureTransport, client_context, closed_early, why_refused

CONNECT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 5.0
"""So long nothing is said about a broker that confirms nothing: longer than any wait that is none."""
EVENTS_MAX: Final = 1000
"""Frames taken from the socket and not yet from us; as many as the broker's default prefetch."""
HEART_BEAT_MS: Final = 10_000
WHO_WE_ARE: Final = "They come from --login and SLUICEWAY_PASSCODE (or --passcode), or from the URL."


class ClientError(Exception):
    """Something went wrong between us and the broker; the message says what and where."""


class CannotConnect(ClientError):
    """Nobody answers at the address, or not in STOMP."""


class ConnectionLost(ClientError):
    """The connection ended before we were done."""


class Refused(ClientError):
    """The broker sent an ERROR frame."""


class NotSluiceway(ClientError):
    """Who answers speaks STOMP, but does not know this request: another broker, or another version."""


@attrs.frozen
class Target:
    """Where to connect, and as whom."""

    host: str
    port: int
    login: str | None = None
    passcode: str | None = attrs.field(default=None, repr=False)
    virtual_host: str | None = None
    tls: Tls | None = None
    """None: without TLS."""

    @property
    def url(self) -> str:
        """For people; without the passcode."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'stomp' if self.tls is None else TLS_SCHEME}://{host}:{self.port}"

    @classmethod
    def parse(
        cls, url: str, *, login: str | None = None, passcode: str | None = None, virtual_host: str | None = None
    ) -> Target:
        """From `stomp://[LOGIN:PASSCODE@]HOST[:PORT]`, with TLS `stomp+ssl://…[?ca=FILE&cert=FILE&key=FILE]`, or plain
        `HOST[:PORT]`; the named arguments go over the URL's own.

        :raises ValueError: says how it is written.
        """
        wrong = f"{url!r} is not a broker's address: write stomp://HOST:PORT, such as stomp://127.0.0.1:{DEFAULT_PORT}"
        parts = split_address(url, wrong)
        port = parts.port
        if parts.scheme in ("ws", "wss"):
            raise ValueError(f"{url!r}: this client does not speak WebSocket; name a listener of the broker without it")
        if parts.scheme not in ("stomp", TLS_SCHEME) or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(wrong)
        tls = tls_of(parts.scheme, parts.query)
        return cls(
            tls=tls,
            host=parts.hostname,
            port=port if port is not None else DEFAULT_PORT if tls is None else DEFAULT_TLS_PORT,
            login=login if login is not None else _unquoted(parts.username),
            passcode=passcode if passcode is not None else _unquoted(parts.password),
            virtual_host=virtual_host,
        )


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)


@attrs.frozen
class Event:
    """A frame from the broker, or the end of the connection."""

    kind: Literal["connected", "message", "receipt", "error", "lost"]
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""


class _Listener(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Runs in stomp.py's thread: frames to events."""

    def __init__(self, events: queue.Queue[Event], closing: threading.Event) -> None:
        self._events = events
        self._closing = closing

    def _put(self, event: Event) -> None:
        # Wakes up now and then, or the thread could not end while nobody takes events any more.
        while not self._closing.is_set():
            try:
                self._events.put(event, timeout=0.2)
            except queue.Full:
                continue
            return

    def on_connected(self, frame: Any) -> None:
        self._put(Event("connected", frame.headers))

    def on_message(self, frame: Any) -> None:
        self._put(Event("message", frame.headers, frame.body))

    def on_receipt(self, frame: Any) -> None:
        self._put(Event("receipt", frame.headers))

    def on_error(self, frame: Any) -> None:
        self._put(Event("error", frame.headers, frame.body))

    def on_disconnected(self) -> None:
        self._put(Event("lost"))


class _Connection(StompConnection12):  # type: ignore[misc]  # stomp.py ships no types
    """As stomp.py's, on a transport that may speak TLS."""

    def __init__(self, transport: SecureTransport) -> None:
        BaseConnection.__init__(self, transport)
        Protocol12.__init__(self, transport, heartbeats=(HEART_BEAT_MS, HEART_BEAT_MS))


class Client:
    """A connection, from `with` to its end. Leaving the block without an error says DISCONNECT and waits until that was
    processed.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._events: queue.Queue[Event] = queue.Queue(EVENTS_MAX)
        self._closing = threading.Event()
        self._receipts_pending: set[str] = set()
        self._receipts_count = 0
        self._stood_still = False
        self.session = ""
        """How the broker calls this connection (header `session` of CONNECTED); empty if it does not say so."""
        # Its warnings about a failed connection would double ours.
        logging.getLogger("stomp.py").setLevel(logging.CRITICAL)
        try:
            tls = None if target.tls is None else client_context(target.tls)
        except OSError as error:
            raise CannotConnect(f"TLS with {target.url}: {error}") from error
        transport = SecureTransport(
            target.host,
            target.port,
            tls,
            try_loopback_connect=False,
            reconnect_attempts_max=1,
            timeout=CONNECT_SECONDS,
            vhost=target.virtual_host,
            auto_decode=False,
        )
        self._connection: Any = _Connection(transport)
        self._connection.set_listener("sluiceway", _Listener(self._events, self._closing))

    def __enter__(self) -> Client:
        """Connects. Raises CannotConnect, or Refused with the broker's words."""
        try:
            self._connection.connect(self.target.login, self.target.passcode)
        except ssl.SSLError as error:
            raise CannotConnect(f"TLS with {self.target.url} failed: {why_refused(error, self.target.tls)}") from error
        except (StompException, OSError) as error:
            raise CannotConnect(_why_not(self.target)) from error
        try:
            self._wait_connected()
        except ClientError:
            self._cut()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._say_goodbye()
        self._cut()

    def send(self, destination: str, body: bytes, headers: Mapping[str, str], *, receipt: bool) -> None:
        """Sends one message; may block while the broker does not read. With `receipt`, ask `wait_receipts` when it was
        processed.
        """
        all_headers = dict(headers)
        if receipt:
            self._receipts_count += 1
            name = f"send-{self._receipts_count}"
            self._receipts_pending.add(name)
            all_headers["receipt"] = name
        self._call("send", destination, body, headers=all_headers)

    def subscribe(self, destination: str, *, ack: str, headers: Mapping[str, str]) -> None:
        """Subscribes; messages come from `next_message`."""
        self._call("subscribe", destination, id="1", ack=ack, headers=dict(headers))

    def acknowledge(self, message: Event) -> None:
        """Acknowledges a message of a subscription whose ack mode is not auto."""
        self._call("ack", message.headers["ack"])

    def next_message(self, timeout_seconds: float | None) -> Event | None:
        """The next message, or None after that time. Raises Refused or ConnectionLost."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            event = self._next_event(deadline)
            if event is None or event.kind == "message":
                return event

    def wait_receipts(self, pending_max: int = 0, *, on_standstill: Callable[[], None] | None = None) -> None:
        """Waits until no more than `pending_max` receipts are outstanding. Calls `on_standstill` when nothing has come
        for `PATIENCE_SECONDS`, once in the life of this client. Raises Refused or ConnectionLost.
        """
        while len(self._receipts_pending) > pending_max:
            patient = on_standstill is None or self._stood_still
            event = self._next_event(None if patient else time.monotonic() + PATIENCE_SECONDS)
            if event is None and on_standstill is not None:
                self._stood_still = True
                on_standstill()

    def _next_event(self, deadline: float | None) -> Event | None:
        try:
            if deadline is None:
                event = self._events.get()
            else:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if event.kind == "error":
            raise Refused(_error_in_words(event))
        if event.kind == "lost":
            raise ConnectionLost(f"{self.target.url} closed the connection")
        if event.kind == "receipt":
            self._receipts_pending.discard(event.headers.get("receipt-id", ""))
        return event

    def _wait_connected(self) -> None:
        try:
            event = self._next_event(time.monotonic() + CONNECT_SECONDS)
        except ConnectionLost as error:
            raise CannotConnect(
                f"{self.target.url} closed the connection before it was established{closed_early(self.target.tls)}"
            ) from error
        if event is None or event.kind != "connected":
            raise CannotConnect(f"{self.target.url} does not answer in STOMP within {CONNECT_SECONDS:g} s")
        self.session = event.headers.get("session", "")

    def _call(self, method: str, *arguments: Any, **options: Any) -> None:
        try:
            getattr(self._connection, method)(*arguments, **options)
        except (StompException, OSError) as error:
            # What the broker said before it closed explains more than a broken pipe.
            self._raise_last_words()
            raise ConnectionLost(f"{self.target.url} closed the connection") from error

    def _raise_last_words(self) -> None:
        deadline = time.monotonic() + 1.0
        while (event := self._next_event(deadline)) is not None:
            del event  # an ERROR or the loss raises; others came before it

    def _say_goodbye(self) -> None:
        """DISCONNECT, and wait until the broker has processed it and so all that went before."""
        self._call("disconnect")
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            while self._next_event(deadline) is not None:
                continue
        except ConnectionLost:
            return  # which is what we asked for

    def _cut(self) -> None:
        self._closing.set()
        self._connection.transport.disconnect_socket()


def _why_not(target: Target) -> str:
    """Why there is no connection. stomp.py keeps the reason to itself, so what it may be is looked up again."""
    try:
        socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        why = error.strerror or error
        return f"the host {target.host!r} of {target.url} is not known ({why}): name another with --url"
    if target.tls is not None:
        try:
            socket.create_connection((target.host, target.port), CONNECT_SECONDS).close()
        except OSError:
            pass  # nobody is there, which is said below
        else:
            return f"{target.url} closed the connection before it was established{closed_early(target.tls)}"
    return f"no broker answers at {target.url}; start one with `sluiceway serve`, or name another with --url"


def _error_in_words(event: Event) -> str:
    message = event.headers.get("message", "no message")
    body = event.body.decode("utf-8", "replace").strip()
    words = f"the broker answered ERROR: {message}" + (f"\n{body}" if body and body != message else "")
    return f"{words}\n{WHO_WE_ARE}" if event.headers.get("code") == "login-refused" else words
