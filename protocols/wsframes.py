"""WebSocket frames (RFC 6455, section 5): bytes to payload and back, for the server's side.

Why not wsproto: it takes 37 us for each received frame, ten times the whole cost of a small message. This module takes
2 us. wsproto keeps the handshake (`websocket`), and plays the other side in the tests.

Received payload is a stream: STOMP says itself where frames end, so the borders of messages do not matter. Text must be
UTF-8, as the RFC wants; it is checked piece by piece.

Each STOMP frame is sent as a message: clients that keep no parser between messages take each for a frame, stompjs 2
among them. A message is text where it is UTF-8, for there are clients that know text only, else binary. A body that is
not in memory is unknown, so it is binary.

Pure. Bounds: less than one frame's header, or one control frame of 125 bytes, is held. Not here: extensions.
permessage-deflate costs 300 KiB for each connection and a lot of time, and compression together with secrets reveals
them; a client can compress bodies.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Sequence
from typing import Final

from .framing import Piece
from .stomp.encoder import BEHIND_NUL, HEART_BEAT

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN: Final = 0x80
RESERVED_BITS: Final = 0x70
MASKED: Final = 0x80
CONTROL_BYTES_MAX: Final = 125

NORMAL, GOING_AWAY, PROTOCOL_ERROR, INVALID_DATA, TOO_BIG = 1000, 1001, 1002, 1007, 1009
_WHOLE: Final = (FIN | TEXT, FIN | BINARY)
_NOT_UTF_8: Final = "a text message is not UTF-8; send other data as binary"
_CLOSE_CODES_OF_PEERS: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})

_XOR: Final = tuple(bytes(value ^ mask for value in range(256)) for mask in range(256))


def unmasked_by_tables(data: bytes | bytearray | memoryview, mask: bytes | bytearray) -> bytes:
    """Unmask as `unmasked` does, at 300 MB/s."""
    made = bytearray(data)
    for place in range(4):
        made[place::4] = made[place::4].translate(_XOR[mask[place]])
    return bytes(made)


try:
    # Payload as it was before it was masked with four bytes (masking it is the same): 50 GB/s, in C.
    from websockets.speedups import apply_mask as unmasked
except ImportError:  # it is built where there is a compiler, and left out where there is none
    unmasked = unmasked_by_tables

FRAGMENT_BYTES: Final = 0xFFFF
"""Maximum payload of a frame; a longer message is sent in fragments: no client is known to take less in a frame
(websocket-node takes 64 KiB), the length is written in two bytes, and a pong need not wait for the end of a message.
"""

_LF: Final = len(BEHIND_NUL)


class FrameError(Exception):
    """The peer broke the rules; `code` is what its close frame gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameReader:
    """Reader of the frames of a client. Unusable after a FrameError."""

    __slots__ = (
        "_decoder",
        "_ends",
        "_held",
        "_key",
        "_left_bytes",
        "_message_bytes",
        "_message_bytes_max",
        "_opcode",
        "closed_with",
        "ping",
    )  # fmt: skip

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._message_bytes = 0
        """Announced bytes of the message that has begun."""
        self._held = b""
        self._left_bytes = 0
        """Missing bytes of the data frame that has begun."""
        self._key = b""
        self._ends = True
        """The frame that has begun is the last of its message."""
        self._opcode = 0
        """Opcode of the message that has begun; 0: none has."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.closed_with: int | None = None
        """The peer has said close, with this code (1005: without any). Nothing is read behind it."""
        self.ping: bytes | None = None
        """Content of the last ping; the code that answers sets None."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in these bytes, in order. Raises FrameError; what came before the mistake is lost then."""
        if self._held:
            data, self._held = self._held + data, b""
        found: list[bytes] = []
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end and self.closed_with is None:
            if self._left_bytes:
                at = self._go_on(view, at, found)
                continue
            if end - at < 2:
                break
            first, second = data[at], data[at + 1]
            size, head = second & 0x7F, at + 2
            if size > CONTROL_BYTES_MAX:
                head += 2 if size == 126 else 8
                if head > end:
                    break
                size = self._long_size(data[at + 2 : head])
            body = head + 4
            if body > end:
                if not second & MASKED:
                    raise FrameError(PROTOCOL_ERROR, "a frame of a client is not masked")
                break
            key = data[head:body]
            if first in _WHOLE and second & MASKED and not self._opcode and body + size <= end:
                # A whole message that is here: what nearly all are.
                if size > self._message_bytes_max:
                    self._refuse(size)
                at = body + size
                payload = unmasked(view[body:at], key)
                if first == FIN | TEXT and not is_text((payload,)):
                    raise FrameError(INVALID_DATA, _NOT_UTF_8)
                found.append(payload)
                continue
            opcode = self._check(first, second, size)
            if opcode & 0x8:
                if body + size > end:
                    break
                at = body + size
                self._control(opcode, unmasked(view[body:at], key))
            else:
                self._begin(first, opcode, size, key)
                at = body
        self._held = data[at:] if self.closed_with is None else b""
        return found

    def _long_size(self, size: bytes) -> int:
        number = int.from_bytes(size, "big")
        if number <= (CONTROL_BYTES_MAX if len(size) == 2 else 0xFFFF) or number >> 63:
            raise FrameError(PROTOCOL_ERROR, "the length of a frame is not written as it should")
        return number

    def _check(self, first: int, second: int, size: int) -> int:
        opcode = first & 0x0F
        if first & RESERVED_BITS:
            raise FrameError(PROTOCOL_ERROR, "a frame uses an extension, and none was agreed on")
        if not second & MASKED:
            raise FrameError(PROTOCOL_ERROR, "a frame of a client is not masked")
        if opcode & 0x8:
            if opcode not in (CLOSE, PING, PONG):
                raise FrameError(PROTOCOL_ERROR, f"there is no kind of frame {opcode:#x}")
            if not first & FIN or size > CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, "a control frame is larger than 125 bytes, or in pieces")
        elif opcode == CONTINUATION:
            if not self._opcode:
                raise FrameError(PROTOCOL_ERROR, "a continuation comes, and no message has begun")
        elif opcode not in (TEXT, BINARY):
            raise FrameError(PROTOCOL_ERROR, f"there is no kind of frame {opcode:#x}")
        elif self._opcode:
            raise FrameError(PROTOCOL_ERROR, "a message begins before the one before it has ended")
        return opcode

    def _begin(self, first: int, opcode: int, size: int, key: bytes) -> None:
        """Take a data frame; `_go_on` reads its payload."""
        if opcode != CONTINUATION:
            self._opcode, self._message_bytes = opcode, 0
        self._message_bytes += size
        if self._message_bytes > self._message_bytes_max:
            self._refuse(self._message_bytes)
        self._ends = bool(first & FIN)
        self._left_bytes, self._key = size, key
        if not size:
            self._frame_ended()

    def _refuse(self, size: int) -> None:
        raise FrameError(
            TOO_BIG,
            f"a message of {size} bytes or more, and a frame of this listener's limits takes {self._message_bytes_max}",
        )

    def _go_on(self, data: memoryview, at: int, found: list[bytes]) -> int:
        masked = data[at : at + self._left_bytes]
        payload = unmasked(masked, self._key)
        turn = len(masked) % 4
        self._key = self._key[turn:] + self._key[:turn]
        self._left_bytes -= len(masked)
        if self._opcode == TEXT and not (payload.isascii() and not self._decoder.getstate()[0]):
            try:
                self._decoder.decode(payload, self._ends and not self._left_bytes)
            except UnicodeDecodeError:
                raise FrameError(INVALID_DATA, _NOT_UTF_8) from None
        found.append(payload)
        if not self._left_bytes:
            self._frame_ended()
        return at + len(masked)

    def _frame_ended(self) -> None:
        if self._ends:
            if self._opcode == TEXT:
                try:
                    self._decoder.decode(b"", True)
                except UnicodeDecodeError:
                    raise FrameError(INVALID_DATA, "a text message ends in the midst of a character") from None
            self._opcode = 0

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.ping = payload
        elif opcode == CLOSE:
            self.closed_with = 1005
            if payload:
                code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else 0
                if code not in _CLOSE_CODES_OF_PEERS and not 3000 <= code <= 4999:
                    raise FrameError(PROTOCOL_ERROR, f"{code} is no code for a close frame")
                try:
                    payload[2:].decode()
                except UnicodeDecodeError:
                    raise FrameError(INVALID_DATA, "the reason in a close frame is not UTF-8") from None
                self.closed_with = code


