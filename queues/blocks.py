"""Blocks: up to 1,024 elements of a queue in sequence, the unit that is in memory or outside.

Three states of residence, by what remains of an element:

    loaded        all of it: the message object.
    placeholder   its size and its date. Some 12 bytes stand for a message.
    range         nothing but a bit that says that it is alive: known of the block are its first and last place, the
                  number of elements alive, their bytes, the bounds of their dates. Some 400 bytes stand for a thousand
                  messages.

(Between the two a page-out is under way: the block stays loaded until the store has all of it.)

Bytes of a range are known in total only. An element that leaves it meanwhile (a consumer that held it settles it) takes
its share of the total, so that charge and release pair up for any sizes; the real sizes are known again when the block
comes back.

Source: seed 002 "CursoredQueue" (placeholders); anchors d7, d17 (Loaded, SwappedRange); DESIGN section 6.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from .message import Message, wire_bytes_of

Gone = tuple[int, int]
"""Number of elements that left, and their wire bytes."""

NOTHING_GONE: Final[Gone] = (0, 0)


class QueueInvariantError(AssertionError):
    """A broken invariant: a bug of ours, never the fault of a peer. Stops loudly."""


@attrs.frozen
class Dates:
    """Expiry dates of the elements of a block that is outside, as bounds; milliseconds since the epoch."""

    earliest_ms: int
    """0: none has a date."""
    latest_ms: int
    undated_count: int
    next_ms: int = attrs.field()
    """Earliest date that expiry has not checked yet; an expired element that was checked and is still there is held by
    a consumer.
    """

    @next_ms.default
    def _earliest(self) -> int:
        return self.earliest_ms

    def unchecked(self) -> Dates:
        """Return the same dates, as if expiry had not checked any yet."""
        return attrs.evolve(self, next_ms=self.earliest_ms)

    @property
    def all_dated(self) -> bool:
        return bool(self.earliest_ms) and not self.undated_count


def dates_of(messages: Iterable[Message], looked_ms: int = 0) -> Dates:
    """Return the bounds of the dates of messages, of which expiry has checked those up to `looked_ms`. O(n)."""
    dates = [message.expires_at_ms for message in messages]
    dated = [date for date in dates if date]
    undated_count = len(dates) - len(dated)
    next_ms = min([date for date in dated if date > looked_ms], default=0)
    return Dates(min(dated, default=0), max(dated, default=0), undated_count, next_ms)


class Placeholders:
    """Placeholders of the elements of a block that is outside, by place."""

    __slots__ = ("dates", "sizes")

    def __init__(self, elements: list[Message | None]) -> None:
        self.sizes = array("I", [0 if message is None else len(message.wire) for message in elements])
        dates = [0 if message is None else message.expires_at_ms for message in elements]
        self.dates = array("Q", dates) if any(dates) else None
        """None: no element has a date."""


class Outside:
    """Remainder in memory of a block whose elements are outside."""

    __slots__ = ("bits", "dates", "first_number", "length", "numbers", "placeholders", "wanted", "wire_bytes")

    def __init__(
        self, bits: int, length: int, wire_bytes: int, dates: Dates, placeholders: Placeholders | None = None
    ) -> None:
        self.placeholders = placeholders
        """None: it is a range."""
        self.bits = bits
        """Bit k: the element at `base + k` is alive."""
        self.length = length
        """Places, alive or not."""
        self.wire_bytes = wire_bytes
        """Wire bytes of the elements alive; the module says how exact that is once some have left."""
        self.dates = dates
        self.wanted = False
        """Whether the block was requested and is being read."""
        self.numbers: tuple[int, int] | None = None
        """Lowest and highest number of its messages; None: an earlier run wrote it, and it was not read since."""
        self.first_number = 0
        """Number of the first message that was alive when the block went out, which tells its age; 0: an earlier run
        knew.
        """


class Block:
    """Elements `base` .. `base + length - 1`; None where one left. `holed`: one left before it was read."""

    __slots__ = ("base", "elements", "filled_bytes", "holed", "leaving", "live_count", "looked_ms", "outside")

    def __init__(self, base: int) -> None:
        self.base = base
        self.elements: list[Message | None] = []
        """Empty while it is outside."""
        self.live_count = 0
        self.holed = False
        self.outside: Outside | None = None
        self.leaving = False
        """Whether the block is being written to the store, before it goes outside."""
        self.looked_ms = 0
        """Time at which the block was brought in for expiry. Otherwise a block with an expired element in a consumer's
        hands would come in again as soon as it is out.
        """
        self.filled_bytes = 0
        """Charge of all elements ever added; 0 where it is not needed."""

    @property
    def length(self) -> int:
        return len(self.elements) if self.outside is None else self.outside.length

    @property
    def wire_bytes(self) -> int:
        """Wire bytes of the elements alive. O(length) while the block is loaded."""
        if self.outside is not None:
            return self.outside.wire_bytes
        return sum([len(message.wire) for message in self.elements if message is not None])

    def live_bits(self) -> int:
        """Bit k: the element at `base + k` is alive. O(length) if there are gaps."""
        if self.outside is not None:
            return self.outside.bits
        if self.live_count == len(self.elements):
            return (1 << self.live_count) - 1
        return bits_of(place for place, message in enumerate(self.elements) if message is not None)

    def unload(self, *, placeholders: bool = False) -> None:
        """Release the elements, which the store has. `placeholders`: remember size and date of each."""
        alive = [message for message in self.elements if message is not None]
        size_bytes = wire_bytes_of(alive)
        kept = Placeholders(self.elements) if placeholders else None
        self.outside = Outside(self.live_bits(), len(self.elements), size_bytes, dates_of(alive, self.looked_ms), kept)
        self.outside.first_number = alive[0].number if alive else 0
        numbers = [message.number for message in alive]
        self.outside.numbers = (min(numbers, default=0), max(numbers, default=-1))
        self.elements = []
        self.leaving = False

    def load(self, messages: dict[int, Message]) -> None:
        """Bring the block into memory with the messages that the store had, by place. Messages that left meanwhile are
        ignored.

        Raises QueueInvariantError if an element that is alive is missing.
        """
        outside = self.outside
        assert outside is not None, "only what is outside comes in"
        elements: list[Message | None] = [None] * outside.length
        bits, count = outside.bits, 0
        for place, message in messages.items():
            if bits >> place & 1:
                elements[place] = message
                count += 1
        if count != self.live_count:
            raise QueueInvariantError(f"block at {self.base}: {self.live_count} elements are alive, {count} came back")
        self.elements = elements
        self.holed = self.holed or count < outside.length
        self.outside = None

    def take_bits(self, bits: int) -> Gone:
        """Remove the elements at the places in `bits` from a block that is outside. Returns their number and their
        share of the block's bytes.

        Raises QueueInvariantError if one of them had left before.
        """
        outside = self.outside
        assert outside is not None, "only for what is outside"
        if outside.bits & bits != bits:
            raise QueueInvariantError(f"block at {self.base}: some of these elements left the queue before")
        count = bits.bit_count()
        if outside.placeholders is not None:
            sizes = outside.placeholders.sizes
            size_bytes = sum([sizes[place] for place in places_of(bits)])
        else:
            size_bytes = outside.wire_bytes * count // self.live_count if count else 0
        outside.bits &= ~bits
        outside.wire_bytes -= size_bytes
        self.live_count -= count
        return count, size_bytes


def bits_of(places: Iterable[int]) -> int:
    """The number with these bits set. O(n)."""
    flags = bytearray(128)
    for place in places:
        flags[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(flags, "little")


def places_of(bits: int) -> Iterator[int]:
    """Return the places of the bits that are set, ascending."""
    for place, digit in enumerate(reversed(bin(bits)[2:] if bits else "")):
        if digit == "1":
            yield place


def bit_range(start: int, stop: int) -> int:
    """The number with bits `start` .. `stop - 1` set."""
    return ((1 << (stop - start)) - 1) << start
