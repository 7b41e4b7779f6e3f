"""A shard: the store of a share of all destinations, opened and closed as one thing.

What belongs to a shard is what must outlive the process: the data folder with its engine, large bodies, metadata and
durable subscriptions, the files of logs, and the numbers that message-ids are made of. Destinations and logs themselves
are in tables of the whole process (shards.py), so that wildcards, limits, permissions and views need not know of them;
each has the environment of its shard. What shards of one process share is their `ShardEnvironment`.

    open      what an earlier run left is read; before the dispatcher runs, or later
    open_logs likewise for logs; the dispatcher runs
    close     all that is left is written, and the next start knows that all is well; every queue is idle
    abandon   files are closed as they are: the next start takes that for a crash

A step that fails is followed by `abandon`. `close` and `abandon` may be called again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import trio

from sluiceway.bodies import body_files, recover_bodies
from sluiceway.config import Config
from sluiceway.data_folder import OnProgress, OpenDataFolder, SharedShard, open_data_folder
from sluiceway.dispatcher import Dispatcher
from sluiceway.flow import FlowManager
from sluiceway.log_service import LogCabinet, LogFiles, open_log_files
from sluiceway.open_parts import OpenParts
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.shard_hash import first_number
from sluiceway.queues.storage import DISK, SHARED
from sluiceway.store.bigarray import Files
from sluiceway.store.directory import LARGE, LOGS, Directory
from sluiceway.store.engine import Engine, FencedError, raise_it
from sluiceway.store.engine_bodies import EngineBodies, SharedBodies
from sluiceway.store.engine_logs import EngineLogs
from sluiceway.store.extents import ExtentCache
from sluiceway.store.io_threads import InlineWorker, StoreThreads, ThreadWorker, Worker
from sluiceway.store.large import BodyFiles, BodyShelf, FolderShelf
from sluiceway.store.log_storage import LogStorage
from sluiceway.store.marks import MarkedFolder
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.metadata import MetadataManagers, StoredMetadata
from sluiceway.store.recovery import Recovered
from sluiceway.store.spool import StoreSpools
from sluiceway.store.storequeue import StoreQueue

EngineOf = Callable[[int, int], Engine]
"""Opens the store of a shard (its number) for an owner (its epoch). Raises FencedError: there was a later owner; other
EngineErrors.
"""


@attrs.frozen
class Location:
    """Location of a shard's data."""

    engine_kind: str
    """`leveldb`, `postgresql`, `memory` or `none`."""
    folder: Path
    """Folder of LevelDB, large bodies and logs."""
    engine: Engine | None = None
    """A store that is open already, in place of `engine_kind`. Used without threads; the shard closes the engine."""
    engine_of: EngineOf | None = None
    """Function that opens `engine` anew for each owner."""
    shared: SharedShard | None = None
    """Place in the database, for `postgresql`."""
    large_folder: Path | None = None
    """Folder of large bodies, where `folder` is not used. None: every body is held in memory."""
    journal_folder: Path | None = None
    """Folder of logs, likewise. None: a temporary one."""
    journal_files: Files | None = None
    """Access to the files of logs. None: the ordinary one."""
    all_in_engine: bool = False
    """Whether an engine that is open already keeps logs and large bodies, too, as a database does."""
    boot: str | None = None
    """Id of this run of the machine. None: that of the system."""
    on_reading: OnProgress | None = None
    """Callback with the progress of reading the store, in place of log lines."""
    shard: int = 0
    """Number of the shard."""
    shards_count: int = 1
    """Number of shards of the broker."""
    token: bytes | None = None
    """First part of the message-ids of all shards. None: the store has it, or gets one."""


@attrs.frozen
class ShardEnvironment:
    """Common parts of the shards of one process."""

    dispatcher: Dispatcher
    manager: FlowManager
    clock: Callable[[], float]
    """Monotonic seconds."""
    now_ms: Callable[[], int]
    """Wall clock, milliseconds since the epoch."""
    contain: Callable[[Exception], None]
    """Callback with exceptions of one destination or connection."""
    prepare_selectors: Callable[[Callable[[], None]], None] | None = None
    """See `SelectorTable.prepare`."""
    threads: StoreThreads | None = None
    """Threads of all stores. None: a store has its own."""
    elsewhere_bytes: Callable[[int], int] = lambda _shard: 0
    """Function that returns the size of the stores of all other shards."""
    extents: ExtentCache | None = None
    """Extents of logs in databases that are in memory. None: logs are in files."""
    fenced: Callable[[int, FencedError], None] | None = None
    """Told that a shard has another owner, and is to be abandoned. None: then the broker ends."""
    may_deliver: Callable[[], bool] | None = None
    """Whether queues of shards may deliver at this moment. None: always."""


