"""Folder of persistent data of a broker: opened before all other parts, closed after them.

Blocking work (opening LevelDB, reading the data of an earlier run) is done in a thread, so that an embedding program
stays responsive and progress can be reported.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from sluiceway.config import Config
from sluiceway.extras import needs
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.durables import Durable
from sluiceway.queues.names import parse, split_part
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shard_hash import first_number, shard_of
from sluiceway.store.directory import Directory, DirectoryError, open_directory, told_of
from sluiceway.store.engine import Change, Engine, EngineError
from sluiceway.store.io_threads import Worker
from sluiceway.store.keys import FORMAT_VERSION_MIN
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.pages import clear as clear_pages
from sluiceway.store.recovery import Recovered, closing_records, opening_records, recover
from sluiceway.store.scratch import Scratch
from sluiceway.store.storequeue import NUMBERS_AHEAD

PROGRESS_SECONDS: Final = 1.0
"""Time between two lines of progress."""

BUFFERS_BYTES: Final = 32 << 20
"""Size of the write buffers of all shards together; each may take it twice for a moment."""
BUFFER_BYTES_MIN: Final = 1 << 20

RESTORED_PER_STEP: Final = 32
"""Queues of an earlier run that are made in one go: some 3 ms."""

SCRATCH: Final = "scratch"
"""Folder in the data folder of what a broker with a database keeps on this machine."""

OnProgress = Callable[[int | None], None]
"""Callback with the number of stored messages found so far; None: the reading is over."""

log = get_logger("sluiceway.store")


@attrs.frozen
class SharedShard:
    """Place of a shard in a database."""

    url: str = attrs.field(repr=False)
    """URL of the database; may have a password."""
    broker_name: str
    """Name of the broker, for people who look at the database's sessions."""
    number: int = 0
    """Number of the shard."""
    epoch: int | None = None
    """Epoch of this owner, as agreed with other hubs. None: there are none."""


@attrs.define
class OpenDataFolder:
    """An open store."""

    engine: Engine
    recovered: Recovered
    token: bytes
    """First part of every message-id."""
    directory: Directory | None
    """Folder of LevelDB. None: the store has none."""
    scratch: Scratch | None = None
    """Local folder beside a database. None: there is no database."""

    @property
    def local(self) -> Directory | Scratch | None:
        """Folder on this machine. None: the store is in memory, and nothing blocks."""
        return self.directory or self.scratch

    @property
    def engine_name(self) -> str:
        """Name of the engine, as in the configuration."""
        if self.scratch is not None:
            return "postgresql"
        return "memory" if self.directory is None else "leveldb"

    async def write_last(self, worker: Worker, changes: list[Change], next_number: int) -> None:
        """Let the worker finish, write these changes, and record a clean end. Raises EngineError if that can't be
        written: then the next start takes this end for a crash.
        """

        def write() -> None:
            worker.close()
            self.engine.write([*changes, *closing_records(next_number)], sync=True)

        if self.local is None:
            write()  # nothing that blocks
        else:
            await trio.to_thread.run_sync(write)

    async def close(self) -> None:
        """Free the folder for others. Without `write_last`, the next start takes this end for a crash."""
        if self.local is None:
            self.abandon()
        else:
            await trio.to_thread.run_sync(self.abandon)

    def abandon(self) -> None:
        """The same at once, as far as the disk allows."""
        self.engine.close()
        if self.local is not None:
            self.local.close()


def engine_kind(config: Config, *, serving: bool) -> str:
    """Return the engine to use: `leveldb`, `postgresql`, `memory` or `none`."""
    kind = config.store.engine
    if kind == "auto":
        return "leveldb" if serving else "none"
    return kind


