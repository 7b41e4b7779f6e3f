"""Limiters: the capacity of a resource, and when it throttles.

A limiter only counts. It is charged (`add`) when an element enters a resource and relieved (`remove`) when it leaves,
and it keeps one flag, `throttled`, which the hot path reads as a plain attribute. Blocking the element's source is the
controller's work.

Hysteresis: a limiter throttles when usage reaches the capacity, and resumes only when it is back at the resume
threshold. Without the gap between the two, a full resource would block and resume its sources for every single element.

Invariants
    - ``used_count`` and ``used_bytes`` are exactly the sum added minus the sum removed, and never negative.
    - Not throttled implies below capacity; throttled implies above the resume threshold (size and window limiters).
    - A call that raises changes nothing.

A charge may go beyond the capacity: batches are charged whole, and an upstream that has accounted for an element may
overflow a downstream.

Deliberately not here: blocking, overflow lists, timers (a `RateLimiter` says when it wants to be polled; its owner has
the timer).

Source: seed 002 "Flow Control" (FlowLimiter); `WindowLimiter` is the seed's protocol window, `CompositeLimiter` and
`RateLimiter` are what it announces. Prototype faults avoided: the resume threshold that was never stored, the negative
size that was only printed.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

import attrs

from .errors import NegativeAmountError, OverReleaseError, ThresholdError
from .snapshot import Dimension, LimiterKind, LimiterSnapshot, Unit

if TYPE_CHECKING:
    from .shares import Share

Clock = Callable[[], float]
"""Returns monotonic seconds. Every time in this package is one of its readings, or a difference of two."""

UNLIMITED = sys.maxsize
"""The room that a window without a limit in some dimension has when it is empty."""

RATE_RESUME_SECONDS = 0.02
"""Default credit, in seconds of its rate, that a `RateLimiter` gathers before it resumes. Why 20 ms: at most 50
wake-ups a second (a wake-up costs as much as ten messages), and a pause too short to notice.
"""


class FlowLimiter(ABC):
    """One limit, as its controller sees it. Subclasses implement `add`, `remove` and `dimensions`.

    Attributes, all of them to be read and never written from outside (they are plain because the hot path reads them):
        throttled: True from reaching capacity until back at the resume threshold.
        throttled_since: clock reading when it throttled, or None while it is not throttled.
        throttle_count: how often it throttled.
        used_count, used_bytes: elements and bytes held now.
        label: name of the limit, for people: "memory", "window", "disk".
        share: part of the broker's memory that counts the bytes held here; None: not counted.
        lease_bytes, spare_bytes: the share is told when `used_bytes` is above the one or below the other (shares.py).
        refused: the broker's memory has no room for more here, so it is throttled whatever is held.
    """

    __slots__ = (
        "_clock",
        "_refused_alone",
        "label",
        "lease_bytes",
        "refused",
        "share",
        "spare_bytes",
        "throttle_count",
        "throttled",
        "throttled_since",
        "used_bytes",
        "used_count",
    )

    kind: ClassVar[LimiterKind]
    can_share: ClassVar[bool] = False
    """`add` and `remove` tell the share."""

    def __init__(self, label: str, clock: Clock) -> None:
        self.label = label
        self.used_count = 0
        self.used_bytes = 0
        self.throttled = False
        self.throttled_since: float | None = None
        self.throttle_count = 0
        self.share: Share | None = None
        self.lease_bytes = UNLIMITED
        self.spare_bytes = -1
        self.refused = False
        self._refused_alone = False
        self._clock = clock

    @property
    def exhausted(self) -> bool:
        """Throttled, and no headroom is left (only a `WindowLimiter` can have some)."""
        return self.throttled

    @abstractmethod
    def add(self, count: int, size_bytes: int) -> None:
        """Charge `count` elements of `size_bytes` in total; may go beyond the capacity. May throttle.

        Raises NegativeAmountError for an amount below zero; nothing is charged then.
        """

    @abstractmethod
    def remove(self, count: int, size_bytes: int) -> None:
        """Relieve the limiter of `count` elements of `size_bytes` in total. May resume.

        Raises NegativeAmountError for an amount below zero and OverReleaseError for more than is held; nothing
        changes then.
        """

    @abstractmethod
    def dimensions(self) -> tuple[Dimension, ...]:
        """Return the limited dimensions with their usage: messages before bytes, one of each at most."""

    def describe(self) -> LimiterSnapshot:
        """Return a picture of the limiter as it is now."""
        return LimiterSnapshot(
            kind=self.kind,
            name=self.label,
            used_count=self.used_count,
            used_bytes=self.used_bytes,
            dimensions=self.dimensions(),
            throttled=self.throttled,
            throttled_since=self.throttled_since,
            throttled_seconds=self._throttled_for_seconds(),
            throttle_count=self.throttle_count,
            refused=self.refused,
        )

    def poll(self) -> None:  # noqa: B027 (empty on purpose: most limiters change only by add and remove)
        """Check the clock: a limiter that depends on time may resume. Other limiters do nothing."""

    def resumes_at(self) -> float | None:
        """Return the clock reading at which `poll` is worth calling; None if time alone does not resume it."""
        return None

    def refuse(self) -> None:
        """Throttle until `admit`, however little is held: the broker's memory has no room."""
        self.refused = True
        if not self.throttled:
            self._refused_alone = True
            self._throttle()

    def admit(self) -> None:
        """End a refusal by the broker's memory. May resume: poll the controller."""
        self.refused = False
        if self.throttled and (self._is_relieved() or (self._refused_alone and not self._is_full())):
            self._resume()
        self._refused_alone = False

    def resume_below_capacity(self) -> None:
        """Resume if usage is below the capacity, above the resume threshold too: for a limit that was raised, which
        sources should notice at once. Poll the controller.
        """
        if self.throttled and not self.refused and not self._is_full():
            self._resume()

    def _is_full(self) -> bool:
        """Return whether usage has reached the capacity."""
        return self.throttled

    def _is_relieved(self) -> bool:
        """Return whether usage is back at the resume threshold."""
        return not self.throttled

    def _follow(self) -> None:
        """Tell the share that usage has left the bounds of the lease."""
        if self.share is not None:
            self.share.follow()

    def _throttle(self) -> None:
        self.throttled = True
        self.throttled_since = self._clock()
        self.throttle_count += 1

    def _resume(self) -> None:
        self.throttled = False
        self.throttled_since = None

    def _check_release(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            self._refuse_negative("remove", count, size_bytes)
        if count > self.used_count or size_bytes > self.used_bytes:
            self._refuse_over_release(count, size_bytes)

    def _refuse_negative(self, verb: str, count: int, size_bytes: int) -> NoReturn:
        raise NegativeAmountError(
            f"{self.label} limiter: cannot {verb} {count} elements of {size_bytes} bytes; amounts are zero or more, "
            "use add and remove instead of a sign"
        )

    def _refuse_over_release(self, count: int, size_bytes: int) -> NoReturn:
        raise OverReleaseError(
            f"{self.label} limiter: cannot remove {count} elements of {size_bytes} bytes, it holds only "
            f"{self.used_count} of {self.used_bytes} bytes; look for one that is released twice or was never charged"
        )

    def _throttled_for_seconds(self) -> float | None:
        return None if self.throttled_since is None else max(0.0, self._clock() - self.throttled_since)


class SizeLimiter(FlowLimiter):
    """A limit in bytes: memory, disk space, a stash. Throttles at capacity, resumes at the resume threshold."""

    __slots__ = ("_capacity_bytes", "_resume_at_bytes", "_resume_threshold_bytes")

    kind = "size"
    can_share = True

    def __init__(
        self, capacity_bytes: int, resume_threshold_bytes: int | None = None, *, clock: Clock, label: str = "memory"
    ) -> None:
        """Throttle when `capacity_bytes` (at least 1) are used, resume at `resume_threshold_bytes` (default: half).

        Raises ThresholdError if the capacity is below 1, or the threshold negative or above the capacity.
        """
        super().__init__(label, clock)
        self._set(capacity_bytes, resume_threshold_bytes)

    @property
    def capacity_bytes(self) -> int:
        return self._capacity_bytes

    @property
    def resume_threshold_bytes(self) -> int:
        return self._resume_threshold_bytes

    def resize(self, capacity_bytes: int, resume_threshold_bytes: int | None = None) -> None:
        """Set both limits (threshold default: half the capacity); may throttle or resume at once.

        A controller does not see this: call its `poll` afterwards. Raises ThresholdError as the constructor does;
        nothing changes then.
        """
        self._set(capacity_bytes, resume_threshold_bytes)
        if self.throttled:
            if self._is_relieved() and not self.refused:
                self._resume()
        elif self.used_bytes >= capacity_bytes:
            self._throttle()

    def add(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            self._refuse_negative("add", count, size_bytes)
        self.used_count += count
        self.used_bytes = used_bytes = self.used_bytes + size_bytes
        if used_bytes > self.lease_bytes:
            self._follow()
        if used_bytes >= self._capacity_bytes and not self.throttled:
            self._throttle()

    def _is_full(self) -> bool:
        return self.used_bytes >= self._capacity_bytes

    def _is_relieved(self) -> bool:
        return self.used_bytes <= self._resume_at_bytes

    def remove(self, count: int, size_bytes: int) -> None:
        used_count = self.used_count - count
        used_bytes = self.used_bytes - size_bytes
        if count < 0 or size_bytes < 0 or used_count < 0 or used_bytes < 0:
            self._check_release(count, size_bytes)
        self.used_count = used_count
        self.used_bytes = used_bytes
        if used_bytes < self.spare_bytes:
            self._follow()
        if self.throttled and used_bytes <= self._resume_at_bytes and not self.refused:
            self._resume()

    def dimensions(self) -> tuple[Dimension, ...]:
        limit = Dimension(self.label, "bytes", self.used_bytes, self._capacity_bytes, self._resume_threshold_bytes)
        return (limit,)

    def _set(self, capacity_bytes: int, resume_threshold_bytes: int | None) -> None:
        if capacity_bytes < 1:
            raise ThresholdError(
                f"{self.label} limiter: a capacity of {capacity_bytes} bytes lets nothing pass; give at least 1 byte, "
                "or a WindowLimiter of 0 if nothing shall pass"
            )
        threshold = capacity_bytes // 2 if resume_threshold_bytes is None else resume_threshold_bytes
        _check_threshold(self.label, "bytes", threshold, capacity_bytes)
        self._capacity_bytes = capacity_bytes
        self._resume_threshold_bytes = threshold
        # A threshold equal to the capacity would otherwise resume while full.
        self._resume_at_bytes = min(threshold, capacity_bytes - 1)


class WindowLimiter(FlowLimiter):
    """Credit in messages and in bytes: the unacknowledged messages that a subscription may hold. An ack is `remove`.

    Throttled as soon as either kind of credit is used up. The last message may overdraw the bytes: otherwise a message
    larger than the whole window could never be sent.

    *Headroom* is credit beyond the capacity for messages that must not wait behind a backlog: a source that may use it
    checks `exhausted` instead of `throttled`, and asks for its room `beyond` the capacity. It is used like any other
    credit: while it is in use, the window is throttled.
    """

    __slots__ = (
        "_capacity_bytes",
        "_capacity_count",
        "_count_label",
        "_headroom_bytes",
        "_headroom_count",
        "_resume_at_bytes",
        "_resume_at_count",
    )

    kind = "window"
    can_share = True

    def __init__(
        self,
        capacity_count: int | None,
        capacity_bytes: int | None,
        *,
        resume_count: int | None = None,
        resume_bytes: int | None = None,
        headroom_count: int = 0,
        headroom_bytes: int = 0,
        clock: Clock,
        label: str = "window",
        count_label: str = "",
    ) -> None:
        """Throttle when `capacity_count` messages or `capacity_bytes` are out; None: no limit of that kind; 0: nothing
        passes, ever.

        Resumes when no more than `resume_count` messages and `resume_bytes` are out; default: as soon as there is
        credit for one message and one byte. `headroom_count` and `headroom_bytes` come on top of the capacities, see
        above; without a `headroom_count` there is no headroom. Raises ThresholdError if a capacity or a headroom is
        negative, or a threshold negative or above its capacity.
        """
        super().__init__(label, clock)
        self._count_label = count_label or label  # the label while messages are nearer to their limit
        if headroom_count < 0 or headroom_bytes < 0:
            raise ThresholdError(
                f"{label} limiter: a headroom of {headroom_count} messages, {headroom_bytes} bytes is negative; give 0 "
                "for none"
            )
        self._headroom_count = headroom_count
        self._headroom_bytes = headroom_bytes
        self._set(capacity_count, capacity_bytes, resume_count, resume_bytes)
        if self._is_full():
            self._throttle()

    @property
    def capacity_count(self) -> int | None:
        return None if self._capacity_count == UNLIMITED else self._capacity_count

    @property
    def capacity_bytes(self) -> int | None:
        return None if self._capacity_bytes == UNLIMITED else self._capacity_bytes

    @property
    def exhausted(self) -> bool:
        """Throttled, and the headroom is used up too."""
        if not self.throttled or not self._headroom_count:
            return self.throttled
        return self.room_count(beyond=True) == 0 or self.room_bytes(beyond=True) == 0

    def room_count(self, *, beyond: bool = False) -> int:
        """Return how many messages of credit are free, 0 if overdrawn. `beyond`: with the headroom.

        Says nothing of bytes, nor of hysteresis: see `throttled`.
        """
        room_count = self._capacity_count - self.used_count
        return max(0, room_count + self._headroom_count if beyond else room_count)

    def room_bytes(self, *, beyond: bool = False) -> int:
        """Return how many bytes of credit are free, 0 if overdrawn. `beyond`: with the headroom.

        Says nothing of messages, nor of hysteresis: see `throttled`.
        """
        room_bytes = self._capacity_bytes - self.used_bytes
        return max(0, room_bytes + self._headroom_bytes if beyond else room_bytes)

    def resize(
        self,
        capacity_count: int | None,
        capacity_bytes: int | None,
        *,
        resume_count: int | None = None,
        resume_bytes: int | None = None,
        headroom_count: int | None = None,
        headroom_bytes: int | None = None,
    ) -> None:
        """Set the window anew, thresholds too (defaults as in the constructor); may throttle or resume at once. A
        headroom of None stays as it is.

        A controller does not see this: call its `poll` afterwards. Raises ThresholdError as the constructor does;
        nothing changes then.
        """
        self._set(capacity_count, capacity_bytes, resume_count, resume_bytes)
        if headroom_count is not None:
            self._headroom_count = headroom_count
        if headroom_bytes is not None:
            self._headroom_bytes = headroom_bytes
        if self.throttled:
            self._resume_if_relieved()
        elif self._is_full():
            self._throttle()

    def add(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            self._refuse_negative("add", count, size_bytes)
        self.used_count = used_count = self.used_count + count
        self.used_bytes = used_bytes = self.used_bytes + size_bytes
        if used_bytes > self.lease_bytes:
            self._follow()
        if (used_count >= self._capacity_count or used_bytes >= self._capacity_bytes) and not self.throttled:
            self._throttle()

    def remove(self, count: int, size_bytes: int) -> None:
        used_count = self.used_count - count
        used_bytes = self.used_bytes - size_bytes
        if count < 0 or size_bytes < 0 or used_count < 0 or used_bytes < 0:
            self._check_release(count, size_bytes)
        self.used_count = used_count
        self.used_bytes = used_bytes
        if used_bytes < self.spare_bytes:
            self._follow()
        if self.throttled:
            self._resume_if_relieved()

    def dimensions(self) -> tuple[Dimension, ...]:
        dimensions = []
        if self._capacity_count != UNLIMITED:
            resume_count = max(0, self._resume_at_count)
            dimensions.append(
                Dimension(self._count_label, "messages", self.used_count, self._capacity_count, resume_count)
            )
        if self._capacity_bytes != UNLIMITED:
            resume_bytes = max(0, self._resume_at_bytes)
            dimensions.append(Dimension(self.label, "bytes", self.used_bytes, self._capacity_bytes, resume_bytes))
        return tuple(dimensions)

    def _is_full(self) -> bool:
        return self.used_count >= self._capacity_count or self.used_bytes >= self._capacity_bytes

    def _is_relieved(self) -> bool:
        return self.used_count <= self._resume_at_count and self.used_bytes <= self._resume_at_bytes

    def _resume_if_relieved(self) -> None:
        if self.used_count <= self._resume_at_count and self.used_bytes <= self._resume_at_bytes and not self.refused:
            self._resume()

    def _set(
        self,
        capacity_count: int | None,
        capacity_bytes: int | None,
        resume_count: int | None,
        resume_bytes: int | None,
    ) -> None:
        count_limit, count_resume = _window_side(self.label, "messages", capacity_count, resume_count)
        bytes_limit, bytes_resume = _window_side(self.label, "bytes", capacity_bytes, resume_bytes)
        self._capacity_count, self._resume_at_count = count_limit, count_resume
        self._capacity_bytes, self._resume_at_bytes = bytes_limit, bytes_resume


class RateLimiter(FlowLimiter):
    """Limit per second: a token bucket that holds at most `burst` tokens and gains `per_second` of them each second.

    `add` takes tokens, one per message or per byte, and may leave a debt. The limiter throttles when no whole token is
    left and resumes when `resume_tokens` have gathered, so that sources wake for a batch and not for each message. At
    most burst + per_second * t tokens pass within any t seconds, plus the overdraft of the one batch that throttled the
    limiter.

    `remove` gives no tokens back (a rate is not returned), it only ends the holding; but it checks the clock like
    `poll`. Without adds and removes nothing checks it: set a timer for `resumes_at` and then call the controller's
    `poll`.
    """

    kind = "rate"

    __slots__ = ("_burst", "_per_second", "_resume_tokens", "_stamp", "_tokens", "unit")

    def __init__(
        self,
        per_second: float,
        burst: float,
        *,
        unit: Unit = "bytes",
        resume_tokens: float | None = None,
        clock: Clock,
        label: str = "rate",
    ) -> None:
        """Let `per_second` units pass, and `burst` units at once after a pause. The bucket starts full.

        `resume_tokens` (default: 20 ms worth, at least one unit, at most the burst) is the hysteresis. Raises
        ThresholdError unless per_second > 0, burst >= 1 and 1 <= resume_tokens <= burst.
        """
        super().__init__(label, clock)
        self.unit = unit
        self._set(per_second, burst, resume_tokens)
        self._tokens = float(burst)
        self._stamp = clock()

    @property
    def per_second(self) -> float:
        return self._per_second

    @property
    def burst(self) -> float:
        return self._burst

    @property
    def tokens(self) -> float:
        """Tokens available now; below zero is debt."""
        return min(self._burst, self._tokens + max(0.0, self._clock() - self._stamp) * self._per_second)

    def resize(self, per_second: float, burst: float, *, resume_tokens: float | None = None) -> None:
        """Set a new rate; tokens earned so far were earned at the old one.

        May resume, never throttles (it takes no tokens).

        A controller does not see this: call its `poll` afterwards. Raises ThresholdError as the constructor does;
        nothing changes then.
        """
        earned = self.tokens
        now = self._clock()
        self._set(per_second, burst, resume_tokens)
        self._tokens = min(burst, earned)
        self._stamp = now
        self.poll()

    def add(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            self._refuse_negative("add", count, size_bytes)
        self.used_count += count
        self.used_bytes += size_bytes
        # Refill before taking: a bucket that was full all the time must not be credited for that time after it was
        # emptied.
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._stamp) * self._per_second) - (
            size_bytes if self.unit == "bytes" else count
        )
        self._stamp = now
        if self._tokens < 1 and not self.throttled:
            self._throttle()

    def remove(self, count: int, size_bytes: int) -> None:
        self._check_release(count, size_bytes)
        self.used_count -= count
        self.used_bytes -= size_bytes
        if self.throttled:
            self.poll()

    def poll(self) -> None:
        """Resume if enough tokens have gathered by now."""
        # Compared as times, not as tokens: a timer set to exactly resumes_at() must find the limiter resumed in spite
        # of rounding.
        if self.throttled and self._clock() >= self.resumes_at():
            self._resume()

    def resumes_at(self) -> float:
        """Return the clock reading at which the limiter resumes; now, if it is not throttled."""
        if not self.throttled:
            return self._clock()
        return self._stamp + max(0.0, self._resume_tokens - self._tokens) / self._per_second

    def dimensions(self) -> tuple[Dimension, ...]:
        used = self.used_bytes if self.unit == "bytes" else self.used_count
        return (Dimension(self.label, self.unit, used, int(self._burst), None),)

    def describe(self) -> LimiterSnapshot:
        return attrs.evolve(super().describe(), per_second=self._per_second)

    def _set(self, per_second: float, burst: float, resume_tokens: float | None) -> None:
        if not per_second > 0 or not burst >= 1:
            raise ThresholdError(
                f"{self.label} limiter: {per_second} {self.unit} per second with a burst of {burst} lets nothing pass; "
                "give a rate above 0 and a burst of at least 1"
            )
        resume = min(burst, max(1.0, per_second * RATE_RESUME_SECONDS)) if resume_tokens is None else resume_tokens
        if not 1 <= resume <= burst:
            raise ThresholdError(
                f"{self.label} limiter: {resume} resume tokens do not fit a burst of {burst}; "
                "give at least 1 and at most the burst"
            )
        self._per_second = float(per_second)
        self._burst = float(burst)
        self._resume_tokens = float(resume)


class CompositeLimiter(FlowLimiter):
    """Several limits at once: throttled while any part is, for example "64 MiB, and 1,000 messages per second".

    Every charge and release goes to every part. The composite counts its own elements once, so that memory is not
    summed twice. It checks its parts in `add`, `remove` and `poll`: after a part was changed by itself (resize), call
    `poll`. A part may belong to several composites (a shared limit); a release through one is seen by the others when
    they are polled.
    """

    kind = "composite"

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[FlowLimiter], *, clock: Clock | None = None, label: str = "limits") -> None:
        """Bind `parts` (at least one; ThresholdError otherwise) into one.

        `clock` defaults to that of the first part.
        """
        if not parts:
            raise ThresholdError(
                f"{label} limiter: a composite needs at least one part; without a limit use no composite"
            )
        super().__init__(label, clock or parts[0]._clock)
        self.parts = tuple(parts)
        self._look()

    def add(self, count: int, size_bytes: int) -> None:
        if count < 0 or size_bytes < 0:
            self._refuse_negative("add", count, size_bytes)
        throttled = False
        for part in self.parts:
            part.add(count, size_bytes)
            if part.throttled:
                throttled = True
        self.used_count += count
        self.used_bytes += size_bytes
        if throttled is not self.throttled:
            self._look()

    def remove(self, count: int, size_bytes: int) -> None:
        # All are asked before any is changed: a release is refused whole or done whole.
        if count < 0 or size_bytes < 0 or count > self.used_count or size_bytes > self.used_bytes:
            self._check_release(count, size_bytes)
        for part in self.parts:
            if count > part.used_count or size_bytes > part.used_bytes:
                part._check_release(count, size_bytes)
        throttled = False
        for part in self.parts:
            part.remove(count, size_bytes)
            if part.throttled:
                throttled = True
        self.used_count -= count
        self.used_bytes -= size_bytes
        if throttled is not self.throttled:
            self._look()

    def poll(self) -> None:
        for part in self.parts:
            part.poll()
        self._look()

    def resumes_at(self) -> float | None:
        """Return when the last of the parts that wait for time resumes; None if none of them waits for time."""
        times = [at for part in self.parts if part.throttled and (at := part.resumes_at()) is not None]
        return max(times, default=None)

    def dimensions(self) -> tuple[Dimension, ...]:
        """Return nothing: the parts say what each limits."""
        return ()

    def describe(self) -> LimiterSnapshot:
        return attrs.evolve(super().describe(), parts=tuple(part.describe() for part in self.parts))

    def _look(self) -> None:
        throttled = any(part.throttled for part in self.parts)
        if throttled and not self.throttled:
            self._throttle()
        elif self.throttled and not throttled:
            self._resume()


def _check_threshold(label: str, unit: str, threshold: int, capacity: int) -> None:
    if not 0 <= threshold <= capacity:
        raise ThresholdError(
            f"{label} limiter: a resume threshold of {threshold} {unit} does not fit a capacity of {capacity} {unit}; "
            "give a value from 0 to the capacity"
        )


def _window_side(label: str, unit: str, capacity: int | None, resume: int | None) -> tuple[int, int]:
    """Return capacity and resume mark of one kind of credit.

    The mark of an empty window is -1, which is never reached.
    """
    if capacity is not None and capacity < 0:
        raise ThresholdError(
            f"{label} limiter: a window of {capacity} {unit} is negative; give 0 to stop, None for no limit"
        )
    limit = UNLIMITED if capacity is None else capacity
    if resume is None:
        return limit, limit - 1
    _check_threshold(label, unit, resume, limit)
    return limit, min(resume, limit - 1)
