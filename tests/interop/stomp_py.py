"""stomp.py's connections, with a listener that a test can wait on (stomp.py calls it from its receiving thread)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import stomp

from tests.interop.raw_client import DEADLINE_SECONDS

VERSIONS: Final = ("1.0", "1.1", "1.2")
CONNECTIONS: Final = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Queues what arrives."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.connected: queue.Queue[dict[str, str]] = queue.Queue()
        self.disconnected = threading.Event()
        self.heart_beats = threading.Semaphore(0)
        self.heart_beat_timeout = threading.Event()

    def on_connected(self, frame: Any) -> None:
        self.disconnected.clear()
        self.connected.put(frame.headers)

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_disconnected(self) -> None:
        self.disconnected.set()

    def on_heartbeat(self) -> None:
        self.heart_beats.release()

    def on_heartbeat_timeout(self) -> None:
        self.heart_beat_timeout.set()


class Client:
    """One connection in one version; hides what differs between the three in stomp.py's signatures."""

    def __init__(self, address: tuple[str, int], version: str, **options: Any) -> None:
        options.setdefault("reconnect_attempts_max", 1)
        self.version = version
        self.connection = CONNECTIONS[version]([address], **options)
        self.listener = Listener()
        self.connection.set_listener("test", self.listener)
        self._numbers = count(1)
        self.connected_headers: dict[str, str] = {}
        """Of the last CONNECTED."""

    def receipt(self) -> str:
        """A receipt id that was not used yet."""
        return f"receipt-{next(self._numbers)}"

    def await_receipt(self, receipt: str) -> None:
        assert self.listener.receipts.get(timeout=DEADLINE_SECONDS) == receipt

    def connect(self, login: str | None = None, passcode: str | None = None) -> None:
        self.connection.connect(login, passcode, wait=True)
        # wait=True returns before the listeners are told.
        self.connected_headers = self.listener.connected.get(timeout=DEADLINE_SECONDS)

    def subscribe(self, destination: str, subscription: str = "1", ack: str = "auto", **headers: str) -> None:
        """With a receipt, so that it is in force when this returns."""
        receipt = self.receipt()
        self.connection.subscribe(destination, id=subscription, ack=ack, headers={"receipt": receipt, **headers})
        self.await_receipt(receipt)

    def send(self, destination: str, body: str | bytes, **headers: str) -> None:
        self.connection.send(destination, body, headers={name.replace("_", "-"): v for name, v in headers.items()})

    def send_and_wait(self, destination: str, body: str | bytes, **headers: str) -> None:
        receipt = self.receipt()
        self.send(destination, body, receipt=receipt, **headers)
        self.await_receipt(receipt)

    def message(self) -> Any:
        """The next message; fails the test if an ERROR came instead."""
        try:
            return self.listener.messages.get(timeout=DEADLINE_SECONDS)
        except queue.Empty:
            errors = [] if self.listener.errors.empty() else [self.listener.errors.get()]
            raise TimeoutError(f"no message; errors: {errors}") from None

    def bodies(self, messages_count: int) -> list[Any]:
        return [self.message().body for _ in range(messages_count)]

    def ack(self, message: Any, transaction: str | None = None, receipt: str | None = None) -> None:
        self.connection.ack(*self._names(message), transaction=transaction, receipt=receipt)

    def nack(self, message: Any, transaction: str | None = None, receipt: str | None = None) -> None:
        self.connection.nack(*self._names(message), transaction=transaction, receipt=receipt)

    def _names(self, message: Any) -> tuple[str, ...]:
        headers = message.headers
        if self.version == "1.2":
            return (headers["ack"],)
        if self.version == "1.1":
            return headers["message-id"], headers["subscription"]
        return (headers["message-id"],)

    def disconnect(self) -> None:
        """With a receipt; returns when the connection is gone."""
        receipt = self.receipt()
        self.connection.disconnect(receipt=receipt)
        self.await_receipt(receipt)
        assert self.listener.disconnected.wait(DEADLINE_SECONDS)


@contextmanager
def connected(address: tuple[str, int], version: str, **options: Any) -> Iterator[Client]:
    """A connected client, disconnected in order at the end."""
    client = Client(address, version, **options)
    client.connect()
    try:
        yield client
    finally:
        if client.connection.is_connected():
            client.disconnect()
