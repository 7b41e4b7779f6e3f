"""What a dispatcher tells about itself."""

from __future__ import annotations

import attrs


@attrs.frozen
class DispatcherStatistics:
    """A snapshot; counters run from the start of the dispatcher."""

    dispatches_count: int
    """Dispatches of contexts, those of timers, submitted callbacks and executors included (one per batch of
    callbacks)."""
    turns_count: int
    """Turns: after each of them outbound buffers are flushed and sockets are served."""
    wakeups_count: int
    """Times that the sleeping loop was woken, by a request, another thread or a timer. Far below the messages moved, or
    batches are small."""
    longest_dispatch_seconds: float
    """Duration of the longest dispatch: how long everybody else has waited at most for one context."""
    longest_dispatch_label: str
    """The label of its context; empty before the first dispatch that took measurable time."""
    ready_count: tuple[int, ...]
    """Contexts that wait for dispatch now, per priority 0 to 9."""
    timers_count: int
    """Timers pending now."""
    timers_fired_count: int
    """Timers that have run."""
    submitted_count: int
    """Callbacks accepted from `submit`."""
    submitted_waiting_count: int
    """Callbacks accepted from `submit` that have not run yet."""
    dropped_count: int
    """Callbacks (submitted or for the end of a turn) that were accepted but never run, because `run()` was cancelled or
    ended in an error."""
    errors_count: int
    """Dispatches and callbacks that raised."""
    busy_seconds: float
    """Time spent in turns. Its growth over a period, divided by that period, is the load of the loop."""
