"""The connections of a broker: each is served by a task of its own, until it ends or the broker stops."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import trio

from sluiceway.protocols.connection import Connection
from sluiceway.protocols.listener import SocketListener
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.sessions import SessionTable

log = get_logger("sluiceway.broker")


class Connections:
    """Open connections, in the order of their beginning."""

    def __init__(
        self,
        sessions: SessionTable,
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
    ) -> None:
        """Make an empty table. `sessions` observes sessions; `spawn` starts a task that lives no longer than the
        broker; `contain` is given exceptions of one connection.
        """
        self._spawn = spawn
        self._contain = contain
        self._open: dict[Connection, None] = {}
        self._proxies: set[Connection] = set()
        self._asked_at: float | None = None
        """Time at which all connections were asked to end. None: they were not."""
        self._cut_at = math.inf
        """Clock reading at which connections that are still open are cut."""
        self._waiting = trio.CancelScope()
        """Scope of the wait until then, or until all connections have ended."""
        self._all_ended = trio.Event()
        self.sessions = sessions
        """Sessions by their names."""

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def proxies(self) -> list[Connection]:
        """Open connections whose clients are at other hubs."""
        return [each for each in self._open if each in self._proxies]

    @property
    def clients(self) -> list[Connection]:
        """Open connections without those whose clients are at other hubs: they have another one there."""
        return [each for each in self._open if each not in self._proxies] if self._proxies else list(self._open)

    def begin(
        self, connection: Connection, listener: SocketListener | None, *, client_session: str | None = None
    ) -> None:
        """Serve a connection from now on. `listener` counts its connections; None: the peer came without one.
        `client_session`: that of the client, which is at another hub; None: it is here.
        """
        self.sessions.began(connection.session)
        self._open[connection] = None
        if client_session is not None:
            self._proxies.add(connection)
            self.sessions.is_proxy_of(client_session, connection.session.session_id)
        self._spawn(partial(self._serve, connection, listener))

    async def _serve(self, connection: Connection, listener: SocketListener | None) -> None:
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001 - an outermost shell
            self._contain(error)
        finally:
            del self._open[connection]
            self._proxies.discard(connection)
            if listener is not None:
                listener.connection_ended()
            if self._asked_at is not None and not self._open:
                self._all_ended.set()
            try:
                self.sessions.ended(connection.session)
            except Exception as error:  # noqa: BLE001 - likewise
                self._contain(error)

    async def close(self, seconds: float) -> None:
        """Tell all clients that the broker shuts down, and wait until the last connection has ended. Connections that
        are open after `seconds` are cut. A second call waits for the same, and no longer.
        """
        if self._asked_at is None:
            self._asked_at = trio.current_time()
            self._cut_at = min(self._cut_at, self._asked_at + seconds)
            for connection in list(self._open):
                connection.session.fail(
                    ProtocolError("shutdown", "the broker is shutting down", "Connect again when it is back."),
                    peers_fault=False,
                )
            if not self._open:
                self._all_ended.set()
        with trio.CancelScope(deadline=self._cut_at) as self._waiting:
            await self._all_ended.wait()
        if self._open:
            passed_seconds = round(trio.current_time() - self._asked_at, 3)
            log.warning("connections cut", count=len(self._open), after_seconds=passed_seconds)
            for connection in list(self._open):
                connection.cut()  # requeues its deliveries, before the store is closed

    def cut(self) -> None:
        """Have `close` cut what is open now, or, if it was not called yet, as soon as it is."""
        self._cut_at = self._waiting.deadline = trio.current_time()

    def abandon(self) -> None:
        """Close all streams when trio has ended already."""
        for connection in self._open:
            connection.abandon()
