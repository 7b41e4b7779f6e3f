"""One topic on its way from another region to this one: what a message becomes, and what its receipt means. Pure.

A MESSAGE of there becomes a SEND here with a receipt; when the RECEIPT is here, and so the message is as safe as it can
be, an ACK goes there. A SEND that is refused here for what it is becomes a NACK, so that the dead letters of there have
it. The other side keeps the place: what was not acknowledged comes again, marked `possible-duplicate:true` if it may
have come before.

Bound: what the other side's credit allows is under way (CREDIT_COUNT messages, CREDIT_BYTES and one message).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from sluiceway.protocols.stomp.encoder import encode_frame, header_lines
from sluiceway.protocols.stomp.frames import Frame
from sluiceway.protocols.stomp.head import FORGEABLE_HEADERS, ORIGIN_HEADER

CREDIT_COUNT: Final = 500
CREDIT_BYTES: Final = 4 * 1024 * 1024
LARGE_BYTES: Final = 64 * 1024
"""Size of a body from which on it is a piece of its own."""
SELECTOR: Final = f'"{ORIGIN_HEADER}" IS NULL'
"""Messages that came from a region themselves are not sent on."""
SUBSCRIPTION: Final = "region"

_NOT_TAKEN: Final = FORGEABLE_HEADERS | {
    "destination",
    "content-length",
    "possible-duplicate",
    # They waited there.
    "delay",
    "AMQ_SCHEDULED_DELAY",
    "x-delay",
}
_MARK: Final = ("possible-duplicate", "true")


@attrs.frozen
class _Underway:
    ack: str
    size_bytes: int


class Courier:
    """Messages of one durable subscription over there, on their way to one connection here.

    Attributes:
        taken_count: messages that are published here.
        refused_count: messages that were refused here, and are dead letters there.
    """

    def __init__(self, topic: str, own_name: str) -> None:
        self.topic = topic
        self.client_id = f"region-{own_name}"
        self.taken_count = 0
        self.refused_count = 0
        self._underway: dict[str, _Underway] = {}
        self._last_receipt = 0

    @property
    def underway_count(self) -> int:
        """Messages that came and are not acknowledged yet."""
        return len(self._underway)

    @property
    def underway_bytes(self) -> int:
        """Bytes of their bodies. O(messages under way)."""
        return sum(each.size_bytes for each in self._underway.values())

    def subscribe(self) -> dict[str, str]:
        """Return the headers of the SUBSCRIBE for over there. What was under way before comes again."""
        self._underway.clear()
        return {
            "id": SUBSCRIPTION,
            "destination": self.topic,
            "ack": "client-individual",
            "activemq.subscriptionName": self.topic,
            "selector": SELECTOR,
            "credit": f"{CREDIT_COUNT},{CREDIT_BYTES}",
            "receipt": SUBSCRIPTION,
        }

    def take(self, message: Frame) -> tuple[bytes, ...]:
        """Return the SEND for a MESSAGE of over there, a large body in a piece of its own: to copy one takes long.
        Raises KeyError if it can't be acknowledged.
        """
        headers = message.headers
        self._last_receipt += 1
        receipt = str(self._last_receipt)
        self._underway[receipt] = _Underway(headers["ack"], len(message.body))
        sent = [("destination", self.topic), *_taken(headers)]
        if headers.get("redelivered") == "true" or headers.get("possible-duplicate") == "true":
            sent.append(_MARK)
        sent.append(("receipt", receipt))
        body = message.body
        if len(body) < LARGE_BYTES:
            return (encode_frame("SEND", sent, body, version="1.2"),)
        lines = header_lines([*sent, ("content-length", str(len(body)))], "1.2")
        return f"SEND\n{lines}\n".encode(), body, b"\0"

    def receipted(self, receipt_id: str) -> bytes:
        """Return the ACK for a RECEIPT of here; empty for one that is not known."""
        done = self._underway.pop(receipt_id, None)
        if done is None:
            return b""
        self.taken_count += 1
        return encode_frame("ACK", [("id", done.ack)], version="1.2")

    def refused(self, receipt_id: str | None) -> bytes:
        """Return the NACK for a SEND that was refused here; empty if it is not known which one was."""
        done = None if receipt_id is None else self._underway.pop(receipt_id, None)
        if done is None:
            return b""
        self.refused_count += 1
        return encode_frame("NACK", [("id", done.ack), ("requeue", "false")], version="1.2")


def _taken(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name not in _NOT_TAKEN]
