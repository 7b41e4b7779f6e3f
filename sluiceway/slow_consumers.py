"""Slow consumers of the broker: looks for them, marks them, reports them, and disconnects them where the policy of
their destination says so (`slow_consumer`). The rules are in `queues/slow.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from sluiceway.dispatcher import Periodic
from sluiceway.flow import FlowManager
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.delivery import StompSubscription
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.slow import CONSUMER_BYTES, SlowWatch, Watched, watches
from sluiceway.queues.subscription import Subscription

LOOK_SECONDS: Final = 1.0
"""Between two looks; ages and measurements are as exact as that."""

log = get_logger("sluiceway.broker")


class SlowConsumers:
    """Looks of one broker, from `start` to `stop`.

    Attributes:
        marked: slow consumers of the last look, each with its destination and the reason.
        found_count: number of times that a consumer was found to be slow and was not before.
        disconnected_count: number of those that were disconnected.
    """

    def __init__(
        self,
        registry: Callable[[], DestinationRegistry],
        *,
        is_needed: Callable[[], bool],
        manager: FlowManager,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        """`is_needed`: whether a policy of any destination asks for it."""
        self._registry = registry
        self._is_needed = is_needed
        self._manager = manager
        self._clock = clock
        self._watches: dict[str, SlowWatch] = {}
        self._kept_bytes = 0
        self._is_looking = False
        self._looks = Periodic(call_later, LOOK_SECONDS, self._look)
        self.marked: dict[StompSubscription, tuple[str, str]] = {}
        self.found_count = 0
        self.disconnected_count = 0

    def start(self) -> None:
        """Look from now on."""
        self._looks.start()

    def stop(self) -> None:
        """Look no more. A second call does nothing."""
        self._looks.stop()

    def _look(self) -> None:
        if self._is_looking or not (self._is_needed() or self._watches or self.marked):
            return
        self._is_looking = True
        self._registry().steps.do(self, self._looking())

    def _looking(self) -> Generator[None, None, None]:
        found: dict[StompSubscription, tuple[str, str]] = {}
        there: dict[str, SlowWatch] = {}
        try:
            now = self._clock()
            destinations = self._registry().destinations
            for name in list(destinations):
                yield
                destination = destinations.get(name)
                policy = None if destination is None else destination.policy
                if (
                    destination is None
                    or policy is None
                    or not watches(policy)
                    or not destination.queue.attachments_count
                ):
                    continue
                watch = there[name] = self._watches.get(name) or SlowWatch()
                slow = yield from watch.looking(destination.queues, policy, now, _watched)
                for consumer, words in slow.items():
                    assert isinstance(consumer, StompSubscription), "others are not watched"
                    found.setdefault(consumer, (name, words))
            self._watches = there
            self._count()
            yield from self._marking(found)
        finally:
            self._is_looking = False

    def _count(self) -> None:
        kept_bytes = CONSUMER_BYTES * sum(1 + len(watch) for watch in self._watches.values())
        self._manager.keep(kept_bytes - self._kept_bytes)
        self._kept_bytes = kept_bytes

    def _marking(self, found: dict[StompSubscription, tuple[str, str]]) -> Generator[None, None, None]:
        before, self.marked = self.marked, found
        for consumer in before.keys() - found.keys():
            yield
            consumer.slow = ""
            if not consumer.unsubscribed:
                log.info("consumer not slow any more", subscription=consumer.name, destination=before[consumer][0])
        for consumer, (name, words) in list(found.items()):
            yield
            consumer.slow = words
            destination = self._registry().destinations.get(name)
            if consumer.unsubscribed or destination is None:
                continue
            disconnects = destination.policy.slow_consumer == "disconnect"
            if consumer not in before:
                self.found_count += 1
                log.warning(
                    "slow consumer",
                    subscription=consumer.name,
                    destination=name,
                    reason=words,
                    action="disconnect" if disconnects else "keep",
                )
            if disconnects:
                self.disconnected_count += 1
                consumer.give_up(_refusal(consumer, name, words))


def _watched(subscription: Subscription) -> Watched | None:
    consumer = subscription.consumer
    return consumer if isinstance(consumer, StompSubscription) else None


def _refusal(consumer: StompSubscription, destination: str, words: str) -> ProtocolError:
    error = ProtocolError(
        "slow-consumer",
        f"subscription {consumer.label} to {destination} is slow: {words}",
        "Acknowledge and read sooner, or ask for less credit. The policy of the destination (slow_consumer, "
        "slow_after_seconds, slow_per_second, slow_share) says when a consumer is disconnected.",
    )
    error.identify("SUBSCRIBE", {"id": consumer.subscription_id or "", "destination": destination})
    return error
