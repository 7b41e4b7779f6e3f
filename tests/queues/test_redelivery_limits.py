"""What fails is tried again so often, after so long; then it is given up. What just lay beside it is not charged."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.delayed import backoff_ms
from sluiceway.queues.message import Envelope, Message
from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.queue import MessageQueue
from sluiceway.queues.registry import DestinationRegistry
from tests.queues.rig import FakeConsumer, Head, Producer, World, assert_exact, numbers

GRAVE = "/queue/dead-letters"
NAME = "/queue/a"


@attrs.frozen
class Rewritten(Head):
    """A head that shows what was changed in it."""

    changes: Mapping[str, str | None] = attrs.field(factory=dict, hash=False)


def rewrite(message: Message, changes: Mapping[str, str | None]) -> tuple[Envelope, bytes]:
    assert isinstance(message.head, Head)
    head = Rewritten(destination=str(changes["destination"]), priority=message.head.priority, changes=dict(changes))
    return head, message.wire


class Estate:
    """A registry in which queues give messages up."""

    def __init__(self, *, destinations_max: int = 100, grave: Mapping[str, object] | None = None, **policy: object):
        self.world = World()
        policies = {GRAVE: QueuePolicy(**(grave or {}))}  # type: ignore[arg-type]
        usual = QueuePolicy(**policy)  # type: ignore[arg-type]
        self.registry = DestinationRegistry(
            self.world.environment,
            lambda address: policies.get(address.canonical, usual),
            destinations_max=destinations_max,
            rewrite=rewrite,
            dead_letter_queues={GRAVE, *([usual.dead_letter] if usual.dead_letter else [])},
        )
        self.queue = self.queue_of(NAME)

    def queue_of(self, name: str, priority: int = 4) -> ConsumedQueue:
        queue = self.registry.get(parse(name)).queue.partition(priority)
        assert isinstance(queue, ConsumedQueue)
        return queue

    @property
    def grave(self) -> ConsumedQueue:
        return self.queue_of(GRAVE)

    def consumer(self, queue: MessageQueue | None = None, window: int | None = None, **options: bool) -> FakeConsumer:
        consumer = self.world.consumer(window, **options)
        (queue or self.queue).subscribe(consumer)
        self.world.run()
        return consumer

    def send(self, count: int = 1, **head: object) -> list[Message]:
        messages = self.world.send(self.queue, count, **head)
        self.world.run()
        return messages

    def fail(self, consumer: FakeConsumer, times: int = 1) -> None:
        """Give the first that it holds back, charged, so often."""
        for _ in range(times):
            consumer.requeue(consumer.held[:1])
            self.world.run()

    def buried(self) -> list[Rewritten]:
        """The heads in the dead-letter queue, all taken out of it."""
        consumer = self.consumer(self.grave, auto=True)
        heads = [delivery.message.head for delivery in consumer.deliveries]
        (subscription,) = self.grave.subscriptions.values()
        subscription.close()
        assert all(isinstance(head, Rewritten) for head in heads)
        return heads  # type: ignore[return-value]

    def assert_exact(self) -> None:
        for destination in self.registry.destinations.values():
            for queue in destination.queues:
                assert_exact(queue)


# ---------------------------------------------------------------------- the limit


def test_message_is_dead_lettered_after_so_many_redeliveries() -> None:
    """`redeliveries_max` 2: three deliveries, then it is given up, with its story in the headers."""
    estate = Estate(redeliveries_max=2)
    consumer = estate.consumer()
    (message,) = estate.send()
    estate.fail(consumer, 2)
    assert [d.attempts_count for d in consumer.deliveries] == [0, 1, 2]
    assert consumer.held_numbers == [message.number]
    estate.fail(consumer)
    assert consumer.held == []
    assert estate.queue.elements.live_count == 0
    assert estate.queue.dead_lettered_count == estate.queue.statistics().dead_lettered_count == 1
    (head,) = estate.buried()
    assert head.changes["dead-letter-reason"] == "redeliveries"
    assert head.changes["dead-letter-destination"] == NAME
    assert head.changes["dead-letter-count"] == "3"
    assert head.changes["dead-letter-time"] == str(estate.world.now_ms)
    assert head.destination == GRAVE
    estate.assert_exact()


def test_redeliveries_max_zero_means_one_delivery() -> None:
    estate = Estate(redeliveries_max=0)
    consumer = estate.consumer()
    estate.send()
    estate.fail(consumer)
    assert len(consumer.deliveries) == 1
    assert len(estate.buried()) == 1


def test_redeliveries_max_none_means_for_ever() -> None:
    estate = Estate(redeliveries_max=None)
    consumer = estate.consumer()
    estate.send()
    estate.fail(consumer, 100)
    assert len(consumer.held) == 1


def test_default_is_twenty_redeliveries() -> None:
    estate = Estate()
    consumer = estate.consumer()
    estate.send()
    estate.fail(consumer, 20)
    assert len(consumer.deliveries) == 21
    estate.fail(consumer)
    assert len(consumer.deliveries) == 21
    assert estate.queue.dead_lettered_count == 1


def test_what_is_given_up_without_a_dead_letter_queue_is_dropped_and_counted() -> None:
    estate = Estate(redeliveries_max=0, dead_letter=None)
    consumer = estate.consumer()
    estate.send(3)
    consumer.requeue()
    estate.world.run()
    assert consumer.held == []
    assert (estate.queue.dropped_count, estate.queue.dead_lettered_count) == (3, 0)
    assert GRAVE not in estate.registry.destinations
    estate.assert_exact()


def test_dead_letter_queue_gives_nothing_up() -> None:
    """No loops: also not between two queues that name each other, whatever their policies say."""
    estate = Estate(redeliveries_max=0, grave={"redeliveries_max": 0, "dead_letter": "/queue/b"})
    consumer = estate.consumer()
    estate.send()
    estate.fail(consumer)
    undertaker = estate.consumer(estate.grave)
    estate.fail(undertaker, 30)
    assert len(undertaker.held) == 1
    assert estate.grave.dead_lettered_count == estate.grave.dropped_count == 0


def test_queue_without_a_router_gives_nothing_up() -> None:
    """A queue on its own has nowhere to send them to, and loses nothing."""
    world = World()
    queue = world.shared(redeliveries_max=0)
    consumer = world.consumer()
    queue.subscribe(consumer)
    world.send(queue)
    world.run()
    consumer.requeue()
    world.run()
    assert len(consumer.held) == 1


def test_priority_is_kept() -> None:
    estate = Estate(redeliveries_max=0)
    urgent = estate.queue_of(NAME, 9)
    consumer = estate.consumer(urgent)
    estate.world.send(urgent, priority=9)
    estate.world.run()
    estate.fail(consumer)
    assert estate.queue_of(GRAVE, 9).elements.live_count == 1


# ---------------------------------------------------------------------- poison and innocents


def test_only_what_is_named_is_charged() -> None:
    """The others come back marked as seen, and their count does not grow however often that happens."""
    estate = Estate(redeliveries_max=3)
    consumer = estate.consumer()
    sent = estate.send(4)
    (subscription,) = estate.queue.subscriptions.values()
    for failures in (1, 2, 3):
        sequences = [d.sequence for d in consumer.held]
        consumer.held.clear()
        consumer.window.release(4, 32)
        subscription.requeue(sequences, attempted=True, charged=sequences[:1])
        estate.world.run()
        assert [d.attempts_count for d in consumer.held] == [failures, 0, 0, 0]
        assert consumer.slices[-1].attempts == {0: failures, 1: 0, 2: 0, 3: 0}
    assert consumer.held_numbers == numbers(sent)


def test_poison_goes_and_innocents_stay() -> None:
    """A consumer that dies with each batch, at the same message: that one is given up after its redeliveries, and
    nothing else, though all were handed over as often.
    """
    estate = Estate(redeliveries_max=5)
    sent = estate.send(10)
    poison = sent[3].number
    done: list[int] = []
    for _ in range(40):
        consumer = estate.consumer(window=6)
        (subscription,) = estate.queue.subscriptions.values()
        while consumer.held and consumer.held[0].number != poison:
            done.append(consumer.held[0].number)
            consumer.settle(consumer.held[:1])
            estate.world.run()
        subscription.close()
        left = [d.sequence for d in consumer.held]
        if left:
            subscription.requeue(left, attempted=True, charged=left[:1])
    assert done == [message.number for message in sent if message.number != poison]
    (head,) = estate.buried()
    assert head.changes["dead-letter-count"] == "6"


def test_what_was_never_handed_over_is_neither_charged_nor_marked() -> None:
    estate = Estate(redeliveries_max=1)
    consumer = estate.consumer()
    estate.send(2)
    for _ in range(5):
        consumer.requeue(attempted=False)
        estate.world.run()
    assert consumer.slices[-1].attempts is None
    assert estate.queue.dead_lettered_count == 0


# ---------------------------------------------------------------------- back-off


@pytest.mark.parametrize(
    ("count", "expected_ms"), [(1, 100), (2, 300), (3, 900), (4, 1000), (5, 1000), (100_000, 1000)]
)
def test_back_off_grows_up_to_its_cap(count: int, expected_ms: int) -> None:
    policy = QueuePolicy(redelivery_delay_ms=100, redelivery_backoff=3.0, redelivery_delay_max_ms=1000)
    assert backoff_ms(policy, count) == expected_ms


def test_cap_below_the_first_delay_does_not_shorten_it() -> None:
    assert backoff_ms(QueuePolicy(redelivery_delay_ms=5000, redelivery_delay_max_ms=1000), 1) == 5000


def test_what_failed_waits_and_later_ones_pass_it() -> None:
    estate = Estate(redelivery_delay_ms=1000, redelivery_backoff=2.0)
    consumer = estate.consumer(window=1)
    first, second = numbers(estate.send(2))
    estate.fail(consumer)
    assert consumer.held_numbers == [second]
    assert estate.queue.delayed_count == 1
    consumer.settle()
    estate.world.advance(0.999)
    assert consumer.held == []
    estate.world.advance(0.001)
    assert (consumer.held_numbers, consumer.held[0].attempts_count) == ([first], 1)
    estate.fail(consumer)
    estate.world.advance(1.999)
    assert consumer.held == []
    estate.world.advance(0.001)
    assert (consumer.held_numbers, consumer.held[0].attempts_count) == ([first], 2)
    assert estate.queue.delayed_count == 0
    estate.assert_exact()


def test_innocents_do_not_wait() -> None:
    estate = Estate(redelivery_delay_ms=1000)
    consumer = estate.consumer()
    sent = estate.send(3)
    (subscription,) = estate.queue.subscriptions.values()
    held, consumer.held = consumer.held, []
    subscription.requeue([d.sequence for d in held], attempted=True, charged=[held[1].sequence])
    estate.world.run()
    assert consumer.held_numbers == [sent[0].number, sent[2].number]


def test_what_waits_to_be_tried_again_holds_its_group_back() -> None:
    estate = Estate(redelivery_delay_ms=1000)
    consumer = estate.consumer(window=1)
    first, second = numbers(estate.send(2, group="g"))
    estate.fail(consumer)
    assert consumer.held_numbers == []
    estate.world.advance(1)
    assert consumer.held_numbers == [first]
    consumer.settle()
    estate.world.run()
    assert consumer.held_numbers == [second]


# ---------------------------------------------------------------------- other reasons


def test_expired_go_there_if_the_policy_says_so() -> None:
    """Ahead of the cursor, in a consumer's hands, and given back."""
    estate = Estate(dead_letter_expired=True)
    consumer = estate.consumer(window=2)
    estate.send(4, ttl_ms=1000)
    estate.world.advance(1.5)
    assert estate.queue.dead_lettered_count == 2
    consumer.requeue()
    estate.world.run()
    assert estate.queue.elements.live_count == 0
    assert (estate.queue.dead_lettered_count, estate.queue.expired_count) == (4, 4)
    assert {head.changes["dead-letter-reason"] for head in estate.buried()} == {"expired"}
    estate.assert_exact()


