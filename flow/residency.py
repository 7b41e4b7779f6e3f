"""Limiter of elements that may be in memory or outside: the total, and the part in memory.

Elements are added and removed as with any limiter. In between they may move out of memory (`move_out`) and back
(`move_in`), which changes the memory in use but not the total. The limiter throttles when either is used up: the
memory, because new elements have not been moved out yet; or the quota, in elements or bytes, because there is no more
room outside. Bytes that must stay in memory, because a consumer is about to read them, can be excused (`excuse`).

`used_count` and `used_bytes` count elements in memory, as everywhere; `total_count` and `total_bytes` count all.

Source: seed 002 "CursoredQueue"; DESIGN section 6 (quota in bytes and count).
"""

from collections.abc import Iterator

import attrs

from .errors import ThresholdError
from .limiters import UNLIMITED, Clock, FlowLimiter
from .snapshot import Dimension, LimiterSnapshot


class ResidencyLimiter(FlowLimiter):
    """Memory in bytes, and a quota for everything."""

    kind = "size"
    can_share = True

    __slots__ = (
        "_capacity_bytes",
        "_count_max",
        "_quota_bytes",
        "_resume_bytes",
        "_resume_count",
        "_resume_quota_bytes",
        "excused_bytes",
        "total_bytes",
        "total_count",
    )

    def __init__(
        self,
        capacity_bytes: int,
        *,
        count_max: int | None,
        quota_bytes: int | None,
        clock: Clock,
        label: str = "memory",
    ) -> None:
        """`capacity_bytes` in memory; `count_max` elements and `quota_bytes` in all (None: no limit of that kind).

        Resumes when memory is back at half, and each quota at nine tenths: elements outside drain slowly. Raises
        ThresholdError for a limit below 1.
        """
        super().__init__(label, clock)
        self.total_count = 0
        self.total_bytes = 0
        self.excused_bytes = 0
        """Bytes that must stay in memory for their readers, and are allowed beside the capacity. Read only."""
        self._set(capacity_bytes, count_max, quota_bytes)

    def resize(self, capacity_bytes: int, *, count_max: int | None, quota_bytes: int | None) -> None:
        """Set all limits anew; may throttle or resume at once.

        A controller does not see this: call its `poll` afterwards. Raises ThresholdError as the constructor does;
        nothing changes then.
        """
        self._set(capacity_bytes, count_max, quota_bytes)
        if self.throttled:
            self._resume_if_relieved()
        elif self._is_full():
            self._throttle()

    def _set(self, capacity_bytes: int, count_max: int | None, quota_bytes: int | None) -> None:
        for limit in (capacity_bytes, count_max, quota_bytes):
            if limit is not None and limit < 1:
                raise ThresholdError(f"{self.label} limiter: a limit of {limit} lets nothing pass; give at least 1")
        self._capacity_bytes = capacity_bytes
        self._count_max = UNLIMITED if count_max is None else count_max
        self._quota_bytes = UNLIMITED if quota_bytes is None else quota_bytes
        self._resume_bytes = min(capacity_bytes // 2, capacity_bytes - 1)
        self._resume_count = min(self._count_max * 9 // 10, self._count_max - 1)
        self._resume_quota_bytes = min(self._quota_bytes * 9 // 10, self._quota_bytes - 1)

    @property
    def capacity_bytes(self) -> int:
        """Bytes that may be in memory."""
        return self._capacity_bytes

    @property
    def allowed_bytes(self) -> int:
        """Bytes allowed in memory now: the capacity, or the limiter's part of it while the broker's memory is short."""
        share = self.share
        if share is None or not share.budget.short:
            return self._capacity_bytes
        return min(self._capacity_bytes, share.budget.allowed(share))

    @property
    def quota_is_used_up(self) -> bool:
        """Whether the quota is used up, and not memory alone."""
        return self.total_count >= self._count_max or self.total_bytes >= self._quota_bytes

    @property
    def over_resume_bytes(self) -> int:
        """Bytes by which memory is above the resume threshold, with nothing excused."""
        return self.used_bytes - min(self._resume_bytes, self.allowed_bytes // 2)

    def excuse(self, size_bytes: int) -> None:
        """Raise capacity and resume threshold by `size_bytes` that have to stay in memory. May throttle, or resume:
        poll the controller.

        Otherwise a resource whose elements leave memory could be full of elements that can't leave: its senders would
        then wait for an event that never happens.
        """
        self.excused_bytes = size_bytes
        if self.throttled:
            self._resume_if_relieved()
        elif self.used_bytes - size_bytes >= self._capacity_bytes:
            self._throttle()

    def add(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            self._refuse_negative("add", count, size_bytes)
        self.used_count += count
        self.used_bytes = used_bytes = self.used_bytes + size_bytes
        self.total_count = total_count = self.total_count + count
        self.total_bytes = total_bytes = self.total_bytes + size_bytes
        if used_bytes > self.lease_bytes:
            self._follow()
        if not self.throttled and (
            used_bytes - self.excused_bytes >= self._capacity_bytes
            or total_count >= self._count_max
            or total_bytes >= self._quota_bytes
        ):
            self._throttle()

    def remove(self, count: int, size_bytes: int) -> None:
        self._check_release(count, size_bytes)
        self.used_count -= count
        self.used_bytes -= size_bytes
        self.total_count -= count
        self.total_bytes -= size_bytes
        if self.used_bytes < self.spare_bytes:
            self._follow()
        self._resume_if_relieved()

    def move_out(self, count: int, size_bytes: int) -> None:
        """Count elements that left memory. May resume: poll the controller. Raises as `remove` does."""
        self._check_release(count, size_bytes)
        self.used_count -= count
        self.used_bytes -= size_bytes
        if self.used_bytes < self.spare_bytes:
            self._follow()
        self._resume_if_relieved()

    def move_in(self, count: int, size_bytes: int) -> None:
        """Count elements that came back into memory. May throttle."""
        self.used_count += count
        self.used_bytes += size_bytes
        if self.used_bytes > self.lease_bytes:
            self._follow()
        if not self.throttled and self.used_bytes - self.excused_bytes >= self._capacity_bytes:
            self._throttle()

    def add_outside(self, count: int, size_bytes: int) -> None:
        """Add elements that were never in memory in this run: a restart found them."""
        self.total_count += count
        self.total_bytes += size_bytes
        if not self.throttled and self.quota_is_used_up:
            self._throttle()

    def remove_outside(self, count: int, size_bytes: int) -> None:
        """Remove elements that left while they were not in memory. May resume: poll the controller."""
        self.total_count -= count
        self.total_bytes -= size_bytes
        self._resume_if_relieved()

    def correct(self, size_bytes: int) -> None:
        """Correct the bytes held by a difference between the known and the actual size."""
        self.total_bytes += size_bytes

    def _is_full(self) -> bool:
        return self.used_bytes - self.excused_bytes >= self._capacity_bytes or self.quota_is_used_up

    def _is_relieved(self) -> bool:
        return (
            self.used_bytes - self.excused_bytes <= self._resume_bytes
            and self.total_count <= self._resume_count
            and self.total_bytes <= self._resume_quota_bytes
        )

    def _resume_if_relieved(self) -> None:
        if self.throttled and not self.refused and self._is_relieved():
            self._resume()

    def dimensions(self) -> tuple[Dimension, ...]:
        """Return memory; `describe` says the quota."""
        capacity_bytes, resume_bytes = (
            self._capacity_bytes + self.excused_bytes,
            self._resume_bytes + self.excused_bytes,
        )
        return (Dimension(self.label, "bytes", self.used_bytes, capacity_bytes, resume_bytes),)

    def _quotas(self) -> Iterator[Dimension]:
        if self._count_max != UNLIMITED:
            yield Dimension("quota", "messages", self.total_count, self._count_max, self._resume_count)
        if self._quota_bytes != UNLIMITED:
            yield Dimension("quota", "bytes", self.total_bytes, self._quota_bytes, self._resume_quota_bytes)

    def describe(self) -> LimiterSnapshot:
        """Return the memory dimension; with a quota, memory and each limit as parts, of which those are throttled that
        keep the limiter throttled.
        """
        memory = super().describe()
        quotas = [
            attrs.evolve(
                memory,
                name=quota.label,
                used_count=self.total_count,
                used_bytes=self.total_bytes,
                dimensions=(quota,),
                throttled=self.throttled and quota.holds_back,
                refused=False,
            )
            for quota in self._quotas()
        ]
        if not quotas:
            return memory
        # The limiter may also be throttled by the memory that it shares with others.
        memory_is_over = self.refused or memory.dimensions[0].holds_back
        by_memory = memory_is_over or not any(quota.throttled for quota in quotas)
        memory_part = attrs.evolve(memory, throttled=self.throttled and by_memory)
        return attrs.evolve(memory, kind="composite", parts=(memory_part, *quotas))