async def open_data_folder(
    folder: Path,
    kind: str,
    *,
    engine: Engine | None = None,
    shared: SharedShard | None = None,
    on_progress: OnProgress | None = None,
    shard: int = 0,
    shards_count: int = 1,
    token: bytes | None = None,
) -> OpenDataFolder | None:
    """Open the store of this kind, one for the disk in `folder`. None: there is none. `engine`: use this one, already
    open. `shared`: place in the database of the kind `postgresql`, with a scratch folder in `folder`. `on_progress` is
    called from another thread, in place of log lines. `shard`: which one of `shards_count` the store has, all of them
    with this `token` (None: that of the store, or a new one).

    Raises DirectoryError, EngineError, StoreFormatError and MissingExtraError, with nothing left open.
    """
    of = _Share(shard, shards_count, token)
    if engine is None:
        if kind == "none":
            return None
        if kind == "memory":
            engine = MemoryEngine()
    if engine is not None:
        return _read(engine, None, on_progress, of)
    if kind == "postgresql":
        assert shared is not None, "the caller says where"
        scratch = folder / SCRATCH if shards_count == 1 else folder / SCRATCH / f"{shard:04}"
        return await trio.to_thread.run_sync(partial(_open_shared, scratch, shared, on_progress, of))
    return await trio.to_thread.run_sync(partial(_open_folder, folder, on_progress, of))


def check_names(recovered: Recovered, shard: int, shards_count: int, folder: Path | None) -> None:
    """Check that what a store has belongs to its shard. Raises DirectoryError."""
    if shards_count == 1:
        return
    names = [split_part(name)[0] for name, _priority, _topic in recovered.queues]
    names += [record.destination for record in recovered.durables.values()]
    for name in names:
        if (other := shard_of(name, shards_count)) != shard:
            raise DirectoryError(
                f"{folder or 'the store'} has {name}, which belongs to shard {other} of {shards_count}, not to shard "
                f"{shard}: the folders of shards were swapped, or their number in `format` is not the one with which "
                "they were made. Bring both back as they were."
            )


async def restore_destinations(recovered: Recovered, registry: DestinationRegistry) -> None:
    """Make the destinations with messages of an earlier run, before clients connect. The admin port answers meanwhile,
    so there are checkpoints.
    """
    for place, (name_on_disk, priority, topic) in enumerate(list(recovered.queues)):
        if place % RESTORED_PER_STEP == 0:
            await trio.lowlevel.checkpoint()
        name, part = split_part(name_on_disk)
        destination = registry.get(parse(name), is_stored=True)
        if destination.policy.kind != registry.policy_for(destination.address).kind:
            log.warning(
                "stays a queue, though it is configured as a relay: messages of an earlier run are stored for it",
                destination=name,
                remedy="consume them; when it has been empty and idle for auto_delete_seconds it becomes a relay",
            )
        destination.stored_queue(priority, part, topic=topic).open_stored()
    for place, (durable_id, record) in enumerate(recovered.durables.items()):
        if place % RESTORED_PER_STEP == 0:
            await trio.lowlevel.checkpoint()
        durable = Durable(
            durable_id,
            record.client_id,
            record.name,
            record.destination,
            record.created_ms,
            record.last_seen_ms,
            selector=record.selector,
        )
        registry.restore_durable(durable, parse(record.destination), exactly=recovered.clean)


