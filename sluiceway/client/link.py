"""One connection to one broker: stomp.py behind a small face, its exceptions mapped.

stomp.py reads in a thread of its own and calls the owner's handlers there. A handler that blocks stops the reading, and
the broker sees a slow reader, as it should. Three things about stomp.py are put right here:

- it reads 16 KiB at a time and copies what it has of a frame each time; with 1 MiB batches larger reads matter;
- it takes only whole frames for signs of life: a large one that is under way for long, or a handler that waits for
  room, would look like a dead broker. Here every byte counts, and who waits says `still_here`;
- it would try again by itself, and swallow what it met. Here a link lives once: who lost it makes another.

Not here: reconnecting (`outbox`, `reader`), what is sent (`producer`), what comes (`consumer`).
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol

import stomp
from stomp.connect import BaseConnection
from stomp.exception import StompException
from stomp.protocol import Protocol12

from sluiceway.client.address import Address
from sluiceway.client.errors import CannotConnectError, ClientError, ConnectionLostError, RefusedError
from sluiceway.client.secure import SecureTransport, client_context, closed_early, why_refused

CONNECT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
HEART_BEAT_MS: Final = 10_000
RECEIVE_BYTES: Final = 256 * 1024

# All that goes wrong is told by our exceptions. A program that wants stomp.py's own words configures its logger.
logging.getLogger("stomp.py").addHandler(logging.NullHandler())


class Owner(Protocol):
    """Who uses a link. Called in stomp.py's threads, one call at a time but for `lost`, which may come from any."""

    def message(self, link: Link, headers: Mapping[str, str], body: bytes) -> None:
        """A MESSAGE. May block; see `Link.still_here`."""

    def receipt(self, link: Link, receipt_id: str, headers: Mapping[str, str]) -> None:
        """A RECEIPT."""

    def refused(self, link: Link, receipt_id: str | None, error: RefusedError) -> None:
        """An ERROR after CONNECTED. `lost` follows."""

    def lost(self, link: Link, error: ClientError) -> None:
        """The connection has ended, and nobody here asked for it. Comes once."""


class _Transport(SecureTransport):
    def __init__(self, address: Address) -> None:
        super().__init__(
            address.host,
            address.port,
            None if address.tls is None else client_context(address.tls),
            try_loopback_connect=False,
            reconnect_attempts_max=1,
            reconnect_sleep_initial=0,  # it sleeps after its last attempt, too
            timeout=CONNECT_SECONDS,
            keepalive=True,
            auto_decode=False,
            recv_bytes=RECEIVE_BYTES,
        )

    def receive(self) -> bytes | None:
        data: bytes | None = super().receive()
        if data:
            self.get_listener("protocol-listener").on_heartbeat()
        return data


class _Connection(BaseConnection, Protocol12):  # type: ignore[misc]  # stomp.py ships no types
    """As stomp.Connection12, on a transport of our own."""

    def __init__(self, address: Address) -> None:
        transport = _Transport(address)
        BaseConnection.__init__(self, transport)
        Protocol12.__init__(self, transport, heartbeats=(HEART_BEAT_MS, HEART_BEAT_MS))

    def disconnect(self, receipt: str | None = None, headers: Any = None, **keyword_headers: Any) -> None:
        # BaseConnection's comes first and does nothing.
        Protocol12.disconnect(self, receipt, headers, **keyword_headers)


