"""The admin port of one broker: bound with its listeners, answering from then on, closed last."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import trio

from sluiceway.admin.access import Access
from sluiceway.admin.app import AdminApp, Receive, Scope, Send, make_app
from sluiceway.admin.flowmap import FlowMaps
from sluiceway.admin.history import History
from sluiceway.admin.http import HttpServer
from sluiceway.admin.messages import MessageReader, Messages
from sluiceway.admin.operations import Operations
from sluiceway.admin.sampling import Sampler
from sluiceway.admin.services import Services
from sluiceway.admin.starting import answer_that_it_starts
from sluiceway.admin.state import StateAnswers
from sluiceway.cluster.inherited import ADMIN
from sluiceway.config.admin import AdminConfig
from sluiceway.config.fields import is_loopback
from sluiceway.config.model import ADMIN_NAME
from sluiceway.protocols.listener import bind, start_listening
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.tls import TlsServer
from sluiceway.steps import StepPace

if TYPE_CHECKING:
    from sluiceway.broker import Broker
    from sluiceway.cluster.inherited import InheritedSockets

log = get_logger("sluiceway.admin")

LIVE = (
    "hosts",
    "metrics_open",
    "connections_max",
    "sessions_max",
    "session_idle_seconds",
    "body_bytes_max",
    "request_seconds",
)
"""Keys that a reload changes without a restart; the certificate is read again, too."""


class AdminServer:
    """Serves one broker over HTTP. Made by it when it has an admin port."""

    def __init__(self, broker: Broker, config: AdminConfig, sockets: list[socket.socket]) -> None:
        """`sockets`: that listen; see `listen`."""
        self._broker = broker
        self._config = config
        self._sockets = sockets
        self._http: HttpServer | None = None
        self._gate: AdminApp | None = None
        self._tls: TlsServer | None = None
        self._started = trio.Event()
        self._ended = trio.Event()
        self.services: Services | None = None

    @classmethod
    async def listen(cls, broker: Broker, config: AdminConfig, inherited: InheritedSockets) -> AdminServer:
        """Bind the address if it is not inherited, and read the certificate; clients can't connect before `open_door`.
        Raises ListenError and CertificateError.
        """
        server = cls(broker, config, inherited.take(ADMIN) or await bind(config.address))
        try:
            server._tls = await trio.to_thread.run_sync(server.read_certificate)
        except BaseException:
            server.abandon()
            raise
        return server

    def open_door(self, nursery: trio.Nursery) -> None:
        """Answer clients from now on: until `start` that the broker is starting. Raises ListenError."""
        broker, config = self._broker, self._config
        start_listening(config.address, self._sockets)
        self._http = HttpServer(
            self._answer,
            self._sockets,
            connections_max=config.connections_max,
            client_seconds=config.client_seconds,
            contain=broker.faults.contain,
            keep=broker.manager.keep,
            tls=self._certificate if config.tls.is_on else None,
        )
        nursery.start_soon(self._run, self._http)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = answer_that_it_starts if self._gate is None else self._gate
        await app(scope, receive, send)

    def read_certificate(self) -> TlsServer | None:
        """Read the certificate of the port from its files; None: there is none. Raises CertificateError. See
        `use_certificate`.
        """
        tls = self._config.tls
        return TlsServer(tls) if tls.is_on else None

    def use_certificate(self, tls: TlsServer | None) -> bool:
        """Use this certificate for new connections. Returns whether it differs from the last one."""
        before, self._tls = self._tls, tls
        return before is not None and tls is not None and before.fingerprint_sha256 != tls.fingerprint_sha256

    def certificates(self) -> list[tuple[str, float]]:
        """Return the end of the certificate, as `Listeners.certificates`; empty: there is none."""
        return [] if self._tls is None else [(ADMIN_NAME, self._tls.not_after)]

    def start(self) -> None:
        """Serve all there is from now on. The broker is made: its registry and dispatcher are there."""
        broker, config = self._broker, self._config
        services = self.services = make_services(broker, config)
        services.reader.open()
        services.history.start()
        self._gate = make_app(services, config)
        if services.together is not None:
            services.together.begin(self._gate.answer_hub)
        for key in LIVE:
            broker.reloading.takes(f"admin.{key}", lambda changed: self._configure(changed.admin))
        self._started.set()
        log.info("admin port ready", urls=self.urls)
        self._warn_if_open()

    def _warn_if_open(self) -> None:
        hosts = [listening.getsockname()[0] for listening in self._sockets]
        if all(is_loopback(host) for host in hosts):
            return
        if self._broker.guard.allows_everything:
            log.warning(
                "the admin port is open beyond this machine without users: every client has full access",
                urls=self.urls,
                remedy="configure [security.users], or listen on 127.0.0.1",
            )
        elif not self._config.tls.is_on:
            log.warning(
                "passcodes for the admin port cross the network in plain text",
                urls=self.urls,
                remedy="configure [admin.tls], or put a reverse proxy with TLS before it",
            )

    def _certificate(self) -> ssl.SSLContext:
        assert self._tls is not None, "it speaks TLS"
        return self._tls.context

    def _configure(self, config: AdminConfig) -> None:
        """Apply other limits while the server runs."""
        assert self._gate is not None and self._http is not None and self.services is not None, "it runs"
        self._config = config
        self._gate.config = config
        self._http.tasks.connections_max = config.connections_max
        self.services.access.configure(config)

    @property
    def urls(self) -> list[str]:
        """http://HOST:PORT, of each address."""
        return [] if self._http is None else self._http.urls

    async def _run(self, http: HttpServer) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample)
                nursery.start_soon(self._remember)
                await http.run()
                nursery.cancel_scope.cancel()
        finally:
            if self.services is not None and self.services.reader.is_open:
                self.services.reader.close()
                self.services.history.stop()
            self._ended.set()

    async def _sample(self) -> None:
        await self._started.wait()
        assert self.services is not None, "it has started"
        await self.services.sampler.run()

    async def _remember(self) -> None:
        await self._started.wait()
        assert self.services is not None, "it has started"
        await self.services.history.run()

    async def close(self) -> None:
        """Answer present requests, then no more. A second call waits for the first."""
        if self._http is not None:
            self._http.close()
            await self._ended.wait()

    def abandon(self) -> None:
        """Give the port back."""
        for listening in self._sockets:
            listening.close()


