"""Settings of the whole process that suit a broker. For `sluiceway serve` only: an embedded broker leaves its host
alone.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Final

GC_THRESHOLDS: Final = (8_000, 0, 300)
"""A look at the young takes 2 ms; each second look is at those that survived the one before, too: 16,000 objects, 3 to
4 ms. With (10_000, 3, 100) those were 40,000 and took 10 ms, which 150 SUBSCRIBEs with long selectors met all the time;
with (200_000, 20, 100) a thousand SUBSCRIBEs or new queues led to one of 260 to 480 ms.

The messages of one large read must fit below the first number: they are gone when the next read comes, so a flood of
tiny ones leads to 6 looks a million. With (4_000, 2, 300), where no look is shorter, there were 112, which took a tenth
of the processor time of such messages.
"""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
QUIET_COUNT: Final = 100
"""Messages between two looks at memory that count as quiet: the broker's state may be requested each second."""
QUIET_BYTES: Final = 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def tune_garbage_collector() -> None:
    """Let the collector look seldom, and at few objects at once, for no client is served meanwhile. Messages hold no
    cycles, so it finds nothing among them however often it looks.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def tune_allocator() -> bool:
    """Keep freed memory for the next read instead of giving it back after each.

    With glibc's own settings much of the time of messages of a kilobyte and more goes into growing and shrinking the
    heap, page fault by page fault. Costs up to KEPT_BYTES_MAX of memory that is free but not returned to the system.
    Returns False (nothing done) on other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        and mallopt(_M_TOP_PAD, KEPT_BYTES_MAX // 8)
        and mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES_MAX)
    )


class FreedMemory:
    """Returns to the system the memory that a flood has left.

    The allocator keeps freed memory wherever something behind it is in use: after 150 MiB of messages nearly all of it.
    Returning it takes up to a third of a millisecond for each MiB, in which allocations may wait. So it is done when
    hardly anything was sent or acknowledged between two looks; in a thread, for others to run meanwhile.
    """

    __slots__ = ("_give_back", "_next_number", "_peak_bytes", "_used_bytes")

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._peak_bytes = 0
        """Peak of the used memory since the last return."""
        self._used_bytes = 0
        self._next_number = 0

    def look(self, used_bytes: int, next_number: int) -> None:
        """Check, once a second. `used_bytes`: by messages; `next_number`: of the next message."""
        change_bytes = abs(used_bytes - self._used_bytes)
        is_quiet = next_number - self._next_number <= QUIET_COUNT and change_bytes <= QUIET_BYTES
        self._used_bytes, self._next_number = used_bytes, next_number
        self._peak_bytes = max(self._peak_bytes, used_bytes)
        if is_quiet and self._peak_bytes - used_bytes >= KEPT_BYTES_MAX:
            self._peak_bytes = used_bytes
            self._give_back()


def trim_in_thread() -> None:
    """Give free memory back to the system, if the C library can."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    threading.Thread(target=malloc_trim, args=(0,), name="memory", daemon=True).start()
