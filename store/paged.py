"""Storage of blocks that were only paged out: in files (pages.py), or, in a store without a folder, in its engine.

*When the disk accepts no pages* (it is full, or the folder fails) the rest of the batch does not wait: its other
records are written, the blocks stay in memory, and a gate for pages is shut, so that queues page nothing out and their
senders wait at `memory_bytes`. Persistent messages continue as long as the engine works. The gate opens again after a
pause, which grows, and as soon as a segment is removed: waiting sources try again, and only a written page ends the
failure. A block without elements frees its page at once, even if batches fail: that makes room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from functools import partial
from pathlib import Path
from typing import Final

from ..flow import Account, Flow, FlowResource, SourceController, WindowLimiter
from ..queues.environment import Scheduling, TimerHandle
from ..queues.message import Message
from . import keys
from .batch import ChunkRecord, StoreBatch
from .chunks import HeadCodec, encode_chunk, encode_parts
from .engine import Engine, EngineError, delete, put
from .io_threads import Worker
from .pages import Page, PageFiles, PagesError
from .ports import Logger

RETRY_MIN_SECONDS: Final = 0.1
RETRY_MAX_SECONDS: Final = 5.0
CALM_SECONDS: Final = 5.0
"""Time without a new attempt after which the trouble counts as over: sources that still have to wait try long
before.
"""


class PagedBlocks:
    """The paged blocks of one store."""

    def __init__(
        self,
        store: FlowResource,
        heads: HeadCodec,
        folder: Path | None,
        worker: Worker,
        *,
        scheduling: Scheduling,
        clock: Callable[[], float],
        log: Logger,
    ) -> None:
        """`folder`: empty folder of the files; None: the engine stores them. Sources that wait for pages wait for
        `store`.
        """
        self._heads = heads
        self._worker = worker
        self._scheduling = scheduling
        self._log = log
        self.files = None if folder is None else PageFiles(folder, remove_soon=self._remove)
        self.fault: str | None = None
        """Reason why the last pages could not be written; None: they were written."""
        self._retry_seconds = RETRY_MIN_SECONDS
        self._timer: TimerHandle | None = None
        self._closed = False
        self._gate = Account(
            store,
            Flow("gate of pages"),
            WindowLimiter(1, None, clock=clock, label="room for pages"),
            schedule=self._soon,  # an error of one source does not keep others from resuming
            clock=clock,
            counts_memory=False,
        )

    # ------------------------------------------------------------------ the gate

    def _soon(self, work: Callable[[], None]) -> None:
        self._scheduling.call_later(0.0, work)

    @property
    def accepting(self) -> bool:
        """Blocks may leave memory."""
        return not self._gate.limiter.throttled

    def hold_back(self, source: SourceController) -> None:
        """Block this source until it is worth another try."""
        if not self._closed:
            self._gate.wait_in_line(source)

    def close(self) -> None:
        """Close: release the waiting sources."""
        self._closed = True
        self._set_timer(None)
        self._gate.close()

    def _shut(self, error: PagesError) -> None:
        if self.fault is None:
            self._log.error(
                "store cannot page out",
                error=str(error),
                effect="nothing leaves memory: senders of full queues wait; persistent messages and consuming continue",
            )
        self.fault = str(error)
        if self.accepting and not self._closed:
            self._gate.charge(1, 0, None)
            self._set_timer(self._scheduling.call_later(self._retry_seconds, self._open))
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_MAX_SECONDS)

    def _open(self) -> None:
        """Let waiting sources try again. If none does so for long the trouble is over."""
        if not self.accepting and not self._closed:
            self._set_timer(self._scheduling.call_later(CALM_SECONDS, self._works))
            self._gate.release(1, 0)

    def _works(self) -> None:
        if self.fault is not None:
            self._log.info("store can page out again", after=self.fault)
            self.fault = None
            self._retry_seconds = RETRY_MIN_SECONDS
            self._open()
            self._set_timer(None)

    def _set_timer(self, timer: TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    # ------------------------------------------------------------------ records

    def put(
        self, batch: StoreBatch, queue_id: int, sequences: SequenceOf[int], messages: SequenceOf[Message]
    ) -> ChunkRecord:
        """Write the elements as pages with `batch`, until they are dropped."""
        first = sequences[0]
        key = keys.paged_key(queue_id, first)
        batch.paged_count += len(messages)
        if self.files is None:
            value = encode_chunk(first, sequences, messages, self._heads)
            batch.add(put(key, value), len(value))
            return ChunkRecord(key)
        parts, size_bytes = encode_parts(first, sequences, messages, self._heads)
        page = self.files.reserve(queue_id, size_bytes)
        batch.pages.append((page, parts))
        batch.pages_bytes += size_bytes
        return ChunkRecord(key, page)

    def drop(self, batch: StoreBatch, record: ChunkRecord) -> None:
        """Delete a record that is needed no more."""
        if record.page is None:
            batch.add(delete(record.key), 0)
        else:
            self._release_page(record.page)

    def forget(self, records: Iterable[ChunkRecord | None]) -> None:
        """Release the pages of `records`: they were read, or their queue is deleted, and with it its records in the
        engine.
        """
        for record in records:
            if record is not None and record.page is not None:
                self._release_page(record.page)

    def tried(self, batch: StoreBatch) -> None:
        """Process the result of writing the pages of a batch: blocks without room are refused, and no longer wait for
        it.
        """
        error, batch.pages_error = batch.pages_error, None
        if error is None or self.files is None:
            return
        self.files.withdraw(error.pages)
        missing = set(error.pages)
        batch.pages = [each for each in batch.pages if each[0] not in missing]
        for page_out in batch.page_outs:
            if page_out.record is not None and page_out.record.page in missing:
                page_out.is_refused = True
                batch.paged_count -= page_out.count
        self._shut(error)
        for page in error.pages:
            self._release_page(page)

    def written(self, batch: StoreBatch) -> None:
        """Note that the remaining pages of this batch are written."""
        if batch.pages and not any(page_out.is_refused for page_out in batch.page_outs):
            self._works()
        for page, _parts in batch.pages:
            self._release_page(page)

    def submit(self, batch: StoreBatch, done: Callable[[EngineError | None], None]) -> None:
        """Have the batch written by the worker, which calls `done`; the result of its pages is processed by `tried`."""
        if batch.pages:
            self._worker.run(partial(self.write, batch), done)
        else:
            self._worker.write(batch.changes, sync=batch.sync, done=done)

    def write(self, batch: StoreBatch, engine: Engine) -> None:
        """Write the pages of this batch, then its other records, even if the pages failed. Blocks. Raises
        EngineError.
        """
        assert self.files is not None, "or there would be no pages"
        try:
            self.files.write(batch.pages)
        except PagesError as error:
            batch.pages_error = error
        if batch.changes or batch.sync:
            engine.write(batch.changes, sync=batch.sync)

    def hold(self, records: Iterable[ChunkRecord]) -> None:
        """Keep these records until they are read."""
        for record in records:
            if record.page is not None and self.files is not None:
                self.files.hold(record.page)

    def read(self, record: ChunkRecord, engine: Engine) -> bytes | None:
        """Return the bytes of a record; None if the record is gone. Blocks. Raises EngineError."""
        if record.page is None or self.files is None:
            return engine.get(record.key)
        return self.files.read(record.page)

    def _remove(self, remove: Callable[[], int]) -> None:
        """Run `remove` in the reader's thread: the writer is the busier one."""
        self._worker.read(lambda _engine: remove(), self._removed)

    def _removed(self, result: int | EngineError) -> None:
        if isinstance(result, EngineError):
            self._log.error("cannot remove a file", error=str(result), effect="it stays until the next start")
        elif result:  # a segment without pages made no room
            self._open()

    def _release_page(self, page: Page) -> None:
        assert self.files is not None, "or there would be no pages"
        self.files.release(page)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, beside the engine."""
        return 0 if self.files is None else self.files.size_bytes