@attrs.frozen
class _Share:
    """Part of a broker's data that a store has."""

    shard: int
    shards_count: int
    token: bytes | None

    @property
    def buffer_bytes(self) -> int | None:
        """Size of the write buffer of LevelDB; None: the ordinary one."""
        return max(BUFFERS_BYTES // self.shards_count, BUFFER_BYTES_MIN) if self.shards_count > 1 else None


def _open_folder(folder: Path, on_progress: OnProgress | None, of: _Share) -> OpenDataFolder:
    directory = open_directory(folder, create=of.shards_count == 1)
    try:
        with told_of(directory.paged_path):
            clear_pages(directory.paged_path)
        engine, repaired = directory.open_engine(write_buffer_bytes=of.buffer_bytes, trouble=_cannot_give_back)
        if repaired is not None:
            log.warning("the store was damaged and has been repaired", report=str(repaired))
    except BaseException:
        directory.close()
        raise
    try:
        segments_count, given_back_bytes = engine.tidy()
        if given_back_bytes:
            log.info("space of unfinished writes reclaimed", segments=segments_count, bytes=given_back_bytes)
        if engine.useless_bytes:
            log.warning(
                "unreferenced values are kept in the files of values",
                bytes=engine.useless_bytes,
                because=engine.kept_because,
                remedy="copy the data folder before a later start gives it back; `sluiceway store check` says more",
            )
        opened = _read(engine, directory, on_progress, of)
        opened.recovered.may_miss_bodies |= repaired is not None
        return opened
    except BaseException:
        engine.close()
        directory.close()
        raise


def _open_shared(folder: Path, shared: SharedShard, on_progress: OnProgress | None, of: _Share) -> OpenDataFolder:
    with needs("postgresql", 'store.engine = "postgresql"'):
        from sluiceway.store.postgresql import PostgresqlEngine
    scratch = Scratch(folder)
    try:
        engine = PostgresqlEngine(shared.url, shard=shared.number, epoch=shared.epoch, name=shared.broker_name)
    except BaseException:
        scratch.close()
        raise
    for warning in engine.warnings:
        log.warning("the database does not keep what it confirms", found=warning)
    try:
        opened = _read(engine, None, on_progress, of, scratch)
    except BaseException:
        engine.close()
        scratch.close()
        raise
    log.info("shard claimed in the database", shard=shared.number, epoch=engine.epoch, database=engine.place)
    return opened


def _cannot_give_back(error: EngineError) -> None:
    log.error("cannot delete a file of values", error=str(error), effect="tried again with the next write")


def _read(
    engine: Engine,
    directory: Directory | None,
    on_progress: OnProgress | None,
    of: _Share,
    scratch: Scratch | None = None,
) -> OpenDataFolder:
    started_seconds = time.monotonic()
    told_seconds = started_seconds

    def progress(count: int) -> None:
        nonlocal told_seconds
        if on_progress is not None:
            on_progress(count)
        elif time.monotonic() - told_seconds > PROGRESS_SECONDS:
            told_seconds = time.monotonic()
            log.info("reading what was stored", messages=count)

    try:
        recovered = recover(engine, progress, HeaderCodec())
    finally:
        if on_progress is not None:
            on_progress(None)
    mending: list[Change] = []
    for fault in recovered.faults:
        place: object = None
        if (local := directory or scratch) is not None:
            try:
                place = local.attic_put(f"record-{fault.key.hex()}", fault.value)
            except DirectoryError as full:
                place = f"nowhere: {full}"
            else:
                mending += fault.changes if place is not None else ()
        log.error("corrupt record", error=fault.what, effect=fault.effect, copied_to=str(place))
    token = recovered.token or of.token or secrets.token_hex(4).encode()
    if of.token is not None and token != of.token:
        raise DirectoryError(
            f"{'the store' if directory is None else directory.path} is a shard of another broker: its message-ids "
            f"begin with {token.decode()}, those of this one with {of.token.decode()}. Bring back the right folder."
        )
    check_names(recovered, of.shard, of.shards_count, None if directory is None else directory.path)
    if recovered.next_number < (first := first_number(of.shard)):  # a new store, or one that has lost its numbers
        recovered.next_number += first - 1
    version = FORMAT_VERSION_MIN if directory is None else directory.format_version
    opening = opening_records(token, recovered.next_number + NUMBERS_AHEAD, version)
    engine.write([*mending, *recovered.tidying, *opening], sync=True)
    if recovered.queues or not recovered.clean:
        log.info(
            "store read",
            messages=recovered.live_count,
            queues=len(recovered.queues),
            closed_in_order=recovered.clean,
            seconds=round(time.monotonic() - started_seconds, 3),
        )
    return OpenDataFolder(engine, recovered, token, directory, scratch)
