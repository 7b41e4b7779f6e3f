"""Accepts connections that a task each serves: HTTP, Thrift. Not for STOMP, whose plain sockets one task reads.

Bounds: `connections_max`; one more is closed at once. Out of file descriptors or memory: accepting pauses. Whatever a
peer makes its task raise costs that connection.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from sluiceway.protocols.listener import EXHAUSTED, EXHAUSTED_PAUSE_SECONDS, NOT_OURS
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.warning_limiter import WarningLimiter

CLOSING_SECONDS: Final = 2.0
"""Time for answers under way when the server stops."""

log = get_logger("sluiceway.task_server")


async def _nothing() -> None:
    pass


class TaskServer:
    """Serves clients on some listening sockets."""

    def __init__(
        self,
        serve: Callable[[trio.SocketStream], Awaitable[None]],
        sockets: list[socket.socket],
        *,
        kind: str,
        section: str,
        connections_max: int,
        connection_bytes: int,
        client_seconds: float,
        contain: Callable[[Exception], None],
        keep: Callable[[int], None],
    ) -> None:
        """Make a server. `serve` has one connection from its beginning to its end, in `client_seconds` of which its
        stream is closed. `kind` and `section`: what connections are called, and the section of the configuration with
        their limit. Owns the sockets. `contain` is given exceptions of accepting, `keep` the bytes that connections
        take, and release.
        """
        self._serve_one = serve
        self._sockets = sockets
        self._kind = kind
        self._section = section
        self.connections_max = connections_max
        """Maximum of open connections. A change leaves existing connections alone."""
        self._connection_bytes = connection_bytes
        self._client_seconds = client_seconds
        self._contain = contain
        self._keep = keep
        self.connections_count = 0
        self.refused_count = 0
        self._bursts = WarningLimiter(trio.current_time)
        self._accepting = trio.CancelScope()
        self._ended = trio.Event()
        """End of one connection."""

    async def run(self, *, closing: Callable[[], Awaitable[None]] = _nothing) -> None:
        """Accept and serve until `close`, or cancelled. `closing`: tells idle connections to end."""
        try:
            async with trio.open_nursery() as serving:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for listening in self._sockets:
                            accepting.start_soon(self._accept, listening, serving)
                self.abandon()
                await closing()
                with trio.move_on_after(CLOSING_SECONDS):
                    while self.connections_count:
                        self._ended = trio.Event()
                        await self._ended.wait()
                serving.cancel_scope.cancel()
        finally:
            self.abandon()

    def close(self) -> None:
        """Accept no more; answers under way have CLOSING_SECONDS, then `run` returns."""
        self._accepting.cancel()

    def abandon(self) -> None:
        """Give the ports back."""
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket, serving: trio.Nursery) -> None:
        accepting = trio.socket.from_stdlib_socket(listening)
        while True:
            try:
                connected, _where = await accepting.accept()
                self._take(connected, serving)
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._say("exhausted", f"no more {self._kind} connections for now", reason=error.strerror)
                    await trio.sleep(EXHAUSTED_PAUSE_SECONDS)
                    continue
                if error.errno in NOT_OURS:
                    continue
                self._contain(error)
                await trio.sleep(EXHAUSTED_PAUSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - the shell of one look
                self._contain(error)
                await trio.sleep(EXHAUSTED_PAUSE_SECONDS)

    def _take(self, connected: trio.socket.SocketType, serving: trio.Nursery) -> None:
        if self.connections_count >= self.connections_max:
            self.refused_count += 1
            self._say(
                "full",
                f"too many {self._kind} connections",
                connections_max=self.connections_max,
                remedy=f"raise connections_max of [{self._section}], or find the clients that send the requests",
            )
            connected.close()
            return
        try:
            stream = trio.SocketStream(connected)
        except BaseException:
            connected.close()
            raise
        self.connections_count += 1
        serving.start_soon(self._serve, stream)

    def _say(self, kind: str, what: str, **facts: object) -> None:
        """Warn of what may last, or come again with each connection."""
        more_count = self._bursts.say(kind)
        if more_count is not None:
            log.warning(what, more_since_last=more_count, **facts)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self._keep(self._connection_bytes)
        try:
            await self._serve_one(stream)
        except Exception:
            # The outermost shell of one connection.
            more_count = self._bursts.say("broke")
            if more_count is not None:
                log.exception(f"a connection over {self._kind} broke", more_since_last=more_count)
        finally:
            self.connections_count -= 1
            self._keep(-self._connection_bytes)
            self._ended.set()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._client_seconds):
                await trio.aclose_forcefully(stream)
