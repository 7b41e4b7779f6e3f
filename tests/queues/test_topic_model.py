"""Topics under any interleaving: exact accounting of both controllers, exact gaps, and nobody waits for nothing."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sluiceway.queues.cursored as cursored
from sluiceway.queues.delayed import backoff_ms
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.selectors import Selection, compile_selector
from sluiceway.queues.subscription import Subscription
from tests.how_often import rounds
from tests.queues.rig import CHARGE_BYTES, Delivery, FakeConsumer, Head, Producer, World, assert_exact, make_policy

PRODUCTION_BITS = cursored.BLOCK_BITS
POLICIES: list[dict[str, Any]] = [
    {"memory_bytes": 6 * CHARGE_BYTES},
    {"memory_bytes": 12 * CHARGE_BYTES, "lead_bytes": 3 * CHARGE_BYTES},
    {"count_max": 6},
    {"lead_bytes": 5 * CHARGE_BYTES},
    {"full": "drop_oldest", "bytes_max": 2 * CHARGE_BYTES},
    {"full": "block", "count_max": 6},
    {"full": "block", "memory_bytes": 6 * CHARGE_BYTES},
    {"full": "drop_newest", "count_max": 6},
    {"full": "reject", "memory_bytes": 6 * CHARGE_BYTES},
    {"count_max": 6, "redeliveries_max": 1, "dead_letter": None},
    {"full": "block", "count_max": 6, "redeliveries_max": 0, "dead_letter": None},
]

DELAYING_POLICIES: list[dict[str, Any]] = [
    {"redelivery_delay_ms": 1000, "redelivery_backoff": 2.0, "dead_letter": None} | policy
    for policy in (
        {},
        {"count_max": 4, "redeliveries_max": 2},
        {"memory_bytes": 6 * CHARGE_BYTES, "lead_bytes": 3 * CHARGE_BYTES},
        {"full": "block", "count_max": 6, "redeliveries_max": 1},
    )
]


class _Listener:
    """A subscriber and what it should know."""

    def __init__(
        self, consumer: FakeConsumer, subscription: Subscription, added_count: int, selection: Selection | None
    ) -> None:
        self.consumer = consumer
        self.selection = selection
        self.subscription = subscription
        self.added_before_count = added_count
        self.settled_count = 0
        self.highest = -1
        self.attempts: dict[int, int] = {}
        self.due_ms: dict[int, int] = {}
        """When what it gave back may come again."""


class TopicMachine(RuleBasedStateMachine):
    """See the module. Without expiry every gap must be a reported one."""

    def __init__(self) -> None:
        super().__init__()
        cursored.BLOCK_BITS = 2  # type: ignore[misc]

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.everybody_hears_the_rest()
        finally:
            cursored.BLOCK_BITS = PRODUCTION_BITS  # type: ignore[misc]

    @initialize(policy=st.sampled_from(POLICIES), later=st.booleans(), budget=st.sampled_from([1, 3, 1024]))
    def start(self, policy: dict[str, Any], later: bool, budget: int) -> None:
        self.world = World(later=later, budget_count=budget)
        self.policy: QueuePolicy = make_policy(**policy)
        self.topic = self.world.topic(**policy)
        self.drops_oldest = self.policy.full in (None, "drop_oldest")
        self.listeners: list[_Listener] = []
        self.rejected_count = self.given_up_count = 0
        self.sent_count = 0
        self.largest_run_count = 0
        self.producers = [Producer(self.world, self.topic, on_rejected=self._rejected) for _ in range(2)]

    runs_beside = 1

    def _rejected(self, count: int) -> None:
        self.rejected_count += count

    ttls_ms: tuple[int, ...] = (0,)
    selectors: tuple[str, ...] = ("",)

    @rule(producer=st.integers(0, 1), count=st.integers(1, 5), runs=st.integers(1, 3), data=st.data())
    def send(self, producer: int, count: int, runs: int, data: st.DataObject) -> None:
        for _ in range(runs):
            color = data.draw(st.sampled_from(["", "red", "blue"])) if len(self.selectors) > 1 else ""
            head = Head(ttl_ms=data.draw(st.sampled_from(self.ttls_ms)), color=color)
            self.sent_count += count
            self.largest_run_count = max(self.largest_run_count, count)
            self.producers[producer].send(self.world.messages(count, head=head))

    @precondition(lambda self: len(self.listeners) < 4)
    @rule(window=st.sampled_from([1, 2, 3, None]), auto=st.booleans(), which_selector=st.integers(0, 4))
    def subscribe(self, window: int | None, auto: bool, which_selector: int) -> None:
        consumer = self.world.consumer(window, auto=auto)
        added_count = self.topic.added_count
        selector = compile_selector(self.selectors[which_selector % len(self.selectors)])
        selection = None if selector is None else Selection(selector)
        listener = _Listener(consumer, self.topic.subscribe(consumer, selection=selection), added_count, selection)
        consumer.on_delivery = lambda delivery: self._delivered(listener, delivery)
        self.listeners.append(listener)

    def _delivered(self, listener: _Listener, delivery: Delivery) -> None:
        sequence = delivery.sequence
        assert listener.selection is None or listener.selection.selector.takes(delivery.message)
        assert delivery.attempts_count == listener.attempts.get(sequence, 0)
        assert sequence > listener.highest or sequence in listener.attempts, "in order, and again only when given back"
        listener.highest = max(listener.highest, sequence)
        if listener.consumer.auto:
            listener.settled_count += 1

    @precondition(lambda self: any(listener.consumer.held for listener in self.listeners))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        listener, chosen = self._choose_held(data)
        listener.settled_count += len(chosen)
        listener.consumer.settle(chosen)

    @precondition(lambda self: any(listener.consumer.held for listener in self.listeners))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        self._give_back(*self._choose_held(data))

    def _give_back(self, listener: _Listener, chosen: list[Delivery]) -> None:
        assert listener.subscription.cursor is not None
        front, most = listener.subscription.cursor.front, self.policy.redeliveries_max
        for delivery in chosen:
            count = listener.attempts[delivery.sequence] = listener.attempts.get(delivery.sequence, 0) + 1
            if self.policy.dead_letter is None and most is not None and count > most and delivery.sequence >= front:
                listener.settled_count += 1  # given up: it never comes again
                self.given_up_count += 1
            self._given_back(listener, delivery.sequence, count)
        listener.consumer.requeue(chosen)

    def _given_back(self, listener: _Listener, sequence: int, count: int) -> None:
        """It is about to be, for that many times."""

    def _choose_held(self, data: st.DataObject) -> tuple[_Listener, list[Delivery]]:
        listener = data.draw(st.sampled_from([listener for listener in self.listeners if listener.consumer.held]))
        held = listener.consumer.held
        places = data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, unique=True))
        return listener, sorted((held[place] for place in places), key=lambda delivery: delivery.sequence)

    @precondition(lambda self: self.listeners)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Late acknowledgements change nothing."""
        listener = data.draw(st.sampled_from(self.listeners))
        self.listeners.remove(listener)
        listener.subscription.close()
        listener.consumer.settle()

    @rule()
    def turn(self) -> None:
        self.world.core.run_turn()

    @rule()
    def idle(self) -> None:
        self.world.run()

    @invariant()
    def both_controllers_are_exact(self) -> None:
        if not hasattr(self, "world"):
            return
        topic = self.topic
        assert_exact(topic)
        lead_position = topic.lead.position
        foremost = max((x.subscription.cursor.position for x in self._open()), default=0)
        assert not topic.elements.count_live(lead_position, foremost), "only gaps lie between"
        ahead = topic.elements.count_live(lead_position, topic.elements.next_sequence)
        if self.drops_oldest:
            assert topic.lead.controller.limiter.used_count == ahead
            assert topic.lead.controller.limiter.used_bytes == ahead * CHARGE_BYTES
        else:
            assert topic.lead.controller.limiter.used_count == 0
        if not self.listeners:
            assert topic.elements.live_count == topic.lead.controller.limiter.used_count == 0
        assert topic.unsettled_count == sum(len(listener.consumer.held) for listener in self.listeners)

    @invariant()
    def memory_is_bounded_by_the_policy_and_one_run(self) -> None:
        if hasattr(self, "world"):
            limiter = self.topic.controller.limiter
            beside_count = self.largest_run_count * self.runs_beside
            assert limiter.used_bytes <= self.policy.limit_bytes + beside_count * CHARGE_BYTES
            assert limiter.used_count <= (self.policy.count_max or 1 << 60) + beside_count

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if hasattr(self, "world") and not self.world.core.has_work():
            self._check_nothing_waits()

    def _check_nothing_waits(self) -> None:
        for gate in (self.topic.controller, self.topic.lead.controller):
            assert gate.limiter.throttled or not gate.overflow_count
            assert gate.limiter.throttled or not gate.blocked_sources()
        for listener in self._open():
            cursor = listener.subscription.cursor
            assert not cursor.has_more or not listener.consumer.has_credit
            first = self.topic.elements.get(self.topic.elements.first_live(cursor.position))
            if listener.selection is not None and first is not None:
                assert listener.selection.selector.takes(first), "a laggard by what it does not take"

    def _open(self) -> list[Any]:
        return list(self.listeners)

    def _let_all_be_due(self) -> None:
        """Nothing waits for a time here."""

    def everybody_hears_the_rest(self) -> None:
        """All settle what they hold, again and again: each gets every message, but for those it was told it missed."""
        self.world.run()
        self._check_nothing_waits()
        self._let_all_be_due()
        while any(listener.consumer.held for listener in self.listeners):
            for listener in self.listeners:
                listener.settled_count += len(listener.consumer.held)
                listener.consumer.settle()
            self.world.run()
            self._let_all_be_due()
        self.both_controllers_are_exact()
        topic = self.topic
        assert topic.is_empty
        assert topic.elements.block_count == 0
        assert not any(producer.is_blocked() or producer.outbox for producer in self.producers)
        for listener in self.listeners:
            subscription = listener.subscription
            added_count = topic.added_count - listener.added_before_count
            told_count = sum(listener.consumer.dropped_counts) + subscription.dropped_unreported_count
            missed_count = told_count if self.drops_oldest else 0
            passed_count = 0 if listener.selection is None else listener.selection.passed_count
            unheard_count = added_count - listener.settled_count - missed_count - passed_count
            assert 0 <= unheard_count <= topic.expired_count
        lost_count = 0 if self.drops_oldest else topic.dropped_count - self.given_up_count
        assert self.sent_count == topic.added_count + topic.unheard_count + self.rejected_count + lost_count


