"""A shard: a share of all destinations, with the store that keeps what of them must outlive the process.

A shard is opened, recovered, closed and abandoned as one thing. What belongs to it are the data folder with its engine
and threads, large bodies, metadata and durable subscriptions, destinations with their queues, logs, claims, and the
numbers and the token that message-ids are made of. What shards of one process share is their `ShardEnvironment`. A
broker has one shard.

    open      what an earlier run left is read, and its destinations are there; before the dispatcher runs
    recover   logs, claims and committed transactions resume; the dispatcher runs
    close     all that is left is written, and the next start knows that all is well; every queue is idle
    abandon   files are closed as they are: the next start takes that for a crash

A step that fails is followed by `abandon`. `close` and `abandon` may be called again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from sluiceway.bodies import body_files, recover_bodies
from sluiceway.claims import CLAIM_LOG_PREFIX, Claims
from sluiceway.config import Config
from sluiceway.data_folder import OnProgress, OpenDataFolder, SharedShard, open_data_folder, restore_destinations
from sluiceway.dispatcher import Dispatcher
from sluiceway.durables import DurableRecords
from sluiceway.flow import FlowManager
from sluiceway.log_service import Handler, handlers, open_logs
from sluiceway.open_parts import OpenParts
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.header_codec import HeaderCodec, rewrite
from sluiceway.queues.environment import ObserverOf, QueueEnvironment
from sluiceway.queues.logs.table import LogTable
from sluiceway.queues.names import parse
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.storage import DISK, SHARED
from sluiceway.spool_recovery import SpoolRecovery
from sluiceway.store.bigarray import Files
from sluiceway.store.directory import LARGE, LOGS, Directory
from sluiceway.store.engine import Engine
from sluiceway.store.io_threads import InlineWorker, ThreadWorker, Worker
from sluiceway.store.large import BodyFiles
from sluiceway.store.log_storage import LogDisk
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.metadata import MetadataManagers, StoredMetadata
from sluiceway.store.spool import StoreSpools
from sluiceway.store.storequeue import StoreQueue

NO_LOGS: Final = (
    'logs are not kept with store.engine = "postgresql" yet, so this destination can\'t be made: they would be on the '
    "disk of this machine alone. Use a queue, or a broker with its own data folder"
)


@attrs.frozen
class Location:
    """Location of a shard's data."""

    engine_kind: str
    """`leveldb`, `postgresql`, `memory` or `none`."""
    folder: Path
    """Folder of LevelDB, large bodies and logs."""
    engine: Engine | None = None
    """A store that is open already, in place of `engine_kind`. Used without threads; the shard closes the engine."""
    shared: SharedShard | None = None
    """Place in the database, for `postgresql`."""
    large_folder: Path | None = None
    """Folder of large bodies, where `folder` is not used. None: every body is held in memory."""
    journal_folder: Path | None = None
    """Folder of logs, likewise. None: a temporary one."""
    journal_files: Files | None = None
    """Access to the files of logs. None: the ordinary one."""
    boot: str | None = None
    """Id of this run of the machine. None: that of the system."""
    on_reading: OnProgress | None = None
    """Callback with the progress of reading the store, in place of log lines."""


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


