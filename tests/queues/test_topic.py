"""Topics: one copy for all, senders paced by the fastest subscriber, laggards that hurt only themselves."""

from __future__ import annotations

import pytest

from sluiceway.queues.full_actions import QueueFullError
from sluiceway.queues.slices import FAN_OUT_COUNT
from tests.queues.rig import CHARGE_BYTES, Producer, World, assert_exact, numbers


def test_every_subscriber_gets_every_message_in_order() -> None:
    world = World(budget_count=100)
    topic = world.topic()
    consumers = [world.consumer(window, auto=True) for window in (None, 1, 3, 1000)]
    for consumer in consumers:
        topic.subscribe(consumer)
    for _ in range(10):
        world.send(topic, 333)
        world.run()
    for consumer in consumers:
        assert consumer.numbers == list(range(3330))
        assert set(consumer.dropped_counts) == {0}
    assert topic.is_empty
    assert_exact(topic)


def test_subscribers_at_one_position_get_the_same_slice() -> None:
    """So that rendering it once serves all of them."""
    world = World()
    topic = world.topic()
    consumers = [world.consumer() for _ in range(10)]
    for consumer in consumers:
        topic.subscribe(consumer)
    world.send(topic, FAN_OUT_COUNT + 10)
    world.run()
    for consumer in consumers:
        assert [len(part) for part in consumer.slices] == [FAN_OUT_COUNT, 10]
        assert all(own is other for own, other in zip(consumer.slices, consumers[0].slices, strict=True))


def test_messages_are_kept_once_however_many_listen() -> None:
    world = World()
    topic = world.topic()
    for _ in range(10):
        topic.subscribe(world.consumer(1))
    world.send(topic, 100)
    world.run()
    assert topic.elements.live_count == 100
    assert topic.controller.limiter.used_bytes == 100 * CHARGE_BYTES
    assert world.manager.used_bytes == 100 * CHARGE_BYTES, "the lead counts the same messages, not more of them"


def test_a_message_that_nobody_hears_is_never_stored() -> None:
    world = World()
    topic = world.topic(full="block", count_max=2)
    producer = Producer(world, topic)
    for _ in range(5):
        producer.send(world.messages(3))
    assert not producer.is_blocked()
    assert (topic.unheard_count, topic.elements.next_sequence) == (15, 0)
    assert topic.offer(world.messages(1), 8, producer.source)
    assert topic.facts()["consumers"] == "none: messages are dropped unheard"


def test_a_newcomer_hears_only_what_is_sent_from_then_on() -> None:
    world = World()
    topic = world.topic()
    old, new = world.consumer(1), world.consumer()
    topic.subscribe(old)
    world.send(topic, 5)
    world.run()
    topic.subscribe(new)
    sent = world.send(topic, 2)
    world.run()
    assert new.numbers == numbers(sent)


def test_a_stalled_subscriber_does_not_stop_a_fast_one() -> None:
    """A hundred times the topic's memory passes; memory stays bounded, the fast one misses nothing."""
    world = World()
    topic = world.topic(memory_bytes=100 * CHARGE_BYTES)
    producer = Producer(world, topic)
    stalled, fast = world.consumer(5), world.consumer(auto=True)
    topic.subscribe(stalled)
    topic.subscribe(fast)
    for _ in range(1000):
        producer.send(world.messages(10))
        assert topic.controller.limiter.used_bytes <= 100 * CHARGE_BYTES
        world.run()
    assert fast.numbers == list(range(10_000))
    assert not producer.is_blocked()


def test_a_laggard_loses_the_oldest_and_is_told_exactly_how_many() -> None:
    world = World()
    topic = world.topic(count_max=100)
    slow, fast = world.consumer(5), world.consumer(auto=True)
    topic.subscribe(slow)
    topic.subscribe(fast)
    for _ in range(50):
        world.send(topic, 10)
        world.run()
    assert slow.held_numbers == [0, 1, 2, 3, 4]
    slow.settle()
    world.run()
    first_after_gap = slow.held_numbers[0]
    assert slow.dropped_counts == [0, first_after_gap - 5]
    assert 400 <= first_after_gap <= 410, "the newest hundred, less what is dropped ahead of need"
    assert topic.dropped_count == first_after_gap - 5
    slow.settle()
    world.run()
    assert slow.dropped_counts[-1] == 0, "told once"


