"""Repeated deliveries: a group of a log was moved back while its consumer held earlier records.

Where ACKs name message-ids (1.0, 1.1) such a delivery gets one of its own, `log.LOGID-INDEX.KEY.ORDINAL`: that of the
record, with the key of the subscription and the ordinal of the delivery as in an ack header of 1.2. Without it an ACK
could mean either delivery. Taken for the earlier one, the ACK opens too little credit for a client that acknowledges
all of it at a time, and both wait for ever; taken for the later one, an ACK that was under way when the group was moved
settles records that no consumer has seen.

Under 1.2 ACKs name ordinals, and message-ids stay as they are; one that is named all the same is for the first delivery
that is unsettled.

Bound: one entry for each of these while it is unsettled or held.
"""

from __future__ import annotations

import re
from array import array
from bisect import insort
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Final

_OWN: Final = re.compile(rb"([0-9]{1,18})\.([0-9]{1,11})\.([0-9]{1,18})")


def parse_own(last: bytes) -> tuple[int, int, int] | None:
    """Message number, key of the subscription and ordinal, as the last part of a message-id says them."""
    found = _OWN.fullmatch(last)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


class Repeats:
    """Repeated deliveries of one ledger."""

    __slots__ = ("_behind", "_by_number", "_own", "_own_end", "_own_ids")

    def __init__(self, by_number: dict[int, int], *, own_ids: bool) -> None:
        """Make an empty table. `by_number`: the ledger's, of the ordinal that each number names; `own_ids`: these
        deliveries have ids of their own.
        """
        self._by_number = by_number
        self._own_ids = own_ids
        self._own: dict[int, int] = {}
        """Numbers of the deliveries with an id of their own, by ordinal."""
        self._own_end = 0
        """Ordinal from which on no delivery has a message-id of its own."""
        self._behind: dict[int, list[int]] = {}
        """Further ordinals of a number, ascending, where they have none."""

    def __bool__(self) -> bool:
        return bool(self._own or self._behind)

    def add(self, entries: Iterable[tuple[int, int]]) -> None:
        """Numbers with their ordinals, which ascend."""
        by_number = self._by_number
        for number, ordinal in entries:
            other = by_number.setdefault(number, ordinal)
            if other == ordinal:
                continue
            if self._own_ids:
                self._own[ordinal] = number
                self._own_end = ordinal + 1
            else:
                by_number[number] = min(other, ordinal)
                insort(self._behind.setdefault(number, []), max(other, ordinal))

    def drop(self, numbers: array[int], first: int, ordinals: SequenceOf[int]) -> None:
        """Forget deliveries that are done; `numbers` begins with that of ordinal `first`."""
        by_number, own = self._by_number, self._own
        for ordinal in ordinals:
            if own.pop(ordinal, None) is not None:
                continue
            number = numbers[ordinal - first]
            behind = self._behind.get(number)
            if behind is None:
                by_number.pop(number, None)
            elif by_number[number] == ordinal:
                by_number[number] = behind.pop(0)
            else:
                behind.remove(ordinal)
            if behind == []:
                del self._behind[number]

    def clear(self) -> None:
        self._own.clear()
        self._behind.clear()

    def first_that(self, holds: Callable[[int], bool], number: int, first: int) -> int:
        """The first delivery of this number for which that holds; `first` if there is none."""
        return next((each for each in (first, *self._behind.get(number, ())) if holds(each)), first)

    def has_own(self, ordinal: int) -> bool:
        """Return whether a delivery, which is not done, has a message-id of its own."""
        return ordinal in self._own

    def has_own_from(self, ordinal: int) -> bool:
        """Return whether a delivery or a later one had a message-id of its own."""
        return ordinal < self._own_end

    def is_own(self, number: int, ordinal: int) -> bool:
        """Whether the number is what the message-id of that delivery says."""
        return self._own.get(ordinal) == number
