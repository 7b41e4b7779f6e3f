"""HTTP connections: accepted here, with Hypercorn's HTTP on each. The one module that knows Hypercorn.

Hypercorn's own `serve` accepts every client, and waits without end for a client that does not read. So this module
accepts connections, and gives Hypercorn bounded streams: `connections_max` of them, and each write has to be taken
within `client_seconds`. Hypercorn does the rest: the head of a request has to come whole within that time, and an idle
connection ends after it.

Two habits of Hypercorn would keep a connection of a stranger for ever, so they are prevented here. A body that no
handler reads stops it from reading: the body is dropped as soon as the answer begins. And over HTTP/2 it waits without
end for a client that grants no window: such a client is cut (no browser speaks HTTP/2 without TLS, and over TLS it is
not offered).

Other protocols are answered with 400, or cut. Out of file descriptors: accepting pauses.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from sluiceway.protocols.listener import EXHAUSTED, EXHAUSTED_PAUSE_SECONDS, NOT_OURS, name_of
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.warning_limiter import WarningLimiter

VERSIONS: Final = frozenset({"1.0", "1.1"})
"""Supported versions of HTTP."""
CONNECTION_BYTES: Final = 40 * 1024
"""Memory of an idle connection: tasks, Hypercorn, h11."""
READ_COPIES: Final = 2
CLOSING_SECONDS: Final = 2.0
"""Time for answers under way when the server stops."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

log = get_logger("sluiceway.admin")


class _Quiet:
    """Logger of Hypercorn, which is silenced: the broker's log has the important events already."""

    def __init__(self, _config: HypercornConfig) -> None:
        pass

    async def access(self, *_arguments: Any) -> None:
        pass

    async def exception(self, message: str, *_arguments: Any, **_more: Any) -> None:
        log.exception("internal error", what=message)

    async def log(self, *_arguments: Any, **_more: Any) -> None:
        pass

    critical = error = warning = info = debug = log


class HttpServer:
    """Serves an app on some listening sockets."""

    def __init__(
        self,
        app: Any,
        sockets: list[socket.socket],
        *,
        connections_max: int,
        client_seconds: float,
        contain: Callable[[Exception], None],
        keep: Callable[[int], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Make a server. `tls`: called at each connection for the context in force; None: plain HTTP. Owns the sockets.
        `contain` is given exceptions of accepting, `keep` the bytes that connections take, and release.
        """
        self._contain = contain
        self._keep = keep
        self._app = app
        self._sockets = sockets
        self.connections_max = connections_max
        self._client_seconds = client_seconds
        self._tls = tls
        self.connections_count = 0
        self.refused_count = 0
        self._bursts = WarningLimiter(trio.current_time)
        self._accepting = trio.CancelScope()
        self._ended = trio.Event()
        """End of one connection."""
        self._config = HypercornConfig()
        self._config.keep_alive_timeout = client_seconds
        self._config.ssl_handshake_timeout = client_seconds
        self._config.include_server_header = False
        self._config.logger_class = _Quiet  # type: ignore[assignment]
        self._context = WorkerContext(None)
        scheme = "http" if tls is None else "https"
        self.urls = [f"{scheme}://{name_of(listening.getsockname())}" for listening in sockets]

    async def run(self) -> None:
        """Accept and serve until `close`, or cancelled."""
        try:
            async with trio.open_nursery() as serving:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for listening in self._sockets:
                            accepting.start_soon(self._accept, listening, serving)
                self.abandon()
                await self._context.terminated.set()  # idle connections end now
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
                    self._say("exhausted", "no more HTTP connections for now", reason=error.strerror)
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
                "too many HTTP connections",
                connections_max=self.connections_max,
                remedy="raise connections_max of [admin], or find the clients that send the requests",
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
        self._keep(CONNECTION_BYTES)
        try:
            bounded: Any = _Bounded(stream, self._client_seconds, self._keep)
            if self._tls is not None:
                secured = trio.SSLStream(stream, self._tls(), server_side=True, https_compatible=True)
                bounded = _BoundedTls(secured, self._client_seconds, self._keep)
            with trio.CancelScope() as connection:
                app: Any = _App(self._app, connection)
                try:
                    await TCPServer(app, self._config, self._context, ConnectionState({}), bounded)
                finally:
                    bounded.forget()
        except Exception:
            # The outermost shell of one HTTP connection: whatever a peer makes Hypercorn do costs this connection.
            more_count = self._bursts.say("broke")
            if more_count is not None:
                log.exception("an HTTP connection broke", more_since_last=more_count)
        finally:
            self.connections_count -= 1
            self._keep(-CONNECTION_BYTES)
            self._ended.set()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._client_seconds):
                await trio.aclose_forcefully(stream)


class _App:
    """The app, as Hypercorn calls it for the requests of one connection."""

    def __init__(self, app: Any, connection: trio.CancelScope) -> None:
        self._app = app
        self._connection = connection

    async def __call__(self, scope: Any, receive: Receive, send: Send, *_spawners: Any) -> None:
        if scope.get("http_version", "1.1") not in VERSIONS:
            self._connection.cancel()
            await trio.lowlevel.checkpoint()
        if not _has_body(scope):
            await self._app(scope, receive, send)
            return
        async with trio.open_nursery() as nursery:

            async def send_and_drop(message: Any) -> None:
                if message["type"] == "http.response.start":
                    nursery.start_soon(_drop, receive)
                await send(message)

            await self._app(scope, receive, send_and_drop)
            nursery.cancel_scope.cancel()


def _has_body(scope: Any) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _value in scope["headers"])


async def _drop(receive: Receive) -> None:
    """Drop the rest of a body, until the request ends."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Bounded:
    """A stream whose writes have a deadline, and whose bytes are counted. As much of it as Hypercorn asks for."""

    def __init__(self, stream: Any, seconds: float, keep: Callable[[int], None]) -> None:
        self._stream = stream
        self._seconds = seconds
        self._keep = keep
        self._read_bytes = 0
        """Bytes of the last read: Hypercorn holds them until the next read, and h11 what it has parsed of them."""
        self._sending = trio.Lock()
        """Lock of writes: an answer may be under way when the bytes behind its request turn out to be no HTTP, and
        the client must be told behind the answer.
        """

    @property
    def socket(self) -> Any:
        return self._stream.socket

    async def receive_some(self, count: int) -> Any:
        data = await self._stream.receive_some(count)
        self._keep(READ_COPIES * (len(data) - self._read_bytes))
        self._read_bytes = len(data)
        return data

    def forget(self) -> None:
        """The connection is over."""
        self._keep(-READ_COPIES * self._read_bytes)
        self._read_bytes = 0

    async def send_all(self, data: bytes) -> None:
        self._keep(len(data))
        try:
            with trio.fail_after(self._seconds):
                async with self._sending:
                    await self._stream.send_all(data)
        except trio.TooSlowError:
            raise trio.BrokenResourceError("it does not take its answer") from None
        finally:
            self._keep(-len(data))

    async def send_eof(self) -> None:
        async with self._sending:
            await self._stream.send_eof()

    async def aclose(self) -> None:
        with trio.move_on_after(self._seconds):
            await self._stream.aclose()


class _BoundedTls(_Bounded):
    """Likewise, over TLS."""

    @property
    def socket(self) -> Any:
        raise AttributeError("ask its transport")  # how Hypercorn tells one from the other

    @property
    def transport_stream(self) -> Any:
        return self._stream.transport_stream

    async def do_handshake(self) -> None:
        await self._stream.do_handshake()

    def selected_alpn_protocol(self) -> str | None:
        return None  # HTTP/1.1: a console of one person needs no more
