"""Pairs of numbers in few bytes, of which the second is hardly greater than the first: versions and how far they came.

One byte holds how many bytes each of two numbers has, in half a byte each: of the first in the upper half, of the
difference between both in the lower one. The first number and the difference follow, their lowest byte first. A number
that is 0 has no byte. So 2,000,000 and 2,000,500 are the six bytes 50, -128, -124, 30, -12, 1.

Source: seed 004, "Digest". Its words put the length of the first number into the lower half, its example into the upper
one; the example counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

NUMBER_BYTES_MAX: Final = 8
"""Length of the longest number; half a byte could say 15."""


class CompactFault(ValueError):
    """Bytes that are no pairs of numbers."""


def encode_pair(low: int, high: int) -> bytes:
    """Return the bytes of two numbers, 0 <= low <= high. Raises ValueError for others, and for numbers of more than
    NUMBER_BYTES_MAX bytes.
    """
    more = high - low
    if low < 0 or more < 0:
        raise ValueError(f"{low} and {high} are not two numbers from 0 on, of which the second is not the lesser one")
    low_bytes, more_bytes = (low.bit_length() + 7) // 8, (more.bit_length() + 7) // 8
    if max(low_bytes, more_bytes) > NUMBER_BYTES_MAX:
        raise ValueError(f"{low} and {high} need more than {NUMBER_BYTES_MAX} bytes each")
    return (
        bytes((low_bytes << 4 | more_bytes,)) + low.to_bytes(low_bytes, "little") + more.to_bytes(more_bytes, "little")
    )


def decode_pair(data: bytes, at: int = 0) -> tuple[int, int, int]:
    """Return the two numbers that begin at `at`, and where what follows begins. Raises CompactFault."""
    if at >= len(data):
        raise CompactFault(f"a pair of numbers was to begin at byte {at} of {len(data)}")
    low_bytes, more_bytes = data[at] >> 4, data[at] & 15
    middle = at + 1 + low_bytes
    end = middle + more_bytes
    if max(low_bytes, more_bytes) > NUMBER_BYTES_MAX or end > len(data):
        raise CompactFault(f"a pair of numbers of {low_bytes} and {more_bytes} bytes, in {len(data) - at - 1}")
    if (low_bytes and not data[middle - 1]) or (more_bytes and not data[end - 1]):
        raise CompactFault("a number has more bytes than it needs")
    low = int.from_bytes(data[at + 1 : middle], "little")
    return low, low + int.from_bytes(data[middle:end], "little"), end


def encode_pairs(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Return the bytes of pairs, one behind the other. Raises as `encode_pair`."""
    return b"".join([encode_pair(low, high) for low, high in pairs])


def decode_pairs(data: bytes, at: int, count: int) -> tuple[Sequence[tuple[int, int]], int]:
    """Return `count` pairs from `at` on, and where what follows begins. Raises CompactFault."""
    pairs: list[tuple[int, int]] = []
    for _ in range(count):
        low, high, at = decode_pair(data, at)
        pairs.append((low, high))
    return pairs, at
