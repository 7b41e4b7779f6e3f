"""HTTP connections: Hypercorn's HTTP on each that is accepted. The one module that knows Hypercorn.

Hypercorn's own `serve` accepts every client, and waits without end for a client that does not read. So connections are
accepted by a `TaskServer`, and Hypercorn is given bounded streams: `connections_max` of them, and each write has to be
taken within `client_seconds`. Hypercorn does the rest: the head of a request has to come whole within that time, and an
idle connection ends after it.

Two habits of Hypercorn would keep a connection of a stranger for ever, so they are prevented here. A body that no
handler reads stops it from reading: the body is dropped as soon as the answer begins. And over HTTP/2 it waits without
end for a client that grants no window: such a client is cut (no browser speaks HTTP/2 without TLS, and over TLS it is
not offered).

Other protocols are answered with 400, or cut.
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

from sluiceway.protocols.listener import name_of
from sluiceway.protocols.log import get_logger
from sluiceway.task_server import TaskServer

VERSIONS: Final = frozenset({"1.0", "1.1"})
"""Supported versions of HTTP."""
CONNECTION_BYTES: Final = 40 * 1024
"""Memory of an idle connection: tasks, Hypercorn, h11."""
READ_COPIES: Final = 2

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
        self._app = app
        self._client_seconds = client_seconds
        self._tls = tls
        self._config = HypercornConfig()
        self._config.keep_alive_timeout = client_seconds
        self._config.ssl_handshake_timeout = client_seconds
        self._config.include_server_header = False
        self._config.logger_class = _Quiet  # type: ignore[assignment]
        self._context = WorkerContext(None)
        self.tasks = TaskServer(
            self._serve,
            sockets,
            kind="HTTP",
            section="admin",
            connections_max=connections_max,
            connection_bytes=CONNECTION_BYTES,
            client_seconds=client_seconds,
            contain=contain,
            keep=keep,
        )
        self._keep = keep
        scheme = "http" if tls is None else "https"
        self.urls = [f"{scheme}://{name_of(listening.getsockname())}" for listening in sockets]

    async def run(self) -> None:
        """Accept and serve until `close`, or cancelled."""
        await self.tasks.run(closing=self._context.terminated.set)  # idle connections end then

    def close(self) -> None:
        """Accept no more; answers under way have CLOSING_SECONDS, then `run` returns."""
        self.tasks.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
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
