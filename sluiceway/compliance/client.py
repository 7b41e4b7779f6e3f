"""One connection of a check: it writes what the check says, reads frames, and records both with times.

Everything is bounded: waits by the check's deadline, received bytes by `RECEIVED_BYTES_MAX`, the transcript by
`TRANSCRIPT_BYTES_MAX`.
"""

from __future__ import annotations

import time
from typing import Final

import attrs

from sluiceway.compliance.registry import Failed, Unclear
from sluiceway.compliance.transport import Deadline, Ended, Wire
from sluiceway.compliance.wire import Frame, Headers, Reader, WireFault, escape, frame, pairs, readable

RECEIVED_BYTES_MAX: Final = 16 << 20
"""Bytes that one connection takes: a broker that sends without end fails the check."""
TRANSCRIPT_BYTES_MAX: Final = 32 << 10
ENTRY_BYTES_MAX: Final = 2 << 10


class Late(Failed):
    """Nothing came in time."""


class Closed(Failed):
    """The broker has closed the connection."""


class NoFrame(Failed):
    """The broker's bytes are no frame."""


@attrs.frozen
class Entry:
    """Bytes sent or received, or an event."""

    seconds: float
    """Time since the check began."""
    connection: int
    kind: str
    """`>`: sent by the kit, `<`: sent by the broker, `!`: an event."""
    data: bytes
    size_bytes: int
    """Size before `data` was cut."""

    @property
    def text(self) -> str:
        """Bytes, or the event, for people."""
        shown = readable(self.data, ENTRY_BYTES_MAX)
        return (
            shown if self.size_bytes == len(self.data) else f"{shown} … {self.size_bytes - len(self.data)} more bytes"
        )


