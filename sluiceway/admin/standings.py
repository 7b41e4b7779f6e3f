"""The state of each destination, connection and subscription: flowing, blocked and by whom, or stalled.

Read in steps from a survey of the flow map, so that lists and the map agree. Which waits count, and which consumers are
stalled, is the rule of `sluiceway/views/waits.py`; a consumer at its prefetch limit that is not stalled is *busy*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from sluiceway.flow.graph import Steps
from sluiceway.flow.snapshot import FlowSnapshot
from sluiceway.flow.words import age_in_words, count_in_words
from sluiceway.protocols.stomp.delivery import StompSubscription
from sluiceway.queues.destination import Destination
from sluiceway.views.destinations import figure
from sluiceway.views.subscriptions import takers_of, why_stalled
from sluiceway.views.waits import NOTHING_WAITS, SENDERS, WaitingSenders, is_lasting, senders_in_steps

if TYPE_CHECKING:
    from sluiceway.admin.nodes import Candidate

FLOWING_PER_SECOND: Final = 0.05
"""A smoothed rate below this is that of messages long gone."""


class StandingState(StrEnum):
    """States by which lists are sorted, with their rank."""

    rank: int

    def __new__(cls, value: str, rank: int) -> StandingState:
        state = str.__new__(cls, value)
        state._value_ = value
        state.rank = rank
        return state

    BLOCKING = "blocking", 6
    """Senders wait for it."""
    BLOCKED = "blocked", 5
    """State of a connection whose sends wait."""
    STALLED = "stalled", 4
    """A subscription that acknowledges nothing, or a destination of which nothing is delivered because of such ones."""
    DEGRADED = "degraded", 3
    """Some consumers of a destination are stalled, and others work."""
    PAUSED = "paused", 2
    UNCONSUMED = "unconsumed", 1
    """State of a destination that holds messages, and has no consumer."""
    BUSY = "busy", 0
    """State of a consumer at its prefetch limit that acknowledges."""
    FLOWING = "flowing", 0
    IDLE = "idle", 0


class Standing(NamedTuple):
    """The state of one row."""

    state: StandingState
    words: str = ""
    seconds: float | None = None
    cause: int | None = None
    """Node of the root cause, if that is another."""
    is_blamed: bool = False
    """The sentence goes on with the root cause."""

    @property
    def rank(self) -> tuple[int, float]:
        """Return what lists are sorted by: the worst state first, within one the longest."""
        return self.state.rank, self.seconds or 0.0


class Standings:
    """States of all rows at the moment of one survey."""

    def __init__(
        self,
        survey: FlowSnapshot,
        candidates: Mapping[int, Candidate],
        first_of: Callable[[int], int],
        name_of: Callable[[int], str],
    ) -> None:
        """`first_of`: the node of a resource; `name_of`: what people call a node."""
        self._survey = survey
        self._candidates = candidates
        self._first_of = first_of
        self._name_of = name_of
        self._causes: dict[int, int] = {}
        """End, for each node that waits, of its longest chain."""
        self._blocked: dict[int, tuple[float, int, int]] = {}
        """Wait of each sender: for how long, for which node, and how many of its flows."""
        self._senders: dict[int, WaitingSenders] = {}
        """Senders, for each node, that wait for it, also by way of others."""
        self._stalled: dict[int, tuple[float, str]] = {}
        """Seconds that each stalled subscription has stalled, and why."""
        self._stalled_of: dict[int, tuple[float, str]] = {}
        """Subscription of each connection that has stalled longest."""
        self._blocking_of: dict[int, WaitingSenders] = {}
        """Senders, for each connection, that wait for its subscriptions."""
        self._takers: dict[int, tuple[int, int, int]] = {}
        """Consumers of each destination that has stalled ones: the number of all, the number of stalled ones, and the
        one that has stalled longest.
        """

    def read_in_steps(self) -> Steps[None]:
        """Read the survey. Before anything else, and once."""
        yield from self._read_chains()
        yield from self._read_subscriptions()
        yield from self._read_destinations()

    def _read_chains(self) -> Steps[None]:
        self._senders = yield from senders_in_steps(self._survey.chains, self._first_of)
        for chain in self._survey.chains:  # the longest wait first
            yield
            first, age_seconds = self._first_of(chain.source.resource_id), chain.edges[0].age_seconds
            path = [self._first_of(edge.sink.resource_id) for edge in chain.edges]
            self._causes.setdefault(first, path[-1])
            if chain.source.kind not in SENDERS:
                continue
            known_seconds, sink, count = self._blocked.get(first, (age_seconds, path[0], 0))
            self._blocked[first] = known_seconds, sink, count + 1

    def _read_subscriptions(self) -> Steps[None]:
        for first, candidate in self._candidates.items():
            yield
            subscription = candidate.resources[0]
            if candidate.session is None or not isinstance(subscription, StompSubscription):
                continue
            owner = candidate.session.lanes.resource_id
            why = why_stalled(subscription, candidate.session)
            if why is not None:
                self._stalled[first] = why
                self._stalled_of[owner] = max(why, self._stalled_of.get(owner, why))
            waiting = self._senders.get(first)
            if waiting is not None and self._causes.get(first, first) in (first, owner):
                count, seconds = self._blocking_of.get(owner, NOTHING_WAITS)
                self._blocking_of[owner] = WaitingSenders(
                    max(count, waiting.flows_count), max(seconds, waiting.seconds)
                )

    def _read_destinations(self) -> Steps[None]:
        if not self._stalled:
            return
        for first, candidate in self._candidates.items():
            yield
            if candidate.destination is None:
                continue
            takers: set[int] = set()
            stalled: set[int] = set()
            worst: tuple[float, int] | None = None
            for queue in candidate.destination.queues:
                for taker, _subscription in takers_of(queue):
                    yield
                    takers.add(taker)
                    if taker in self._stalled:
                        stalled.add(taker)
                        own = self._stalled[taker][0], taker
                        worst = own if worst is None else max(worst, own)
            if worst is not None:
                self._takers[first] = len(takers), len(stalled), worst[1]

    # ------------------------------------------------------------------ states of rows

    def senders_of(self, node: int) -> WaitingSenders:
        """Return the senders that wait for a node, directly or by way of others."""
        return self._senders.get(node, NOTHING_WAITS)

    def is_lasting(self, node: int) -> bool:
        """Return whether a wait of a node, or for it, is more than a busy broker's: it lasts, or a consumer stalls."""
        blocked = self._blocked.get(node)
        return (
            is_lasting(self.senders_of(node).seconds)
            or (blocked is not None and is_lasting(blocked[0]))
            or node in self._stalled
            or node in self._takers
        )

    def concerns_senders(self, node: int) -> bool:
        """Return whether a node is a sender that waits, or senders wait for it, however short."""
        return node in self._senders or node in self._blocked

    def stalled(self) -> Mapping[int, tuple[float, str]]:
        """Return all stalled subscriptions, each with the seconds and the reason."""
        return self._stalled

    def of_destination(self, destination: Destination, out_per_second: float, rate_per_second: float) -> Standing:
        """Return the state of a destination. `rate_per_second`: of what comes in or goes out. O(partitions)."""
        first = destination.queues[0].resource_id
        waiting = self.senders_of(first)
        cause = self._causes.get(first, first)
        lasting = is_lasting(waiting.seconds)
        if destination.is_paused:
            blocked = f"; {_senders_in_words(waiting)}" if lasting else ""
            return Standing(StandingState.PAUSED, f"paused{blocked}", waiting.seconds if lasting else None)
        takers_count, stalled_count, worst = self._takers.get(first, (0, 0, first))
        some = f"{stalled_count} of {count_in_words(takers_count, 'consumer')} stalled"
        if lasting:
            words = _senders_in_words(waiting)
            if cause == first and not destination.queue.attachments_count:
                words += ": it has no consumer"
            if 0 < stalled_count < takers_count:
                words += f" ({some})"
            blamed = cause != first
            return Standing(StandingState.BLOCKING, words, waiting.seconds, cause if blamed else None, blamed)
        if stalled_count:
            seconds = self._stalled[worst][0]
            words = f"{some}: {self._name_of(worst)}"
            works = stalled_count < takers_count and out_per_second >= FLOWING_PER_SECOND
            if works or not figure("waiting_count", destination):
                return Standing(StandingState.DEGRADED, words, seconds, worst)
            return Standing(StandingState.STALLED, words, seconds, worst)
        if (
            not destination.queue.attachments_count
            and (count := figure("waiting_count", destination) - figure("delayed_count", destination)) > 0
        ):
            waits = "waits" if count == 1 else "wait"
            return Standing(StandingState.UNCONSUMED, f"{count_in_words(count, 'message')} {waits} for a consumer")
        return _moving(rate_per_second)

    def of_connection(self, first: int, rate_per_second: float) -> Standing:
        """Return the state of a connection, which `first` is the node of. O(1)."""
        blocking = self._blocking_of.get(first, NOTHING_WAITS)
        if is_lasting(blocking.seconds):
            words = f"its consumer blocks {count_in_words(blocking.flows_count, 'sender')}, for "
            return Standing(StandingState.BLOCKING, words + age_in_words(blocking.seconds), blocking.seconds)
        blocked = self._blocked.get(first)
        if blocked is not None and is_lasting(blocked[0]):
            seconds, sink, count = blocked
            cause = self._causes.get(first, sink)
            words = f"blocked by {self._name_of(sink)} for {age_in_words(seconds)}"
            if count > 1:
                words += f", and {count_in_words(count - 1, 'other wait')}"
            blamed = cause not in (sink, first)
            return Standing(StandingState.BLOCKED, words, seconds, None if cause == first else cause, blamed)
        stalled = self._stalled_of.get(first)
        if stalled is not None:
            return Standing(StandingState.STALLED, stalled[1], stalled[0])
        return _moving(rate_per_second)

    def of_subscription(self, subscription: StompSubscription, rate_per_second: float) -> Standing:
        """Return the state of a subscription. O(1)."""
        first = subscription.resource_id
        waiting = self.senders_of(first)
        cause = self._causes.get(first, first)
        because = None if cause == first else cause
        if is_lasting(waiting.seconds):
            words = f"blocks {count_in_words(waiting.flows_count, 'sender')}, for {age_in_words(waiting.seconds)}"
            stalled = self._stalled.get(first)
            return Standing(
                StandingState.BLOCKING, words if stalled is None else f"{words}: {stalled[1]}", waiting.seconds, because
            )
        if first in self._stalled:
            seconds, why = self._stalled[first]
            return Standing(StandingState.STALLED, why, seconds, because)
        if subscription.slow:
            return Standing(StandingState.STALLED, f"slow: {subscription.slow}")
        if subscription.window is not None and subscription.window.limiter.throttled:
            return Standing(StandingState.BUSY, "at its prefetch limit, and acknowledging")
        return _moving(rate_per_second)


def _moving(rate_per_second: float) -> Standing:
    return Standing(StandingState.FLOWING if rate_per_second >= FLOWING_PER_SECOND else StandingState.IDLE)


def _senders_in_words(waiting: WaitingSenders) -> str:
    verb = "waits" if waiting.flows_count == 1 else "wait"
    return f"{count_in_words(waiting.flows_count, 'sender')} {verb}, for {age_in_words(waiting.seconds)}"
