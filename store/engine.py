"""Port to an ordered key-value store: the operations that the store needs of LevelDB, and its errors.

Keys and values are bytes; keys are in bytewise order. A *batch* is a list of changes that is written atomically: all of
it or nothing, in memory and after any crash. Batches are found again in the order in which they were written: if one
survived, so did all before it.

Survival:
    the process dies (kill -9)       every batch that was written
    the machine dies (power, panic)  every batch up to the last one written with `sync=True`, and perhaps some of those
                                     after it: a prefix of whole batches

After a write that raised (but for EngineClosedError) it is not known whether the batch is there, now or after a
restart; it is there as a whole or not at all. So the caller keeps the batch and writes it again, in the same order,
until that succeeds: all changes set a key to a value or to nothing, hence once or twice is the same.

Every call may block, for milliseconds as a rule and for as long as the disk takes when it is slow: all of them, those
of iterators too, come from ONE worker thread, never from the event loop.

Adapters: LevelDbEngine (leveldb.py), PostgresqlEngine (postgresql.py), MemoryEngine (memory.py), FaultyEngine
(sluiceway/simulation/faulty_engine.py). One contract suite holds for all: tests/contract/test_engine.py.

Not here: what keys and values mean (keys.py, chunks.py); when to write and when to sync (the store's queue).

Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

PUT: Final = 0
DELETE: Final = 1
DELETE_RANGE: Final = 2

Change = tuple[int, bytes, bytes]
"""An operation, its key, and the value (PUT), nothing (DELETE) or the end of the range (DELETE_RANGE).

A plain tuple of always the same shape: a batch is unpacked in a loop without checks of types.
"""


def put(key: bytes, value: bytes) -> Change:
    """Return the change that sets `key` to `value`."""
    return (PUT, key, value)


def delete(key: bytes) -> Change:
    """Return the change that deletes `key`; it need not have a value."""
    return (DELETE, key, b"")


def delete_range(start: bytes, stop: bytes) -> Change:
    """Return the change that deletes all keys from `start` (inclusive) to `stop` (exclusive), including those put
    earlier in the same batch. Costs time and memory for each existing key, so cut a range of millions of keys.
    """
    return (DELETE_RANGE, start, stop)


class EngineError(Exception):
    """Error of the store below. Base of all errors that engines raise."""


def raise_it(error: Exception) -> None:
    """Raise the error: the default where no caller contains errors."""
    raise error


class DiskFullError(EngineError):
    """No space is left (or the quota is used up). Reading is still possible; write again when there is space."""


class EngineFailedError(EngineError):
    """The disk or the file system failed. Trying again may help; the message says what else does."""


class UnreadableError(EngineFailedError):
    """The disk can't read one place: usually a bad sector. The rest may be readable.

    `read_around` blocks, and returns the readable part, with zeros for the rest, not verified; None: no place of the
    disk can be read, so this place is not the cause, and another attempt may succeed.
    """

    def __init__(self, text: str, read_around: Callable[[], bytes | None]) -> None:
        super().__init__(text)
        self.read_around = read_around


class EngineMissingError(EngineError):
    """A library that the engine needs is not installed, or can't be loaded. The message says what to install."""


class CorruptionError(EngineError):
    """A record differs from what was written. Another attempt does not help."""


class FencedError(EngineError):
    """The shard has another owner, or its data is older than what was confirmed. Nothing more can be read or written:
    the caller abandons the shard, and confirms and delivers nothing more of it.
    """


class EngineClosedError(EngineError):
    """The engine was used after `close`: a mistake of the caller. Nothing was read or written."""


class Engine(Protocol):
    """Ordered key-value store. The module docstring defines durability, and the thread that may call."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None if it has none. Raises EngineError if it can't be read."""

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values from `start` (inclusive) to `stop` (exclusive), ascending, or descending with
        `reverse`; as of this call, whatever is written meanwhile. Yields nothing if `stop` does not come after `start`.

        Drop the iterator (or run it to its end) soon: LevelDB can't free what it shows before.

        Raises EngineError from the call or from any step; a range never just ends early.
        """

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """The same without values, ascending. Not free: an engine may have to read the values to step over them."""

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        """Apply the changes in order and atomically. With `sync`, they and everything written before are on the disk
        when this returns, even if `changes` is empty.

        Raises EngineError: the batch is written or not then; write the same batch again (see the module).
        """

    def size_bytes(self) -> int:
        """About how much it holds on the disk (in memory, if it has no disk), deleted things included that were not
        cleared away yet.
        """

    def compact(self, start: bytes, stop: bytes) -> None:
        """Free the space of records that were deleted in this range; LevelDB keeps records that were put just before.
        Takes the time to write the remaining records of the range.
        """

    def close(self) -> None:
        """Ends it; everything that was written stays. May be called again. Everything else raises EngineClosedError
        from now on, steps of open iterators included.
        """
