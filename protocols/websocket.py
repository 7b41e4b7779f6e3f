"""STOMP over WebSocket: the HTTP upgrade, then a byte stream over another one.

The broker reads the messages of a WebSocket as a stream of bytes: a client may send one STOMP frame in each, as all do,
or several, or parts. The broker sends a message for each STOMP frame; the session makes them, by `framing`, many at a
time, so `write` gets whole WebSocket frames, and sends them unchanged. Between them pings are answered.

The sub-protocol (`v12.stomp` and so on) is named in the answer if the client offers a known one; the version is still
chosen by CONNECT, as without WebSocket.

The end: a close frame, then what the peer still sends until its own close frame comes (or `linger_seconds` are over);
the broker closes the connection (RFC 6455, 7.1.1).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import trio
import wsproto.events
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from . import wsframes
from .framing import Framing
from .settings import WebSocketConfig
from .streams import ByteStream, PeerCertificate
from .wsframes import FrameError, FrameReader, WebSocketFraming

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp", "v10.stomp")
"""Best first."""

_READ_BYTES: Final = 16 * 1024
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_REASONS: Final = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}


class WebSocketError(ConnectionError):
    """The peer broke the rules of WebSocket, or has closed it. The message says how."""


class UpgradeRefusedError(Exception):
    """The request is none for the WebSocket of the broker. `answer` is for the peer, with this HTTP status; the message
    says why, for the log.
    """

    def __init__(self, why: str, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(why)
        self.status = status
        self.answer = http_answer(status, text, headers)


class NotHttpError(Exception):
    """The peer does not speak HTTP; `began_with` are its first bytes."""

    def __init__(self, began_with: bytes) -> None:
        super().__init__("the peer does not speak HTTP")
        self.began_with = began_with


async def accept_websocket(
    under: ByteStream, config: WebSocketConfig, *, message_bytes_max: int, is_loopback: bool
) -> WebSocketStream:
    """Wait for the request, and answer it. `message_bytes_max`: maximum size of one message of the client;
    `is_loopback`: the listener is for this machine.

    Raises UpgradeRefusedError and NotHttpError (nothing was written), OSError. The stream is the caller's to close.
    """
    request, behind = await _request(under, config.upgrade_bytes_max)
    answer = _judged(request, config, is_loopback=is_loopback)
    view = memoryview(answer)
    while view:
        view = view[under.write([view]) :]
        if view:
            await under.wait_writable()
    return WebSocketStream(under, message_bytes_max=message_bytes_max, behind=behind)


async def _request(under: ByteStream, bytes_max: int) -> tuple[bytes, bytes]:
    """The head of the request, and what came behind it."""
    await trio.lowlevel.checkpoint()
    got = b""
    while True:
        data = under.read(_READ_BYTES)
        if data is None:
            await under.wait_readable()
            continue
        if not data:
            raise WebSocketError("closed by the client before its request")
        got += data
        if not _may_be_http(got):
            raise NotHttpError(got)
        end = _HEAD_END.search(got)
        if end is not None and end.end() <= bytes_max:
            return got[: end.end()], got[end.end() :]
        if len(got) > bytes_max:
            raise UpgradeRefusedError(
                f"a request of more than {bytes_max} bytes",
                431,
                f"The request is larger than the {bytes_max} bytes that this listener takes.",
            )


def _may_be_http(data: bytes) -> bool:
    """Whether the first bytes may be HTTP: a method, and a blank behind it."""
    method, blank, _rest = data[:20].partition(b" ")
    return method.isalpha() and method.isupper() and (bool(blank) or len(data) < 20)


def _judged(request: bytes, config: WebSocketConfig, *, is_loopback: bool) -> bytes:
    """The answer that accepts it. Raises UpgradeRefusedError."""
    if not request.partition(b"\n")[0].rstrip().endswith(b" HTTP/1.1"):
        raise _no_http()
    handshake = H11Handshake(wsproto.ConnectionType.SERVER)
    method, _blank, rest = request.partition(b" ")
    target = rest.partition(b" ")[0].decode("latin-1")
    try:
        handshake.receive_data(request)
        asked = next(iter(handshake.events()), None)
    except (RemoteProtocolError, UnicodeError) as error:
        raise _wrong_request(method, target, config, error) from None
    if not isinstance(asked, wsproto.events.Request):
        raise _no_http()
    if target.partition("?")[0] != config.path:
        raise _not_found(target, config)
    origin = next((value for name, value in asked.extra_headers if name.lower() == b"origin"), None)
    page = None if origin is None else origin.decode("latin-1")
    if page is not None and not may_connect(page, asked.host, config, is_loopback=is_loopback):
        raise UpgradeRefusedError(
            f"a page of {page[:100]!r} may not connect to {asked.host[:100]!r}",
            403,
            "Pages of this origin may not connect: see listeners.websocket.origins.",
        )
    offered = [name for name in SUBPROTOCOLS if name in asked.subprotocols]
    return handshake.send(wsproto.events.AcceptConnection(subprotocol=offered[0] if offered else None))


def _wrong_request(method: bytes, target: str, config: WebSocketConfig, error: Exception) -> UpgradeRefusedError:
    if str(error) == "Bad HTTP message" or isinstance(error, UnicodeError):
        return _no_http()
    if target.partition("?")[0] != config.path:
        return _not_found(target, config)
    if method != b"GET":
        return UpgradeRefusedError(
            f"method {method[:20]!r}", 405, "Only GET, to open a WebSocket.", (("Allow", "GET"),)
        )
    return UpgradeRefusedError(
        f"a request without what opens a WebSocket ({error})",
        426,
        f"This is STOMP over WebSocket: connect with a WebSocket client, such as stompjs. ({error})",
        (("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")),
    )


def _no_http() -> UpgradeRefusedError:
    return UpgradeRefusedError("a request that is no HTTP/1.1", 400, "This is no HTTP/1.1 request.")


def _not_found(target: str, config: WebSocketConfig) -> UpgradeRefusedError:
    return UpgradeRefusedError(
        f"path {target[:100]!r} (it is {config.path})", 404, f"The WebSocket of this listener is at {config.path}."
    )


def http_answer(status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """A whole HTTP answer, after which the connection ends."""
    body = f"{text}\n".encode()
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        *(f"{name}: {value}" for name, value in headers),
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def may_connect(origin: str, host: str, config: WebSocketConfig, *, is_loopback: bool) -> bool:
    """Whether a page of this origin may connect, when it asked for this host (the header, with its port)."""
    if "*" in config.origins:
        return True
    if config.origins:
        return origin.lower() in (allowed.lower() for allowed in config.origins)
    try:
        asked, page = urlsplit(f"//{host}"), urlsplit(origin)
        is_same = page.scheme in ("http", "https") and page.netloc.lower() == host.lower()
        name = asked.hostname or ""
    except ValueError:
        return False
    # A name of another owner may lead here, too (DNS rebinding): then the page is theirs.
    return is_same and (not is_loopback or name == "localhost" or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class WebSocketStream:
    """The server's end of a WebSocket, as a byte stream."""

    __slots__ = (
        "_closing",
        "_control",
        "_ended",
        "_error",
        "_is_amid",
        "_kept",
        "_pong",
        "_reader",
        "_told",
        "_under",
        "peer",
    )

    def __init__(self, under: ByteStream, *, message_bytes_max: int, behind: bytes = b"") -> None:
        """Make the stream. `behind`: bytes already read behind the request."""
        self._under = under
        self._reader = FrameReader(message_bytes_max)
        self._kept = b""
        """Payload that a read had no room for."""
        self._is_amid = False
        """Whether the kernel has taken a part of the last write: the rest of it comes again, before anything else."""
        self._pong = b""
        """The answer to the last ping, which the stream below has not seen yet."""
        self._control = b""
        """Control frame that was offered below, and must be offered again until it is taken."""
        self._closing = False
        """Whether the broker has sent a close frame: nothing may follow."""
        self._ended = False
        """Whether the input has ended."""
        self._error: WebSocketError | None = None
        """The peer broke the rules: what still comes is thrown away."""
        self._told = False
        """Whether a read has reported the error."""
        self.peer = under.peer
        if behind:
            self._kept = b"".join(self._payload(behind))

    framing: Final[Framing] = WebSocketFraming()

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        return self._under.peer_certificate

    # ------------------------------------------------------------------ reading

    @property
    def peer_has_ended(self) -> bool:
        return self._under.peer_has_ended

    def read(self, size_max: int) -> bytes | None:
        parts: list[bytes] = [self._kept] if self._kept else []
        got, self._kept = len(self._kept), b""
        # Frames may be empty, or pings, for ever, and come faster than they are read: two reads must do.
        left_bytes = 2 * size_max
        while got < size_max and left_bytes > 0 and not self._ended:
            asked_bytes = size_max - got  # so that nothing is over, which would have to be cut off and kept
            data = self._under.read(asked_bytes)
            if data is None:
                break
            if not data:
                self._ended = True
                break
            left_bytes = left_bytes - len(data) if len(data) == asked_bytes else 0
            found = self._payload(data)
            parts += found
            got += sum(map(len, found))
        if got:
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            if got > size_max:
                self._kept, whole = whole[size_max:], whole[:size_max]
            return whole
        if self._error is not None and not self._told:
            self._told = True
            raise self._error
        return b"" if self._ended else None

    def read_into(self, room: memoryview) -> int | None:
        data = self.read(len(room))
        if data is None:
            return None
        room[: len(data)] = data
        return len(data)

    def _payload(self, data: bytes) -> list[bytes]:
        """Return the payload of these bytes; control frames are answered."""
        reader = self._reader
        if self._error is not None:
            return []
        try:
            found = reader.feed(data)
        except FrameError as error:
            self._error = WebSocketError(f"WebSocket: {error}")
            self._say_close(error.code, str(error))
            return []
        if reader.ping is not None:
            # To several pings one pong may answer, the last (5.5.3): so a flood of them costs nothing.
            self._pong = wsframes.head(wsframes.PONG, len(reader.ping)) + reader.ping
            reader.ping = None
            self._write_control()
        if reader.closed_with is not None:
            self._ended = True
            if self._closing:
                self._under.shutdown_write()
            self._say_close(wsframes.NORMAL if reader.closed_with == 1005 else reader.closed_with)
        return found

    # ------------------------------------------------------------------ writing

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        if self._closing:
            raise self._error or WebSocketError("the WebSocket is closed")
        if not self._write_control():
            return 0
        taken = self._under.write(pieces)
        self._is_amid = taken < sum(map(len, pieces))  # though nothing was taken: some may be encrypted already
        self._write_control()
        return taken

    def _write_control(self) -> bool:
        """Write what waits of control frames, if no frame is under way. False: the kernel is full."""
        while (self._control or self._pong) and not self._is_amid:
            if not self._control:
                self._control, self._pong = self._pong, b""
            self._control = self._control[self._under.write([self._control]) :]
            if self._control:
                return False
        return True

    async def wait_readable(self) -> None:
        if self._kept or self._ended or (self._error is not None and not self._told):
            await trio.lowlevel.checkpoint()
        else:
            await self._under.wait_readable()

    async def wait_writable(self) -> None:
        await self._under.wait_writable()

    # ------------------------------------------------------------------ the end

    def _say_close(self, code: int, reason: str = "") -> None:
        """Send the close frame, the last one, if the frame before it is out as a whole: else the peer would take it for
        content.
        """
        if self._closing:
            return
        self._closing = True
        try:
            if self._write_control() and not self._is_amid:
                self._control = wsframes.close_frame(code, reason)
                self._write_control()
        except OSError:
            self._ended = True  # the peer is gone: it will not miss it

    def shutdown_write(self) -> None:
        """Send a close frame. The stream below is shut down when the peer has sent its own; so continue to read."""
        self._say_close(wsframes.NORMAL)
        if self._ended or self._error is not None:
            self._under.shutdown_write()

    def close(self) -> None:
        self._under.close()

    def abandon(self) -> None:
        self._under.abandon()
