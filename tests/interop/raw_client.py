"""A STOMP peer made of a socket and nothing else: it sends the bytes that a test gives it and reads frames its own way.

Independent of `protocols` on purpose: what both got wrong in the same way would not be seen. Blocking, and every
operation has a deadline (`DEADLINE_SECONDS`), so a broker that does not answer fails the test instead of hanging it.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, Final

import attrs

DEADLINE_SECONDS: Final = 20.0
"""For one operation. A hundred times what it takes; two busy cores must not look like a fault."""


@attrs.frozen
class RawFrame:
    """A frame as it stood on the wire: nothing unescaped, the first of repeated headers."""

    command: str
    headers: dict[str, str]
    body: bytes

    def __getitem__(self, name: str) -> str:
        return self.headers[name]


def frame(command: str, body: bytes = b"", *, length: bool = False, **headers: str) -> bytes:
    """A frame; `_` in header names becomes `-`. `length`: with a content-length."""
    if length:
        headers["content-length"] = str(len(body))
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


class RawClient:
    """One connection. A context manager that closes the socket."""

    def __init__(
        self, address: tuple[str, int], *, receive_buffer_bytes: int | None = None, deadline: float = DEADLINE_SECONDS
    ) -> None:
        """Connect. A small `receive_buffer_bytes` makes the kernel hold little for a peer that does not read."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(deadline)
        try:
            if receive_buffer_bytes is not None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            self.socket.connect(address)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self.socket.close()
            raise
        self.name = "{}:{}".format(*self.socket.getsockname())
        """As the broker's log and report call this peer."""
        self._buffer = b""
        self._at = 0
        self.heart_beats_count = 0
        """EOLs that were skipped in front of frames."""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """All of it. Raises TimeoutError if the broker does not take it."""
        self.socket.sendall(data)

    def send_what_fits(self, data: bytes, *, patience_seconds: float = 0.3) -> int:
        """Send until the broker has stopped taking bytes for so long, or all are out. Returns how many it took."""
        view = memoryview(data)
        sent = 0
        self.socket.settimeout(patience_seconds)
        try:
            while sent < len(data):
                sent += self.socket.send(view[sent:])
        except TimeoutError:
            return sent
        finally:
            self.socket.settimeout(DEADLINE_SECONDS)
        return sent

    def connect(self, version: str = "1.2", **headers: str) -> RawFrame:
        """CONNECT, and its CONNECTED."""
        self.send(frame("CONNECT", accept_version=version, host="test", **headers))
        return self.expect("CONNECTED")

    def finish_sending(self) -> None:
        """Close our direction only, as `nc` does at the end of its input."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a RST: what a killed machine or a careless client looks like."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def report(self) -> dict[str, Any]:
        """What the broker says of itself. Only where nothing else comes."""
        self.send(frame("SUBSCRIBE", id="report", destination="/temp-queue/report"))
        self.send(frame("SEND", destination="/sluiceway/stat", reply_to="/temp-queue/report"))
        report: dict[str, Any] = json.loads(self.expect("MESSAGE").body)
        self.send(frame("UNSUBSCRIBE", id="report"))
        return report

    # -- receiving ----------------------------------------------------------------------------------------------------

    def frame(self) -> RawFrame:
        """The next frame. Raises EOFError if the connection ends first."""
        while True:
            found = self._cut()
            if found is not None:
                return found
            self._read_more()

    def expect(self, command: str) -> RawFrame:
        """The next frame, which must have this command."""
        found = self.frame()
        assert found.command == command, f"{command} was due, got {found}"
        return found

    def frames(self, count: int) -> Iterator[RawFrame]:
        for _ in range(count):
            yield self.frame()

    def frames_to_end(self) -> list[RawFrame]:
        """All frames until the broker closes."""
        found: list[RawFrame] = []
        while True:
            try:
                found.append(self.frame())
            except EOFError:
                return found

    def heart_beats(self, count: int) -> None:
        """Wait until so many EOLs came, and nothing else."""
        while self.heart_beats_count < count:
            assert self._cut() is None, "a frame instead of heart-beats"
            if self.heart_beats_count < count:
                self._read_more()

    def bytes_to_end(self) -> bytes:
        """All bytes until the broker closes, those of frames that were read left out. A reset counts as the end."""
        while True:
            try:
                self._read_more()
            except EOFError:
                return self._buffer[self._at :]

    def _read_more(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            raise EOFError("the broker reset the connection") from None
        if not data:
            raise EOFError(f"the broker closed the connection; left over: {self._buffer[self._at :][:200]!r}")
        self._buffer = self._buffer[self._at :] + data
        self._at = 0

    def _cut(self) -> RawFrame | None:
        buffer = self._buffer
        while buffer[self._at : self._at + 1] == b"\n":
            self._at += 1
            self.heart_beats_count += 1
        blank = buffer.find(b"\n\n", self._at)
        if blank < 0:
            return None
        command, *lines = buffer[self._at : blank].decode().split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _colon, value = line.partition(":")
            headers.setdefault(name, value)
        start = blank + 2
        end = start + int(headers["content-length"]) if "content-length" in headers else buffer.find(b"\0", start)
        if end < 0 or len(buffer) <= end + 1:
            return None
        assert buffer[end] == 0, f"no NUL behind the body of {command} {headers}"
        assert buffer[end + 1] == 10, f"no LF behind the NUL of {command} {headers}"  # there are clients that need it
        self._at = end + 2
        return RawFrame(command, headers, buffer[start:end])


def poll(what: str, deadline_seconds: float = DEADLINE_SECONDS, interval_seconds: float = 0.01) -> Iterator[None]:
    """`for _ in poll("the queue is empty"): if ...: break`: look again and again, for what nothing announces.

    Raises TimeoutError with `what` at the deadline.
    """
    end = time.monotonic() + deadline_seconds
    while time.monotonic() < end:
        yield
        time.sleep(interval_seconds)
    raise TimeoutError(f"not within {deadline_seconds:g} seconds: {what}")
