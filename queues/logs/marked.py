"""Marked appends: what is appended to a log at once carries a header that names its commit, so that a later start finds
out whether the log has it.

The first batch has the mark in its header lines. A log keeps what is appended at once as a whole or not at all: who
finds the mark has found all of it. Two users: staged commits (staged_commits.py), and transactions on disk
(log_drain.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from itertools import groupby
from typing import Final

from ..message import Message
from .batches import Batch, BatchError, encode, reheaded, split
from .offers import HEAD, is_batch
from .ports import Records, batches_here

COMMIT_HEADER: Final = b"sluiceway-commit"
MARK_BYTES_MAX: Final = 64
"""Longest mark of a transaction, with the line break before it."""


def transaction_mark(transaction_id: int, place: int) -> bytes:
    """Return the header line of a piece of a transaction on disk. Another transaction may get the same number, but only
    when the records of this one are safe: its own are behind these.
    """
    return COMMIT_HEADER + f":t{transaction_id}/{place}".encode()


def is_there(records: Records, index: int, mark: bytes) -> bool:
    """Return whether a batch from `index` on carries the mark. O(batches). Raises DiskError."""
    return any(mark in batch.head.split(b"\n") for batch in batches_here(records, index, records.next_index))


def marked(batch: Batch, mark: bytes) -> Batch:
    """Return the batch with the mark as its last header line. Raises BatchError."""
    return Batch(reheaded(batch, batch.head + b"\n" + mark if batch.head else mark))


def fitting(batch: Batch, bytes_max: int) -> list[bytes | memoryview]:
    """Return the batch, or halves of it until each fits into a file. Raises BatchError if one record does not."""
    if batch.total_bytes <= bytes_max:
        return [batch.data]
    if batch.count == 1:
        raise BatchError(f"a record of {batch.plain_bytes} bytes does not fit into a file of {bytes_max}")
    middle = batch.count // 2
    halves: list[bytes | memoryview] = []
    for start, stop in ((0, middle), (middle, batch.count)):
        half = encode(batch.values(start, stop), head=batch.head, keys=batch.keys(start, stop))
        halves += fitting(Batch(half), bytes_max)
    return halves


def marked_batches(
    messages: SequenceOf[Message],
    mark: bytes,
    not_stored: frozenset[str],
    bytes_max: int,
    stamp: Callable[[Message], bytes] = lambda _message: b"",
) -> tuple[list[bytes | memoryview], int]:
    """Return the records of SENDs as batches, the first with the mark, and their number. `stamp`: returns a header line
    for the first batch of a SEND, or nothing. For a thread: O(bytes). Raises BatchError if a record does not fit into a
    file.
    """
    batches: list[bytes | memoryview] = []
    count = 0

    def add(batch: Batch) -> None:
        nonlocal batches, count
        count += batch.count
        if not batches:
            batch = marked(batch, mark)
        batches += fitting(batch, bytes_max)

    for head, same in groupby(messages, key=HEAD):
        start = head.body_offset
        if is_batch(head):
            for message in same:
                line = stamp(message)
                for batch in split(memoryview(message.wire)[start:-1]):
                    add(marked(batch, line) if line else batch)
                    line = b""
        else:
            sends = list(same)
            values = [memoryview(message.wire)[start:-1] for message in sends]
            batch = Batch(encode(values, head=head.lines_without(not_stored)))
            line = stamp(sends[0])
            add(marked(batch, line) if line else batch)
    return batches, count
