"""A client connection: the handshake, which blocks, and the sending of small frames afterwards, which does not."""

from __future__ import annotations

import socket
import time

from perf.load import frames
from perf.load.plans import Endpoint
from perf.scenarios import Ack


class BrokerFaultError(Exception):
    """The broker refused, closed or broke something; the message says what and quotes its words."""


class RawLink:
    """One STOMP connection to a broker, CONNECTED once the constructor returns.

    Until `release` the socket blocks (with `timeout_seconds`), then it doesn't. With `wait=False` the constructor only
    sends CONNECT, and `await_connected` has to follow: many connections can be opened at once so.

    Raises BrokerFaultError: the broker answered with something else than CONNECTED, or closed.
    Raises OSError: no connection, or no answer in time.
    """

    __slots__ = ("_unsent", "greeting", "sock", "spare")

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_seconds: float = 20.0,
        source_host: str | None = None,
        wait: bool = True,
        heart_beat_ms: int = 0,
    ) -> None:
        source = (source_host, 0) if source_host else None
        self.sock = socket.create_connection((endpoint.host, endpoint.port), timeout_seconds, source)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.transport != "plain":
            # Costs plain links nothing later: they continue with the bare socket.
            from perf.load.transports import carried

            try:
                self.sock = carried(self.sock, endpoint)
            except BaseException:
                self.sock.close()
                raise
        self.spare = b""
        """Bytes read past the answer of a handshake: only newlines, unless messages wait."""
        self._unsent = bytearray()
        self.greeting = ""
        """The CONNECTED frame."""
        try:
            self.sock.sendall(frames.connect(endpoint, heart_beat_ms))
            if wait:
                self.await_connected()
        except BaseException:
            self.sock.close()
            raise

    def await_connected(self) -> None:
        """Wait for CONNECTED; raises as the constructor does."""
        self.greeting = self.expect(b"CONNECTED").decode("utf-8", "replace")

    def expect(self, command: bytes) -> bytes:
        """Wait for one whole frame, check its command, and return it without its NUL."""
        received = self.spare.lstrip(b"\r\n")
        while b"\0" not in received:
            chunk = self.sock.recv(65536)
            if not chunk:
                raise BrokerFaultError(
                    f"the broker closed instead of answering with {command.decode()}: {frames.error_text(received)}"
                )
            received = (received + chunk).lstrip(b"\r\n")
        frame, _, self.spare = received.partition(b"\0")
        if not frame.startswith(command):
            raise BrokerFaultError(f"the broker answered not with {command.decode()} but: {frames.error_text(frame)}")
        return frame

    def subscribe(
        self, destination: str, subscription_id: str, ack: Ack, prefetch_count: int, *, selector: str = ""
    ) -> None:
        """Subscribe and wait until the broker says that the subscription is in force."""
        self.sock.sendall(
            frames.subscribe(destination, subscription_id, ack, prefetch_count, confirmed=True, selector=selector)
        )
        self.expect(b"RECEIPT")

    def release(self) -> None:
        """End the handshake: the socket doesn't block from now on."""
        self.sock.setblocking(False)

    def send_soon(self, data: bytes) -> bool:
        """Send, keeping the rest that the kernel does not take; return whether nothing is left. Keeps at most the
        ACKs.
        """
        self._unsent += data
        return self.flush()

    def flush(self) -> bool:
        """Send the kept rest; return whether nothing is left."""
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return False
            del self._unsent[:sent]
        return True

    def close(self) -> None:
        """Close the socket without a DISCONNECT: what matters was counted before."""
        self.sock.close()


def patient_link(endpoint: Endpoint, patience_seconds: float = 20.0) -> RawLink:
    """Return a `RawLink`, trying again for a while where the broker is not listening yet.

    Raises OSError, BrokerFaultError: as `RawLink`, once the patience is over.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return RawLink(endpoint, patience_seconds)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
