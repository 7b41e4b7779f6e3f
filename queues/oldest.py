"""Oldest element of a queue that a consumer could receive, from which its age is counted.

Delayed elements are passed over: they are not late. Where the element is outside, the number of the first one of its
block stands for it, as it was when the block went out: older by what it took to fill a block at most.
"""

from __future__ import annotations

from typing import Final

import attrs

from .cursored import BLOCK_BITS, CursoredQueue

LOOK_COUNT: Final = 256
"""Elements to check before the oldest counts as unknown, because all of them are delayed."""


@attrs.frozen(slots=True)
class Oldest:
    """An element, by what says when it came."""

    number: int
    """Number of the message; 0: of an earlier run of the broker, and not in memory."""
    due_at_ms: int
    """Wall time before which it could not be delivered; 0: at once."""


def oldest_of(elements: CursoredQueue, now_ms: int, position: int = 0) -> Oldest | None:
    """Return the first element from `position` on that may be delivered; None: there is none, or it was not found among
    the first LOOK_COUNT. O(block), and O(LOOK_COUNT) where many are delayed.
    """
    for _ in range(LOOK_COUNT):
        sequence = elements.first_live(position)
        if sequence >= elements.next_sequence:
            return None
        block = elements.block(sequence >> BLOCK_BITS)
        assert block is not None, "what is alive is in a block"
        if block.outside is not None:
            return Oldest(block.outside.first_number, 0)
        message = block.elements[sequence - block.base]
        assert message is not None, "it is alive"
        if message.due_at_ms <= now_ms:
            return Oldest(message.number, message.due_at_ms)
        position = sequence + 1
    return None
