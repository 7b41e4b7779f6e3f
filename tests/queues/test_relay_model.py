"""Relays at random, in virtual time: selectors, groups, parts, priorities, dates, delays, dead letters, purges, pauses,
consumers that come, leave and fail. After each step a simple look over all elements says whether a sender may wait.

Rounds are seeded; a failing one is run alone with `-k` and its number.
"""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.cursors import Wait
from sluiceway.queues.message import Message
from sluiceway.queues.names import parse
from sluiceway.queues.partitioned import Attachment
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.shared import SharedDistribution
from sluiceway.queues.subscription import Subscription
from tests.how_often import rounds
from tests.queues.rig import Delivery, FakeConsumer, Head, World, assert_exact, make_policy
from tests.queues.test_redelivery_limits import GRAVE, rewrite
from tests.queues.test_relay import Sender
from tests.queues.test_seeking import selection

ROUNDS = rounds(40)
STEPS = 120
R = "/queue/r"
SELECTORS = (None, None, "color = 'red'", "color = 'blue'", "color IN ('red', 'blue')")


@attrs.define(eq=False)
class Guest:
    """A consumer and its attachment."""

    consumer: FakeConsumer
    attachment: Attachment
    selector: str | None
    exclusive: bool


class Life:
    """A relay, those who send and those who take."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        pick = self.random.choice
        self.world = World(later=pick([False, True]), budget_count=pick([8, 1024]))
        self.failures_max = pick([0, 1, 3])
        parts: dict[str, Any] = pick([{}, {"partition_by": "header:color", "partitions_count": 3}])
        usual = make_policy(
            kind="relay",
            redeliveries_max=self.failures_max,
            redelivery_delay_ms=pick([0, 0, 500]),
            redelivery_delay_max_ms=2000,
            dead_letter_expired=pick([True, False]),
            delayed_count_max=pick([2, 1000]),
            memory_bytes=pick([5_000, 1 << 20]),
            **parts,
        )
        policies = {GRAVE: make_policy(count_max=pick([1, 5, 1000]))}
        self.registry = DestinationRegistry(
            self.world.environment,
            lambda address: policies.get(address.canonical, usual),
            rewrite=rewrite,
            dead_letter_queues={GRAVE},
        )
        self.destination = self.registry.get(parse(R))
        self.destination.producers_count = 1
        self.senders: dict[MessageQueue, list[Sender]] = {}
        self.guests: list[Guest] = []
        self.left: list[FakeConsumer] = []
        """Those who take nothing more and may still hold something."""
        self.sent: dict[int, Message] = {}
        self.holders: dict[int, FakeConsumer] = {}
        self.marked: set[int] = set()
        """Those that a consumer had and gave back."""
        self.settled: set[int] = set()

    @property
    def queues(self) -> list[ConsumedQueue]:
        return [queue for queue in self.destination.queue.partitions.values() if isinstance(queue, ConsumedQueue)]

    # ------------------------------------------------------------------ what happens

    def step(self) -> None:
        acts = [self.send, self.send, self.send, self.join, self.ack, self.ack, self.nack, self.leave, self.die]
        act = self.random.choice([*acts, self.wait, self.purge, self.pause, self.dig])
        act()
        self.world.run()
        self.check()

    def send(self) -> None:
        choose = self.random.choice
        head = Head(
            destination=R,
            priority=choose([4, 4, 4, 7]),
            color=choose(["red", "blue", "green"]),
            group=choose([None, None, "a", "b"]),
            delay_ms=choose([0, 0, 0, 300]),
            ttl_ms=choose([0, 0, 0, 1500]),
        )
        messages = self.world.messages(self.random.randint(1, 4), wire_bytes=choose([8, 500]), head=head)
        self.sent.update({message.number: message for message in messages})
        queue = self.destination.partition_for(head)
        assert isinstance(queue, ConsumedQueue)
        senders = self.senders.setdefault(queue, [])
        if len(senders) < 2:
            senders.append(Sender(self.world, queue))
        choose(senders).send(messages)

    def join(self) -> None:
        if len(self.guests) < 4:
            choose = self.random.choice
            consumer = self.world.consumer(
                choose([1, 2, 5, None]), choose([None, 600]), auto=self.random.random() < 0.1
            )
            consumer.on_delivery = lambda delivery: self.delivered(consumer, delivery)
            selector = choose(SELECTORS)
            exclusive = self.random.random() < 0.15
            attachment = self.destination.queue.attach(
                consumer, exclusive=exclusive, selection=None if selector is None else selection(selector)
            )
            self.guests.append(Guest(consumer, attachment, selector, exclusive))

    def delivered(self, consumer: FakeConsumer, delivery: Delivery) -> None:
        number, attempts = delivery.number, consumer.slices[-1].attempts or {}
        assert number not in self.settled and number not in self.holders, "in one place at a time"
        assert (delivery.sequence in attempts) is (number in self.marked), "marked if it was delivered before"
        group = delivery.message.head.group
        if group is not None:
            others = [n for n, other in self.holders.items() if other is not consumer and self.group_of(n) == group]
            assert not others, "a group is in one consumer's hands"
        if consumer.auto:
            self.settled.add(number)
        else:
            self.holders[number] = consumer

    def group_of(self, number: int) -> str | None:
        return self.sent[number].head.group

    def some(self) -> tuple[FakeConsumer, list[Delivery]] | None:
        consumers = [*[guest.consumer for guest in self.guests], *self.left]
        holders = [consumer for consumer in consumers if consumer.held]
        if not holders:
            return None
        consumer = self.random.choice(holders)
        chosen = self.random.sample(consumer.held, self.random.randint(1, len(consumer.held)))
        return consumer, sorted(chosen, key=lambda delivery: delivery.sequence)

    def ack(self) -> None:
        if found := self.some():
            consumer, chosen = found
            self.settle(consumer, chosen)

    def settle(self, consumer: FakeConsumer, chosen: list[Delivery]) -> None:
        for delivery in chosen:
            del self.holders[delivery.number]
            self.settled.add(delivery.number)
        consumer.settle(chosen)

    def nack(self) -> None:
        if found := self.some():
            self.give_back(*found)

    def give_back(self, consumer: FakeConsumer, chosen: list[Delivery]) -> None:
        for delivery in chosen:
            del self.holders[delivery.number]
            self.marked.add(delivery.number)
        consumer.requeue(chosen)

    def leave(self) -> None:
        """Take no more, and keep what it holds."""
        if self.guests:
            guest = self.guests.pop(self.random.randrange(len(self.guests)))
            guest.attachment.close()
            self.left.append(guest.consumer)

    def die(self) -> None:
        """Give back all that it holds."""
        self.leave()
        if self.left:
            consumer = self.left.pop()
            self.give_back(consumer, sorted(consumer.held, key=lambda delivery: delivery.sequence))

    def wait(self) -> None:
        self.world.advance(self.random.choice([0.1, 0.5, 2.0]))

    def purge(self) -> None:
        for queue in self.queues:
            queue.removal.purge(0, queue.elements.next_sequence)

    def pause(self) -> None:
        if self.destination.is_paused:
            self.destination.unpause()
        elif self.random.random() < 0.3:
            self.destination.pause()

    def dig(self) -> None:
        """Empty the dead-letter queue."""
        undertaker = self.world.consumer(auto=True)
        attachment = self.registry.get(parse(GRAVE)).queue.attach(undertaker)
        self.world.run()
        attachment.close()

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        for queue in self.queues:
            assert_exact(queue)
            assert queue.unsettled_count == len(self.held_of(queue))
            self.check_senders(queue)
        self.check_parts()

    def held_of(self, queue: ConsumedQueue) -> list[Delivery]:
        consumers = [*[guest.consumer for guest in self.guests], *self.left]
        return [
            delivery for consumer in consumers for delivery in consumer.held if delivery.subscription.queue is queue
        ]

    def check_senders(self, queue: ConsumedQueue) -> None:
        """Nobody waits before an open gate, or before one that should be open."""
        intake = queue.intake
        waiting = any(sender.is_blocked() for sender in self.senders.get(queue, ()))
        assert waiting is intake.blocks_somebody
        if intake.controller.blocks_somebody:
            assert intake.controller.limiter.throttled
        assert intake.pace is not None
        if not intake.pace.blocks_somebody or queue.paused_since_seconds is not None:
            return
        for subscription in self.takers(queue):
            room_count, _room_bytes = subscription.consumer.room(subscription)
            assert not room_count or self.is_stuck(queue, subscription), f"{subscription.consumer.label} has room"

    def is_stuck(self, queue: ConsumedQueue, subscription: Subscription) -> bool:
        """Whether more wait for their time than the policy allows, or than a search remembers of groups."""
        assert isinstance(queue.distribution, SharedDistribution)
        search = queue.distribution.scan.searches.get(subscription)
        why = queue.states.cursor.waiting_for if search is None else search.waiting_for
        return why is Wait.CROWDED and queue.delayed_count >= queue.policy.delayed_count_max

    def takers(self, queue: ConsumedQueue) -> list[Subscription]:
        """Those who may have something of this queue now."""
        assert isinstance(queue.distribution, SharedDistribution)
        allows = queue.distribution._exclusivity.allows
        return [each for each in queue.subscriptions.values() if not each.closed and allows(each.consumer)]

    def check_parts(self) -> None:
        """While a consumer without a selector is there, each part has one, or the one before still holds something."""
        if self.destination.partitioning is None or not any(guest.selector is None for guest in self.guests):
            return
        parts: dict[int, list[ConsumedQueue]] = {}
        for queue in self.queues:
            parts.setdefault(queue.part, []).append(queue)
        for queues in parts.values():
            takers = {id(s.consumer) for queue in queues for s in queue.subscriptions.values() if s.selection is None}
            left = [
                delivery
                for queue in queues
                for delivery in self.held_of(queue)
                if delivery.subscription.closed and delivery.subscription.selection is None
            ]
            assert len(takers) == (0 if left else 1)

    def end(self) -> None:
        """All is consumed in the end: nobody waits for ever."""
        self.destination.unpause()
        while self.guests:
            self.die()
        for consumer in self.left:
            self.settle(consumer, sorted(consumer.held, key=lambda delivery: delivery.sequence))
        self.left.clear()
        last = self.world.consumer(auto=True)
        last.on_delivery = lambda delivery: self.delivered(last, delivery)
        self.destination.queue.attach(last)
        for _ in range(40):
            self.world.advance(1)
            self.dig()
        assert not [sender for senders in self.senders.values() for sender in senders if sender.is_blocked()]
        for queue in self.queues:
            assert queue.is_empty
        gone_count = sum([q.dropped_count + q.expired_count + q.dead_lettered_count for q in self.queues])
        if self.registry.policy_for(self.destination.address).dead_letter_expired:
            gone_count -= sum([q.expired_count for q in self.queues])
        assert len(self.settled) + gone_count == len(self.sent)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_nobody_waits_in_vain_and_nothing_comes_twice_unmarked(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.end()
