"""Runs: batches as one delivery, cut from the file as they lie there.

A run holds exactly the records that it is said to hold. Where a reader begins or ends in the middle of a batch, or does
not take its codec, that batch is written anew, uncompressed: only then something is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from queues.logs.batches import Batch, BatchError, encode, stamped
from queues.logs.codecs import Codec
from queues.logs.ports import MissingRecordsError
from queues.logs.reading import Unreadable

if TYPE_CHECKING:
    from queues.logs.log import Log


@attrs.frozen
class Run:
    """Whole batches with the records from `first_index` to before `end_index`."""

    data: bytes | memoryview
    first_index: int
    end_index: int


def cut_run(log: Log, start: int, stop: int, bytes_max: int, codecs: frozenset[Codec]) -> Run:
    """From `start` on: at least one batch (or what of it lies before `stop`). Raises Unreadable."""
    stop = log.end_before_gap(start, stop)
    try:
        batch = log.records.batch_of(start)
    except MissingRecordsError as gone:
        raise Unreadable(start, gone.to_index, str(gone)) from None
    if batch.first_index < start or batch.end_index > stop or not _takes(batch, codecs):
        batch = log.reading.batch(log, start)
        end = min(batch.end_index, stop)
        place, place_end = start - batch.first_index, end - batch.first_index
        data = encode(batch.values(place, place_end), head=batch.head, keys=batch.keys(place, place_end))
        return Run(stamped(data, start, batch.timestamp_ms) + data[32:], start, end)
    part = log.records.cut(start, stop, bytes_max)
    if len(codecs) == len(Codec):
        return Run(part.data, start, part.end_index)
    # As far as this reader takes it.
    offset = 0
    end = start
    while offset < len(part.data):
        try:
            batch = Batch(part.data, offset)
        except BatchError:
            break  # damaged: it is told when somebody comes there
        if not _takes(batch, codecs):
            break
        offset += batch.total_bytes
        end = batch.end_index
    return Run(part.data[:offset], start, end)


def _takes(batch: Batch, codecs: frozenset[Codec]) -> bool:
    return batch.codec_number in codecs
