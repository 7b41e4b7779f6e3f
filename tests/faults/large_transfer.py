"""One large body through a broker: a producer that makes it up as it goes, a consumer that only counts and sums.

Plain sockets, and nothing of the body is kept: so both ends of gigabytes fit beside the broker in a small machine.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Final

PATTERN: Final = bytes(range(256)) * 4096
"""A megabyte with all octets in it."""

_TIMEOUT_SECONDS: Final = 60.0


def patterned(size_bytes: int) -> Iterator[bytes]:
    """A body of this size, in pieces."""
    for _ in range(size_bytes // len(PATTERN)):
        yield PATTERN
    if size_bytes % len(PATTERN):
        yield PATTERN[: size_bytes % len(PATTERN)]


def checksum_of(size_bytes: int) -> int:
    """CRC 32 of that body."""
    total = 0
    for piece in patterned(size_bytes):
        total = zlib.crc32(piece, total)
    return total


class Wire:
    """A connected STOMP 1.2 client that sees bytes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=_TIMEOUT_SECONDS)
        self._rest = b""
        self.send(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
        assert self.head().startswith(b"CONNECTED")
        self.until(b"\0")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 20)
        assert data, "the broker closed the connection"
        return data

    def until(self, mark: bytes) -> bytes:
        """What comes before this, which is taken as well."""
        while mark not in self._rest:
            self._rest += self._more()
        before, _, self._rest = self._rest.partition(mark)
        return before

    def head(self) -> bytes:
        """Command and headers of the next frame."""
        return self.until(b"\n\n").lstrip(b"\n")

    def send_large(self, headers: bytes, size_bytes: int, *, between: Callable[[], None]) -> None:
        """SEND a patterned body, and wait for its receipt. `headers`: lines, each with its end. `between` is called
        after each piece.
        """
        self.send(b"SEND\nreceipt:large\ncontent-length:%d\n%s\n" % (size_bytes, headers))
        for piece in patterned(size_bytes):
            self.send(piece)
            between()
        self.send(b"\0")
        head = self.head()
        assert head.startswith(b"RECEIPT"), head
        assert b"receipt-id:large" in head
        self.until(b"\0")

    def receive_large(self, *, between: Callable[[], None]) -> tuple[int, int]:
        """Length and checksum of the body of the next MESSAGE, which must say its length."""
        head = self.head()
        assert head.startswith(b"MESSAGE"), head
        (length,) = [int(line.partition(b":")[2]) for line in head.split(b"\n") if line.startswith(b"content-length:")]
        left, total = length, 0
        while left:
            data, self._rest = self._rest or self._more(), b""
            body, self._rest = data[:left], data[left:]
            left -= len(body)
            total = zlib.crc32(body, total)
            between()
        assert self.until(b"\0") == b""
        return length, total