class ExpiringTopicMachine(TopicMachine):
    """The same with dates: what is past its date is there only in somebody's hands, and is never handed out."""

    ttls_ms = (0, 0, 1000, 3000)

    def _delivered(self, listener: _Listener, delivery: Delivery) -> None:
        assert not 0 < delivery.message.expires_at_ms <= self.world.now_ms
        super()._delivered(listener, delivery)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.now_seconds += seconds

    def _check_nothing_waits(self) -> None:
        super()._check_nothing_waits()
        held = {delivery.sequence for listener in self.listeners for delivery in listener.consumer.held}
        for listener in self._open():
            held |= listener.subscription.cursor.withdrawn
        for sequence in range(self.topic.elements.next_sequence):
            message = self.topic.elements.get(sequence)
            if message is not None and 0 < message.expires_at_ms <= self.world.now_ms:
                assert sequence in held, "past its date and in nobody's hands"
        assert self.topic.overdue.sequences <= held


class SelectingTopicMachine(ExpiringTopicMachine):
    """With selectors: each gets what it takes, and is never behind by what it does not."""

    selectors = ("", "color = 'red'", "color = 'blue'", "color IS NULL", "color <> 'red'")

    def __init__(self) -> None:
        super().__init__()
        self._patch = patch("sluiceway.queues.pinned.PINNED_COUNT", 2)
        self._patch.start()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._patch.stop()


