"""Statistics of a dispatcher."""

from __future__ import annotations

import attrs


@attrs.frozen
class DispatcherStatistics:
    """Snapshot of a dispatcher; counters run from its start."""

    dispatches_count: int
    """Dispatches of contexts, including those of timers, submitted callbacks and executors (one per batch of
    callbacks).
    """
    turns_count: int
    """Turns: after each of them outbound buffers are flushed and sockets are served."""
    wakeups_count: int
    """Times that the sleeping loop was woken, by a request, another thread or a timer. Should be far below the number
    of messages moved; otherwise batches are small.
    """
    longest_dispatch_seconds: float
    """Duration of the longest dispatch: the longest delay of all others by one context."""
    longest_dispatch_label: str
    """Label of its context; empty before the first dispatch that took measurable time."""
    ready_count: tuple[int, ...]
    """Contexts waiting for dispatch now, per priority 0 to 9."""
    timers_count: int
    """Timers pending now."""
    timers_fired_count: int
    """Timers that have run."""
    submitted_count: int
    """Callbacks accepted from `submit`."""
    submitted_waiting_count: int
    """Callbacks accepted from `submit` that have not run yet."""
    dropped_count: int
    """Callbacks (submitted or for the end of a turn) accepted but never run, because `run()` was cancelled or ended in
    an error.
    """
    errors_count: int
    """Dispatches and callbacks that raised."""
    busy_seconds: float
    """Time spent in turns. Its growth over a period, divided by that period, is the load of the loop."""
