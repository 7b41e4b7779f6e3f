"""Ports of logs: to the storage of records, and to the storage of group positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import attrs

from ..storage import Confirms
from .batches import Batch

T = TypeVar("T")

COMPACTED: Final = "compacted"
"""Reason for records that compaction has removed."""


class MissingRecordsError(Exception):
    """Lost or damaged records, from `from_index` to before `to_index`."""

    @property
    def from_index(self) -> int:
        raise NotImplementedError

    @property
    def to_index(self) -> int:
        """Index behind the last."""
        raise NotImplementedError

    @property
    def reason(self) -> str:
        """Cause: as of Missing, or COMPACTED: later records have the keys, and readers pass over these in silence."""
        raise NotImplementedError


class Missing(Protocol):
    """Assigned indexes whose records are gone."""

    @property
    def from_index(self) -> int: ...
    @property
    def to_index(self) -> int:
        """Index behind the last."""

    @property
    def reason(self) -> str:
        """Cause: `lost` (in a power cut) or `damaged`."""


class FilePart(Protocol):
    """A run of whole batches, as in the file."""

    @property
    def data(self) -> memoryview: ...
    @property
    def first_index(self) -> int: ...
    @property
    def end_index(self) -> int: ...


class Records(Protocol):
    """An append-only array of records, such as `sluiceway.store.bigarray.BigArray`. What reads does not block, except
    for a page of a mapped file that must be read from disk; records that are elsewhere are refused with AwayError until
    `warm` has brought them. Blocking work goes through `Disk`.
    """

    @property
    def is_mapped(self) -> bool:
        """Whether batches are views of mapped files. If not, they take memory of the process."""

    @property
    def first_index(self) -> int: ...
    @property
    def next_index(self) -> int:
        """Index behind the last readable record."""

    @property
    def synced_index(self) -> int: ...
    @property
    def last_timestamp_ms(self) -> int: ...
    @property
    def back_file_size_bytes(self) -> int: ...
    @property
    def batch_bytes_max(self) -> int:
        """Size of the largest batch that can be appended."""

    @property
    def gaps(self) -> Sequence[Missing]: ...
    def batch_of(self, index: int, *, verify: bool = False) -> Batch:
        """Return the batch with this record. Raises MissingRecordsError; IndexError if it was removed meanwhile;
        DiskError if it can't be read now, AwayError if it has to be brought first.
        """

    def cut(self, start: int, stop: int, bytes_max: int) -> FilePart:
        """Return whole batches of up to `bytes_max`. Raises as `batch_of`."""

    def end_of_live(self, start: int, stop: int) -> int:
        """Return the end of the records from `start` on, up to `stop`, of which compaction has removed none. To be
        asked for what is there of a batch after the batch was read: records may be removed at any moment, and the next
        read finds a batch without them.
        """

    def find_closest_index(self, timestamp_ms: int) -> int:
        """Return the index of the first record that is not older; `next_index` if all are older. Raises
        MissingRecordsError if damage is in the way; DiskError if it can't be read now, AwayError if records have to be
        brought first.
        """

    def append_batches(self, batches: Sequence[bytes | bytearray | memoryview]) -> int: ...
    def flush(self) -> int: ...
    def warm(self, start: int, stop: int) -> None:
        """Bring these records, as many of them as have room, so that reading them does not block. Blocks; any thread.
        Raises DiskError.
        """

    def remove_before(self, timestamp_ms: int) -> int: ...
    def limit_back_file_size(self, size_bytes: int) -> int: ...
    def remove_to(self, index: int) -> int: ...
    def close(self) -> None: ...


class DiskError(Exception):
    """Failure of the disk; the message says why. The operation may be repeated."""


class AwayError(DiskError):
    """Refusal to read a record that has to be brought first, from a database say: `Records.warm` does that. `index`:
    that record, or one to look at; `timestamp_ms`: when the first record of what will be brought was appended.
    """

    def __init__(self, index: int, timestamp_ms: int) -> None:
        super().__init__(f"record {index} has to be brought first")
        self.index = index
        self.timestamp_ms = timestamp_ms


FETCHES_MAX: Final = 100


def read_here(records: Records, read: Callable[[], T]) -> T:
    """Return what `read` returns, in a thread that may block: records that are away are brought. Raises what `read`
    raises, and DiskError.
    """
    for _ in range(FETCHES_MAX):
        try:
            return read()
        except AwayError as away:
            records.warm(away.index, away.index + 1)
    raise DiskError("records that were brought are gone again at once: there is not enough room for readers")


def batches_here(records: Records, index: int, end: int) -> Iterator[Batch]:
    """Yield the batches with records from `index` to before `end`, in a thread that may block; what is missing is
    passed over. Raises DiskError.
    """
    index = max(index, records.first_index)
    while index < end:
        try:
            batch = read_here(records, partial(records.batch_of, index))
        except MissingRecordsError as gone:
            index = gone.to_index
            continue
        except IndexError:
            index = max(index + 1, records.first_index)
            continue
        yield batch
        index = batch.end_index


def timestamp_ms_of(records: Records, index: int) -> int | None:
    """Return when this record was appended; None if it is missing or can't be read. Of a record that is away: when the
    first one was that is brought together with it.
    """
    try:
        return records.batch_of(index).timestamp_ms
    except AwayError as away:
        return away.timestamp_ms
    except (MissingRecordsError, IndexError, DiskError):
        return None


class Disk(Protocol):
    """Thread pool for work on records that blocks. Each `done` is called on the loop with the result or a DiskError."""

    def make(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        """Make the files of a new log; other work does not wait for it."""

    def append(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        """Do `work` in the order given; for all changes of records."""

    def sync(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None: ...

    def compact(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        """Do some of the compaction of a log; other work does not wait for it."""

    def read(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None: ...

    def room(self, size_bytes: int) -> Any:
        """Return a writable buffer. For jobs in threads: the allocation does not hold up the loop."""


PLACE_RANGES_MAX: Final = 4096
"""Maximum numbers of ranges beyond the front, and of failed ranges, kept on disk per group. With more holes some
records are redelivered after a crash, and their failures count from zero.
"""


@attrs.frozen
class GroupState:
    """Position of a group, as kept on disk."""

    front: int
    """Index below which all records are settled."""
    settled: tuple[tuple[int, int], ...] = ()
    """Settled ranges beyond the front, each from its first index to behind its last."""
    handed_to: int = 0
    """Index below which records may have been delivered."""
    failures: tuple[tuple[int, int, int], ...] = ()
    """Failed ranges, each from its first index to behind its last, with the number of failures."""
    log_id: str = ""
    """Id of the log that the indexes belong to; empty if kept by an earlier version, which did not store it."""


class GroupPlace(Confirms, Protocol):
    """Storage of one group's position, which asks the group for its state when it has time to write."""

    def changed(self) -> None:
        """Note that the state has changed."""

    def forget(self) -> None:
        """Stop storing the deleted group; pending confirmations are released."""


class GroupKeeper(Protocol):
    """Storage of the positions of groups. Each `done` is called on the loop, with None or the error."""

    def place(self, log: str, group: str, state: Callable[[], GroupState]) -> GroupPlace:
        """Return the position storage of a group from an earlier run, or of a new one, of which nothing is written
        before `create`. `state` returns the present position.
        """

    def create(self, log: str, group: str, place: GroupPlace, done: Callable[[Exception | None], None]) -> None:
        """Store this new group, replacing what is kept under its name: that was of another log, or an earlier version
        did not store of which.
        """

    def delete(self, log: str, group: str, done: Callable[[Exception | None], None]) -> None:
        """Delete the stored position, whose place was told to forget."""


class EnvelopeCodec(Protocol):
    """Codec of header blocks and envelopes, such as `sluiceway.protocols.stomp.header_codec.HeaderCodec`."""

    def restore(self, dialect: int, block: bytes) -> Any: ...

    def check_offered(self, dialect: int, block: bytes) -> None:
        """Raise ValueError for a block with headers that only the broker may set."""
