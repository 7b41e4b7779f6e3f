"""Stored side of one queue: its elements on disk, those to be written, and those that left.

*Pull.* Nothing is kept per element that waits to be saved: all persistent elements from `saved_to` on are not on disk
yet. When the StoreQueue has time, `collect` writes those that are still in the queue. Elements settled meanwhile are
not there any more: their save and their delete have cancelled each other without further work.

*Delay.* Elements are given the time in which the queue's consumers usually settle them (`time to ack`, measured on one
element at a time) before they are written. A queue without consumers, a waiting receipt and a block that is to be paged
out don't wait.

*What is on disk* is known by block of 1,024: which sequences the chunks span, and which of them are alive. Settled
elements go to one small state record per block; a block without live elements is deleted with all its records.

*Fence.* Changes that belong to elements go into the very batch that saves these (write_fence.py).

*Handed over.* Elements of which the disk knows are handed to consumers only below the *lease*, a number on disk that
runs ahead of the readers: after a crash all elements below it count as seen, and are marked when they come again. While
the disk fails readers continue without a lease: if the process dies before the disk works again, they may get elements
again without the mark.

Bound: about 300 bytes for each block that has something on disk.

Source: seed 002 "Persistence Store"; anchors d8, d10, d21; DESIGN section 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Final

from ..queues.blocks import bit_range, bits_of
from ..queues.durables import DurableReader
from ..queues.message import Message
from ..queues.producers import Remembered
from ..queues.storage import PulledQueue, Saved
from . import keys
from .batch import ChunkRecord, PageOut, StoreBatch
from .chunks import encode_chunk_and_summary
from .engine import Change, delete, put
from .kept_bodies import KeptBodies
from .keys import BLOCK_BITS, BLOCK_SIZE
from .loading import load_block
from .reader_places import ReaderPlaces
from .states import KIND_QUEUE, KIND_TOPIC, encode_head, encode_producer, encode_queue
from .stored_block import StoredBlock
from .write_fence import NOTHING_BEGUN, WriteFence

if TYPE_CHECKING:
    from .bonds import Bond
    from .storequeue import StoreQueue

LEASE_COUNT: Final = 65_536
"""Number of elements by which the lease runs ahead. Renewed when half of it is used, so a reader waits for it only at
its start; after a crash at most this many elements are marked as seen that were not.
"""

SEAL_COUNT: Final = 8
"""A block that leaves memory in more chunks than this is written anew, as one."""

SLOW_AFTER: Final = 2.0
"""Times the usual time to ack: then an element is written."""


class QueueRecords:
    """See the module, and `sluiceway.queues.storage.QueueStorage`."""

    __slots__ = (
        "_added_count",
        "_blocks",
        "_bodies",
        "_fence",
        "_forgotten",
        "_has_paged",
        "_has_producers",
        "_holds_back",
        "_is_saved",
        "_known",
        "_lease",
        "_mark",
        "_noting",
        "_page_outs",
        "_places",
        "_probe",
        "_queue",
        "_store",
        "_touched",
        "_trimmed_to",
        "_waiting_saves",
        "_waiting_settled",
        "bond",
        "bound_to",
        "due_seconds",
        "is_bound",
        "queue_id",
        "saved_to",
        "time_to_ack_seconds",
        "topic",
        "urgent",
        "written_count",
    )  # fmt: skip

    def __init__(
        self, store: StoreQueue, queue: PulledQueue, queue_id: int, *, topic: bool, known: bool = False
    ) -> None:
        """`known`: the disk has a record of this queue already."""
        self._store = store
        self._queue = queue
        self.queue_id = queue_id
        self.topic = topic
        self.saved_to = queue.elements.next_sequence
        """Elements below this are on disk, on their way there, or need not be."""
        self.bound_to = 0
        """Elements below this belong to a transaction: they go in one batch."""
        self.is_bound = False
        """Whether the elements collected next are part of a transaction."""
        self.bond: Bond | None = None
        """Shelves that transactions bind to this one: see bonds.py."""
        self.urgent = False
        """Write at the next opportunity."""
        self.due_seconds = 0.0
        """Clock reading at which to check the shelf, if nothing is urgent."""
        self.time_to_ack_seconds = 0.0
        self.written_count = 0
        self._known = known
        self._forgotten = False
        self._has_paged = self._has_producers = False
        self._mark = self.saved_to
        self._blocks: dict[int, StoredBlock] = {}
        self._touched: set[int] = set()
        """Blocks whose state on disk is out of date."""
        self._trimmed_to = 0
        self._page_outs: list[PageOut] = []
        self._waiting_saves: deque[tuple[int, int, Saved, float]] = deque()
        """First and end of elements, the callback for when they are saved, and the clock reading since when
        it waits.
        """
        self._waiting_settled: list[Callable[[], None]] = []
        self._lease = 0
        self._noting = False
        self._probe: tuple[int, float] | None = None
        self._places = ReaderPlaces(queue)
        self._is_saved = False
        """Whether the elements that are due are already in the batch that is gathered in steps."""
        self._bodies = KeptBodies(store.bodies)
        self._added_count = 0
        self._fence = WriteFence()
        self._holds_back = False
        """The queue waits for elements that are held."""

    # ------------------------------------------------------------------ calls of the queue

    def added(self, count: int) -> None:
        self._added_count += count
        if self._probe is None:
            self._probe = self._queue.elements.next_sequence - 1, self._store.clock()
        self._store.touch(self)

    def settled(self, sequences: SequenceOf[int]) -> None:
        probe = self._probe
        last = sequences[-1]
        if probe is not None and last >= probe[0]:
            age_seconds = self._store.clock() - probe[1]
            self.time_to_ack_seconds += (age_seconds - self.time_to_ack_seconds) / 4
            self._probe = None
        if self._waiting_saves and self._waiting_saves[0][0] <= last:
            self._store.perhaps_consumed(self)
        if not self._blocks:
            return
        first = sequences[0]
        if first >= self.saved_to and last >= self.saved_to:
            return
        index = first >> BLOCK_BITS
        if index == last >> BLOCK_BITS:
            block = self._blocks.get(index)
            if block is None:
                return
            base = index << BLOCK_BITS
            if isinstance(sequences, range) and sequences.step == 1:
                bits = bit_range(first - base, last + 1 - base)
            else:
                bits = bits_of([sequence - base for sequence in sequences])
            self._take(index, block, bits)
            return
        for sequence in sequences:
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            if block is not None:
                self._take(index, block, 1 << (sequence & (BLOCK_SIZE - 1)))

    def trimmed(self, floor: int) -> None:
        """All below this left."""
        # From where the last floor was: there may be thousands of blocks above.
        indices: range | list[int] = range(self._trimmed_to >> BLOCK_BITS, ((floor - 1) >> BLOCK_BITS) + 1)
        self._trimmed_to = max(self._trimmed_to, floor)
        if len(indices) > len(self._blocks):
            indices = [index for index in self._blocks if index in indices]
        for index in indices:
            if index not in self._blocks:
                continue
            places = min(BLOCK_SIZE, floor - (index << BLOCK_BITS))
            self._take(index, self._blocks[index], bit_range(0, places))

    def _take(self, index: int, block: StoredBlock, bits: int) -> None:
        if self._bodies.left(index << BLOCK_BITS, bits):
            self._touch_block(index)
        if block.attempts:
            block.attempts = {place: n for place, n in block.attempts.items() if not bits >> place & 1}
        if block.paged is not None and block.paged.page is not None and self._queue.elements.block(index) is None:
            self.unpage(index, block.paged)  # at once: no batch may come through before it has made room
        hit = block.live & bits
        if hit:
            block.live ^= hit
            self._touch_block(index)
        elif block.paged is not None:
            self._touch_block(index)

    def _touch_block(self, index: int) -> None:
        self._touched.add(index)
        self._store.touch(self)

    def returned(self, attempts: Mapping[int, int]) -> None:
        for sequence, count in attempts.items():
            index = sequence >> BLOCK_BITS
            block = self._blocks.get(index)
            place = sequence & (BLOCK_SIZE - 1)
            if block is not None and block.live >> place & 1:
                if block.attempts is None:
                    block.attempts = {}
                if block.attempts.get(place) != count:
                    block.attempts[place] = count
                    self._touch_block(index)

    def attach(
        self,
        first: int,
        end: int,
        changes: list[Change],
        done: Callable[[], None] | None = None,
        undone: Callable[[], None] | None = None,
    ) -> None:
        """Put changes into the batch with which the last of elements `first` to `end - 1` is saved (or has left), all
        of them into one. `done` is called when that is written, `undone` if the queue is abandoned before. Call it in
        order, before anything else is added. With `first == end`: into the next batch of this shelf.
        """
        if self._forgotten:
            self._store.change(changes, written=done)
            return
        self._fence.add(first, end, changes, done, undone)
        self._store.touch(self, urgent=True)

    def hold(self, first: int, end: int) -> None:
        if first < end:
            self.attach(first, end, [])

    def produced(self, first: int, end: int, noted: Mapping[str, Remembered], gone: SequenceOf[str]) -> None:
        if self._forgotten:
            return
        changes = [
            put(keys.producer_key(self.queue_id, name), encode_producer(*remembered))
            for name, remembered in noted.items()
        ]
        changes += [delete(keys.producer_key(self.queue_id, name)) for name in gone]
        if not self._known:  # its elements may be gone before they are written: then this alone names the queue
            changes.append(self._description())
        self._has_producers = True
        self.attach(first, end, changes)

    def _let_through(self) -> None:
        """Elements that were held are on disk."""
        if self._holds_back and not self._forgotten:
            self._holds_back = False
            self._queue.may_go_on()

    def may_hand_over(self, position: int, end: int, reader: DurableReader | None = None) -> bool:
        is_held = self._fence.holds(self._queue.elements, position)
        needed = min(end, self.saved_to)
        if reader is not None:
            is_noted = needed <= reader.lease or position >= self.saved_to
            if is_held or not (is_noted or self._store.is_failing):
                self._places.note(reader.durable_id)
                self._store.touch(self, urgent=True)
                return False
            if end > reader.lease:  # elements handed out now may be stored later: they are noted with that
                self.reader_moved(reader.durable_id)
            return True
        if is_held:
            self._holds_back = True
            return False
        if needed <= self._lease or position >= self.saved_to or not self._blocks or not self._queue.keeps:
            return True
        self._noting = True
        self._store.touch(self, urgent=True)
        return self._store.is_failing

    def go_on_unnoted(self) -> None:
        """The disk fails: readers do not wait for it."""
        if not self._forgotten:
            self._queue.may_go_on()

    def reader_moved(self, durable_id: int, *, is_new: bool = False) -> None:
        self._places.moved(durable_id, is_new=is_new)
        if is_new or self._blocks:  # otherwise there is nothing to miss or to get again
            self._store.touch(self)

    def reader_gone(self, durable_id: int) -> None:
        self._places.gone(durable_id)
        self._store.change([delete(keys.cursor_key(self.queue_id, durable_id))])

    def rested(self) -> None:
        if self._lease > self._queue.handed_to:
            self._store.touch(self)

    def page_out(self, index: int, done: Callable[[int], None], refused: Callable[[], None] | None = None) -> None:
        if self._forgotten:
            return  # nothing of it is written any more
        self._page_outs.append(PageOut(self, index, done, refused))
        self._store.touch(self, urgent=True)

    def unpage(self, index: int, record: ChunkRecord | None) -> None:
        """Drop the page of a block, which lies in a file, or has no room there."""
        stored = self._blocks.get(index)
        if record is not None and stored is not None and stored.paged is record:
            stored.paged = None
            self._store.paged.forget([record])
            self._touch_block(index)

    def when_saved(self, first: int, end: int, callback: Saved) -> None:
        if self._forgotten:
            callback("consumed")
            return
        self._waiting_saves.append((first, end, callback, self._store.clock()))
        self._store.receipt_waits(self, end - first)

    def when_settled(self, callback: Callable[[], None]) -> None:
        if self._forgotten:
            self._store.when_flushed([callback])
            return
        self._waiting_settled.append(callback)
        self._store.receipt_waits(self, 1)

    def abandoned(self) -> list[Callable[[], None]]:
        """Drop everything that is not yet written. Returns the callbacks to call because of that."""
        return [each.undone for each in self._fence.take_all() if each.undone is not None]

    def forget(self) -> None:
        self._forgotten = True
        for _first, _end, callback, _since in self._waiting_saves:
            callback("consumed")
        self._waiting_saves.clear()
        self._bodies.all_left()
        waiting, self._waiting_settled = [*self._waiting_settled, *self._bodies.take_released()], []
        attached = [each for each in self._fence.take_all() if not _is_of_producers(each.changes)]
        self._store.bequeath(self, attached, waiting)
        self._store.forget(self)
        self._store.paged.forget([block.paged for block in self._blocks.values()])
        self._blocks.clear()

    # ------------------------------------------------------------------ writing

    @property
    def is_clean(self) -> bool:
        """Whether nothing is to be written, and no callback waits."""
        return not (
            self._touched
            or self._page_outs
            or self._fence
            or self._waiting_saves
            or self._waiting_settled
            or self._noting
            or self._places.is_noting
            or (self._lease > self._queue.handed_to and not self._queue.is_consumed and not self.topic)
            or self._places.due_count(is_stored=bool(self._blocks))
            or self.saved_to < self._queue.elements.next_sequence
        )

    @property
    def target(self) -> tuple[str, int, bool]:
        """Name of the queue in pieces of spooled transactions (spool_records.py)."""
        return self._queue.name_on_disk, self._queue.priority, self.topic

    @property
    def has_records(self) -> bool:
        """Whether the disk may have records of this queue."""
        return self._known or self._has_paged or self._has_producers

    @property
    def elements_end(self) -> int:
        """The sequence that the next element gets."""
        return self._queue.elements.next_sequence

    @property
    def touched_count(self) -> int:
        """Blocks whose state is to be written."""
        return len(self._touched)

    @property
    def places_count(self) -> int:
        """Durable subscriptions whose places may have to be written."""
        return self._places.count if self.topic else 0

    def save_before_places(self, batch: StoreBatch) -> int:
        """Do the first part of `collect`, which then continues after it. Returns the number of positions of durable
        subscriptions that are due.
        """
        self._save(batch)
        self._is_saved = True
        return self._places.due_count(is_stored=bool(self._blocks))

    def write_places(self, batch: StoreBatch, count_max: int) -> int:
        """Write up to `count_max` places of durable subscriptions. Returns how many more are due."""
        is_stored = bool(self._blocks)
        self._places.write(batch, self, count_max, is_stored=is_stored)
        return self._places.due_count(is_stored=is_stored)

    @property
    def unsaved_count(self) -> int:
        """Elements that may have to be written yet. O(blocks)."""
        elements = self._queue.elements
        return elements.count_live(self.saved_to, elements.next_sequence)

    @property
    def cancelled_count(self) -> int:
        """Persistent elements that were acknowledged before they had to be written, about. O(blocks)."""
        return max(0, self._added_count - self.written_count - self.unsaved_count)

    def next_delay_seconds(self, least_seconds: float, most_seconds: float) -> float:
        """Return the seconds that elements added now may wait to be settled before they are written."""
        if not self._queue.is_consumed:
            return least_seconds
        probe = self._probe
        usual_seconds = self.time_to_ack_seconds
        if probe is not None and self._store.clock() - probe[1] > most_seconds:
            return least_seconds  # the consumer does not keep up: waiting longer is useless
        return min(max(SLOW_AFTER * usual_seconds, least_seconds), most_seconds)

    def hopes_until(self, patience_seconds: float) -> float:
        """Return the time until which receipts of this shelf may wait for consumers instead of a write; 0: not at all.

        Consumers that usually settle within `patience_seconds` (the time of a sync) spare the sync, and the receipt
        leaves sooner. At worst it takes twice the time.
        """
        if (
            not self._waiting_saves
            or self.time_to_ack_seconds > patience_seconds
            or not self._queue.is_consumed
            or self.topic
            or self._is_pressed
        ):
            return 0.0
        probe = self._probe
        if probe is not None and self._store.clock() - probe[1] > patience_seconds:
            return 0.0  # the consumer does not keep up
        return self._waiting_saves[0][3] + patience_seconds

    @property
    def _is_pressed(self) -> bool:
        """Whether anything but a wait for a save is urgent."""
        is_noting = self._noting or self._places.is_noting
        return bool(self._page_outs or self._fence or self._waiting_settled or is_noting or self.is_bound)

    def answer_consumed(self) -> int:
        """Answer callbacks for elements that were all settled before they had to be written; returns the number of
        elements.
        """
        waiting = self._waiting_saves
        count = 0
        if not self._is_pressed:
            while waiting and not self._queue.elements.holds_any(waiting[0][0], waiting[0][1]):
                first, end, callback, _since = waiting.popleft()
                count += end - first
                callback("consumed")
            self.urgent = bool(waiting) or self._is_pressed
        return count

    def collect(self, batch: StoreBatch) -> None:
        """Put the due changes into `batch`, with the callbacks to call when it is written."""
        if not self._is_saved:
            self._save(batch)
        self._is_saved = False
        self._store_page_outs(batch)
        self.write_states(batch, len(self._touched))
        if self.topic:
            self._places.write_rest(batch, self, is_stored=bool(self._blocks))
        else:
            self._note_lease(batch)
        self._waiting_settled += self._bodies.take_released()
        if self._waiting_settled:
            batch.waiters += self._waiting_settled
            self._waiting_settled = []
            batch.sync = True
        self._answer_saved(batch)
        self.urgent = bool(self._page_outs or self._fence or self._waiting_saves)

    def _save(self, batch: StoreBatch) -> None:
        """Write the persistent elements that are still in the queue, except those that may wait longer."""
        elements = self._queue.elements
        end = elements.next_sequence
        target = end if self.urgent or not self._queue.is_consumed else min(self._mark, end)
        target = max(target, min(self.bound_to, end))
        self._mark = end
        self._fence.put_into(batch, self.saved_to, self._let_through)
        while self.saved_to < target:
            stop = target
            if batch.is_full and self.saved_to >= self.bound_to:
                stop = min(target, self._fence.begun_to(self.saved_to))
                if stop == NOTHING_BEGUN:
                    self._mark = max(self._mark, target)
                    return
            self.save_next(batch, stop)

    def save_next(self, batch: StoreBatch, stop: int) -> int:
        """Write the elements of the next block below `stop`, which is above `saved_to`. Returns their number."""
        first, index = self.saved_to, self.saved_to >> BLOCK_BITS
        self.saved_to = stop = min(stop, (index + 1) << BLOCK_BITS)
        self._save_part(batch, index, first, stop)
        self._fence.put_into(batch, stop, self._let_through)
        return stop - first

    def _save_part(self, batch: StoreBatch, index: int, first: int, stop: int) -> None:
        if not self._queue.keeps:
            return
        sequences, messages = self._queue.elements.resident(first, stop, persistent=True)
        if not messages:
            return
        self._put_chunk(batch, index, sequences, messages)
        self.written_count += len(messages)
        if attempts := self._queue.attempts_among(sequences):  # they came back before they were saved
            self.returned(attempts)

    def _put_chunk(self, batch: StoreBatch, index: int, sequences: SequenceOf[int], messages: list[Message]) -> None:
        self._bodies.keep(sequences, messages)
        first, last = sequences[0], sequences[-1]
        value, summary = encode_chunk_and_summary(first, sequences, messages, self._store.heads)
        self.introduce(batch)
        batch.add(put(keys.chunk_key(self.queue_id, first), value), len(value))
        batch.add(put(keys.summary_key(self.queue_id, first), summary), len(summary))
        batch.save(self._queue.observer, sequences)
        stored = self._blocks.get(index)
        if stored is None:
            stored = self._blocks[index] = StoredBlock()
        base = index << BLOCK_BITS
        span = bit_range(first - base, last + 1 - base)
        stored.span |= span
        stored.is_kept = True
        stored.firsts.append(first)
        if len(messages) == last + 1 - first:
            stored.live |= span
        else:
            stored.live |= bits_of([sequence - base for sequence in sequences])
            self._touched.add(index)  # missing elements are recorded as settled

    def introduce(self, batch: StoreBatch) -> None:
        """Write the record that describes the queue, before its first elements."""
        if not self._known:
            self._known = True
            change = self._description()
            batch.add(change, len(change[2]))

    def _description(self) -> Change:
        kind = KIND_TOPIC if self.topic else KIND_QUEUE
        return put(keys.queue_key(self.queue_id), encode_queue(kind, self._queue.priority, self._queue.name_on_disk))

    def _store_page_outs(self, batch: StoreBatch) -> None:
        """Write the blocks that are to be paged out, with their elements that are not persistent."""
        waiting: list[PageOut] = []
        for place, page_out in enumerate(self._page_outs):
            index = page_out.index
            if batch.is_full and place:
                waiting = self._page_outs[place:]
                break
            extent = self._queue.elements.extent(index)
            if extent:
                if extent.stop > self.saved_to:
                    waiting = self._page_outs[place:]  # the batch was full before all of it was saved
                    break
                stored = self._blocks.get(index)
                if stored is not None and len(stored.firsts) > SEAL_COUNT:
                    self._seal(batch, index, stored)
                if stored is None or stored.paged is None:
                    self._page(batch, page_out)
            batch.page_outs.append(page_out)
        self._page_outs = waiting

    def _resident_among(self, index: int, places: int) -> tuple[list[int], list[Message]]:
        """Return the messages in memory at these places of a block, a bit each."""
        base = index << BLOCK_BITS
        sequences, messages = self._queue.elements.resident(base, base + BLOCK_SIZE)
        found = [pair for pair in zip(sequences, messages, strict=True) if places >> (pair[0] - base) & 1]
        return [sequence for sequence, _message in found], [message for _sequence, message in found]

    def _page(self, batch: StoreBatch, page_out: PageOut) -> None:
        stored = self._blocks.get(page_out.index)
        sequences, messages = self._resident_among(page_out.index, ~(0 if stored is None else stored.live))
        if not sequences:
            return
        if not self._store.paged.accepting:
            page_out.is_refused = True
            return
        self._bodies.keep(sequences, messages)
        self._has_paged = True
        if stored is None:
            stored = self._blocks[page_out.index] = StoredBlock()
        page_out.record = stored.paged = self._store.paged.put(batch, self.queue_id, sequences, messages)
        page_out.count = len(messages)

    def _seal(self, batch: StoreBatch, index: int, stored: StoredBlock) -> None:
        """Write all persistent elements of a block as one chunk in place of many: read at once, found at once."""
        sequences, messages = self._resident_among(index, stored.live)
        for change in stored.deletions(self.queue_id):
            batch.add(change, 0)
        stored.span = stored.live = 0
        stored.firsts = []
        self._touched.add(index)
        if sequences:
            self._put_chunk(batch, index, sequences, messages)
            batch.saved_count -= len(sequences)

    def write_states(self, batch: StoreBatch, count_max: int) -> None:
        """Write the states of up to `count_max` blocks whose settled elements the disk does not know."""
        touched = self._touched
        for _ in range(min(count_max, len(touched))):
            index = touched.pop()
            stored = self._blocks.get(index)
            if stored is None:
                continue
            is_paged = stored.paged is not None and self._queue.elements.block(index) is not None
            if not stored.live and not is_paged:
                del self._blocks[index]
                if stored.paged is not None:
                    self._store.paged.drop(batch, stored.paged)
            for change in stored.state_changes(self.queue_id, index, is_paged=is_paged):
                batch.add(change, len(change[2]))

    def _note_lease(self, batch: StoreBatch) -> None:
        """Renew the lease if readers have used half of it, or wait for it."""
        if not self._noting and not self._queue.is_consumed and self._lease > self._queue.handed_to:
            # No consumer reads: no need to run ahead. Valid at once, so that a consumer that comes now waits for a new
            # lease.
            self._lease = self._queue.handed_to
            value = encode_head(self._queue.elements.next_sequence, self._lease)
            batch.add(put(keys.head_key(self.queue_id), value), len(value))
            return
        if not self._blocks or not self._queue.keeps:
            if self._noting:
                batch.noting.append((self, self._lease))
                self._noting = False
            return
        handed_to = self._queue.handed_to
        if self._noting or (handed_to and handed_to + LEASE_COUNT // 2 > self._lease):
            lease = handed_to + LEASE_COUNT
            value = encode_head(self._queue.elements.next_sequence, lease)
            self.introduce(batch)
            batch.add(put(keys.head_key(self.queue_id), value), len(value))
            batch.noting.append((self, lease))
            batch.sync = True  # elements handed over below this lease must still be marked after a power cut
            self._noting = False

    def noted(self, lease: int) -> None:
        """Note that `lease` is written, and let readers continue."""
        self._lease = max(self._lease, lease)
        if not self._forgotten:
            self._queue.may_go_on()

    def reader_noted(self, reader: DurableReader) -> None:
        """Resume the durable subscription whose position is written."""
        if not self._forgotten:
            self._queue.reader_noted(reader)

    def _answer_saved(self, batch: StoreBatch) -> None:
        waiting = self._waiting_saves
        elements = self._queue.elements
        while waiting and waiting[0][1] <= self.saved_to:
            first, end, callback, _since = waiting.popleft()
            # Elements settled by a transaction are settled when it is on disk; and they may just have moved to another
            # queue.
            if self.is_bound or elements.holds_any(first, end):
                batch.saved.append(callback)
                batch.sync = True
            else:
                batch.consumed.append(callback)
        self.is_bound = False

    # ------------------------------------------------------------------ reading

    def load(self, index: int, arrived: Callable[[int, dict[int, Message]], None]) -> None:
        stored = self._blocks.get(index)
        known = [] if stored is None else stored.records(self.queue_id)
        load_block(self._store, index, self._queue.name, known, lambda: self._forgotten, arrived)

    def lost(self, index: int, sequences: SequenceOf[int]) -> None:
        self._store.lost(self._queue.name, index, len(sequences))
        self.settled(sequences)

    # ------------------------------------------------------------------ a restart

    def restore(self, blocks: dict[int, StoredBlock], lease: int, larges: dict[int, int]) -> None:
        """Take over the records that an earlier run left."""
        self._blocks = blocks
        self._lease = lease
        self._bodies.restore(larges)
        self.saved_to = self._mark = self._queue.elements.next_sequence
        self._touched = {index for index, block in blocks.items() if not block.live}
        # Settled, but others of the same block in memory were not: no other code deletes these records.
        if self._touched:
            self._store.touch(self)

    def close_in_order(self, batch: StoreBatch) -> None:
        """Note exactly which elements were handed over and came back, in place of the lease: the broker stops."""
        self._page_outs.clear()  # nothing needs room any more, and pages would fill the batch
        self.urgent = True
        self.collect(batch)
        self.returned(self._queue.seen())  # now that all of them are in a block
        self.write_states(batch, len(self._touched))
        if self.topic:
            self._places.write_exactly(batch, self)
        elif self._blocks:
            value = encode_head(self._queue.elements.next_sequence, 0)
            batch.add(put(keys.head_key(self.queue_id), value), len(value))


def _is_of_producers(changes: list[Change]) -> bool:
    """Return whether attached changes say what a queue remembers of producers: that goes with the queue."""
    return bool(changes) and changes[0][1][:1] == keys.PRODUCER