def test_a_small_excess_in_count_does_not_empty_a_topic_with_room_in_bytes() -> None:
    """Regression: the slack in bytes was applied to a limit in messages, so one too many dropped all."""
    world = World()
    topic = world.topic(count_max=100)
    slow, fast = world.consumer(1), world.consumer(auto=True)
    topic.subscribe(slow)
    topic.subscribe(fast)
    for _ in range(101):
        world.send(topic, 1)
        world.run()
    assert topic.dropped_count <= 100 // 16 + 1


def test_the_sender_is_paced_by_the_fastest() -> None:
    world = World()
    topic = world.topic(lead_bytes=10 * CHARGE_BYTES)
    producer = Producer(world, topic)
    slow, fast = world.consumer(1), world.consumer(20)
    topic.subscribe(slow)
    topic.subscribe(fast)
    producer.send(*[world.messages(1) for _ in range(50)])
    world.run()
    assert fast.numbers == list(range(20))
    assert producer.is_blocked()
    assert topic.lead.controller.limiter.used_count == 10
    fast.settle()
    world.run()
    assert fast.numbers == list(range(40))
    assert producer.is_blocked() or not producer.outbox


def test_a_lone_stalled_subscriber_holds_the_sender_and_loses_nothing() -> None:
    world = World()
    topic = world.topic(memory_bytes=10 * CHARGE_BYTES)
    producer = Producer(world, topic)
    consumer = world.consumer(1)
    topic.subscribe(consumer)
    producer.send(*[world.messages(3) for _ in range(20)])
    while consumer.held or topic.elements.live_count or producer.outbox:
        world.run()
        assert consumer.held
        consumer.settle()
    assert consumer.numbers == list(range(60))
    assert topic.dropped_count == 0


def test_a_burst_larger_than_the_count_limit_reaches_a_subscriber_whole() -> None:
    """Regression: the head of a large run was dropped before anybody could have read it."""
    world = World()
    topic = world.topic(count_max=10)
    consumer = world.consumer(auto=True)
    topic.subscribe(consumer)
    world.send(topic, 100)
    world.run()
    assert len(consumer.numbers) == 100
    assert consumer.dropped_counts == [0]


@pytest.mark.parametrize("later", [False, True])
def test_when_the_last_subscriber_leaves_its_senders_go_on(later: bool) -> None:
    """What waited in front is unheard; nothing is stored for nobody, and the next subscriber starts afresh."""
    for full in ("block", "drop_oldest"):
        world = World(later=later)
        topic = world.topic(full=full, count_max=4)
        producer = Producer(world, topic)
        consumer = world.consumer(1)
        subscription = topic.subscribe(consumer)
        producer.send(*[world.messages(3) for _ in range(5)])
        world.run()
        assert producer.is_blocked()
        subscription.close()
        world.run()
        assert not producer.is_blocked() and not producer.outbox
        assert topic.is_empty
        assert_exact(topic)
        newcomer = world.consumer()
        topic.subscribe(newcomer)
        sent = world.send(topic, 2)
        world.run()
        assert newcomer.held_numbers == numbers(sent)


def test_the_lead_is_let_go_when_the_last_subscriber_leaves_that_was_behind() -> None:
    """The foremost leaves first; what came then lay ahead of the one that was behind, and of nobody when that left."""
    world = World(later=False)
    topic = world.topic()
    behind, foremost = world.consumer(1), world.consumer(2)
    subscriptions = [topic.subscribe(behind), topic.subscribe(foremost)]
    world.send(topic, 2)
    world.run()
    subscriptions[1].close()
    world.send(topic, 1)
    subscriptions[0].close()
    assert topic.lead.controller.limiter.used_count == 0
    assert topic.is_empty


def test_policy_block_waits_for_the_slowest() -> None:
    world = World()
    topic = world.topic(full="block", count_max=10)
    producer = Producer(world, topic)
    slow, fast = world.consumer(1), world.consumer(auto=True)
    topic.subscribe(slow)
    topic.subscribe(fast)
    producer.send(*[world.messages(1) for _ in range(30)])
    world.run()
    assert fast.numbers == list(range(10))
    assert producer.is_blocked()
    for _ in range(30):
        slow.settle()
        world.run()
    assert slow.numbers == fast.numbers == list(range(30))
    assert topic.dropped_count == 0


