"""Connections of the kit over TCP, TLS and WebSocket: blocking, each operation with a deadline."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final, Protocol
from urllib.parse import urlsplit

import attrs
import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request, TextMessage

RECEIVE_BYTES: Final = 1 << 16
SUBPROTOCOLS: Final = {"1.0": "v10.stomp", "1.1": "v11.stomp", "1.2": "v12.stomp"}
SCHEMES: Final = {"stomp": 61613, "tcp": 61613, "stomp+ssl": 61614, "stomps": 61614, "ws": 80, "wss": 443}
SECURE: Final = ("stomp+ssl", "stomps", "wss")


class Deadline(Exception):
    """Nothing came, or nothing was taken, in time."""


class Ended(Exception):
    """The broker has closed the connection; the message says how."""


@attrs.frozen
class Target:
    """Address of the broker."""

    host: str
    port: int
    web: bool = False
    path: str = "/"
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        tls: bool = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        insecure: bool = False,
    ) -> Target:
        """Parse HOST[:PORT], stomp://…, stomp+ssl://…, ws://…/PATH or wss://…. Raises ValueError, which says how it is
        written, and OSError for files of TLS that can't be used.
        """
        parts = urlsplit(text if "://" in text else f"stomp://{text}")
        wrong = f"{text!r} is no address: write HOST:PORT, stomp+ssl://HOST:PORT, ws://HOST:PORT/PATH or wss://…"
        try:
            port = parts.port
        except ValueError:
            raise ValueError(wrong) from None
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise ValueError(wrong)
        secure = tls or parts.scheme in SECURE
        if not secure and (ca or cert or key or insecure):
            raise ValueError("--ca, --cert, --key and --insecure need --tls, or stomp+ssl:// or wss://")
        scheme = parts.scheme if not tls or parts.scheme != "stomp" else "stomp+ssl"
        return cls(
            parts.hostname,
            port if port is not None else SCHEMES[scheme],
            parts.scheme in ("ws", "wss"),
            parts.path or "/",
            context(ca, cert, key, insecure) if secure else None,
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.web:
            return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.path}"
        return f"{'stomp+ssl' if self.tls else 'stomp'}://{host}:{self.port}"

    @property
    def transport(self) -> str:
        """TCP, TLS or WebSocket, for reports."""
        return ("WebSocket over TLS" if self.tls else "WebSocket") if self.web else ("TLS" if self.tls else "TCP")

    def dial(self, version: str, seconds: float) -> Wire:
        """Open a connection within `seconds`. Raises OSError, Deadline and Ended."""
        plain = socket.create_connection((self.host, self.port), timeout=seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname=self.host)
        except TimeoutError:
            plain.close()
            raise Deadline("the handshake of TLS did not end") from None
        except BaseException:
            plain.close()
            raise
        wire = SocketWire(secured)
        if not self.web:
            return wire
        try:
            return WebWire(wire, self, SUBPROTOCOLS[version], seconds)
        except BaseException:
            wire.close()
            raise


def context(ca: str | None, cert: str | None, key: str | None, insecure: bool) -> ssl.SSLContext:
    """Return settings of TLS. Raises OSError, which names the file, and ValueError."""
    made = ssl.create_default_context()
    if insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    try:
        if ca is not None:
            made.load_verify_locations(ca)
        if cert is not None:
            made.load_cert_chain(cert, key)
    except OSError as error:
        raise OSError(f"{ca if cert is None else cert}: can't be used for TLS ({error.strerror or error})") from None
    if key is not None and cert is None:
        raise ValueError("--key is given without --cert")
    return made


class Wire(Protocol):
    """One connection, as bytes."""

    def send(self, data: bytes, seconds: float) -> None:
        """Send all. Raises Deadline and Ended."""

    def receive(self, seconds: float) -> bytes:
        """Return what came, at least one byte. Raises Deadline and Ended."""

    def close(self) -> None:
        """Close at once."""


class SocketWire:
    """TCP or TLS."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, data: bytes, seconds: float) -> None:
        """See `Wire`."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise Deadline(f"the broker did not take {len(data)} bytes") from None
        except OSError as error:
            raise Ended(f"the connection broke while sending: {error.strerror or error}") from None

    def receive(self, seconds: float) -> bytes:
        """See `Wire`."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise Deadline("nothing came") from None
        except OSError as error:
            raise Ended(f"the connection was reset: {error.strerror or error}") from None
        if not data:
            raise Ended("the broker closed the connection")
        return data

    def close(self) -> None:
        """See `Wire`."""
        self._socket.close()


class WebWire:
    """WebSocket: what is UTF-8 goes as text, anything else as binary, as browsers' clients do."""

    def __init__(self, wire: SocketWire, target: Target, subprotocol: str, seconds: float) -> None:
        """Upgrade. Raises Deadline, and Ended for a refusal."""
        self._wire = wire
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self.subprotocol: str | None = None
        request = Request(host=f"{target.host}:{target.port}", target=target.path, subprotocols=[subprotocol])
        end = time.monotonic() + seconds
        wire.send(self._ws.send(request), seconds)
        while self.subprotocol is None:
            self._take(wire.receive(end - time.monotonic()))
            for event in self._ws.events():
                if isinstance(event, AcceptConnection):
                    self.subprotocol = event.subprotocol or ""
                    break
                if isinstance(event, RejectConnection):
                    raise Ended(f"the upgrade to WebSocket was refused with HTTP status {event.status_code}")

    def _take(self, data: bytes) -> None:
        try:
            self._ws.receive_data(data)
        except wsproto.utilities.RemoteProtocolError as error:
            raise Ended(f"no WebSocket: {error}") from None

    def send(self, data: bytes, seconds: float) -> None:
        """See `Wire`."""
        try:
            event: TextMessage | BytesMessage = TextMessage(data.decode())
        except UnicodeDecodeError:
            event = BytesMessage(data)
        try:
            out = self._ws.send(event)
        except wsproto.utilities.LocalProtocolError:
            raise Ended("the WebSocket is closed") from None
        self._wire.send(out, seconds)

    def receive(self, seconds: float) -> bytes:
        """See `Wire`."""
        end = time.monotonic() + seconds
        while True:
            got = bytearray()
            for event in self._ws.events():
                if isinstance(event, TextMessage):
                    got += event.data.encode()
                elif isinstance(event, BytesMessage):
                    got += event.data
                elif isinstance(event, Ping):
                    self._wire.send(self._ws.send(event.response()), max(end - time.monotonic(), 0.1))
                elif isinstance(event, CloseConnection):
                    if got:
                        return bytes(got)
                    raise Ended(f"the broker closed the WebSocket with status {event.code}")
            if got:
                return bytes(got)
            left = end - time.monotonic()
            if left <= 0:
                raise Deadline("nothing came")
            self._take(self._wire.receive(left))

    def close(self) -> None:
        """See `Wire`."""
        self._wire.close()
