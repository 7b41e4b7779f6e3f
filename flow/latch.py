"""A countdown: one call back when each of several things has happened."""

from __future__ import annotations

from collections.abc import Callable


class Latch:
    """Countdown of `count` events: called once per event, in any order, the last call calls `then`.

    Code that starts the events in a loop counts itself as one more event and calls the latch after the loop: an event
    that happens at once then cannot end the wait early, and an empty loop still ends it.
    """

    __slots__ = ("_left_count", "_then")

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        """`count`: at least 1."""
        self._left_count = count
        self._then = then

    def __call__(self) -> None:
        """Count one event."""
        self._left_count -= 1
        if not self._left_count:
            self._then()
