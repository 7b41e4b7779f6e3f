"""Checks of credentials: equal ones under way share one, and those that were right are kept for a while.

Credentials are keyed digests. Bound: CACHE_MAX results, the least recently made goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

CACHE_MAX: Final = 10_000

T = TypeVar("T")


class _Checking(Generic[T]):
    """A check under way."""

    __slots__ = ("done", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: T | None = None
        """Result; None: the attempt that began the check was cancelled, or late."""


class RecentChecks(Generic[T]):
    """Results of checks by digest."""

    __slots__ = ("_checks", "_clock", "_right", "found_count")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._right: OrderedDict[bytes, tuple[float, T]] = OrderedDict()
        """End of validity and result of what was right."""
        self._checks: dict[bytes, _Checking[T]] = {}
        self.found_count = 0
        """Number of results that were still valid."""

    def __len__(self) -> int:
        return len(self._right)

    async def result(
        self,
        digest: bytes,
        check: Callable[[], Awaitable[T | None]],
        keep_seconds: Callable[[T], float],
    ) -> T | None:
        """Return what `check` returns for these credentials, or did when they were checked last; None: it returned
        None. `keep_seconds`: how long a result is valid, 0 for one that is not kept.
        """
        while True:
            known = self._right.get(digest)
            if known is not None and known[0] > self._clock():
                self.found_count += 1
                return known[1]
            checking = self._checks.get(digest)
            if checking is None:
                return await self._begin(digest, check, keep_seconds)
            await checking.done.wait()
            if checking.result is not None:
                return checking.result

    async def _begin(
        self,
        digest: bytes,
        check: Callable[[], Awaitable[T | None]],
        keep_seconds: Callable[[T], float],
    ) -> T | None:
        checking = self._checks[digest] = _Checking()
        try:
            result = checking.result = await check()
        finally:
            del self._checks[digest]
            checking.done.set()
        seconds = 0.0 if result is None else keep_seconds(result)
        if result is not None and seconds > 0:
            self._right[digest] = self._clock() + seconds, result
            self._right.move_to_end(digest)
            if len(self._right) > CACHE_MAX:
                self._right.popitem(last=False)
        return result
