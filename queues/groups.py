"""Message groups: one consumer per key at a time, and the key is drained before another consumer gets it.

A key belongs to a consumer only while that consumer holds messages of it. When the last of them is settled or given
back, the key is free and its next message goes to any consumer with credit. So keys spread over consumers by load,
nothing is remembered of a key at rest (bound: keys in flight, which is at most the unsettled messages), and a consumer
that joins or leaves needs no rebalancing.

One table serves all partitions of a destination: order by key holds within a priority, and one consumer per key across
all of them.

An element that failed and waits for its next attempt holds its key back (HeldBack): later elements of the key are set
aside until it is due, or gone. Consumers keep those that they hold already.

Source: DESIGN section 6; anchors d27 (drain before hand-over), e15 and c49 (block the key, not the consumer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from .subscription import Consumer


@attrs.define
class _Claim:
    consumer: Consumer
    in_flight_count: int


class GroupTable:
    """Consumers that hold message groups, by key."""

    __slots__ = ("_claims", "_on_free")

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}
        self._on_free: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._claims)

    def on_free(self, callback: Callable[[str], None]) -> None:
        """Call this with every key that has become free."""
        self._on_free.append(callback)

    def owner(self, key: str) -> Consumer | None:
        """Return the consumer that holds messages of this key, or None."""
        claim = self._claims.get(key)
        return claim.consumer if claim is not None else None

    def handed_over(self, key: str, consumer: Consumer) -> None:
        """One more message of `key` is in this consumer's hands. The key must be free or its own."""
        claim = self._claims.get(key)
        if claim is None:
            self._claims[key] = _Claim(consumer, 1)
            return
        if claim.consumer is not consumer:
            raise AssertionError(f"group {key!r} is held by {claim.consumer.label}, not by {consumer.label}")
        claim.in_flight_count += 1

    def done(self, key: str) -> None:
        """One message of `key` was settled or given back; tells the listeners if it was the last."""
        claim = self._claims[key]
        claim.in_flight_count -= 1
        if claim.in_flight_count == 0:
            del self._claims[key]
            for callback in self._on_free:
                callback(key)


class HeldBack:
    """Keys of which elements wait for their next attempt. Bound: an entry per such element, which its queue counts."""

    __slots__ = ("_counts", "_key_of", "_on_free")

    def __init__(self, on_free: Callable[[str], None]) -> None:
        """`on_free`: is called with a key when none of its elements waits any more."""
        self._on_free = on_free
        self._key_of: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    @property
    def key_count(self) -> int:
        """Number of keys that are held back."""
        return len(self._counts)

    def sequences(self) -> Iterable[int]:
        """Return all waiting elements, in any order."""
        return self._key_of

    def holds(self, key: str) -> bool:
        """Return whether an element of the key waits. O(1)."""
        return key in self._counts

    def key_of(self, sequence: int) -> str | None:
        """Return the key of a waiting element; None: it does not wait."""
        return self._key_of.get(sequence)

    def add(self, key: str, sequence: int) -> None:
        """Note an element that waits from now on."""
        if sequence not in self._key_of:
            self._key_of[sequence] = key
            self._counts[key] = self._counts.get(key, 0) + 1

    def discard(self, sequences: Iterable[int]) -> None:
        """Note elements that wait no longer, if they did."""
        key_of, counts = self._key_of, self._counts
        if not key_of:
            return
        free: list[str] = []
        for sequence in sequences:
            key = key_of.pop(sequence, None)
            if key is not None:
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
                    free.append(key)
        for key in free:
            self._on_free(key)