class SteppingTopicMachine(SelectingTopicMachine):
    """Room is made subscriber by subscriber, in later dispatches and as more comes in."""

    runs_beside = 4
    """One goes in before anybody is moved on, and one for each time that this is not over when the next comes."""

    def __init__(self) -> None:
        super().__init__()
        self._steps_patch = patch("sluiceway.queues.lag.DROP_COUNT", 1)
        self._steps_patch.start()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._steps_patch.stop()


class DelayingTopicMachine(ExpiringTopicMachine):
    """What a subscriber refuses comes again to it when its time has come, not before; others don't notice."""

    @initialize(policy=st.sampled_from(DELAYING_POLICIES), later=st.booleans(), budget=st.sampled_from([1, 3, 1024]))
    def start(self, policy: dict[str, Any], later: bool, budget: int) -> None:
        super().start(policy, later, budget)

    def _delivered(self, listener: _Listener, delivery: Delivery) -> None:
        assert listener.due_ms.pop(delivery.sequence, 0) <= self.world.now_ms
        super()._delivered(listener, delivery)

    @rule()
    def refuse_all(self) -> None:
        """So that much waits at the same time, and the topic has to drop some of it."""
        self.world.run()
        for listener in self.listeners:
            if listener.consumer.held:
                self._give_back(listener, sorted(listener.consumer.held, key=lambda delivery: delivery.sequence))

    def _given_back(self, listener: _Listener, sequence: int, count: int) -> None:
        listener.due_ms[sequence] = self.world.now_ms + backoff_ms(self.policy, count)

    @invariant()
    def what_waits_is_known_exactly(self) -> None:
        """No element of the topic waits unseen, and nothing is remembered of one that has left."""
        for listener in self.listeners if hasattr(self, "world") else ():
            cursor = listener.subscription.cursor
            assert cursor is not None
            refusals = self.topic.refusals.get(cursor)
            assert cursor.withdrawn == {s for s in cursor.withdrawn if self.topic.elements.is_alive(s)}
            assert len(cursor.withdrawn) == (0 if refusals is None else refusals.waiting_count)
            assert not any(cursor.is_given_back(s) or not cursor.front <= s < cursor.position for s in cursor.withdrawn)

    def _check_nothing_waits(self) -> None:
        super()._check_nothing_waits()
        for listener in self._open():
            assert all(listener.due_ms[s] > self.world.now_ms for s in listener.subscription.cursor.withdrawn)

    def _let_all_be_due(self) -> None:
        self.world.advance(100)


# A few seconds as a rule; on a loaded machine a minute is soon over.
TestTopic = pytest.mark.timeout(240)(TopicMachine.TestCase)
TestExpiringTopic = pytest.mark.timeout(240)(ExpiringTopicMachine.TestCase)
TestDelayingTopic = pytest.mark.timeout(240)(DelayingTopicMachine.TestCase)
TestSelectingTopic = pytest.mark.timeout(240)(SelectingTopicMachine.TestCase)
TestSteppingTopic = pytest.mark.timeout(240)(SteppingTopicMachine.TestCase)
TestSelectingTopic.settings = TestSteppingTopic.settings = settings(max_examples=rounds(30), stateful_step_count=50)
TestTopic.settings = TestExpiringTopic.settings = TestDelayingTopic.settings = settings(
    max_examples=rounds(40), stateful_step_count=50
)
