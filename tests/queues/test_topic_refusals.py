"""What a subscriber of a topic refuses, when the topic drops, expires or is left meanwhile."""

from __future__ import annotations

import pytest

from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.queues.rig import FakeConsumer, assert_exact, make_policy
from tests.queues.test_redelivery_limits import GRAVE, Estate, rewrite
from tests.store.rig import WIRE_BYTES, StoreWorld, tight

T = "/topic/a"


class News(Estate):
    """A topic whose subscribers give up what they refuse, by default after the first time."""

    def __init__(self, *, grave: dict[str, object] | None = None, **policy: object) -> None:
        super().__init__(grave=grave, **({"redeliveries_max": 0, "dead_letter": GRAVE} | policy))
        topic = self.registry.get(parse(T)).queue.partition(4)
        assert isinstance(topic, Topic)
        self.topic = topic

    def hear(self, durable_id: int | None = None, window: int | None = None, *, auto: bool = False) -> FakeConsumer:
        consumer = self.world.consumer(window, auto=auto)
        self.topic.subscribe(consumer, durable_id=durable_id)
        return consumer

    def tell(self, count: int = 1, **head: object) -> None:
        self.world.send(self.topic, count, **head)
        self.world.run()

    @property
    def waiting_count(self) -> int:
        """Dead letters that wait, by what the topic says."""
        count = self.topic.facts().get("dead letters that wait", 0)
        assert isinstance(count, int)
        return count


def test_what_the_topic_drops_waits_for_the_dead_letter_queue_no_more() -> None:
    """Or what one remembers of it would grow for ever while that is full."""
    news = News(grave={"count_max": 1}, count_max=4)
    refuser = news.hear()
    for _ in range(20):
        news.tell()
        refuser.requeue()
        news.world.run()
    assert news.waiting_count <= 5
    assert_exact(news.topic)
    left_count = news.topic.elements.live_count
    assert len(news.buried()) == 1 + left_count
    news.world.run()
    assert news.waiting_count == 0
    assert news.topic.is_empty


def test_what_the_topic_drops_waits_to_be_tried_again_no_more() -> None:
    news = News(count_max=4, redeliveries_max=None, redelivery_delay_ms=60_000, delayed_count_max=6)
    refuser = news.hear()
    for _ in range(20):
        news.tell()
        refuser.requeue()
        news.world.run()
    assert news.topic.facts()["wait to be tried again"] == news.topic.elements.live_count
    assert not refuser.held, "there is room for those that wait"


def test_what_is_past_its_date_goes_when_it_waits_for_nobody_any_more() -> None:
    """Also when the durable subscription that refused it is removed."""
    news = News(redelivery_delay_ms=60_000, redeliveries_max=None)
    news.topic.readers.add(2)  # needs it as well, and is away
    refuser = news.hear(durable_id=1)
    news.tell(ttl_ms=1000)
    refuser.requeue()
    (subscription,) = news.topic.subscriptions.values()
    subscription.close()
    news.world.advance(2)
    assert news.topic.elements.live_count == 1
    news.topic.remove_reader(1)
    news.world.run()
    assert news.topic.elements.live_count == 0
    assert not news.topic.overdue.sequences


def test_what_is_past_its_date_goes_when_who_refused_it_is_moved_on() -> None:
    news = News(count_max=4, redelivery_delay_ms=60_000, redeliveries_max=None)
    refuser = news.hear()
    news.tell(ttl_ms=1000)
    refuser.requeue()
    news.world.advance(2)
    news.tell(8)
    assert not news.topic.overdue.sequences
    assert_exact(news.topic)


@pytest.mark.parametrize("delay_ms", [0, 5000])
def test_what_is_refused_is_read_back_from_the_disk_if_need_be(delay_ms: int) -> None:
    """To be tried again, and to become a dead letter."""
    with tight(block_bits=2, lease_count=64, blocks_min=1):
        world = StoreWorld(MemoryEngine())
        policy = make_policy(
            memory_bytes=24 * (WIRE_BYTES + MESSAGE_OVERHEAD_BYTES),
            lag_bytes_per_second=None,
            redeliveries_max=1,
            redelivery_delay_ms=delay_ms,
            dead_letter=GRAVE,
        )
        registry = DestinationRegistry(
            world.environment,
            lambda address: policy if address.canonical == T else QueuePolicy(),
            destinations_max=9,
            rewrite=rewrite,
            dead_letter_queues=[GRAVE],
        )
        topic = registry.get(parse(T)).queue.partition(4)
        refuser, other = world.consumer(), world.consumer(auto=True)
        for consumer in (refuser, other):
            topic.subscribe(consumer)
        for _ in range(60):
            world.put(topic, 1, persistent=False)
            world.settle_down()
        assert topic.elements.outside_count
        for _ in range(2):
            assert len(refuser.held) == 60
            refuser.requeue()
            world.settle_down()
            world.advance(delay_ms / 1000)
            world.settle_down()
        assert not refuser.held
        assert refuser.numbers == [*range(60)] * 2
        assert topic.is_empty
        grave = registry.get(parse(GRAVE)).queue.partition(4)
        undertaker = world.consumer(auto=True)
        grave.subscribe(undertaker)
        world.settle_down()
        assert undertaker.numbers == [*range(1, 61)], "copies have numbers of their own"
