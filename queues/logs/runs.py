"""Runs: whole batches as one delivery, cut from the file as stored.

A run holds exactly the records it states. Where a reader begins or ends inside a batch, or does not accept its codec,
that batch is encoded anew, uncompressed, which is the only case with a copy. Encoding goes in parts, each a run of one
batch: the same parts from the same position on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ..slices import fit
from .batches import Batch, BatchError, encode, stamped
from .codecs import Codec
from .ports import AwayError, MissingRecordsError
from .reading import RECORDS_PER_BATCH, unreadable

if TYPE_CHECKING:
    from .log import Log


ANEW_COUNT: Final = 1024
ANEW_BYTES: Final = 256 * 1024
"""Bytes of records encoded anew per part: a millisecond. A longer record is a part by itself."""


@attrs.frozen
class BatchRun:
    """Whole batches with the records from `first_index` to before `end_index`."""

    data: bytes | memoryview
    first_index: int
    end_index: int


def cut_run(log: Log, start: int, stop: int, bytes_max: int, codecs: frozenset[Codec]) -> BatchRun:
    """Return a run from `start` on: at least one batch, or its part before `stop`. Raises Unreadable, NotReadyError."""
    stop = log.end_before_gap(start, stop)
    records = log.records
    while True:
        live_end = max(start + 1, records.end_of_live(start, stop))
        run = _cut(log, start, live_end, bytes_max, codecs)
        # Compaction may have come between: then batches were read without records that seemed to be there.
        if records.end_of_live(start, run.end_index) >= run.end_index:
            return run
        stop = live_end


def _cut(log: Log, start: int, stop: int, bytes_max: int, codecs: frozenset[Codec]) -> BatchRun:
    """Do `cut_run` for records of which compaction has removed none."""
    try:
        batch = log.records.batch_of(start)
        if batch.first_index < start or batch.end_index > stop or not _takes(batch, codecs):
            return _anew(log, start, stop)
        part = log.records.cut(start, stop, bytes_max)
    except MissingRecordsError as gone:
        raise unreadable(start, gone) from None
    except AwayError as away:
        raise log.reading.fetching(log, away) from None
    if len(codecs) == len(Codec):
        return BatchRun(part.data, start, part.end_index)
    # Keep the batches whose codec this reader accepts.
    offset = 0
    end = start
    while offset < len(part.data):
        try:
            batch = Batch(part.data, offset)
        except BatchError:
            break  # damaged: reported to the reader that gets there
        if not _takes(batch, codecs):
            break
        offset += batch.total_bytes
        end = batch.end_index
    return BatchRun(part.data[:offset], start, end)


def _anew(log: Log, start: int, stop: int) -> BatchRun:
    """Return part of the batch with record `start`, from that record on, uncompressed. Raises Unreadable,
    NotReadyError.
    """
    batch = log.reading.batch(log, start)
    place = start - batch.first_index
    place_end = min(batch.end_index, stop, start + ANEW_COUNT) - batch.first_index
    values = batch.values(place, place_end)
    count, _size_bytes = fit(values, ANEW_BYTES)
    keys = batch.keys(place, place + count)
    data = encode(values[:count], head=batch.head, keys=keys)
    log.reading.taken_apart_count += count // RECORDS_PER_BATCH
    return BatchRun(stamped(data, start, batch.timestamp_ms) + data[32:], start, start + count)


def _takes(batch: Batch, codecs: frozenset[Codec]) -> bool:
    return batch.codec_number in codecs