def test_policy_drop_newest_tells_every_subscriber() -> None:
    world = World()
    topic = world.topic(full="drop_newest", count_max=4)
    consumers = [world.consumer(1), world.consumer(2)]
    for consumer in consumers:
        topic.subscribe(consumer)
    world.send(topic, 7)
    world.run()
    for consumer in consumers:
        while consumer.held:
            consumer.settle()
            world.run()
        assert consumer.numbers == [0, 1, 2, 3]
        assert sum(consumer.dropped_counts) == 3


def test_policy_reject_refuses_when_the_slowest_lags() -> None:
    world = World()
    topic = world.topic(full="reject", count_max=4)
    topic.subscribe(world.consumer(1))
    world.send(topic, 4)
    world.run()
    with pytest.raises(QueueFullError):
        world.send(topic, 1)


def test_settling_out_of_order_lets_elements_go_as_soon_as_all_have_passed() -> None:
    world = World()
    topic = world.topic()
    one, two = world.consumer(), world.consumer()
    topic.subscribe(one)
    topic.subscribe(two)
    world.send(topic, 4)
    world.run()
    one.settle()
    two.settle(two.held[1:3])
    assert topic.elements.live_count == 4
    two.settle(two.held[:1])
    assert topic.elements.live_count == 1
    assert_exact(topic)


def test_what_is_settled_in_any_order_is_settled_and_nothing_else() -> None:
    world = World()
    topic = world.topic()
    consumer = world.consumer()
    topic.subscribe(consumer)
    world.send(topic, 8)
    world.run()
    held = consumer.held
    consumer.settle([held[5], held[0], held[7]])  # as far apart as they are many
    assert topic.elements.live_count == 7, "1 is the front"
    consumer.settle([delivery for delivery in consumer.held if delivery.sequence != 6])
    assert topic.elements.live_count == 2, "6 is the front"
    consumer.requeue()
    world.run()
    assert consumer.numbers[-1] == 6


def test_what_one_gives_back_comes_again_to_it_alone() -> None:
    world = World()
    topic = world.topic()
    one, two = world.consumer(), world.consumer()
    topic.subscribe(one)
    topic.subscribe(two)
    world.send(topic, 3)
    world.run()
    one.requeue(one.held[1:])
    world.send(topic, 1)
    world.run()
    assert one.numbers == [0, 1, 2, 1, 2, 3]
    assert [delivery.attempts_count for delivery in one.deliveries] == [0, 0, 0, 1, 1, 0]
    assert two.numbers == [0, 1, 2, 3]


def test_what_comes_back_after_the_topic_dropped_it_counts_as_missed() -> None:
    world = World()
    topic = world.topic(count_max=4)
    holder, fast = world.consumer(2), world.consumer(auto=True)
    topic.subscribe(holder)
    topic.subscribe(fast)
    for _ in range(8):
        world.send(topic, 1)
        world.run()
    assert holder.held_numbers == [0, 1]
    holder.requeue()
    world.run()
    assert holder.held_numbers == [4, 5]
    assert holder.dropped_counts[-1] == topic.dropped_count == 4


def test_a_deleted_topic_lets_everybody_go() -> None:
    """Also with runs that wait in front, and whatever way sources resume."""
    for later in (False, True):
        for full in ("block", "drop_oldest"):
            world = World(later=later)
            topic = world.topic(full=full, count_max=4)
            producer = Producer(world, topic)
            consumer = world.consumer(1)
            topic.subscribe(consumer)
            producer.send(world.messages(4))
            topic.add(world.messages(2), 16, None)
            world.run()
            assert producer.is_blocked()
            gone = topic.close_queue("over")
            assert gone == 6
            assert not producer.is_blocked()
            assert consumer.cancelled_for == ["over"]
            consumer.requeue()
            world.run()
            assert topic.controller.limiter.used_bytes == topic.lead.controller.limiter.used_bytes == 0
            assert topic.close_queue("again") == 0


def test_ten_thousand_subscribers_may_leave_in_any_order() -> None:
    """Each leaves in constant time: the ring and the list of those that caught up are keyed, not searched."""
    world = World()
    topic = world.topic()
    subscriptions = [topic.subscribe(world.consumer()) for _ in range(2000)]
    world.send(topic, 1)
    world.run()
    for subscription in subscriptions[::2] + subscriptions[1::2]:
        subscription.close()
    assert not topic.ring and not topic.distribution._caught_up
    assert topic.is_empty
