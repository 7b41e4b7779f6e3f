"""Messages of an embedded broker, for the program around the broker: publish, browse, subscribe, over one link.

Each function takes a link that is open. What the broker does not do in time raises TimeoutError.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, NoReturn

import attrs

from sluiceway.client.link import Link
from sluiceway.protocols.stomp.encoder import encode_frame
from sluiceway.protocols.stomp.frames import Frame
from sluiceway.queues.names import are_swapped, is_whole

TIMEOUT_SECONDS: Final = 5.0
"""Seconds that a call waits for the broker. A healthy broker in the same process answers within milliseconds."""
GIVEN_UP_SECONDS: Final = 0.02
"""Seconds between two looks whether the caller still waits."""

Headers = Mapping[str, str]
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


def publish(link: Link, destination: str, body: str | bytes, headers: Headers, timeout_seconds: float) -> None:
    """Send a message, and wait until the broker has processed the message. Raises RefusedError, TimeoutError, TypeError
    for what is not text, and ValueError for a body in the place of the destination.
    """
    _check_order(destination, body)
    pairs = checked(headers)
    if isinstance(body, str):
        pairs.setdefault("content-type", TEXT)
    link.send(destination, encoded(body), pairs, receipt=True)
    deadline = time.monotonic() + timeout_seconds
    while link.receipts_pending_count:
        if link.next_frame(max(0.0, deadline - time.monotonic())) is None:
            raise TimeoutError(f"{destination} did not take the message within {timeout_seconds:g} s")


def _check_order(destination: object, body: object) -> None:
    """Raise TypeError for a destination that is not text, ValueError for a body in the place of the destination."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    first = "the destination comes first: publish({!r}, {!r})"
    if not isinstance(destination, str):
        said = f"the destination of a message is str, not {type(destination).__name__}: {destination!r}"
        is_name = isinstance(text, str) and is_whole(text)
        raise TypeError(first.format(text, destination) if is_name else said)
    if isinstance(text, str) and are_swapped(destination, text):
        raise ValueError(
            f"{first.format(text, destination)}. If the text {text!r} is for the queue {destination!r}, write its full "
            f"name: /queue/{destination}"
        )


def checked(headers: Headers) -> dict[str, str]:
    """Return the headers. Raises TypeError for a name or a value that is not text."""
    pairs = dict(headers)
    given: dict[Any, Any] = {**pairs}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            said = _in_text(name), _in_text(value)
            raise TypeError(f"headers of STOMP are text: write {said[0]!r}: {said[1]!r}, not {name!r}: {value!r}")
    return pairs


