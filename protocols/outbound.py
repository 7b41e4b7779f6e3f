"""What waits to be written to one connection: a flow resource of its own, shared by all that write there.

Messages, receipts and heart-beats are appended; once per dispatch turn everything goes out in one write. When the
kernel takes less than all, the rest waits and whoever delivers messages here is blocked at the limit, until half of it
has drained. Control frames (receipts, ERROR) are never refused; how many bytes of them wait is what the session looks
at before it reads more from a peer that does not read. After `end` nothing more is taken: an ERROR is the last frame.

A *mark* is a callback that runs when the kernel has taken everything appended before it: that is when a message with
ack `auto` is settled. If the connection dies first, the marks that never ran are handed back, so that those messages
come again.

Pure: `write` is passed in: it takes pieces of bytes, must not block, and returns how many bytes were taken in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from flow import Flow, FlowController, FlowManager, FlowResource, SizeLimiter, SourceController

WRITE_BYTES_MAX: Final = 1 << 20
"""About how much one write is offered. The kernel rarely takes more at once."""

PIECES_MAX: Final = 64
"""Pieces of one write; far below what any kernel refuses."""

ALONE_BYTES: Final = 8192
"""Parts from this size on are written where they lie; smaller ones are joined, which is cheaper than a piece each."""

Piece = bytes | memoryview

Mark = Callable[[bool], None]
"""Called with True when the kernel has taken the bytes before it, with False when it never will."""


class Outbound(FlowResource):
    """Bytes on their way to one peer."""

    def __init__(
        self,
        label: str,
        *,
        capacity_bytes: int,
        manager: FlowManager,
        clock: Callable[[], float],
        write: Callable[[Sequence[Piece]], int],
        request_flush: Callable[[], None],
    ) -> None:
        super().__init__(label, "outbound", manager)
        self._write = write
        self._request_flush = request_flush
        self._parts: deque[bytes] = deque()
        self._rest: list[Piece] = []
        self._marks: deque[tuple[int, Mark]] = deque()
        self._control: deque[list[int]] = deque()
        self._clock = clock
        self._flush_requested = False
        self.closed = False
        self._ended = False
        self.appended_bytes = 0
        """All bytes ever appended; the offset of the next one."""
        self.taken_bytes = 0
        """All bytes that the kernel took."""
        self.control_bytes = 0
        """Bytes of control frames that wait."""
        self.last_taken_seconds = clock()
        self.controller: FlowController[bytes] = FlowController(
            self,
            Flow(f"to {label}"),
            SizeLimiter(capacity_bytes, capacity_bytes // 2, clock=clock),
            accept=_never,
            clock=clock,
        )
        self._capacity_bytes = capacity_bytes
        self.open()

    @property
    def waiting_bytes(self) -> int:
        """Bytes appended but not taken."""
        return self.appended_bytes - self.taken_bytes

    def room_bytes(self) -> int:
        """Bytes that may be appended before the limit; at least 1 while not throttled."""
        return max(1, self._capacity_bytes - self.waiting_bytes)

    def send_control(self, data: bytes) -> None:
        """Append a frame that is not a message: never refused. After `end` it is dropped: nobody would read it."""
        if self._ended:
            return
        size_bytes = len(data)
        self._parts.append(data)
        self.appended_bytes += size_bytes
        self.control_bytes += size_bytes
        control = self._control
        if control and control[-1][0] == self.appended_bytes - size_bytes:
            control[-1][0] = self.appended_bytes
            control[-1][1] += size_bytes
        else:
            control.append([self.appended_bytes, size_bytes])
        self.controller.charge(0, size_bytes, None)
        self._ask_for_flush()

    def send_messages(
        self, parts: Iterable[bytes], size_bytes: int, source: SourceController, mark: Mark | None
    ) -> None:
        """Append message frames (their bytes in order); may block `source`. `mark` runs when they are taken, or never
        will be (after `end` at once).
        """
        if self._ended:
            if mark is not None:
                mark(False)
            return
        self._parts.extend(parts)
        self.appended_bytes += size_bytes
        if mark is not None:
            self._marks.append((self.appended_bytes, mark))
        self.controller.charge(0, size_bytes, source)
        self._ask_for_flush()

    def end(self) -> None:
        """What was appended last is the last that the peer gets: an ERROR. It is still written."""
        self._ended = True

    def _ask_for_flush(self) -> None:
        if not self._flush_requested:
            self._flush_requested = True
            self._request_flush()

    def flush(self) -> bool:
        """Write as much as the kernel takes. True: all is out. False: it is full, call again when it can take more.

        Raises what `write` raises; then nothing more can be written and `close` is due.
        """
        self._flush_requested = False
        before_bytes = self.taken_bytes
        try:
            while True:
                pieces = self._rest or self._next_pieces()
                if not pieces:
                    return True
                taken = self._write(pieces)
                self.taken_bytes += taken
                self._rest = _behind(pieces, taken)
                if self._rest:
                    return False
        finally:
            if self.taken_bytes > before_bytes:
                self._after_write(self.taken_bytes - before_bytes)

    def _next_pieces(self) -> list[Piece]:
        """What to write next: large parts as they are, small neighbours joined."""
        parts = self._parts
        pieces: list[Piece] = []
        small: list[bytes] = []
        size_bytes = 0
        while parts and size_bytes < WRITE_BYTES_MAX and len(pieces) < PIECES_MAX:
            part = parts.popleft()
            size_bytes += len(part)
            if len(part) < ALONE_BYTES:
                small.append(part)
                continue
            if small:
                pieces.append(b"".join(small))
                small.clear()
            pieces.append(part)
        if small:
            pieces.append(small[0] if len(small) == 1 else b"".join(small))
        return pieces

    def _after_write(self, size_bytes: int) -> None:
        self.last_taken_seconds = self._clock()
        marks = self._marks
        while marks and marks[0][0] <= self.taken_bytes:
            marks.popleft()[1](True)
        control = self._control
        while control and control[0][0] <= self.taken_bytes:
            self.control_bytes -= control.popleft()[1]
        # Last: this may let sources go on, which append.
        self.controller.release(0, size_bytes)

    def close(self) -> None:
        """Nothing more will be written: marks get False, sources are let go."""
        if self.closed:
            return
        self.closed = self._ended = True
        self._parts.clear()
        self._rest = []
        marks, self._marks = self._marks, deque()
        for _offset, mark in marks:
            mark(False)
        self.controller.close()
        super().close()

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"waiting_bytes": self.waiting_bytes}
        if self.waiting_bytes:
            facts["idle_seconds"] = self._clock() - self.last_taken_seconds
        return facts


def _behind(pieces: list[Piece], taken_bytes: int) -> list[Piece]:
    """What is left of these when this many bytes were taken from the front."""
    for place, piece in enumerate(pieces):
        if taken_bytes < len(piece):
            return [memoryview(piece)[taken_bytes:], *pieces[place + 1 :]] if taken_bytes else pieces[place:]
        taken_bytes -= len(piece)
    return []


def _never(_element: bytes) -> None:
    raise AssertionError("outbound bytes are charged, never added as elements")
