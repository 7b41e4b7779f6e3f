"""A STOMP client for scenarios: it sends frames and says what it expects to come back, with deadlines in virtual time.

Frames are sorted as they arrive (messages, receipts, the ERROR), and kept in order of arrival as well. Nothing is
answered by itself: no ACK, no heart-beat, no DISCONNECT. Failures name the client and what it had received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import attrs
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.streams import MemoryStream

PATIENCE_SECONDS = 20.0
"""How long a client waits for what it expects. Virtual: nobody really waits."""

QUIET_SECONDS = 0.5
"""How long nothing must come before a client believes that nothing will. Below every heart-beat and sweep."""


class UnexpectedError(AssertionError):
    """The broker did something else than this client expected."""


@attrs.define
class Delivery:
    """A MESSAGE, as its receiver sees it."""

    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def redelivered(self) -> bool:
        return self.headers.get("redelivered") == "true"

    @property
    def delivery_count(self) -> int:
        """How often it has been delivered, this time included; a first delivery carries no such header."""
        return int(self.headers.get("delivery-count", "1"))


class Client:
    """One connection to the broker under test. Made by `Stage.connect`."""

    def __init__(self, stream: MemoryStream, name: str) -> None:
        self.name = name
        self.stream = stream
        self.machine = ClientMachine()
        self.received: list[Frame] = []
        """All frames, in order of arrival."""
        self.messages: deque[Delivery] = deque()
        self.receipts: deque[str] = deque()
        self.error: Frame | None = None
        self.connected: Frame | None = None
        self.ended = False
        """The broker has closed its side."""
        self._receipt_count = 0

    @property
    def version(self) -> Version:
        assert self.machine.version is not None, f"{self.name} is not connected"
        return self.machine.version

    # ------------------------------------------------------------------ out

    async def connect(
        self, version: Version, *, heart_beat: tuple[int, int] = (0, 0), host: str = "test", **headers: str
    ) -> Frame:
        """CONNECT, and wait for CONNECTED; `headers` are login and the like."""
        extra = [(name, value) for name, value in headers.items() if name not in ("login", "passcode")]
        await self.send_raw(
            self.machine.connect(
                host,
                login=headers.get("login"),
                passcode=headers.get("passcode"),
                heart_beat=heart_beat,
                versions=(version,),
                extra=extra,
            )
        )
        await self._until(lambda: self.connected is not None, "CONNECTED")
        assert self.connected is not None
        return self.connected

    async def frame(
        self, command: str, headers: Mapping[str, str] | Iterable[tuple[str, str]] = (), body: bytes | str = b""
    ) -> None:
        """Send any frame that the protocol allows now."""
        await self.send_raw(self.encode(command, headers, body))

    def encode(
        self, command: str, headers: Mapping[str, str] | Iterable[tuple[str, str]] = (), body: bytes | str = b""
    ) -> bytes:
        """The bytes of a frame, for sending several at once."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return self.machine.send(command, pairs, body.encode() if isinstance(body, str) else body)

    async def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        with trio.move_on_after(PATIENCE_SECONDS):
            await self.stream.send_all(data)
            return
        raise UnexpectedError(f"{self.name}: the broker does not read {len(data)} bytes; {self._so_far()}")

    async def send(self, destination: str, body: bytes | str = b"", **headers: str) -> None:
        """SEND. Header names are written with `_` for `-`."""
        await self.frame("SEND", {"destination": destination, **dashed(headers)}, body)

    async def send_all(self, destination: str, bodies: Iterable[object], **headers: str) -> None:
        """SEND all of these at once, in one piece of bytes."""
        head = {"destination": destination, **dashed(headers)}
        await self.send_raw(b"".join(self.encode("SEND", head, str(body)) for body in bodies))

    async def sent(self, destination: str, body: bytes | str = b"", **headers: str) -> None:
        """SEND, and wait until the broker has taken it."""
        await self.request("SEND", {"destination": destination, **dashed(headers)}, body)

    async def request(self, command: str, headers: Mapping[str, str] | None = None, body: bytes | str = b"") -> None:
        """Send a frame with a receipt, and wait for it."""
        receipt_id = self.new_receipt_id()
        await self.frame(command, {**(headers or {}), "receipt": receipt_id}, body)
        await self.expect_receipt(receipt_id)

    async def sync(self) -> None:
        """Wait until the broker has processed everything sent so far (an empty transaction is begun and aborted)."""
        name = f"sync {self.new_receipt_id()}"
        await self.frame("BEGIN", {"transaction": name})
        await self.request("ABORT", {"transaction": name})

    def new_receipt_id(self) -> str:
        self._receipt_count += 1
        return f"{self.name}-{self._receipt_count}"

    async def subscribe(self, destination: str, id: str = "s", ack: str = "auto", **headers: str) -> None:
        """SUBSCRIBE, and wait until it counts."""
        await self.request("SUBSCRIBE", {"destination": destination, "id": id, "ack": ack, **dashed(headers)})

    async def unsubscribe(self, id: str = "s") -> None:
        """UNSUBSCRIBE, and wait until it counts."""
        await self.request("UNSUBSCRIBE", {"id": id})

    def naming(self, delivery: Delivery) -> dict[str, str]:
        """The headers with which this client's version names a delivery in ACK and NACK."""
        if self.version == "1.2":
            return {"id": delivery.headers["ack"]}
        naming = {"message-id": delivery.headers["message-id"]}
        if "subscription" in delivery.headers:
            naming["subscription"] = delivery.headers["subscription"]
        return naming

    async def ack(self, delivery: Delivery, **headers: str) -> None:
        """ACK, and wait until it is processed."""
        await self.request("ACK", {**self.naming(delivery), **headers})

    async def nack(self, delivery: Delivery, **headers: str) -> None:
        """NACK, and wait until it is processed."""
        await self.request("NACK", {**self.naming(delivery), **headers})

    async def disconnect(self) -> None:
        """DISCONNECT as the specification wants it: with a receipt, closed once that is here."""
        await self.request("DISCONNECT")
        await self.expect_closed()

    def vanish(self) -> None:
        """The connection breaks: no DISCONNECT."""
        self.stream.close()
        self.ended = True

    # ------------------------------------------------------------------ in

    async def next_message(self) -> Delivery:
        """The next MESSAGE."""
        await self._until(lambda: bool(self.messages), "a MESSAGE")
        return self.messages.popleft()

    async def next_messages(self, count: int) -> list[Delivery]:
        """The next `count` MESSAGEs."""
        await self._until(lambda: len(self.messages) >= count, f"{count} MESSAGEs")
        return [self.messages.popleft() for _ in range(count)]

    async def next_texts(self, count: int) -> list[str]:
        """The bodies of the next `count` MESSAGEs."""
        return [delivery.text for delivery in await self.next_messages(count)]

    async def expect_receipt(self, receipt_id: str) -> None:
        """This RECEIPT must come (or have come)."""
        await self._until(lambda: receipt_id in self.receipts, f"RECEIPT {receipt_id}")
        self.receipts.remove(receipt_id)

    async def expect_error(self, about: str = "") -> Frame:
        """An ERROR whose message has `about` in it, and the end of the connection behind it."""
        await self._until(lambda: self.error is not None, "an ERROR", errors=False)
        assert self.error is not None
        assert about in self.error.headers["message"], self.error
        await self.expect_closed()
        return self.error

    async def expect_closed(self) -> None:
        """The broker closes its side; whatever still comes is received."""
        await self._until(lambda: self.ended, "the end of the connection", errors=False)

    async def silence(self, seconds: float = QUIET_SECONDS) -> None:
        """No frame may come for so long."""
        count = len(self.received)
        with trio.move_on_after(seconds):
            while not self.ended:
                await self._receive()
        assert len(self.received) == count, f"{self.name}: silence was broken by {self.received[count:]}"
        assert not self.messages, f"{self.name}: messages nobody looked at: {self.messages}"

    async def drain(self, seconds: float = QUIET_SECONDS) -> list[Delivery]:
        """All messages that come until nothing has come for so long."""
        quiet = False
        while not quiet and not self.ended:
            with trio.move_on_after(seconds) as scope:
                await self._receive()
            quiet = scope.cancelled_caught
        drained = list(self.messages)
        self.messages.clear()
        return drained

    async def raw_bytes(self, seconds: float) -> bytes:
        """What arrives within so many seconds, not looked at as frames."""
        pieces = []
        with trio.move_on_after(seconds):
            while piece := await self.stream.receive_some():
                pieces.append(piece)
        return b"".join(pieces)

    async def _until(self, is_there: object, what: str, *, errors: bool = True) -> None:
        assert callable(is_there)
        with trio.move_on_after(PATIENCE_SECONDS):
            while not is_there():
                if errors and self.error is not None:
                    raise UnexpectedError(f"{self.name} expected {what}, got {self.error}")
                if self.ended:
                    raise UnexpectedError(f"{self.name} expected {what}, the connection ended; {self._so_far()}")
                await self._receive()
            return
        raise UnexpectedError(f"{self.name} waited in vain for {what}; {self._so_far()}")

    def receive_now(self) -> None:
        """Take what has arrived, without waiting."""
        while not self.ended and (data := self.stream.read(65536)) is not None:
            self._take(data)

    async def _receive(self) -> None:
        self._take(await self.stream.receive_some())

    def _take(self, data: bytes) -> None:
        if not data:
            self.ended = True
            return
        for event in self.machine.receive_data(data):
            if isinstance(event, Fault):
                raise UnexpectedError(f"{self.name}: the broker sent what is no STOMP: {event.error!r} in {data!r}")
            assert isinstance(event, Frame), event
            self._sort(event)

    def _sort(self, frame: Frame) -> None:
        self.received.append(frame)
        if frame.command == "MESSAGE":
            self.messages.append(Delivery(frame.headers, frame.body))
        elif frame.command == "RECEIPT":
            self.receipts.append(frame.headers["receipt-id"])
        elif frame.command == "ERROR":
            self.error = frame
        else:
            self.connected = frame

    def _so_far(self) -> str:
        last = [frame.command for frame in self.received[-10:]]
        return f"received so far: {len(self.received)} frames, the last {last}, receipts {list(self.receipts)[-10:]}"


def dashed(headers: Mapping[str, str]) -> dict[str, str]:
    """Keyword arguments as header names."""
    return {name.replace("_", "-"): value for name, value in headers.items()}
