"""Port of queues to a store; `store` implements it.

Everything here is synchronous and never waits. The store looks at a queue's elements when it has time to write (it
*pulls*): an element that was settled before is not there any more, so a consumer that keeps up costs no writes and no
bookkeeping. Answers come as callbacks on the dispatch loop. One contract suite holds for the store and for its fake in
tests (tests/contract/test_queue_storage.py).

Source: seed 002 "Persistence Store" (delayed saves); anchors d8, d10, d21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from collections.abc import Sequence as SequenceOf
from typing import Final, Protocol

from ..flow import FlowResource, SourceController, WaitEdge
from .blocks import Outside
from .durables import DurableReader
from .message import Message
from .observer import Observer
from .producers import Remembered

Saved = Callable[[str], None]
"""Callback that is called once with the durability of elements: DISK, SHARED or CONSUMED."""

DISK: Final = "disk"
"""Durability of what is on the disk of this machine, synced."""
SHARED: Final = "shared"
"""Durability of what is committed in a database, which may outlive this machine."""
CONSUMED: Final = "consumed"
"""Durability of what was acknowledged before it had to be written."""


class RestoredCursor(Protocol):
    """Place of a durable subscription in an earlier run."""

    @property
    def front(self) -> int: ...
    @property
    def handed_to(self) -> int:
        """Elements below this may have been seen; 0: `attempts` says exactly which."""

    @property
    def settled(self) -> Iterable[range]:
        """Runs of settled elements above the front."""

    @property
    def attempts(self) -> Mapping[int, int]: ...


class Restored(Protocol):
    """A queue of an earlier run."""

    @property
    def outside(self) -> Mapping[int, tuple[Outside, int]]:
        """Facts about a block, and number of its elements that are alive, by block. Bit 0 is the first place of the
        block.
        """

    @property
    def next_sequence(self) -> int: ...
    @property
    def handed_to(self) -> int:
        """Elements below this may have been seen by a consumer; 0: `attempts` says exactly which."""

    @property
    def attempts(self) -> Mapping[int, int]:
        """Number of times that returned elements were handed over, by sequence."""

    @property
    def grouped(self) -> Set[int]:
        """Blocks with elements that belong to a message group."""

    @property
    def due(self) -> Set[int]:
        """Blocks with elements that must not be delivered before a time."""

    @property
    def producers(self) -> Mapping[str, Remembered]:
        """Memory of producers, by name on disk, the one that was quiet for longest first."""

    @property
    def cursors(self) -> Mapping[int, RestoredCursor]:
        """Cursors of durable subscriptions, by their ids."""


class Elements(Protocol):
    """Elements of a queue, for the store to pull from. Blocks are aligned, and of the size that the store has, too."""

    @property
    def next_sequence(self) -> int:
        """The sequence that the next element gets."""

    def block(self, index: int) -> object | None:
        """Return the block; None: nothing of it is there, in memory or outside."""

    def extent(self, index: int) -> range:
        """Return the sequences of a block that is in memory; else none."""

    def resident(self, first: int, end: int, *, persistent: bool = False) -> tuple[SequenceOf[int], list[Message]]:
        """Return the elements of this range of one block that are alive, if the block is in memory. `persistent`: only
        persistent ones. O(n).
        """

    def holds_any(self, first: int, end: int) -> bool:
        """Return whether some elements of this range are alive."""

    def count_live(self, first: int, end: int) -> int:
        """Return how many elements of this range are alive. O(blocks)."""


class PulledQueue(Protocol):
    """A queue, as the store sees it."""

    @property
    def name(self) -> str: ...
    @property
    def name_on_disk(self) -> str:
        """Name of the destination, without the priority."""

    @property
    def keeps(self) -> bool:
        """Whether persistent messages are to outlive the broker."""

    @property
    def priority(self) -> int: ...
    @property
    def elements(self) -> Elements: ...
    @property
    def observer(self) -> Observer | None:
        """Observer of writes."""

    @property
    def handed_to(self) -> int:
        """Elements below this may have been handed to a consumer."""

    @property
    def is_consumed(self) -> bool:
        """Whether the queue has consumers, so that new elements may soon be settled."""

    def reader_states(self) -> Mapping[int, DurableReader]:
        """Return the places of durable subscriptions of a topic, by their ids."""

    def reader_noted(self, reader: DurableReader) -> None:
        """Resume a reader: its position is on disk as it was written last."""

    def make_readers(self, count_max: int) -> int:
        """Make up to `count_max` of the places of durable subscriptions that are being made in steps. Returns how many
        are left.
        """

    def seen(self) -> Mapping[int, int]:
        """Return the failed attempts of elements that consumers have had and that are not settled."""

    def attempts_among(self, sequences: SequenceOf[int]) -> Mapping[int, int]:
        """Return the failed attempts of the elements that came back from a consumer."""

    def restored(self, found: Restored) -> None:
        """Take over the messages of an earlier run. Called once, before any message is added."""

    def may_go_on(self) -> None:
        """Continue: the event for which the queue was told to wait has happened."""


class Confirms(Protocol):
    """Port to the confirmation that settled elements are settled on disk."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` when everything settled so far is settled on disk."""


