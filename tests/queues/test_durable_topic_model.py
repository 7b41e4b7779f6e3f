"""A topic with durable subscriptions, shared by several consumers, of one, and subscriptions without a name beside
them, against lists: what each of them must get, and may get.

The oracle keeps a list for each *reader* (a subscription without a name, or a durable one): every message that came in
since it began, that its selector takes, and where that is. A reader gets what waits for it in order, what came back
before anything later, each message in one hand at a time; it is marked and counted as often as it failed; never past
its date, before its time, or after it was settled, given up or lost. What is lost is said: to the consumers, and to
whoever follows the topic. Nothing that a reader needs leaves the topic. In the end each reader has had all the rest.

The topics are two, as of two priorities of one destination: consumers read both with one window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack
from enum import Enum
from typing import Any
from unittest.mock import patch

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluiceway.flow import ResidencyLimiter
from sluiceway.queues.delayed import backoff_ms
from sluiceway.queues.message import Message
from sluiceway.queues.observer import Fate
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.selectors import Selection, Selector, compile_selector
from sluiceway.queues.subscription import Subscription
from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.how_often import rounds
from tests.queues.rig import Delivery, FakeConsumer, Head, World, assert_exact, make_policy
from tests.store.rig import OfferingProducer, StoreWorld, tight

PRIORITIES = (4, 9)
SELECTORS = ("", "", "color = 'red'", "color <> 'red'", "color IS NULL")
POLICIES: list[dict[str, Any]] = [
    {},
    {"count_max": 6},
    {"full": "drop_oldest", "count_max": 6},
    {"full": "drop_oldest", "memory_bytes": 2500, "lead_bytes": 1 << 20},
    {"full": "drop_oldest", "bytes_max": 2000, "redelivery_delay_ms": 1000, "dead_letter": None},
    {"full": "block", "count_max": 8},
    {"full": "reject", "count_max": 8, "redeliveries_max": 0, "dead_letter": None},
    {"full": "drop_newest", "count_max": 8, "redeliveries_max": 1, "dead_letter": None},
    {"redelivery_delay_ms": 1000, "redelivery_backoff": 2.0, "redeliveries_max": 2, "dead_letter": None},
]
PAGING_POLICIES: list[dict[str, Any]] = [
    {"memory_bytes": 2500},
    {"memory_bytes": 2500, "paging": "throttle"},
    {"memory_bytes": 2500, "full": "drop_oldest", "bytes_max": 5000},
    {"memory_bytes": 2500, "full": "drop_oldest", "paging": "throttle"},
    {"memory_bytes": 2500, "full": "drop_oldest", "count_max": 12, "redelivery_delay_ms": 1000, "dead_letter": None},
    {"memory_bytes": 2500, "full": "block", "redeliveries_max": 1, "dead_letter": None},
]
LIMITS: list[dict[str, Any]] = [
    {"redeliveries_max": None},
    {"redeliveries_max": 0},
    {"redeliveries_max": 3, "redelivery_delay_ms": 500},
    {"redelivery_delay_ms": 0},
    {"expires_max_ms": 2000},
    {"expires_max_ms": None},
]
WHICH = st.integers(0, 7)
PLACES = st.sampled_from([0, 0, 1, 2, 0b110, 0b1011])


class Where(Enum):
    """Where a message is for one reader."""

    WAITS = 0
    HELD = 1
    DONE = 2
    """Settled, given up, or lost."""


@attrs.define(eq=False)
class Copy:
    """What one reader must know of one message."""

    sequence: int
    message: Message
    where: Where = Where.WAITS
    holder: FakeConsumer | None = None
    failed_count: int = 0
    due_ms: int = 0
    """It came back, and comes again then."""
    is_doubtful: bool = False
    """It had failed too often while another limit was in force, and may have been given up then."""
    is_lost: bool = False
    """The topic dropped it, perhaps out of the hands of its holder."""


class Reader:
    """What a subscription without a name or a durable one gets of one topic."""

    def __init__(self, topic: Topic, name: str, selector: Selector | None, *, shares: bool) -> None:
        self.topic = topic
        self.name = name
        self.selector = selector
        self.shares = shares
        self.copies: dict[int, Copy] = {}
        self.subscriptions: dict[FakeConsumer, Subscription] = {}
        """Those that are open."""
        self.all_subscriptions: list[Subscription] = []
        self.lost_count = 0
        """What consumers are to be told about."""

    def accepted(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            message = self.topic.elements.get(sequence)
            assert message is not None
            if self.selector is None or self.selector.takes(message):
                self.copies[sequence] = Copy(sequence, message)

    def missed(self, end: int) -> None:
        """All below this is lost. If nobody reads, nobody is told."""
        for copy in self.copies.values():
            if copy.sequence < end and copy.where is not Where.DONE and not copy.is_lost:
                copy.is_lost = True
                if copy.where is Where.WAITS:
                    copy.where = Where.DONE
                    self.lost_count += bool(self.subscriptions) and self.topic.elements.is_alive(copy.sequence)

    def of(self, where: Where) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.where is where]


class Party:
    """A consumer of both topics, with what it reads for."""

    def __init__(self, consumer: FakeConsumer, number: int | None, readers: dict[Topic, Reader]) -> None:
        self.consumer = consumer
        self.number = number
        """Of the durable subscription; None: it reads for itself."""
        self.readers = readers

    @property
    def shares(self) -> bool:
        return next(iter(self.readers.values())).shares

    def reader_of(self, delivery: Delivery) -> Reader:
        topic = delivery.subscription.queue
        assert isinstance(topic, Topic)
        return self.readers[topic]


class Follower:
    """Tells the machine what becomes of the messages of one topic. Satisfies Observer."""

    origin = None

    def __init__(self, machine: DurableTopicMachine, topic: MessageQueue) -> None:
        self._machine = machine
        self._topic = topic

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        self._machine.accepted(self._topic, first, end)

    def missed(self, by: str, first: int, end: int) -> None:
        self._machine.missed(self._topic, by, end)

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        assert fate is not Fate.EXPIRED or all(
            self._machine.is_past(message) for s in sequences if (message := self._topic.elements.get(s)) is not None
        )

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignore


class DurableTopicMachine(RuleBasedStateMachine):
    """See the module."""

    policies = POLICIES
    stores = False

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(patch("sluiceway.queues.pinned.PINNED_COUNT", 2))

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.everybody_gets_the_rest()
        finally:
            self.patches.close()

    @initialize(
        policy=st.integers(0, 99),
        budget=st.sampled_from([1, 30, 1024]),
        later=st.booleans(),
        at_once=st.sampled_from([1, 2, 16]),
        part=st.sampled_from([1, 2, 64]),
        block_bits=st.sampled_from([1, 2]),
        windows=st.lists(st.sampled_from([1, 1, 2, None]), max_size=5),
        sent_count=st.sampled_from([0, 4, 16]),
    )
    def start(
        self,
        policy: int,
        budget: int,
        later: bool,
        at_once: int,
        part: int,
        block_bits: int,
        windows: list[int | None],
        sent_count: int,
    ) -> None:
        """`windows`: of consumers that share durable subscription 5 from the beginning, beside one that keeps up."""
        for name, number in (
            ("waking.WOKEN_AT_ONCE", at_once),
            ("waking.WOKEN_PER_DISPATCH", part),
            ("lag.DROP_COUNT", part),
            ("block_readers.TOLD_AT_ONCE", part),
            ("lead.LED_AT_ONCE", part),
            ("pinned.LOOKED_AT_ONCE", part),
        ):
            self.patches.enter_context(patch(f"sluiceway.queues.{name}", number))
        self.patches.enter_context(tight(block_bits=block_bits, blocks_min=1))
        if self.stores:
            self.world: World = StoreWorld(MemoryEngine(), later=later, budget_count=budget)
        else:
            self.world = World(later=later, budget_count=budget)
        self.world.environment = attrs.evolve(self.world.environment, observer_of=lambda queue: Follower(self, queue))
        self.policy: QueuePolicy = make_policy(**self.policies[policy % len(self.policies)])
        self.readers: list[Reader] = []
        self.parties: list[Party] = []
        self.removed_counts: Counter[int] = Counter()
        self.gone: list[Party] = []
        """They shared a durable subscription, and hold something of it."""
        self.late: list[tuple[Reader, Subscription, list[int]]] = []
        """What consumers held that left a durable subscription of one consumer."""
        self.topics = [
            Topic(f"/topic/{priority}", self.policy, self.world.environment, priority=priority)
            for priority in PRIORITIES
        ]
        self.producers = [
            OfferingProducer(self.world, topic, on_refused=lambda _run: None) for topic in self.topics for _ in range(2)
        ]

        for window in windows:
            self._subscribe(self.world.consumer(window), 5, "")
        self._subscribe(self.world.consumer(auto=True), None, "")
        for number in range(sent_count):
            self.send(number % 4, 1, 300, 0, "", persistent=False)
            self._let_all_happen()

    def _let_all_happen(self) -> None:
        self.world.run()

    # ------------------------------------------------------------------ what the topics say

    def accepted(self, topic: MessageQueue, first: int, end: int) -> None:
        for reader in self._of(topic):
            reader.accepted(topic.elements.live_sequences(first, end))

    def missed(self, topic: MessageQueue, by: str, end: int) -> None:
        assert self.policy.full in (None, "drop_oldest"), "nobody loses what is in"
        [reader] = [
            reader
            for reader in self._of(topic)
            if reader.name == by or any(consumer.label == by for consumer in reader.subscriptions)
        ]
        assert reader.name[0] != "d" or self.policy.full == "drop_oldest", "what is durable is kept"
        reader.missed(end)

    def _of(self, topic: MessageQueue) -> list[Reader]:
        return [reader for reader in self.readers if reader.topic is topic]

    def is_past(self, message: Message) -> bool:
        return 0 < message.expires_at_ms <= self.world.now_ms

    # ------------------------------------------------------------------ what happens

    @rule(
        producer=st.integers(0, 3),
        count=st.integers(1, 4),
        wire_bytes=st.sampled_from([20, 20, 300]),
        ttl_ms=st.sampled_from([0, 0, 0, 1000, 3000]),
        color=st.sampled_from(["", "red", "red", "blue"]),
        persistent=st.booleans(),
    )
    def send(self, producer: int, count: int, wire_bytes: int, ttl_ms: int, color: str, persistent: bool) -> None:
        head = Head(ttl_ms=ttl_ms, color=color, persistent=persistent)
        self.producers[producer].send(self.world.messages(count, wire_bytes=wire_bytes, head=head))

    @precondition(lambda self: len(self.parties) < 9)
    @rule(
        number=st.sampled_from([None, 1, 2, 4, 5, 5, 5, 5, 5, 5]),
        window=st.sampled_from([1, 2, 3, None]),
        auto=st.sampled_from([False, False, False, True]),
        which_selector=st.integers(0, len(SELECTORS) - 1),
    )
    def subscribe(self, number: int | None, window: int | None, auto: bool, which_selector: int) -> None:
        """Durable subscriptions 4 and 5 are shared, and the others have one consumer at a time."""
        self._subscribe(self.world.consumer(window, auto=auto), number, SELECTORS[which_selector])

    def _subscribe(self, consumer: FakeConsumer, number: int | None, text: str) -> None:
        """`number`: of a durable subscription, which has another id each time that it is made."""
        shares = number is not None and number > 3
        if number is not None and not shares and any(party.number == number for party in self.parties):
            return
        durable_id = None if number is None else number + 10 * self.removed_counts[number]
        name = consumer.label if durable_id is None else f"durable subscription {durable_id}"
        readers = {reader.topic: reader for reader in self.readers if reader.name == name}
        if not readers:
            selector = compile_selector(text)
            readers = {topic: Reader(topic, name, selector, shares=shares) for topic in self.topics}
            self.readers += readers.values()
        party = Party(consumer, number, readers)
        consumer.on_delivery = lambda delivery: self._delivered(party, delivery)
        self.parties.append(party)
        for topic, reader in readers.items():
            selection = None if reader.selector is None else Selection(reader.selector)
            subscription = topic.subscribe(consumer, durable_id=durable_id, shares=shares, selection=selection)
            reader.subscriptions[consumer] = subscription
            reader.all_subscriptions.append(subscription)

    def _delivered(self, party: Party, delivery: Delivery) -> None:
        reader, message = party.reader_of(delivery), delivery.message
        copy = reader.copies.get(delivery.sequence)
        assert copy is not None, "not for this reader"
        assert copy.message.number == message.number
        assert party.consumer in reader.subscriptions, "a delivery after unsubscribe"
        assert copy.where is Where.WAITS, f"it is {copy.where}"
        assert not copy.is_lost
        assert not self.is_past(message)
        assert copy.due_ms <= self.world.now_ms, "before its time"
        assert delivery.attempts_count == copy.failed_count
        assert not self._is_spent(copy)
        before = [
            other.sequence
            for other in reader.of(Where.WAITS)
            if other.sequence < copy.sequence
            and not other.due_ms
            and not other.is_doubtful
            and not self._may_be_gone(other)
            and reader.topic.elements.is_alive(other.sequence)
        ]
        assert not before, f"{copy.sequence} is out of order: {before} come before it"
        copy.where, copy.holder = Where.HELD, party.consumer
        if party.consumer.auto:
            self._settled(copy)

    def _is_spent(self, copy: Copy) -> bool:
        most = self.policy.redeliveries_max
        return self.policy.dead_letter is None and most is not None and copy.failed_count > most

    def _may_be_gone(self, copy: Copy) -> bool:
        """Past its date, or given up, which is noticed when the reader comes to it."""
        return self.is_past(copy.message) or self._is_spent(copy) or copy.is_doubtful

    @staticmethod
    def _settled(copy: Copy) -> None:
        copy.where, copy.holder = Where.DONE, None

    @property
    def _holders(self) -> list[Party]:
        return [party for party in [*self.parties, *self.gone] if party.consumer.held]

    def _choose_held(self, which: int, places: int) -> tuple[Party, list[Delivery]]:
        """Some of what one of them holds: those whose bit is set in `places`; all if none is."""
        party = self._holders[which % len(self._holders)]
        held = party.consumer.held
        chosen = [delivery for place, delivery in enumerate(held) if places >> place & 1] or list(held)
        return party, sorted(chosen, key=lambda delivery: delivery.sequence)

    @precondition(lambda self: self._holders)
    @rule(which=WHICH, places=PLACES)
    def settle(self, which: int, places: int) -> None:
        self._settle(*self._choose_held(which, places))

    def _settle(self, party: Party, chosen: list[Delivery]) -> None:
        for delivery in chosen:
            self._settled(party.reader_of(delivery).copies[delivery.sequence])
        party.consumer.settle(chosen)

    @precondition(lambda self: self._holders)
    @rule(which=WHICH, places=PLACES, how=st.sampled_from(["not tried", "failed", "failed", "rejected"]))
    def requeue(self, which: int, places: int, how: str) -> None:
        party, chosen = self._choose_held(which, places)
        for delivery in chosen:
            reader = party.reader_of(delivery)
            copy = reader.copies[delivery.sequence]
            if copy.holder is party.consumer:  # or it was settled late
                self._given_back(reader, copy, how)
        party.consumer.requeue(chosen, attempted=how != "not tried", for_good=how == "rejected")

    def _given_back(self, reader: Reader, copy: Copy, how: str) -> None:
        copy.where, copy.holder = Where.WAITS, None
        if copy.is_lost:
            copy.where = Where.DONE
            reader.lost_count += 1
            return
        copy.failed_count += how != "not tried"
        if how == "rejected" and self.policy.dead_letter is None:
            copy.where = Where.DONE
        elif how != "not tried":
            if self._is_spent(copy):
                copy.where = Where.DONE
            elif self.policy.redelivery_delay_ms:
                copy.due_ms = self.world.now_ms + backoff_ms(self.policy, copy.failed_count)

    @precondition(lambda self: self.parties)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        self._leave(self.parties[which % len(self.parties)])

    def _leave(self, party: Party) -> None:
        """What one that shares holds stays with it; what the consumer of another durable one holds comes again."""
        self.parties.remove(party)
        consumer = party.consumer
        for reader in party.readers.values():
            subscription = reader.subscriptions.pop(consumer)
            held = [delivery.sequence for delivery in consumer.held if delivery.subscription is subscription]
            if not reader.shares:
                for sequence in held:
                    copy = reader.copies[sequence]
                    if copy.holder is consumer:
                        copy.where, copy.holder = (Where.DONE if copy.is_lost else Where.WAITS), None
                if party.number is not None:
                    self.late.append((reader, subscription, sorted(held)))
            subscription.close()
            if party.number is None:
                self.readers.remove(reader)
        if party.shares:
            self.gone.append(party)
        else:
            consumer.held = []

    @precondition(lambda self: self.late)
    @rule(which=WHICH, settles=st.booleans())
    def come_late(self, which: int, settles: bool) -> None:
        """A consumer that has left settles what it held, or gives it back. What it settles is done with."""
        reader, subscription, sequences = self.late.pop(which % len(self.late))
        if reader not in self.readers:
            settles = False
        if not settles:
            subscription.requeue(sequences, attempted=True)
            return
        for sequence in sequences:
            copy = reader.copies[sequence]
            if copy.where is not Where.DONE and not copy.is_lost:
                copy.where, copy.holder = Where.DONE, None
        subscription.settle(sequences, 0)

    @rule(number=st.integers(1, 5))
    def remove(self, number: int) -> None:
        """A durable subscription without consumers goes. What is held of it may still be settled, or given back."""
        durable_id = number + 10 * self.removed_counts[number]
        readers = [reader for reader in self.readers if reader.name == f"durable subscription {durable_id}"]
        if not readers or any(party.number == number for party in self.parties):
            return
        self.removed_counts[number] += 1
        for reader in readers:
            self.readers.remove(reader)
            for copy in reader.copies.values():
                copy.is_lost = True
        for topic in self.topics:
            topic.remove_reader(durable_id)

    @rule(limits=st.sampled_from(LIMITS))
    def reload(self, limits: dict[str, Any]) -> None:
        """What may change of a policy while the topic is there does."""
        self.policy = attrs.evolve(self.policy, **limits)
        for topic in self.topics:
            topic.policy = attrs.evolve(topic.policy, **limits)
        for reader in self.readers:
            for copy in reader.copies.values():
                copy.is_doubtful = copy.is_doubtful or self._is_spent(copy)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.now_seconds += seconds

    @rule()
    def turn(self) -> None:
        self.world.core.run_turn()

    @rule()
    def idle(self) -> None:
        self.world.run()

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def nothing_that_a_reader_needs_has_left(self) -> None:
        for reader in self.readers if hasattr(self, "world") else ():
            for copy in reader.copies.values():
                if copy.where is not Where.DONE and not copy.is_lost and not self._may_be_gone(copy):
                    assert reader.topic.elements.is_alive(copy.sequence), f"{reader.name} needs {copy.sequence}"

    @invariant()
    def all_is_accounted_for(self) -> None:
        for topic in self.topics if hasattr(self, "world") else ():
            limiter = topic.controller.limiter
            if isinstance(limiter, ResidencyLimiter):
                assert limiter.total_count == topic.elements.live_count
            else:
                assert_exact(topic)
            held = [d for party in [*self.parties, *self.gone] for d in party.consumer.held]
            assert topic.unsettled_count == sum(d.subscription.queue is topic for d in held)
            if not self._of(topic):
                assert not topic.elements.live_count

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if hasattr(self, "world") and self._is_idle:
            self._check_nothing_waits()

    @property
    def _is_idle(self) -> bool:
        return not self.world.core.has_work()

    def _check_nothing_waits(self) -> None:
        for topic in self.topics:
            for gate in (topic.controller, topic.lead.controller):
                assert gate.limiter.throttled or not gate.overflow_count
                assert gate.limiter.throttled or not gate.blocked_sources()
            assert not topic.chores.due
        for reader in self.readers:
            ready = [consumer for consumer in reader.subscriptions if consumer.has_credit]
            if not ready:
                continue
            for copy in reader.of(Where.WAITS):
                is_there = reader.topic.elements.is_alive(copy.sequence) and not self._may_be_gone(copy)
                assert not is_there or copy.due_ms > self.world.now_ms, f"{copy} waits for {reader.name}"

    def _settle_down(self) -> None:
        self.world.advance(100)

    def everybody_gets_the_rest(self) -> None:
        """All durable subscriptions have a consumer, and all settle what they hold, again and again."""
        self._settle_down()
        self._check_nothing_waits()
        for number in sorted({int(reader.name[-1]) for reader in self.readers if reader.name[0] == "d"}):
            if not any(party.number == number for party in self.parties):
                self._subscribe(self.world.consumer(), number, "")
        self._settle_down()
        while self._holders:
            for party in self._holders:
                self._settle(party, list(party.consumer.held))
            self._settle_down()
        self.all_is_accounted_for()
        for reader in self.readers:
            waiting = reader.of(Where.WAITS)
            left = [copy for copy in waiting if not self._may_be_gone(copy)]
            assert not left, f"{reader.name} never got {left}"
            is_doubtful = any(copy.is_doubtful for each in self.readers for copy in each.copies.values())
            if reader.selector is None and self.policy.full in (None, "drop_oldest") and not is_doubtful:
                self._check_what_was_told([each for each in self.readers if each.name == reader.name])
        for topic in self.topics:
            assert not topic.elements.live_count
            assert not topic.lead.controller.limiter.used_count
        assert not any(producer.is_blocked or producer.outbox for producer in self.producers)

    @staticmethod
    def _check_what_was_told(readers: list[Reader]) -> None:
        """Consumers are told together how much all of them have missed."""
        subscriptions = [subscription for reader in readers for subscription in reader.all_subscriptions]
        consumers = {subscription.consumer for subscription in subscriptions}
        told_count = sum(subscription.dropped_unreported_count for subscription in subscriptions)
        for consumer in consumers:
            assert isinstance(consumer, FakeConsumer)
            told_count += sum(consumer.dropped_counts)
        assert told_count == sum(reader.lost_count for reader in readers)


class PagingDurableTopicMachine(DurableTopicMachine):
    """The same with a store: what lags goes to the disk, and what is persistent is stored."""

    policies = PAGING_POLICIES
    stores = True

    @rule(read=st.booleans())
    def disk_does_one_thing(self, read: bool) -> None:
        assert isinstance(self.world, StoreWorld)
        self.world.worker.step(read=read)

    @rule()
    def disk_does_all(self) -> None:
        self._let_all_happen()

    def _let_all_happen(self) -> None:
        assert isinstance(self.world, StoreWorld)
        self.world.settle_down()

    @property
    def _is_idle(self) -> bool:
        assert isinstance(self.world, StoreWorld)
        return self.world.is_idle and self.world.is_flushed

    def _settle_down(self) -> None:
        assert isinstance(self.world, StoreWorld)
        self.world.flush(seconds=100)


def _ignore(*_arguments: object, **_options: object) -> None:
    """Not of interest."""


TestDurableTopic = pytest.mark.timeout(240)(DurableTopicMachine.TestCase)
TestPagingDurableTopic = pytest.mark.timeout(240)(PagingDurableTopicMachine.TestCase)
TestDurableTopic.settings = settings(max_examples=rounds(40), stateful_step_count=60)
TestPagingDurableTopic.settings = settings(max_examples=rounds(25), stateful_step_count=60)
