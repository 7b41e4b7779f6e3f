"""How frames are told apart in what is written, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.protocols.framing import PlainFraming
from sluiceway.protocols.outbound import Piece


class AsGiven(PlainFraming):
    """Nothing is put around frames: for tests of what happens to bytes."""

    heart_beat = b"\n"

    def control(self, data: bytes, count: int) -> bytes:
        return data

    def part(self, pieces: Sequence[Piece], *, first: bool, last: bool) -> list[Piece]:
        return list(pieces)

    def part_bytes(self, size_bytes: int, *, last: bool) -> int:
        return size_bytes


def messages_of(data: bytes) -> list[tuple[int, bytes]]:
    """The messages of a WebSocket in these bytes of a server, each with its opcode. All must be whole."""
    found: list[tuple[int, bytes]] = []
    opcode, parts = 0, b""
    at = 0
    while at < len(data):
        first, size = data[at], data[at + 1]
        at += 2
        if size > 125:
            length = 2 if size == 126 else 8
            size = int.from_bytes(data[at : at + length], "big")
            at += length
        assert at + size <= len(data), "cut off"
        if first & 0x0F:
            assert not opcode, "a message begins within another one"
            opcode = first & 0x0F
        else:
            assert opcode, "a fragment of nothing"
        parts += data[at : at + size]
        at += size
        if first & 0x80:
            found.append((opcode, parts))
            opcode, parts = 0, b""
    assert not opcode, "cut off"
    return found