def test_expired_are_just_dropped_by_default() -> None:
    estate = Estate()
    estate.send(4, ttl_ms=1000)
    estate.world.advance(1.5)
    assert estate.queue.expired_count == 4
    assert GRAVE not in estate.registry.destinations


def test_full_dead_letter_moves_the_oldest_that_nobody_holds() -> None:
    estate = Estate(full="dead_letter", count_max=3)
    consumer = estate.consumer(window=1)
    sent = numbers(estate.send(3))
    more = numbers(estate.send(2))
    assert consumer.held_numbers == sent[:1]
    assert estate.queue.dead_lettered_count == 2
    heads = estate.buried()
    assert [head.changes["dead-letter-reason"] for head in heads] == ["full", "full"]
    (subscription,) = estate.queue.subscriptions.values()
    subscription.close()
    consumer.requeue(attempted=False)
    rest = estate.consumer()
    assert rest.held_numbers == [sent[0], *more]
    estate.assert_exact()


def test_full_dead_letter_takes_from_group_lines_too() -> None:
    estate = Estate(full="dead_letter", count_max=3)
    consumer = estate.consumer(window=1)
    estate.send(3, group="g")
    estate.send(1, group="g")
    assert estate.queue.dead_lettered_count == 1
    assert len(consumer.held) == 1
    estate.assert_exact()


