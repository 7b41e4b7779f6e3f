"""Accepts connections on one address and hands them on.

Bounds: `connections_max`; one more gets an ERROR and is closed. When the process runs out of file descriptors or
memory, accepting pauses until there are some again; connections are unaffected. Either is logged once at its beginning
and once at its end, however many clients try meanwhile.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from ..flow.upkeep import UPKEEP_FULL, UPKEEP_REMEDY
from .framing import refusal
from .log import get_logger
from .streams import SocketStream
from .warning_limiter import WarningLimiter

ACCEPTS_PER_WAKE_UP: Final = 64
BACKLOG: Final = 1024
EXHAUSTED_PAUSE_SECONDS: Final = 0.25
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NOT_OURS: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,  # a firewall of this machine
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EOPNOTSUPP,
        errno.ETIMEDOUT,
    }
)
"""Errors that accept() reports of a connection that failed before it was taken. The listener itself is sound."""

log = get_logger("sluiceway.listener")


class ListenError(OSError):
    """The listener can't listen on an address.

    `address` is as configured, `reason` the system's error or what is wrong with the address.
    """

    def __init__(self, address: str, reason: OSError | str) -> None:
        said = _remedy(reason) if isinstance(reason, OSError) else reason
        super().__init__(f"cannot listen on {address}: {said}")
        self.address = address
        self.reason = reason


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, [V6]:PORT or :PORT. Raises ListenError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ListenError(address, "write it as HOST:PORT, such as 127.0.0.1:61613 or [::1]:61613")
    return host.strip("[]"), int(port)


async def bind(address: str) -> list[socket.socket]:
    """Sockets that have this address (several if the host name has several), and do not listen yet: `start_listening`.
    Raises ListenError.
    """
    return _bound(address, await _found(address), split_address(address)[1])


async def bind_shared(address: str, processes_count: int) -> list[list[socket.socket]]:
    """Sockets as those of `bind`, once for each of several processes: the kernel spreads new connections over them.
    Raises ListenError, also if another program has the address and would share it.
    """
    port = split_address(address)[1]
    found = await _found(address)
    first = _bound(address, found, port)  # fails if anybody has the address, which one that is to be shared would not
    port = first[0].getsockname()[1]
    for listening in first:
        listening.close()
    found = [(*each[:4], (each[4][0], port, *each[4][2:])) for each in found]
    bound: list[list[socket.socket]] = []
    try:
        for _process in range(processes_count):
            bound.append(_bound(address, found, port, is_shared=True))
    except ListenError:
        for listening in (listening for some in bound for listening in some):
            listening.close()
        raise
    return bound


async def _found(address: str) -> Sequence[tuple[Any, ...]]:
    host, port = split_address(address)
    try:
        return await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        reason = f"the host is not known ({error.strerror}): use an address of this machine"
        raise ListenError(address, reason) from None


def bind_now(address: str) -> list[socket.socket]:
    """Sockets that listen on this address, without waiting: the host must be written as an address, or be `localhost`.
    Raises ListenError.
    """
    host, port = split_address(address)
    flags = socket.AI_PASSIVE if host == "localhost" else socket.AI_PASSIVE | socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        raise ListenError(
            address, "names of hosts are looked up at the start only: write an address such as 127.0.0.1, or restart"
        ) from None
    sockets = _bound(address, found, port)
    start_listening(address, sockets)
    return sockets


def start_listening(address: str, sockets: Sequence[socket.socket]) -> None:
    """Begin to listen: clients wait in the backlog from now on. Raises ListenError, with all sockets closed."""
    try:
        for listening in sockets:
            listening.listen(BACKLOG)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise ListenError(address, error) from None


def _bound(
    address: str, found: Sequence[tuple[Any, ...]], port: int, *, is_shared: bool = False
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _name, where in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if len(sockets) > 1 and port == 0:
                where = (where[0], sockets[0].getsockname()[1], *where[2:])
            listening.setblocking(False)
            listening.bind(where)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise ListenError(address, error) from None
    return sockets


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use: stop the other program, or choose another port (0 picks a free one)"
    if error.errno == errno.EACCES:
        return "not allowed: ports below 1024 need privileges, choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address: use one of its own, 127.0.0.1 or 0.0.0.0"
    return error.strerror or str(error)


def name_of(where: tuple[object, ...]) -> str:
    """A socket address for people: 127.0.0.1:61613, [::1]:61613."""
    host, port = where[0], where[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


class SocketListener:
    """One listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        connections_max: int,
        accepted: Callable[[SocketListener, SocketStream], None],
        speaks_plainly: bool = True,
        contain: Callable[[Exception], None] | None = None,
        why_not: Callable[[str], str] | None = None,
    ) -> None:
        """Make a listener. `accepted` takes each new connection and starts to serve it; count ended ones with
        `connection_ended`. `speaks_plainly`: no TLS, no WebSocket; else a refused client gets no answer. `contain` is
        given exceptions of one connection or one accept (None: an exception ends `run`). `why_not` returns the reason
        why the broker has no room for one more connection, in words, empty if it has (None: it always has).
        """
        self._socket = listening
        self.connections_max = connections_max
        """Maximum of open connections. A change leaves existing connections alone."""
        self.speaks_plainly = speaks_plainly
        self._accepted = accepted
        self._contain = contain
        self._why_not = why_not
        self.connections_count = 0
        self.accepted_count = 0
        self.refused_count = 0
        self._closed = False
        self._bursts = WarningLimiter(trio.current_time)
        """Limit of log lines: at a limit every other connection may be refused."""
        self._exhausted = False
        """The log says last that accepting pauses for want of file descriptors or memory."""
        self._full = False
        """The log says last that a connection was refused."""
        self.address = name_of(listening.getsockname())

    def connection_ended(self) -> None:
        """Count one connection less."""
        self.connections_count -= 1

    async def run(self) -> None:
        """Accept until cancelled or closed."""
        try:
            while not self._closed:
                await trio.lowlevel.wait_readable(self._socket)
                if not self._accept_carefully():
                    await trio.sleep(EXHAUSTED_PAUSE_SECONDS)
        except trio.ClosedResourceError:
            return

    def _accept_carefully(self) -> bool:
        try:
            return self._accept_some()
        except Exception as error:
            if self._contain is None:
                raise
            self._contain(error)
            return False

    def _accept_some(self) -> bool:
        """Take what waits. False: out of file descriptors or memory, try again later."""
        for _ in range(ACCEPTS_PER_WAKE_UP):
            try:
                connected, where = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return True
            except OSError as error:
                if error.errno in NOT_OURS:
                    log.info("connection failed before it was accepted", address=self.address, reason=error.strerror)
                    continue
                if error.errno not in EXHAUSTED:
                    raise
                self._say_exhausted(error)
                return False
            stream = SocketStream(connected, name_of(where))
            if self.connections_count >= self.connections_max:
                self._refuse(
                    stream,
                    "too-many-connections",
                    f"this listener has its {self.connections_max} connections already",
                    "raise connections_max of the listener, or find the clients that keep them open",
                    "Close some, or raise connections_max of the listener.",
                )
                continue
            if self._why_not is not None and (why_not := self._why_not("a connection")):
                self._refuse(stream, UPKEEP_FULL, why_not, UPKEEP_REMEDY, UPKEEP_REMEDY)
                continue
            if self._exhausted or self._full:
                self._exhausted = self._full = False
                log.warning("accepting again", address=self.address, refused=self.refused_count)
            self.connections_count += 1
            self.accepted_count += 1
            try:
                self._accepted(self, stream)
            except BaseException:
                self.connections_count -= 1
                stream.abandon()
                raise
        return True

    def _say_exhausted(self, error: OSError) -> None:
        """Log the shortage once: it may last, and the listener tries again four times a second."""
        if self._exhausted:
            return
        more_count = self._bursts.say("exhausted")
        if more_count is not None:
            self._exhausted = True
            log.error(
                "cannot accept",
                more_since_last=more_count,
                address=self.address,
                connections=self.connections_count,
                reason=error.strerror,
                remedy="raise the limit of open files (ulimit -n), or lower connections_max",
            )

    def _refuse(self, stream: SocketStream, code: str, reason: str, remedy: str, body: str) -> None:
        self.refused_count += 1
        more_count = None if self._full else self._bursts.say("full")
        if more_count is not None:
            self._full = True
            log.warning(
                "connection refused",
                more_since_last=more_count,
                peer=stream.peer,
                address=self.address,
                reason=reason,
                connections_max=self.connections_max,
                remedy=remedy,
            )
        try:
            answer = refusal(reason, code=code, body=body)
            if self.speaks_plainly:
                stream.write([answer])
        except OSError as error:
            log.info("refused connection was gone already", peer=stream.peer, reason=error.strerror)
        stream.shutdown_write()
        stream.close()

    def close(self) -> None:
        """Stop accepting."""
        self._closed = True
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    def abandon(self) -> None:
        """Give the port back when trio has ended already, of whatever cause."""
        self._closed = True
        self._socket.close()
