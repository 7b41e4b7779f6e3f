"""Port to observers of a queue's messages.

Trails (queues/trails) remember it, tracing makes spans of it. A queue that is not observed has None, and each call is
guarded by `if observer is not None`. It is called per batch, never per message: for a run that came in, a slice that
was handed over, a range that was settled, a block that was moved.

An observer must not call back into a queue, nor raise, nor keep messages: it may keep numbers, sequences and names.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Protocol

from .message import Message

if TYPE_CHECKING:
    from ..flow import SourceController


class Fate(enum.IntEnum):
    """Fates of messages that leave a queue, or never get in, other than by being settled."""

    PARKED = 0
    """Held by its sender's connection, before the queue."""
    EXPIRED = 1
    DROPPED = 2
    """Dropped by policy, for lack of a subscriber, or with the queue."""
    GIVEN_UP = 3
    """Given up: still in the queue, on its way to the dead letters."""
    DEAD_LETTERED = 4
    MOVED = 5


class Observer(Protocol):
    """Observer of the messages of one queue. `sequences` ascend, except those of elements given up."""

    origin: SourceController | None
    """Source of the elements that come in next, if it is known."""

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        """Note that messages are in the queue, as its elements from `first` up to `end`, some of which may be
        left out.
        """

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        """Handed over to this consumer. `auto`: they are settled when the kernel has taken them, without ACK."""

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        """Note that consumer `by` has settled elements."""

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        """Note that consumer `by` has given elements back. `attempted`: they were handed over; `refused`: by a NACK."""

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        """Note the fate of elements that left; `detail` for people."""

    def missed(self, by: str, first: int, end: int) -> None:
        """Note that reader `by` was too slow and will never read what it has not yet read from `first` up to `end`."""

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        """Note the fate of messages that are not in the queue: they were parked before it, or refused."""

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        """Note that elements are written to the disk."""

    def paged(self, first: int, end: int, *, paged_in: bool) -> None:
        """Note that elements have been paged out or in."""

    def restored(self, end: int) -> None:
        """Note that all elements below `end` were left by an earlier run of the broker."""

    def closed(self, reason: str) -> None:
        """Note that the queue is deleted, with all its messages."""


class CompositeObserver:
    """Two observers of one queue as one."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first = first
        self._second = second

    @property
    def origin(self) -> SourceController | None:
        return self._first.origin

    @origin.setter
    def origin(self, source: SourceController | None) -> None:
        self._first.origin = self._second.origin = source

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        self._first.accepted(messages, first, end)
        self._second.accepted(messages, first, end)

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        self._first.sent(to, sequences, auto=auto)
        self._second.sent(to, sequences, auto=auto)

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        self._first.settled(by, sequences)
        self._second.settled(by, sequences)

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        self._first.returned(by, sequences, attempted=attempted, refused=refused)
        self._second.returned(by, sequences, attempted=attempted, refused=refused)

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        self._first.left(fate, sequences, detail)
        self._second.left(fate, sequences, detail)

    def missed(self, by: str, first: int, end: int) -> None:
        self._first.missed(by, first, end)
        self._second.missed(by, first, end)

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        self._first.outside(fate, messages, detail)
        self._second.outside(fate, messages, detail)

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        self._first.stored(sequences, synced=synced)
        self._second.stored(sequences, synced=synced)

    def paged(self, first: int, end: int, *, paged_in: bool) -> None:
        self._first.paged(first, end, paged_in=paged_in)
        self._second.paged(first, end, paged_in=paged_in)

    def restored(self, end: int) -> None:
        self._first.restored(end)
        self._second.restored(end)

    def closed(self, reason: str) -> None:
        self._first.closed(reason)
        self._second.closed(reason)