def test_full_dead_letter_without_a_dead_letter_queue_drops() -> None:
    estate = Estate(full="dead_letter", count_max=2, dead_letter=None)
    estate.send(2)
    estate.send(1)
    assert (estate.queue.dropped_count, estate.queue.elements.live_count) == (1, 2)


# ---------------------------------------------------------------------- a dead-letter queue that is full


def test_full_dead_letter_queue_holds_back_and_loses_nothing() -> None:
    """What is given up stays in its queue, out of everybody's way, until there is room."""
    estate = Estate(redeliveries_max=0, grave={"count_max": 2})
    consumer = estate.consumer()
    sent = estate.send(5)
    consumer.requeue()
    estate.world.run()
    assert consumer.held == []
    assert estate.grave.elements.live_count == 2
    assert estate.queue.elements.live_count == 3
    assert estate.queue.facts()["dead letters that wait"] == 3
    (late,) = estate.send()
    assert consumer.held_numbers == [late.number]
    undertaker = estate.consumer(estate.grave, auto=True)
    estate.world.run()
    assert undertaker.numbers == numbers(sent)
    assert estate.queue.dead_lettered_count == 5
    assert estate.queue.elements.live_count == 1
    estate.assert_exact()


def test_what_waits_for_the_dead_letter_queue_is_not_expired_twice() -> None:
    estate = Estate(dead_letter_expired=True, grave={"count_max": 1})
    estate.send(4, ttl_ms=1000)
    estate.world.advance(2)
    estate.world.advance(10)
    assert estate.queue.expired_count == 4
    assert estate.queue.elements.live_count == 3
    consumer = estate.consumer()
    assert consumer.deliveries == []
    estate.consumer(estate.grave, auto=True)
    assert estate.queue.elements.live_count == 0
    assert estate.queue.dead_lettered_count == 4


