"""Compaction of logs in the background: one log at a time, in bites of a few milliseconds in a thread of its own.

The store does it (`store/bigarray/compacting.py`); here is when, and for how long. `LogTable` looks at its logs now and
then; one with `log_compact` whose files have become full since the last round gets in line. Between two bites there is
a pause, so that neither the disk nor the threads of the broker are kept busy by it.

Bound: `compaction_bytes_max` for the keys of the log whose turn it is, charged to a limiter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ...flow import Account, Flow, FlowResource, SizeLimiter
from ...flow.kinds import ResourceKind
from ..environment import QueueEnvironment
from .ports import Disk, DiskError
from .record_keys import ENTRY_BYTES, CompactionOrder, LastIndexes

if TYPE_CHECKING:
    from .log import Log

COMPACTION_BYTES_MAX: Final = 16 * 1024 * 1024
STEPS_PER_BITE: Final = 4
"""Steps of half a millisecond that a thread does at once."""
PAUSE_SECONDS: Final = 0.005
"""Time between two bites."""
AGAIN_SECONDS: Final = 60.0
"""Time before a log is tried again whose disk has failed."""
MARKS_KEPT_SECONDS: Final = 24 * 3600.0
"""Time that records of transactions and of producers with an id stay whatever comes later: a start after a crash may
look for them, to know what was appended. Commits are done within milliseconds, unless the disk is full.
"""


class CompactedFigures(Protocol):
    """Progress of compaction; since the log was opened but for `clean_index`."""

    clean_index: int
    removed_count: int
    freed_bytes: int
    rounds_count: int


class CompactableRecords(Protocol):
    """Records that can be compacted, such as `sluiceway.store.bigarray.BigArray`."""

    compacted: CompactedFigures

    @property
    def compaction_is_due(self) -> bool:
        """Whether files became full since the last round. O(1)."""

    def compacting(self, order: CompactionOrder) -> Iterator[None]:
        """Do one round, in steps, in any thread. Raises DiskError and others that `Disk.compact` knows."""


class Compactor(FlowResource):
    """Compaction of all logs of a broker."""

    def __init__(
        self, disk: Disk, environment: QueueEnvironment, *, capacity_bytes: int, warn: Callable[..., object]
    ) -> None:
        super().__init__("log compaction", ResourceKind.CACHE, environment.manager)
        self._disk = disk
        self._environment = environment
        self._warn = warn
        self._last = LastIndexes(max(1, capacity_bytes // ENTRY_BYTES))
        self._held_bytes = 0
        self.closed = False
        self._waiting: dict[str, Log] = {}
        self.log: Log | None = None
        """Log whose turn it is."""
        self._round: Iterator[None] = iter(())
        self._timer: Any = None
        self._failed_seconds: dict[str, float] = {}
        """Time at which the disk of a log failed."""
        self._account = Account(
            self,
            Flow("log compaction"),
            SizeLimiter(capacity_bytes, clock=environment.clock),
            clock=environment.clock,
        )
        self.open()

    def look(self, log: Log) -> None:
        """Compact this log in its turn, if anything is to be done."""
        records = cast(CompactableRecords, log.records)
        if log.name in self._waiting or log is self.log or not records.compaction_is_due:
            return
        failed_seconds = self._failed_seconds.get(log.name)
        if failed_seconds is not None and self._environment.clock() - failed_seconds < AGAIN_SECONDS:
            return
        self._waiting[log.name] = log
        if self.log is None:
            self._begin()

    def _begin(self) -> None:
        """Begin with the next log in line, if there is one."""
        while self._waiting and self.log is None and not self.closed:
            log = self._waiting.pop(next(iter(self._waiting)))
            if log.closed:
                continue
            now_ms, policy = self._environment.now_ms(), log.policy
            order = CompactionOrder(
                self._last,
                policy.log_expanded_bytes_max,
                now_ms - int(policy.log_tombstone_seconds * 1000),
                now_ms - int(MARKS_KEPT_SECONDS * 1000),
                log.room,
            )
            self.log = log
            self._round = cast(CompactableRecords, log.records).compacting(order)
            self._bite()

    def _bite(self) -> None:
        self._timer = None
        steps, log = self._round, self.log
        try:
            if log is None or log.closed:
                self._end()
            else:
                self._disk.compact(lambda: _some(steps), self._bitten)
        except BaseException:
            self.log, self._round = None, iter(())  # the next look begins anew
            raise

    def _bitten(self, is_done: bool | DiskError) -> None:
        log = self.log
        if log is None or self.closed:
            return
        held_bytes = len(self._last) * ENTRY_BYTES
        if held_bytes > self._held_bytes:
            self._account.charge(0, held_bytes - self._held_bytes, None)
            self._held_bytes = held_bytes
        if isinstance(is_done, DiskError):
            if not log.closed:
                now = self._environment.clock()
                recent = {name: at for name, at in self._failed_seconds.items() if now - at < AGAIN_SECONDS}
                self._failed_seconds = {**recent, log.name: now}  # logs are deleted without notice
                self._warn("a log can't be compacted now", log=log.name, error=str(is_done))
            self._end()
        elif is_done or log.closed:
            self._failed_seconds.pop(log.name, None)
            self._end()
        else:
            self._timer = self._environment.scheduling.call_later(PAUSE_SECONDS, self._bite)

    def _end(self) -> None:
        """Forget the keys, and begin with the next log."""
        log, self.log, self._round = self.log, None, iter(())
        self._last.clear()
        self._account.release(0, self._held_bytes)
        self._held_bytes = 0
        if log is not None and not log.closed:
            # Batches that are cached keep the files alive that were replaced.
            self._environment.do_in_steps(log.log_id, log.reading.forgetting(log))
        self._begin()

    def close(self) -> None:
        """Stop with the broker. A bite that is under way ends by itself."""
        if self.closed:
            return
        self.closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.log = None
        self._account.release(0, self._held_bytes)
        self._held_bytes = 0
        super().close()

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"keys": len(self._last)}
        if self.log is not None:
            facts["compacts"] = self.log.name
        return facts


def _some(steps: Iterator[None]) -> bool:
    """Do some steps; return whether they are all done."""
    return sum(1 for _ in islice(steps, STEPS_PER_BITE)) < STEPS_PER_BITE
