"""Links of one hub to all others: dialled, accepted, made again.

The hub with the lesser id dials, so that two hubs have one link; it tries again with a growing pause. A hub that
connects while an older link of it is there takes its place: the older one may be half-open.

`Links` is also the port `Elsewhere` of sessions. Identity: a shared secret, or a stream that tells who the peer is: a
client certificate that names the hub, a Unix socket of the same user.

Bounds: links without proof PENDING_MAX, each for HANDSHAKE_SECONDS; one link for each other hub.
"""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import attrs
import trio

from sluiceway.cluster.inherited import InheritedSockets
from sluiceway.cluster.membership import Membership
from sluiceway.cluster.placement import Peers, Placement, TablePlacement, WithTemporaries, session_prefix
from sluiceway.cluster.topics import NO_COPIES, TopicInterest
from sluiceway.protocols.link.flow import Flow, FlowUser
from sluiceway.protocols.link.greeting import CHALLENGE_BYTES, Greeting
from sluiceway.protocols.link.machine import LinkMachine, LinkState
from sluiceway.protocols.link.records import LinkFault
from sluiceway.protocols.link.shell import HANDSHAKE_SECONDS, LinkConnection, LinkHub
from sluiceway.protocols.listener import ListenError, bind, name_of, split_address, start_listening
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.relaying.far import Far
from sluiceway.protocols.streams import ByteStream, SocketStream
from sluiceway.protocols.tls import TlsStream
from sluiceway.protocols.warning_limiter import WarningLimiter
from sluiceway.version import VERSION

__all__ = ["Links", "Seat", "session_prefix"]

PENDING_MAX: Final = 64
"""Accepted links that have not proved who they are."""
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
UNIX_PAUSE_SECONDS_MAX: Final = 0.25
"""The same on one machine: to ask costs next to nothing, and a hub that is back has its links at once."""
UNIX_PREFIX: Final = "unix:"
ACCEPT_PAUSE_SECONDS: Final = 0.25
SEND_BUFFER_BYTES: Final = 1 << 20
"""Send buffer of a Unix socket, as far as the system allows it: the default is a fifth of a write."""
_CREDENTIALS: Final = struct.Struct("3i")

log = get_logger("sluiceway.links")


@attrs.frozen(kw_only=True)
class Seat:
    """Place of a hub in its cluster."""

    cluster: str
    """Id of the cluster."""
    hub: str
    """Id of this hub: letters, digits, `.`, `_` and `-`."""
    shards_count: int
    placement: Placement = TablePlacement("", lambda _name: "", ())
    """Homes of destinations, where they are fixed."""
    peers: Peers = dict
    """Addresses of all other live hubs: HOST:PORT, or unix:PATH. Call `Links.look` when they change."""
    listen: str = ""
    """Address of this hub for links; empty: it only dials."""
    secret: bytes | None = attrs.field(default=None, repr=False)
    """Secret of the cluster; None: streams must tell who the peer is."""
    client_tls: ssl.SSLContext | None = None
    """TLS of dialled links, with the certificate of this hub."""
    server_tls: ssl.SSLContext | None = None
    """TLS of accepted links, which asks for certificates."""
    shards: frozenset[int] | None = None
    """Shards that this hub opens at its start; None: all."""
    membership: Membership | None = None
    """Part in dividing the shards up, in place of `placement`, `peers` and `shards`. None: they are fixed."""
    advertised: str = ""
    """Address for links that others are told, where it is not that of `listen`."""
    clients: str = ""
    """URLs for clients that others are told, with blanks between; `none`: no URL; empty: those of the listeners."""
    sockets: InheritedSockets = attrs.field(factory=lambda: InheritedSockets({}))
    """Sockets of listeners that this process was started with."""
    shares_addresses: bool = False
    """Whether the addresses of listeners are those of other hubs, too; clients are told those of its own."""
    admin_secret: bytes | None = attrs.field(default=None, repr=False)
    """Secret of the hubs that answer at one admin port, for tokens that are good at each of them; None: this hub has a
    port of its own.
    """
    has_run: bool = False
    """Whether the hub has run before under the same supervisor: others answer at the admin port while it starts."""
    dial: Callable[[str], Awaitable[ByteStream]] | None = None
    """Opens a stream to an address, in place of a socket."""

    def __attrs_post_init__(self) -> None:
        """Refuse an id that can't be a part of a name. Raises ValueError."""
        if not self.hub or not all(each.isalnum() or each in "._-" for each in self.hub):
            raise ValueError(f"the hub id {self.hub!r} has characters other than letters, digits, '.', '_' and '-'")