def test_senders_wait_while_full_messages_can_not_move() -> None:
    """Policy `dead_letter` with a full dead-letter queue: back pressure, through it, to the senders."""
    estate = Estate(full="dead_letter", count_max=2, grave={"count_max": 1})

    class Offering(Producer):
        def _pump(self) -> None:
            while self.outbox and not self.source.blocked:
                run = self.outbox[0]
                if not estate.queue.offer(run, sum(len(m.wire) for m in run), self.source):
                    return
                self.outbox.popleft()

    producer = Offering(estate.world, estate.queue)
    producer.send(*[estate.world.messages(1) for _ in range(10)])
    estate.world.run()
    assert producer.is_blocked()
    taken = estate.queue.added_count
    assert 3 <= taken < 10
    undertaker = estate.consumer(estate.grave, auto=True)
    estate.world.run()
    assert not producer.is_blocked()
    assert len(undertaker.deliveries) == 8
    assert estate.queue.elements.live_count == 2
    estate.assert_exact()


def test_dead_letter_queue_that_can_not_be_made_is_tried_again() -> None:
    estate = Estate(redeliveries_max=0, destinations_max=1)
    consumer = estate.consumer()
    estate.send()
    estate.fail(consumer)
    assert estate.queue.elements.live_count == 1
    assert "destinations" in str(estate.queue.facts()["because"])
    estate.registry.destinations_max = 2
    estate.world.advance(1.1)
    assert estate.queue.elements.live_count == 0
    assert len(estate.buried()) == 1


def test_deleting_a_queue_with_dead_letters_that_wait_lets_all_go() -> None:
    estate = Estate(redeliveries_max=0, grave={"count_max": 1})
    consumer = estate.consumer()
    estate.send(3)
    consumer.requeue()
    estate.world.run()
    estate.registry.delete(estate.registry.destinations[NAME], "a test")
    estate.consumer(estate.grave, auto=True)
    estate.world.advance(5)
    assert estate.grave.elements.live_count == 0


@pytest.mark.parametrize("name", ["/topic/x", "/queue/a.*", "/queue/a,/queue/b", "/temp-queue/x", ""])
def test_dead_letters_go_to_one_plain_queue(name: str) -> None:
    with pytest.raises(ValueError, match="dead_letter"):
        QueuePolicy(dead_letter=name)


@pytest.mark.parametrize(
    "fields",
    [
        {"redeliveries_max": -1},
        {"redelivery_delay_ms": -1},
        {"redelivery_backoff": 0.5},
        {"redelivery_backoff": float("nan")},
        {"redelivery_delay_max_ms": 0},
        {"delayed_count_max": 0},
    ],
)
def test_limits_that_make_no_sense_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        QueuePolicy(**fields)  # type: ignore[arg-type]
