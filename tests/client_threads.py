"""The threads in which stomp.py reads and beats: named when a test leaves one behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

_LOOK_SECONDS: Final = 0.005


def client_threads() -> set[threading.Thread]:
    """Those that run, or are about to: another thread may be starting one at this moment."""
    return {thread for thread in threading.enumerate() if thread.name.endswith("_loop)")}


def still_running(threads: Iterable[threading.Thread], patience_seconds: float) -> list[str]:
    """The names of those that have not ended within that time."""
    left = set(threads)
    end = time.monotonic() + patience_seconds
    # Not `join`: it raises for a thread that is being started.
    while left & set(threading.enumerate()) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return sorted(thread.name for thread in left & set(threading.enumerate()))
