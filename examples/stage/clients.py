"""The players: stomp.py connections that have names; and on bare sockets a subscriber that can stop reading, and a
porter for loads that would take stomp.py too long.

Nothing here is special to Sluiceway: any STOMP 1.2 broker would do.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs
import stomp

POLL_SECONDS: Final = 0.005
CONNECT_SECONDS: Final = 10.0


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Look until it holds; False if it did not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


@attrs.frozen(slots=True)
class Received:
    """One MESSAGE from stomp.py."""

    headers: Mapping[str, str]
    body: str


class Inbox(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Keeps received messages in order. Filled by stomp.py's reading thread."""

    def __init__(self) -> None:
        self.messages: list[Received] = []
        self.receipts: set[str] = set()
        self.session = ""
        """Name that the broker has given the connection."""
        self.error_code = ""
        """Code of the ERROR that has ended the connection."""
        self.on_receipted: Callable[[str], None] = _nothing
        """Callback with every receipt that comes from now on, in stomp.py's thread."""
        self._react: Callable[[Received], None] | None = None
        self._reacting = threading.Lock()

    def react_to_all(self, react: Callable[[Received], None]) -> None:
        """Call this with every message, for instance to acknowledge it: with the present ones now, then with later
        ones, in stomp.py's thread. With each one exactly once.
        """
        with self._reacting:
            self._react = react
            for message in self.messages:
                react(message)

    def on_message(self, frame: Any) -> None:
        message = Received(frame.headers, frame.body)
        with self._reacting:
            self.messages.append(message)
            if self._react is not None:
                self._react(message)

    def on_connected(self, frame: Any) -> None:
        self.session = frame.headers.get("session", "")

    def on_error(self, frame: Any) -> None:
        self.error_code = frame.headers.get("code", "")

    def on_receipt(self, frame: Any) -> None:
        receipt = frame.headers["receipt-id"]
        self.receipts.add(receipt)
        self.on_receipted(receipt)


def _nothing(_receipt: str) -> None:
    return


class Player:
    """One stomp.py connection."""

    def __init__(self, name: str, host: str, port: int, *, client_id: str | None = None) -> None:
        """Connect. Raises stomp.py's ConnectFailedException if no broker answers."""
        self.name = name
        self.inbox = Inbox()
        self.stomp: Any = stomp.Connection12(
            [(host, port)], try_loopback_connect=False, reconnect_attempts_max=1, timeout=CONNECT_SECONDS
        )
        self.stomp.set_listener("demo", self.inbox)
        self.stomp.connect(wait=True, headers={} if client_id is None else {"client-id": client_id})
        own = self.stomp.transport.socket.getsockname()
        self.address = f"{own[0]}:{own[1]}"
        """Address of the client, by which the broker calls this connection."""
        self._receipts_count = 0

    @property
    def hub(self) -> str:
        """Hub that has the connection; empty: the broker is no cluster."""
        hub, separator, _rest = self.inbox.session.partition("~")
        return hub if separator else ""

    @property
    def messages(self) -> list[Received]:
        """Messages that came so far, in order."""
        return self.inbox.messages

    @property
    def bodies(self) -> list[str]:
        """Bodies of the received messages."""
        return [message.body for message in self.inbox.messages]

    def send(self, destination: str, body: str, **headers: str) -> None:
        """SEND; does not wait for anything but room in the socket."""
        self.stomp.send(destination, body, headers=headers)

    def subscribe(self, destination: str, *, id: str = "1", ack: str = "auto", **headers: str) -> None:
        """SUBSCRIBE, and wait until the broker has done it. `prefetch_count` becomes the header prefetch-count."""
        written = {name.replace("_", "-"): value for name, value in headers.items()}
        receipt = self._receipt()
        self.stomp.subscribe(destination, id=id, ack=ack, headers={**written, "receipt": receipt})
        self._await(receipt)

    def unsubscribe(self, *, id: str = "1", **headers: str) -> None:
        """UNSUBSCRIBE, and wait until the broker has done it."""
        receipt = self._receipt()
        self.stomp.unsubscribe(id, headers={**headers, "receipt": receipt})
        self._await(receipt)

    def acknowledge(self, message: Received, *, receipt: str | None = None) -> None:
        """ACK; with a receipt, if one is asked for, that is not waited for."""
        self.stomp.ack(message.headers["ack"], receipt=receipt)

    def refuse(self, message: Received) -> None:
        """NACK."""
        self.stomp.nack(message.headers["ack"])

    def send_and_wait(self, destination: str, body: str, **headers: str) -> None:
        """SEND, and wait until the broker has taken it and so all that went before."""
        receipt = self._receipt()
        self.send(destination, body, **headers, receipt=receipt)
        self._await(receipt)

    def commit(self, transaction: str) -> None:
        """COMMIT, and wait for the receipt."""
        receipt = self._receipt()
        self.stomp.commit(transaction, receipt=receipt)
        self._await(receipt)

    def abort(self, transaction: str) -> None:
        """ABORT, and wait for the receipt."""
        receipt = self._receipt()
        self.stomp.abort(transaction, receipt=receipt)
        self._await(receipt)

    def _receipt(self) -> str:
        self._receipts_count += 1
        return f"{self.name}-{self._receipts_count}"

    def _await(self, receipt: str) -> None:
        if not wait_until(lambda: receipt in self.inbox.receipts, CONNECT_SECONDS):
            raise TimeoutError(f"{self.name} waited {CONNECT_SECONDS:g} s for its receipt {receipt!r} in vain")

    def leave(self) -> None:
        """DISCONNECT, and close."""
        if self.stomp.is_connected():
            receipt = self._receipt()
            self.stomp.disconnect(receipt=receipt)
            wait_until(lambda: receipt in self.inbox.receipts, CONNECT_SECONDS)
        self.vanish()

    def vanish(self) -> None:
        """Close without a word, as a process that crashed does."""
        # Not transport.stop(): that waits for the reading thread, which waits for the broker.
        self.stomp.transport.disconnect_socket()


