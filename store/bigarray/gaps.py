"""The file `gaps`, and the list made of it: ranges of indexes without records. See FORMAT.md.

Rewritten as a whole under another name, and renamed: gaps are rare. Not here: gaps found only by a read (a batch with
damaged bytes).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from zlib_ng import zlib_ng

from .errors import DAMAGED, LOST, ArrayGap, Reason

MAGIC: Final = b"SLUICEGP"
HEADER: Final = struct.Struct("<8sII")
RECORD: Final = struct.Struct("<QQQ")
_REASONS: Final[dict[int, Reason]] = {1: LOST, 2: DAMAGED}
_NUMBERS: Final = {reason: number for number, reason in _REASONS.items()}


def encode_gaps(gaps: Iterable[ArrayGap]) -> bytes:
    body = b"".join(RECORD.pack(gap.from_index, gap.to_index, _NUMBERS[gap.reason]) for gap in gaps)
    return HEADER.pack(MAGIC, len(body) // RECORD.size, zlib_ng.crc32(body)) + body


def decode_gaps(data: bytes) -> list[ArrayGap] | None:
    """Return the gaps. None: damaged."""
    if len(data) < HEADER.size:
        return None
    magic, count, crc = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or len(body) != count * RECORD.size or zlib_ng.crc32(body) != crc:
        return None
    return [ArrayGap(start, stop, _REASONS.get(number, DAMAGED)) for start, stop, number in RECORD.iter_unpack(body)]


class Gaps:
    """Gaps in order, without overlap; never changed, only replaced."""

    __slots__ = ("_starts", "all", "items_count")

    def __init__(self, gaps: Iterable[ArrayGap] = ()) -> None:
        self.all = tuple(_merged(gaps))
        self._starts = [gap.from_index for gap in self.all]
        self.items_count = sum(gap.to_index - gap.from_index for gap in self.all)
        """Number of indexes in all gaps."""

    def at(self, index: int) -> ArrayGap | None:
        """Return the gap that contains this index."""
        place = bisect_right(self._starts, index) - 1
        if place >= 0 and index < self.all[place].to_index:
            return self.all[place]
        return None

    def next_start(self, index: int) -> int | None:
        """Return the start of the first gap behind this index."""
        place = bisect_right(self._starts, index)
        return self._starts[place] if place < len(self._starts) else None

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `start` .. `stop` outside all gaps."""
        place = max(bisect_right(self._starts, start) - 1, 0)
        for gap in self.all[place:]:
            if gap.from_index >= stop:
                break
            if start < gap.from_index:
                yield start, gap.from_index
            start = max(start, gap.to_index)
        if start < stop:
            yield start, stop

    def trimmed(self, first_index: int, stop_index: int) -> Gaps:
        """Return the gaps within this range of indexes."""
        return Gaps(
            ArrayGap(max(gap.from_index, first_index), min(gap.to_index, stop_index), gap.reason)
            for gap in self.all
            if gap.to_index > first_index and gap.from_index < stop_index
        )


def _merged(gaps: Iterable[ArrayGap]) -> list[ArrayGap]:
    merged: list[ArrayGap] = []
    for gap in sorted(gaps, key=lambda gap: (gap.from_index, gap.to_index)):
        if gap.from_index >= gap.to_index:
            continue
        last = merged[-1] if merged else None
        if last is not None and gap.from_index < last.to_index:
            # An index in two gaps belongs to the first.
            gap = ArrayGap(last.to_index, max(gap.to_index, last.to_index), gap.reason)
            if gap.from_index >= gap.to_index:
                continue
        if last is not None and gap.from_index == last.to_index and gap.reason == last.reason:
            merged[-1] = ArrayGap(last.from_index, gap.to_index, gap.reason)
        else:
            merged.append(gap)
    return merged
