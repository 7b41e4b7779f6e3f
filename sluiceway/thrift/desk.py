"""A session with the broker for one Thrift connection: a client without a socket, one request at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import attrs
import trio

from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.stomp.routing import CREDIT_REQUEST
from sluiceway.protocols.streams import MemoryStream

REPLIES = "/temp-queue/thrift"
BATCH_TYPE = "application/vnd.sluiceway.batch"


class DeskError(Exception):
    """The broker refused a request.

    `code` is a result code of Luxun (`TOPIC_NOT_EXIST`) or a word of STOMP (`log-failed`); the text says why.
    """

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class DeskClosed(Exception):
    """The session has ended, as the broker stops or cut it."""


@attrs.frozen
class Delivery:
    """A MESSAGE of a log."""

    headers: Mapping[str, str]
    body: bytes
    subscription: str

    @property
    def is_batch(self) -> bool:
        """Whether the body is a run of batches."""
        return self.headers.get("content-type") == BATCH_TYPE

    @property
    def is_told(self) -> bool:
        """Tell whether it has no record, and is about the log."""
        return "index" not in self.headers or "range-end" in self.headers or "gap" in self.headers


class Desk:
    """One session. After DeskError by an ERROR frame, and after DeskClosed, it is of no use."""

    def __init__(self, stream: MemoryStream, limits: StompLimits) -> None:
        self._stream = stream
        self._machine = ClientMachine(limits)
        self._frames: list[Frame] = []
        self._numbers = count(1)
        self._pending = b""
        """Frames that are written with the next flush."""
        self.has_ended = False

    async def open(self, login: str | None, passcode: str | None) -> None:
        """Log in. Raises DeskError, DeskClosed."""
        await self._write(self._machine.connect("/", login=login, passcode=passcode))
        await self._next()
        self._send("SUBSCRIBE", [("id", "replies"), ("destination", REPLIES)])
        await self._flush()

    def close(self) -> None:
        """End the session."""
        self.has_ended = True
        self._stream.close()

    async def append(self, topic: str, item: bytes | memoryview) -> int:
        """Append a record to a log. Returns its index. Raises DeskError, DeskClosed."""
        receipt = str(next(self._numbers))
        headers = [("destination", f"/log/{topic}"), ("content-length", str(len(item))), ("receipt", receipt)]
        self._send("SEND", headers, bytes(item))
        await self._flush()
        return int((await self._receipt(receipt))["index"])

    async def ask(self, request: str, **body: Any) -> Mapping[str, Any]:
        """Ask about logs. Raises DeskError, DeskClosed."""
        asked = str(next(self._numbers))
        headers = [("destination", f"/sluiceway/log/{request}"), ("reply-to", REPLIES), ("correlation-id", asked)]
        self._send("SEND", headers, json.dumps(body).encode())
        await self._flush()
        while True:
            frame = await self._next()
            if frame.command == "MESSAGE" and frame.headers.get("correlation-id") == asked:
                break
        reply: dict[str, Any] = json.loads(frame.body)
        if not reply.pop("ok"):
            raise DeskError(reply["error"], reply["message"])
        return reply

    async def subscribe(self, topic: str, *, headers: Iterable[tuple[str, str]]) -> str:
        """Subscribe to a log, for one delivery at a time. Returns the id. Raises DeskError, DeskClosed."""
        number = str(next(self._numbers))
        fixed = [("id", number), ("destination", f"/log/{topic}"), ("ack", "client"), ("prefetch-count", "1")]
        self._send("SUBSCRIBE", [*fixed, *headers])
        await self._flush()
        return number

    async def delivery(self, subscription: str, seconds: float) -> Delivery | None:
        """Return the next MESSAGE of this subscription with records; None if there is none in that time. Raises
        DeskError, DeskClosed.
        """
        with trio.move_on_after(seconds):
            while True:
                frame = await self._next()
                if frame.command == "MESSAGE" and frame.headers.get("subscription") == subscription:
                    found = Delivery(frame.headers, bytes(frame.body), subscription)
                    if not found.is_told:
                        return found
        return None

    async def end(self, subscription: str, acknowledged: Delivery | None) -> None:
        """End a subscription; of what it was given this delivery is consumed. Raises DeskError, DeskClosed."""
        receipt = str(next(self._numbers))
        if acknowledged is not None:
            # Paused first: else the ACK could bring a record, which other consumers would then get by itself.
            self._send("SEND", [("destination", CREDIT_REQUEST), ("id", subscription), ("credit", "0")])
            self._send("ACK", [("id", acknowledged.headers["ack"])])
        self._send("UNSUBSCRIBE", [("id", subscription), ("receipt", receipt)])
        await self._flush()
        await self._receipt(receipt)

    async def _receipt(self, receipt: str) -> Mapping[str, str]:
        while True:
            frame = await self._next()
            if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == receipt:
                return frame.headers

    # ------------------------------------------------------------------ frames

    def _send(self, command: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> None:
        wire = self._machine.send(command, headers, body)
        self._pending = self._pending + wire if self._pending else wire

    async def _flush(self) -> None:
        data, self._pending = self._pending, b""
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # what the broker said before it closed is still to be read

    async def _next(self) -> Frame:
        while not self._frames:
            try:
                data = await self._stream.receive_some()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                self.has_ended = True
                raise DeskClosed
            for event in self._machine.receive_data(data):
                if isinstance(event, Fault):
                    raise event.error
                assert isinstance(event, Frame)
                self._frames.append(event)
        frame = self._frames.pop(0)
        if frame.command == "ERROR":
            self.has_ended = True
            headers = frame.headers
            words = headers.get("message", "refused")
            raise DeskError(headers.get("result-code") or headers.get("code", ""), words)
        return frame
