"""Steps of a connection before STOMP: TLS, the WebSocket upgrade, both, or nothing; all of it within one deadline.

An open port sees thousands of broken attempts. A failure costs that connection only, is answered where the peer can
understand an answer, and is logged once per kind and minute, with its count. A bug of the broker costs no more; each
one is logged with its traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from .framing import refusal
from .log import get_logger
from .settings import WebSocketConfig
from .stomp.limits import StompLimits
from .streams import ByteStream
from .tls import HANDSHAKE, NotTlsError, TlsError, TlsServer
from .warning_limiter import WarningLimiter

_LINGER_BYTES: Final = 64 * 1024
_STOMP_BEGINNINGS: Final = (b"CONNECT", b"STOMP")

log = get_logger("sluiceway.listener")


class Entrance:
    """The way in of one listener. Replaced as a whole when its settings change."""

    __slots__ = ("_bursts", "_is_loopback", "_limits", "label", "tls", "websocket")

    def __init__(
        self,
        label: str,
        limits: StompLimits,
        *,
        tls: TlsServer | None,
        websocket: WebSocketConfig | None,
        is_loopback: bool,
        clock: Callable[[], float],
    ) -> None:
        """`label`: of the listener, for the log. `tls`, `websocket`: None where it has none. `is_loopback`: only this
        machine reaches it."""
        self.label = label
        self.tls = tls
        self.websocket = websocket
        self._limits = limits
        self._is_loopback = is_loopback
        self._bursts = WarningLimiter(clock)
        if not self.is_plain:
            # Takes a tenth of the time to load the broker, which most listeners need not spend. Loaded here, not by the
            # first connection, which would hold up others.
            from . import websocket as _loaded  # noqa: F401

    @property
    def is_plain(self) -> bool:
        """Whether STOMP begins at once, without TLS and WebSocket."""
        return self.tls is None and self.websocket is None

    @property
    def scheme(self) -> str:
        """Scheme of the URLs of this listener."""
        if self.websocket is not None:
            return "ws" if self.tls is None else "wss"
        return "stomp" if self.tls is None else "stomp+ssl"

    async def open(self, stream: ByteStream) -> ByteStream | None:
        """Return the stream on which STOMP can begin; None after a failure, which is logged, with `stream` closed.
        Takes at most `connect_timeout_seconds`, and `linger_seconds` for the farewell. Closes `stream` if cancelled.
        """
        from .websocket import NotHttpError, UpgradeRefusedError, WebSocketError, accept_websocket

        limits = self._limits
        opened: ByteStream | None = None
        answer: tuple[ByteStream, bytes] | None = None
        current = stream
        why = kind = ""
        try:
            with trio.move_on_after(limits.connect_timeout_seconds):
                try:
                    if self.tls is not None:
                        secured = self.tls.stream(stream)
                        await secured.handshake()
                        current = secured
                    if self.websocket is not None:
                        current = await accept_websocket(
                            current,
                            self.websocket,
                            message_bytes_max=_message_bytes_max(limits),
                            is_loopback=self._is_loopback,
                        )
                    opened = current
                except NotTlsError as error:
                    why, said = _without_tls(error.began_with, self.scheme)
                    answer, kind = (stream, said), why
                except NotHttpError as error:
                    why, said = _without_http(error.began_with, self.scheme)
                    answer, kind = (current, said), why
                except UpgradeRefusedError as error:
                    why, kind = str(error), f"request refused: {error.status}"  # the reason has words of the peer
                    answer = (current, error.answer)
                except (TlsError, WebSocketError) as error:
                    why = kind = str(error)
                except (OSError, trio.ClosedResourceError) as error:
                    why, kind = f"connection lost: {error}", "connection lost"
                except Exception:
                    # The outermost shell: a bug of the broker, or of a library, costs this connection, not the broker.
                    log.exception("internal error", peer=stream.peer, listener=self.label)
                    why = kind = "internal error"
            if opened is None and not why:
                what = "TLS handshake" if self.tls is not None and current is stream else "WebSocket request"
                why = kind = f"no complete {what} within {limits.connect_timeout_seconds:g} seconds"
            if opened is None:
                self._say(kind, stream.peer, why)
                with trio.move_on_after(limits.linger_seconds):
                    await _part(*(answer if answer is not None else (current, b"")))
        finally:
            if opened is None:
                stream.close()
        return opened

    def _say(self, kind: str, peer: str, why: str) -> None:
        before = self._bursts.say(kind)
        if before is None:
            return
        more = {"times_before": before} if before else {}
        log.warning("connection not opened", peer=peer, listener=self.label, reason=why, **more)


def _message_bytes_max(limits: StompLimits) -> int:
    """Return the size of the largest frame that may arrive; larger messages would be refused anyway."""
    large_bytes = limits.large_body_bytes_max if limits.large_body_bytes else 0
    return limits.header_block_bytes_max + max(limits.body_bytes_max, large_bytes)


async def _part(stream: ByteStream, answer: bytes) -> None:
    """Say this, and let the peer read it: closing with unread input would reset the connection, and destroy it."""
    try:
        if answer:
            stream.write([answer])  # short: the kernel takes it, or the peer is not worth waiting for
        stream.shutdown_write()
        read_bytes = 0
        while read_bytes < _LINGER_BYTES:
            data = stream.read(16 * 1024)
            if data == b"":
                return
            if data is None:
                await stream.wait_readable()
            else:
                read_bytes += len(data)
    except (OSError, trio.ClosedResourceError):
        return  # the peer is gone, and the reason is logged


def _without_tls(began_with: bytes, scheme: str) -> tuple[str, bytes]:
    """Describe the bytes that arrived in place of TLS, and make an answer that the peer understands."""
    from .websocket import http_answer

    if began_with.lstrip(b"\r\n").startswith(_STOMP_BEGINNINGS):
        return "the client speaks STOMP without TLS on a TLS port", refusal(
            "this port requires TLS",
            code="tls-needed",
            body=f"Connect to it as {scheme}://, with TLS switched on in the client.",
        )
    if _may_be_http(began_with):
        return "the client speaks HTTP without TLS on a TLS port", http_answer(
            400, f"This port speaks TLS: connect to it as {scheme}://."
        )
    return "the client does not speak TLS on a TLS port", b""


def _without_http(began_with: bytes, scheme: str) -> tuple[str, bytes]:
    if began_with[0] == HANDSHAKE:
        return "the client speaks TLS on a WebSocket port without TLS", b""
    if began_with.lstrip(b"\r\n").startswith(_STOMP_BEGINNINGS):
        return "the client speaks STOMP without WebSocket on a WebSocket port", refusal(
            "this port speaks STOMP over WebSocket, and you speak plain STOMP",
            code="websocket-needed",
            body=f"Connect to it as {scheme}:// with a WebSocket client, or to another port of the broker.",
        )
    return "the client does not speak HTTP on a WebSocket port", b""


def _may_be_http(data: bytes) -> bool:
    method = data[:20].partition(b" ")[0]
    return b" " in data[:20] and method.isalpha() and method.isupper()
