"""Unacknowledged deliveries of one subscription: in order of delivery, whatever queue they came from.

Every delivered message gets the next *ordinal* of its subscription. The 1.2 `ack` header carries it; for 1.0 and 1.1,
whose ACKs name the message-id, an index from message number to ordinal is kept. Only numbers and sizes are remembered,
never a message: a consumer that does not acknowledge keeps no dropped message alive.

Deliveries are kept by *chunk*, as flat arrays: those that a queue handed over in one slice, or in several that followed
each other within one of its blocks. A cumulative ACK begins at the low-water ordinal, below which nothing is unsettled,
and goes on by chunk; an individual one finds its chunk by bisection. So both cost the same whether they name one
delivery or a thousand come with them: O(log chunks) each, plus O(1) for each delivery that changes, and for all of a
chunk O(1).

A large ACK is taken in *bites* (`bite_end`): a cumulative ACK has the effect of the same for an earlier delivery and
then for the rest, so there is nothing between two bites that a client could not have asked for.

UNSUBSCRIBE requeues all deliveries that no transaction holds; for the others the ledger lives on (b35). Deliveries of a
queue that takes nothing back (a topic that was left, a queue that was deleted) are forgotten: only their ordinals are
known, so that late ACKs are no mistakes.

Under 1.2 messages are known by their ordinals only, until an ACK names a number (`indexing_numbers`).

Invariants: an ordinal is *unsettled*, *held* (by an open transaction) or *done*, and a portion names each of its
ordinals once, in order, with the sequences and bytes of exactly those. So nothing reaches a queue that this ledger was
not given by it, and nothing twice. A message is unsettled here at most once at a time, because a queue serves a
consumer once, however many of its names match. A log's record may be so twice: repeats.py says what ACKs then name.

Bound: the credit of the subscription for what is unsettled, `transaction_acks_max` for what is held. Each costs about
ten bytes (with `by_number` about 130, for want of anything that ACKs could name it by but a dict).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import accumulate, repeat
from typing import Final

from ...queues.cursored import BLOCK_BITS
from ...queues.slices import Slice
from ...queues.subscription import Subscription
from .repeats import Repeats

_UNSETTLED: Final = 0
_HELD: Final = 1
_DONE: Final = 2
_STATE_BYTES: Final = (b"\0", b"\1", b"\2")

BITE_CHUNKS: Final = 16
BITE_COUNT: Final = 512
"""Chunks and deliveries of one bite: some 0.3 ms, 1 ms where each has a message group."""
LEFT_COUNT: Final = BITE_COUNT // 2
"""Deliveries of a subscription that ends, in one step: each may have a group of its own, which gets free."""

COUNT_PER_STEP: Final = 16
"""Number of deliveries that one step looks at, where long work is counted (queues/steps.py)."""

_APART_COUNT_MAX: Final = 8
"""Size of slices that are joined to a chunk though others lie between them. Longer ones are worth more as ranges."""
_LISTED_COUNT_MAX: Final = 256
"""Deliveries of such a chunk: its list is copied each time."""

_CHARGED: Final = -1
"""Marker in place of the delivery that was being worked on: it was requeued."""

_DONE_CHUNKS_MIN: Final = 16
"""Number of finished chunks that may remain; only beyond that is a search for them worth while."""

_DROP_CHUNKS: Final = 512
"""Number of chunks that one call looks at for removal: 0.1 ms."""

SEEK_CHUNKS: Final = 256
"""Number of chunks of all ledgers of a broken connection that are looked at right away: 0.1 ms where each ledger has
one.
"""
SEEK_CHUNKS_PER_STEP: Final = 256

_NO_NUMBERS: Final = array("q")
_NO_STATES: Final = bytearray()


class UnknownDeliveryError(Exception):
    """An ACK or NACK for something that was never delivered here."""


class Portion:
    """Some deliveries of one chunk, which an ACK, a NACK or the end of a connection settles or requeues at once."""

    __slots__ = ("charged", "for_good", "ordinals", "sequences", "subscription", "wire_bytes")

    def __init__(
        self, subscription: Subscription, sequences: SequenceOf[int], ordinals: SequenceOf[int], wire_bytes: int
    ) -> None:
        self.subscription = subscription
        self.sequences = sequences
        self.ordinals = ordinals
        self.wire_bytes = wire_bytes
        self.charged: SequenceOf[int] | None = None
        """Sequences of the deliveries that failed, if they are requeued; None: all."""
        self.for_good = False
        """Whether the deliveries were rejected with the wish not to retry them."""

    def charge_only(self, ordinals: SequenceOf[int]) -> None:
        """Count a failure only for the deliveries with these ordinals (ascending). O(log n) for each within."""
        own = self.ordinals
        within = ordinals[bisect_left(ordinals, own[0]) : bisect_right(ordinals, own[-1])]
        places = [(bisect_left(own, ordinal), ordinal) for ordinal in within]
        self.charged = [self.sequences[place] for place, ordinal in places if own[place] == ordinal]


class _Chunk:
    """Deliveries of one queue in ascending order: ordinals `first` .. `end - 1`."""

    __slots__ = (
        "end",
        "first",
        "gone",
        "left_count",
        "numbers",
        "sequences",
        "sizes",
        "states",
        "subscription",
        "wire_bytes",
    )

    def __init__(self, first: int, subscription: Subscription, part: Slice, *, with_numbers: bool) -> None:
        messages = part.messages
        self.first = first
        self.end = first + len(messages)
        self.subscription = subscription
        self.sequences = part.sequences
        self.sizes = array("q", [len(message.wire) for message in messages])
        self.numbers = array("q", [message.number for message in messages] if with_numbers else ())
        self.states = bytearray(len(messages))
        self.wire_bytes = part.wire_bytes
        """Bytes of all deliveries, done or not."""
        self.left_count = len(messages)
        """Number of deliveries that are not done."""
        self.gone = False
        """Whether the queue takes nothing back: held deliveries are done when their transaction ends, whichever way.
        Set before the first bite of the chunk is forgotten, for a transaction may end between two.
        """

    def takes(self, subscription: Subscription, part: Slice) -> bool:
        """Whether the next slice can be appended to this chunk. Sequences in a portion ascend, and lie in one block of
        their queue, where the queue hands over by block.
        """
        if subscription is not self.subscription or not self.left_count or self.gone:
            return False
        sequences, others = self.sequences, part.sequences
        count, end, start = len(sequences), sequences[-1] + 1, part.first
        if start < end or (end - 1) >> BLOCK_BITS != start >> BLOCK_BITS:
            return False
        if type(sequences) is not range:
            return count < _LISTED_COUNT_MAX and len(others) <= _APART_COUNT_MAX
        if start == end and type(others) is range:
            return True
        return count <= _APART_COUNT_MAX and len(others) <= _APART_COUNT_MAX

    def extend(self, part: Slice) -> None:
        """Append a slice that `takes` allows. O(n)."""
        messages, sequences, others = part.messages, self.sequences, part.sequences
        if type(sequences) is range and type(others) is range and sequences.stop == others.start:
            self.sequences = range(sequences.start, others.stop)
        else:
            self.sequences = [*sequences, *others]  # a copy: the slice has its own, and so has a portion
        self.sizes.extend([len(message.wire) for message in messages])
        if self.numbers:
            self.numbers.extend([message.number for message in messages])
        self.states += bytes(len(messages))
        self.wire_bytes += part.wire_bytes
        self.end += len(messages)
        self.left_count += len(messages)

    def portion(self, ordinals: SequenceOf[int]) -> Portion:
        """Make a portion of ascending ordinals, all of this chunk."""
        first = self.first
        start, end = ordinals[0] - first, ordinals[-1] - first + 1
        if len(ordinals) == self.end - first:
            return Portion(self.subscription, self.sequences, ordinals, self.wire_bytes)
        if end - start == len(ordinals):  # a slice of a range is a range, which queues settle fastest
            return Portion(self.subscription, self.sequences[start:end], ordinals, sum(self.sizes[start:end]))
        sequences, sizes = self.sequences, self.sizes
        return Portion(
            self.subscription,
            [sequences[ordinal - first] for ordinal in ordinals],
            ordinals,
            sum([sizes[ordinal - first] for ordinal in ordinals]),
        )

    def those_in(self, state: int, ordinals: SequenceOf[int]) -> SequenceOf[int]:
        """Return the ordinals (ascending, at least one, all of this chunk) that are in this state."""
        first, states = self.first, self.states
        start, end = ordinals[0] - first, ordinals[-1] - first + 1
        if end - start == len(ordinals) and states.count(state, start, end) == end - start:
            return ordinals
        return [ordinal for ordinal in ordinals if states[ordinal - first] == state]

    def set_state(self, ordinals: SequenceOf[int], state: int) -> None:
        first, states = self.first, self.states
        start, end = ordinals[0] - first, ordinals[-1] - first + 1
        if end - start == len(ordinals):
            states[start:end] = _STATE_BYTES[state] * (end - start)
            return
        for ordinal in ordinals:
            states[ordinal - first] = state

    def clear(self) -> None:
        """Clear the chunk, all of whose deliveries are done: only its bounds matter, until it is dropped."""
        self.sequences = ()
        self.sizes = self.numbers = _NO_NUMBERS
        self.states = _NO_STATES


class Ledger:
    """Deliveries of one STOMP subscription."""

    __slots__ = (
        "_by_number",
        "_by_queue",
        "_chunks",
        "_done_count",
        "_dropped_to",
        "_emptied",
        "_firsts",
        "_low_ordinal",
        "_may_repeat",
        "_sought_below",
        "flushed_ordinal",
        "held_count",
        "next_ordinal",
        "repeats",
        "unsettled_count",
        "worked_on",
    )

    def __init__(self, *, by_number: bool, repeats: bool = False) -> None:
        """Make an empty ledger. `by_number`: ACKs will name message numbers (1.0, 1.1); `repeats`: unsettled deliveries
        may be repeated, after a group of a log was moved.
        """
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []
        """`first` of each chunk: what bisection looks at."""
        self._by_number: dict[int, int] | None = {} if by_number else None
        self._may_repeat = repeats
        self.repeats = None if self._by_number is None or not repeats else Repeats(self._by_number, own_ids=True)
        """None: there are none, or ACKs name no numbers."""
        self._by_queue: dict[object, int] = {}
        """Unsettled and held, of each queue that has some here."""
        self._done_count = 0
        """Chunks that are done but not dropped."""
        self._dropped_to = 0
        """The place up to which `_drop_done` came last."""
        self._emptied = False
        """Whether the connection has ended, and everything was taken."""
        self._low_ordinal = 0
        """Ordinal below which nothing is unsettled (some deliveries may be held)."""
        self.next_ordinal = 0
        self.flushed_ordinal = 0
        """Deliveries below this were taken by the kernel: they count as attempts."""
        self.unsettled_count = 0
        """Unsettled and held."""
        self.held_count = 0
        """Held by transactions."""
        self.worked_on: int | None = None
        """Delivery that its consumer had not finished when the connection broke; None: the connection broke for another
        reason, or its consumers had finished everything.
        """
        self._sought_below: int | None = None
        """Ordinal up to which the search for the unfinished delivery continues."""

    def add(self, subscription: Subscription, part: Slice) -> int:
        """Remember these deliveries; returns the ordinal of the first. O(n). `part` itself is not kept."""
        first = self.next_ordinal
        by_number = self._by_number
        chunks = self._chunks
        # The last of all may be done, and forgotten: this one would get ordinals that were given out.
        if chunks and chunks[-1].end == first and chunks[-1].takes(subscription, part):
            chunk = chunks[-1]
            chunk.extend(part)
        else:
            chunk = _Chunk(first, subscription, part, with_numbers=by_number is not None)
            chunks.append(chunk)
            self._firsts.append(first)
        self.next_ordinal = chunk.end
        self.unsettled_count += chunk.end - first
        self._by_queue[subscription.queue] = self._by_queue.get(subscription.queue, 0) + chunk.end - first
        if by_number is not None:
            self._index(zip([message.number for message in part.messages], range(first, chunk.end), strict=True))
        return first

    def skip(self, count: int) -> int:
        """Give out ordinals of deliveries that are settled from the beginning; returns the first."""
        first = self.next_ordinal
        self.next_ordinal += count
        return first

    def _index(self, entries: Iterable[tuple[int, int]]) -> None:
        """Numbers with their ordinals, which ascend."""
        assert self._by_number is not None, "ACKs name numbers"
        if self.repeats is None:
            self._by_number.update(entries)
        else:
            self.repeats.add(entries)

    def ordinal_of_number(self, number: int) -> int | None:
        """Return the ordinal under which this message is unsettled or held, None if there is none; of several the
        first, so that no unsettled one counts as settled. Needs `by_number`.
        """
        ordinal = None if self._by_number is None else self._by_number.get(number)
        if ordinal is not None and self.repeats:
            return self.repeats.first_that(self._is_unsettled, number, ordinal)
        return ordinal

    def indexing_numbers(self, number_of: Callable[[Subscription, int], int]) -> Iterator[None]:
        """Index deliveries by message number, which ACKs may name from now on. `number_of` returns the number of a
        sequence, -1 if it can't. In steps, more for a longer chunk; O(unsettled) the first time.
        """
        if self._by_number is not None:
            return
        self._by_number = {}
        self.repeats = Repeats(self._by_number, own_ids=False) if self._may_repeat else None
        for chunk in list(self._chunks):
            if chunk.left_count:
                yield from repeat(None, 1 + len(chunk.sequences) // 16)
                of = chunk.subscription
                numbers = chunk.numbers = array("q", [number_of(of, sequence) for sequence in chunk.sequences])
                self._index(
                    (number, chunk.first + place)
                    for place, number in enumerate(numbers)
                    if number >= 0 and chunk.states[place] != _DONE
                )

    def unsettled_of(self, queues: Container[object]) -> int:
        """Return the number of unsettled or held deliveries of these queues. O(queues with deliveries here)."""
        return sum([count for queue, count in self._by_queue.items() if queue in queues])

    def has_older(self, ordinal: int, queues: Container[object], looks_max: int = SEEK_CHUNKS) -> bool:
        """Return whether a delivery of one of these queues below this ordinal is unsettled, and held by no transaction.
        Of many chunks only the first `looks_max` are looked at.
        """
        place = max(0, bisect_right(self._firsts, self._low_ordinal) - 1)
        for chunk in self._chunks[place : place + looks_max]:
            if chunk.first >= ordinal:
                return False
            if (
                chunk.left_count
                and chunk.subscription.queue in queues
                and chunk.states.find(_UNSETTLED, 0, ordinal - chunk.first) >= 0
            ):
                return True
        return False

    def has_of(self, queue: object) -> bool:
        """Whether anything of this queue is unsettled or held. O(1)."""
        return queue in self._by_queue

    def seeking(self, queue: object, sequence: int) -> Generator[None, None, bool]:
        """Return whether an element of a queue is unsettled or held. In steps of SEEK_CHUNKS_PER_STEP; deliveries that
        arrive meanwhile may be passed over.
        """
        ordinal = 0
        while self.has_of(queue):
            place = bisect_left(self._firsts, ordinal)
            some = self._chunks[place : place + SEEK_CHUNKS_PER_STEP]
            if any(
                chunk.left_count
                and chunk.subscription.queue is queue
                and sequence in chunk.sequences
                and chunk.states[chunk.sequences.index(sequence)] != _DONE
                for chunk in some
            ):
                return True
            if len(some) < SEEK_CHUNKS_PER_STEP:
                return False
            ordinal = some[-1].end
            yield
        return False

    # ------------------------------------------------------------------ what ACKs and transactions do

    def bite_end(self, last: int, count_max: int = BITE_COUNT) -> int:
        """Return the last ordinal of one bite of at most `count_max` deliveries, at most `last`. O(log chunks), O(1)
        where there are few.
        """
        low = self._low_ordinal
        if last - low < BITE_CHUNKS:
            return last
        firsts, chunks = self._firsts, self._chunks
        place = bisect_right(firsts, low) - 1
        if place < 0 or chunks[place].end <= low:
            place += 1
        if place >= len(firsts):
            return last
        end = max(low, firsts[place]) + count_max
        if place + BITE_CHUNKS < len(firsts):
            end = min(end, firsts[place + BITE_CHUNKS])
        return min(last, end - 1)

    def are_scattered(self, ordinals: SequenceOf[int]) -> bool:
        """Whether the ordinals may need more than one bite, whatever lies between them. O(n)."""
        if len(ordinals) <= BITE_CHUNKS:
            return False
        firsts = self._firsts
        span = bisect_right(firsts, max(ordinals)) - bisect_right(firsts, min(ordinals))
        return span >= BITE_CHUNKS or len(ordinals) > BITE_COUNT

    def take_through(self, ordinal: int) -> list[Portion]:
        """Settle everything unsettled up to and including `ordinal` (cumulative). What transactions hold stays.

        Ordinals settled before are skipped. Raises UnknownDeliveryError if `ordinal` was never given out, with nothing
        changed.
        """
        self._check(ordinal)
        return self._take_through(ordinal, _DONE)

    def take(self, ordinals: Iterable[int]) -> list[Portion]:
        """Settle exactly these ordinals (individual), in any order. Settled or held ones are skipped. O(n log n).
        Raises UnknownDeliveryError, with nothing changed.
        """
        return self._take_each(self._checked(ordinals), _UNSETTLED, _DONE)

    def hold(self, ordinals: Iterable[int], *, through: bool) -> list[Portion]:
        """A transaction takes these (with `through`: all up to the largest) for later; they can't be settled otherwise
        until it lets go. Raises UnknownDeliveryError, with nothing changed.
        """
        if not through:
            return self._take_each(self._checked(ordinals), _UNSETTLED, _HELD)
        last = max(ordinals)
        self._check(last)
        return self._take_through(last, _HELD)

    def finish_held(self, portion: Portion) -> None:
        """The transaction that holds this portion settles it: it leaves the ledger."""
        self._take_each(portion.ordinals, _HELD, _DONE)

    def release_held(self, portion: Portion) -> list[Portion]:
        """Return a portion of an aborted transaction to the ledger. Returns the part that is unsettled again: its queue
        would take it.
        """
        chunk = self._find(portion.ordinals[0])
        if chunk is None or chunk.gone:
            self.finish_held(portion)
            return []
        self._low_ordinal = min(self._low_ordinal, portion.ordinals[0])
        return self._take_each(portion.ordinals, _HELD, _UNSETTLED)

    # ------------------------------------------------------------------ what ends

    def forgetting(self, is_gone: Callable[[Subscription], bool]) -> Iterator[tuple[int, int]]:
        """Queues take nothing back any more: what came over these subscriptions is done, as soon as no transaction
        holds it. In steps: each tells how many deliveries it was, and their wire bytes. O(chunks + deliveries).
        """
        for place, chunk in enumerate(self._each_chunk()):
            if place % BITE_CHUNKS == 0:
                yield 0, 0
            if chunk.gone or not chunk.left_count or not is_gone(chunk.subscription):
                continue
            chunk.gone = True
            first, end = chunk.first, chunk.end
            for start in range(first, end, BITE_COUNT):
                if self._emptied:
                    return  # the connection has ended meanwhile, and has given all of it back
                if not chunk.left_count:
                    break
                portion = self._change(chunk, range(start, min(end, start + BITE_COUNT)), _UNSETTLED, _DONE)
                if portion is not None:
                    yield len(portion.ordinals), portion.wire_bytes
                    yield from repeat((0, 0), len(portion.ordinals) // COUNT_PER_STEP)
        self._drop_done()

    def note_worked_on(self, looks_max: int = SEEK_CHUNKS) -> int:
        """Find the delivery that the consumer of a broken connection was working on: of those that the kernel had
        taken, the first that is neither settled nor held by a transaction. Call again later: an ACK under way may have
        settled that delivery.

        Looks at `looks_max` chunks at most, and returns the number of chunks that it has looked at; `seeking_worked_on`
        looks at the rest.
        """
        if self.worked_on is not None and (self.worked_on == _CHARGED or self._is_unsettled(self.worked_on)):
            return 0
        self.worked_on = None
        self._sought_below = None if self.unsettled_count == self.held_count else self.flushed_ordinal
        return self._seek(looks_max) if looks_max > 0 else 0

    def seeking_worked_on(self) -> Iterator[None]:
        """Find what `note_worked_on` has not found, and look again whether that is still unsettled. In steps."""
        if self.worked_on is not None or self._sought_below is not None:
            self.note_worked_on(0)
        while self._sought_below is not None:
            self._seek(SEEK_CHUNKS_PER_STEP)
            yield

    def _seek(self, looks_max: int) -> int:
        below = self._sought_below
        if below is None:
            return 0
        chunks = self._chunks
        start = max(0, bisect_right(self._firsts, self._low_ordinal) - 1)
        for place in range(start, start + looks_max):
            if place >= len(chunks) or chunks[place].first >= below:
                self._sought_below = None
                return place - start
            chunk = chunks[place]
            if chunk.left_count and (found := chunk.states.find(_UNSETTLED)) >= 0:
                self._low_ordinal = chunk.first + found
                self.worked_on = self._low_ordinal if self._low_ordinal < below else None
                self._sought_below = None
                return place - start + 1
            self._low_ordinal = max(self._low_ordinal, chunk.end)
        return looks_max

    def take_worked_on(self, is_meant: Callable[[Subscription], bool]) -> Portion | None:
        """Take the delivery that was being worked on when the connection broke, if it came by a subscription that
        `is_meant` accepts. Call right behind `seeking_worked_on`.
        """
        if self.worked_on is None or (chunk := self._find(self.worked_on)) is None:
            return None
        if chunk.gone or not is_meant(chunk.subscription):
            return None
        ordinal, self.worked_on = self.worked_on, _CHARGED
        return self._change(chunk, (ordinal,), _UNSETTLED, _DONE)

    def taking_unsettled(
        self, is_meant: Callable[[Subscription], bool] = lambda _subscription: True
    ) -> Iterator[tuple[Portion, SequenceOf[int]] | None]:
        """The subscription has ended: what came over these and is not held by a transaction, in order, each portion
        with its message numbers (none if ACKs do not name them). None of it has failed. Taken as the iterator comes to
        it. None: a step that found nothing.
        """
        for place, chunk in enumerate(self._each_chunk()):
            if place % BITE_CHUNKS == 0:
                yield None
            first, end, numbers = chunk.first, chunk.end, chunk.numbers
            for start in range(first, end, LEFT_COUNT):
                if not chunk.left_count or not is_meant(chunk.subscription):
                    break
                portion = self._change(chunk, range(start, min(end, start + LEFT_COUNT)), _UNSETTLED, _DONE)
                if portion is not None:
                    portion.charge_only(())
                    yield portion, _at(numbers, first, portion.ordinals)
        self._drop_done()

    def numbers_of(self, portion: Portion) -> SequenceOf[int]:
        """Message numbers of a portion that is held; none if ACKs do not name them."""
        chunk = self._find(portion.ordinals[0])
        return () if chunk is None else _at(chunk.numbers, chunk.first, portion.ordinals)

    def take_all(self) -> Iterator[tuple[Portion, bool]]:
        """Take everything left after the end of the connection, held or not, in order; with whether it had been handed
        over. Only the delivery that was being worked on is charged; its neighbours are innocent. Empties the ledger.
        """
        chunks = self._chunks
        self._chunks, self._firsts = [], []
        self._emptied = True
        self._by_queue.clear()
        self.unsettled_count = self.held_count = self._done_count = 0
        if self._by_number is not None:
            self._by_number.clear()
        if self.repeats is not None:
            self.repeats.clear()
        for chunk in chunks:
            if not chunk.left_count:
                continue
            left: SequenceOf[int] = range(chunk.first, chunk.end)
            if chunk.left_count < len(left):
                left = [o for o in left if chunk.states[o - chunk.first] != _DONE]
            cut = bisect_left(left, self.flushed_ordinal)
            for attempted, ordinals in ((True, left[:cut]), (False, left[cut:])):
                for start in range(0, len(ordinals), LEFT_COUNT):
                    portion = chunk.portion(ordinals[start : start + LEFT_COUNT])
                    portion.charge_only(() if self.worked_on is None else (self.worked_on,))
                    yield portion, attempted

    # ------------------------------------------------------------------ how

    def _is_unsettled(self, ordinal: int) -> bool:
        chunk = self._find(ordinal)
        return chunk is not None and chunk.states[ordinal - chunk.first] == _UNSETTLED

    def _check(self, ordinal: int) -> None:
        if not 0 <= ordinal < self.next_ordinal:
            raise UnknownDeliveryError(f"ordinal {ordinal} was not given out: the next one is {self.next_ordinal}")

    def _checked(self, ordinals: Iterable[int]) -> list[int]:
        """Return each ordinal once, ascending, after a check."""
        wanted = sorted(set(ordinals))
        self._check(wanted[0])
        self._check(wanted[-1])
        return wanted

    def _find(self, ordinal: int) -> _Chunk | None:
        """The chunk that holds it; None if that is done."""
        place = bisect_right(self._firsts, ordinal) - 1
        if place < 0:
            return None
        chunk = self._chunks[place]
        return chunk if ordinal < chunk.end and chunk.left_count else None

    def _take_through(self, last: int, new: int) -> list[Portion]:
        """Change all unsettled ordinals up to `last` to `new`."""
        low = self._low_ordinal
        if last < low:
            return []
        portions: list[Portion] = []
        chunks = self._chunks
        for place in range(max(0, bisect_right(self._firsts, low) - 1), len(chunks)):
            chunk = chunks[place]
            if chunk.first > last:
                break
            start, end = max(chunk.first, low), min(chunk.end, last + 1)
            if start < end and chunk.left_count:
                portion = self._change(chunk, range(start, end), _UNSETTLED, new)
                if portion is not None:
                    portions.append(portion)
        self._low_ordinal = last + 1
        self._drop_done()
        return portions

    def _take_each(self, ordinals: SequenceOf[int], old: int, new: int) -> list[Portion]:
        """Change the ordinals (ascending) that are `old` to `new`."""
        portions: list[Portion] = []
        start = 0
        while start < len(ordinals):
            chunk = self._find(ordinals[start])
            if chunk is None:
                start += 1
                continue
            end = bisect_left(ordinals, chunk.end, start)
            portion = self._change(chunk, ordinals[start:end], old, new)
            if portion is not None:
                portions.append(portion)
            start = end
        self._drop_done()
        return portions

    def _change(self, chunk: _Chunk, ordinals: SequenceOf[int], old: int, new: int) -> Portion | None:
        changed = chunk.those_in(old, ordinals)
        if not changed:
            return None
        portion = chunk.portion(changed)
        chunk.set_state(changed, new)
        count = len(changed)
        if old == _HELD:
            self.held_count -= count
        elif new == _HELD:
            self.held_count += count
        if new == _DONE:
            by_number = self._by_number
            if by_number is not None and chunk.numbers:
                first, numbers = chunk.first, chunk.numbers
                if self.repeats:
                    self.repeats.drop(numbers, first, changed)
                else:
                    for ordinal in changed:
                        by_number.pop(numbers[ordinal - first], None)
            self.unsettled_count -= count
            by_queue, queue = self._by_queue, chunk.subscription.queue
            if by_queue[queue] == count:
                del by_queue[queue]
            else:
                by_queue[queue] -= count
            chunk.left_count -= count
            if not chunk.left_count:
                chunk.clear()
                self._done_count += 1
        return portion

    def _each_chunk(self) -> Iterator[_Chunk]:
        """Each that is not dropped by then, in order, whatever happens between two of them."""
        first = 0
        while (place := bisect_left(self._firsts, first)) < len(self._firsts):
            chunk = self._chunks[place]
            yield chunk
            first = chunk.first + 1

    def _drop_done(self) -> None:
        """Drop some chunks that are done, while these are half of all: O(1) amortised."""
        if not self._done_count:
            return
        if not self.unsettled_count:
            self._chunks.clear()
            self._firsts.clear()
            self._done_count = 0
        elif self._done_count > _DONE_CHUNKS_MIN and self._done_count * 2 > len(self._chunks):
            start = self._dropped_to if self._dropped_to < len(self._chunks) else 0
            some = self._chunks[start : start + _DROP_CHUNKS]
            kept = [chunk for chunk in some if chunk.left_count]
            self._chunks[start : start + _DROP_CHUNKS] = kept
            self._firsts[start : start + _DROP_CHUNKS] = [chunk.first for chunk in kept]
            self._done_count -= len(some) - len(kept)
            self._dropped_to = start + len(kept)


def _at(numbers: array[int], first: int, ordinals: SequenceOf[int]) -> SequenceOf[int]:
    """Return the numbers of these ordinals, where `numbers` begins with that of ordinal `first`; none if there are
    none.
    """
    if not numbers:
        return ()
    start, end = ordinals[0] - first, ordinals[-1] - first + 1
    if end - start == len(ordinals):
        return numbers[start:end]
    return [numbers[ordinal - first] for ordinal in ordinals]


def charge_named(portions: list[Portion], ordinals: list[int]) -> None:
    """Charge failures of rejected portions. A cumulative NACK requeues everything before, but only the named delivery
    has failed. A NACK of a run that an earlier one covers came too late to name anything.
    """
    named = sorted(set(accumulate(ordinals, max)))
    for portion in portions:
        portion.charge_only(named)
