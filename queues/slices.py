"""Slices: some elements of a queue as they are handed to a consumer, all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from .message import MESSAGE_OVERHEAD_BYTES, Envelope, Message, wire_bytes_of

if TYPE_CHECKING:
    from .selectors.selector import Selector


FAN_OUT_COUNT: Final = 512
"""Messages that a subscriber of a topic is handed together. Constant, so that cursors stay at common positions and
share slices.
"""

VISIT_COST: Final = 10
"""Cost of each slice, beside its elements, in units of a dispatch's budget: ten thousand consumers that get one element
each do not fit into one dispatch. A first delivery that comes of an acknowledgement takes 370 units of the counted
clock (tests/limits).
"""


class Slice:
    """Some elements in order, as handed to one consumer. Shared by cursors at the same position; not changed once made.

    `heads`: header blocks of the elements, each once. `neutral`: whether each of them reads the same in all dialects.
    `sequences` is a range where nothing is missing, else a list. `attempts`: number of times each was handed over
    before, None if none was. `returned`: whether the elements had been given back. `rendered` is scratch space for the
    consumers: bytes that one of them made of this slice, in which form, so that ten subscribers at one position cost
    one rendering. `selected`, likewise: elements that the last selector applied has selected, by place and as a slice
    (None: none, or all).
    """

    __slots__ = (
        "attempts",
        "end",
        "first",
        "heads",
        "messages",
        "neutral",
        "rendered",
        "returned",
        "selected",
        "sequences",
        "wire_bytes",
    )

    def __init__(
        self,
        messages: list[Message],
        sequences: SequenceOf[int],
        wire_bytes: int,
        attempts: dict[int, int] | None = None,
        *,
        returned: bool = False,
    ) -> None:
        self.messages = messages
        self.sequences = sequences
        self.wire_bytes = wire_bytes
        self.attempts = attempts
        self.returned = returned
        self.first = sequences[0]
        self.end = sequences[-1] + 1
        self.heads: Collection[Envelope] = (
            {message.head for message in messages} if len(messages) > 1 else (messages[0].head,)
        )
        self.neutral = all([head.neutral for head in self.heads])  # noqa: C419 (a list is twice as fast here)
        self.rendered: tuple[bool, list[bytes]] | None = None
        self.selected: tuple[Selector, list[int], Slice | None] | None = None

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def cost(self) -> int:
        """Cost of the slice, in elements that come for the first time. Elements that come again are expensive, from the
        heap of returns to their headers.
        """
        return len(self.messages) << 2 if self.returned else len(self.messages)

    def expired(self, now_ms: int) -> list[int]:
        """Return the sequences of elements that are past their date. O(n)."""
        return [
            sequence
            for sequence, message in zip(self.sequences, self.messages, strict=True)
            if 0 < message.expires_at_ms <= now_ms
        ]

    def without(self, sequences: Iterable[int]) -> Slice | None:
        """Return the slice without the elements in `sequences`; None if nothing is left."""
        out = set(sequences)
        left = [(s, message) for s, message in zip(self.sequences, self.messages, strict=True) if s not in out]
        if not left:
            return None
        messages = [message for _sequence, message in left]
        wire_bytes = wire_bytes_of(messages)
        return Slice(messages, [s for s, _message in left], wire_bytes, self.attempts, returned=self.returned)

    def head(self, count: int) -> Slice:
        """Return the first `count` elements. O(count)."""
        messages = self.messages[:count]
        wire_bytes = wire_bytes_of(messages)
        return Slice(messages, self.sequences[:count], wire_bytes, self.attempts, returned=self.returned)

    def tried(self, attempts: int) -> Slice:
        """Return the same slice, each of whose elements was handed over `attempts` times before."""
        counts = dict.fromkeys(self.sequences, attempts)
        return Slice(self.messages, self.sequences, self.wire_bytes, counts, returned=True)

    @property
    def charge_bytes(self) -> int:
        """Bytes charged for the elements in the queue that holds them."""
        return self.wire_bytes + len(self.messages) * MESSAGE_OVERHEAD_BYTES


def fit(wires: SequenceOf[bytes | memoryview], bytes_max: int) -> tuple[int, int]:
    """Return the number of wires at the beginning that fit into `bytes_max` (at least one), and their bytes. O(n)."""
    total_bytes = sum(map(len, wires))
    if total_bytes <= bytes_max:
        return len(wires), total_bytes
    totals = list(accumulate(map(len, wires)))
    count = max(1, bisect_right(totals, bytes_max))
    return count, totals[count - 1]
