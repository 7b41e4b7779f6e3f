"""Check batches one by one: for recovery, and before rewriting them after a failed sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ...queues.logs.batches import BatchError
from .files import Files
from .options import ITEM_BYTES, ArrayOptions
from .pages import PageShortError
from .reading import MORE, OFFSET_MASK, TIME_MASK, ArrayReading

_COPY_BYTES: Final = 1 << 20


class VerifyError(Exception):
    """Data to rewrite does not verify. Not for callers of the package."""


@attrs.define
class VerifiedRange:
    """Range of records found whole."""

    end_index: int
    """End of the range, where an append ended."""
    position: int | None = None
    """Position behind the last batch; None: none."""
    last_timestamp_ms: int = 0
    batches_count: int = 0
    why: str = ""
    """Damage of what follows; empty: none."""


def walk(reading: ArrayReading, start: int, stop: int) -> VerifiedRange:
    """Check items, stamp and checksum of each batch from record `start` on, until one is not whole. O(bytes)."""
    found = VerifiedRange(start)
    index, batches_count = start, 0
    while index < stop:
        gap = reading.gaps.at(index)
        if gap is not None:
            index = min(gap.to_index, stop)
            found.end_index = index
            continue
        try:
            position, time = item = reading.item(index)
            if not time & TIME_MASK:
                raise BatchError("its index item is missing")
            batch = reading.batch_at(position)
            batch.verify()
            if batch.first_index != index and not (index == start and batch.first_index < index < batch.end_index):
                raise BatchError(f"its index item leads to records {batch.first_index} to {batch.end_index - 1}")
            if batch.timestamp_ms != time & TIME_MASK or batch.end_index > stop:
                raise BatchError("its index item leads to another batch")
            if not reading.has_items(index, batch.end_index, item):
                raise BatchError("index items of its batch are missing")
        except (PageShortError, BatchError) as error:
            found.why = f"record {index}: {error}"
            break
        index = batch.end_index
        batches_count += 1
        if not time & MORE:
            found.end_index = index
            found.position = position + batch.total_bytes
            found.last_timestamp_ms = batch.timestamp_ms
            found.batches_count = batches_count
    return found


def rewrite(
    files: Files,
    file_of: Callable[[int], int],
    reading: ArrayReading,
    options: ArrayOptions,
    *,
    start: int,
    end_index: int,
) -> set[int]:
    """Read the records `start` .. `end_index` - 1, check them, and write the same bytes in their place, so that the
    next sync takes them to the disk. `file_of`: the descriptor of a page, by its key; data pages have even keys, index
    pages odd ones. Returns the keys of the pages. Raises OSError, VerifyError.
    """
    found = walk(reading, start, end_index)
    if found.end_index != end_index:
        raise VerifyError(found.why)
    keys: set[int] = set()
    for low, high in reading.gaps.between(start, end_index):
        places = [divmod(index, options.index_page_items) for index in (low, high)]
        first, end = (page << 32 | place * ITEM_BYTES for page, place in places)
        _copy(files, file_of, first, end, options.index_page_items * ITEM_BYTES, 1, keys)
        first, end = reading.position(low), reading.end_position(high - 1)
        _copy(files, file_of, first, end, options.data_page_bytes, 0, keys)
    return keys


def _copy(
    files: Files, file_of: Callable[[int], int], start: int, end: int, page_bytes: int, kind: int, keys: set[int]
) -> None:
    """Write the bytes from position to position onto themselves."""
    for page in range(start >> 32, (end >> 32) + 1):
        offset = start & OFFSET_MASK if page == start >> 32 else 0
        stop = end & OFFSET_MASK if page == end >> 32 else page_bytes
        if offset >= stop:
            continue
        file = file_of(page * 2 + kind)
        keys.add(page * 2 + kind)
        while offset < stop:
            data = files.pread(file, min(_COPY_BYTES, stop - offset), offset)
            if not data:
                break
            written = 0
            while written < len(data):
                written += files.pwritev(file, (memoryview(data)[written:],), offset + written)
            offset += len(data)
