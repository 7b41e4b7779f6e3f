"""The broker: dispatcher, flow registry, destinations and listeners put together, started and stopped in order.

    async with Broker(config) as broker:          # inside trio
        print(broker.urls)

Start: dispatcher, then listeners (all bound before the first one accepts), so that a client that gets in is served.
Stop: no new connections; each connection gets its pending output and a last ERROR that says why; connections still open
after `shutdown_seconds` are cut; then destinations and dispatcher are closed.

Sessions see the broker as a `SessionHub`. The page of statistics is made in `sluiceway.report`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from sluiceway.answering import Answers, ReportPart
from sluiceway.claims import Claims
from sluiceway.client_ids import ClientIds
from sluiceway.cluster.inherited import InheritedSockets
from sluiceway.config import Config
from sluiceway.config import Listener as ListenerConfig
from sluiceway.config.errors import ConfigError
from sluiceway.config.fields import is_loopback
from sluiceway.config.model import configuration
from sluiceway.connections import Connections
from sluiceway.data_folder import OnProgress, SharedShard, engine_kind
from sluiceway.directions import NOWHERE, Directions, for_clients, in_one_text
from sluiceway.dispatcher import Dispatcher
from sluiceway.draining import Draining
from sluiceway.expiry import ExpiryWatch
from sluiceway.extras import needs
from sluiceway.faults import Faults
from sluiceway.flow import FlowManager
from sluiceway.flow.graph import Steps
from sluiceway.listeners import Listeners
from sluiceway.loop_monitor import LoopMonitor
from sluiceway.memory import BrokerMemory
from sluiceway.message_tracking import MessageTracking
from sluiceway.metrics.gather import Metrics
from sluiceway.open_parts import OpenParts
from sluiceway.protocols import arrivals
from sluiceway.protocols.arrivals import Arrivals
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.listener import ListenError, SocketListener
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.left_behind import LeftBehind
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.streams import ByteStream, MemoryStream, SocketStream, memory_pair
from sluiceway.queues.logs.table import LogTable
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.reloading import Reloader, ReloadReport
from sluiceway.report import stat_in_steps, stat_report
from sluiceway.requests import Requests
from sluiceway.security.admission import Admission
from sluiceway.security.gate import SecurityGate
from sluiceway.selector_preparation import SelectorPreparation
from sluiceway.session_hub import SessionHub
from sluiceway.sessions import SessionTable
from sluiceway.shard import EngineOf, Location, ShardEnvironment
from sluiceway.shard_moves import ShardMoves
from sluiceway.shards import Shards
from sluiceway.slow_consumers import SlowConsumers
from sluiceway.steps import StepPace
from sluiceway.store.bigarray import Files
from sluiceway.store.engine import Engine, FencedError
from sluiceway.store.large import BodyFiles
from sluiceway.store.storequeue import StoreQueue
from sluiceway.trails.answering import BrokerTrails
from sluiceway.trails.answering import handler as trail_handler
from sluiceway.version import VERSION
from sluiceway.virtual_hosts import VirtualHosts

if TYPE_CHECKING:
    from sluiceway.admin.server import AdminServer
    from sluiceway.cluster.calls import Calls
    from sluiceway.cluster.host import Member
    from sluiceway.cluster.links import Links, Seat
    from sluiceway.cluster.proxies import Proxies
    from sluiceway.cluster.questions import Questions
    from sluiceway.regions.service import Regions
    from sluiceway.thrift.server import ThriftServer
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
        engine: Engine | Sequence[Engine] | EngineOf | None = None,
        large_folder: Path | None = None,
        journal_folder: Path | None = None,
        journal_files: Files | None = None,
        all_in_engine: bool = False,
        boot: str | None = None,
        serving: bool = False,
        on_reading: OnProgress | None = None,
        spans: SpanSink | None = None,
        seat: Seat | None = None,
        work_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make a broker. `engine`: a store that is open already, in place of the configured one; it is used inline,
        without threads, and closed at the end; of several, each has a shard; a function opens that of a shard for an
        epoch, where hubs share what is stored. `large_folder`: folder of large bodies, likewise. `journal_folder`,
        `journal_files`, `boot`: folder of logs, access to their files, and the id of this run of the machine, likewise;
        `all_in_engine`: they are in `engine`, as in a database. `serving`: this process runs only the broker, so that
        `store.engine = "auto"` means LevelDB. `on_reading`: called with the progress of reading the store. `spans`:
        destination of traces, in place of the configured collector. `seat`: place of this broker among the hubs of a
        cluster. `work_clock`: seconds that measure the work of answers, which is done in steps; for simulations, in
        which work takes no time.

        Raises ConfigError for a configuration of a hub without a seat.
        """
        self.config = configuration(config, Config, "Broker")
        if self.config.cluster.is_on and seat is None:
            raise ConfigError(
                "cluster.coordination: a broker in a program can't be a hub of several machines: start `sluiceway"
                " serve` with this configuration, or leave cluster.coordination out"
            )
        self._engines: Sequence[Engine] = engine if isinstance(engine, Sequence) else ()
        engine_of: EngineOf | None = engine if callable(engine) else None
        self._location = Location(
            "none",
            self.config.broker.data_dir,
            engine=None if isinstance(engine, Sequence) or callable(engine) else engine,
            engine_of=engine_of,
            large_folder=large_folder,
            journal_folder=journal_folder,
            journal_files=journal_files,
            all_in_engine=all_in_engine,
            boot=boot,
            on_reading=on_reading,
        )
        self._serving = serving
        self._spans = spans
        self._seat = seat
        self._work_clock = work_clock
        self.links: Links | None = None
        """Links to the other hubs of the cluster; None: there is no cluster."""
        self.calls: Calls | None = None
        """Calls to and of the other hubs, likewise."""
        self.questions: Questions | None = None
        """Questions to all other hubs, likewise."""
        self.regions: Regions | None = None
        """Topics of other regions; None: none are configured."""
        self.member: Member | None = None
        """Part of this broker in a cluster whose shards move; None: they are fixed."""
        self.now_ms = now_ms
        self._nursery: trio.Nursery
        self._parts = OpenParts()
        self._stack = AsyncExitStack()
        """Work for the end, whatever its reason: end the tasks, and abandon the parts that are still open."""
        self.admin: AdminServer | None = None
        self.thrift: ThriftServer | None = None
        """HTTP server; None: it is not configured."""
        self.is_ready = False
        """Whether the broker has started: clients can connect until it stops."""
        self.is_closed = False
        """Whether the broker has stopped: all of its parts are closed."""
        self.config_file: str | None = None
        """Name of the configuration file, for people."""
        self.stop_wanted = trio.Event()
        """Set when the broker was drained: its owner should end it."""
        self.is_stopping = False
        """Whether the broker takes no new work."""

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Broker:
        self._make_parts()
        self._stack.callback(self.abandon)
        if self._seat is not None:
            self._stack.callback(self._seat.sockets.close)
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()  # without what was raised: it is not to come in a group
            raise
        log.info("broker ready", name=self.config.broker.name, version=VERSION, listeners=self.urls)
        return self

    def _make_parts(self) -> None:
        """Make what needs the clock of the program, and no port or file. Raises SecurityError."""
        config = self.config
        self.dispatcher = Dispatcher(config=config.dispatcher, on_error=lambda _context, error: self.contain(error))
        # Not trio.current_time, which looks up the running loop at each reading: there are a dozen to a message.
        self.clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.arrivals = Arrivals(self.dispatcher.turn_for_all, self.clock) if arrivals.IS_AVAILABLE else None
        self.manager = FlowManager(self.clock)
        self.memory = BrokerMemory(config, manager=self.manager, timers=self.dispatcher, clock=self.clock)
        self.left_behind = LeftBehind(
            config.broker.left_behind_bytes_max,
            manager=self.manager,
            clock=self.clock,
            scheduling=self.dispatcher,
            unheard=self._unheard,
        )
        self._expiry = ExpiryWatch(self.certificates, self.now_ms, self.contain)
        self.listening = Listeners(
            accepted=self._accepted,
            opened=self._warn_if_open,
            clock=self.clock,
            contain=self.contain,
            why_not=self.manager.why_not,
        )
        self.selector_preparation = SelectorPreparation(self.dispatcher.submit, gives_way=self._serving)
        self.shards = Shards(
            config,
            self._location_of_shards(),
            ShardEnvironment(
                dispatcher=self.dispatcher,
                manager=self.manager,
                clock=self.clock,
                now_ms=self.now_ms,
                contain=self.contain,
                prepare_selectors=self.selector_preparation.wait,
                fenced=self._fenced if self._moves_shards else None,
                may_deliver=self._may_deliver if self._moves_shards else None,
            ),
            engines=self._engines,
            opens=self._first_shards,
            observe=lambda token: self.tracking.begin(token),
        )
        pace = StepPace(lambda: self.dispatcher.statistics().turns_count, self._work_clock)
        self.answers = Answers(pace, self._spawn, self.contain, self._work_clock)
        self.admission = Admission(self._make_guard(), config, spawn=self._spawn)
        sessions = SessionTable(self.left_behind.has)
        self.connections = Connections(sessions, spawn=self._spawn, contain=self.contain)
        self.shard_moves = ShardMoves(self.shards, self.connections)
        self.faults = Faults(self.shards, self.connections, self.dispatcher.call_later)
        self.reloading = Reloader(self)
        self.trails = self._make_trails()
        self.tracking = MessageTracking(
            config, trails=self.trails, spans=self._spans, clock=self.clock, now_ms=self.now_ms
        )
        self.requests = Requests(
            self.shards,
            sessions,
            self.guard,
            self.answers,
            stat=self._stat_in_steps,
            trail=trail_handler(self.trails),  # of this hub alone, until there are links
            contain=self.contain,
        )
        self._hub = SessionHub(
            self.shards,
            self.tracking,
            self.admission,
            self.requests,
            manager=self.manager,
            dispatcher=self.dispatcher,
            clock=self.clock,
            arrivals=self.arrivals,
            left_behind=self.left_behind,
            contain=self.contain,
            client_ids=ClientIds(lambda: self.config.broker.client_id_in_use),
            hosts=VirtualHosts(config.virtual_hosts) if config.virtual_hosts else None,
        )
        self._make_links()
        self.requests.directions = self._directions().answer
        self._make_regions()
        self.draining = Draining(
            self.connections, self.listening, self.shards, drained=self._stop_drained, contain=self.contain
        )
        self.slow_consumers = SlowConsumers(
            lambda: self.registry,
            is_needed=lambda: self.config.watches_consumers,
            manager=self.manager,
            clock=self.clock,
            call_later=self.dispatcher.call_later,
        )
        self.pulse = LoopMonitor(
            clock=self.clock,
            call_later=self.dispatcher.call_later,
            next_number=lambda: self.shards.next_number,
            settle=self.memory.upkeep.settle,
        )

    def _make_links(self) -> None:
        """Make the links to other hubs, if there are any."""
        if self._seat is None:
            return
        from sluiceway.cluster.asking import FarRequests  # a broker without a cluster does without
        from sluiceway.cluster.calls import Calls
        from sluiceway.cluster.letters import Letters
        from sluiceway.cluster.links import session_prefix
        from sluiceway.cluster.proxies import Proxies
        from sluiceway.cluster.questions import Questions
        from sluiceway.cluster.sessions_of_all import SessionsOfAll
        from sluiceway.cluster.stat_of_all import StatOfAll
        from sluiceway.cluster.trails_of_all import TrailsOfAll

        proxies = Proxies(self._hub, self.connections, spawn=self._spawn, contain=self.contain)
        self.links = self._links_with(proxies)
        self.calls = proxies.calls = Calls(
            self.links,
            manager=self.manager,
            clock=self.clock,
            call_later=self.dispatcher.call_later,
            contain=self.contain,
        )
        self.requests.elsewhere = FarRequests(self.calls, self.requests, self.guard, self.answers)
        seat = self._seat
        member = self.member
        self.questions = Questions(
            self.calls,
            lambda: seat.peers(),
            gone=dict if member is None else member.gone,
            unlinked_seconds=self.links.unlinked_seconds,
            spawn=self._spawn,
            contain=self.contain,
        )
        pace = StepPace(lambda: self.dispatcher.statistics().turns_count)
        stat_of_all = StatOfAll(
            seat.hub, self.questions, self.answers, self._stat_in_steps, pace, spawn=self._spawn, contain=self.contain
        )
        self.requests.stat_of_all = stat_of_all.ask
        sessions_of_all = SessionsOfAll(
            seat.hub,
            self.questions,
            self.connections.sessions,
            self.links.sessions_on_links,
            spawn=self._spawn,
            contain=self.contain,
        )
        self.requests.sessions_of_all = sessions_of_all.tell
        trails_of_all = TrailsOfAll(
            seat.hub, self.questions, self.trails, pace, spawn=self._spawn, contain=self.contain
        )
        self.requests.trail = trail_handler(self.trails, trails_of_all.gather)
        self.shards.courier = Letters(self.calls, lambda: self.shards.registry, manager=self.manager, clock=self.clock)
        proxies.topics = self.links.topics
        self.shards.is_guest = self.links.topics.goes_direct
        self._hub.elsewhere = self.links
        self._hub.session_prefix = session_prefix(self._seat.hub)

    def _links_with(self, proxies: Proxies) -> Links:
        from sluiceway.cluster.links import Links

        seat = self._seat
        assert seat is not None, "the caller has asked"
        if seat.membership is None:
            return Links(seat, self._hub, proxies, spawn=self._spawn)
        from sluiceway.cluster.host import Member

        member = self.member = Member(
            seat,
            seat.membership,
            self.shard_moves,
            loop=self.dispatcher,
            clock=self.clock,
            spawn=self._spawn,
            contain=self.contain,
        )
        self._seat = attrs.evolve(seat, placement=member.placement, peers=member.peers)
        return Links(
            self._seat,
            self._hub,
            proxies,
            spawn=self._spawn,
            open_shards=lambda: member.open_shards,
            shards_changed=member.shards_changed,
            standing=member,
        )

    def _directions(self) -> Directions:
        seat = self._seat
        if seat is None:
            return Directions(
                hub=self.config.broker.name,
                urls=lambda: for_clients(self.urls),
                shards_count=lambda: self.shards.count,
            )
        assert self.links is not None, "it was made"
        return Directions(
            hub=seat.hub,
            urls=lambda: for_clients(self.urls),
            shards_count=lambda: seat.shards_count,
            cluster=seat.cluster,
            placement=self.links.placement,
            member=self.member,
        )

    def _told_clients(self) -> str:
        """Return the URLs at which clients reach this hub and no other."""
        seat = self._seat
        assert seat is not None, "the caller has asked"
        if seat.clients:
            return "" if seat.clients == NOWHERE else seat.clients
        if seat.shares_addresses:
            return in_one_text(for_clients(self.listening.bound_urls(own=True)))
        return in_one_text(for_clients(self.listening.bound_urls(own=False), socket.gethostname()))

    async def _close_links(self) -> None:
        assert self.links is not None and self.calls is not None, "they were made"
        self.calls.close()
        self.links.topics.close()
        await self.links.close()

    def _stat_in_steps(self, part: ReportPart) -> Steps[dict[str, Any]]:
        return stat_in_steps(self, part, uptime_seconds=self.uptime_seconds)

    def _make_regions(self) -> None:
        """Make the feeds of other regions, if there are any."""
        config = self.config.regions
        if not config.origins:
            return
        from sluiceway.regions.service import Regions  # most brokers do without

        self.regions = Regions(
            config,
            self.config.broker.name,
            self._hub,
            self.connections,
            placement=None if self.links is None else self.links.placement,
            spawn=self._spawn,
        )

    def _make_guard(self) -> SecurityGate:
        return SecurityGate(
            self.config.security,
            listeners={listener.label: listener.rates for listener in self.config.listeners},
            manager=self.manager,
            clock=self.clock,
            timers=self.dispatcher,
            origin_of=self.shards.origin_of,
            spawn=self._spawn,
            now=lambda: self.now_ms() / 1000,
        )

    def _make_trails(self) -> BrokerTrails | None:
        config = self.config.trails
        if not config.enabled:
            return None
        trails = BrokerTrails(
            config, self.shards, self.connections, dispatcher=self.dispatcher, clock=self.clock, now_ms=self.now_ms
        )
        for key in ("trails.bytes_max", "trails.keep_seconds"):
            self.reloading.takes(key, lambda changed: trails.configure(changed.trails))
        return trails

    async def _open(self) -> None:
        """Open what `stop` closes, the last one first."""
        config, opened = self.config, self._parts.opened
        opened(self._close_dispatcher)
        # First: a port that is taken is found out before anybody can connect anywhere. Then clients wait in line.
        await self.listening.bind(config.listeners, self._sockets)
        opened(self.listening.abandon, abandon=self.listening.abandon)
        opened(self.tracking.close)
        opened(self.guard.sources.close)
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        self._stack.callback(self._nursery.cancel_scope.cancel)
        if config.admin.address:
            await self._bind_admin()
        if config.thrift.listen:
            from sluiceway.thrift.server import Surroundings, ThriftServer  # most brokers have none

            around = Surroundings(
                connect=lambda name: self.connect_memory(name=name),
                limits=lambda: self.config.listeners[0].limits,
                keep=self.manager.keep,
                contain=self.contain,
            )
            self.thrift = await ThriftServer.bind(around, config.thrift, self._sockets)
            opened(self.thrift.abandon, abandon=self.thrift.abandon)
        self.listening.listen()
        # A hub that comes back to others leaves the common port to them until it is ready.
        answers_late = self._seat is not None and self._seat.admin_secret is not None and self._seat.has_run
        if self.admin is not None and not answers_late:
            self.admin.open_door(self._nursery)
        opened(self.memory.close)
        opened(self.pulse.stop)
        opened(self.slow_consumers.stop)
        opened(self.shards.close, abandon=self.shards.abandon)
        await self._open_shards()
        self._started_seconds = self.clock()
        self.metrics = Metrics(self)
        await self._nursery.start(self.dispatcher.run)
        if self.arrivals is not None:
            self._nursery.start_soon(self.arrivals.run)
        self.pulse.start()
        self.slow_consumers.start()
        await self._recover_shards()
        self.memory.limit_upkeep()
        if self.links is not None:
            opened(self._close_links, abandon=self.links.abandon)
            self.links.topics.begin(
                self.dispatcher.call_later,
                lambda: self.registry,
                self.manager,
                is_usable=self.shards.is_usable,
                has_ordered=lambda: self.config.has_ordered_topics,
                shards_open=lambda: self.shard_moves.usable,
            )
            await self.links.begin()
            if self.member is not None:
                opened(self.member.leave)
                self.member.begin(self.links, self._told_clients())
        opened(self._close_connections, abandon=self.connections.abandon)
        opened(self.listening.close)
        self.listening.open(self._nursery)
        if self.regions is not None:
            opened(self.regions.close)
            self.regions.begin()
        if self.thrift is not None:
            opened(self.thrift.close)
            self.thrift.start(self._nursery)
        self.look_after_certificates()
        self.is_ready = True
        if self.admin is not None:
            if answers_late:
                self.admin.open_door(self._nursery)
            self.admin.start()

    async def _bind_admin(self) -> None:
        with needs("console", "the admin port"):  # an HTTP stack, which most brokers do without
            from sluiceway.admin.server import AdminServer

        self.admin = admin = await AdminServer.listen(self, self.config.admin, self._sockets)
        self._parts.opened(admin.close, abandon=admin.abandon)

    async def _open_shards(self) -> None:
        await self.shards.open()

    async def _recover_shards(self) -> None:
        await self.shards.recover()

    @property
    def _moves_shards(self) -> bool:
        """Whether shards move between hubs."""
        return self._seat is not None and self._seat.membership is not None

    def _location_of_shards(self) -> Location:
        """Return where the shards are; all of a database are known by their number."""
        config = self.config
        location = attrs.evolve(
            self._location,
            engine_kind=engine_kind(config, serving=self._serving),
            shared=SharedShard(config.store.url, config.broker.name),
        )
        if self._seat is None or (location.engine_kind != "postgresql" and location.engine_of is None):
            return location
        return attrs.evolve(location, shards_count=self._seat.shards_count, token=self._seat.cluster.encode())

    def _fenced(self, shard: int, error: FencedError) -> None:
        assert self.member is not None, "shards move"
        self.member.fenced(shard, error)

    def _may_deliver(self) -> bool:
        return self.member is None or self.member.may_deliver()

    @property
    def _first_shards(self) -> frozenset[int] | None:
        """Shards that are opened at the start; None: all."""
        if self._seat is None:
            return None
        return self._seat.shards if self._seat.membership is None else frozenset()

    @property
    def _sockets(self) -> InheritedSockets:
        return InheritedSockets({}) if self._seat is None else self._seat.sockets

    def _warn_if_open(self, settings: ListenerConfig, listener: SocketListener) -> None:
        host = listener.address.rpartition(":")[0].strip("[]")
        if self.guard.allows_everything and not is_loopback(host):
            log.warning(
                "listening beyond this machine without users: every client has full access",
                listener=settings.label,
                address=listener.address,
                remedy="configure [security] users and permissions (`sluiceway config` explains them), or listen on "
                "127.0.0.1",
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.stop()
        finally:
            await self._stack.__aexit__(kind, error, trace)

    async def stop(self) -> None:
        """Stop cleanly: see the module. Returns when all connections are gone or cut. A second call waits for the
        first.
        """
        if not self.is_stopping:
            self.is_stopping = True
            log.info("broker stops", connections=len(self.connections))
        await self._parts.close()

    async def _close_connections(self) -> None:
        if self.links is not None:
            self.links.part("the hub stops")
        await self.connections.close(self.config.broker.shutdown_seconds)
        self.is_closed = True

    def _close_dispatcher(self) -> None:
        self.dispatcher.close()
        log.info("broker stopped")

    def abandon(self) -> None:
        """Release ports and sockets that `stop` did not close: the broker died of a fault, or of its caller's."""
        self._parts.abandon()

    # ------------------------------------------------------------------ connections

    def drain(self, seconds: float) -> int:
        """Take no new connections, let consumers finish for `seconds` at most, then stop (and set `stop_wanted`).
        Returns the number of connections that were ended because they only send.
        """
        if self.is_stopping:
            return 0
        if self.regions is not None:
            self.regions.stop()
        return self.draining.begin(seconds, self._nursery)

    async def _stop_drained(self) -> None:
        await self.stop()
        self.stop_wanted.set()

    def reload(self, config: Config) -> ReloadReport:
        """Put other settings in force as far as that can be while it runs. Raises ReloadError: nothing has changed."""
        return self.reloading.reload(config)

    async def reload_from_source(self) -> ReloadReport:
        """Reload the file, environment and flags that the broker was started with. The result is logged, too."""
        return await self.reloading.reload_from_source()

    def _accepted(self, stream: ByteStream, settings: ListenerConfig, listener: SocketListener) -> None:
        self._begin(stream, settings.limits, settings.label, listener)

    def _begin(
        self, stream: ByteStream, limits: StompLimits, label: str, listener: SocketListener | None = None
    ) -> None:
        self.connections.begin(Connection(self._hub, limits, stream, listener=label, spawn=self._spawn), listener)

    def _spawn(self, function: Callable[[], Awaitable[object]]) -> None:
        self._nursery.start_soon(self._contained, function)

    async def _contained(self, function: Callable[[], Awaitable[object]]) -> None:
        """Run a task that serves one connection or one request: its exceptions do not concern others."""
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
        self.connect_stream(theirs)
        return ours

    def connect_socket(self, connected: socket.socket, *, name: str = "socket client") -> None:
        """Serve the client at the other end of a connected stream socket, such as one of `socket.socketpair()`. Limits
        are those of the first listener.
        """
        self.connect_stream(SocketStream(connected, name))

    def connect_stream(self, stream: ByteStream) -> None:
        """Serve the client at the other end of a stream. Limits are those of the first listener."""
        self._begin(stream, self.config.listeners[0].limits, "memory")

    @property
    def seat(self) -> Seat | None:
        """Place in a cluster; None: the broker is alone."""
        return self._seat

    @property
    def listeners(self) -> list[SocketListener]:
        """Listeners that accept connections."""
        return self.listening.listeners

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each listener, with the ports that were really taken."""
        return [listener.address for listener in self.listeners]

    @property
    def urls(self) -> list[str]:
        """stomp://HOST:PORT of each listener, stomp+ssl:// with TLS, ws:// or wss:// with the path of a WebSocket."""
        return self.listening.urls

    # ------------------------------------------------------------------ what it has

    def _unheard(self, count: int) -> None:
        self.registry.unheard_count += count

    @property
    def registry(self) -> DestinationRegistry:
        """Destinations."""
        return self.shards.registry

    @property
    def store(self) -> StoreQueue | None:
        """Store of persistent messages, of several shards that of the first; None: no message outlives the broker."""
        return self.shards.store

    @property
    def bodies(self) -> BodyFiles | None:
        """Store of large bodies, of several shards that of the first; None: every body is held in memory."""
        return self.shards.bodies

    @property
    def logs(self) -> LogTable | None:
        """Destinations that remember."""
        return self.shards.logs

    @property
    def guard(self) -> SecurityGate:
        """Decider of permissions."""
        return self.admission.gate

    @property
    def claims(self) -> Claims | None:
        """Portions of queues, for readers that read them again; None: there is no place for them."""
        return self.shards.claims

    def report(self, *, with_idle: bool = True) -> dict[str, Any]:
        """The state of the broker as plain data: flow map, destinations, connections, dispatcher. What `sluiceway stat`
        shows (that one is `with_idle` False: without resources that have nothing to tell).
        """
        return stat_report(self, uptime_seconds=self.uptime_seconds, with_idle=with_idle)

    async def metrics_page(self, *, openmetrics: bool = False) -> bytes:
        """Return the page that Prometheus scrapes, for programs with a page of their own. Made in small steps."""
        return await self.metrics.page(openmetrics=openmetrics)

    def certificates(self) -> list[tuple[str, float]]:
        """The name of each way in with TLS, and when its certificate ends, in seconds since the epoch."""
        return [*([] if self.admin is None else self.admin.certificates()), *self.listening.certificates()]

    def look_after_certificates(self) -> None:
        """Check the ends of all certificates, which may have changed."""
        self._expiry.look(self._nursery)

    @property
    def uptime_seconds(self) -> float:
        """Time since the start."""
        return self.clock() - self._started_seconds

    @property
    def is_draining(self) -> bool:
        """Whether the broker takes no new connections, and stops when its messages are consumed."""
        return self.draining.is_under_way

    @property
    def data_folder(self) -> Path | None:
        """Folder of persistent data; None: there is none."""
        return self.shards.folder