class QueueStorage(Confirms, Protocol):
    """The stored side of one queue."""

    def added(self, count: int) -> None:
        """Note that `count` persistent elements were appended."""

    def settled(self, sequences: SequenceOf[int]) -> None:
        """Note that the elements left the queue. The sequences ascend."""

    def trimmed(self, floor: int) -> None:
        """Note that all elements below `floor` left the queue: every reader of a topic has passed them."""

    def returned(self, attempts: Mapping[int, int]) -> None:
        """Note that these elements came back from a consumer, and how often they were handed over (0: seen, not
        counted).
        """

    def may_hand_over(self, position: int, end: int, reader: DurableReader | None = None) -> bool:
        """Return whether elements from `position` up to `end` may be handed to a consumer now, of a durable
        subscription if `reader` is given. False: the store must first note that they were, so that they are marked if
        they come back after a crash, or must write them first (`hold`); `may_go_on` will be called, or `reader_noted`.
        While the disk fails consumers do not wait for notes.
        """

    def hold(self, first: int, end: int) -> None:
        """Hold elements `first` to `end - 1`, just added, which came from another queue: durable subscriptions get them
        when the disk has them. After a crash before that they would come again from there, unmarked.
        """

    def produced(self, first: int, end: int, noted: Mapping[str, Remembered], gone: SequenceOf[str]) -> None:
        """Note what is remembered of producers, by name on disk, and which are `gone`: in the batch that saves elements
        `first` to `end - 1`, just added, which are held as by `hold`.
        """

    def reader_moved(self, durable_id: int, *, is_new: bool = False) -> None:
        """Note that this durable subscription begins here (`is_new`), or has settled something."""

    def reader_gone(self, durable_id: int) -> None:
        """Note that this durable subscription was removed."""

    def rested(self) -> None:
        """Note that the last consumer of the queue has gone."""

    def page_out(self, index: int, done: Callable[[int], None], refused: Callable[[], None] | None = None) -> None:
        """Store all of this block, also elements that are not persistent, then call `done` with its number: the block
        may leave memory then, if `index` is still the same block. If there is no room for elements that are not
        persistent, call `refused` instead.
        """

    def load(self, index: int, arrived: Callable[[int, dict[int, Message]], None]) -> None:
        """Read this block; `arrived` gets its number and the elements, by sequence, that the store has: none, if the
        queue was deleted meanwhile.
        """

    def lost(self, index: int, sequences: SequenceOf[int]) -> None:
        """Note, and log, that elements of a block could not be read, and left the queue."""

    def when_saved(self, first: int, end: int, callback: Saved) -> None:
        """Call back when the persistent elements of this range are on disk or settled. Makes the store write soon."""

    def forget(self) -> None:
        """Delete everything stored of the queue, which is deleted."""


class Joint(Protocol):
    """A transaction that takes effect in steps: none of its changes is written before its end, then all of them in one
    batch.
    """

    @property
    def waits(self) -> bool:
        """Whether the transaction waits for its turn, so that nothing may be changed yet."""

    def begin(self, go_on: Callable[[], None]) -> None:
        """Call back when its turn comes."""

    def edge(self) -> WaitEdge:
        """Return the edge to the resource that it waits for, while it waits."""

    @property
    def is_broken(self) -> bool:
        """Whether the broker made a mistake with a queue of it: nothing of it will be written, and nothing more is to
        be done.
        """

    @property
    def some_storage(self) -> Confirms | None:
        """Return a queue or group that the transaction has changed so far, or that is bound to one, if any is still
        there. All of them are written at once: a wait for this one before the end is a wait for the whole transaction.
        """

    def add(self, storage: Confirms) -> None:
        """Note that it changes something of `storage`: call this in the very step that does."""

    def end(self) -> None:
        """End the transaction: all of it has taken effect, or nothing more will. A second time: does nothing."""


class Room(Protocol):
    """The disk's room for blocks that only leave memory."""

    @property
    def accepting(self) -> bool:
        """Whether there is room, as far as is known."""

    def hold_back(self, source: SourceController) -> None:
        """Block this source until it is worth another try."""


class StoredWork(Protocol):
    """All stores of one broker, to ask and to wait for."""

    @property
    def accepting(self) -> bool:
        """Whether persistent messages may come in: the disk has room and works."""

    def when_all_saved(self, callback: Callable[[], None]) -> None:
        """Call `callback` when everything that is in queues or was settled in them so far is on disk."""


class Store(StoredWork, Protocol):
    """The store of one shard."""

    @property
    def durability(self) -> str:
        """Durability of what is written and synced: DISK or SHARED."""

    @property
    def paged(self) -> Room:
        """Room for blocks that only leave memory: nothing else waits for it."""

    def accepts(self, source: SourceController) -> bool:
        """Return whether there is room for `source`: a source whose turn it is need not wait for those in line behind
        it.
        """

    def hold_back(self, source: SourceController) -> None:
        """Block this source until `accepting`."""

    def storage_of(self, queue: PulledQueue, *, topic: bool) -> QueueStorage:
        """Return the storage of this queue; if an earlier run left one, `restored` was called then."""

    def when_flushed(self, callbacks: list[Callable[[], None]]) -> None:
        """Call `callbacks` when all changes passed to the store so far, other than elements of queues, are on disk."""

    def bind(self, changed: Iterable[Confirms]) -> None:
        """Make one transaction, all or nothing, of the elements added to and settled in queues and groups of logs since
        the last turn.
        """

    def join(self, owner: FlowResource) -> Joint:
        """Begin a transaction of the changes that `owner` makes in steps from now on. The transaction may have to wait
        for others of its kind.
        """
