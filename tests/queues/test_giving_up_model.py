"""Delays, back-off, groups, dates, limits and dead letters all at once, at random: everything is somewhere, once.

Rounds are seeded; a failing one is run alone with `-k` and its number.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.how_often import rounds
from tests.queues.rig import Delivery, FakeConsumer
from tests.queues.test_redelivery_limits import GRAVE, Estate

ROUNDS = rounds(30)
STEPS = 120


class Life:
    """A queue that gives messages up, its dead-letter queue, and consumers that fail."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        pick = self.random.choice
        full = pick(["block", "dead_letter", "drop_oldest"])
        self.failures_max = pick([0, 1, 3])
        self.estate = Estate(
            grave={"count_max": pick([1, 5, 1000])},
            redeliveries_max=self.failures_max,
            redelivery_delay_ms=pick([0, 0, 500]),
            redelivery_delay_max_ms=2000,
            dead_letter_expired=pick([True, False]),
            delayed_count_max=pick([2, 1000]),
            full=full,
            count_max=pick([12, 1000]) if full != "block" else 1000,
        )
        self.consumers: list[FakeConsumer] = []
        self.sent: dict[int, int] = {}
        """By number: when it is due."""
        self.mortal: set[int] = set()
        """Those with a date: it comes before all else."""
        self.failures: dict[int, int] = {}
        self.settled: list[int] = []
        self.grave_numbers: list[int] = []

    def step(self) -> None:
        act = self.random.choice([self.send, self.send, self.join, self.ack, self.ack, self.nack, self.die, self.wait])
        act()
        self.estate.world.run()
        if self.random.random() < 0.15:
            self.dig()
        self.check()

    def send(self) -> None:
        choose = self.random.choice
        delay_ms = choose([0, 0, 300, 3000])
        ttl_ms = choose([0, 0, 0, 1500])
        for message in self.estate.world.send(
            self.estate.queue,
            self.random.randint(1, 6),
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            group=choose([None, None, "a", "b"]),
        ):
            self.sent[message.number] = self.estate.world.now_ms + delay_ms
            if ttl_ms:
                self.mortal.add(message.number)

    def join(self) -> None:
        if len(self.consumers) < 3:
            consumer = self.estate.consumer(window=self.random.choice([1, 4, None]))
            consumer.on_delivery = self.delivered
            self.consumers.append(consumer)

    def delivered(self, delivery: Delivery) -> None:
        assert self.estate.world.now_ms >= self.sent[delivery.number], "before its time"
        assert delivery.attempts_count == self.failures.get(delivery.number, 0)
        assert delivery.attempts_count <= self.failures_max
        self.check_group(delivery)

    def check_group(self, delivery: Delivery) -> None:
        """No message of the group that failed waits for its next attempt."""
        queue, group = self.estate.queue, delivery.message.head.group
        delayed = queue.states.delayed
        if group is None or delayed is None:
            return
        waiting = [s for s in queue.elements.live_sequences(0, queue.elements.next_sequence) if delayed.holds(s)]
        messages = [message for s in waiting if (message := queue.elements.get(s)) is not None]
        assert not [m for m in messages if m.head.group == group and m.number in self.failures]

    def some(self) -> tuple[FakeConsumer, list[Delivery]] | None:
        holders = [consumer for consumer in self.consumers if consumer.held]
        if not holders:
            return None
        consumer = self.random.choice(holders)
        return consumer, self.random.sample(consumer.held, self.random.randint(1, len(consumer.held)))

    def ack(self) -> None:
        if found := self.some():
            consumer, chosen = found
            chosen.sort(key=lambda delivery: delivery.sequence)
            self.settled += [delivery.number for delivery in chosen]
            consumer.settle(chosen)

    def nack(self) -> None:
        if found := self.some():
            consumer, chosen = found
            chosen.sort(key=lambda delivery: delivery.sequence)
            self.requeue(consumer, chosen, self.random.sample(chosen, self.random.randint(0, len(chosen))))

    def requeue(self, consumer: FakeConsumer, chosen: list[Delivery], failed: list[Delivery]) -> None:
        for delivery in failed:
            self.failures[delivery.number] = self.failures.get(delivery.number, 0) + 1
        consumer.held = [delivery for delivery in consumer.held if delivery not in chosen]
        consumer.window.release(len(chosen), sum(len(delivery.message.wire) for delivery in chosen))
        charged = sorted(delivery.sequence for delivery in failed)
        chosen[0].subscription.requeue([delivery.sequence for delivery in chosen], attempted=True, charged=charged)

    def die(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            held = sorted(consumer.held, key=lambda delivery: delivery.sequence)
            for subscription in [s for s in self.estate.queue.subscriptions.values() if s.consumer is consumer]:
                subscription.close()
            if held:
                self.requeue(consumer, held, held[:1])

    def wait(self) -> None:
        self.estate.world.advance(self.random.choice([0.1, 0.5, 2.0]))

    def dig(self) -> None:
        """Take out what lies in the dead-letter queue."""
        undertaker = self.estate.consumer(self.estate.grave, auto=True)
        self.estate.world.run()
        self.grave_numbers += undertaker.numbers
        (subscription,) = self.estate.grave.subscriptions.values()
        subscription.close()

    def check(self) -> None:
        queue = self.estate.queue
        self.estate.assert_exact()
        assert queue.unsettled_count == sum(len(consumer.held) for consumer in self.consumers)
        dead_count = len(self.grave_numbers)
        if GRAVE in self.estate.registry.destinations:
            dead_count += self.estate.grave.elements.live_count
        assert queue.dead_lettered_count == dead_count
        assert queue.settled_count == len(self.settled)
        gone_count = queue.settled_count + queue.dropped_count + queue.dead_lettered_count
        if not queue.policy.dead_letter_expired:
            gone_count += queue.expired_count
        assert len(self.sent) - gone_count == queue.elements.live_count

    def end(self) -> None:
        """All is consumed in the end: nobody waits for ever."""
        self.die()
        self.die()
        self.die()
        last = self.estate.consumer(auto=True)
        for _ in range(40):
            self.estate.world.advance(1)
            self.dig()
        self.settled += last.numbers
        assert self.estate.queue.elements.live_count == 0
        self.check()
        assert self.estate.queue.delayed_count == 0
        everywhere = self.settled + self.grave_numbers
        assert len(set(everywhere)) == len(everywhere), "something came twice"
        given_up = {number for number, count in self.failures.items() if count > self.failures_max}
        assert given_up - self.mortal <= set(self.grave_numbers)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_everything_is_somewhere_once(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.end()
