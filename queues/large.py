"""Messages whose body is in a file: the header block and a reference to the file stay in memory.

The wire of a `LargeMessage` is header block and blank line only, so queues count, charge and hand over a few hundred
bytes for it. Several messages may share one body (a SEND to several destinations, a subscriber's copy with a date of
its own): each holds the same `BodyReference`.

Ownership: the file stays as long as a reference to it is alive or a record of the store names it. Queues release
messages in many places (settled, dropped, expired, deleted, never accepted), so releases are not reported: the
interpreter knows when the last message with a reference has died, and the reference tells the `BodyKeeper` then.
Records of the store are counted by `keep` and `forget`.

Invariant: the keeper is told of the death of every reference exactly once, on any thread.

Deliberately not here: files (store/large.py), how a body gets in and out (protocols/stomp).

Source: seed 002 "Large Message Support".
"""

from __future__ import annotations

from typing import Protocol

from .message import Envelope, Message
from .slices import Slice


def up_to_large(part: Slice) -> Slice:
    """Return the head of `part` that is sent together: the messages before the first large body, or that one alone."""
    larges = [place for place, message in enumerate(part.messages) if message.large is not None]
    count = (larges[0] or 1) if larges else len(part)
    return part if count == len(part) else part.head(count)


class BodyError(Exception):
    """A body can't be written to its file, or not be read from it. The message names the file and the remedy."""


class BodyKeeper(Protocol):
    """Owner of the files of large bodies."""

    def keep(self, file_id: int) -> None:
        """One more record of the store names this file."""

    def forget(self, file_id: int) -> None:
        """One record less names it."""

    def reference_died(self, file_id: int) -> None:
        """Note that a reference was released. Called from any thread, perhaps in the midst of other code (by the
        garbage collector): must only take a note.
        """


class BodyReference:
    """A complete body in a file. Made by the keeper; the file may go when this dies and the store does not keep it."""

    __slots__ = ("file_id", "keeper", "length_bytes")

    def __init__(self, keeper: BodyKeeper, file_id: int, length_bytes: int) -> None:
        self.keeper = keeper
        self.file_id = file_id
        self.length_bytes = length_bytes

    def keep(self) -> None:
        """A record of the store names the file from now on: call it once per record, before the record is written."""
        self.keeper.keep(self.file_id)

    def forget(self) -> None:
        """Note that a record that named the file is gone: call this once per record, after it was deleted. If no
        reference is left by then, call the keeper's `forget` with the number of the file instead.
        """
        self.keeper.forget(self.file_id)

    def __del__(self) -> None:
        self.keeper.reference_died(self.file_id)

    def __repr__(self) -> str:
        return f"<BodyReference {self.file_id}, {self.length_bytes} bytes>"


class LargeMessage(Message):
    """A message with its body in a file. `wire` ends with the blank line: body and terminator come from elsewhere."""

    __slots__ = ("body", "due_at_ms")

    def __init__(
        self,
        head: Envelope,
        wire: bytes,
        number: int,
        body: BodyReference,
        expires_at_ms: int = 0,
        due_at_ms: int = 0,
    ) -> None:
        super().__init__(head, wire, number, expires_at_ms)
        self.body = body
        self.due_at_ms = due_at_ms

    @property
    def large(self) -> tuple[int, int]:  # type: ignore[override]
        """File and length of the body."""
        return self.body.file_id, self.body.length_bytes

    def dated(self, expires_at_ms: int) -> LargeMessage:
        return LargeMessage(self.head, self.wire, self.number, self.body, expires_at_ms, self.due_at_ms)

    def delayed(self, due_at_ms: int) -> LargeMessage:
        return LargeMessage(self.head, self.wire, self.number, self.body, self.expires_at_ms, due_at_ms)

    def rewritten(self, head: Envelope, wire: bytes) -> LargeMessage:
        return LargeMessage(head, wire, self.number, self.body)

    def __repr__(self) -> str:
        return f"<LargeMessage {self.number} to {self.head.destination}, {self.body.length_bytes} bytes of body>"
