"""Slow consumers of one destination: those that hold a message for long, or take less than they should.

By age: a consumer holds a message unacknowledged for `slow_after_seconds`, or its client has read nothing of what waits
for its socket for so long. What an open transaction holds is acknowledged as far as its client is concerned.

By rate, over `slow_measure_seconds`: it has settled fewer messages a second than `slow_per_second`, or less than
`slow_share` of what the other consumers of the destination have on average, though it had work all the time: at every
look it held messages or had no room for more, and either more was waiting for it, or it has not settled what it held
at the beginning. So who is given little is not slow, and neither is a consumer whose client has paused it. The rate of
a consumer of several destinations (a wildcard, a composite) is not measured: it shares its credit among them.

A look reads counters that are there anyway; a message costs nothing. A watch keeps up to MARKS_COUNT small tuples for
each consumer, which its owner counts (CONSUMER_BYTES).

Pure: no clock, no timer of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable
from typing import Final, Protocol

import attrs

from .policy import SLOW_LIMITS, QueuePolicy
from .queue import MessageQueue
from .subscription import Subscription

MARKS_COUNT: Final = 5
"""Marks of one consumer: an age is noticed at most a quarter late."""
CONSUMER_BYTES: Final = 1280
"""Memory of what a watch keeps of one consumer."""


class Watched(Protocol):
    """Part of a consumer that a watch uses."""

    @property
    def is_paused(self) -> bool:
        """Whether the client wants no deliveries for now."""

    @property
    def takes_of_several(self) -> bool:
        """Whether the credit is for several destinations."""

    def mark(self) -> int:
        """Return how far it was given messages, for `is_behind`."""

    def is_behind(self, mark: int, queues: Container[object]) -> bool:
        """Return whether it still holds a message of these queues from before `mark`, or has read nothing since.
        O(1), or a small number of looks.
        """


@attrs.define(eq=False)
class _Seen:
    """Facts about one consumer at the looks so far."""

    marks: list[tuple[float, int]] = attrs.field(factory=list)
    """Clock readings, and marks of that time; one each quarter of the age."""
    settled_count: int = 0
    """Settled at the beginning of the measurement."""
    held_count: int = 0
    """Held at the beginning of the measurement."""
    is_measured: bool = False
    """Whether the consumer was there at the beginning of the measurement, and had work at every look since."""
    has_waiting: bool = True
    """Whether more waited for it at every look since."""
    rate_words: str = ""
    """Result of the last measurement; empty: not slow."""


@attrs.define
class _Sums:
    """Counts of one consumer, of all queues of the destination."""

    settled_count: int = 0
    held_count: int = 0
    has_waiting: bool = False
    is_blocked: bool = False


def watches(policy: QueuePolicy) -> bool:
    """Return whether consumers under this policy are looked at."""
    return any(getattr(policy, name) is not None for name in SLOW_LIMITS)


class SlowWatch:
    """Watch over the consumers of one destination."""

    __slots__ = ("_measured_from", "_seen")

    def __init__(self) -> None:
        self._seen: dict[Watched, _Seen] = {}
        self._measured_from: float | None = None
        """Clock reading at the beginning of the measurement."""

    def __len__(self) -> int:
        """Number of consumers that it keeps facts about."""
        return len(self._seen)

    def looking(
        self,
        queues: Iterable[MessageQueue],
        policy: QueuePolicy,
        now: float,
        watched_of: Callable[[Subscription], Watched | None],
    ) -> Generator[None, None, dict[Watched, str]]:
        """Look at all consumers, in steps. Returns the slow ones, each with the reason."""
        queues = tuple(queues)
        sums: dict[Watched, _Sums] = {}
        for queue in queues:
            for subscription in list(queue.subscriptions.values()):
                yield
                watched = watched_of(subscription)
                if watched is None or subscription.closed or queue.closed or queue.paused_since_seconds is not None:
                    continue
                own = sums.setdefault(watched, _Sums())
                own.settled_count += subscription.settled_count
                own.held_count += subscription.unsettled_count
                own.is_blocked |= subscription.source.blocked
                own.has_waiting |= queue.has_waiting(subscription)
        self._seen = {watched: self._seen.get(watched) or _Seen() for watched in sums}
        began = self._measured_from
        passed = 0.0 if began is None else now - began
        ends = began is None or passed >= policy.slow_measure_seconds
        if began is not None:
            yield from self._judging_rates(sums, policy, passed, ends=ends)
        if ends:
            self._measured_from = now
        slow: dict[Watched, str] = {}
        of_these = frozenset(queues)
        for watched, own in sums.items():
            yield
            seen = self._seen[watched]
            if ends:
                seen.settled_count, seen.held_count = own.settled_count, own.held_count
                seen.is_measured = _has_work(watched, own)
                seen.has_waiting = own.has_waiting
            words = self._age_in_words(watched, own, seen, policy, now, of_these) or seen.rate_words
            if words:
                slow[watched] = words
        return slow

    def _judging_rates(
        self, sums: dict[Watched, _Sums], policy: QueuePolicy, passed: float, *, ends: bool
    ) -> Generator[None, None, None]:
        taken: dict[Watched, int] = {}
        for watched, own in sums.items():
            yield
            seen = self._seen[watched]
            seen.is_measured = seen.is_measured and _has_work(watched, own)
            seen.has_waiting = seen.has_waiting and own.has_waiting
            if ends:
                taken[watched] = own.settled_count - seen.settled_count
        total_count, peers_count = sum(taken.values()), len(taken) - 1
        for watched, count in taken.items():
            yield
            seen = self._seen[watched]
            had_work = seen.is_measured and (seen.has_waiting or seen.held_count > count)
            peers_rate = (total_count - count) / peers_count / passed if peers_count else 0.0
            seen.rate_words = _rate_in_words(policy, count / passed, peers_rate, passed) if had_work else ""

    @staticmethod
    def _age_in_words(
        watched: Watched, own: _Sums, seen: _Seen, policy: QueuePolicy, now: float, queues: Container[object]
    ) -> str:
        limit = policy.slow_after_seconds
        if limit is None:
            return ""
        if not own.held_count:
            seen.marks.clear()
            return ""
        marks = seen.marks
        # Marks before the newest one of sufficient age say no more than it.
        while len(marks) > 1 and now - marks[1][0] >= limit:
            del marks[0]
        is_slow = bool(marks) and now - marks[0][0] >= limit and watched.is_behind(marks[0][1], queues)
        if not marks or now - marks[-1][0] >= limit / (MARKS_COUNT - 1):
            marks.append((now, watched.mark()))
        return f"for {limit:g} s it has not done with what it was given" if is_slow else ""


def _has_work(watched: Watched, own: _Sums) -> bool:
    is_busy = own.held_count > 0 or own.is_blocked
    return is_busy and not watched.is_paused and not watched.takes_of_several


def _rate_in_words(policy: QueuePolicy, rate: float, peers_rate: float, passed: float) -> str:
    per_second, share = policy.slow_per_second, policy.slow_share
    if per_second is not None and rate < per_second:
        return f"it took {rate:.3g} messages a second in {passed:.0f} s, less than {per_second:g}"
    if share is not None and rate < share * peers_rate:
        return (
            f"it took {rate:.3g} messages a second in {passed:.0f} s, less than {share:g} of the {peers_rate:.3g} of "
            "other consumers"
        )
    return ""
