"""Settings of the whole process that suit a broker. For `sluiceway serve` only: an embedded broker leaves its host
alone.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

GC_THRESHOLDS: Final = (4_000, 2, 300)
"""A look at the young takes 1 ms, at those that survived three such looks 3 ms. With (10_000, 3, 100) the latter took
10 ms, which 150 SUBSCRIBEs with long selectors met all the time; with (200_000, 20, 100) a thousand SUBSCRIBEs or new
queues led to one of 260 to 480 ms. The rate of messages is the same.
"""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def tune_garbage_collector() -> None:
    """Messages hold no cycles, so the collector finds nothing among them however often it looks: let it look seldom,
    and at few objects at once, for nobody is served meanwhile.
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
