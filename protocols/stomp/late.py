"""Deliveries that ended subscriptions of one connection requeued, so that a late ACK gets no RECEIPT.

ACKs name a delivery by the key of its subscription and an ordinal (1.2, and the message-ids of repeats.py), or by
message-id and subscription id (1.0, 1.1, and what 1.2 names by message-id). The first names one delivery for ever. The
second may come to name another one: a delivery that is repeated no longer counts as requeued.

Bounds: `ENTRIES_MAX` of each kind, `RANGES_MAX` ranges each. Deliveries too scattered for that are remembered as one
range from the first to the last, and deliveries of subscriptions that ended before all remembered ones count as
requeued, as far as ACKs tell. Both refuse an ACK of a settled delivery rather than make a false promise.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, TypeVar

from ...queues.ranges import RangeSet, stretches
from .repeats import parse_own

ENTRIES_MAX: Final = 64
"""Maximum number of subscriptions, or subscription ids, that are remembered."""

RANGES_MAX: Final = 8
"""Maximum number of ranges of each entry."""

DIGITS_MAX: Final = 18
"""Maximum digits of a number in an ACK."""

ANY_ID: Final = None
"""Key for ACKs that do not say which subscription they mean."""


Name = TypeVar("Name")


class GivenBack:
    """Deliveries that ended subscriptions requeued, by the names that ACKs use."""

    __slots__ = ("_by_id", "_by_key", "_forgotten_key")

    def __init__(self) -> None:
        self._by_key: dict[int, RangeSet] = {}
        """Ordinals of each subscription, the latest last."""
        self._by_id: dict[tuple[str | None, bytes], RangeSet] = {}
        """Message numbers, by subscription id and first part of the message-id."""
        self._forgotten_key = 0
        """Key up to which nothing is known of subscriptions."""

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def note(self, key: int, id: str | None, token: bytes, ordinals: Sequence[int], numbers: Sequence[int]) -> None:
        """Note requeued deliveries; `numbers` as far as they are known. O(n log n)."""
        _remember(self._by_key, key, _few_runs_of(ordinals))
        while len(self._by_key) > ENTRIES_MAX:
            oldest = next(iter(self._by_key))
            del self._by_key[oldest]
            self._forgotten_key = max(self._forgotten_key, oldest)
        if numbers:
            runs = _few_runs_of(numbers)
            for name in {id, ANY_ID}:
                _remember(self._by_id, (name, token), runs)
            while len(self._by_id) > ENTRIES_MAX:
                del self._by_id[next(iter(self._by_id))]

    def delivered(self, id: str | None, token: bytes, numbers: Sequence[int]) -> None:
        """Note deliveries that a subscription of this id has (again). O(n log n)."""
        for name in {id, ANY_ID}:
            ranges = self._by_id.get((name, token))
            if ranges is not None:
                for start, end in stretches(numbers):
                    ranges.remove(start, end)

    def has(self, token: bytes | tuple[bytes | None, bytes], known: Container[int]) -> bool:
        """Whether the delivery that an ACK names was requeued, and was not delivered under that name since. `token`: as
        ACKs of this version have it; `known`: the keys of subscriptions that are not forgotten yet.
        """
        id = ANY_ID
        message_id = token
        if isinstance(token, tuple):
            id = ANY_ID if token[0] is None else token[0].decode()
            message_id = token[1]
        assert isinstance(message_id, bytes)
        first, _dash, last = message_id.rpartition(b"-")
        if own := parse_own(last):
            return self._has_ordinal(own[1], own[2], known)
        if not last.isdigit() or len(last) > DIGITS_MAX:
            return False
        if isinstance(token, bytes) and first.isdigit() and len(first) <= DIGITS_MAX:
            return self._has_ordinal(int(first), int(last), known)
        ranges = self._by_id.get((id, first))
        return ranges is not None and int(last) in ranges

    def _has_ordinal(self, key: int, ordinal: int, known: Container[int]) -> bool:
        ranges = self._by_key.get(key)
        return key <= self._forgotten_key and key not in known if ranges is None else ordinal in ranges


def _few_runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the numbers as runs, or as one run where they are too scattered."""
    runs = stretches(numbers)
    return runs if len(runs) <= RANGES_MAX else [(runs[0][0], runs[-1][1])]


def _remember(entries: dict[Name, RangeSet], name: Name, added: list[tuple[int, int]]) -> None:
    ranges = entries.pop(name, None) or RangeSet()
    for start, end in added:
        ranges.add(start, end)
    if len(ranges) > RANGES_MAX:
        runs = list(ranges)
        ranges.add(runs[0][0], runs[-1][1])
    entries[name] = ranges
