"""The shards that this process has open, and the destinations in them, as one thing.

Destinations, logs and claims are in one table each, whatever their shard: wildcards, limits, permissions and views need
not know of shards. What differs by shard is the environment of a queue or log: its store, and the numbers of its
messages. The name decides (`sluiceway.queues.shard_hash`), once for each destination and never per message.

A broker has one shard, unless its data folder was made for several (`sluiceway cluster init`). Temporary destinations
belong to no shard, but to the process: with several shards they are in memory only.

    open      stores are open, and destinations of an earlier run are there; before the dispatcher runs
    recover   logs, claims and committed transactions resume; the dispatcher runs
    close     all is written, and the next start knows that all is well; every queue is idle
    abandon   files are closed as they are: the next start takes that for a crash

A step that fails is followed by `abandon`. `close` and `abandon` may be called again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from sluiceway import part_functions
from sluiceway.claims import CLAIM_LOG_PREFIX, Claims
from sluiceway.config import Config
from sluiceway.data_folder import restore_destinations
from sluiceway.durables import DurableRecords
from sluiceway.foreign_names import ForeignNames
from sluiceway.log_service import Handler, HasSubscriptions, Logs, handlers, open_logs
from sluiceway.open_parts import OpenParts
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.header_codec import rewrite
from sluiceway.protocols.stomp.staging import Bodies
from sluiceway.queues.dead_letters import Courier
from sluiceway.queues.destination import Destination
from sluiceway.queues.durables import DurableIds
from sluiceway.queues.environment import MessageNumbers, ObserverOf, QueueEnvironment
from sluiceway.queues.logs.producers import LogKeeper
from sluiceway.queues.logs.table import Cabinet, LogError, LogTable
from sluiceway.queues.names import DestinationName, parse, parse_composite
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry, ShardAwayError
from sluiceway.queues.shard_hash import SHARDS_MAX, first_number, shard_of, tag_for
from sluiceway.queues.storage import StoredWork
from sluiceway.shard import Location, Shard, ShardEnvironment
from sluiceway.sharded import Cabinets, ManyBodies, Metadata, Places, Together
from sluiceway.spool_recovery import SpoolRecovery
from sluiceway.store.directory import DirectoryError
from sluiceway.store.engine import Engine, EngineError, FencedError
from sluiceway.store.extents import ExtentCache
from sluiceway.store.io_threads import StoreThreads
from sluiceway.store.keys import META_TOKEN_KEY
from sluiceway.store.large import BodyFiles
from sluiceway.store.log_storage import LogDisk
from sluiceway.store.shard_folders import look_for_shards
from sluiceway.store.spool import StoreSpools
from sluiceway.store.storequeue import StoreQueue

log = get_logger("sluiceway.shards")

_OWN_RANGE_BITS: Final = 40
"""Bits of the message numbers of one process, beyond those of all shards: they begin anywhere in their range."""


def _own_numbers() -> MessageNumbers:
    """Return numbers for messages in no shard. Those of several processes are not likely to meet."""
    return MessageNumbers(first_number(SHARDS_MAX) + secrets.randbelow(1 << 17) * (1 << _OWN_RANGE_BITS))


class Shards:
    """All open shards of a process. See the module."""

    registry: DestinationRegistry
    """Destinations. There from `open` on."""

    def __init__(
        self,
        config: Config,
        location: Location,
        environment: ShardEnvironment,
        *,
        engines: Sequence[Engine] = (),
        opens: frozenset[int] | None = None,
        observe: Callable[[bytes], ObserverOf | None],
    ) -> None:
        """`engines`: open stores, one for each shard, in place of that of `location`; `opens`: numbers of the shards
        that `open` opens, because other hubs have the rest, None: all; `observe` gets the token, and returns who
        follows messages of the queues: called once, in `open`.
        """
        self._config = config
        self._location = location
        self._engines = engines
        self._opens = opens
        self._environment = environment
        self._observe = observe
        self._parts = OpenParts()
        self._durables: DurableRecords
        self._metadata: HasSubscriptions
        self._logs: Logs | None = None
        self._locations: dict[int, Location] = {}
        self._observer_of: ObserverOf | None = None
        self._left_seconds: dict[int, float] = {}
        """Clock readings at which shards were left."""
        self._restoring: Container[str] = ()
        """Logs of a shard that is being opened."""
        self._together = Together(lambda: self.stores)
        self._bodies = ManyBodies(self._open_bodies)
        self._has_registry = False
        self._is_inline = False
        """Whether stores work on the dispatch loop, without threads."""
        self.count = 1
        """Number of shards of the broker."""
        self.token = b""
        """First part of every message-id. There from `open` on."""
        self.take_numbers: Callable[[int], int] = MessageNumbers().take
        """Function that reserves numbers for messages of the broker itself."""
        self.open_shards: dict[int, Shard] = {}
        """Open shards by number."""
        self.claims: Claims | None = None
        """Portions of queues, for readers that read them again. None: not recovered yet, or closed."""
        self.courier: Courier | None = None
        """Way of dead letters to other hubs. Set before `open`; None: there are none."""
        self.is_guest: Callable[[DestinationName], bool] = _never
        """Tells whether this hub serves the subscribers of a topic itself while another one has its shard."""
        self._opening: set[int] = set()
        """Shards that are about to be opened: nothing of them is given to clients."""
        self.handlers: Mapping[str, Handler] = {}
        """Handlers of requests about logs and claims, by the name behind `/sluiceway/`."""

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Open the stores and make the destinations with messages. Raises the exceptions of the parts; then `abandon`
        is due.
        """
        self._parts.opened(self._close_destinations)  # last: they have what the stores' last batches say
        locations = await self._find_locations()
        self.count = len(locations)
        environment = self._environment
        if self.count > 1 and locations[0].engine_kind == "leveldb":
            threads = StoreThreads(environment.dispatcher.submit)
            self._parts.opened(threads.close, abandon=threads.close)
            environment = attrs.evolve(environment, threads=threads, elsewhere_bytes=self._elsewhere_bytes)
        if self._location.engine_kind == "postgresql" or self._location.all_in_engine:
            extents = ExtentCache(
                self._config.logs.extents_bytes_max, manager=environment.manager, clock=environment.clock
            )
            environment = attrs.evolve(environment, extents=extents)
        self._environment = environment
        self._locations = {location.shard: location for location in locations}
        self._is_inline = locations[0].engine is not None or locations[0].engine_kind in ("none", "memory")
        self._parts.opened(self._close_shards, abandon=self._abandon_shards)
        for location in locations:
            if self._opens is not None and location.shard not in self._opens:
                continue
            shard = self.open_shards[location.shard] = Shard(self._config, location, environment)
            await shard.open()
        first = next(iter(self.open_shards.values()), None)
        self.token = locations[0].token or secrets.token_hex(4).encode() if first is None else first.token
        self.take_numbers = _own_numbers().take if first is None or self.count > 1 else first.take_numbers
        self._make_registry()
        for number in self._locations.keys() - self.open_shards.keys():
            self.leave(number, "another hub has it open")
        for shard in self:
            if shard.recovered is not None:
                await restore_destinations(shard.recovered, self.registry)

    async def _find_locations(self) -> list[Location]:
        """Return where the shards are."""
        location, engines = self._location, self._engines
        if engines:
            token = secrets.token_hex(4).encode()
            return [self._in_memory(engine, shard, token) for shard, engine in enumerate(engines)]
        if location.engine_of is not None:
            return [attrs.evolve(location, shard=shard) for shard in range(location.shards_count)]
        if location.engine_kind == "postgresql" and location.shared is not None and location.shards_count > 1:
            return [
                attrs.evolve(location, shard=shard, shared=attrs.evolve(location.shared, number=shard))
                for shard in range(location.shards_count)
            ]
        if location.engine is not None or location.engine_kind != "leveldb":
            return [location]
        folders = await trio.to_thread.run_sync(look_for_shards, location.folder)
        if folders is None:
            return [location]
        return [
            attrs.evolve(location, folder=folder, shard=shard, shards_count=folders.shards_count, token=folders.token)
            for shard, folder in enumerate(folders)
        ]

    def _in_memory(self, engine: Engine, shard: int, token: bytes) -> Location:
        def below(folder: Path | None) -> Path | None:
            if folder is None:
                return None
            (folder / f"{shard:04}").mkdir(exist_ok=True)
            return folder / f"{shard:04}"

        location = self._location
        return attrs.evolve(
            location,
            engine=engine,
            large_folder=below(location.large_folder),
            journal_folder=below(location.journal_folder),
            shard=shard,
            shards_count=len(self._engines),
            token=engine.get(META_TOKEN_KEY) or self._token_of_all() or token,
        )

    def _token_of_all(self) -> bytes | None:
        return next((token for engine in self._engines if (token := engine.get(META_TOKEN_KEY))), None)

    async def recover(self) -> None:
        """Resume logs, claims and committed transactions of an earlier run. Raises what the parts raise; then `abandon`
        is due.
        """
        self.registry.start()
        await self._open_logs()
        for shard in self:
            if shard.spools is not None and shard.spools.left:
                await self._resume_transactions(shard.spools)

    async def _resume_transactions(self, spools: StoreSpools) -> None:
        await SpoolRecovery(spools, self.registry, self.logs, clock=self._environment.clock).run()

    async def close(self) -> None:
        """Write the rest and the leases of consumers, and close. Raises EngineError if that can't be written; then
        `abandon` is due. A second call waits for the first.
        """
        await self._parts.close()

    def abandon(self) -> None:
        """Close the files without saying that all is well: the next start takes that for a crash."""
        self._parts.abandon()

    async def _close_shards(self) -> None:
        """Close all of them, also behind one that can't be closed. Raises the first error."""
        errors: list[Exception] = []
        for shard in self:
            try:
                await shard.close()
            except FencedError as error:
                shard.abandon()
                if self._environment.fenced is None:
                    errors.append(error)
                else:  # its next owner has all that was confirmed
                    log.warning(
                        "a shard had another owner when the broker stopped", shard=shard.number, error=str(error)
                    )
            except (EngineError, DirectoryError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _abandon_shards(self) -> None:
        for shard in self:
            shard.abandon()

    # ------------------------------------------------------------------ one shard, while others serve

    def leave(self, number: int, why: str) -> None:
        """Give no destination of an open shard to clients any more: it is about to be closed."""
        self.registry.away[number] = f"shard {number} is not open here: {why}"
        self._left_seconds[number] = self._environment.clock()
        for destination in self.destinations_of(number):
            destination.pause()

    def state_of(self, number: int) -> dict[str, object]:
        """Return what people are told of a shard: its state, and since when and why it is not open."""
        store = self.open_shards[number].store if number in self.open_shards else None
        facts: dict[str, object] = {
            "state": "away" if number in self.registry.away else "open" if store is None else store.state,
            "size_bytes": 0 if store is None else store.size_bytes,
        }
        if number in self.registry.away:
            facts["why"] = self.registry.away[number]
            facts["away_seconds"] = self._environment.clock() - self._left_seconds[number]
        return facts

    def destinations_of(self, number: int) -> list[Destination]:
        """Return the destinations of an open shard."""
        return [each for each in self.registry.destinations.values() if each.environment.shard == number]

    def deliver_again(self) -> None:
        """Have all queues look whether they may deliver: `ShardEnvironment.may_deliver` says so now."""
        for destination in self.registry.destinations.values():
            for queue in destination.queues:
                queue.context.request_dispatch()

    async def close_shard(self, number: int) -> None:
        """Close a shard behind `leave`, whose destinations have no consumers but those of wildcards. What its queues
        hold is written. Raises EngineError if it can't be: then it is as after a crash.
        """
        shard, logs = self.open_shards[number], self._logs
        assert logs is not None and self.claims is not None, "the broker serves"
        try:
            for each in [each for each in logs.table if each.environment.shard == number]:
                self.claims.leave(each)
            self.claims.sinks.leave(lambda query: self.shard_of(query) == number)
            await logs.leave(number, inline=shard.is_inline)
            await shard.close()
        except BaseException:
            shard.abandon()
            raise
        finally:
            self.registry.leave(number, self.registry.away[number])
            del self.open_shards[number]

    async def open_shard(self, number: int, epoch: int | None = None) -> None:
        """Open a shard that was closed: its destinations are those that are stored. `epoch`: that of this owner, which
        a database checks with each write; None: no other hub can have the shard. Raises the exceptions of the parts,
        with nothing left open.
        """
        location = self._locations[number]
        if location.engine_of is not None and epoch is not None:
            location = attrs.evolve(location, engine=location.engine_of(number, epoch))
        elif location.shared is not None and epoch is not None:
            location = attrs.evolve(location, shared=attrs.evolve(location.shared, epoch=epoch))
        shard, logs = Shard(self._config, location, self._environment), self._logs
        assert logs is not None and self.claims is not None, "the broker serves"
        try:
            await shard.open()
            shard.queues = self.registry.completed(self._queue_environment(shard, self._observer_of))
            self.open_shards[number] = shard
            if shard.recovered is not None:
                await restore_destinations(shard.recovered, self.registry)
            part = logs.parts[number] = await shard.open_logs()
            self._restoring = part.opened
            logs.table.restore(part.opened, part.groups, part.producers)
            self._restoring = ()
            await self.claims.restore_groups(list(part.opened))
            await self.claims.restore_sinks(shard.managers)
            if shard.spools is not None and shard.spools.left:
                await self._resume_transactions(shard.spools)
        except BaseException:
            if number in self.open_shards:
                self.registry.leave(number, "it could not be opened")
                del self.open_shards[number]
            shard.abandon()
            raise
        del self.registry.away[number]

    # ------------------------------------------------------------------ use

    def __iter__(self) -> Iterator[Shard]:
        return iter(tuple(self.open_shards.values()))

    def shard_of(self, name: str) -> int:
        """Return the shard of a canonical name."""
        return shard_of(name, self.count)

    def of(self, name: str) -> Shard:
        """Return the open shard of a canonical name. Raises ShardAwayError if it is closed."""
        number = shard_of(name, self.count)
        shard = self.open_shards.get(number)
        if shard is None:
            raise ShardAwayError(f"{name} can't be used: {self.registry.away[number]}")
        return shard

    def environment_of(self, address: DestinationName) -> QueueEnvironment:
        """Return the environment of a queue or topic. Raises ShardAwayError if it needs a shard that is closed."""
        if address.temporary_global:
            return self._own
        number = shard_of(address.canonical, self.count)
        if number not in self.open_shards and number not in self._opening and self.is_guest(address):
            return attrs.evolve(self._own, shard=number, is_guest=True)
        return self.of(address.canonical).queues

    def is_usable(self, name: str) -> bool:
        """Return whether topics of a name's shard can be made: the shard is not being opened or closed."""
        number = shard_of(name, self.count)
        return number not in self._opening and (number not in self.open_shards or number not in self.registry.away)

    def leave_guests(self, number: int) -> bool:
        """Give no topic of a closed shard to clients any more: the shard is about to be opened. Returns whether there
        are some, for `forget_guests`.
        """
        self._opening.add(number)
        return bool(self.destinations_of(number))

    def forget_guests(self, number: int) -> None:
        """Forget the topics of a shard that is about to be opened; their consumers have left."""
        for destination in self.destinations_of(number):
            self.registry.delete(destination, "this hub opens its shard", keep=True)

    def guests_may_come(self, number: int) -> None:
        """Give topics of a shard to clients again: it is open, or could not be opened."""
        self._opening.discard(number)

    @property
    def logs(self) -> LogTable | None:
        """Logs. None: not recovered yet, or closed."""
        return None if self._logs is None else self._logs.table

    @property
    def stores(self) -> list[StoreQueue]:
        """Stores of persistent messages; none: no message outlives the broker."""
        return [shard.store for shard in self.open_shards.values() if shard.store is not None]

    @property
    def store(self) -> StoreQueue | None:
        """Store of the first open shard; None: no message outlives the broker."""
        return next(iter(self.stores), None)

    @property
    def stored_work(self) -> StoredWork | None:
        """All stores, to ask and to wait for; None: no message outlives the broker."""
        return self.store if self.count == 1 or self.store is None else self._together

    def numbered(self, shard: int | None) -> Shard | None:
        """Return the open shard of this number; the only one, if the broker has one."""
        if self.count == 1:
            return next(iter(self.open_shards.values()), None)
        return None if shard is None else self.open_shards.get(shard)

    @property
    def spools(self) -> StoreSpools | None:
        """Transactions of the first open shard; None: there is no store."""
        return next((shard.spools for shard in self.open_shards.values()), None)

    @property
    def bodies(self) -> BodyFiles | None:
        """Store of large bodies of the first open shard; None: every body is held in memory."""
        return next((shard.bodies for shard in self.open_shards.values()), None)

    @property
    def bodies_to_read(self) -> Bodies | None:
        """Large bodies of all shards; None: every body is held in memory."""
        if self.count == 1:
            return self.bodies
        keeps_files = self._location.large_folder is not None or not self._is_inline
        return self._bodies if keeps_files else None

    def _open_bodies(self) -> list[BodyFiles]:
        return [shard.bodies for shard in self.open_shards.values() if shard.bodies is not None]

    def bodies_for(self, destination: str) -> tuple[BodyFiles, StoreQueue | None]:
        """Return the place of the large body of a SEND to this destination, or composite, and the store that knows
        whether the disk has room. Raises ValueError if it would have to be in several shards.
        """
        shard = next(iter(self.open_shards.values()), None)
        if self.count > 1:
            named = [address for address in parse_composite(destination) if not address.is_temporary]
            numbers = {self.shard_of(address.canonical) for address in named}
            if len(numbers) > 1:
                raise ValueError(f"{destination[:200]} is in several shards, and a large body can be in one only")
            if numbers:
                number = numbers.pop()
                if number in self.registry.away:
                    raise ValueError(self.registry.away[number])
                shard = self.open_shards[number]
        if shard is None:
            raise ValueError("no shard is open here now, and a large body has no other place")
        assert shard.bodies is not None, "sessions were told so"
        return shard.bodies, shard.store

    @property
    def extents(self) -> ExtentCache | None:
        """Records of logs in databases that are in memory. None: logs are in files."""
        return self._environment.extents

    @property
    def next_number(self) -> int:
        """Number that grows by one with each message."""
        return sum([shard.next_number for shard in self.open_shards.values()])

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
        folders = [shard.folder for shard in self.open_shards.values()]
        if not folders:
            has_folder = self._location.engine is None and not self._engines and self._location.engine_kind == "leveldb"
            return self._location.folder if has_folder and self._locations else None
        return None if folders[0] is None else self._location.folder

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
        self.foreign_names.configured = config.own_segments
        self._limit_retained(config)
        self._config = config

    # ------------------------------------------------------------------ part by part

    def _elsewhere_bytes(self, shard: int) -> int:
        return sum([each.store.size_bytes for each in self if each.store is not None and each.number != shard])

    def _queue_environment(self, shard: Shard, observer_of: ObserverOf | None) -> QueueEnvironment:
        environment = self._environment_of_none(observer_of)
        return attrs.evolve(
            environment,
            store=shard.store,
            take_numbers=shard.take_numbers,
            shard=shard.number,
            may_deliver=self._environment.may_deliver,
        )

    def _environment_of_none(self, observer_of: ObserverOf | None) -> QueueEnvironment:
        """Return the environment of queues in no shard."""
        shared = self._environment
        return QueueEnvironment(
            manager=shared.manager,
            scheduling=shared.dispatcher,
            clock=shared.clock,
            now_ms=shared.now_ms,
            resume=shared.dispatcher.executor(label="resuming sources"),
            store=None,
            contain=shared.contain,
            part_function=part_functions.carefully,
            observer_of=observer_of,
            take_numbers=self.take_numbers,
            shard=None,
        )

    def _make_registry(self) -> None:
        config, several = self._config, self.count > 1
        observer_of = self._observer_of = self._observe(self.token)
        shards = list(self)
        environments = [self._queue_environment(shard, observer_of) for shard in shards]
        if several or not shards:
            managers_of = lambda name: self.of(name).managers  # noqa: E731
            self._metadata = Metadata(managers_of, lambda: [shard.managers for shard in self])
        else:
            self._metadata = shards[0].managers
        self._durables = DurableRecords(self._metadata)
        common = self._environment_of_none(observer_of) if several or not shards else environments[0]
        self.registry = DestinationRegistry(
            common,
            config.policy_for,
            destinations_max=config.broker.destinations_max,
            attachments_max=config.broker.attachments_max,
            selectors_bytes_max=config.broker.selectors_bytes_max,
            durables_max=config.broker.durables_max,
            durable_keeper=self._durables,
            durable_ids=DurableIds(self.count, self.shard_of) if several else None,
            rewrite=rewrite,
            dead_letter_queues=config.dead_letter_queues,
            own_segments=config.own_segments,
            environment_of=self.environment_of if several else None,
            courier=self.courier,
            host_limits=config.host_limits,
        )
        self._limit_retained(config)
        self.foreign_names = ForeignNames(config.own_segments)
        self.registry.on_make = self.foreign_names.note
        self._has_registry = True
        self.registry.selectors.prepare = self._environment.prepare_selectors
        self._own = self.registry.environment
        for shard, environment in zip(shards, environments, strict=True):
            shard.queues = self.registry.completed(environment)
        self._parts.opened(self._durables.close, abandon=self._durables.close)

    def _limit_retained(self, config: Config) -> None:
        retained = self.registry.retained
        retained.count_max = config.broker.retained_count_max
        retained.bytes_max = config.broker.retained_bytes_max

    def _close_destinations(self) -> None:
        if self._has_registry:
            self.registry.close()

    @property
    def _keeps_logs(self) -> bool:
        """Whether logs of shards that are opened later outlive the process."""
        location = self._location
        return not self._is_inline or location.journal_folder is not None or location.all_in_engine

    async def _open_logs(self) -> None:
        """Open the logs of an earlier run, before clients connect."""
        config = self._config
        # Data in a temporary folder is soon written: no threads, which the clock of a test knows nothing of.
        inline = self._is_inline
        dispatcher, environment = self._environment.dispatcher, self.registry.environment
        disk = LogDisk.inline(dispatcher.executor(label="logs")) if inline else LogDisk.threads(dispatcher.submit)
        if (extents := self._environment.extents) is not None:
            disk.then = extents.settle_up
        parts = {shard.number: await shard.open_logs() for shard in self}
        several = self.count > 1
        cabinet: Cabinet = Cabinets(lambda name: parts[self.shard_of(name)].storage)
        keeper: LogKeeper = Places(lambda name: parts[self.shard_of(name)].keeper)
        if not several and parts:
            (part,) = parts.values()
            cabinet, keeper = part.storage, part.keeper
        is_temporary = not any(part.storage.keeps for part in parts.values()) if parts else not self._keeps_logs
        logs = self._logs = open_logs(
            config.logs,
            parts,
            cabinet=cabinet,
            keeper=keeper,
            environment=environment,
            environment_of=self._environment_of_log if several else None,
            disk=disk,
            policy_for=self._policy_of_temporary if is_temporary else self._policy_of_log,
        )

        async def close() -> None:
            assert self.claims is not None, "they were opened"
            self.claims.close()
            self._durables.close()
            await logs.close(inline=inline)
            self._logs = self.claims = None

        def abandon() -> None:
            logs.abandon()
            self._logs = self.claims = None

        self._parts.opened(close, abandon=abandon)
        self.claims = Claims(
            logs.table, self.registry, self._metadata, disk, environment, tag_of=self._tag_of if several else _no_tag
        )
        await self.claims.restore()
        self.handlers = {
            **{f"log/{name}": handler for name, handler in handlers(logs.table).items()},
            **self.claims.handlers,
        }

    def _environment_of_log(self, name: str) -> QueueEnvironment:
        """Raises LogError."""
        number = self.shard_of(name)
        if number in self.registry.away and name not in self._restoring:
            raise LogError(ShardAwayError.code, f"{name} can't be used: {self.registry.away[number]}")
        return self.open_shards[number].queues

    def _policy_of_log(self, name: str) -> QueuePolicy:
        return self._config.policy_for(parse(name))

    def _policy_of_temporary(self, name: str) -> QueuePolicy:
        """Nothing in a temporary folder is synced: RECEIPTs say so."""
        return attrs.evolve(self._policy_of_log(name), log_sync="none")

    def _tag_of(self, queue: str) -> str:
        return f"{tag_for(self.shard_of(queue), self.count)}."


def _no_tag(_queue: str) -> str:
    return ""


def _never(_address: DestinationName) -> bool:
    return False
