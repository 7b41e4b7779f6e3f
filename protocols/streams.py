"""Byte streams under a connection: the transport's needs of a socket, and nothing more.

Reading and writing never wait: they take the available bytes. Waiting is separate, so that the broker writes from
inside a dispatch turn (one system call per batch, no task switch), and a task waits only when the kernel's buffer is
full.

`SocketStream` is the real one; `memory_pair` joins two ends in memory, for tests and for clients inside the same
process. `tls` and `websocket` make streams of streams.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import attrs
import trio

from .framing import PLAIN, Framing

_PEER_ENDED: Final = getattr(select, "POLLRDHUP", 0)
"""Event of a socket whose peer has ended its direction, where the system tells; errors and ends are told always."""


@attrs.frozen
class PeerCertificate:
    """A client's certificate, which has been found good."""

    names: tuple[str, ...]
    """The common name of its subject if it has one, then its DNS names and e-mail addresses."""
    fingerprint_sha256: str
    """Fingerprint of the DER form, 64 hexadecimal digits, lower case."""
    not_after: float
    """End of validity, in seconds since the epoch."""


class ByteStream(Protocol):
    """One end of a connection."""

    peer: str
    """Name of the other end, for people."""

    @property
    def framing(self) -> Framing:
        """Form of STOMP frames on the stream."""

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """Certificate that the peer has shown, if it was asked for one (TLS) and the certificate is valid."""

    @property
    def peer_has_ended(self) -> bool:
        """Whether the peer, or the network, has ended what comes in, though bytes may be left to read."""

    def read(self, size_max: int) -> bytes | None:
        """Bytes that are there; b"" at the end of the stream, None if there are none now. Raises OSError."""

    def read_into(self, room: memoryview) -> int | None:
        """Read, as `read`, into `room`, which is not empty; returns the number of bytes."""

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Write these pieces, in order, as far as they fit; returns the number of bytes taken, 0 if none. Raises
        OSError.

        The rest must come first in the next call: some of it may be encrypted already.
        """

    async def wait_readable(self) -> None:
        """Wait until `read` has something. Raises trio.ClosedResourceError if the stream is closed meanwhile."""

    async def wait_writable(self) -> None:
        """Wait until `write` takes something."""

    def shutdown_write(self) -> None:
        """Tell the peer that nothing more comes. Does nothing on a broken connection."""

    def close(self) -> None:
        """Close it; waiting tasks get trio.ClosedResourceError."""

    def abandon(self) -> None:
        """Close the stream when trio has ended already, for whatever reason: no task waits for it any more."""


class SocketStream:
    """A connected stream socket, made non-blocking."""

    __slots__ = ("_closed", "_socket", "peer")
    framing = PLAIN
    peer_certificate: Final = None

    def __init__(self, connected: socket.socket, peer: str) -> None:
        connected.setblocking(False)
        try:
            # The broker makes batches itself; Nagle's would delay the last bytes of each.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            # Some systems refuse it on a connection that was reset already; reading it will tell.
            pass
        self._socket = connected
        self._closed = False
        self.peer = peer

    def fileno(self) -> int:
        """Descriptor of the socket; -1 once it is closed."""
        return self._socket.fileno()

    @property
    def peer_has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, _PEER_ENDED)
        return bool(poll.poll(0))

    def read(self, size_max: int) -> bytes | None:
        try:
            return self._socket.recv(size_max)
        except (BlockingIOError, InterruptedError):
            return None

    def read_into(self, room: memoryview) -> int | None:
        try:
            return self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return None

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        try:
            return self._socket.send(pieces[0]) if len(pieces) == 1 else self._socket.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            return 0

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    async def wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    def shutdown_write(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The peer is gone already: no one is left to tell.
            return

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def abandon(self) -> None:
        self._closed = True
        self._socket.close()


class _Pipe:
    """One direction between two memory streams."""

    __slots__ = ("capacity_bytes", "chunks", "ended", "readable", "size_bytes", "writable")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.chunks: deque[bytes] = deque()
        self.size_bytes = 0
        self.ended = False
        self.readable = trio.lowlevel.ParkingLot()
        self.writable = trio.lowlevel.ParkingLot()

    def put(self, data: bytes | memoryview) -> int:
        if self.ended:
            raise BrokenPipeError("the other end of the memory stream is closed")
        taken = bytes(data[: self.capacity_bytes - self.size_bytes])
        if taken:
            self.chunks.append(taken)
            self.size_bytes += len(taken)
            self.readable.unpark_all()
        return len(taken)

    def get(self, size_max: int) -> bytes | None:
        if not self.chunks:
            return b"" if self.ended else None
        chunk = self.chunks.popleft()
        if len(chunk) > size_max:
            self.chunks.appendleft(chunk[size_max:])
            chunk = chunk[:size_max]
        self.size_bytes -= len(chunk)
        self.writable.unpark_all()
        return chunk

    def end(self) -> None:
        self.ended = True
        self.readable.unpark_all()
        self.writable.unpark_all()


class MemoryStream:
    """One end of `memory_pair`."""

    __slots__ = ("_closed", "_in", "_out", "peer")
    framing = PLAIN
    peer_certificate: Final = None

    def __init__(self, inward: _Pipe, outward: _Pipe, peer: str) -> None:
        self._in = inward
        self._out = outward
        self._closed = False
        self.peer = peer

    @property
    def peer_has_ended(self) -> bool:
        return self._in.ended

    def read(self, size_max: int) -> bytes | None:
        self._check()
        return self._in.get(size_max)

    def read_into(self, room: memoryview) -> int | None:
        data = self.read(len(room))
        if data is None:
            return None
        room[: len(data)] = data
        return len(data)

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        self._check()
        taken_bytes = 0
        for piece in pieces:
            taken = self._out.put(piece)
            taken_bytes += taken
            if taken < len(piece):
                break
        return taken_bytes

    async def wait_readable(self) -> None:
        self._check()
        if self._in.chunks or self._in.ended:
            await trio.lowlevel.checkpoint()
            return
        await self._in.readable.park()
        self._check()

    async def wait_writable(self) -> None:
        self._check()
        if self._out.size_bytes < self._out.capacity_bytes or self._out.ended:
            await trio.lowlevel.checkpoint()
            return
        await self._out.writable.park()
        self._check()

    def shutdown_write(self) -> None:
        self._out.end()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._in.end()
            self._out.end()

    def abandon(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this memory stream was closed")

    async def send_all(self, data: bytes) -> None:
        """Write all of it, waiting where the other end does not read."""
        view = memoryview(data)
        while view:
            taken = self.write([view])
            view = view[taken:]
            if view:
                await self.wait_writable()

    async def receive_some(self, size_max: int = 65536) -> bytes:
        """Wait for bytes; b"" at the end of the stream."""
        while (data := self.read(size_max)) is None:
            await self.wait_readable()
        return data


def memory_pair(
    *, capacity_bytes: int = 65536, names: tuple[str, str] = ("memory client", "memory broker")
) -> tuple[MemoryStream, MemoryStream]:
    """Make two ends joined in memory; each direction holds `capacity_bytes` before its writer waits.

    `names`: of the first and the second end.
    """
    there, back = _Pipe(capacity_bytes), _Pipe(capacity_bytes)
    return MemoryStream(back, there, names[1]), MemoryStream(there, back, names[0])
