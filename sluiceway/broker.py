"""The broker: dispatcher, flow registry, destinations and listeners put together, started and stopped in order.

    async with Broker(config) as broker:          # inside trio
        print(broker.urls)

Start: dispatcher, then listeners (all bound before the first one accepts), so that a client that gets in is served.
Stop: no new connections; each connection gets what was written for it and a last ERROR that says why; whoever is not
done after `shutdown_seconds` is cut; then destinations and dispatcher go.

`Broker` is also the `Hub` of STOMP sessions. The page of statistics is made in `sluiceway.report`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from sluiceway.answering import Answers
from sluiceway.bodies import body_files, recover_bodies
from sluiceway.claims import Claims
from sluiceway.config import Config
from sluiceway.config import Listener as ListenerConfig
from sluiceway.config.model import configuration
from sluiceway.data_folder import OnProgress, OpenDataFolder, engine_kind, open_house, restore_destinations
from sluiceway.dispatcher import Dispatcher
from sluiceway.draining import Draining
from sluiceway.durables import DurableRecords
from sluiceway.expiry import ExpiryWatch
from sluiceway.faults import Faults
from sluiceway.flow import FlowManager
from sluiceway.listeners import Listeners, is_loopback
from sluiceway.log_service import Handler, Logs, handlers, open_logs
from sluiceway.loop_monitor import LoopMonitor
from sluiceway.memory import BrokerMemory
from sluiceway.message_tracking import MessageTracking
from sluiceway.metrics.gather import Metrics
from sluiceway.protocols import arrivals
from sluiceway.protocols.arrivals import Arrivals
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.listener import Listener, ListenError
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import Identity
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.header_codec import HeaderCodec, rewrite
from sluiceway.protocols.stomp.left_behind import LeftBehind
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.streams import ByteStream, MemoryStream, memory_pair
from sluiceway.queues.environment import QueueEnvironment
from sluiceway.queues.logs.table import LogTable
from sluiceway.queues.names import parse
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.reloading import Reloader, ReloadReport
from sluiceway.report import stat_report
from sluiceway.security.admission import OWN, Admission, Decided
from sluiceway.security.gate import SecurityGate
from sluiceway.selector_preparation import SelectorPreparation
from sluiceway.sessions import SessionTable
from sluiceway.spool_recovery import SpoolRecovery
from sluiceway.steps import Pace
from sluiceway.store.bigarray import Files
from sluiceway.store.directory import LARGE, LOGS
from sluiceway.store.engine import Engine
from sluiceway.store.large import BodyFiles
from sluiceway.store.log_storage import LogDisk
from sluiceway.store.metadata import MemoryMetadata, MetadataManagers, StoredMetadata
from sluiceway.store.spool import Spools
from sluiceway.store.storequeue import StoreQueue
from sluiceway.store.worker import InlineWorker, ThreadWorker, Worker
from sluiceway.trails.answering import BrokerTrails
from sluiceway.trails.answering import handler as trail_handler
from sluiceway.version import VERSION

if TYPE_CHECKING:
    from sluiceway.admin.server import AdminServer
    from sluiceway.protocols.tls import PeerCertificate
    from sluiceway.tracing.spans import SpanSink

__all__ = ["Broker", "ListenError"]

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
        spans: SpanSink | None = None,
    ) -> None:
        """`engine`: a store that is open already, in place of the configured one; it is used inline, without threads,
        and closed at the end. `large_folder`: where large bodies go, likewise. `journal_folder`,
        `journal_files`, `boot`: where logs go, how their files are reached, and what names this run of the machine,
        likewise. `serving`: this process is all broker, so that `store.engine = "auto"` means LevelDB. `on_reading`:
        told how far the reading of the store is. `spans`: where traces go, in place of the configured collector.
        """
        self.config = configuration(config, Config, "Broker")
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
        self._spans = spans
        self._house: OpenDataFolder | None = None
        self._store_closing = trio.Lock()
        self.connections: dict[Connection, None] = {}
        self.sessions = SessionTable(lambda session_id: self.left_behind.has(session_id))
        self.now_ms = now_ms
        self.trails: BrokerTrails | None = None
        """Where messages went; None: that is switched off."""
        self._next_number = 1
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery | None = None
        self.admin: AdminServer | None = None
        """HTTP; None: it is not configured."""
        self.draining = Draining(self)
        self.is_ready = False
        """It has started: clients can connect, as long as it does not stop."""
        self.is_closed = False
        """It has stopped: what it had is closed."""
        self.config_file: str | None = None
        """Where its settings come from, for people."""
        self.stop_wanted = trio.Event()
        """It was drained: whoever runs it should let it go."""
        self._stopping = self._stopped = False
        self._all_gone = trio.Event()

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Broker:
        config = self.config
        self.faults = Faults(self)
        self.dispatcher = Dispatcher(config=config.dispatcher, on_error=self.faults.met)
        self.scheduling = self.dispatcher
        # Not trio.current_time, which looks up the running loop at each reading: there are a dozen to a message.
        self.clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.arrivals = Arrivals(self.dispatcher.turn_for_all, self.clock) if arrivals.IS_AVAILABLE else None
        self.manager = FlowManager(self.clock)
        self.memory = BrokerMemory(config, manager=self.manager, timers=self.dispatcher, clock=self.clock)
        self.admission = Admission(self)
        self.left_behind = LeftBehind(
            config.broker.left_behind_bytes_max,
            manager=self.manager,
            clock=self.clock,
            scheduling=self.dispatcher,
            unheard=self._unheard,
        )
        self.reloading = Reloader(self)
        self._expiry = ExpiryWatch(self.certificates, self.now_ms, self.faults.contain)
        self.doors = Listeners(
            accepted=self._accepted_by,
            opened=self._warn_if_open,
            clock=self.clock,
            contain=self.faults.contain,
            why_not=self.manager.why_not,
        )
        # First: a port that is taken is found out before anybody can connect anywhere. Then clients wait in line.
        await self.doors.bind(config.listeners)
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        try:
            await self._bind_admin()
            self.doors.listen()
            if self.admin is not None:
                self.admin.open_door(self._nursery)
            await self._make_ready()
        except BaseException:
            self._nursery.cancel_scope.cancel()
            try:
                await self._nursery_manager.__aexit__(None, None, None)  # what was raised is not to come in a group
            finally:
                self.abandon()
            raise
        await self._nursery.start(self.dispatcher.run)
        if self.arrivals is not None:
            self._nursery.start_soon(self.arrivals.run)
        self.registry.start()
        self.pulse.start()
        try:
            await self._open_logs()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        await self._resume_transactions()
        self.memory.limit_upkeep()
        self.doors.open(self._nursery)
        self.look_after_certificates()
        self.is_ready = True
        if not self._serving:  # else when it is told that it serves: nothing is to delay that
            self.selector_preparation.begin()
        if self.admin is not None:
            self.admin.start()
        log.info("broker ready", name=config.broker.name, version=VERSION, listeners=self.urls)
        return self

    async def _bind_admin(self) -> None:
        if self.config.admin.address:
            from sluiceway.admin.server import AdminServer  # an HTTP stack, which most brokers do without

            self.admin = await AdminServer.listen(self, self.config.admin)

    async def _make_ready(self) -> None:
        """Open the store, and make the destinations that it has messages of."""
        config = self.config
        await self._open_store()
        self._open_metadata()
        self.following = MessageTracking(self, spans=self._spans)
        self.trails = self.following.trails
        self._environment = QueueEnvironment(
            manager=self.manager,
            scheduling=self.dispatcher,
            clock=self.clock,
            now_ms=self.now_ms,
            resume=self.dispatcher.executor(label="resuming sources"),
            store=self.store,
            contain=self.faults.contain,
            observer_of=self.following.observer_of,
        )
        self.registry = DestinationRegistry(
            self._environment,
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
        self.selector_preparation = SelectorPreparation(self.dispatcher.submit, gives_way=self._serving)
        self.registry.selectors.prepare = self.selector_preparation.wait
        self._started_seconds = self.clock()
        self.pulse = LoopMonitor(
            clock=self.clock,
            call_later=self.dispatcher.call_later,
            next_number=lambda: self._next_number,
            settle=self.memory.upkeep.settle,
        )
        self.metrics = Metrics(self)
        self.answers = Answers(Pace(lambda: self.dispatcher.statistics().turns_count), self._spawn, self.faults.contain)
        if self._house is not None:
            await restore_destinations(self._house.recovered, self.registry)

    async def _open_logs(self) -> None:
        """The logs of an earlier run are there before anybody connects. The dispatcher runs."""
        house = self._house
        directory = None if house is None else house.directory
        # What lies in a temporary folder is soon written: no threads, which the clock of a test knows nothing of.
        inline = self._logs_inline = directory is None
        if inline:
            disk = LogDisk.inline(self.dispatcher.executor(label="logs"))
        else:
            disk = LogDisk.threads(self.dispatcher.submit)
        self._logs = await open_logs(
            self.config.logs,
            self._journal_folder if directory is None else directory.logs_path,
            marked=None if directory is None else directory.marked(LOGS),
            environment=self.registry.environment,
            managers=self._managers,
            store=self.store,
            disk=disk,
            policy_for=lambda name: self.config.policy_for(parse(name)),
            files=self._journal_files,
            boot=self._boot,
            inline=inline,
        )
        self.logs = self._logs.table
        self._claims = Claims(self.logs, self.registry, self._managers, disk, self.registry.environment)
        await self._claims.restore()
        self._handlers = {
            **{f"log/{name}": handler for name, handler in handlers(self.logs).items()},
            **self._claims.handlers,
            "trail": trail_handler(self.trails),
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
            heads=HeaderCodec(self.memory.upkeep.heads),
            scheduling=self.dispatcher,
            at_turn_end=self.dispatcher.at_turn_end,
            clock=self.clock,
            manager=self.manager,
            log=get_logger("sluiceway.store"),
            housing=house.directory,
            recovered=house.recovered,
            engine_name="memory" if house.directory is None else "leveldb",
            bodies=self.bodies,
            pages=None if house.directory is None else house.directory.paged_path,
            contain=self.faults.contain,
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
            self._managers = StoredMetadata(self.store.worker, scheduling=self.dispatcher, contain=self.faults.contain)
        self._durables = DurableRecords(self._managers)

    async def _open_bodies(self, house: OpenDataFolder | None) -> None:
        """Large bodies have a place where the store has a folder."""
        recovered = None if house is None else house.recovered
        if self._large_folder is not None:
            schedule = self.dispatcher.executor(label="large bodies")
            self.bodies = body_files(self._large_folder, manager=self.manager, clock=self.clock, schedule=schedule)
            recover_bodies(self.bodies, recovered)
        elif house is not None and house.directory is not None:
            marked = house.directory.marked(LARGE)
            self.bodies = body_files(
                marked.path, manager=self.manager, clock=self.clock, submit=self.dispatcher.submit, marked=marked
            )
            await trio.to_thread.run_sync(recover_bodies, self.bodies, recovered, marked)

    async def _resume_transactions(self) -> None:
        """What was committed comes to its queues before anybody connects."""
        if self.spools is None or not self.spools.left:
            return
        try:
            await SpoolRecovery(self.spools, self.registry, clock=self.clock).run()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

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

    def _warn_if_open(self, settings: ListenerConfig, listener: Listener) -> None:
        host = listener.address.rpartition(":")[0].strip("[]")
        if self.guard.allows_everything and not is_loopback(host):
            log.warning(
                "listening beyond this machine without users: whoever reaches this port may do everything",
                listener=settings.label,
                address=listener.address,
                remedy="configure [security] users and permissions (docs/permissions.md), or listen on 127.0.0.1",
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
            self.doors.close()
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
        self.is_closed = True
        await self._close_logs()
        await self._close_store()
        if self.bodies is not None:
            self.bodies.stop()
            if self._large_folder is None:
                await trio.to_thread.run_sync(self.bodies.join)
            else:
                self.bodies.join()
            self.bodies = None
        self.pulse.stop()
        self.registry.close()
        self.memory.close()
        if self.admin is not None:
            await self.admin.close()
        await self.following.close()
        self.dispatcher.close()
        if not self._stopped:
            self._stopped = True
            log.info("broker stopped")

    def abandon(self) -> None:
        """Give ports and sockets back that `stop` did not come by to close: it died of a fault, or of its caller's."""
        self.doors.abandon()
        if self.admin is not None:
            self.admin.abandon()
        for connection in self.connections:
            connection.abandon()
        self.abandon_store()

    # ------------------------------------------------------------------ connections

    def drain(self, seconds: float) -> int:
        """Take nobody in any more, let consumers finish what is there for `seconds` at most, then stop (and set
        `stop_wanted`). Returns how many connections were ended because they only send.
        """
        assert self._nursery is not None, "it runs"
        return self.draining.begin(seconds, self._nursery)

    def reload(self, config: Config) -> ReloadReport:
        """Put other settings in force as far as that can be while it runs. Raises ReloadError: nothing has changed."""
        return self.reloading.reload(config)

    async def reload_from_source(self) -> ReloadReport:
        """The same with the file, environment and flags that it was started with, read again. What comes of it is
        logged, too.
        """
        return await self.reloading.reload_from_source()

    def _accepted_by(self, stream: ByteStream, settings: ListenerConfig, listener: Listener) -> None:
        self._accepted(stream, settings.label, settings.limits, listener)

    def _accepted(self, stream: ByteStream, label: str, limits: StompLimits, listener: Listener | None) -> None:
        assert self._nursery is not None
        connection = Connection(self, limits, stream, listener=label, spawn=self._spawn)
        self.sessions.began(connection.session)
        self.connections[connection] = None

        async def serve_it() -> None:
            try:
                await self._contained(connection.run)
            finally:
                del self.connections[connection]
                if listener is not None:
                    listener.connection_ended()
                if self._stopping and not self.connections:
                    self._all_gone.set()
                self._environment.carefully(partial(self.sessions.ended, connection.session))

        self._nursery.start_soon(serve_it)

    def _spawn(self, function: Callable[[], Awaitable[object]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._contained, function)

    async def _contained(self, function: Callable[[], Awaitable[object]]) -> None:
        """What a task raises that serves one connection or one request is no matter of the others."""
        try:
            await function()
        except Exception as error:  # noqa: BLE001 - an outermost shell
            self.faults.contain(error)

    def contain(self, error: Exception) -> None:
        """Abandon what this has interrupted."""
        self.faults.contain(error)

    def connect_memory(self, *, name: str = "memory client") -> MemoryStream:
        """A connection without a socket: returns the client's end of it. Limits are those of the first listener."""
        ours, theirs = memory_pair(names=(name, "memory broker"))
        self._accepted(theirs, "memory", self.config.listeners[0].limits, None)
        return ours

    @property
    def listeners(self) -> list[Listener]:
        """Those that accept connections."""
        return self.doors.listeners

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each listener, with the ports that were really taken."""
        return [listener.address for listener in self.listeners]

    @property
    def urls(self) -> list[str]:
        """stomp://HOST:PORT of each listener, stomp+ssl:// with TLS, ws:// or wss:// with the path of a WebSocket."""
        return self.doors.urls

    # ------------------------------------------------------------------ the hub of sessions

    def _unheard(self, count: int) -> None:
        self.registry.unheard_count += count

    def take_numbers(self, count: int) -> int:
        number = self._next_number
        self._next_number = end = number + count
        if self.store is not None and end > self.store.numbers_enough_to:
            self.store.reserve_numbers(end)
        return number

    @property
    def on_marked_sends(self) -> Callable[[SendHead, int, int], None] | None:
        return self.following.on_marked_sends

    @property
    def at_turn_end(self) -> Callable[[Callable[[], None]], None]:
        return self.dispatcher.at_turn_end

    def turn_with(self, work: Callable[[], None]) -> None:
        self.dispatcher.turn_with(work)

    def new_session_id(self) -> str:
        return secrets.token_hex(8)

    @property
    def guard(self) -> SecurityGate:
        """Who may do what."""
        return self.admission.gate

    @property
    def claims(self) -> Claims | None:
        """Portions of queues, for readers that read them again; None: there is no place for them."""
        return self._claims

    def begin_login(
        self, login: str | None, passcode: str | None, *, decided: Decided, **whence: Any
    ) -> Callable[[], None]:
        return self.admission.begin_login(login, passcode, spawn=self._spawn, decided=decided, **whence)

    async def log_in(
        self,
        login: str | None,
        secret: str | None,
        *,
        peer: str,
        listener: str = "",
        certificate: PeerCertificate | None = None,
    ) -> Identity:
        """Who these let in. `peer`: HOST:PORT it comes from; `listener`: the name of what it came by. Raises
        LoginRefusedError. May wait: hashing takes a moment, and failures are slowed.
        """
        return await self.guard.log_in(login, secret, peer=peer, listener=listener, certificate=certificate)

    def answer(self, destination: str, body: bytes, reply: Callable[[bytes], None], identity: Identity) -> None:
        name = destination.removeprefix("/sluiceway/")
        handler = None if name in OWN else self._handlers[name]
        self.admission.answer(name, handler, body, reply, identity)

    def check_request(self, destination: str, body: bytes, identity: Identity) -> None:
        name = destination.removeprefix("/sluiceway/")
        self.admission.check(name, None if name in OWN else self._handlers[name], body, identity)

    def report(self, *, with_idle: bool = True) -> dict[str, Any]:
        """The state of the broker as plain data: flow map, destinations, connections, dispatcher. What `sluiceway stat`
        shows (that one is `with_idle` False: without resources that have nothing to tell).
        """
        return stat_report(self, uptime_seconds=self.uptime_seconds, with_idle=with_idle)

    async def metrics_page(self, *, openmetrics: bool = False) -> bytes:
        """What Prometheus scrapes, for programs that have a page of their own to show it on. Made in small steps."""
        return await self.metrics.page(openmetrics=openmetrics)

    def certificates(self) -> list[tuple[str, float]]:
        """The name of each way in with TLS, and when its certificate ends, in seconds since the epoch."""
        return [*([] if self.admin is None else self.admin.certificates()), *self.doors.certificates()]

    def look_after_certificates(self) -> None:
        """Some may be other ones now: say which end soon."""
        assert self._nursery is not None, "it runs"
        self._expiry.look(self._nursery)

    @property
    def uptime_seconds(self) -> float:
        """Since it started."""
        return self.clock() - self._started_seconds

    @property
    def is_draining(self) -> bool:
        """It takes no new connections, and stops when what it holds is consumed."""
        return self.draining.is_under_way

    @property
    def is_stopping(self) -> bool:
        """It takes no new work."""
        return self._stopping

    @property
    def data_folder(self) -> Path | None:
        """Where it keeps what must outlive it; None: nowhere."""
        directory = None if self._house is None else self._house.directory
        return None if directory is None else directory.path
