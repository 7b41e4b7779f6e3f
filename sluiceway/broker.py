"""The broker: dispatcher, flow registry, destinations and listeners put together, started and stopped in order.

    async with Broker(config) as broker:          # inside trio
        print(broker.urls)

Start: dispatcher, then listeners (all bound before the first one accepts), so that a client that gets in is served.
Stop: no new connections; each connection gets what was written for it and a last ERROR that says why; whoever is not
done after `shutdown_seconds` is cut; then destinations and dispatcher go.

`Broker` is also the `Hub` of STOMP sessions. The page of statistics is made in `sluiceway.report`.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from dispatcher import Dispatcher
from flow import FlowManager
from protocols.connection import Connection
from protocols.listener import Listener, ListenError, bind
from protocols.log import get_logger
from protocols.stomp.errors import ProtocolError
from protocols.stomp.hub import LoginRefusedError
from protocols.stomp.left_behind import LeftBehind
from protocols.stomp.limits import StompLimits
from protocols.stomp.rewriting import rewrite
from protocols.stomp.stored import HeadBlocks
from protocols.streams import ByteStream, MemoryStream, memory_pair
from queues import DestinationRegistry, Durable, parse
from queues.environment import QueueEnvironment
from queues.logs.table import LogTable
from sluiceway.bodies import body_files, recover_bodies
from sluiceway.claims import Claims
from sluiceway.config import Config
from sluiceway.config import Listener as ListenerConfig
from sluiceway.durables import DurableRecords
from sluiceway.housing import House, OnProgress, engine_kind, open_house
from sluiceway.journal import Handler, Logs, answer, handlers, open_logs
from sluiceway.rationing import RationedAnswers
from sluiceway.report import stat_report
from sluiceway.resuming import Resumption
from sluiceway.tuning import tune_allocator, tune_garbage_collector
from sluiceway.version import VERSION
from store.bigarray import Files
from store.engine import Engine
from store.journal import JournalDisk
from store.large import BodyFiles
from store.metadata import MemoryMetadata, MetadataManagers, StoredMetadata
from store.spool import Spools
from store.storequeue import StoreQueue
from store.worker import InlineWorker, ThreadWorker, Worker

__all__ = ["Broker", "ListenError", "serve"]

log = get_logger("sluiceway.broker")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Broker:
    """A broker inside a trio program. Enter it as an async context manager; inside, clients can connect to `urls`.

    `now_ms` is the wall clock that expiry dates are held against (milliseconds since the epoch); tests pass their own.
    Time otherwise is trio's, so the whole broker runs on a `MockClock`.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        now_ms: Callable[[], int] = _now_ms,
        engine: Engine | None = None,
        large_folder: Path | None = None,
        journal_folder: Path | None = None,
        journal_files: Files | None = None,
        boot: str | None = None,
        serving: bool = False,
        on_reading: OnProgress | None = None,
    ) -> None:
        """`engine`: a store that is open already, in place of the configured one; it is used inline, without threads,
        and closed at the end. `large_folder`: where large bodies go, likewise. `journal_folder`,
        `journal_files`, `boot`: where logs go, how their files are reached, and what names this run of the machine,
        likewise. `serving`: this process is all broker,
        so that `store.engine = "auto"` means LevelDB. `on_reading`: told how far the reading of the store is.
        """
        self.config = config if config is not None else Config()
        self.server_name = f"sluiceway/{VERSION}"
        self.message_token = secrets.token_hex(4).encode()
        self.store: StoreQueue | None = None
        self.spools: Spools | None = None
        self.bodies: BodyFiles | None = None
        self._large_folder = large_folder
        self.logs: LogTable | None = None
        self._logs: Logs | None = None
        self._durables: DurableRecords | None = None
        self._claims: Claims | None = None
        self._handlers: Mapping[str, Handler] = {}
        self._journal_folder = journal_folder
        self._journal_files = journal_files
        self._boot = boot
        self._logs_inline = True
        self._engine = engine
        self._serving = serving
        self._on_reading = on_reading
        self._house: House | None = None
        self._store_closing = trio.Lock()
        self.connections: dict[Connection, None] = {}
        self.listeners: list[Listener] = []
        self.now_ms = now_ms
        self._next_number = 1
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery | None = None
        self._stopping = False
        self._all_gone = trio.Event()

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Broker:
        config = self.config
        self.dispatcher = Dispatcher(config=config.dispatcher)
        self.scheduling = self.dispatcher
        # Not trio.current_time, which looks up the running loop at each reading: there are a dozen to a message.
        self.clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.manager = FlowManager(self.clock)
        self.left_behind = LeftBehind(config.broker.left_behind_bytes_max, manager=self.manager, clock=self.clock)
        bound = await self._bind_all()  # first: a port that is taken is found out at once, and clients wait in line
        try:
            await self._make_ready()
        except BaseException:
            for _settings, listening in bound:
                listening.close()
            self.abandon_store()
            raise
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        await self._nursery.start(self.dispatcher.run)
        self.registry.start()
        try:
            await self._open_logs()
        except BaseException as error:
            for _settings, listening in bound:
                listening.close()
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        await self._resume_transactions(bound)
        for settings, listening in bound:
            listener = Listener(
                listening,
                connections_max=settings.connections_max,
                accepted=partial(self._accepted_by, len(self.listeners), settings),
            )
            self.listeners.append(listener)
            self._nursery.start_soon(listener.run)
            self._warn_if_open(settings.label, listener.address)
        log.info("broker ready", name=config.broker.name, version=VERSION, listeners=self.urls)
        return self

    async def _make_ready(self) -> None:
        """Open the store, and make the destinations that it has messages of."""
        config = self.config
        await self._open_store()
        self._open_metadata()
        self._environment = QueueEnvironment(
            manager=self.manager,
            scheduling=self.dispatcher,
            clock=self.clock,
            now_ms=self.now_ms,
            resume=self.dispatcher.executor(label="resuming sources"),
            store=self.store,
        )
        self.registry = DestinationRegistry(
            self._environment,
            config.policy_for,
            destinations_max=config.broker.destinations_max,
            durables_max=config.broker.durables_max,
            durable_keeper=self._durables,
            rewrite=rewrite,
            take_numbers=self.take_numbers,
            dead_letter_queues=config.dead_letter_queues,
        )
        self._started_seconds = self.clock()
        self._stat_answers = RationedAnswers(
            lambda: json.dumps(_finite(self.report(with_idle=False)), separators=(",", ":")).encode()
        )
        self._restore_destinations()

    async def _open_logs(self) -> None:
        """The logs of an earlier run are there before anybody connects. The dispatcher runs."""
        house = self._house
        directory = None if house is None else house.directory
        # What lies in a temporary folder is soon written: no threads, which the clock of a test knows nothing of.
        inline = self._logs_inline = directory is None
        if inline:
            disk = JournalDisk.inline(self.dispatcher.executor(label="logs"))
        else:
            disk = JournalDisk.threads(self.dispatcher.submit)
        self._logs = await open_logs(
            self.config.journal,
            self._journal_folder if directory is None else directory.logs_path,
            environment=self._environment,
            managers=self._managers,
            disk=disk,
            policy_for=lambda name: self.config.policy_for(parse(name)),
            files=self._journal_files,
            boot=self._boot,
            inline=inline,
        )
        self.logs = self._logs.table
        self._claims = Claims(self.logs, self.registry, self._managers, disk, self._environment)
        await self._claims.restore()
        self._handlers = {
            **{f"log/{name}": handler for name, handler in handlers(self.logs).items()},
            **self._claims.handlers,
        }

    async def _open_store(self) -> None:
        kind = engine_kind(self.config, serving=self._serving)
        house = self._house = await open_house(self.config, kind, engine=self._engine, on_progress=self._on_reading)
        await self._open_bodies(house)
        if house is None:
            return
        self.message_token = house.token
        self._next_number = house.recovered.next_number
        worker: Worker
        if house.directory is None:
            worker = InlineWorker(house.engine, self.dispatcher.executor(label="store"))
        else:
            worker = ThreadWorker(house.engine, self.dispatcher.submit)
        self.store = StoreQueue(
            self.config.store,
            worker=worker,
            heads=HeadBlocks(),
            scheduling=self.dispatcher,
            at_turn_end=self.dispatcher.at_turn_end,
            clock=self.clock,
            manager=self.manager,
            log=get_logger("sluiceway.store"),
            housing=house.directory,
            recovered=house.recovered,
            engine_name="memory" if house.directory is None else "leveldb",
            bodies=self.bodies,
        )
        self.store.reserve_numbers(self._next_number)
        self.spools = Spools(
            self.store,
            recovered=house.recovered.transactions,
            next_transaction_id=house.recovered.next_transaction_id,
            next_commit_number=house.recovered.next_commit_number,
        )

    def _open_metadata(self) -> None:
        """The managers are behind the store, if there is one: for durable subscriptions and groups of logs."""
        self._managers: MetadataManagers
        if self.store is None:
            self._managers = MemoryMetadata(self.dispatcher.executor(label="metadata"))
        else:
            self._managers = StoredMetadata(self.store.worker, scheduling=self.dispatcher)
        self._durables = DurableRecords(self._managers)

    async def _open_bodies(self, house: House | None) -> None:
        """Large bodies have a place where the store has a folder."""
        kept_counts = {} if house is None else house.recovered.body_counts
        if self._large_folder is not None:
            schedule = self.dispatcher.executor(label="large bodies")
            self.bodies = body_files(self._large_folder, manager=self.manager, clock=self.clock, schedule=schedule)
            recover_bodies(self.bodies, kept_counts)
        elif house is not None and house.directory is not None:
            folder = house.directory.large_path
            self.bodies = body_files(folder, manager=self.manager, clock=self.clock, submit=self.dispatcher.submit)
            await trio.to_thread.run_sync(recover_bodies, self.bodies, kept_counts)

    async def _resume_transactions(self, bound: list[tuple[ListenerConfig, socket.socket]]) -> None:
        """What was committed comes to its queues before anybody connects."""
        if self.spools is None or not self.spools.left:
            return
        try:
            await Resumption(self.spools, self.registry, clock=self.clock).run()
        except BaseException as error:
            for _settings, listening in bound:
                listening.close()
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    def _restore_destinations(self) -> None:
        """Destinations with messages of an earlier run are there before anybody connects."""
        if self._house is None:
            return
        for name, priority, topic in list(self._house.recovered.queues):
            self.registry.get(parse(name), is_stored=True).stored_queue(priority, topic=topic).open_stored()
        for durable_id, record in self._house.recovered.durables.items():
            durable = Durable(
                durable_id,
                record.client_id,
                record.name,
                record.destination,
                record.created_ms,
                record.last_seen_ms,
            )
            self.registry.restore_durable(durable, parse(record.destination), exactly=self._house.recovered.clean)

    def abandon_store(self) -> None:
        """Close the files without saying that all is well: the next start takes it for a crash."""
        if self._durables is not None:
            self._durables.close()
        if self._logs is not None:
            self._logs.abandon()
            self.logs = self._logs = None
        if self.bodies is not None:
            self.bodies.stop()
            self.bodies.join()
            self.bodies = None
        if self.store is not None:
            self.store.worker.close()
            self.store = self.spools = None
        if self._house is not None:
            self._house.abandon()
            self._house = None

    async def _close_logs(self) -> None:
        async with self._store_closing:
            logs = self._logs
            if logs is not None:
                if self._claims is not None:
                    self._claims.close()
                    self._claims = None
                if self._durables is not None:
                    self._durables.close()
                await logs.close(inline=self._logs_inline)
                self.logs = self._logs = None

    async def _close_store(self) -> None:
        """Write what is left, and what consumers have seen; all queues are idle."""
        store, house = self.store, self._house
        if store is None or house is None:
            return
        async with self._store_closing:  # a second `stop` waits for the first
            if self._house is house:
                changes = store.last_batch()
                await house.close(store.worker, changes, self._next_number)
                store.last_batch_is_written()
                store.close()
                self.store = self.spools = self._house = None

    async def _bind_all(self) -> list[tuple[ListenerConfig, socket.socket]]:
        bound: list[tuple[ListenerConfig, socket.socket]] = []
        try:
            for settings in self.config.listeners:
                bound.extend((settings, listening) for listening in await bind(settings.address))
        except ListenError:
            for _settings, listening in bound:
                listening.close()
            raise
        return bound

    def _warn_if_open(self, label: str, address: str) -> None:
        host = address.rpartition(":")[0].strip("[]")
        if not self.config.security.users and not (host.startswith("127.") or host == "::1"):
            log.warning(
                "listening beyond this machine without users",
                listener=label,
                address=address,
                remedy="configure [security.users], or listen on 127.0.0.1",
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._nursery is not None
        try:
            if kind is None:
                await self.stop()
        finally:
            self._nursery.cancel_scope.cancel()
            try:
                await self._nursery_manager.__aexit__(kind, error, trace)
            finally:
                self.abandon()

    async def stop(self) -> None:
        """Stop in good order: see the module. Returns when all connections are gone or cut. A second call waits for the
        same.
        """
        if not self._stopping:
            self._stopping = True
            log.info("broker stops", connections=len(self.connections))
            for listener in self.listeners:
                listener.close()
            for connection in list(self.connections):
                connection.session.fail(
                    ProtocolError("shutdown", "the broker is shutting down", "Connect again when it is back."),
                    peers_fault=False,
                )
            if not self.connections:
                self._all_gone.set()
        with trio.move_on_after(self.config.broker.shutdown_seconds):
            await self._all_gone.wait()
        if self.connections:
            log.warning(
                "connections cut", count=len(self.connections), after_seconds=self.config.broker.shutdown_seconds
            )
            for connection in list(self.connections):
                connection.session.close()  # what they hold goes back before the store is closed
        await self._close_logs()
        await self._close_store()
        if self.bodies is not None:
            self.bodies.stop()
            if self._large_folder is None:
                await trio.to_thread.run_sync(self.bodies.join)
            else:
                self.bodies.join()
            self.bodies = None
        self.registry.close()
        self.dispatcher.close()

    def abandon(self) -> None:
        """Give ports and sockets back that `stop` did not come by to close: it died of a fault, or of its caller's."""
        for listener in self.listeners:
            listener.abandon()
        for connection in self.connections:
            connection.abandon()
        self.abandon_store()

    # ------------------------------------------------------------------ connections

    def _accepted_by(self, place: int, settings: ListenerConfig, stream: ByteStream) -> None:
        self._accepted(stream, settings.label, settings.limits, self.listeners[place])

    def _accepted(self, stream: ByteStream, label: str, limits: StompLimits, listener: Listener | None) -> None:
        assert self._nursery is not None
        connection = Connection(self, limits, stream, listener=label, spawn=self._spawn)
        self.connections[connection] = None

        async def serve_it() -> None:
            try:
                await connection.run()
            finally:
                del self.connections[connection]
                if listener is not None:
                    listener.connection_ended()
                if self._stopping and not self.connections:
                    self._all_gone.set()

        self._nursery.start_soon(serve_it)

    def _spawn(self, function: Callable[[], Awaitable[object]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(function)

    def connect_memory(self, *, name: str = "memory client") -> MemoryStream:
        """A connection without a socket: returns the client's end of it. Limits are those of the first listener."""
        ours, theirs = memory_pair(names=(name, "memory broker"))
        self._accepted(theirs, "memory", self.config.listeners[0].limits, None)
        return ours

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each listener, with the ports that were really taken."""
        return [listener.address for listener in self.listeners]

    @property
    def urls(self) -> list[str]:
        """stomp://HOST:PORT of each listener."""
        return [f"stomp://{address}" for address in self.addresses]

    # ------------------------------------------------------------------ the hub of sessions

    def take_numbers(self, count: int) -> int:
        number = self._next_number
        self._next_number = number + count
        if self.store is not None:
            self.store.reserve_numbers(number + count)
        return number

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self.dispatcher.at_turn_end(callback)

    def turn_with(self, work: Callable[[], None]) -> None:
        self.dispatcher.turn_with(work)

    def new_session_id(self) -> str:
        return secrets.token_hex(8)

    def authenticate(self, login: str | None, passcode: str | None) -> str | None:
        users = self.config.security.users
        if not users:
            return login
        expected = users.get(login or "")
        given = (passcode or "").encode()
        # Compare in any case, so that the time taken does not tell which logins exist.
        right = hmac.compare_digest((expected if expected is not None else "").encode(), given)
        if expected is None or not right:
            raise LoginRefusedError(f"login {login!r} with this passcode is not let in")
        return login

    def answer(self, destination: str, body: bytes, reply: Callable[[bytes], None]) -> None:
        if destination == "/sluiceway/stat":
            reply(self._stat_answers.get())
        else:
            answer(self._handlers[destination.removeprefix("/sluiceway/")], body, reply)

    def report(self, *, with_idle: bool = True) -> dict[str, Any]:
        """The state of the broker as plain data: flow map, destinations, connections, dispatcher. What `sluiceway stat`
        shows (that one is `with_idle` False: without resources that have nothing to tell).
        """
        uptime_seconds = self.clock() - self._started_seconds
        return stat_report(self, uptime_seconds=uptime_seconds, with_idle=with_idle)


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


async def serve(config: Config, *, on_ready: Callable[[list[str]], None], on_reading: OnProgress | None = None) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it in good order; a second signal cuts at once.

    `on_ready` gets the URLs when clients can connect, `on_reading` hears before how far the store is read. Raises
    ListenError. Tunes the garbage collector of this process for many live messages.
    """
    tune_garbage_collector()
    tune_allocator()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with Broker(config, serving=True, on_reading=on_reading) as broker:
            on_ready(broker.urls)
            async with trio.open_nursery() as nursery:

                async def cut_on_second() -> None:
                    async for number in signals:
                        log.warning("second signal: cutting all connections", signal=signal.Signals(number).name)
                        nursery.cancel_scope.cancel()
                        return

                async for number in signals:
                    log.info("signal", signal=signal.Signals(number).name)
                    break
                nursery.start_soon(cut_on_second)
                await broker.stop()
                nursery.cancel_scope.cancel()
