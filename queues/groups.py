"""Message groups: one consumer per key at a time, and the key is drained before another consumer gets it.

A key belongs to a consumer only while that consumer holds messages of it. When the last of them is settled or given
back, the key is free and its next message goes to any consumer with credit. So keys spread over consumers by load,
nothing is remembered of a key at rest (bound: keys in flight, which is at most the unsettled messages), and a consumer
that joins or leaves needs no rebalancing.

One table serves all partitions of a destination: order by key holds within a priority, and one consumer per key across
all of them.

Source: DESIGN section 6; anchors d27 (drain before hand-over), e15 and c49 (block the key, not the consumer).
"""

from __future__ import annotations

from collections.abc import Callable

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
