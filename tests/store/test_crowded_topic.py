"""Ten thousand subscribers of one topic with a store: no step looks at all of them."""

from __future__ import annotations

from functools import partial

from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.topic import Topic
from sluiceway.store.memory import MemoryEngine
from tests.queues.test_crowded_topic import CROWD, longest_step, red
from tests.store.rig import StoreWorld, tight


def test_whether_durables_hold_all_room_is_asked_in_steps() -> None:
    world = StoreWorld(MemoryEngine(), budget_count=128)
    policy = QueuePolicy(memory_bytes=1 << 20, bytes_max=1 << 20)
    topic = Topic("/topic/a", policy, world.environment)
    topic.subscribe(world.consumer(1), durable_id=1)
    selection = red()
    for _ in range(CROWD):
        topic.subscribe(world.consumer(), selection=selection)
    while topic.intake.overhang(0, 0)[1] <= 0:
        world.put(topic, 1, wire_bytes=100_000)
        world.settle_down()
    assert longest_step(world, partial(world.put, topic, 1, wire_bytes=100_000)) < CROWD
    assert not topic.dropped_count and not topic.laggards.busy


def test_a_block_that_comes_in_for_a_crowd_lets_them_go_on_in_steps() -> None:
    with tight(block_bits=2):
        world = StoreWorld(MemoryEngine(), budget_count=128)
        topic = Topic("/topic/a", QueuePolicy(memory_bytes=64 << 10), world.environment)
        crowd = [world.consumer(8) for _ in range(CROWD)]
        for consumer in crowd:
            topic.subscribe(consumer)
        topic.subscribe(world.consumer(auto=True))
        for _ in range(40):
            world.put(topic, 1, wire_bytes=2_000, persistent=False)
            world.settle_down()
        block = topic.elements.block(2)
        assert block is not None and block.outside is not None
        for consumer in crowd:
            consumer.settle()
        world.run()
        assert {len(consumer.deliveries) for consumer in crowd} == {8}, "all wait for the disk"
        assert world.worker.reads_count
        assert longest_step(world, partial(world.worker.step, read=True)) < CROWD
        world.settle_down()
        assert {len(consumer.deliveries) for consumer in crowd} == {16}
        assert not topic.blocks._awaiting and not topic.blocks._telling


def test_a_block_that_comes_in_for_a_crowd_that_shares_lets_them_go_on_in_steps() -> None:
    """They read with one cursor: each message is for one of them, whoever asks first."""
    with tight(block_bits=2):
        world = StoreWorld(MemoryEngine(), budget_count=128)
        topic = Topic("/topic/a", QueuePolicy(memory_bytes=64 << 10), world.environment)
        topic.subscribe(world.consumer(auto=True))
        topic.subscribe(world.consumer(1), durable_id=1, shares=True)
        for _ in range(40):
            world.put(topic, 1, wire_bytes=2_000, persistent=False)
            world.settle_down()
        crowd = [world.consumer(1) for _ in range(CROWD)]
        for consumer in crowd:
            topic.subscribe(consumer, durable_id=1, shares=True)
        world.run()
        assert world.worker.reads_count, "all wait for the disk"
        assert longest_step(world, partial(world.worker.step, read=True)) < CROWD
        world.settle_down()
        assert sum(len(consumer.deliveries) for consumer in crowd) == 39
        assert not topic.blocks._awaiting and not topic.blocks._telling
        assert topic.waking._waking is None and not topic.waking._to_wake