class Link(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """A connection, from `open` to `close` or its loss."""

    def __init__(self, address: Address, owner: Owner) -> None:
        self.address = address
        self._owner = owner
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self._connected = False
        self._closing = False
        self._refusal: RefusedError | None = None
        try:
            self._connection = _Connection(address)
        except OSError as error:
            raise CannotConnectError(f"TLS with {address}: {error}") from error
        self._connection.set_listener("sluiceway", self)

    # ------------------------------------------------------------------ what the owner does

    def open(self) -> None:
        """Connect, and wait for CONNECTED. Raises CannotConnectError, or RefusedError with the broker's words."""
        try:
            self._connection.transport.start()
        except ssl.SSLError as error:
            self._cut()
            raise CannotConnectError(
                f"TLS with {self.address} failed: {why_refused(error, self.address.tls)}"
            ) from error
        except (StompException, OSError) as error:
            self._cut()
            raise CannotConnectError(
                f"no broker answers at {self.address}: is it running, and is the address right?"
            ) from error
        try:
            self._connection.connect(self.address.login, self.address.passcode)
        except (StompException, OSError):
            pass  # it has closed already; what it said before, or that it said nothing, is known in a moment
        answered = self._answered.wait(CONNECT_SECONDS)
        if self._connected:
            return
        self._cut()
        if self._refusal is not None:
            raise self._refusal
        if answered:
            raise CannotConnectError(
                f"{self.address} closed the connection before it was established{closed_early(self.address.tls)}"
            )
        raise CannotConnectError(f"{self.address} does not answer in STOMP within {CONNECT_SECONDS:g} s")

    def send(self, destination: str, body: bytes, headers: Mapping[str, str]) -> None:
        """SEND. Blocks while the broker does not read. Raises ConnectionLostError."""
        self._call("send", destination, body, headers=dict(headers))

    def subscribe(self, destination: str, subscription_id: str, *, ack: str, headers: Mapping[str, str]) -> None:
        """SUBSCRIBE. Raises ConnectionLostError."""
        self._call("subscribe", destination, subscription_id, ack=ack, headers=dict(headers))

    def acknowledge(self, token: str) -> None:
        """ACK of the MESSAGE with that `ack` header. Raises ConnectionLostError."""
        self._call("ack", token)

    def still_here(self) -> None:
        """From a handler that waits: the broker is not silent, we are not reading. Call it every second or so."""
        self._connection.on_heartbeat()

    @property
    def ended(self) -> bool:
        """Whether it was lost or closed."""
        return self._ended.is_set()

    def close(self) -> None:
        """DISCONNECT, wait until the broker has taken all that was sent before, and end. `lost` will not be called.
        From a handler, or when it has ended already, it only cuts the connection.
        """
        with self._guard:
            polite = self._connected and not self._closing and not self._ended.is_set()
            self._closing = True
        if polite and threading.current_thread() is not self._connection.transport.io_thread:
            try:
                self._connection.disconnect()
                self._ended.wait(CLOSE_SECONDS)
            except (StompException, OSError, AttributeError):
                # It has ended by itself in this instant, which is what we want; stomp.py takes its socket away then,
                # and sends to None.
                pass
        self._cut()

    def cut(self) -> None:
        """End at once, without a word. `lost` will not be called."""
        with self._guard:
            self._closing = True
        self._cut()

    def _cut(self) -> None:
        self._ended.set()
        self._connection.transport.disconnect_socket()

    def _call(self, method: str, *arguments: Any, **options: Any) -> None:
        try:
            getattr(self._connection, method)(*arguments, **options)
        except (StompException, OSError, AttributeError) as error:
            # AttributeError: another thread has closed the socket between stomp.py's look at it and its use.
            if isinstance(error, AttributeError) and self._connection.transport.socket is not None:
                raise
            raise ConnectionLostError(f"{self.address} closed the connection") from error

    # ------------------------------------------------------------------ what stomp.py calls

    def on_connected(self, frame: Any) -> None:
        """Of stomp.py."""
        self._connected = True
        self._answered.set()

    def on_message(self, frame: Any) -> None:
        """Of stomp.py."""
        if not self._closing:
            self._owner.message(self, frame.headers, frame.body)

    def on_receipt(self, frame: Any) -> None:
        """Of stomp.py."""
        if not self._closing:
            self._owner.receipt(self, frame.headers.get("receipt-id", ""), frame.headers)

    def on_error(self, frame: Any) -> None:
        """Of stomp.py."""
        message = frame.headers.get("message", "no message")
        body = (frame.body or b"").decode("utf-8", "replace").strip()
        said = f"{message}: {body}" if body and body != message else message
        code, result_code = frame.headers.get("code"), frame.headers.get("result-code")
        self._refusal = RefusedError(f"{self.address} answered ERROR: {said}", code, result_code)
        if self._connected and not self._closing:
            self._owner.refused(self, frame.headers.get("receipt-id"), self._refusal)
        self._answered.set()

    def on_disconnected(self) -> None:
        """Of stomp.py; perhaps more than once."""
        with self._guard:
            first = not self._ended.is_set() and self._connected and not self._closing
            self._ended.set()
        self._answered.set()
        if first:
            self._owner.lost(
                self,
                self._refusal
                if self._refusal is not None
                else ConnectionLostError(f"{self.address} closed the connection"),
            )
