"""What one subscription was sent and has not settled: in order of delivery, whatever queue it came from.

Every delivered message gets the next *ordinal* of its subscription. The 1.2 `ack` header carries it; for 1.0 and 1.1,
whose ACKs name the message-id, an index from message number to ordinal is kept. Deliveries are held by slice, so a
cumulative ACK costs one step per slice, not per message.

The ledger outlives UNSUBSCRIBE: late ACKs still settle, and what is left returns to its queue when the connection ends
(b35).

An ordinal is *unsettled*, *held* (by an open transaction) or *done*. Bound: the subscription's credit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Final

from queues import Slice, Subscription

_UNSETTLED: Final = 0
_HELD: Final = 1
_DONE: Final = 2


class UnknownDeliveryError(Exception):
    """An ACK or NACK for something that was never delivered here."""


class Portion:
    """Some deliveries of one queue subscription: what an ACK, a NACK or the end of a connection settles or gives back
    at once.
    """

    __slots__ = ("ordinals", "sequences", "subscription", "wire_bytes")

    def __init__(
        self, subscription: Subscription, sequences: SequenceOf[int], ordinals: SequenceOf[int], wire_bytes: int
    ) -> None:
        self.subscription = subscription
        self.sequences = sequences
        self.ordinals = ordinals
        self.wire_bytes = wire_bytes


class _Chunk:
    __slots__ = ("end", "first", "left_count", "part", "states", "subscription")

    def __init__(self, first: int, subscription: Subscription, part: Slice) -> None:
        count = len(part.messages)
        self.first = first
        self.end = first + count
        self.subscription = subscription
        self.part = part
        self.left_count = count
        self.states: bytearray | None = None
        """One byte per delivery; None while all are unsettled."""

    def thin(self) -> None:
        """When three quarters are done, stop holding their messages: one late ACK must not keep hundreds alive."""
        messages = self.part.messages
        if self.states is not None and len(messages) >= 8 and 0 < self.left_count * 4 <= len(messages):
            left = [(o, m) for o, m in enumerate(messages) if self.states[o] != _DONE]
            filler = left[0][1]
            thinned = [filler] * len(messages)
            for place, message in left:
                thinned[place] = message
            self.part = Slice(thinned, self.part.sequences, self.part.wire_bytes)


class Ledger:
    """Deliveries of one STOMP subscription."""

    __slots__ = ("_by_number", "_chunks", "_done_count", "flushed_ordinal", "next_ordinal", "unsettled_count")

    def __init__(self, *, by_number: bool) -> None:
        """`by_number`: ACKs will name message numbers (1.0, 1.1)."""
        self._chunks: deque[_Chunk] = deque()
        self._by_number: dict[int, int] | None = {} if by_number else None
        self._done_count = 0
        self.next_ordinal = 0
        self.flushed_ordinal = 0
        """Deliveries below this were taken by the kernel: they count as attempts."""
        self.unsettled_count = 0
        """Unsettled and held."""

    def add(self, subscription: Subscription, part: Slice) -> int:
        """Remember these deliveries; returns the ordinal of the first."""
        first = self.next_ordinal
        count = len(part.messages)
        self._chunks.append(_Chunk(first, subscription, part))
        self.next_ordinal = first + count
        self.unsettled_count += count
        if self._by_number is not None:
            self._by_number.update(
                zip([message.number for message in part.messages], range(first, first + count), strict=True)
            )
        return first

    def ordinal_of_number(self, number: int) -> int | None:
        """The ordinal this message was last delivered under, None if it is not unsettled here. Needs `by_number`."""
        return None if self._by_number is None else self._by_number.get(number)

    def _check(self, ordinal: int) -> None:
        if not 0 <= ordinal < self.next_ordinal:
            raise UnknownDeliveryError(ordinal)

    def take_through(self, ordinal: int) -> list[Portion]:
        """Settle everything unsettled up to and including `ordinal` (cumulative). What transactions hold stays.
        O(slices).

        Ordinals settled before are skipped. Raises UnknownDeliveryError if `ordinal` was never given out, with nothing
        changed.
        """
        self._check(ordinal)
        portions: list[Portion] = []
        for chunk in self._chunks:
            if chunk.first > ordinal:
                break
            end = min(chunk.end, ordinal + 1)
            portion = self._take_from(chunk, range(chunk.first, end), _DONE)
            if portion is not None:
                portions.append(portion)
        self._drop_settled()
        return portions

    def take(self, ordinals: Iterable[int]) -> list[Portion]:
        """Settle just these (individual). Those settled before or held are skipped. Raises UnknownDeliveryError, with
        nothing changed.
        """
        return self._take_each(ordinals, _UNSETTLED, _DONE)

    def hold(self, ordinals: Iterable[int], *, through: bool) -> list[Portion]:
        """A transaction takes these (with `through`: all up to the largest) for later; they can't be settled otherwise
        until it lets go.
        """
        wanted = list(ordinals)
        for ordinal in wanted:
            self._check(ordinal)
        if not through:
            return self._take_each(wanted, _UNSETTLED, _HELD)
        last = max(wanted)
        portions: list[Portion] = []
        for chunk in self._chunks:
            if chunk.first > last:
                break
            portion = self._take_from(chunk, range(chunk.first, min(chunk.end, last + 1)), _HELD)
            if portion is not None:
                portions.append(portion)
        return portions

    def finish_held(self, portion: Portion) -> None:
        """The transaction that holds this portion settles it: it leaves the ledger."""
        self._take_each(portion.ordinals, _HELD, _DONE)

    def release_held(self, portion: Portion) -> None:
        """The transaction is aborted: this portion is unsettled again."""
        self._take_each(portion.ordinals, _HELD, _UNSETTLED)

    def take_all(self) -> Iterator[tuple[Portion, bool]]:
        """The connection is gone: everything left, held or not, in order; with whether it had been handed over. Empties
        the ledger.
        """
        chunks, self._chunks = self._chunks, deque()
        self.unsettled_count = self._done_count = 0
        if self._by_number is not None:
            self._by_number.clear()
        for chunk in chunks:
            left = [
                o
                for o in range(chunk.first, chunk.end)
                if chunk.states is None or chunk.states[o - chunk.first] != _DONE
            ]
            for attempted, ordinals in (
                (True, [o for o in left if o < self.flushed_ordinal]),
                (False, [o for o in left if o >= self.flushed_ordinal]),
            ):
                if ordinals:
                    yield self._portion(chunk, ordinals), attempted

    def _find(self, ordinal: int) -> _Chunk | None:
        chunks = self._chunks
        if not chunks or ordinal < chunks[0].first:
            return None
        if ordinal < chunks[0].end:
            return chunks[0]
        place = bisect_right(chunks, ordinal, key=lambda chunk: chunk.first) - 1
        chunk = chunks[place]
        return chunk if ordinal < chunk.end else None

    def _take_each(self, ordinals: Iterable[int], old: int, new: int) -> list[Portion]:
        wanted = list(ordinals)
        for ordinal in wanted:
            self._check(ordinal)
        portions: list[Portion] = []
        start = 0
        while start < len(wanted):
            chunk = self._find(wanted[start])
            if chunk is None:  # settled before
                start += 1
                continue
            end = start + 1
            while end < len(wanted) and chunk.first <= wanted[end] < chunk.end:
                end += 1
            portion = self._change(chunk, wanted[start:end], old, new)
            if portion is not None:
                portions.append(portion)
            start = end
        self._drop_settled()
        return portions

    def _take_from(self, chunk: _Chunk, ordinals: range, new: int) -> Portion | None:
        """All of these that are unsettled become `new`."""
        if chunk.states is None and new == _DONE and len(ordinals) == chunk.left_count:
            chunk.left_count = 0
            self._done_count += 1
            chunk.states = bytearray(b"\x02") * len(ordinals)
            self.unsettled_count -= len(ordinals)
            if self._by_number is not None:
                for message in chunk.part.messages:
                    self._by_number.pop(message.number, None)
            return Portion(chunk.subscription, chunk.part.sequences, ordinals, chunk.part.wire_bytes)
        return self._change(chunk, ordinals, _UNSETTLED, new)

    def _change(self, chunk: _Chunk, ordinals: Iterable[int], old: int, new: int) -> Portion | None:
        states = chunk.states
        if states is None:
            states = chunk.states = bytearray(chunk.end - chunk.first)
        first = chunk.first
        changed: list[int] = []
        for ordinal in ordinals:
            if states[ordinal - first] == old:
                states[ordinal - first] = new
                changed.append(ordinal)
        if not changed:
            return None
        portion = self._portion(chunk, changed)
        if new == _DONE:
            chunk.left_count -= len(changed)
            if chunk.left_count == 0:
                self._done_count += 1
            self.unsettled_count -= len(changed)
            if self._by_number is not None:
                for ordinal in changed:
                    self._by_number.pop(chunk.part.messages[ordinal - first].number, None)
            chunk.thin()
        return portion

    @staticmethod
    def _portion(chunk: _Chunk, ordinals: SequenceOf[int]) -> Portion:
        first, part = chunk.first, chunk.part
        start, end = ordinals[0] - first, ordinals[-1] - first + 1
        if end - start == len(ordinals):
            sequences = part.sequences[start:end]
            wire_bytes = sum([len(message.wire) for message in part.messages[start:end]])
        else:
            sequences = [part.sequences[ordinal - first] for ordinal in ordinals]
            wire_bytes = sum([len(part.messages[ordinal - first].wire) for ordinal in ordinals])
        return Portion(chunk.subscription, sequences, ordinals, wire_bytes)

    def _drop_settled(self) -> None:
        """Let go of chunks that are done. One that lies behind an old unsettled delivery goes when half of all are like
        it: O(1) amortised.
        """
        chunks = self._chunks
        while chunks and chunks[0].left_count == 0:
            chunks.popleft()
            self._done_count -= 1
        if self._done_count > 16 and self._done_count * 2 > len(chunks):
            self._chunks = deque(chunk for chunk in chunks if chunk.left_count)
            self._done_count = 0