class FlowTaker(Protocol):
    """Owner's side of flows. `sluiceway.cluster.proxies.Proxies` fits."""

    def opened(self, peer_hub: str, flow: Flow, payload: bytes) -> FlowUser:
        """Serve a flow that another hub has opened. Raises LinkFault."""


class Standing(Protocol):
    """Part of this hub in a cluster whose shards move. `sluiceway.cluster.host.Member` fits."""

    @property
    def session(self) -> str | None:
        """Session in which this hub is in the cluster; None: it is in none."""

    def certain_seconds(self) -> float:
        """Return for how long this hub is certain of that session, from now on; 0 or less: it is not."""


class Links:
    """All links of one hub."""

    def __init__(
        self,
        seat: Seat,
        hub: LinkHub,
        proxies: FlowTaker,
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        open_shards: Callable[[], Iterable[int]] | None = None,
        shards_changed: Callable[[str], None] = lambda _hub: None,
        standing: Standing | None = None,
    ) -> None:
        """Make the links; `begin` dials. `spawn` starts a task that lives no longer than the broker; `open_shards`:
        shards that are open here, where that changes; `shards_changed`: another hub has opened or closed some;
        `standing`: None: this hub is in its cluster as long as it runs.
        """
        self._standing = standing
        self.seat = seat
        self._open_shards = open_shards
        self._shards_changed = shards_changed
        self.placement = WithTemporaries(seat.hub, seat.placement, seat.peers)
        self._hub = hub
        self._proxies = proxies
        self._spawn = spawn
        self._run_id = secrets.token_hex(8)
        self.topics = TopicInterest(
            seat.hub,
            int(self._run_id, 16),
            seat.shards_count,
            self.placement,
            seat.peers,
            self,
            clock=hub.clock,
            tell=self._tell,
        )
        self._open: dict[str, LinkConnection] = {}
        self._all: dict[LinkConnection, None] = {}
        self._dialling: dict[str, trio.CancelScope] = {}
        self._unlinked_since_seconds: dict[str, float] = {}
        """Time since which there is no link to each hub that lives."""
        self._pending_count = 0
        self._watchers: dict[Callable[[], None], None] = {}
        self._sockets: list[socket.socket] = []
        self._warnings = WarningLimiter(hub.clock)
        self._closed = False
        self.addresses: list[str] = []
        """Addresses at which this hub accepts links."""

    # ------------------------------------------------------------------ life

    async def begin(self) -> None:
        """Listen, and dial the hubs that are known. Raises ListenError."""
        if self.seat.listen:
            await self._listen(self.seat.listen)
        self.look()

    async def _listen(self, address: str) -> None:
        if address.startswith(UNIX_PREFIX):
            self._sockets = [_listen_at_path(Path(address.removeprefix(UNIX_PREFIX)))]
            self.addresses = [address]
        else:
            self._sockets = await bind(address)
            start_listening(address, self._sockets)
            self.addresses = [name_of(each.getsockname()) for each in self._sockets]
        for listening in self._sockets:
            self._spawn(partial(self._accept, listening))

    def look(self) -> None:
        """Act on changed peers or placement: dial new ones, and tell the sessions that wait."""
        if self._closed:
            return
        self.placement.look()
        peers = self.seat.peers()
        for peer in peers:
            if self.seat.hub < peer and peer not in self._dialling:
                scope = self._dialling[peer] = trio.CancelScope()
                self._spawn(partial(self._keep_dialling, peer, scope))
        for peer in list(self._dialling):
            if peer not in peers:
                self._dialling.pop(peer).cancel()
        since_seconds, now_seconds = self._unlinked_since_seconds, self._hub.clock()
        self._unlinked_since_seconds = {
            peer: since_seconds.get(peer, now_seconds) for peer in peers if peer not in self._open
        }
        for peer, link in list(self._open.items()):
            if peer not in peers:
                link.end(f"hub {peer} has left the cluster")
        self.topics.look()
        self._tell()

    def part(self, reason: str) -> None:
        """Take no new flows, and have the other hubs open none."""
        for link in self._open.values():
            link.machine.part(reason)

    async def close(self) -> None:
        """Say goodbye on all links and close them."""
        self._closed = True
        self._close_sockets()
        for scope in self._dialling.values():
            scope.cancel()
        async with trio.open_nursery() as nursery:
            for link in list(self._all):
                nursery.start_soon(link.part, "the hub stops")

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            trio.lowlevel.notify_closing(listening)
            listening.close()
        self._sockets = []

    def abandon(self) -> None:
        """Give ports back when trio has ended already."""
        for listening in self._sockets:
            listening.close()
        for link in self._all:
            link.abandon()

    # ------------------------------------------------------------------ Elsewhere

    def open(self, hub: str, opening: Mapping[str, object], user: FlowUser) -> Flow | None:
        """Do `Elsewhere.open`."""
        link = self._open.get(hub)
        if link is None or not link.machine.takes_flows:
            return None
        return link.machine.open(json.dumps(opening).encode(), user)

    def watch(self, callback: Callable[[], None]) -> None:
        """Do `Elsewhere.watch`."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Do `Elsewhere.unwatch`."""
        self._watchers.pop(callback, None)

    def _tell(self) -> None:
        for callback in list(self._watchers):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - one session is not to cost the others
                self._hub.contain(error)

    @property
    def reachable(self) -> list[str]:
        """Ids of the hubs to which there is a link."""
        return sorted(self._open)

    def facts(self) -> list[dict[str, object]]:
        """Return each link as data: hub, address, number of flows."""
        return [
            {
                "hub": peer,
                "address": link.address,
                "flows_count": len(link.machine.flows) - self.topics.flows_count(peer),
                "copies": attrs.asdict(self.topics.copies.get(peer, NO_COPIES)),
            }
            for peer, link in sorted(self._open.items())
        ]

    def unlinked_seconds(self) -> dict[str, float]:
        """Return the time for which there is no link to each hub that lives, by id; none for those that have one."""
        now_seconds = self._hub.clock()
        return {peer: now_seconds - since for peer, since in sorted(self._unlinked_since_seconds.items())}

    def unlinked(self) -> list[dict[str, object]]:
        """Return each hub that lives and to which there is no link as data, with the time for which there is none."""
        return [{"hub": hub, "seconds": seconds} for hub, seconds in self.unlinked_seconds().items()]

    def sessions_on_links(self) -> Iterator[str]:
        """Yield the session of each client here that has a flow to another hub: also of one that has gone, as long as
        the other hub has not ended the flow. Links may change meanwhile.
        """
        for link in list(self._all):
            for flow in list(link.machine.flows.values()):
                if isinstance(flow.user, Far):
                    yield flow.user.session_id

    @property
    def term(self) -> str | None:
        """Do `Elsewhere.term`."""
        return "" if self._standing is None else self._standing.session

    def may_deliver(self, term: str | None) -> bool:
        """Do `Elsewhere.may_deliver`."""
        standing = self._standing
        return standing is None or (standing.certain_seconds() > 0 and standing.session == term)

    def _certain_seconds(self) -> float:
        return math.inf if self._standing is None else self._standing.certain_seconds()

    def shards_at(self, hub: str) -> frozenset[int]:
        """Do `Elsewhere.shards_at`."""
        link = self._open.get(hub)
        return frozenset() if link is None else link.machine.shards or frozenset()

    def announce(self) -> None:
        """Tell all hubs which shards are open here now."""
        self.topics.look_at_shards()
        for link in self._open.values():
            self._announce_to(link)

    def _announce_to(self, link: LinkConnection) -> None:
        if self._open_shards is not None and link.machine.state is LinkState.OPEN:
            link.machine.announce(self._open_shards())

    # ------------------------------------------------------------------ dialling

    async def _keep_dialling(self, peer: str, scope: trio.CancelScope) -> None:
        pause_seconds = PAUSE_SECONDS_MIN
        with scope:
            while not self._closed:
                address = self.seat.peers().get(peer)
                if address is None:
                    break
                try:
                    if await self._dial(peer, address):
                        pause_seconds = PAUSE_SECONDS_MIN
                except (OSError, LinkFault) as error:
                    self._warn("dial", "no link to a hub", peer=peer, address=address, reason=str(error))
                await trio.sleep(pause_seconds * random.uniform(0.5, 1.0))
                longest_seconds = UNIX_PAUSE_SECONDS_MAX if address.startswith(UNIX_PREFIX) else PAUSE_SECONDS_MAX
                pause_seconds = min(pause_seconds * 2, longest_seconds)
        if self._dialling.get(peer) is scope:
            del self._dialling[peer]

    async def _dial(self, peer: str, address: str) -> bool:
        """Dial a hub and serve the link to its end. False: the link was refused. Raises OSError: nothing answers."""
        is_proved = False

        def proved() -> None:
            nonlocal is_proved
            is_proved = True

        stream = await (self.seat.dial(address) if self.seat.dial else self._connect(peer, address))
        await self.serve(stream, dialled=True, expected_hub=peer, proved=proved)
        return is_proved

    async def _connect(self, peer: str, address: str) -> ByteStream:
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                return await self._open_stream(peer, address)
        except trio.TooSlowError:
            raise OSError(f"nothing answered within {HANDSHAKE_SECONDS:g} seconds") from None

    async def _open_stream(self, peer: str, address: str) -> ByteStream:
        """Open a stream; with TLS the other end has to have a certificate that names the hub."""
        if address.startswith(UNIX_PREFIX):
            connected = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            await connected.connect(address.removeprefix(UNIX_PREFIX))
            return _stream_of(connected, address)
        host, port = split_address(address)
        opened = await trio.open_tcp_stream(host, port)
        stream = _stream_of(opened.socket, address)
        if self.seat.client_tls is not None:
            secured = TlsStream(stream, self.seat.client_tls, server_hostname=peer)
            try:
                await secured.handshake()
            except BaseException:
                stream.close()
                raise
            return secured
        return stream

    # ------------------------------------------------------------------ accepting

    async def _accept(self, listening: socket.socket) -> None:
        try:
            while not self._closed:
                await trio.lowlevel.wait_readable(listening)
                try:
                    connected, where = listening.accept()
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError as error:
                    self._warn("accept", "a link can't be accepted", reason=error.strerror)
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                self.accepted(_accepted_stream(connected, where))
        except trio.ClosedResourceError:
            return

    def accepted(self, stream: ByteStream) -> None:
        """Serve a link that another hub has opened; too many without proof are closed at once."""
        if self._closed or self._pending_count >= PENDING_MAX:
            if not self._closed:
                self._warn("pending", "too many links without proof", pending=self._pending_count)
            stream.close()
            return
        self._pending_count += 1
        self._spawn(partial(self._serve_accepted, stream))

    async def _serve_accepted(self, stream: ByteStream) -> None:
        is_pending = True

        def proved() -> None:
            nonlocal is_pending
            if is_pending:
                is_pending = False
                self._pending_count -= 1

        try:
            if self.seat.server_tls is not None:
                secured = TlsStream(stream, self.seat.server_tls)
                with trio.move_on_after(HANDSHAKE_SECONDS) as waiting:
                    await secured.handshake()
                if waiting.cancelled_caught:
                    stream.close()
                    return
                stream = secured
            await self.serve(stream, dialled=False, proved=proved)
        except OSError as error:
            stream.close()
            self._warn("accepted", "a link was refused", peer=stream.peer, reason=str(error))
        finally:
            proved()

    # ------------------------------------------------------------------ one link

    async def serve(
        self,
        stream: ByteStream,
        *,
        dialled: bool,
        expected_hub: str | None = None,
        proved: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve one link to its end."""
        seat = self.seat
        ours = Greeting(
            cluster=seat.cluster,
            hub=seat.hub,
            software=f"sluiceway/{VERSION}",
            shards_count=seat.shards_count,
            challenge=secrets.token_hex(CHALLENGE_BYTES),
            run=self._run_id,
        )

        def make(request_write: Callable[[], None]) -> LinkMachine:
            return LinkMachine(
                ours,
                dialled=dialled,
                secret=seat.secret,
                clock=self._hub.clock,
                opened=lambda flow, payload: self._proxies.opened(link.peer_hub, flow, payload),
                request_write=request_write,
                expected_hub=expected_hub,
                prove=partial(_prove, stream, dialled),
                certain_seconds=self._certain_seconds,
            )

        def opened(link: LinkConnection) -> None:
            proved()
            self._link_opened(link)

        link = LinkConnection(self._hub, stream, make, spawn=self._spawn, opened=opened, ended=self._link_ended)
        self._all[link] = None
        await link.run()

    def _link_opened(self, link: LinkConnection) -> None:
        peer = link.peer_hub
        if peer not in self.seat.peers():
            raise LinkFault(f"hub {peer!r} is no hub of this cluster (now)")
        older = self._open.get(peer)
        self._open[peer] = link
        self._unlinked_since_seconds.pop(peer, None)
        if older is not None:
            older.end("a newer link has taken its place")
        log.info("link opened", peer=peer, address=link.address)
        link.machine.shards_changed = partial(self._shards_changed, peer)
        link.machine.lease_renewed = self._tell
        self._announce_to(link)
        if link.machine.shards is not None:
            self._shards_changed(peer)  # it came with the last record of the handshake
        assert link.machine.peer is not None, "it has proved who it is"
        self.topics.linked(peer, _number_of(link.machine.peer.run))
        self._tell()

    def _link_ended(self, link: LinkConnection, reason: str) -> None:
        self._all.pop(link, None)
        if self._open.get(link.peer_hub) is link:
            del self._open[link.peer_hub]
            if link.peer_hub in self.seat.peers():
                self._unlinked_since_seconds[link.peer_hub] = self._hub.clock()
            log.warning("link lost", peer=link.peer_hub, address=link.address, reason=reason)
        elif not self._closed:
            self._warn("refused", "a link was refused", peer=link.address, reason=reason)

    def _warn(self, key: str, event: str, **facts: object) -> None:
        more_count = self._warnings.say(key)
        if more_count is not None:
            log.warning(event, more_since_last=more_count, **facts)


def _number_of(run: str) -> int:
    """Return the id of a run as a number; 0: it is none."""
    try:
        number = int(run, 16)
    except ValueError:
        return 0
    return number if 0 <= number < 1 << 64 else 0


def _prove(stream: ByteStream, dialled: bool, peer: Greeting) -> None:
    """Check that a stream tells who the peer is, where there is no secret. Raises LinkFault."""
    certificate = stream.peer_certificate
    if certificate is not None:
        if peer.hub not in certificate.names:
            raise LinkFault(
                f"the certificate of the peer is for {', '.join(certificate.names)}, not for hub {peer.hub!r}"
            )
        return
    if isinstance(stream, UnixStream):
        if stream.peer_user_id not in (os.getuid(), 0):
            raise LinkFault(f"the peer runs as user {stream.peer_user_id}, this hub as {os.getuid()}")
        return
    side = "accepted" if not dialled else "dialled"
    raise LinkFault(
        f"nothing proves that the peer of this {side} link is hub {peer.hub!r}: give the cluster a secret, or hubs "
        f"certificates"
    )


class UnixStream(SocketStream):
    """A Unix socket, which tells the user at the other end."""

    __slots__ = ("peer_user_id",)

    def __init__(self, connected: socket.socket, peer: str) -> None:
        super().__init__(connected, peer)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.peer_user_id: int = _CREDENTIALS.unpack(credentials)[1]


def _stream_of(connected: trio.socket.SocketType, address: str) -> SocketStream:
    """Take the descriptor of a socket of trio."""
    plain = socket.socket(connected.family, connected.type, connected.proto, fileno=connected.detach())
    return UnixStream(plain, address) if plain.family == socket.AF_UNIX else SocketStream(plain, address)


def _accepted_stream(connected: socket.socket, where: tuple[object, ...] | str) -> SocketStream:
    if connected.family == socket.AF_UNIX:
        return UnixStream(connected, f"{UNIX_PREFIX}{connected.getsockname()}")
    assert isinstance(where, tuple), "an internet address"
    return SocketStream(connected, name_of(where))


def _listen_at_path(path: Path) -> socket.socket:
    """Listen at a path, for this user alone. Raises ListenError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.setblocking(False)
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise ListenError(f"{UNIX_PREFIX}{path}", error) from None
    return listening
