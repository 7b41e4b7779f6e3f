"""Transports of STOMP in place of bare TCP: TLS and WebSocket, with the few methods of a socket that the load uses.

The plain socket is used directly. Both transports encode a block that is sent again and again only once, for the
generator must not be the limit of a measurement; so sending blocks until the kernel has the whole block.

- TLS: OpenSSL on memory, so that one system call carries many records. Reads never leave plain bytes behind that a
  `select` would not tell of.
- WebSocket: one message for each STOMP frame, as stompjs and all other clients send them, masked with a key of zeros
  (masked for the broker, and free for the load).
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perf.load.plans import Endpoint

_RECORD_BYTES = 17 * 1024
_SEAL_BYTES = 256 * 1024
_PATIENCE_SECONDS = 60.0


def carried(connected: socket.socket, endpoint: Endpoint) -> Any:
    """Return a socket of this endpoint's transport, over one that is connected and blocks.

    Raises OSError: the other side does not speak it.
    """
    if endpoint.transport == "tls":
        return TlsSocket(connected, endpoint)
    if endpoint.transport == "websocket":
        return WebSocket(connected, endpoint)
    raise ValueError(f"no transport is called {endpoint.transport!r}: plain, tls or websocket")


class _Carried:
    """Common part of both transports: a bare socket below."""

    def __init__(self, bare: socket.socket) -> None:
        self._bare = bare
        self.fileno = bare.fileno
        self.setblocking = bare.setblocking
        self.settimeout = bare.settimeout
        self.close = bare.close

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all bytes, as a socket does."""
        self.send(data)

    def send(self, data: bytes | memoryview) -> int:
        raise NotImplementedError

    def recv_into(self, view: memoryview | bytearray) -> int:
        raise NotImplementedError

    def recv(self, size_max: int) -> bytes:
        """Receive, as a socket does; `size_max` at least 32 KiB."""
        room = bytearray(max(size_max, 2 * _RECORD_BYTES))
        return bytes(memoryview(room)[: self.recv_into(room)])

    def _push(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._bare.send(rest) :]
            except BlockingIOError:
                if not select.select([], [self._bare], [], _PATIENCE_SECONDS)[1]:
                    raise TimeoutError(f"the broker has read nothing for {_PATIENCE_SECONDS:g} seconds") from None


class TlsSocket(_Carried):
    """TLS, as its client."""

    def __init__(self, bare: socket.socket, endpoint: Endpoint) -> None:
        super().__init__(bare)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(endpoint.authority)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=endpoint.host)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._push(self._out.read())
                data = bare.recv(65536)
                if not data:
                    raise ConnectionError("the broker closed in the midst of the TLS handshake") from None
                self._in.write(data)
        self._push(self._out.read())

    def send(self, data: bytes | memoryview) -> int:
        """Sends all of it."""
        rest = memoryview(data)
        while rest:
            self._tls.write(rest[:_SEAL_BYTES])
            self._push(self._out.read())
            rest = rest[_SEAL_BYTES:]
        return len(data)

    def recv_into(self, view: memoryview | bytearray) -> int:
        """Receive, as a socket does. All input is decrypted: `view` has room for a record more than is read."""
        room, got = memoryview(view), 0
        while not got:
            data = self._bare.recv(len(room) - _RECORD_BYTES)
            if not data:
                return 0
            self._in.write(data)
            try:
                while count := self._tls.read(len(room) - got, room[got:]):
                    got += count  # type: ignore[operator]  # with a buffer, it is a number
                return got  # the broker said goodbye
            except ssl.SSLWantReadError:
                continue
        return got


class WebSocket(_Carried):
    """WebSocket, as its client."""

    def __init__(self, bare: socket.socket, endpoint: Endpoint) -> None:
        super().__init__(bare)
        key = "AAAAAAAAAAAAAAAAAAAAAA=="
        bare.sendall(
            f"GET /stomp HTTP/1.1\r\nHost: {endpoint.host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = bare.recv(4096)
            if not data:
                break
            answer += data
        head, _, self._held = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ConnectionError(f"the broker did not open a WebSocket: {head[:100]!r}")
        self._left = 0
        """Missing bytes of the message that is being read."""
        self._block: object = None
        self._frame_bytes = 0
        self._made = b""
        """Messages made of the block that is sent again and again."""
        self._message_bytes = 0
        self._buffer = bytearray(512 * 1024)

    def send(self, data: bytes | memoryview) -> int:
        """Sends all of it, a message for each STOMP frame."""
        block = data.obj if isinstance(data, memoryview) else None
        if block is not None and block is self._block and not len(data) % self._frame_bytes:
            self._push(memoryview(self._made)[: len(data) // self._frame_bytes * self._message_bytes])
            return len(data)
        whole = bytes(data)
        parts = [part + b"\0" for part in whole.split(b"\0")]
        if whole.endswith(b"\0"):
            parts.pop()
        else:
            parts[-1] = parts[-1][:-1]
        made = b"".join(_message(part) for part in parts)
        if isinstance(block, bytes) and len({len(part) for part in parts}) == 1 and block.startswith(whole):
            self._block, self._frame_bytes, self._message_bytes = block, len(parts[0]), len(made) // len(parts)
            self._made = _message(parts[0]) * (len(block) // len(parts[0]))
        self._push(made)
        return len(whole)

    def recv_into(self, view: memoryview | bytearray) -> int:
        """Receive, as a socket does. Control frames are passed over: the broker sends none but its close."""
        room, got = memoryview(view), 0
        while not got:
            held = self._held
            length = self._bare.recv_into(memoryview(self._buffer)[: len(room) - len(held)])
            if not length:
                return 0
            data = held + bytes(memoryview(self._buffer)[:length])
            self._held = b""
            at, end = 0, len(data)
            while at < end:
                if self._left:
                    stop = min(end, at + self._left)
                    room[got : got + stop - at] = data[at:stop]
                    got += stop - at
                    self._left -= stop - at
                    at = stop
                    continue
                size = data[at + 1] if at + 1 < end else 0
                body = at + (2 if size < 126 else 4 if size == 126 else 10)
                if at + 1 >= end or body > end:
                    self._held = data[at:]
                    break
                if data[at] & 0x0F == 8:
                    return got
                if size > 125:
                    size = int.from_bytes(data[at + 2 : body], "big")
                # Messages come one to a frame: those of one size are taken together, for this is the load, not what is
                # measured.
                head, step, bodies = data[at:body], body - at + size, []
                while body + size <= end and data.startswith(head, at):
                    bodies.append(data[body : body + size])
                    at += step
                    body += step
                if bodies:
                    whole = b"".join(bodies)
                    room[got : got + len(whole)] = whole
                    got += len(whole)
                else:
                    self._left, at = size, body
        return got


def _message(payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((0x82, 0x80 | size))
    elif size < 65536:
        head = struct.pack("!BBH", 0x82, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x82, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


def make_certificate(folder: str, host: str) -> tuple[str, str]:
    """A certificate for this host, and its authority, as PEM files in a folder. Raises ImportError without trustme."""
    import trustme

    made = trustme.CA()
    leaf = made.issue_cert(host)
    certificate, authority = os.path.join(folder, "server.pem"), os.path.join(folder, "ca.pem")
    leaf.private_key_and_cert_chain_pem.write_to_path(certificate)
    made.cert_pem.write_to_path(authority)
    return certificate, authority
