"""What a queue tells those who want to know what becomes of its messages: the port.

Trails (queues/trails) remember it, tracing makes spans of it. A queue whose messages nobody follows has no observer
(None), and each place that tells one is `if observer is not None`. It is told per batch, never per message: a run that
came in, a slice that was handed over, a range that was settled, a block that was moved.

A observer must not call back into a queue, nor raise, nor keep messages: it may keep numbers, sequences and names.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Protocol

from .message import Message

if TYPE_CHECKING:
    from ..flow import SourceController
    from .queue import MessageQueue


class Fate(enum.IntEnum):
    """Why messages leave a queue, or never get in, other than by being settled."""

    PARKED = 0
    """Not in the queue yet: its sender's connection holds it."""
    EXPIRED = 1
    DROPPED = 2
    """By policy, because nobody was there to hear it, or with its queue."""
    GIVEN_UP = 3
    """Still in the queue, on its way to the dead letters."""
    DEAD_LETTERED = 4
    MOVED = 5


class Observer(Protocol):
    """Follows what becomes of the messages of one queue. `sequences` ascend, but for those that were given up."""

    origin: SourceController | None
    """Who sends what comes in next, if it is known."""

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        """These are in the queue, as its elements from `first` up to `end`, some of which may be left out."""

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        """Handed over to this consumer. `auto`: they are settled when the kernel has taken them, without ACK."""

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        """This consumer is done with these."""

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        """This consumer has given these back. `attempted`: they were really handed over; `refused`: by a NACK."""

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        """This has become of these; `detail` for people."""

    def missed(self, by: str, first: int, end: int) -> None:
        """What of these this reader has not read yet it never will: it was too slow."""

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        """This has become of messages that are not in the queue: they were parked before it, or turned away."""

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        """These are written to the disk."""

    def paged(self, first: int, end: int, *, paged_in: bool) -> None:
        """These have left memory for the disk, or have come back."""

    def restored(self, end: int) -> None:
        """All that is there below `end` was left by an earlier run of the broker."""

    def closed(self, reason: str) -> None:
        """The queue is deleted, with all that it held."""


ObserverOf = Callable[["MessageQueue"], Observer | None]
"""Gives the observer of a new queue."""


class CompositeObserver:
    """Two for one queue."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first = first
        self._second = second

    @property
    def origin(self) -> SourceController | None:
        """See Observer."""
        return self._first.origin

    @origin.setter
    def origin(self, source: SourceController | None) -> None:
        self._first.origin = self._second.origin = source

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        """See Observer."""
        self._first.accepted(messages, first, end)
        self._second.accepted(messages, first, end)

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        """See Observer."""
        self._first.sent(to, sequences, auto=auto)
        self._second.sent(to, sequences, auto=auto)

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        """See Observer."""
        self._first.settled(by, sequences)
        self._second.settled(by, sequences)

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        """See Observer."""
        self._first.returned(by, sequences, attempted=attempted, refused=refused)
        self._second.returned(by, sequences, attempted=attempted, refused=refused)

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        """See Observer."""
        self._first.left(fate, sequences, detail)
        self._second.left(fate, sequences, detail)

    def missed(self, by: str, first: int, end: int) -> None:
        """See Observer."""
        self._first.missed(by, first, end)
        self._second.missed(by, first, end)

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        """See Observer."""
        self._first.outside(fate, messages, detail)
        self._second.outside(fate, messages, detail)

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        """See Observer."""
        self._first.stored(sequences, synced=synced)
        self._second.stored(sequences, synced=synced)

    def paged(self, first: int, end: int, *, paged_in: bool) -> None:
        """See Observer."""
        self._first.paged(first, end, paged_in=paged_in)
        self._second.paged(first, end, paged_in=paged_in)

    def restored(self, end: int) -> None:
        """See Observer."""
        self._first.restored(end)
        self._second.restored(end)

    def closed(self, reason: str) -> None:
        """See Observer."""
        self._first.closed(reason)
        self._second.closed(reason)