def make_services(broker: Broker, config: AdminConfig) -> Services:
    """Make the services of handlers."""
    pace = StepPace(lambda: broker.dispatcher.statistics().turns_count)
    sampler = Sampler(broker.shards, broker.connections, pace, contain=broker.contain)
    maps = FlowMaps(broker.manager, broker.shards, broker.connections, sampler, pace)
    reader = MessageReader(broker.manager)
    seat = broker.seat
    access = Access(
        broker.guard,
        config,
        keep=broker.manager.keep,
        clock=broker.clock,
        secret=None if seat is None else seat.admin_secret,
        hub="" if seat is None else seat.hub,
    )
    together = None
    if seat is not None:
        from sluiceway.admin.together import HubsTogether  # a broker without a cluster does without

        assert broker.questions is not None and broker.calls is not None, "they are made with the seat"
        together = HubsTogether(
            seat.hub,
            broker.questions,
            broker.calls,
            access,
            pace,
            request_seconds=config.request_seconds,
            own_metrics=broker.metrics_page,
            shares_port=seat.admin_secret is not None,
            proxies=lambda: broker.connections.proxies,
        )
        access.elsewhere = together.session_at
    return Services(
        broker=broker,
        access=access,
        pace=pace,
        sampler=sampler,
        history=History(broker.manager, broker.shards, broker.connections, pace, contain=broker.contain),
        maps=maps,
        state=StateAnswers(broker, sampler, maps, pace),
        reader=reader,
        messages=Messages(
            broker.shards,
            broker.pulse,
            reader,
            pace,
            dead_letter_queues=lambda: broker.config.dead_letter_queues,
            clock=broker.clock,
        ),
        operations=Operations(broker, reader),
        together=together,
    )
