"""Wire form of the messages of one subscription: the one place that writes MESSAGE frames.

A MESSAGE is a few lines of its subscription's own, then the header block and body as the sender wrote them. So the
lines that are the same for every message are one constant prefix, and a whole slice becomes `prefix.join(...)`: one
call, whatever its length. With ack `auto` (and for 1.0 and 1.1) what follows the prefix is the same for all
subscribers, so they share it through `Slice.rendered`.

A record of a log has lines of its own in its wire, before the header block; a run of batches has no header block at
all. `RecordRenderer` writes both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from ...queues.logs.batches import CONTENT_TYPE
from ...queues.logs.reading import RecordMessage
from ...queues.logs.runs import BatchRun
from ...queues.message import Message
from ...queues.slices import Slice
from ..framing import Framing, Piece
from .encoder import header_lines, message_prefix
from .escaping import escape_value
from .head import SendHead
from .ledger import Ledger
from .subscribe_headers import SubscriptionSpec

LARGE_WIRE_BYTES: Final = 4096
"""Average size from which on copying a message costs more than handling it separately."""


class MessageRenderer:
    """Writes the MESSAGEs of one subscription."""

    __slots__ = (
        "_acked_prefix",
        "_acked_tail",
        "_adds_length",
        "_destination",
        "_framing",
        "_has_ack",
        "_version",
        "prefix",
    )

    def __init__(
        self, spec: SubscriptionSpec, token: bytes, framing: Framing, ack_prefix: bytes = b"", *, lines: bytes = b""
    ) -> None:
        """`token`: begins each message-id; `ack_prefix`: each ack header; `lines`: header lines of every MESSAGE."""
        version = self._version = spec.version
        beginning = message_prefix(spec.subscription_id, version) + lines
        self.prefix = beginning + b"message-id:" + token + b"-"
        self._acked_prefix = beginning + b"ack:%b%d-" % (ack_prefix, spec.key)
        self._acked_tail = b"%d\nmessage-id:" + token.replace(b"%", b"%%") + b"-%d\n"
        self._has_ack = spec.has_ack_header
        self._destination = spec.destination
        self._framing = framing
        self._adds_length = version == "1.2"
        """Whether a MESSAGE gets the content-length that its sender left out. Not before 1.2: to some clients of 1.0
        and 1.1 (those that follow JMS) the header says that the body is no text.
        """

    def frames(self, part: Slice, first_ordinal: int, dropped_count: int) -> list[Piece]:
        """The MESSAGE frames of a slice, as byte strings to be written one after the other. The bodies are here."""
        messages, framing = part.messages, self._framing
        if (
            part.attempts is not None
            or dropped_count
            or not part.neutral
            or part.wire_bytes > LARGE_WIRE_BYTES * len(messages)
        ):
            return self._framed_apart(part, first_ordinal, dropped_count)
        adds_length = self._adds_length and any([head.content_length < 0 for head in cast(_Heads, part.heads)])  # noqa: C419
        if self._has_ack:
            tail = self._acked_tail
            if adds_length:
                frames = [
                    tail % (ordinal, message.number) + _length_line(message) + message.wire
                    for ordinal, message in enumerate(messages, first_ordinal)
                ]
            else:
                frames = [
                    tail % (ordinal, message.number) + message.wire
                    for ordinal, message in enumerate(messages, first_ordinal)
                ]
            return [framing.messages(self._acked_prefix, frames)]
        shared = part.rendered
        if shared is None or shared[0] is not adds_length:
            if adds_length:
                made = [b"%d\n%b%b" % (message.number, _length_line(message), message.wire) for message in messages]
            else:
                made = [b"%d\n%b" % (message.number, message.wire) for message in messages]
            shared = part.rendered = adds_length, made
        return [framing.messages(self.prefix, shared[1].copy())]

    def frames_apart(self, part: Slice, first_ordinal: int, dropped_count: int) -> list[list[Piece]]:
        """Each frame in pieces, up to its body where that is large: with redelivery headers, a count of dropped
        messages, header blocks that must be rewritten for this version; and such as are too large to be copied.
        """
        frames: list[list[Piece]] = []
        attempts, adds_length = part.attempts, self._adds_length
        for ordinal, (sequence, message) in enumerate(zip(part.sequences, part.messages, strict=True), first_ordinal):
            parts: list[Piece] = [self._own_lines(ordinal, message.number)]
            frames.append(parts)
            if attempts and sequence in attempts:
                parts.append(_redelivery_lines(attempts[sequence]))
            if dropped_count:
                parts.append(b"dropped-count:%d\n" % dropped_count)
                dropped_count = 0
            head = message.head
            assert isinstance(head, SendHead)
            if adds_length and message.large is None:
                parts.append(_length_line(message))
            elif adds_length and message.large is not None and head.content_length < 0:
                parts.append(b"content-length:%d\n" % message.large[1])
            if head.neutral or head.version == self._version:
                parts.append(message.wire)
            else:
                start = self._block_offset(message)
                if start:
                    parts.append(message.wire[:start])
                parts.append(head.block_for(self._version))
                parts.append(message.wire[start + len(head.block) :])
        return frames

    def retained(self, part: Slice, first_ordinal: int) -> list[Piece]:
        """The MESSAGE frames of retained messages, marked as such."""
        frames = self.frames_apart(part, first_ordinal, 0)
        for frame in frames:
            frame.insert(1, b"retained:true\n")
        return [piece for frame in frames for piece in self._framing.frame(frame)]

    def notice(self, number: int, facts: Iterable[tuple[str, str]], *, ordinal: int | None = None) -> bytes:
        """Return a MESSAGE from the broker itself, without a body. `ordinal`: for its header `ack`, if it is to have
        one.
        """
        own = self.prefix + b"%d\n" % number if ordinal is None else self._own_lines(ordinal, number)
        headers = [("destination", self._destination), *facts, ("content-length", "0")]
        return own + header_lines(headers, self._version).encode() + b"\n\0"

    def _framed_apart(self, part: Slice, first_ordinal: int, dropped_count: int) -> list[Piece]:
        framing = self._framing
        return [
            piece for frame in self.frames_apart(part, first_ordinal, dropped_count) for piece in framing.frame(frame)
        ]

    def _own_lines(self, ordinal: int, number: int) -> bytes:
        if self._has_ack:
            return self._acked_prefix + self._acked_tail % (ordinal, number)
        return self.prefix + b"%d\n" % number

    def _block_offset(self, _message: Message) -> int:
        """Return the offset of the header block in the wire of a message."""
        return 0


class RecordRenderer(MessageRenderer):
    """Writes the MESSAGEs of one subscription to a log."""

    __slots__ = ("_key", "_ledger")

    def __init__(
        self,
        spec: SubscriptionSpec,
        token: bytes,
        framing: Framing,
        ledger: Ledger | None,
        ack_prefix: bytes = b"",
        *,
        partition: int | None = None,
    ) -> None:
        """`ledger`: knows which deliveries need a message-id of their own (repeats.py); `partition`: number of the
        partition that the log is of another one, for every MESSAGE.
        """
        lines = b"" if partition is None else b"partition:%d\n" % partition
        super().__init__(spec, token, framing, ack_prefix, lines=lines)
        self._adds_length = False  # records have one among their own lines
        self._key = spec.key
        self._ledger = ledger

    def frames(self, part: Slice, first_ordinal: int, dropped_count: int) -> list[Piece]:
        ledger = self._ledger
        if ledger is None or ledger.repeats is None or not ledger.repeats.has_own_from(first_ordinal):
            return super().frames(part, first_ordinal, dropped_count)
        return self._framed_apart(part, first_ordinal, dropped_count)

    def run(self, run: BatchRun, ordinal: int, failures_count: int | None) -> list[Piece]:
        """Return the one MESSAGE of a run of batches. `failures_count`: number of earlier deliveries; None: it is the
        first.
        """
        first = run.first_index
        head = b"%bdestination:%b\nindex:%d\ncount:%d\n%bcontent-type:%b\ncontent-length:%d\n\n" % (
            self._own_lines(ordinal, first),
            escape_value(self._destination, self._version).encode(),
            first,
            run.end_index - first,
            b"" if failures_count is None else _redelivery_lines(failures_count),
            CONTENT_TYPE.encode(),
            len(run.data),
        )
        return self._framing.frame([head, run.data, b"\0"])

    def _own_lines(self, ordinal: int, number: int) -> bytes:
        ledger = self._ledger
        if ledger is not None and ledger.repeats is not None and ledger.repeats.has_own(ordinal):
            return self.prefix + b"%d.%d.%d\n" % (number, self._key, ordinal)
        return super()._own_lines(ordinal, number)

    def _block_offset(self, message: Message) -> int:
        assert isinstance(message, RecordMessage)
        return message.lines_bytes


_Heads = Iterable[SendHead]


def _length_line(message: Message) -> bytes:
    """The header line that tells the length of its body, which is here; empty if the sender has."""
    head: SendHead = message.head  # type: ignore[assignment]  # a cast would be a call for each message
    return b"" if head.content_length >= 0 else b"content-length:%d\n" % (len(message.wire) - head.body_offset - 1)


def _redelivery_lines(failures_count: int) -> bytes:
    return b"redelivered:true\ndelivery-count:%d\n" % (failures_count + 1)
