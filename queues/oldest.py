"""The oldest element of a queue that somebody could have: what its age is counted from.

What must not be delivered yet (a delay) is passed over: it is not late. Where the element is outside, the number of the
first one of its block stands for it, as it was when the block went out: older by what it took to fill a block at most.
"""

from __future__ import annotations

from typing import Final

import attrs

from .cursored import BLOCK_BITS, CursoredQueue

LOOK_COUNT: Final = 256
"""Elements to look at before it counts as unknown: all of these are not due yet."""


@attrs.frozen(slots=True)
class Oldest:
    """An element, by what says when it came."""

    number: int
    """Of the message; 0: of an earlier run of the broker, and not in memory."""
    due_at_ms: int
    """It could not be delivered before this wall time; 0: at once."""


def oldest_of(elements: CursoredQueue, now_ms: int, position: int = 0) -> Oldest | None:
    """The first element from `position` on that may be delivered; None: there is none, or it was not found among the
    first LOOK_COUNT. O(block), and O(LOOK_COUNT) where many are delayed.
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
