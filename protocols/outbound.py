"""Bytes that wait to be written to one connection: a flow resource shared by all writers of the connection.

Messages, receipts and heart-beats are appended; one write per dispatch turn sends everything. When the kernel takes
only a part, the rest waits. At the limit, subscriptions that deliver here are blocked until half of it has drained.
Control frames (receipts, ERROR) are never refused; the session looks at the number of their waiting bytes before it
reads more from a peer that does not read. After `end` nothing more is taken: an ERROR is the last frame.

A *mark* is a callback that runs when the kernel has taken everything appended before it: that is when a message with
ack `auto` is acknowledged. If the connection dies first, the marks that never ran are handed back, so that their
messages are redelivered.

A *streamed* frame (streamed.py) has a body that is not in memory. Its pieces are pulled when all that was appended
before it is out; what is appended behind it waits. Its offsets count in full, but the charge is only the buffer that
its pieces need, at most the whole capacity: so subscriptions that deliver here are blocked until the frame is nearly
out.

Pure: `write` is passed in: it takes pieces of bytes, must not block, and returns how many bytes were taken in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ..flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController
from ..flow.kinds import ResourceKind
from .framing import PLAIN, Framing, Piece
from .reading import CountedHold, ReadGate, Reason
from .streamed import PIECE_BYTES, Pull, StreamedFrame

WRITE_BYTES_MAX: Final = 1 << 20
"""Approximate size of one write. The kernel rarely takes more at once."""

PIECES_MAX: Final = 64
"""Pieces of one write; far below what any kernel refuses."""

ALONE_BYTES: Final = 8192
"""Parts from this size on are written where they lie; smaller ones are joined, which is cheaper than a piece each."""

MARKS_MAX: Final = 128
"""Marks that run in one flush: acknowledging a message of a crowded topic takes 15 µs. The bytes of the other marks
stay charged until the next flush, which is requested.
"""

_NOTHING_BEHIND: Final[deque[Any]] = deque(maxlen=0)
"""Empty deque of all connections without a streamed frame: a deque of their own takes 760 bytes."""

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
        stream_failed: Callable[[Exception, bool], None] | None = None,
        control: CountedHold | None = None,
        framing: Framing = PLAIN,
        confirmed_later: bool = False,
    ) -> None:
        """`control` counts the bytes of control frames that wait. `stream_failed`: a body can't be read, for this
        reason; True: part of its frame is out, so that nothing can be said to the peer any more. Else all that waited
        is dropped, so that an ERROR can be. Needed by `send_streamed`. `confirmed_later`: bytes count as taken when
        `confirm` says so, not when `write` has taken them: they are on their way to another hub.
        """
        super().__init__(label, ResourceKind.OUTBOUND, manager)
        self._write = write
        self._request_flush = request_flush
        self._stream_failed = stream_failed
        self.framing = framing
        """Form of frames on this connection. `send_messages` takes frames in that form."""
        self._parts: deque[Piece] = deque()
        self._behind: deque[Piece | StreamedFrame] = _NOTHING_BEHIND
        """Parts and frames from the first streamed frame on; the parts wait for it."""
        self._tail: deque[Any] = self._parts
        """The deque of the two to which new parts are appended."""
        self._uncharged_bytes = 0
        """Bytes of streamed frames that need no buffer yet."""
        self._settling_bytes = 0
        """Bytes that the kernel took and that are still charged: some of their marks have not run."""
        self._failed_offset = -1
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
        """All bytes that the kernel took, or that the other end has confirmed."""
        self.written_bytes = 0
        """All bytes given to `write`: more than `taken_bytes` only where they are confirmed later."""
        self._confirmed_later = confirmed_later
        self._is_in_doubt = confirmed_later
        """Whether the peer may have bytes that were written and are never confirmed."""
        self.on_streamed: Callable[[int], None] | None = None
        """Called with the size of a streamed frame before its first bytes are written."""
        self._control_count = control or ReadGate(lambda: None).count(Reason.RECEIPTS_READ, capacity_bytes)
        self.last_taken_seconds = clock()
        self.controller = Account(
            self,
            Flow(f"to {label}"),
            SizeLimiter(capacity_bytes, capacity_bytes // 2, clock=clock),
            clock=clock,
        )
        self._capacity_bytes = capacity_bytes
        self._piece_bytes = max(1, min(PIECE_BYTES, capacity_bytes // 2))
        """Size of one piece of the body of a streamed frame."""
        self.open()

    @property
    def control_bytes(self) -> int:
        """Bytes of control frames that wait."""
        return self._control_count.used_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes appended but not taken."""
        return self.appended_bytes - self.taken_bytes

    def room_bytes(self) -> int:
        """Bytes that may be appended before the limit; at least 1 while not throttled."""
        return max(1, self._capacity_bytes - self.waiting_bytes)

    def send_control(self, data: bytes, count: int = 1) -> None:
        """Append a frame that is not a message, up to its NUL: never refused. After `end` the frame is dropped: the
        peer would not read it. `count`: number of frames without bodies, with one EOL between each two.
        """
        if not self._ended:
            self._append_control(self.framing.control(data, count))

    def _append_control(self, data: bytes) -> None:
        size_bytes = len(data)
        self._tail.append(data)
        self.appended_bytes += size_bytes
        self._control_count.add(size_bytes)
        control = self._control
        if control and control[-1][0] == self.appended_bytes - size_bytes:
            control[-1][0] = self.appended_bytes
            control[-1][1] += size_bytes
        else:
            control.append([self.appended_bytes, size_bytes])
        self.controller.charge(0, size_bytes, None)
        self._ask_for_flush()

    def beat(self) -> None:
        """Write a heart-beat at once, if nothing waits, for a tenth of the cost of `send_control`: idle connections do
        nothing else. If it can't be written now, the next flush finds the reason.
        """
        if self._ended:
            return
        beat, taken = self.framing.heart_beat, 0
        if not self.waiting_bytes:
            try:
                taken = self._write([beat])
            except OSError:
                taken = 0
        if taken:
            self.appended_bytes += taken
            self.taken_bytes += taken
            self.written_bytes += taken
            self.last_taken_seconds = self._clock()
        if taken < len(beat):
            self._append_control(beat[taken:])

    def send_messages(
        self, parts: Iterable[Piece], size_bytes: int, source: SourceController | None, mark: Mark | None
    ) -> None:
        """Append message frames (their bytes in order, as made by `framing`); may block `source`. `mark` runs when they
        are taken, or never will be (after `end` at once).
        """
        if self._ended:
            if mark is not None:
                mark(False)
            return
        self._tail.extend(parts)
        self.appended_bytes += size_bytes
        if mark is not None:
            self._marks.append((self.appended_bytes, mark))
        self.controller.charge(0, size_bytes, source)
        self._ask_for_flush()

    def send_streamed(
        self,
        head: Sequence[Piece],
        pull: Pull,
        length_bytes: int,
        tail: bytes,
        source: SourceController | None,
        mark: Mark,
        *,
        framing: Framing | None = None,
    ) -> None:
        """Append a frame: `head`, then `length_bytes` (at least 1) that are pulled, then `tail` with the NUL. A frame
        larger than the capacity blocks `source` until it is nearly out. `mark` runs as in `send_messages`. `framing`:
        in place of that of the connection.
        """
        if self._ended:
            mark(False)
            return
        assert self._stream_failed is not None, "give it to the constructor"
        framing = framing or self.framing
        if not self._behind:
            self._behind = self._tail = deque()
        frame = StreamedFrame(
            head,
            pull,
            length_bytes,
            tail,
            offset=self.appended_bytes,
            piece_bytes=self._piece_bytes,
            framing=framing,
            loaded=self._ask_for_flush,
            failed=self._frame_failed,
        )
        self._behind.append(frame)
        size_bytes = self.streamed_bytes(sum(map(len, head)), length_bytes, len(tail), framing)
        frame.size_bytes = size_bytes
        self.appended_bytes += size_bytes
        self._marks.append((self.appended_bytes, mark))
        charge_bytes = min(size_bytes, self._capacity_bytes)
        self._uncharged_bytes += size_bytes - charge_bytes
        self.controller.charge(0, charge_bytes, source)
        self._ask_for_flush()

    def streamed_bytes(
        self, head_bytes: int, length_bytes: int, tail_bytes: int, framing: Framing | None = None
    ) -> int:
        """Return the number of bytes that `send_streamed` writes for a frame of this size."""
        part_bytes = (framing or self.framing).part_bytes
        full_count, last_bytes = divmod(length_bytes - 1, self._piece_bytes)
        last_bytes += 1
        if not full_count:
            return part_bytes(head_bytes + last_bytes + tail_bytes, last=True)
        return (
            part_bytes(head_bytes + self._piece_bytes, last=False)
            + (full_count - 1) * part_bytes(self._piece_bytes, last=False)
            + part_bytes(last_bytes + tail_bytes, last=True)
        )

    def has_failed_at(self, start_bytes: int) -> bool:
        """Whether a streamed frame was appended at this offset, and its body can't be read."""
        return self._failed_offset == start_bytes

    def end(self) -> None:
        """Take no more frames: the frame appended last, an ERROR, is still written."""
        self._ended = True

    def _ask_for_flush(self) -> None:
        if not self._flush_requested:
            self._flush_requested = True
            self._request_flush()

    def flush(self) -> bool:
        """Write as much as the kernel takes. False: the kernel is full, call again when it can take more. True:
        everything is out, or waits for the next piece of a streamed frame, which requests its own flush.

        Raises what `write` raises; then nothing more can be written and `close` is due.
        """
        self._flush_requested = False
        before_bytes = self.taken_bytes
        try:
            while True:
                pieces = self._rest or self._next_pieces()
                if not pieces:
                    return True
                self._rest = pieces  # a write that raises must not lose them: the next attempt is to find out, too
                taken = self._write(pieces)
                self.written_bytes += taken
                if self.written_bytes == self.appended_bytes:
                    self._rest = []
                    return True
                self._rest = _behind(pieces, taken)
                if self._rest:
                    return False
        finally:
            if not self._confirmed_later:
                self.taken_bytes = self.written_bytes
            if self.taken_bytes > before_bytes or self._settling_bytes:
                self._after_write(self.taken_bytes - before_bytes)

    def all_is_confirmed(self) -> None:
        """Note that the other end has confirmed all that the peer has got: the rest never came to it."""
        self._is_in_doubt = False

    @property
    def seen_bytes(self) -> int:
        """Bytes that the peer has, or may have."""
        return self.written_bytes if self._is_in_doubt else self.taken_bytes

    def confirm(self, taken_bytes: int) -> None:
        """Note that the other end has taken so many bytes in all, of those that were written."""
        size_bytes = taken_bytes - self.taken_bytes
        if size_bytes > 0 and not self.closed:
            assert taken_bytes <= self.written_bytes, "confirmed before it was written"
            self.taken_bytes = taken_bytes
            self._after_write(size_bytes)

    @property
    def is_at_streamed(self) -> bool:
        """Whether a streamed frame is next: all before it was given to `write`."""
        return bool(self._behind) and not self._parts

    def control_spans(self) -> Iterable[tuple[int, int]]:
        """Offsets between which control frames lie that were not taken, in order: begin and end of each."""
        return ((end - size_bytes, end) for end, size_bytes in self._control)

    def _next_pieces(self) -> list[Piece]:
        """Return the parts to write next: large ones as they are, small neighbours joined."""
        parts = self._parts
        pieces: list[Piece] = []
        small: list[Piece] = []
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
        # The end of a large frame, and the head of the next one: no write of their own, which wakes the peer for an LF.
        little_bytes = sum(map(len, small))
        while parts and (little_bytes := little_bytes + len(parts[0])) < ALONE_BYTES:
            small.append(parts.popleft())
        if small:
            pieces.append(small[0] if len(small) == 1 else b"".join(small))
        if not pieces and self._behind:
            return self._next_streamed()
        return pieces

    def _next_streamed(self) -> list[Piece]:
        """Return the available pieces of the streamed frame in front. When the frame is complete, the parts behind it
        follow.
        """
        behind = self._behind
        frame = behind[0]
        assert isinstance(frame, StreamedFrame), "others are moved on when the frame before them is out"
        had_begun = frame.begun
        pieces: list[Piece] = [*frame.take()]
        if self.on_streamed is not None and frame.begun and not had_begun:
            self.on_streamed(frame.size_bytes)
        if frame.is_out:
            behind.popleft()
            while behind and not isinstance(part := behind[0], StreamedFrame):
                self._parts.append(part)
                behind.popleft()
            if not behind:
                self._behind, self._tail = _NOTHING_BEHIND, self._parts
        return pieces

    def _frame_failed(self, frame: StreamedFrame, error: Exception) -> None:
        if self.closed:
            return
        assert self._stream_failed is not None
        self._failed_offset = frame.offset
        if frame.begun:
            self._stream_failed(error, True)
            return
        # Nothing can wait before it, since it was asked for: so what is dropped begins with this frame.
        marks, charged_bytes = self._marks, self.waiting_bytes + self._settling_bytes - self._uncharged_bytes
        self._drop_waiting()
        self._marks = deque()
        self._control.clear()
        self._control_count.remove(self.control_bytes)
        self._uncharged_bytes = self._settling_bytes = 0
        # Bytes that the other end would have confirmed later: nobody waits for that any more, an ERROR follows.
        self.taken_bytes = self.appended_bytes = self.written_bytes
        self._stream_failed(error, False)
        for offset, mark in marks:
            mark(offset <= self.taken_bytes)
        self.controller.release(0, charged_bytes)

    def _drop_waiting(self) -> None:
        for part in self._behind:
            if isinstance(part, StreamedFrame):
                part.close()
        self._parts.clear()
        self._behind, self._tail = _NOTHING_BEHIND, self._parts
        self._rest = []

    def _after_write(self, size_bytes: int) -> None:
        if size_bytes:
            self.last_taken_seconds = self._clock()
        marks, left_count = self._marks, MARKS_MAX
        while marks and marks[0][0] <= self.taken_bytes and left_count:
            marks.popleft()[1](True)
            left_count -= 1
        control = self._control
        while control and control[0][0] <= self.taken_bytes:
            self._control_count.remove(control.popleft()[1])
        size_bytes += self._settling_bytes
        if not left_count and marks and marks[0][0] <= self.taken_bytes and not self.closed:
            self._settling_bytes = size_bytes
            self._ask_for_flush()
            return
        self._settling_bytes = 0
        if self._uncharged_bytes:
            uncharged_bytes = min(size_bytes, self._uncharged_bytes)
            self._uncharged_bytes -= uncharged_bytes
            size_bytes -= uncharged_bytes
        # Last: this may resume sources, which append.
        self.controller.release(0, size_bytes)

    def close(self) -> None:
        """Write nothing more: marks get False, blocked sources are released."""
        if self.closed:
            return
        self.closed = self._ended = True
        self._drop_waiting()
        marks, self._marks = self._marks, deque()
        for offset, mark in marks:
            mark(offset <= self.taken_bytes)
        self.controller.close()
        super().close()
        # The remains of an ended connection may keep this for long: let go of the stream and of empty deques.
        self._write, self._request_flush, self._stream_failed = _take_nothing, _nothing, None
        self._parts = self._tail = self._control = self._marks = _NOTHING_BEHIND

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {"waiting_bytes": self.waiting_bytes}
        if self._behind:
            facts["a large body goes out"] = True
        if self.waiting_bytes:
            facts["idle_seconds"] = self._clock() - self.last_taken_seconds
        return facts


def _behind(pieces: list[Piece], taken_bytes: int) -> list[Piece]:
    """Return the pieces without their first `taken_bytes`."""
    for place, piece in enumerate(pieces):
        if taken_bytes < len(piece):
            return [memoryview(piece)[taken_bytes:], *pieces[place + 1 :]] if taken_bytes else pieces[place:]
        taken_bytes -= len(piece)
    return []


def _take_nothing(_pieces: Sequence[Piece]) -> int:
    return 0


def _nothing() -> None:
    return
