"""What queues need of a store: the port. `store` implements it.

Everything here is synchronous and never waits. The store looks at a queue's elements when it has time to write (it
*pulls*): what was settled before that is simply not there any more, so a consumer that keeps up costs no writes and no
bookkeeping. Answers come as callbacks on the dispatch loop.

Source: seed 002 "Persistence Store" (delayed saves); anchors d8, d10, d21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from ..flow import FlowResource, SourceController, WaitEdge
from .blocks import Outside
from .durables import DurableReader
from .message import Message
from .observer import Observer

Saved = Callable[[str], None]
"""Called once with how safe it is: "disk" or "consumed"."""


class RestoredCursor(Protocol):
    """Where a durable subscription stood."""

    @property
    def front(self) -> int: ...
    @property
    def handed_to(self) -> int:
        """Elements below this may have been seen; 0: `attempts` says exactly which."""

    @property
    def settled(self) -> Iterable[range]:
        """Above the front."""

    @property
    def attempts(self) -> Mapping[int, int]: ...


class Restored(Protocol):
    """What an earlier run left of a queue."""

    @property
    def outside(self) -> Mapping[int, tuple[Outside, int]]:
        """By block: what is known of it, and how many elements are alive. Bit 0 is the first place of the block."""

    @property
    def next_sequence(self) -> int: ...
    @property
    def handed_to(self) -> int:
        """Elements below this may have been seen by a consumer; 0: `attempts` says exactly which."""

    @property
    def attempts(self) -> Mapping[int, int]:
        """By sequence: how often elements that came back were handed over."""

    @property
    def grouped(self) -> Set[int]:
        """Blocks in which some belong to a message group."""

    @property
    def due(self) -> Set[int]:
        """Blocks in which some must not be delivered before a time."""

    @property
    def cursors(self) -> Mapping[int, RestoredCursor]:
        """Of durable subscriptions, by their ids."""


class Elements(Protocol):
    """What is in a queue, for the store to pull from. Blocks are aligned, and of the size that the store has, too."""

    @property
    def next_sequence(self) -> int:
        """The sequence that the next element gets."""

    def block(self, index: int) -> object | None:
        """None: nothing of this block is there, in memory or outside."""

    def extent(self, index: int) -> range:
        """Sequences of this block, if it is in memory; else none."""

    def resident(self, first: int, end: int, *, persistent: bool = False) -> tuple[SequenceOf[int], list[Message]]:
        """What is alive of these, which are of one block, if that is in memory. `persistent`: nothing else. O(n)."""

    def holds_any(self, first: int, end: int) -> bool:
        """Whether some of these are alive."""

    def count_live(self, first: int, end: int) -> int:
        """How many of these are alive. O(blocks)."""


class PulledQueue(Protocol):
    """A queue, as the store sees it."""

    @property
    def name(self) -> str: ...
    @property
    def name_on_disk(self) -> str:
        """Of its destination, without the priority."""

    @property
    def keeps(self) -> bool:
        """Persistent messages are to outlive the broker."""

    @property
    def priority(self) -> int: ...
    @property
    def elements(self) -> Elements: ...
    @property
    def observer(self) -> Observer | None:
        """Is told what is written."""

    @property
    def handed_to(self) -> int:
        """Elements below this may have been handed to a consumer."""

    @property
    def is_consumed(self) -> bool:
        """Somebody takes from it, so that what has just come in may soon be settled."""

    def reader_states(self) -> Mapping[int, DurableReader]:
        """The places of durable subscriptions, by their ids: of a topic."""

    def reader_noted(self, reader: DurableReader) -> None:
        """The place of this one is on disk as it was told last: it may go on."""

    def make_readers(self, count_max: int) -> int:
        """Make so many of those places of durable subscriptions that are being made in steps. Returns how many are
        left.
        """

    def seen(self) -> Mapping[int, int]:
        """Elements that consumers have had, and that are not settled: how often they were handed over in vain."""

    def attempts_among(self, sequences: SequenceOf[int]) -> Mapping[int, int]:
        """Those of these that came back from a consumer, and how often they were handed over in vain."""

    def restored(self, found: Restored) -> None:
        """An earlier run left this. Called once, before anything is added."""

    def may_go_on(self) -> None:
        """What it was told to wait for has happened: look again."""


class Confirms(Protocol):
    """Says when what was settled is on disk."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call this when all that was settled so far is so on disk."""


