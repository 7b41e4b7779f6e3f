"""Where a broker keeps what must outlive it: opened before anything else, closed after everything else.

What blocks (opening LevelDB, reading what an earlier run left) is done in a thread, so that an embedding program stays
responsive and progress can be told meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from protocols.log import get_logger
from sluiceway.config import Config
from store.directory import Directory, open_directory
from store.engine import Engine
from store.memory import MemoryEngine
from store.recovery import Recovered, closing_records, opening_records, recover
from store.storequeue import NUMBERS_AHEAD

PROGRESS_SECONDS: Final = 1.0
"""Between two lines of progress."""

log = get_logger("sluiceway.store")


@attrs.define
class House:
    """An open store."""

    engine: Engine
    recovered: Recovered
    token: bytes
    """First part of every message-id."""
    directory: Directory | None
    """None: in memory."""

    async def close(self, next_number: int) -> None:
        """All is written: say so, and close. The folder is free for others then."""

        def close() -> None:
            try:
                self.engine.write(closing_records(next_number), sync=True)
            finally:
                self.abandon()

        await trio.to_thread.run_sync(close)

    def abandon(self) -> None:
        """Close without saying that all is well."""
        self.engine.close()
        if self.directory is not None:
            self.directory.close()


def engine_kind(config: Config, *, serving: bool) -> str:
    """Which engine is meant: `leveldb`, `memory` or `none`."""
    kind = config.store.engine
    if kind == "auto":
        return "leveldb" if serving else "none"
    return kind


async def open_house(
    config: Config, kind: str, *, engine: Engine | None = None, on_progress: Callable[[int], None] | None = None
) -> House | None:
    """Open the store of this configuration. None: there is none. `engine`: use this one, already open.

    Raises DirectoryError, EngineError and StoreFormatError, with nothing left open.
    """
    if engine is None:
        if kind == "none":
            return None
        if kind == "memory":
            engine = MemoryEngine()
    if engine is not None:
        return _read(engine, None, on_progress)
    return await trio.to_thread.run_sync(partial(_open_folder, config, on_progress))


def _open_folder(config: Config, on_progress: Callable[[int], None] | None) -> House:
    directory = open_directory(config.broker.data_dir)
    try:
        engine, repaired = directory.open_engine()
        if repaired is not None:
            log.warning("the store was damaged and has been repaired", report=str(repaired))
    except BaseException:
        directory.close()
        raise
    try:
        return _read(engine, directory, on_progress)
    except BaseException:
        engine.close()
        directory.close()
        raise


def _read(engine: Engine, directory: Directory | None, on_progress: Callable[[int], None] | None) -> House:
    started_seconds = time.monotonic()
    told_seconds = started_seconds

    def progress(count: int) -> None:
        nonlocal told_seconds
        if on_progress is not None:
            on_progress(count)
        if time.monotonic() - told_seconds > PROGRESS_SECONDS:
            told_seconds = time.monotonic()
            log.info("reading what was stored", messages=count)

    recovered = recover(engine, progress)
    token = recovered.token if recovered.token is not None else secrets.token_hex(4).encode()
    engine.write(opening_records(token, recovered.next_number + NUMBERS_AHEAD), sync=True)
    if recovered.queues or not recovered.clean:
        log.info(
            "store read",
            messages=recovered.live_count,
            queues=len(recovered.queues),
            closed_in_order=recovered.clean,
            seconds=round(time.monotonic() - started_seconds, 3),
        )
    return House(engine, recovered, token, directory)