class Sleeper:
    """A subscriber on a bare socket: subscribes, falls asleep, and reads only when it is woken.

    Its receive buffer is small, so that most unread messages stay with the broker.
    """

    def __init__(self, name: str, host: str, port: int, destination: str) -> None:
        """Connects, subscribes and waits for the RECEIPT, the last thing that it reads."""
        self.name = name
        self.received_count = 0
        self.told_dropped_count = 0
        """Sum of the dropped-count headers: the number of missed messages, as the broker reports it."""
        self._unread = b""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self._socket.settimeout(CONNECT_SECONDS)
        self._socket.connect((host, port))
        own = self._socket.getsockname()
        self.address = f"{own[0]}:{own[1]}"
        self._socket.sendall(
            f"CONNECT\naccept-version:1.2\nhost:{host}\n\n\0"
            f"SUBSCRIBE\nid:1\ndestination:{destination}\nreceipt:asleep\n\n\0".encode()
        )
        while b"RECEIPT" not in self._unread:
            self._read()
        self._unread = b""

    def read_up_to(self, total_count: int, seconds: float, *, news: Callable[[int], None]) -> None:
        """Wake up: read until received and dropped messages make `total_count`, or time is up. `news` hears of each
        step.
        """
        deadline = time.monotonic() + seconds
        self._socket.settimeout(0.2)
        while self.accounted_count < total_count and time.monotonic() < deadline:
            try:
                self._read()
            except TimeoutError:
                continue  # nothing for a moment; the deadline decides
            *whole, self._unread = self._unread.split(b"\0")
            for frame in whole:
                self._take(frame)
            news(self.accounted_count)

    @property
    def accounted_count(self) -> int:
        """Messages that it got or was told to have missed."""
        return self.received_count + self.told_dropped_count

    def _read(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the broker closed the connection of {self.name}")
        self._unread += data

    def _take(self, frame: bytes) -> None:
        head, _blank, _body = frame.lstrip(b"\n").partition(b"\n\n")
        if head.startswith(b"MESSAGE\n"):
            self.received_count += 1
            dropped = re.search(rb"^dropped-count:(\d+)$", head, re.MULTILINE)
            self.told_dropped_count += int(dropped[1]) if dropped else 0

    def vanish(self) -> None:
        """Close the socket."""
        self._socket.close()


class Porter:
    """A connection on a bare socket that moves many small messages at a time."""

    def __init__(self, name: str, host: str, port: int) -> None:
        """Connects."""
        self.name = name
        self._unread = b""
        self._socket = socket.create_connection((host, port), CONNECT_SECONDS)
        own = self._socket.getsockname()
        self.address = f"{own[0]}:{own[1]}"
        self._socket.sendall(f"CONNECT\naccept-version:1.2\nhost:{host}\n\n\0".encode())
        self._next_frame(b"CONNECTED")

    def bring(self, destination: str, bodies: Iterable[str], **headers: str) -> None:
        """SEND them all, and wait for the RECEIPT of the last. Raises TimeoutError."""
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        head = f"SEND\ndestination:{destination}\n{lines}"
        *most, last = [f"{head}\n{body}\0" for body in bodies]
        self._socket.sendall("".join(most).encode())
        self._socket.sendall(last.replace(head, f"{head}receipt:brought\n", 1).encode())
        self._next_frame(b"RECEIPT")

    def fetch(self, destination: str, count: int, seconds: float, *, news: Callable[[int], None]) -> list[str]:
        """Subscribe, and return `count` bodies in order, or those that came in time. `news` is called at each step."""
        self._socket.sendall(f"SUBSCRIBE\nid:1\ndestination:{destination}\n\n\0".encode())
        bodies: list[str] = []
        deadline = time.monotonic() + seconds
        self._socket.settimeout(0.2)
        while len(bodies) < count and time.monotonic() < deadline:
            try:
                self._read()
            except TimeoutError:
                continue  # nothing for a moment; the deadline decides
            *whole, self._unread = self._unread.split(b"\0")
            bodies += [frame.partition(b"\n\n")[2].decode() for frame in whole]
            news(len(bodies))
        return bodies

    def _next_frame(self, command: bytes) -> None:
        while b"\0" not in self._unread:
            self._read()
        frame, _nul, self._unread = self._unread.partition(b"\0")
        if not frame.lstrip(b"\n").startswith(command):
            raise ConnectionError(f"{self.name} waited for {command.decode()} and got {frame[:200]!r}")

    def _read(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError(f"the broker closed the connection of {self.name}")
        self._unread += data

    def vanish(self) -> None:
        """Close the socket."""
        self._socket.close()
