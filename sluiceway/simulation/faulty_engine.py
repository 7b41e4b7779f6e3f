"""Engine in memory that fails on request, and loses unsynced batches at a power cut: for simulations and tests.

It wraps nothing: two stores in memory, one as the program sees it and one as the disk would have it, and between them
the batches that were written since the last sync. Chance comes from a `random.Random` that is passed in, slowness is
counted and not slept, so a run with the same seed and the same calls is the same run.

What it can do:
    power_cut()             the machine died: what was synced is there, and a random prefix of the batches after that.
                            (A torn last batch is dropped by LevelDB's log, so it is the same as a shorter prefix.)
    crash()                 the process died: everything written is there
    fail_next, fail_at_rate the next calls, or some share of all, raise; see Failure for what is left behind
    corrupt(key)            one bit of a stored value is flipped, unnoticed by the engine
    spend                   is told how many seconds each write would have taken

After a sync that failed the batch is there and not synced; with the next sync that succeeds, it is synced too (what
LevelDB's adapter gets by opening anew).

Source: DESIGN section 7 ("forgets what was not synced, tears batches, fails with ENOSPC or EIO on demand").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from random import Random
from typing import Final

import attrs

from sluiceway.store.engine import (
    PUT,
    Change,
    CorruptionError,
    DiskFullError,
    EngineError,
    EngineFailedError,
    put,
)
from sluiceway.store.memory import MemoryEngine


class Failure(Enum):
    """A way to fail."""

    DISK_FULL = "no space left"
    """A write raises DiskFullError; nothing was applied."""

    WRITE = "the write failed"
    """A write raises EngineFailedError; nothing was applied."""

    SYNC = "the sync failed"
    """A write with `sync` raises EngineFailedError; the batch was applied, but is not synced."""

    READ = "the read failed"
    """`get`, `iterate` or `iterate_keys` raises EngineFailedError."""

    DAMAGE = "the checksum is wrong"
    """`get`, `iterate` or `iterate_keys` raises CorruptionError, as LevelDB does for a block that it finds damaged."""


_ERRORS: Final[dict[Failure, type[EngineError]]] = {
    Failure.DISK_FULL: DiskFullError,
    Failure.WRITE: EngineFailedError,
    Failure.SYNC: EngineFailedError,
    Failure.READ: EngineFailedError,
    Failure.DAMAGE: CorruptionError,
}


@attrs.frozen
class WriteTimes:
    """Durations of writes, in virtual seconds."""

    write_seconds: float = 0.0
    """Each write."""

    sync_seconds: float = 0.0
    """Each write with `sync`, on top."""

    seconds_per_byte: float = 0.0
    """Each byte of keys and values, on top."""


class Failing:
    """Base of what fails when it was told to."""

    __slots__ = ("_failing", "_random", "_rates")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._failing: dict[Failure, int] = {}
        self._rates: dict[Failure, float] = {}

    def fail_next(self, failure: Failure, times: int = 1) -> None:
        """Make the next `times` calls that can fail in this way fail. 0: none."""
        self._failing[failure] = times

    def fail_at_rate(self, failure: Failure, rate: float) -> None:
        """Make this share of the calls that can fail like this do so, by chance. 0: none, 1: all."""
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate of failures is from 0 to 1, not {rate}")
        self._rates[failure] = rate

    def perhaps_fail(self, failure: Failure, doing: str) -> None:
        """Raise the error of a failure, if it was asked for or chance wants it."""
        left_count = self._failing.get(failure, 0)
        rate = self._rates.get(failure, 0.0)
        if left_count > 0:
            self._failing[failure] = left_count - 1
        elif rate == 0 or self._random.random() >= rate:
            return
        raise _ERRORS[failure](f"{failure.value} while {doing}: it was told to fail. Tell it not to.")


class FaultyEngine(Failing):
    """An engine with switches for faults; without them it keeps the contract like any other.

    :param random: decides what chance decides; shared with the engines that `crash` and `power_cut` return.
    :param times: what writes cost.
    :param spend: told the seconds of each write, before it is applied and whether or not it then fails.
    """

    __slots__ = (
        "_durable",
        "_seen",
        "_spend",
        "_times",
        "_unsynced",
        "sync_count",
        "write_count",
    )  # fmt: skip

    def __init__(
        self, random: Random, *, times: WriteTimes | None = None, spend: Callable[[float], None] | None = None
    ) -> None:
        super().__init__(random)
        self._times = times or WriteTimes()
        self._spend = spend
        self._seen = MemoryEngine()
        self._durable = MemoryEngine()
        self._unsynced: list[list[Change]] = []
        self.write_count = 0
        """Writes that succeeded."""
        self.sync_count = 0
        """Number of writes that were synced."""

    # What any engine does.

    def get(self, key: bytes) -> bytes | None:
        self._seen.check_open()
        self.perhaps_fail(Failure.READ, f"reading the key {key.hex()}")
        self.perhaps_fail(Failure.DAMAGE, f"reading the key {key.hex()}")
        return self._seen.get(key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._seen.check_open()
        self.perhaps_fail(Failure.READ, f"iterating from the key {start.hex()}")
        self.perhaps_fail(Failure.DAMAGE, f"iterating from the key {start.hex()}")
        return self._seen.iterate(start, stop, reverse=reverse)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return (key for key, _value in self.iterate(start, stop))

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        self._seen.check_open()
        if self._spend is not None:
            size_bytes = sum(len(key) + len(value) for _kind, key, value in changes)
            seconds = self._times.write_seconds + size_bytes * self._times.seconds_per_byte
            self._spend(seconds + self._times.sync_seconds if sync else seconds)
        self.perhaps_fail(Failure.DISK_FULL, "writing")
        self.perhaps_fail(Failure.WRITE, "writing")
        self._seen.write(changes, sync=False)
        self._unsynced.append(list(changes))
        if sync:
            self.perhaps_fail(Failure.SYNC, "syncing")
            for batch in self._unsynced:
                self._durable.write(batch, sync=False)
            self._unsynced.clear()
            self.sync_count += 1
        self.write_count += 1

    def size_bytes(self) -> int:
        return self._seen.size_bytes()

    def compact(self, start: bytes, stop: bytes) -> None:
        self._seen.compact(start, stop)

    def close(self) -> None:
        # What is durable stays: `crash` and `power_cut` work on a closed engine too.
        self._seen.close()

    # Faults.

    @property
    def unsynced_count(self) -> int:
        """Batches that were written, but not synced."""
        return len(self._unsynced)

    def corrupt(self, key: bytes) -> None:
        """Flips a random bit of the key's value, wherever that is: in memory, on the disk, on its way there.

        :raises ValueError: there is no such key, or its value is empty.
        """
        value = self._seen.get(key)
        if not value:
            raise ValueError(f"the key {key.hex()} has no bit to flip")
        place = self._random.randrange(len(value) * 8)
        self._seen.write([put(key, flipped(value, place))], sync=False)
        on_disk = self._durable.get(key)
        if on_disk:
            self._durable.write([put(key, flipped(on_disk, place))], sync=False)
        self._unsynced = [
            [
                (kind, name, flipped(new, place) if kind == PUT and name == key and new else new)
                for kind, name, new in batch
            ]
            for batch in self._unsynced
        ]

    def crash(self) -> FaultyEngine:
        """The process died: an engine as the next process finds it, with everything that was written and all failures
        switched off. This one is closed.
        """
        return self._successor(len(self._unsynced))

    def power_cut(self) -> FaultyEngine:
        """The machine died: an engine as it is found when power is back, with everything that was synced, a random
        prefix of the batches after that, and all failures switched off. This one is closed.
        """
        return self._successor(self._random.randint(0, len(self._unsynced)))

    def _successor(self, survived_count: int) -> FaultyEngine:
        """Return an engine with everything durable and `survived_count` of the batches after it. Batches that survived
        a power cut were on the disk; those that survived a crash count as not synced.
        """
        successor = FaultyEngine(self._random, times=self._times, spend=self._spend)
        batches = self._unsynced[:survived_count]
        everything = [put(key, value) for key, value in self._durable.contents()]
        successor._durable.write(everything, sync=False)
        successor._seen.write(everything, sync=False)
        for batch in batches:
            successor._seen.write(batch, sync=False)
        successor._unsynced = batches
        self.close()
        return successor


def flipped(value: bytes, place: int) -> bytes:
    """Return the value with one bit flipped; the place wraps around in a shorter one."""
    at = place // 8 % len(value)
    return value[:at] + bytes([value[at] ^ (1 << (place % 8))]) + value[at + 1 :]
