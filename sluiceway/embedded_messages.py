"""Messages of an embedded broker, for the program around the broker: publish, browse, subscribe, over one link.

Each function takes a link that is open. What the broker does not do in time raises TimeoutError.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Final

import attrs

from sluiceway.client.link import Link
from sluiceway.protocols.stomp.frames import Frame

TIMEOUT_SECONDS: Final = 5.0
"""Seconds that a call waits for the broker. A healthy broker in the same process answers within milliseconds."""
TEXT: Final = "text/plain;charset=utf-8"


@attrs.frozen
class Message:
    """A message of a queue or a topic."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """Body as text. Raises UnicodeDecodeError for a body that is not UTF-8."""
        return self.body.decode()

    @property
    def destination(self) -> str:
        """Name of the queue or topic."""
        return self.headers["destination"]

    @property
    def message_id(self) -> str:
        """Header `message-id`."""
        return self.headers["message-id"]


def message_of(frame: Frame) -> Message:
    """Return the message of a MESSAGE frame."""
    return Message(bytes(frame.body), dict(frame.headers))


def publish(
    link: Link, destination: str, body: str | bytes, headers: Mapping[str, str], timeout_seconds: float
) -> None:
    """Send a message, and wait until the broker has processed the message. Raises RefusedError, TimeoutError."""
    pairs = dict(headers)
    if isinstance(body, str):
        pairs.setdefault("content-type", TEXT)
        body = body.encode()
    link.send(destination, body, pairs, receipt=True)
    deadline = time.monotonic() + timeout_seconds
    while link.receipts_pending_count:
        if link.next_frame(max(0.0, deadline - time.monotonic())) is None:
            raise TimeoutError(f"{destination} did not take the message within {timeout_seconds:g} s")


def browse(link: Link, destination: str, headers: Mapping[str, str], timeout_seconds: float) -> list[Message]:
    """Return the messages of a queue without consuming any. Raises RefusedError, TimeoutError."""
    link.subscribe(destination, ack="client-individual", headers={**headers, "browser": "true"})
    found: list[Message] = []
    while True:
        frame = link.next_message(timeout_seconds)
        if frame is None:
            raise TimeoutError(f"browsing {destination} gave nothing within {timeout_seconds:g} s")
        if frame.headers.get("browser") == "end":
            return found
        found.append(message_of(frame))


class Subscription:
    """An active subscription of a queue or a topic."""

    def __init__(self, link: Link, destination: str, headers: Mapping[str, str], timeout_seconds: float) -> None:
        """Return when the broker has the subscription: no message from then on is missed. Raises RefusedError."""
        self._link = link
        self._destination = destination
        self._arrived: deque[Frame] = deque()
        receipt = link.next_id()
        link.subscribe(destination, ack="client-individual", headers={**headers, "receipt": receipt})
        while True:
            frame = link.next_frame(timeout_seconds)
            if frame is None:
                raise TimeoutError(f"the broker did not confirm the subscription within {timeout_seconds:g} s")
            if frame.command == "RECEIPT":
                break
            self._arrived.append(frame)

    def receive(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Message:
        """Return the next message, and acknowledge the message. Raises TimeoutError."""
        frame = self._arrived.popleft() if self._arrived else self._link.next_message(timeout_seconds)
        if frame is None:
            raise TimeoutError(f"no message of {self._destination} came within {timeout_seconds:g} s")
        self._link.acknowledge(frame.headers["ack"])
        return message_of(frame)
