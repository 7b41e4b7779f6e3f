"""Frames are counted and cut off right, however the socket cuts the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.load.cutting import FrameCounter, FrameCutter

_BODIES = [20, 100, 399, 400, 1024, 5000]


def _stream(body_bytes: int, head_sizes: list[int], newline: bool) -> bytes:
    """MESSAGE frames with heads of different sizes, with the newline that most brokers send after the NUL, or not."""
    frames = (b"MESSAGE\nh:" + b"h" * size + b"\n\n" + b"x" * body_bytes + b"\0" for size in head_sizes)
    return b"".join(frame + b"\n" if newline else frame for frame in frames)


def _cuts(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


@given(
    body_bytes=st.sampled_from(_BODIES),
    heads=st.lists(st.integers(0, 120), max_size=12),
    newline=st.booleans(),
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=6),
)
def test_counter_counts_every_frame_however_reads_are_cut(
    body_bytes: int, heads: list[int], newline: bool, sizes: list[int]
) -> None:
    """The count is the number of frames, with skipping and without."""
    counter, buffer, counted = FrameCounter(body_bytes), bytearray(8192), 0
    for piece in _cuts(_stream(body_bytes, heads, newline), sizes):
        buffer[: len(piece)] = piece
        counted += counter.count(buffer, len(piece))
    assert counted == len(heads)


@given(
    heads=st.lists(st.integers(0, 120), max_size=12),
    newline=st.booleans(),
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=6),
)
def test_cutter_gives_back_the_same_bytes_in_whole_frames(heads: list[int], newline: bool, sizes: list[int]) -> None:
    """Joined, the pieces are what came; each ends with a NUL; what is carried is no whole frame."""
    data, cutter, given_back = _stream(100, heads, newline), FrameCutter(8192), b""
    for piece in _cuts(data, sizes):
        cutter.room()[: len(piece)] = piece
        whole = cutter.cut(len(piece))
        assert not whole or whole.endswith(b"\0")
        given_back += whole
    assert given_back + cutter.carried() == data
    assert b"\0" not in cutter.carried()


def test_cutter_says_so_when_a_frame_does_not_fit() -> None:
    """A peer that never ends a frame is an error, not an endless loop of empty reads."""
    cutter = FrameCutter(64)
    cutter.room()[:] = b"x" * 64
    assert cutter.cut(64) == b""
    with pytest.raises(ValueError, match="no frame ended within 64 bytes"):
        cutter.room()
