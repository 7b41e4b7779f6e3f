"""Pace at which senders may fill a queue that is not drained as fast: two optional policies.

`disconnected_per_second`: no consumer is subscribed. The backlog has to be read back one day; a limit keeps it short
(seed 002 "Disconnected Subscriber").

`catch_up_share`: part of the backlog is on disk and consumers are working on it. Senders get that share of the rate at
which it is drained, so that it shrinks, until all of it is in memory again (anchors d19).

A sender that is too fast waits like at any full resource: the pace is a limiter with a controller of its own, and a row
in the flow map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from ..flow import Account, Flow, FlowLimiter, FlowResource, RateLimiter, SourceController
from .cursored import CursoredQueue

SLICE_SECONDS: Final = 0.1
"""Over which the drain rate is measured, and how much may come at once."""
PER_SECOND_MIN: Final = 10.0
"""However slow the consumers are, senders are not stopped altogether."""


class Paced(Protocol):
    """Part of a queue that a gate uses."""

    elements: CursoredQueue
    settled_count: int

    @property
    def is_consumed(self) -> bool:
        """Whether a consumer is attached."""


class Gate(ABC):
    """Gate that blocks senders before they reach the limits of a queue."""

    __slots__ = ("_controller",)

    def __init__(
        self,
        resource: FlowResource,
        why: str,
        limiter: FlowLimiter,
        *,
        schedule: Callable[[Callable[[], None]], None] | None = None,
        clock: Callable[[], float],
    ) -> None:
        """Attach a gate to a queue, the `resource`. `why`: the reason why senders wait, as on the flow map; `schedule`:
        see Account.
        """
        flow = Flow(f"{resource.name} ({why})")
        self._controller = Account(resource, flow, limiter, schedule=schedule, clock=clock, counts_memory=False)

    @abstractmethod
    def admits(self, source: SourceController, queue: Paced) -> bool:
        """Return whether this sender may add to the queue now. False: it is blocked, and resumed in time."""

    @abstractmethod
    def took(self, count: int) -> None:
        """Note that `count` elements are being added."""

    @abstractmethod
    def relax(self) -> None:
        """Check again whether waiting senders are admitted: circumstances have changed."""

    @property
    def blocks_somebody(self) -> bool:
        """Whether senders wait."""
        return self._controller.blocks_somebody

    def waiting_since(self) -> list[float]:
        """Return clock readings: since when each sender waits."""
        return self._controller.waiting_since()

    def close(self) -> Account:
        """Admit no more senders. Returns the account at which senders wait, to be released."""
        self._controller.close(at_once=False)
        return self._controller


class Pace(Gate):
    """The pace of one queue."""

    __slots__ = (
        "_call_later",
        "_catch_up_share",
        "_clock",
        "_disconnected_per_second",
        "_drain_per_second",
        "_limiter",
        "_measured_count",
        "_measured_seconds",
        "_timer_set",
    )

    def __init__(
        self,
        resource: FlowResource,
        *,
        disconnected_per_second: float | None,
        catch_up_share: float | None,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._disconnected_per_second = disconnected_per_second
        self._catch_up_share = catch_up_share
        self._clock = clock
        self._call_later = call_later
        self._limiter = RateLimiter(PER_SECOND_MIN, PER_SECOND_MIN, unit="messages", clock=clock, label="pace")
        super().__init__(resource, "pace", self._limiter, clock=clock)
        self._drain_per_second = 0.0
        self._measured_count = 0
        self._measured_seconds = clock()
        self._timer_set = False

    def admits(self, source: SourceController, queue: Paced) -> bool:
        per_second = self._limit(queue.is_consumed, queue.elements.outside_count > 0, queue.settled_count)
        if per_second is None:
            return True
        limiter = self._limiter
        if abs(limiter.per_second - per_second) > per_second / 10:
            limiter.resize(per_second, max(1.0, per_second * SLICE_SECONDS))
        if self._controller.accepts(source):
            return True
        self._controller.wait_in_line(source)
        self._set_timer()
        return False

    def took(self, count: int) -> None:
        self._controller.charge(count, 0, None)
        self._controller.release(count, 0)

    def _limit(self, is_consumed: bool, has_backlog: bool, settled_count: int) -> float | None:
        if not is_consumed:
            return self._disconnected_per_second
        if self._catch_up_share is None or not has_backlog:
            return None
        now_seconds = self._clock()
        passed_seconds = now_seconds - self._measured_seconds
        if passed_seconds >= SLICE_SECONDS:
            rate = (settled_count - self._measured_count) / passed_seconds
            self._drain_per_second += (rate - self._drain_per_second) / 2
            self._measured_count = settled_count
            self._measured_seconds = now_seconds
        return max(PER_SECOND_MIN, self._catch_up_share * self._drain_per_second)

    def _set_timer(self) -> None:
        at_seconds = self._limiter.resumes_at()
        if at_seconds is not None and not self._timer_set:
            self._timer_set = True
            self._call_later(max(0.0, at_seconds - self._clock()), self._look)

    def _look(self) -> None:
        self._timer_set = False
        try:
            self._controller.poll()
        except BaseException:  # an error of one waiting sender: the others are resumed
            self._timer_set = True
            self._call_later(0.0, self._look)
            raise
        if self._controller.blocks_somebody:
            self._set_timer()

    def relax(self) -> None:
        if self._controller.blocks_somebody:
            self._limiter.resize(1e9, 1e9)
            self._controller.poll()
