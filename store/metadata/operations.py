"""Operations on metadata records, one after the other on the store's writer thread, all waiting ones in one write.

How it works: an operation is a function of a *view* of the records; it looks, decides, and changes the view or raises a
MetadataError. While one batch of operations is under way the next one gathers. A batch runs as one job of the writer:
its operations see each other's changes through the view, and all changes go to the engine in one write, synced if any
of them is to be durable. So compare-and-set needs no lock, and a hundred durable updates at once cost two syncs.

Invariants: only this object writes the records of the metadata families, so a view reads the latest decision. After a
failed write the contents are unknown until the engine has written again (see engine.py): so the next change is preceded
by an empty write, and refused while that fails. When a write fails, all operations of its batch fail that changed
something or may have seen such a change.

Bound: each caller waits for the answer before the next call, or has its own reason not to; OPERATIONS_MAX in one write.

Source: seed 003 (CAS); anchors d10 (group commit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from ...queues.environment import Scheduling, TimerHandle
from ..compare_and_set import MetadataError, MetadataFailedError
from ..engine import Change, CorruptionError, Engine, EngineError, delete, put
from ..io_threads import Worker
from ..keys import StoreFormatError
from .port import MetadataClosedError, MetadataStatistics

T = TypeVar("T")

OPERATIONS_MAX: Final = 1_000
"""Number of operations in one batch: some milliseconds of the writer, and about 1 MiB at most for small records."""


class View:
    """The records as left by the operations of this batch."""

    __slots__ = ("_engine", "_values", "changes")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._values: dict[bytes, bytes | None] = {}
        """Changed values; None: deleted."""
        self.changes: list[Change] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises EngineError."""
        if key in self._values:
            return self._values[key]
        return self._engine.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return keys and values in order. Raises EngineError, before the first of them."""
        found: dict[bytes, bytes | None] = dict(self._engine.iterate(start, stop))
        found.update((key, value) for key, value in self._values.items() if start <= key < stop)
        return iter([(key, value) for key, value in sorted(found.items()) if value is not None])

    def put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        self.changes.append(put(key, value))

    def delete(self, key: bytes) -> None:
        self._values[key] = None
        self.changes.append(delete(key))


class _Operation:
    """One requested operation. `writes`: it may change something; it raises before the change, or not at all."""

    __slots__ = ("done", "durable", "function", "writes")

    def __init__(
        self, function: Callable[[View], Any], done: Callable[[Any], None], *, writes: bool, durable: bool
    ) -> None:
        self.function = function
        self.done = done
        self.writes = writes
        self.durable = durable


class _Outcome:
    """Outcome of a batch."""

    __slots__ = ("failures_count", "results", "synced", "wrote")

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.wrote = self.synced = False
        self.failures_count = 0


class OperationLine:
    """Queue of operations: see the module. Called on the dispatch loop."""

    def __init__(
        self,
        worker: Worker,
        *,
        scheduling: Scheduling | None = None,
        sync_interval_seconds: float = 1.0,
        contain: Callable[[Exception], None] | None = None,
    ) -> None:
        """Make a queue. `contain` gets exceptions of answers (None: raise them). `scheduling`: sync unsynced writes
        after `sync_interval_seconds` at the latest; None: with the next sync of the store.
        """
        self._worker = worker
        self._scheduling = scheduling
        self._contain = contain
        self._sync_interval_seconds = sync_interval_seconds
        self._waiting: list[_Operation] = []
        self._under_way_count = 0
        """Number of batches; more than one only when closing."""
        self._unsettled = False
        """Whether a write failed and none has succeeded since. The writer thread's."""
        self._unsynced = False
        self._timer: TimerHandle | None = None
        self._closed = False
        self._operations_count = self._answered_count = 0
        self._batches_count = self._syncs_count = self._failures_count = 0

    def read(self, function: Callable[[View], T], done: Callable[[T | MetadataError], None]) -> None:
        """Call `function` with a view, and `done` with its result or error."""
        self._add(_Operation(function, done, writes=False, durable=False))

    def change(
        self, function: Callable[[View], T], done: Callable[[T | MetadataError], None], *, durable: bool
    ) -> None:
        """Call a function that changes the view, or raises MetadataError before any change; otherwise as `read`."""
        self._add(_Operation(function, done, writes=True, durable=durable))

    def flush(self, done: Callable[[MetadataError | None], None]) -> None:
        """Call `done` when all earlier operations are synced."""
        self._add(_Operation(lambda _view: None, done, writes=True, durable=True))

    def statistics(self) -> MetadataStatistics:
        return MetadataStatistics(
            self._operations_count,
            self._operations_count - self._answered_count,
            self._batches_count,
            self._syncs_count,
            self._failures_count,
        )

    def close(self) -> None:
        """Hand everything to the worker now, which runs it before it closes. May be called again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._begin()

    def _add(self, operation: _Operation) -> None:
        if self._closed:
            raise MetadataClosedError("the metadata managers are closed: nothing can be read or written any more")
        self._operations_count += 1
        self._waiting.append(operation)
        if not self._under_way_count:
            self._begin()

    def _begin(self) -> None:
        batch, self._waiting = self._waiting[:OPERATIONS_MAX], self._waiting[OPERATIONS_MAX:]
        self._under_way_count += 1
        self._worker.run(partial(self._run, batch), partial(self._ran, batch))

    def _ran(self, batch: list[_Operation], outcome: _Outcome | EngineError) -> None:
        assert isinstance(outcome, _Outcome), "what the engine raises is in it"
        self._under_way_count -= 1
        self._answered_count += len(batch)
        self._batches_count += outcome.wrote
        self._syncs_count += outcome.synced
        self._failures_count += outcome.failures_count
        if outcome.synced:
            self._unsynced = False
        elif outcome.wrote:
            self._unsynced = True
            self._arm()
        if self._waiting and not self._under_way_count:
            self._begin()
        for operation, result in zip(batch, outcome.results, strict=True):
            try:
                operation.done(result)
            except Exception as error:
                if self._contain is None:
                    raise
                self._contain(error)

    def _arm(self) -> None:
        if self._timer is None and self._scheduling is not None and not self._closed:
            self._timer = self._scheduling.call_later(self._sync_interval_seconds, self._sync_due)

    def _sync_due(self) -> None:
        self._timer = None
        if self._unsynced and not self._closed:
            self.flush(self._flushed)

    def _flushed(self, error: MetadataError | None) -> None:
        if error is not None:  # counted; the next writer gets it as well
            self._arm()

    # ------------------------------------------------------------------ on the writer thread

    def _run(self, batch: list[_Operation], engine: Engine) -> _Outcome:
        outcome = _Outcome()
        results = outcome.results
        view = View(engine)
        refused = self._settle(engine, batch, outcome)
        first_change = len(batch)
        sync = False
        for place, operation in enumerate(batch):
            if operation.writes and refused is not None:
                results.append(refused)
                continue
            changes_count = len(view.changes)
            try:
                results.append(operation.function(view))
            except MetadataError as error:
                results.append(error)
                continue
            except StoreFormatError as error:
                outcome.failures_count += 1
                results.append(_failed(f"{error}. Stop the broker and run `sluiceway store repair`", error))
                continue
            except EngineError as error:
                outcome.failures_count += 1
                results.append(_failed(str(error), error))
                continue
            sync = sync or operation.durable
            if len(view.changes) > changes_count:
                first_change = min(first_change, place)
        if not view.changes and not sync:
            return outcome
        try:
            engine.write(view.changes, sync=sync)
        except EngineError as error:
            self._unsettled = True
            outcome.failures_count += 1
            for place, operation in enumerate(batch):
                if not isinstance(results[place], MetadataError) and (place >= first_change or operation.durable):
                    results[place] = _failed(str(error), error)
        else:
            outcome.wrote, outcome.synced = True, sync
        return outcome

    def _settle(self, engine: Engine, batch: list[_Operation], outcome: _Outcome) -> MetadataFailedError | None:
        """Write once more after a failed write, to learn the contents. Returns an error that refuses changes,
        or None.
        """
        if not self._unsettled or not any(operation.writes for operation in batch):
            return None
        try:
            engine.write([], sync=True)
        except EngineError as error:
            outcome.failures_count += 1
            return _failed(str(error), error)
        self._unsettled = False
        return None


def _failed(what: str, cause: Exception) -> MetadataFailedError:
    remedy = "" if isinstance(cause, (CorruptionError, StoreFormatError)) else " Then read it again."
    failed = MetadataFailedError(f"the store could not do it: {what}{remedy}")
    failed.__cause__ = cause
    return failed
