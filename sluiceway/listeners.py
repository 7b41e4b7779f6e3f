"""The listeners of a broker: opened together, replaced while it runs, and the entrance of each.

All addresses are bound before the first one accepts. A reload is planned first (certificates are read, new addresses
bound), and only a plan that succeeds is carried out: so a mistake changes nothing. Connections that are there stay as
they are; new ones get the new certificate and limits. An address that is no longer listed is closed to new ones.

Bound: connections that are being opened count for `connections_max` of their listener, and live no longer than
`connect_timeout_seconds`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import trio

from sluiceway.cluster.inherited import InheritedSockets, own_key
from sluiceway.config import Listener as ListenerConfig
from sluiceway.config.fields import is_loopback
from sluiceway.protocols.listener import ListenError, SocketListener, bind, bind_now, name_of, start_listening
from sluiceway.protocols.opening import Entrance
from sluiceway.protocols.streams import ByteStream
from sluiceway.protocols.tls import CertificateError, TlsServer

Accepted = Callable[[ByteStream, ListenerConfig, SocketListener], None]
Opened = Callable[[ListenerConfig, SocketListener], None]


@attrs.define(eq=False)
class OpenListener:
    """One configured listener. A host name may have several addresses, and so several sockets."""

    settings: ListenerConfig
    """Settings in force for new connections."""
    entrance: Entrance
    sockets: list[socket.socket]
    own_sockets: list[socket.socket] = attrs.field(factory=list)
    """Sockets of this process alone, where it shares `sockets` with others."""
    listeners: list[SocketListener] = attrs.field(factory=list)
    own_listeners: list[SocketListener] = attrs.field(factory=list)

    @property
    def urls(self) -> list[str]:
        """URLs for clients of the listener."""
        return [self._url(listener.address) for listener in self.listeners]

    @property
    def all_listeners(self) -> list[SocketListener]:
        """Listeners at common addresses and at those of its own."""
        return [*self.listeners, *self.own_listeners]

    def urls_of(self, sockets: Iterable[socket.socket]) -> list[str]:
        """URLs for clients of these sockets, which are bound."""
        return [self._url(name_of(bound.getsockname())) for bound in sockets]

    def _url(self, address: str) -> str:
        path = self.settings.websocket.path if self.entrance.websocket is not None else ""
        return f"{self.entrance.scheme}://{address}{path}"


@attrs.frozen
class Counts:
    """Number of connections of a listener: of all addresses of its host, and of earlier listeners of its name."""

    now_count: int = 0
    accepted_count: int = 0
    refused_count: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.now_count + other.now_count,
            self.accepted_count + other.accepted_count,
            self.refused_count + other.refused_count,
        )


def _counts_of(listener: SocketListener) -> Counts:
    return Counts(listener.connections_count, listener.accepted_count, listener.refused_count)


@attrs.frozen
class ListenerPlan:
    """Verified plan of a reload."""

    kept: tuple[tuple[OpenListener, ListenerConfig, Entrance], ...]
    added: tuple[OpenListener, ...]
    removed: tuple[OpenListener, ...]
    renewed: tuple[str, ...] = ()
    """Names of listeners whose certificate is another one, also where it lies in the same file."""

    def give_up(self) -> None:
        """Give the plan up: close the addresses that it has bound."""
        for entry in self.added:
            for listening in entry.sockets:
                listening.close()


class Listeners:
    """All listeners of a broker."""

    def __init__(
        self,
        *,
        accepted: Accepted,
        opened: Opened,
        clock: Callable[[], float],
        contain: Callable[[Exception], None],
        why_not: Callable[[str], str],
    ) -> None:
        """Make the listeners. `accepted` takes a stream on which STOMP can begin; `opened`: this listener accepts now;
        `contain` is given exceptions of one connection or one accept; `why_not` returns the reason why there is no room
        for one more, in words.
        """
        self._why_not = why_not
        self._contain = contain
        self.listeners: list[SocketListener] = []
        """Listeners that accept, in the order of the configuration."""
        self._entries: list[OpenListener] = []
        self._accepted = accepted
        self._opened = opened
        self._clock = clock
        self._left: list[tuple[str, SocketListener]] = []
        """Closed listeners with connections, and their names."""
        self._gone: dict[str, Counts] = {}
        """Counts of closed listeners whose name another listener has: a sum never decreases."""
        self._nursery: trio.Nursery | None = None
        self._opening: dict[trio.CancelScope, ByteStream] = {}
        self._closed = False

    # ------------------------------------------------------------------ life

    async def bind(self, configured: Iterable[ListenerConfig], inherited: InheritedSockets) -> None:
        """Bind the addresses that are not inherited; clients can't connect yet. Raises ListenError and
        CertificateError, with nothing bound.
        """
        try:
            for settings in configured:
                entrance = self._entrance(settings)
                sockets = inherited.take(settings.address) or await bind(settings.address)
                own_sockets = inherited.take(own_key(settings.address)) or []
                self._entries.append(OpenListener(settings, entrance, sockets, own_sockets))
        except (ListenError, CertificateError):
            self.abandon()
            raise

    def listen(self) -> None:
        """Begin to listen on all addresses. Raises ListenError."""
        for entry in self._entries:
            start_listening(entry.settings.address, [*entry.sockets, *entry.own_sockets])

    def open(self, nursery: trio.Nursery) -> None:
        """Begin to accept, in tasks of this nursery."""
        self._nursery = nursery
        for entry in self._entries:
            self._open(entry)

    def _open(self, entry: OpenListener) -> None:
        for listening in entry.sockets:
            self._accept(entry, listening, entry.listeners)
        for listening in entry.own_sockets:
            self._accept(entry, listening, entry.own_listeners)

    def _accept(self, entry: OpenListener, listening: socket.socket, into: list[SocketListener]) -> None:
        assert self._nursery is not None
        listener = SocketListener(
            listening,
            connections_max=entry.settings.connections_max,
            accepted=partial(self._knocked, entry),
            speaks_plainly=entry.entrance.is_plain,
            contain=self._contain,
            why_not=self._why_not,
        )
        into.append(listener)
        self.listeners.append(listener)
        self._nursery.start_soon(listener.run)
        self._opened(entry.settings, listener)

    def close(self) -> None:
        """Accept no more. Who was about to come in is turned away."""
        self._closed = True
        for listener in self.listeners:
            listener.close()
        for opening in list(self._opening):
            opening.cancel()

    def abandon(self) -> None:
        """Give ports and sockets back when trio has ended already, or has not begun."""
        for entry in self._entries:
            for listening in (*entry.sockets, *entry.own_sockets):
                listening.close()
        for listener in self.listeners:
            listener.abandon()
        for stream in self._opening.values():
            stream.abandon()
        self._opening.clear()

    # ------------------------------------------------------------------ coming in

    def _knocked(self, entry: OpenListener, listener: SocketListener, stream: ByteStream) -> None:
        if entry.entrance.is_plain:
            self._accepted(stream, entry.settings, listener)
        else:
            assert self._nursery is not None
            self._nursery.start_soon(self._let_in, entry.settings, entry.entrance, listener, stream)

    async def _let_in(
        self, settings: ListenerConfig, entrance: Entrance, listener: SocketListener, stream: ByteStream
    ) -> None:
        try:
            await self._open_and_let_in(settings, entrance, listener, stream)
        except Exception as error:  # noqa: BLE001 - an outermost shell
            stream.abandon()
            listener.connection_ended()
            self._contain(error)

    async def _open_and_let_in(
        self, settings: ListenerConfig, entrance: Entrance, listener: SocketListener, stream: ByteStream
    ) -> None:
        opened: ByteStream | None = None
        with trio.CancelScope() as opening:
            self._opening[opening] = stream
            try:
                opened = await entrance.open(stream)
            finally:
                self._opening.pop(opening, None)
        if opened is not None and self._closed:
            opened.close()
            opened = None
        if opened is None:
            listener.connection_ended()
        else:
            self._accepted(opened, settings, listener)

    @property
    def opening_count(self) -> int:
        """Connections in a TLS handshake or WebSocket request."""
        return len(self._opening)

    @property
    def urls(self) -> list[str]:
        """URLs of all listeners: `stomp://127.0.0.1:61613`, `wss://…/stomp`."""
        return [url for entry in self._entries for url in entry.urls]

    def bound_urls(self, *, own: bool) -> list[str]:
        """Return the URLs of all addresses that are bound, also before they accept. `own`: those of this process alone
        in place of those that it shares with others.
        """
        return [url for entry in self._entries for url in entry.urls_of(entry.own_sockets if own else entry.sockets)]

    def counts(self) -> dict[str, Counts]:
        """Return the counts by the name of the listener."""
        self._forget_left()
        found = dict(self._gone)
        entries = ((entry.settings.label, listener) for entry in self._entries for listener in entry.all_listeners)
        for label, listener in (*self._left, *entries):
            found[label] = found.get(label, Counts()) + _counts_of(listener)
        return found

    def _forget_left(self) -> None:
        """Keep only the sums of closed listeners without connections, while their name exists."""
        for label, listener in self._left:
            if not listener.connections_count:
                self._gone[label] = self._gone.get(label, Counts()) + _counts_of(listener)
        self._left = [(label, listener) for label, listener in self._left if listener.connections_count]
        labels = {entry.settings.label for entry in self._entries} | {label for label, _listener in self._left}
        self._gone = {label: counts for label, counts in self._gone.items() if label in labels}

    def labelled_urls(self) -> list[tuple[str, str]]:
        """The name of each listener with its URL."""
        return [(entry.settings.label, url) for entry in self._entries for url in entry.urls]

    # ------------------------------------------------------------------ other settings

    def plan(self, configured: Sequence[ListenerConfig]) -> ListenerPlan:
        """Find out whether these settings can be. Raises CertificateError (for all that are wrong, a line each),
        ListenError: all is as it was.
        """
        left = list(self._entries)
        kept: list[tuple[OpenListener, ListenerConfig, Entrance]] = []
        added: list[tuple[ListenerConfig, Entrance]] = []
        mistakes: list[str] = []
        for settings in configured:
            try:
                entrance = self._entrance(settings)
            except CertificateError as error:
                mistakes.append(f"listeners[{settings.label}].tls: {error}")
                continue
            entry = next((each for each in left if _is_same(each.settings, settings)), None)
            if entry is None:
                added.append((settings, entrance))
            else:
                left.remove(entry)
                kept.append((entry, settings, entrance))
        if mistakes:
            raise CertificateError("\n".join(mistakes))
        # Last: an address that is taken is given back if something else is wrong.
        made: list[OpenListener] = []
        try:
            for settings, entrance in added:
                made.append(OpenListener(settings, entrance, bind_now(settings.address)))
        except ListenError:
            ListenerPlan((), tuple(made), ()).give_up()
            raise
        renewed = [
            settings.label
            for entry, settings, entrance in kept
            if entrance.tls is not None
            and entry.entrance.tls is not None
            and entrance.tls.fingerprint_sha256 != entry.entrance.tls.fingerprint_sha256
        ]
        return ListenerPlan(tuple(kept), tuple(made), tuple(left), tuple(renewed))

    def carry_out(self, plan: ListenerPlan) -> None:
        """Carry the plan out for new connections."""
        for entry, settings, entrance in plan.kept:
            entry.settings, entry.entrance = settings, entrance
            for listener in entry.all_listeners:
                listener.connections_max = settings.connections_max
                listener.speaks_plainly = entrance.is_plain
        for entry in plan.removed:
            self._entries.remove(entry)
            for listener in entry.all_listeners:
                listener.close()
                self.listeners.remove(listener)
                self._left.append((entry.settings.label, listener))
        for entry in plan.added:
            self._entries.append(entry)
            self._open(entry)
        self._forget_left()

    def _entrance(self, settings: ListenerConfig) -> Entrance:
        return Entrance(
            settings.label,
            settings.limits,
            tls=TlsServer(settings.tls) if settings.tls.is_on else None,
            websocket=settings.websocket if settings.protocol == "websocket" else None,
            is_loopback=is_loopback(settings.host),
            clock=self._clock,
        )

    # ------------------------------------------------------------------ certificates of the broker

    def certificates(self) -> list[tuple[str, float]]:
        """The name of each listener with TLS, and when its certificate ends, in seconds since the epoch."""
        return [
            (entry.settings.label, entry.entrance.tls.not_after)
            for entry in self._entries
            if entry.entrance.tls is not None
        ]


def _is_same(one: ListenerConfig, other: ListenerConfig) -> bool:
    return (one.name, one.address) == (other.name, other.address)
