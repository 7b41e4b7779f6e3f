"""Events of the machine for its owner: one per *batch* of frames wherever clients send batches.

A `SendRun` is any number of consecutive SENDs with the same head, an `UnheardRun` the same without their bodies, a
`PassedRun` the same as they lie, an `AckRun` any number of consecutive plain ACKs (or NACKs). A SEND with a large body
is not collected: it comes as start, pieces and end. All other frames are rare and come one by one as `Frame`. A heart-
beat is no event: the transport counts any inbound byte as life (b25).

Deliberately not here: frames in wire form (`parser`, `encoder`) and what a head means (`head`).
"""

from __future__ import annotations

from typing import Final

import attrs

from .errors import ProtocolError
from .escaping import Version
from .head import SendHead
from .octets import EOL_OCTETS

COMMAND_BYTES: Final = len(b"SEND\n")


@attrs.define(slots=True)
class Frame:
    """One frame that belongs to no run. Header names and values are decoded; of repeated headers the first is here
    (b13)."""

    command: str
    headers: dict[str, str]
    body: bytes = b""


@attrs.define(slots=True)
class SendRun:
    """Consecutive SENDs with one head.

    Each of `wires` is the forwarded form without the command line: ``head.block + b"\\n\\n" + body + b"\\0"``.
    `size_bytes` is the sum of their lengths. `receipts` is parallel to `wires`, or None if none of them asked for a
    receipt; a run never mixes the two.
    """

    head: SendHead
    wires: list[bytes]
    size_bytes: int
    receipts: list[str] | None = None


@attrs.define(slots=True)
class PassedRun:
    """Consecutive SENDs with one head and one length, without receipts, for a destination of another hub, as they lie:
    `count` frames in `data`, each `span` octets long without its NUL, with LFs between some. The block of the head is
    part of the frame as it came.
    """

    head: SendHead
    data: bytes
    count: int
    span: int

    def cut(self) -> SendRun:
        """Return the same SENDs as an ordinary run."""
        data, span, pos = self.data, self.span, 0
        wires: list[bytes] = []
        for _ in range(self.count):
            while data[pos] in EOL_OCTETS:
                pos += 1
            wires.append(data[pos + COMMAND_BYTES : pos + span + 1])
            pos += span + 1
        return SendRun(self.head, wires, sum(map(len, wires)))


@attrs.define(slots=True)
class UnheardRun:
    """Consecutive SENDs with one head to a topic without a subscriber: `count` frames, whose bodies were passed over.

    `receipts` are those of all of them, or None if none of them asked for a receipt; a run never mixes the two.
    """

    head: SendHead
    count: int
    receipts: list[str] | None = None


@attrs.define(slots=True)
class LargeSendStart:
    """Head of a SEND whose body is too large to be collected: its body follows in pieces, then `LargeSendEnd`, or a
    `Fault`.

    Nothing but `LargeSendPiece` comes between. Whether a SEND comes so depends on the length of its body alone, not on
    how it was cut. `receipt` as in `SendRun`. The length is ``head.content_length``, -1 if it is not known yet.
    """

    head: SendHead
    receipt: str | None = None


@attrs.define(slots=True)
class LargeSendPiece:
    """The next bytes of that body, at least one. How many is a matter of chunking."""

    data: bytes


@attrs.define(slots=True)
class LargeSendEnd:
    """The body is complete, and its NUL was there."""


@attrs.define(slots=True)
class AckRun:
    """Consecutive ACKs (NACKs if `nack`) without receipt and transaction.

    Under 1.2 `tokens` are the `id` values; under 1.0 and 1.1 pairs ``(subscription or None, message-id)``. UTF-8,
    unescaped.
    """

    nack: bool
    tokens: list[bytes] | list[tuple[bytes | None, bytes]]


@attrs.define(slots=True)
class Connect:
    """A peer wants in. Answer with `ServerMachine.accept` or `reject`; nothing else arrives before that.

    `version` is the best common one, `heart_beat` the client's ``(cx, cy)`` in milliseconds (0, 0 if it said nothing,
    b23).
    """

    frame: Frame = attrs.field(repr=False)
    version: Version
    login: str | None
    passcode: str | None = attrs.field(repr=False)
    host: str | None
    heart_beat: tuple[int, int]

    @property
    def headers(self) -> dict[str, str]:
        """All headers of the CONNECT frame, the passcode among them."""
        return self.frame.headers


@attrs.define(slots=True)
class Fault:
    """The peer's mistake. Always the last event; the machine is parked and ignores whatever else arrives."""

    error: ProtocolError


Event = (
    Frame | SendRun | PassedRun | UnheardRun | LargeSendStart | LargeSendPiece | LargeSendEnd | AckRun | Connect | Fault
)