def head(opcode: int, size: int, *, ends: bool = True) -> bytes:
    """Return the head before the payload of a frame of the server."""
    first = opcode | FIN if ends else opcode
    if size <= CONTROL_BYTES_MAX:
        return bytes((first, size))
    return struct.pack("!BBH", first, 126, size) if size <= 0xFFFF else struct.pack("!BBQ", first, 127, size)


class WebSocketFraming:
    """A message for each STOMP frame, see `sluiceway.protocols.framing`. All that is made here are whole WebSocket
    frames, one or more in a piece, so that between pieces a control frame may be put.
    """

    __slots__ = ()

    heart_beat: bytes = head(TEXT, len(HEART_BEAT)) + HEART_BEAT

    def control(self, data: bytes, count: int) -> bytes:
        # Without bodies no NUL but the last is in a frame.
        frames = [data] if count == 1 else [part + b"\0" for part in data[:-1].split(b"\0" + BEHIND_NUL)]
        return b"".join([piece for frame in frames for piece in self.frame((frame,))])

    def messages(self, prefix: bytes, frames: list[bytes]) -> bytes:
        more = len(prefix) + _LF
        sizes = set(map(len, frames))
        if max(sizes) + more > FRAGMENT_BYTES:
            return b"".join([piece for frame in frames for piece in self.frame((prefix, frame))])
        # The beginning of a frame is its size and the prefix: made once for all frames of one size.
        leads = {size: head(TEXT, size + more) + prefix for size in sizes}
        if not all(map(bytes.isascii, frames)):
            binary = {size: head(BINARY, size + more) + prefix for size in sizes}
            frames = [(leads if is_text((frame,)) else binary)[len(frame)] + frame for frame in frames]
            return BEHIND_NUL.join([*frames, b""])
        if len(sizes) > 1:
            return BEHIND_NUL.join([*[leads[len(frame)] + frame for frame in frames], b""])
        [lead] = leads.values()
        frames[0] = lead + frames[0]
        frames[-1] += BEHIND_NUL
        return (BEHIND_NUL + lead).join(frames)

    def frame(self, pieces: Sequence[Piece]) -> list[Piece]:
        opcode = TEXT if is_text(pieces) else BINARY
        return _fragments((*pieces, BEHIND_NUL), opcode, last=True)

    def part(self, pieces: Sequence[Piece], *, first: bool, last: bool) -> list[Piece]:
        return _fragments((*pieces, BEHIND_NUL) if last else pieces, BINARY if first else CONTINUATION, last=last)

    def frame_bytes(self, size_bytes: int) -> int:
        return self.part_bytes(size_bytes, last=True)

    def part_bytes(self, size_bytes: int, *, last: bool) -> int:
        if last:
            size_bytes += _LF
        full_count, rest_bytes = divmod(size_bytes, FRAGMENT_BYTES)
        return size_bytes + full_count * len(head(TEXT, FRAGMENT_BYTES)) + (rest_bytes and len(head(TEXT, rest_bytes)))


def _fragments(pieces: Sequence[Piece], opcode: int, *, last: bool) -> list[Piece]:
    """Each with its head. Copied, lest a control frame gets between head and content."""
    left_bytes = sum(map(len, pieces))
    made: list[Piece] = []
    content = iter(pieces)
    view = memoryview(b"")
    while left_bytes:
        size = room = min(left_bytes, FRAGMENT_BYTES)
        left_bytes -= size
        parts: list[Piece] = [head(opcode, size, ends=last and not left_bytes)]
        while room:
            if not view:
                view = memoryview(next(content))
            parts.append(part := view[:room])
            view = view[room:]
            room -= len(part)
        made.append(b"".join(parts))
        opcode = CONTINUATION
    return made


def close_frame(code: int, reason: str = "") -> bytes:
    """A close frame; the reason is cut to what fits."""
    payload = code.to_bytes(2, "big") + reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return head(CLOSE, len(payload)) + payload


def is_text(pieces: Sequence[bytes | memoryview]) -> bool:
    """Whether each of these is UTF-8 by itself, so that together they are text."""
    for piece in pieces:
        if isinstance(piece, bytes) and piece.isascii():
            continue
        try:
            str(piece, "utf-8")
        except UnicodeDecodeError:
            return False
    return True
