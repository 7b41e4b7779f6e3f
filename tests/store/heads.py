"""Header blocks of no protocol in particular, and the codec that a store is given for them."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from sluiceway.queues.message import DelayedMessage, Envelope, Message
from sluiceway.store.chunks import HeadCodec


@frozen(eq=False)
class PlainHead:
    """A head that is its block. Compared by identity, as those of the protocol are."""

    dialect: int
    block: bytes
    group: str | None = None
    destination: str = "/queue/a"
    priority: int = 4
    persistent: bool = True
    expires_at_ms: int = 0
    ttl_ms: int = 0
    delay_ms: int = 0
    neutral: bool = True


class PlainHeads(HeadCodec):
    """Reads what it wrote, but no block with `unreadable` in it and no dialect but those it knows."""

    def __init__(self, dialects: Sequence[int] = range(256)) -> None:
        self.dialects = dialects
        self.restored_count = 0

    def describe(self, head: Envelope) -> tuple[int, int]:
        assert isinstance(head, PlainHead)
        return head.dialect, len(head.block)

    def restore(self, dialect: int, block: bytes) -> Envelope:
        self.restored_count += 1
        if dialect not in self.dialects:
            raise ValueError(f"there is no dialect {dialect}")
        if b"unreadable" in block:
            raise ValueError("the block is unreadable")
        return PlainHead(dialect, block)


class FiledMessage(Message):
    """A message whose body lies in a file."""

    __slots__ = ("due_at_ms", "large")

    large: tuple[int, int] | None  # type: ignore[misc]  # of the class there, of the object here

    def __init__(
        self,
        head: Envelope,
        wire: bytes,
        number: int,
        expires_at_ms: int,
        due_at_ms: int,
        file_id: int,
        body_bytes: int,
    ) -> None:
        super().__init__(head, wire, number, expires_at_ms)
        self.due_at_ms = due_at_ms
        self.large = (file_id, body_bytes)


Row = tuple[int, int, int, bytes, bytes, int, int, tuple[int, int] | None]


def row_of(sequence: int, message: Message) -> Row:
    """Everything about a stored message: sequence, number, dialect, header block, rest of the wire, expires, due,
    large.
    """
    head = message.head
    assert isinstance(head, PlainHead) and message.wire.startswith(head.block)
    rest = message.wire[len(head.block) :]
    return (
        sequence,
        message.number,
        head.dialect,
        head.block,
        rest,
        message.expires_at_ms,
        message.due_at_ms,
        message.large,
    )


def message_of(head: PlainHead, row: Row) -> Message:
    """The message of such a row; `head` is that of its dialect and block."""
    _sequence, number, _dialect, block, rest, expires_at_ms, due_at_ms, large = row
    if large is not None:
        return FiledMessage(head, block + rest, number, expires_at_ms, due_at_ms, *large)
    if due_at_ms:
        return DelayedMessage(head, block + rest, number, expires_at_ms, due_at_ms)
    return Message(head, block + rest, number, expires_at_ms)
