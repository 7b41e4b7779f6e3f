"""Where blocks lie that were only paged out: in files (pages.py), or, in a store without a folder, with its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from queues.message import Message
from store import keys
from store.batch import Batch
from store.chunks import HeadCodec, encode_chunk, encode_parts
from store.engine import Engine, EngineError, delete, put
from store.pages import Page, PageFiles
from store.worker import Worker


@attrs.frozen
class Record:
    """A chunk of a block: where it lies, and what it is called."""

    key: bytes
    page: Page | None = None
    """None: the engine has it."""


class PagedBlocks:
    """Of one store."""

    def __init__(self, heads: HeadCodec, folder: Path | None, worker: Worker, tell: Callable[..., Any]) -> None:
        """`folder`: for files, empty; None: the engine takes them. `tell` is told what is wrong."""
        self._heads = heads
        self._worker = worker
        self._tell = tell
        self.files = None if folder is None else PageFiles(folder, remove_soon=self._remove)

    def put(self, batch: Batch, queue_id: int, sequences: SequenceOf[int], messages: SequenceOf[Message]) -> Record:
        """Write these with this batch, until they are dropped."""
        first = sequences[0]
        key = keys.paged_key(queue_id, first)
        batch.paged_count += len(messages)
        if self.files is None:
            value = encode_chunk(first, sequences, messages, self._heads)
            batch.add(put(key, value), len(value))
            return Record(key)
        parts, size_bytes = encode_parts(first, sequences, messages, self._heads)
        page = self.files.reserve(queue_id, size_bytes)
        batch.pages.append((page, parts))
        batch.pages_bytes += size_bytes
        return Record(key, page)

    def drop(self, batch: Batch, record: Record) -> None:
        """Nobody needs it any more."""
        if record.page is None:
            batch.add(delete(record.key), 0)
        else:
            self._let_go(record.page)

    def forget(self, records: Iterable[Record | None]) -> None:
        """Their queue is deleted, and with it what the engine has; or they were read."""
        for record in records:
            if record is not None and record.page is not None:
                self._let_go(record.page)

    def written(self, batch: Batch) -> None:
        """All of it is in its place."""
        for page, _parts in batch.pages:
            self._let_go(page)

    def submit(self, batch: Batch, done: Callable[[EngineError | None], None]) -> None:
        """Have this written by the worker, who calls `done`."""
        if batch.pages:
            self._worker.run(partial(self.write, batch), done)
        else:
            self._worker.write(batch.changes, sync=batch.sync, done=done)

    def write(self, batch: Batch, engine: Engine) -> None:
        """Write the pages of this batch, and then the rest. Blocks. Raises EngineError."""
        assert self.files is not None, "or there would be no pages"
        self.files.write(batch.pages)
        if batch.changes or batch.sync:
            engine.write(batch.changes, sync=batch.sync)

    def hold(self, records: Iterable[Record]) -> None:
        """They are going to be read."""
        for record in records:
            if record.page is not None and self.files is not None:
                self.files.hold(record.page)

    def read(self, record: Record, engine: Engine) -> bytes | None:
        """Its bytes; None: there is no such record any more. Blocks. Raises EngineError."""
        if record.page is None or self.files is None:
            return engine.get(record.key)
        return self.files.read(record.page)

    def _remove(self, remove: Callable[[], None]) -> None:
        """In the reader's thread: the writer has enough to do."""
        self._worker.read(lambda _engine: remove(), self._removed)

    def _removed(self, error: EngineError | None) -> None:
        if error is not None:
            self._tell("cannot remove a file", error=str(error), effect="it stays until the next start")

    def _let_go(self, page: Page) -> None:
        assert self.files is not None, "or there would be no pages"
        self.files.let_go(page)

    @property
    def size_bytes(self) -> int:
        """On disk, beside the engine."""
        return 0 if self.files is None else self.files.size_bytes
