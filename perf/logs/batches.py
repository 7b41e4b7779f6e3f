"""The framing of batches, written from its description (docs/log-wire.md) and not imported from Sluiceway: the code of
a client in another language, and a second opinion on the broker's frames.

Only what the load needs: uncompressed, without headers and keys.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

CONTENT_TYPE = "application/vnd.sluiceway.batch"

_HEADER = struct.Struct("<4sIQQIIIIBBHI")
_MAGIC = b"SLB1"
_ALIGN_BYTES = 8


class WrongBatchError(ValueError):
    """The bytes are no batch, or the wrong one."""


def batch_of(values: Sequence[bytes]) -> bytes:
    """Make one batch of records."""
    offsets = list(accumulate(map(len, values), initial=0))
    body = struct.pack(f"<{len(offsets)}I", *offsets) + b"".join(values)
    padding = bytes(-len(body) % _ALIGN_BYTES)
    total_bytes = _HEADER.size + len(body) + len(padding)
    fields = _HEADER.pack(_MAGIC, total_bytes, 0, 0, 0, 0, len(values), len(body), 0, 0, 0, len(body))
    rest = fields[32:] + body + padding
    return fields[:28] + struct.pack("<I", zlib.crc32(rest)) + rest


def checked(run: memoryview) -> Iterator[tuple[int, int]]:
    """Return index and count of each batch of a run, once its lengths and both of its checksums are found right.

    Raises WrongBatchError: they are not.
    """
    place = 0
    while place < len(run):
        if len(run) - place < _HEADER.size:
            raise WrongBatchError(f"{len(run) - place} bytes are left behind the last batch")
        magic, total_bytes, index, _time, stamp, checksum, count, *_ = _HEADER.unpack_from(run, place)
        batch = run[place : place + total_bytes]
        if magic != _MAGIC or len(batch) != total_bytes or total_bytes < _HEADER.size:
            raise WrongBatchError(f"no whole batch begins at byte {place}")
        if zlib.crc32(batch[32:]) != checksum:
            raise WrongBatchError(f"the checksum of the batch of index {index} is wrong")
        if zlib.crc32(batch[28:32], zlib.crc32(batch[:24])) != stamp:
            raise WrongBatchError(f"the stamp of the batch of index {index} is wrong")
        yield index, count
        place += total_bytes