def _in_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def encoded(body: object) -> bytes:
    """Return a body as bytes. Raises TypeError for anything but text and bytes."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    hint = "; json.dumps makes text of it" if isinstance(body, dict | list) else ""
    raise TypeError(f"the body of a message is str or bytes, not {type(body).__name__}: {body!r}{hint}")


def browse(link: Link, destination: str, headers: Headers, timeout_seconds: float) -> list[Message]:
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
    """An active subscription of a queue or a topic. One thread at a time reads from it."""

    def __init__(self, link: Link, destination: str, headers: Headers, timeout_seconds: float) -> None:
        """Return when the broker has the subscription: no message from then on is missed. Raises RefusedError."""
        self._link = link
        self._destination = destination
        self._arrived: deque[Frame] = deque()
        self._reading = threading.Lock()
        receipt = link.next_id()
        link.subscribe(destination, ack="client-individual", headers={**checked(headers), "receipt": receipt})
        self._wait_for(receipt, "confirm the subscription", timeout_seconds)

    def receive(self, timeout_seconds: float | None = TIMEOUT_SECONDS, *, acknowledge: bool = True) -> Message:
        """Return the next message, when the broker has taken its ACK. `acknowledge=False`: leave that to `acknowledge`
        and `nack`; at the end of the subscription the message goes back to the queue. `timeout_seconds=None`: wait
        without end. Raises TimeoutError: nothing came, ClientError: the broker has stopped.
        """
        return self.receive_unless(None, timeout_seconds, acknowledge=acknowledge)

    def receive_unless(
        self, given_up: threading.Event | None, timeout_seconds: float | None, *, acknowledge: bool = True
    ) -> Message:
        """Do what `receive` does; raise TimeoutError early, and take nothing, when `given_up` is set."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._reading:
            frame = self._arrived.popleft() if self._arrived else None
            while frame is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if given_up is not None:
                    left = GIVEN_UP_SECONDS if left is None else min(left, GIVEN_UP_SECONDS)
                frame = self._link.next_message(left)
                if frame is None and given_up is not None and given_up.is_set():
                    break
                if frame is None and deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no message of {self._destination} came within {timeout_seconds:g} s")
            if frame is None or (given_up is not None and given_up.is_set()):
                if frame is not None:
                    self._arrived.appendleft(frame)
                raise TimeoutError(f"the caller no longer waits for a message of {self._destination}")
            message = message_of(frame)
            if acknowledge:
                self._settle("ACK", message, {})
        return message

    def __iter__(self) -> Iterator[Message]:
        """Return `iterate()`: message after message, each acknowledged."""
        return self.iterate()

    def iterate(
        self, timeout_seconds: float | None = TIMEOUT_SECONDS, *, acknowledge: bool = True
    ) -> Iterator[Message]:
        """Receive message after message, as `receive` does. A loop over it ends by `break`; the next one continues with
        the next message. `timeout_seconds`: for each message; None: wait without end, as a worker does. Raises
        TimeoutError: nothing came, ClientError: the broker has stopped.
        """
        while True:
            yield self.receive(timeout_seconds, acknowledge=acknowledge)

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message of `receive(acknowledge=False)`, and wait until the broker has taken the ACK. Raises
        RefusedError, TimeoutError.
        """
        with self._reading:
            self._settle("ACK", message, {})

    def nack(self, message: Message, *, requeue: bool = True) -> None:
        """Refuse a message of `receive(acknowledge=False)`, and wait until the broker has taken the NACK. The queue
        delivers the message again, as often as `redeliveries_max` says, and gives up then: it is dead-lettered.
        `requeue=False`: at once. Raises RefusedError, TimeoutError.
        """
        with self._reading:
            self._settle("NACK", message, {} if requeue else {"requeue": "false"})

    def _settle(self, command: str, message: Message, headers: Headers) -> None:
        receipt = self._link.next_id()
        pairs = {"id": message.headers["ack"], "receipt": receipt, **headers}
        self._link.write(encode_frame(command, pairs.items(), version="1.2"))
        self._wait_for(receipt, f"take the {command}", TIMEOUT_SECONDS)

    def _wait_for(self, receipt: str, what: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            frame = self._link.next_frame(max(0.0, deadline - time.monotonic()))
            if frame is None:
                raise TimeoutError(f"the broker did not {what} within {timeout_seconds:g} s")
            if frame.command != "RECEIPT":
                self._arrived.append(frame)
            elif frame.headers.get("receipt-id") == receipt:
                return


class Unopened:
    """A subscription before its block: whatever is asked of it, it says that the block is missing."""

    def __init__(self, destination: str, keyword: str = "with") -> None:
        """`keyword`: that of the block."""
        self._destination = destination
        self._keyword = keyword

    def __getattr__(self, name: str) -> NoReturn:
        """Say what was forgotten. Raises AttributeError."""
        raise AttributeError(f"no {name} outside of a block: {self._block()}")

    def __iter__(self) -> NoReturn:
        """Say what was forgotten. Raises TypeError."""
        raise TypeError(f"no loop outside of a block: {self._block()}")

    def _block(self) -> str:
        return f'{self._keyword} broker.subscribe("{self._destination}") as arrivals: ...'


class Subscribing(Unopened):
    """A subscription to be: active inside a `with` block, which gives the Subscription."""

    def __init__(self, context: AbstractContextManager[Subscription], destination: str) -> None:
        """`context`: subscribes and unsubscribes."""
        super().__init__(destination)
        self._context = context

    def __enter__(self) -> Subscription:
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, trace)
