"""Bytes to and from one broker, over a socket: calls that block, and end when another thread closes the stream.

One thread may read while others write. The socket itself never blocks: who has to wait does so in `poll`, which `close`
wakes up. TLS (`secure.SecureStream`) is the same with another way to try.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

POLL_SECONDS: Final = 1.0
"""A thread that waits looks so often whether the stream was closed by another."""

T = TypeVar("T")


class MustWait(Exception):
    """The socket is not ready."""

    def __init__(self, events: int) -> None:
        super().__init__(events)
        self.events = events
        """Event to wait for: `select.POLLIN` or `select.POLLOUT`."""


class NothingCame(Exception):
    """The time is up without input, or without progress of a write. (The kernel's own TimeoutError is a broken
    connection.)
    """


class TcpStream:
    """A connection over TCP."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket: Any = connected
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._closed = False

    def receive(self, size_max: int, timeout_seconds: float | None) -> bytes:
        """Bytes as soon as there are some; none at the end. Raises NothingCame, and OSError for a broken connection."""
        with self._reading:
            return b"" if self._closed else self._wait_for(lambda: self._receive_now(size_max), timeout_seconds, b"")

    def receive_into(self, room: memoryview, timeout_seconds: float | None) -> int:
        """Fill `room`; returns how many bytes came before the end of the time or of the connection. Raises NothingCame,
        and OSError for a broken connection.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        filled_bytes = 0
        with self._reading:
            while filled_bytes < len(room) and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                rest = room[filled_bytes:]
                try:
                    count = self._wait_for(lambda: self._fill_now(rest), left, 0)  # noqa: B023 - called at once
                except NothingCame:
                    if not filled_bytes:
                        raise
                    break
                if not count:
                    break
                filled_bytes += count
        return filled_bytes

    def send(
        self, data: bytes, stalled_seconds: float | None = None, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Write all bytes, before those of other writers. Blocks while the broker does not read; then `meanwhile` is
        called whenever there is something to receive: a broker whose answers are not read does not read on. Raises
        OSError, what `meanwhile` raises, and NothingCame if the broker reads nothing for `stalled_seconds`.
        """
        rest = memoryview(data)
        with self._writing:
            while rest:
                if self._closed:
                    raise ConnectionError("the connection was closed")
                attempt = lambda: self._send_now(rest)  # noqa: B023, E731 - called at once
                sent_bytes = self._wait_for(attempt, stalled_seconds, 0, meanwhile)
                rest = rest[sent_bytes:]

    def send_if_idle(self, data: bytes) -> None:
        """Write the data if no other thread writes, and if there is room; else do nothing. Raises OSError."""
        if self._writing.acquire(blocking=False):
            try:
                if not self._closed:
                    self._send_now(memoryview(data))
            except MustWait:
                pass  # so bytes of this call are on their way
            finally:
                self._writing.release()

    def close(self) -> None:
        """End the connection at once. Others who read or write are woken up, and meet the end."""
        self._closed = True
        try:
            self._shut()
        except OSError:
            pass  # the other side was first
        with self._reading, self._writing:
            self._socket.close()

    def _wait_for(
        self,
        attempt: Callable[[], T],
        timeout_seconds: float | None,
        at_end: T,
        meanwhile: Callable[[], None] | None = None,
    ) -> T:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            try:
                return attempt()
            except MustWait as wait:
                events = wait.events
            seconds = POLL_SECONDS
            if deadline is not None and (left := deadline - time.monotonic()) < seconds:
                if left <= 0:
                    raise NothingCame
                seconds = left
            poll = select.poll()
            poll.register(self._socket, events if meanwhile is None else events | select.POLLIN)
            ready = poll.poll(seconds * 1000)
            if self._closed:
                return at_end
            if meanwhile is not None and ready and ready[0][1] & select.POLLIN:
                meanwhile()

    def _receive_now(self, size_max: int) -> bytes:
        try:
            received: bytes = self._socket.recv(size_max)
        except BlockingIOError:
            raise MustWait(select.POLLIN) from None
        return received

    def _fill_now(self, room: memoryview) -> int:
        try:
            count: int = self._socket.recv_into(room)
        except BlockingIOError:
            raise MustWait(select.POLLIN) from None
        return count

    def _send_now(self, data: memoryview) -> int:
        try:
            count: int = self._socket.send(data)
        except BlockingIOError:
            raise MustWait(select.POLLOUT) from None
        return count

    def _shut(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
