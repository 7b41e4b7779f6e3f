"""What logs need of those who keep their records, and of those who keep the places of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import attrs

from ..storage import Confirms
from .batches import Batch

T = TypeVar("T")


class MissingRecordsError(Exception):
    """Nothing can be read there: lost, or damaged. What says so knows from where to where."""

    @property
    def from_index(self) -> int:
        raise NotImplementedError

    @property
    def to_index(self) -> int:
        """Behind the last."""
        raise NotImplementedError

    @property
    def reason(self) -> str:
        raise NotImplementedError


class Missing(Protocol):
    """Indexes that were given out and are not there (any more)."""

    @property
    def from_index(self) -> int: ...
    @property
    def to_index(self) -> int:
        """Behind the last."""

    @property
    def reason(self) -> str:
        """`lost` (in a power cut), `damaged`."""


class Part(Protocol):
    """A run of whole batches, as they lie in the file."""

    @property
    def data(self) -> memoryview: ...
    @property
    def first_index(self) -> int: ...
    @property
    def end_index(self) -> int: ...


class Records(Protocol):
    """An append-only array of records. `sluiceway.store.bigarray.BigArray` fits. What is here does not block (but for a
    page that must come from the disk, see `Disk.warm`); what does is asked of `Disk`.
    """

    @property
    def first_index(self) -> int: ...
    @property
    def next_index(self) -> int:
        """Behind the last that can be read."""

    @property
    def synced_index(self) -> int: ...
    @property
    def last_timestamp_ms(self) -> int: ...
    @property
    def back_file_size_bytes(self) -> int: ...
    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that can be appended."""

    @property
    def gaps(self) -> Sequence[Missing]: ...
    def batch_of(self, index: int, *, verify: bool = False) -> Batch:
        """Raises MissingRecordsError; IndexError, if it was removed meanwhile; DiskError if it can't be read now."""

    def cut(self, start: int, stop: int, bytes_max: int) -> Part:
        """Raises as `batch_of`."""

    def find_closest_index(self, timestamp_ms: int) -> int:
        """Raises MissingRecordsError if damage is in the way; DiskError if it can't be read now."""

    def append_batches(self, batches: Sequence[bytes | bytearray | memoryview]) -> int: ...
    def flush(self) -> int: ...
    def warm(self, start: int, stop: int) -> None: ...
    def remove_before(self, timestamp_ms: int) -> int: ...
    def limit_back_file_size(self, size_bytes: int) -> int: ...
    def remove_to(self, index: int) -> int: ...
    def close(self) -> None: ...


class DiskError(Exception):
    """The disk did not do what was asked; the message says why. It may be asked again."""


def timestamp_ms_of(records: Records, index: int) -> int | None:
    """When this record was appended; None if it is not there."""
    try:
        return records.batch_of(index).timestamp_ms
    except (MissingRecordsError, IndexError, DiskError):
        return None


class Disk(Protocol):
    """Does what blocks with records, elsewhere. Each `done` is called on the loop with what came of it."""

    def make(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        """For the files of new logs: whatever that takes, nobody else waits for it."""

    def append(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None:
        """In the order given; for all that changes records."""

    def sync(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None: ...

    def read(self, work: Callable[[], T], done: Callable[[T | DiskError], None]) -> None: ...

    def room(self, size_bytes: int) -> Any:
        """A buffer that can be written to. For jobs: making it holds up nobody."""


PLACE_RANGES_MAX: Final = 4096
"""Ranges beyond the front that are kept on disk of a group, and of what failed: if there are more holes, some records
come again after a crash, and their failures count anew.
"""


@attrs.frozen
class GroupState:
    """How far a group is, as it is kept."""

    front: int
    """All below it are settled."""
    settled: tuple[tuple[int, int], ...] = ()
    """Beyond the front, each from its first to behind its last."""
    handed_to: int = 0
    """Up to here records may have been in consumers' hands."""
    failures: tuple[tuple[int, int, int], ...] = ()
    """What failed, each from its first to behind its last, and how often."""
    log_id: str = ""
    """Of the log whose indexes these are; empty: an earlier version has kept it, which did not say."""


class GroupPlace(Confirms, Protocol):
    """Keeps the place of one group over a restart, and asks the group for its state when it has time to write."""

    def changed(self) -> None:
        """The state is another one."""

    def forget(self) -> None:
        """The group is deleted: nothing of it is written any more, and nobody waits for that."""


class GroupKeeper(Protocol):
    """Keeps the places of groups. Each `done` is called on the loop, with None or what went wrong."""

    def place(self, log: str, group: str, state: Callable[[], GroupState]) -> GroupPlace:
        """The place of a group that an earlier run left, or of a new one, of which nothing is written before `create`.
        `state` says how far the group is.
        """

    def create(self, log: str, group: str, place: GroupPlace, done: Callable[[Exception | None], None]) -> None:
        """Keep this new group, in place of what is kept under its name: that was of another log, or
        an earlier version did not say of which.
        """

    def delete(self, log: str, group: str, done: Callable[[Exception | None], None]) -> None:
        """Keep it no longer: its place was told to forget."""


class HeadCodec(Protocol):
    """Header blocks to envelopes: `sluiceway.protocols.stomp.header_codec.HeaderCodec` fits."""

    def restore(self, dialect: int, block: bytes) -> Any: ...

    def check_offered(self, dialect: int, block: bytes) -> None:
        """Raises ValueError for a block that says what only the broker may say."""