class Shard:
    """The store of a share of all destinations. See the module."""

    def __init__(self, config: Config, location: Location, environment: ShardEnvironment) -> None:
        self._config = config
        self._location = location
        self._environment = environment
        self._parts = OpenParts()
        self._folder: OpenDataFolder | None = None
        self.number = location.shard
        self.managers: MetadataManagers
        """Metadata. There from `open` on."""
        self.token = location.token if location.token is not None else secrets.token_hex(4).encode()
        """First part of every message-id."""
        self.next_number = first_number(self.number)
        """Number of the next message."""
        self.bodies: BodyFiles | None = None
        """Store of large bodies. None: every body is held in memory."""
        self.store: StoreQueue | None = None
        """Store of persistent messages. None: no message outlives the broker."""
        self.spools: StoreSpools | None = None
        """Store of transactions that are too large for memory. None: there is no store."""
        self.queues: QueueEnvironment
        """Environment of the queues of the shard. Set by the owner of the destinations."""
        self.log_files: LogFiles | None = None
        """Logs of the shard. None: not opened yet, or closed."""

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the store. Raises the exceptions of the parts; then `abandon` is due."""
        await self._open_folder()
        await self._open_bodies()
        self._open_store()
        self._open_metadata()

    async def open_logs(self) -> LogFiles:
        """Open the files of logs of an earlier run, before clients connect. Raises DiskError and MetadataError; then
        `abandon` is due.
        """
        files = self.log_files = await open_log_files(
            self._log_cabinet(),
            now_ms=self._environment.now_ms,
            managers=self.managers,
            store=self.store,
            inline=self.is_inline,
        )
        return files

    def _log_cabinet(self) -> LogCabinet:
        location, directory, config = self._location, self._directory, self._config.logs
        now_ms, extents = self._environment.now_ms, self._environment.extents
        if extents is not None and self._folder is not None:
            return EngineLogs(self._folder.engine, extents, now_ms=now_ms, batch_bytes_max=config.data_page_bytes)
        return LogStorage(
            location.journal_folder if directory is None else directory.logs_path,
            config,
            now_ms=now_ms,
            boot=location.boot,
            files=location.journal_files,
            marked=None if directory is None else directory.marked(LOGS),
        )

    async def close(self) -> None:
        """Write the rest and the leases of consumers, and close. Raises EngineError if that can't be written; then
        `abandon` is due. A second call waits for the first.
        """
        await self._parts.close()

    def abandon(self) -> None:
        """Close the files without saying that all is well: the next start takes that for a crash."""
        self._parts.abandon()

    # ------------------------------------------------------------------ use

    def take_numbers(self, count: int) -> int:
        """Reserve this many message numbers; returns the first."""
        number = self.next_number
        self.next_number = end = number + count
        if self.store is not None and end > self.store.numbers_enough_to:
            self.store.reserve_numbers(end)
        return number

    @property
    def recovered(self) -> Recovered | None:
        """State that an earlier run left. None: there is no store."""
        return None if self._folder is None else self._folder.recovered

    @property
    def is_inline(self) -> bool:
        """Whether the store works on the dispatch loop, without threads."""
        return self._folder is None or self._folder.local is None

    @property
    def folder(self) -> Path | None:
        """Folder of persistent data. None: there is none."""
        return None if self._directory is None else self._directory.path

    # ------------------------------------------------------------------ part by part

    @property
    def _directory(self) -> Directory | None:
        return None if self._folder is None else self._folder.directory

    async def _open_folder(self) -> None:
        location = self._location
        folder = self._folder = await open_data_folder(
            location.folder,
            location.engine_kind,
            engine=location.engine,
            shared=location.shared,
            on_progress=location.on_reading,
            shard=location.shard,
            shards_count=location.shards_count,
            token=location.token,
        )
        if folder is not None:
            self._parts.opened(self._close_folder, abandon=self._abandon_folder)
            self.token = folder.token
            self.next_number = folder.recovered.next_number

    async def _close_folder(self) -> None:
        assert self._folder is not None, "it was opened"
        await self._folder.close()
        self._folder = None

    def _abandon_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.abandon()

    async def _open_bodies(self) -> None:
        """Large bodies have a place where the store has a folder."""
        shared, location, directory = self._environment, self._location, self._directory
        recovered = None if self._folder is None else self._folder.recovered
        if location.large_folder is not None:
            schedule = shared.dispatcher.executor(label="large bodies")
            shelf: BodyShelf = FolderShelf(location.large_folder)
            if location.all_in_engine and self._folder is not None:
                place = EngineBodies(self._folder.engine, "the engine", patience_seconds=0)
                shelf = SharedBodies(place, shelf)
            self.bodies = body_files(shelf, manager=shared.manager, clock=shared.clock, schedule=schedule)
            self._parts.opened(self._abandon_bodies, abandon=self._abandon_bodies)
            recover_bodies(self.bodies, recovered)
        elif self._folder is not None and self._folder.local is not None:
            marked = None if directory is None else directory.marked(LARGE)
            self.bodies = body_files(
                self._body_shelf(marked),
                manager=shared.manager,
                clock=shared.clock,
                submit=shared.dispatcher.submit,
                runners=None if shared.threads is None else shared.threads.bodies(),
            )
            self._parts.opened(self._close_bodies, abandon=self._abandon_bodies)
            await trio.to_thread.run_sync(recover_bodies, self.bodies, recovered, marked)

    def _body_shelf(self, marked: MarkedFolder | None) -> BodyShelf:
        """Return where bodies are: in this folder, or (None) in the database."""
        if marked is not None:
            return FolderShelf(marked.path, before_writing=marked.before_writing)
        folder = self._folder
        assert folder is not None and folder.scratch is not None, "there is a database"
        return SharedBodies(EngineBodies(folder.engine, folder.engine_name), FolderShelf(folder.scratch.large_path))

    async def _close_bodies(self) -> None:
        assert self.bodies is not None, "they were opened"
        self.bodies.stop()
        await trio.to_thread.run_sync(self.bodies.join)
        self.bodies = None

    def _abandon_bodies(self) -> None:
        bodies, self.bodies = self.bodies, None
        if bodies is not None:
            bodies.stop()
            bodies.join()

    def _open_store(self) -> None:
        shared, folder = self._environment, self._folder
        if folder is None:
            return
        worker: Worker
        if folder.local is None:
            worker = InlineWorker(folder.engine, shared.dispatcher.executor(label="store"))
        elif shared.threads is not None:
            worker = shared.threads.worker(folder.engine, self.number)
        else:
            worker = ThreadWorker(folder.engine, shared.dispatcher.submit)

        def abandon() -> None:
            self.store = self.spools = None
            worker.close()

        self._parts.opened(self._close_store, abandon=abandon)
        store = self.store = StoreQueue(
            self._config.store,
            worker=worker,
            heads=HeaderCodec(shared.manager.heads_account),
            scheduling=shared.dispatcher,
            at_turn_end=shared.dispatcher.at_turn_end,
            clock=shared.clock,
            manager=shared.manager,
            log=get_logger("sluiceway.store"),
            folder=folder.local,
            recovered=folder.recovered,
            engine_name=folder.engine_name,
            durability=DISK if folder.scratch is None else SHARED,
            bodies=self.bodies,
            pages=None if folder.local is None else folder.local.paged_path,
            contain=shared.contain,
            name="store" if self._location.shards_count == 1 else f"store of shard {self.number}",
            elsewhere_bytes=partial(shared.elsewhere_bytes, self.number),
            fenced=raise_it if shared.fenced is None else partial(shared.fenced, self.number),
        )
        store.reserve_numbers(self.next_number)
        self.spools = StoreSpools(
            store,
            recovered=folder.recovered.transactions,
            next_transaction_id=folder.recovered.next_transaction_id,
            next_commit_number=folder.recovered.next_commit_number,
        )

    async def _close_store(self) -> None:
        """Write the rest, and the leases of consumers."""
        store, folder = self.store, self._folder
        assert store is not None and folder is not None, "they were opened"
        changes = store.last_batch()
        await folder.write_last(store.worker, changes, self.next_number)
        store.last_batch_is_written()
        store.close()
        self.store = self.spools = None

    def _open_metadata(self) -> None:
        """The managers are behind the store, if there is one: for durable subscriptions and groups of logs."""
        shared = self._environment
        if self.store is None:
            worker = InlineWorker(MemoryEngine(), shared.dispatcher.executor(label="metadata"))
            self.managers = StoredMetadata(worker, contain=shared.contain)
        else:
            self.managers = StoredMetadata(self.store.worker, scheduling=shared.dispatcher, contain=shared.contain)
