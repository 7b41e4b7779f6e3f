"""A countdown: one call back when each of several things has happened."""

from __future__ import annotations

from collections.abc import Callable


class Latch:
    """To be called once for each of `count` things, in any order: the last call calls `then`.

    What begins them in a loop counts itself as one more, and calls the latch behind the loop: then nothing that is done
    at once ends the wait too early, and none at all ends it.
    """

    __slots__ = ("_left_count", "_then")

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        """`count`: at least 1."""
        self._left_count = count
        self._then = then

    def __call__(self) -> None:
        """One of them has happened."""
        self._left_count -= 1
        if not self._left_count:
            self._then()