class Transcript:
    """Everything that went over the connections of a check, up to a size."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._began = time.monotonic()
        self._room = TRANSCRIPT_BYTES_MAX

    def note(self, connection: int, kind: str, data: bytes) -> None:
        """Record bytes, cut to what fits."""
        if self._room <= 0:
            return
        kept = data[: min(ENTRY_BYTES_MAX, self._room)]
        self._room -= len(kept) + 16
        last = self.entries[-1] if self.entries else None
        whole = last is not None and last.size_bytes == len(last.data)
        if last is not None and whole and kind == last.kind != "!" and last.connection == connection:
            joined = last.data + kept
            if len(joined) <= ENTRY_BYTES_MAX:
                self._room += 16
                size = last.size_bytes + len(data)
                self.entries[-1] = attrs.evolve(last, data=joined, size_bytes=size)
                return
        self.entries.append(Entry(time.monotonic() - self._began, connection, kind, kept, len(data)))


class Client:
    """A connection in one version of STOMP. A context manager that closes it."""

    def __init__(
        self, wire: Wire, version: str, number: int, transcript: Transcript, timeout_seconds: float, deadline: float
    ) -> None:
        """`timeout_seconds`: for each wait; `deadline`: of the check, on the monotonic clock."""
        self.version = version
        self.timeout_seconds = timeout_seconds
        self.connected: Frame | None = None
        """CONNECTED, when it came."""
        self.irregularities: list[str] = []
        """Words on what was wrong with frames that could be read all the same."""
        self.backlog: list[Frame] = []
        """MESSAGEs that came while a RECEIPT was due."""
        self.reader = Reader()
        self._wire = wire
        self._number = number
        self._transcript = transcript
        self._deadline = deadline
        self._received_bytes = 0
        self._receipts = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at once, without DISCONNECT."""
        self._wire.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises Failed if the broker does not take them."""
        self._transcript.note(self._number, ">", data)
        try:
            self._wire.send(data, self._seconds(self.timeout_seconds))
        except Deadline as late:
            raise self._late("to send all of it", str(late)) from None
        except Ended as end:
            raise self._closed("to send all of it", str(end)) from None

    def write(self, command: str, headers: Headers = (), body: bytes = b"", *, length: bool | None = None) -> None:
        """Send a frame, its headers escaped as the version wants. `length`: with content-length; None: if it has a
        body.
        """
        self.send(self.bytes_of(command, headers, body, length=length))

    def bytes_of(self, command: str, headers: Headers = (), body: bytes = b"", *, length: bool | None = None) -> bytes:
        """Return the bytes that `write` sends."""
        version = "1.0" if command in ("CONNECT", "STOMP") else self.version
        made = [(escape(name, version), escape(value, version)) for name, value in pairs(headers)]
        if length or (length is None and body):
            made.append(("content-length", str(len(body))))
        return frame(command, made, body)

    def receipted(self, command: str, headers: Headers = (), body: bytes = b"") -> Frame:
        """Send a frame with a receipt and return its RECEIPT; MESSAGEs before it are kept for `message`."""
        self._receipts += 1
        receipt = f"r{self._receipts}"
        self.write(command, [*pairs(headers), ("receipt", receipt)], body)
        return self.receipt(receipt, f"a RECEIPT for {command}")

    def receipt(self, receipt: str, expected: str = "") -> Frame:
        """Wait for a RECEIPT; MESSAGEs before it are kept for `message`."""
        expected = expected or f"a RECEIPT with receipt-id {receipt!r}"
        while True:
            came = self.frame(expected)
            if came.command == "MESSAGE":
                self.backlog.append(came)
                continue
            if came.command != "RECEIPT" or came.get("receipt-id") != receipt:
                raise Failed(expected, f"came {shown(came)}")
            return came

    # -- receiving ----------------------------------------------------------------------------------------------------

    def frame(self, expected: str = "a frame", seconds: float | None = None) -> Frame:
        """Return the next frame. Raises Late, Closed and NoFrame."""
        end = time.monotonic() + self._seconds(self.timeout_seconds if seconds is None else seconds)
        while True:
            try:
                found = self.reader.next()
            except WireFault as fault:
                raise NoFrame(expected, f"came bytes that are no frame: {fault}") from None
            if found is not None:
                self.irregularities += found.irregularities
                return found
            self._receive(expected, end - time.monotonic())

    def expect(self, command: str, expected: str = "") -> Frame:
        """Return the next frame, which must have this command."""
        expected = expected or f"{'an' if command == 'ERROR' else 'a'} {command}"
        came = self.frame(expected)
        if came.command != command:
            raise Failed(expected, f"came {shown(came)}")
        return came

    def message(self, body: bytes | None = None, expected: str = "") -> Frame:
        """Return the next MESSAGE, with that body if one is given."""
        came = self.backlog.pop(0) if self.backlog else self.expect("MESSAGE", expected)
        if body is not None and came.body != body:
            raise Failed(f"a MESSAGE with the body {readable(body, 80)!r}", f"came {shown(came)}")
        return came

    def messages(self, count: int) -> list[Frame]:
        """Return so many MESSAGEs."""
        return [self.message(expected=f"{count} MESSAGEs, the next of them") for _ in range(count)]

    def quiet(self, seconds: float, expected: str) -> None:
        """Raise Failed if a frame comes within `seconds`, or the connection ends."""
        try:
            came = self.backlog.pop(0) if self.backlog else self.frame(expected, seconds)
        except Late:
            return
        raise Failed(expected, f"came {shown(came)}")

    def error(self) -> Frame:
        """Return the ERROR that must come, MESSAGEs before it skipped, and wait for the end."""
        came = self.refusal("an ERROR, then the end of the connection")
        self.end("the end of the connection behind ERROR")
        return came

    def refusal(self, expected: str = "an ERROR") -> Frame:
        """Return the ERROR that must come, MESSAGEs before it skipped."""
        while True:
            came = self.frame(expected)
            if came.command == "ERROR":
                return came
            if came.command != "MESSAGE":
                raise Failed(expected, f"came {shown(came)}")

    def end(self, expected: str = "the end of the connection") -> None:
        """Wait until the broker closes; a frame before that is a failure."""
        try:
            came = self.frame(expected)
        except Closed:
            return
        raise Failed(expected, f"came {shown(came)}")

    def reaction(self, seconds: float | None = None) -> str:
        """Return what the broker does next, in words: `ERROR: …`, `closes`, `nothing`, or the frame that came."""
        try:
            came = self.frame(seconds=seconds)
        except Late:
            return "nothing"
        except Closed:
            return "closes without ERROR"
        if came.command != "ERROR":
            return came.command
        return f"ERROR ({readable((came.get('message') or '').encode(), 100)})"

    def beats(self, seconds: float) -> int:
        """Read for so long; return the number of EOLs. Frames are failures."""
        before = self.reader.eols_count
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.quiet(left, "heart-beats and nothing else")
        return self.reader.eols_count - before

    def wait_data(self, seconds: float) -> bool:
        """Return whether anything came within `seconds`, heart-beats included."""
        try:
            self._receive("a heart-beat", seconds)
            self.reader.next()
        except Late:
            return False
        except WireFault as fault:
            raise NoFrame("a heart-beat", str(fault)) from None
        return True

    # -- inside -------------------------------------------------------------------------------------------------------

    def _receive(self, expected: str, seconds: float) -> None:
        try:
            if seconds <= 0:
                raise Deadline("nothing came")
            data = self._wire.receive(self._seconds(seconds))
        except Deadline:
            raise self._late(expected, "nothing came in time") from None
        except Ended as end:
            rest = self.reader.rest
            left = f", in the middle of a frame: {readable(rest, 200)!r}" if rest else ""
            raise self._closed(expected, f"{end}{left}") from None
        self._received_bytes += len(data)
        self._transcript.note(self._number, "<", data)
        if self._received_bytes > RECEIVED_BYTES_MAX:
            raise NoFrame(expected, f"the broker sent more than {RECEIVED_BYTES_MAX} bytes")
        self.reader.feed(data)

    def _seconds(self, wanted: float) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Unclear("the check took longer than --check-timeout")
        return min(wanted, left)

    def _late(self, expected: str, came: str) -> Late:
        return Late(expected, came)

    def _closed(self, expected: str, came: str) -> Closed:
        self._transcript.note(self._number, "!", came.encode())
        return Closed(expected, came)


def shown(came: Frame) -> str:
    """Return a frame in one line, for messages."""
    return readable(came.raw, 300).replace("\n", "⏎")
