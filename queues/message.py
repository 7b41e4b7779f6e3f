"""Messages as queues see them: the wire form as received, and the few facts that decide where a message goes.

The header block is kept as received. The fields that queues use (priority, group, expiry) are parsed once per
*distinct* block and shared by all messages that carry the same block: that object is the envelope. So a message costs
one small object and one bytes string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, NewType, Protocol

from ..flow.source import PRIORITY_ORDINARY

Sequence = NewType("Sequence", int)
"""Place of an element in one queue; contiguous, starts at 0."""

PRIORITY_DEFAULT: Final = PRIORITY_ORDINARY
"""Priority of a message that names none."""

MESSAGE_OVERHEAD_BYTES: Final = 192
"""Bytes that the interpreter needs for one queued message beside its wire bytes (measured: object, bytes header,
integers, places in lists).
"""


class Envelope(Protocol):
    """Header block as queues see it. Shared between messages, never changed."""

    @property
    def destination(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def expires_at_ms(self) -> int: ...
    @property
    def ttl_ms(self) -> int: ...
    @property
    def delay_ms(self) -> int:
        """Milliseconds for which the message is held back; 0: not at all."""

    @property
    def group(self) -> str | None: ...
    def header(self, name: str) -> str | None:
        """Return the value of a header, or None. For selectors."""

    @property
    def neutral(self) -> bool:
        """The header block reads the same in every dialect of the protocol."""


class Message:
    """One message. `wire` is header block, blank line, body and terminator, in the dialect of `head`.

    A plain class with slots, not attrs: one is made per message, and this constructor is the cheapest there is. What
    few messages have (a time before which they must not be delivered, a body in a file) costs the others nothing: it is
    an attribute of the class here, and of the object in a subclass.
    """

    __slots__ = ("expires_at_ms", "head", "number", "wire")

    due_at_ms: int = 0
    """Wall time before which the message is not delivered; 0: at once. See DelayedMessage."""

    large: ClassVar[tuple[int, int] | None] = None
    """File and length of a body that is kept outside of memory; None: `wire` has it all. See large.py."""

    def __init__(self, head: Envelope, wire: bytes, number: int, expires_at_ms: int = 0) -> None:
        self.head = head
        self.wire = wire
        self.number = number
        self.expires_at_ms = expires_at_ms

    @property
    def size_bytes(self) -> int:
        """Bytes charged for this message: wire bytes plus overhead."""
        return len(self.wire) + MESSAGE_OVERHEAD_BYTES

    def dated(self, expires_at_ms: int) -> Message:
        """The same message with another date, as an object of its own."""
        return Message(self.head, self.wire, self.number, expires_at_ms)

    def delayed(self, due_at_ms: int) -> Message:
        """The same message, not to be delivered before this time, as an object of its own."""
        return DelayedMessage(self.head, self.wire, self.number, self.expires_at_ms, due_at_ms)

    def rewritten(self, head: Envelope, wire: bytes) -> Message:
        """The same message under another header block, without a date and a time of its own."""
        return Message(head, wire, self.number)

    def __repr__(self) -> str:
        return f"<Message {self.number} to {self.head.destination}, {len(self.wire)} bytes>"


class DelayedMessage(Message):
    """A message that waits for its time."""

    __slots__ = ("due_at_ms",)

    def __init__(self, head: Envelope, wire: bytes, number: int, expires_at_ms: int = 0, due_at_ms: int = 0) -> None:
        super().__init__(head, wire, number, expires_at_ms)
        self.due_at_ms = due_at_ms

    def dated(self, expires_at_ms: int) -> DelayedMessage:
        return DelayedMessage(self.head, self.wire, self.number, expires_at_ms, self.due_at_ms)


def size_of(messages: Iterable[Message]) -> int:
    """Charge of several messages, in bytes. O(n)."""
    sizes = [len(message.wire) for message in messages]
    return sum(sizes) + len(sizes) * MESSAGE_OVERHEAD_BYTES


def wire_bytes_of(messages: Iterable[Message]) -> int:
    """The bytes of their wires. O(n)."""
    return sum([len(message.wire) for message in messages])
