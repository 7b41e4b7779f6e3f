"""Limits per second for users and listeners, as resources on the flow map: connections over the limit are their blocked
sources.

A bucket lives as long as the broker, so that reconnecting does not refill it; its resource is on the map while it is in
use. Bound: one for each user and listener with a configured rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from sluiceway.flow import (
    Account,
    CompositeLimiter,
    Flow,
    FlowLimiter,
    FlowManager,
    FlowResource,
    RateLimiter,
    SourceController,
)
from sluiceway.flow.bounds import UNBOUNDED
from sluiceway.flow.kinds import ResourceKind
from sluiceway.queues.environment import TimerHandle
from sluiceway.security.config import Rates

READ_BYTES_MIN: Final = 1024

Key = tuple[str, str]
"""Kind and name, such as ("user", "web")."""


class RateTimers(Protocol):
    """Port to timers: the dispatcher."""

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle: ...


class RateLimit(FlowResource):
    """A limit in use."""

    def __init__(
        self,
        key: Key,
        limiter: FlowLimiter,
        rates: Rates,
        *,
        manager: FlowManager,
        clock: Callable[[], float],
        timers: RateTimers,
        left: Callable[[], object],
    ) -> None:
        """Take `left`, called when the last connection has left the limit."""
        super().__init__(f"{key[0]} {key[1]}", ResourceKind.RATE, manager)
        self._clock = clock
        self._timers = timers
        self._left = left
        self._limiter = limiter
        self._timer: TimerHandle | None = None
        self.connections_count = 0
        burst_bytes = rates.bytes_per_second * rates.burst_seconds if rates.bytes_per_second is not None else UNBOUNDED
        self.read_bytes_max = max(READ_BYTES_MIN, int(burst_bytes))
        self._controller = Account(self, Flow(self.label), limiter, clock=clock, counts_memory=False)
        self.open()

    @property
    def label(self) -> str:
        return f"rate limit of {self.name}"

    def charge(self, count: int, size_bytes: int, source: SourceController) -> None:
        self._controller.charge(count, size_bytes, source)
        self._controller.release(count, size_bytes)  # a rate holds nothing
        if self._limiter.throttled and self._timer is None:
            self._wait()

    def _wait(self) -> None:
        resumes_at = self._limiter.resumes_at()
        if resumes_at is not None:
            self._timer = self._timers.call_later(max(0.0, resumes_at - self._clock()), self._look)

    def _look(self) -> None:
        self._timer = None
        try:
            self._controller.poll()
        except BaseException:  # a fault of one waiter: the others continue
            self._timer = self._timers.call_later(0.0, self._look)
            raise
        if self._limiter.throttled:
            self._wait()

    def leave(self) -> None:
        self.connections_count -= 1
        if not self.connections_count:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.close()
            self._left()

    def facts(self) -> Mapping[str, object]:
        return {"connections": self.connections_count}


class RateTable:
    """All limits."""

    __slots__ = ("_buckets", "_clock", "_manager", "_timers", "_used")

    def __init__(self, *, manager: FlowManager, clock: Callable[[], float], timers: RateTimers) -> None:
        self._manager = manager
        self._clock = clock
        self._timers = timers
        self._buckets: dict[Key, tuple[Rates, FlowLimiter]] = {}
        self._used: dict[tuple[Key, Rates], RateLimit] = {}

    def enter(self, kind: str, name: str, rates: Rates) -> RateLimit:
        """Return the limit of this user or listener, with one more connection."""
        key = kind, name
        kept = self._buckets.get(key)
        if kept is None or kept[0] != rates:
            kept = self._buckets[key] = (rates, self._bucket(key, rates))
        limit = self._used.get((key, rates))
        if limit is None:
            limit = self._used[key, rates] = RateLimit(
                key,
                kept[1],
                rates,
                manager=self._manager,
                clock=self._clock,
                timers=self._timers,
                left=partial(self._used.pop, (key, rates)),
            )
        limit.connections_count += 1
        return limit

    def _bucket(self, key: Key, rates: Rates) -> FlowLimiter:
        parts: list[RateLimiter] = []
        if rates.messages_per_second is not None:
            per_second = rates.messages_per_second
            parts.append(self._part(f"messages of {key[1]}", "messages", per_second, rates.burst_seconds))
        if rates.bytes_per_second is not None:
            parts.append(self._part(f"bytes of {key[1]}", "bytes", rates.bytes_per_second, rates.burst_seconds))
        if len(parts) == 1:
            return parts[0]
        return CompositeLimiter(parts, clock=self._clock, label=f"rate of {key[0]} {key[1]}")

    def _part(self, label: str, unit: str, per_second: float, burst_seconds: float) -> RateLimiter:
        burst = max(1.0, per_second * burst_seconds)
        if unit == "bytes":
            return RateLimiter(per_second, burst, unit="bytes", clock=self._clock, label=label)
        return RateLimiter(per_second, burst, unit="messages", clock=self._clock, label=label)