class Shard:
    """A store with its destinations. See the module."""

    registry: DestinationRegistry
    """Destinations. There from `open` on."""

    def __init__(
        self,
        config: Config,
        location: Location,
        environment: ShardEnvironment,
        *,
        observe: Callable[[bytes], ObserverOf | None],
    ) -> None:
        """`observe` gets the token, and returns who follows messages of the shard's queues; called once, in `open`."""
        self._config = config
        self._location = location
        self._environment = environment
        self._observe = observe
        self._parts = OpenParts()
        self._folder: OpenDataFolder | None = None
        self._managers: MetadataManagers
        self._durables: DurableRecords
        self.token = secrets.token_hex(4).encode()
        """First part of every message-id."""
        self.next_number = 1
        """Number of the next message."""
        self.bodies: BodyFiles | None = None
        """Store of large bodies. None: every body is held in memory."""
        self.store: StoreQueue | None = None
        """Store of persistent messages. None: no message outlives the broker."""
        self.spools: StoreSpools | None = None
        """Store of transactions that are too large for memory. None: there is no store."""
        self.logs: LogTable | None = None
        """Logs. None: not recovered yet, or closed."""
        self.claims: Claims | None = None
        """Portions of queues, for readers that read them again. None: as `logs`."""
        self.handlers: Mapping[str, Handler] = {}
        """Handlers of requests about logs and claims, by the name behind `/sluiceway/`."""

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the store and make the destinations with messages. Raises the exceptions of the parts; then `abandon` is
        due.
        """
        self._parts.opened(self._close_destinations)  # last: they have what the store's last batch says
        await self._open_folder()
        await self._open_bodies()
        self._open_store()
        self._open_metadata()
        self._make_registry()
        if self._folder is not None:
            await restore_destinations(self._folder.recovered, self.registry)

    async def recover(self) -> None:
        """Resume logs, claims and committed transactions of an earlier run. Raises what the parts raise; then `abandon`
        is due.
        """
        self.registry.start()
        await self._open_logs()
        if self.spools is not None and self.spools.left:
            await SpoolRecovery(self.spools, self.registry, clock=self._environment.clock).run()

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

    def origin_of(self, name: str) -> str | None:
        """Return the queue whose messages the log of this name holds. None: it is no log of claims; the name itself:
        its queue is not known.
        """
        if not name.startswith(CLAIM_LOG_PREFIX):
            return None
        group = None if self.claims is None else self.claims.groups.get(name)
        return name if group is None else group.state.queue

    @property
    def folder(self) -> Path | None:
        """Folder of persistent data. None: there is none."""
        return None if self._directory is None else self._directory.path

    def reconfigure(self, config: Config) -> None:
        """Put other policies and limits of destinations in force."""
        self.registry.replace_policies(
            config.policy_for,
            dead_letter_queues=config.dead_letter_queues,
            own_segments=config.own_segments,
            destinations_max=config.broker.destinations_max,
            attachments_max=config.broker.attachments_max,
            selectors_bytes_max=config.broker.selectors_bytes_max,
        )
        self._config = config

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
            self.bodies = body_files(
                location.large_folder, manager=shared.manager, clock=shared.clock, schedule=schedule
            )
            self._parts.opened(self._abandon_bodies, abandon=self._abandon_bodies)
            recover_bodies(self.bodies, recovered)
        elif directory is not None:
            marked = directory.marked(LARGE)
            self.bodies = body_files(
                marked.path, manager=shared.manager, clock=shared.clock, submit=shared.dispatcher.submit, marked=marked
            )
            self._parts.opened(self._close_bodies, abandon=self._abandon_bodies)
            await trio.to_thread.run_sync(recover_bodies, self.bodies, recovered, marked)

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
            self._managers = StoredMetadata(worker, contain=shared.contain)
        else:
            self._managers = StoredMetadata(self.store.worker, scheduling=shared.dispatcher, contain=shared.contain)
        self._durables = DurableRecords(self._managers)
        self._parts.opened(self._durables.close, abandon=self._durables.close)

    def _make_registry(self) -> None:
        config, shared = self._config, self._environment
        environment = QueueEnvironment(
            manager=shared.manager,
            scheduling=shared.dispatcher,
            clock=shared.clock,
            now_ms=shared.now_ms,
            resume=shared.dispatcher.executor(label="resuming sources"),
            store=self.store,
            contain=shared.contain,
            observer_of=self._observe(self.token),
        )
        self.registry = DestinationRegistry(
            environment,
            config.policy_for,
            destinations_max=config.broker.destinations_max,
            attachments_max=config.broker.attachments_max,
            selectors_bytes_max=config.broker.selectors_bytes_max,
            durables_max=config.broker.durables_max,
            durable_keeper=self._durables,
            rewrite=rewrite,
            take_numbers=self.take_numbers,
            dead_letter_queues=config.dead_letter_queues,
            own_segments=config.own_segments,
        )
        self.registry.selectors.prepare = shared.prepare_selectors

    def _close_destinations(self) -> None:
        self.registry.close()

    async def _open_logs(self) -> None:
        """Open the logs of an earlier run, before clients connect."""
        location, directory = self._location, self._directory
        # Data in a temporary folder is soon written: no threads, which the clock of a test knows nothing of.
        inline = self._folder is None or self._folder.local is None
        dispatcher, environment = self._environment.dispatcher, self.registry.environment
        disk = LogDisk.inline(dispatcher.executor(label="logs")) if inline else LogDisk.threads(dispatcher.submit)
        logs = await open_logs(
            self._config.logs,
            location.journal_folder if directory is None else directory.logs_path,
            marked=None if directory is None else directory.marked(LOGS),
            environment=environment,
            managers=self._managers,
            store=self.store,
            disk=disk,
            policy_for=lambda name: self._config.policy_for(parse(name)),
            files=location.journal_files,
            boot=location.boot,
            inline=inline,
            refusal="" if self._folder is None or self._folder.scratch is None else NO_LOGS,
        )

        async def close() -> None:
            assert self.claims is not None, "they were opened"
            self.claims.close()
            self._durables.close()
            await logs.close(inline=inline)
            self.logs = self.claims = None

        def abandon() -> None:
            logs.abandon()
            self.logs = self.claims = None

        self._parts.opened(close, abandon=abandon)
        self.logs = logs.table
        self.claims = Claims(self.logs, self.registry, self._managers, disk, environment)
        await self.claims.restore()
        self.handlers = {
            **{f"log/{name}": handler for name, handler in handlers(self.logs).items()},
            **self.claims.handlers,
        }