class QueueStorage(Confirms, Protocol):
    """The stored side of one queue."""

    def added(self, count: int) -> None:
        """So many persistent elements were appended."""

    def settled(self, sequences: SequenceOf[int]) -> None:
        """These, which ascend, left for good."""

    def trimmed(self, floor: int) -> None:
        """All below this left for good: every reader of a topic has passed it."""

    def returned(self, attempts: Mapping[int, int]) -> None:
        """These came back from a consumer, and were handed over so often (0: seen, not counted)."""

    def may_hand_over(self, position: int, end: int, reader: DurableReader | None = None) -> bool:
        """Whether elements from `position` up to `end` may be handed to a consumer now, of a durable subscription if
        `reader` is given. False: the store must first note that they were, so that they are marked if they come back
        after a crash, or must write them first (`hold`); `may_go_on` will be called, or `reader_noted`. While the disk
        fails consumers do not wait for notes.
        """

    def hold(self, first: int, end: int) -> None:
        """Elements `first` to `end - 1`, just added, came from another queue: durable subscriptions get them when the
        disk knows. After a crash before that they would come again from there, and nobody could tell.
        """

    def reader_moved(self, durable_id: int, *, is_new: bool = False) -> None:
        """This durable subscription begins here (`is_new`), or has settled something."""

    def reader_gone(self, durable_id: int) -> None:
        """It was removed."""

    def rested(self) -> None:
        """Its last consumer has gone."""

    def put_out(self, index: int, done: Callable[[int], None], refused: Callable[[], None] | None = None) -> None:
        """Store all of this block, also what is not persistent, then call `done` with its number: it may leave memory
        then, if `index` is still the same block. There is no room for what is not persistent: call `refused` instead.
        """

    def load(self, index: int, arrived: Callable[[int, dict[int, Message]], None]) -> None:
        """Read this block; `arrived` gets its number and the elements, by sequence, that the store has: none, if the
        queue was deleted meanwhile.
        """

    def lost(self, index: int, sequences: SequenceOf[int]) -> None:
        """These, which should be in this block, could not be read: say so. They left for good."""

    def when_saved(self, first: int, end: int, callback: Saved) -> None:
        """Call this when the persistent ones of these elements are on disk or settled. Makes the store write soon."""

    def forget(self) -> None:
        """The queue is deleted: so is all that is stored of it."""


class Joint(Protocol):
    """A transaction that takes effect in steps: nothing of what it changes is written before its end, then all of it
    in one batch.
    """

    @property
    def waits(self) -> bool:
        """Its turn has not come: nothing may be changed yet."""

    def begin(self, go_on: Callable[[], None]) -> None:
        """Call this when its turn comes."""

    def edge(self) -> WaitEdge:
        """Whom it waits for, while it waits."""

    @property
    def is_broken(self) -> bool:
        """The broker made a mistake with a queue of it: nothing of it will be written, and nothing more is to be
        done."""

    @property
    def some_storage(self) -> Confirms | None:
        """One of what it has changed so far, or of what is bound to that, if any is still there. All of it goes to disk
        at once: who waits for this one before the end waits for the whole transaction.
        """

    def add(self, storage: Confirms) -> None:
        """It changes something of this one: to be called in the very step that does."""

    def end(self) -> None:
        """All of it has taken effect, or nothing more will. A second time: does nothing."""


class Room(Protocol):
    """The disk's room for blocks that only leave memory."""

    @property
    def accepting(self) -> bool:
        """Whether there is some, as far as one knows."""

    def hold_back(self, source: SourceController) -> None:
        """Block this source until it is worth another try."""


class Store(Protocol):
    """The store of one broker."""

    @property
    def paged(self) -> Room:
        """Where blocks go for whose room nothing else waits."""

    @property
    def accepting(self) -> bool:
        """Whether persistent messages may come in: the disk has room and works."""

    def accepts(self, source: SourceController) -> bool:
        """The same for this source: one whose turn it is need not wait for those in line behind it."""

    def hold_back(self, source: SourceController) -> None:
        """Block this source until `accepting`."""

    def storage_of(self, queue: PulledQueue, *, topic: bool) -> QueueStorage:
        """The storage of this queue; the one that an earlier run left, if it did: `restored` was called then."""

    def when_flushed(self, callbacks: list[Callable[[], None]]) -> None:
        """Call these when all that the store has been told so far, beside what is in queues, is on disk."""

    def when_all_saved(self, callback: Callable[[], None]) -> None:
        """Call this when all that is in queues or was settled in them so far is on disk."""

    def bind(self, storages: Iterable[Confirms]) -> None:
        """What was added to and settled in these (queues, groups of logs) since the last turn is one transaction: all
        or nothing.
        """

    def join(self, owner: FlowResource) -> Joint:
        """What this one is to change in steps from now on is one transaction. It may have to wait for others of its
        kind.
        """
