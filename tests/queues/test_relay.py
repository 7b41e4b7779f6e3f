"""A relay keeps nothing and lets back pressure through."""

from __future__ import annotations

import pytest

from sluiceway.queues.relay import Relay
from tests.queues.rig import CHARGE_BYTES, Producer, World


@pytest.mark.parametrize("later", [False, True])
def test_back_pressure_passes_through_and_nothing_is_lost_or_reordered(later: bool) -> None:
    world = World(later=later)
    queue = world.shared(full="block", count_max=4)
    relay = Relay(
        "r",
        queue,
        capacity_bytes=2 * CHARGE_BYTES,
        manager=world.manager,
        clock=world.environment.clock,
        resume=world.environment.resume,
    )
    producer = Producer(world, relay)
    producer.send(*[world.messages(1) for _ in range(20)])
    assert producer.is_blocked()
    assert relay.controller.blocked
    assert relay.controller.limiter.used_bytes <= 2 * CHARGE_BYTES
    consumer = world.consumer(1)
    queue.subscribe(consumer)
    for _ in range(20):
        world.run()
        consumer.settle()
    world.run()
    assert consumer.numbers == list(range(20))
    assert not producer.is_blocked()
    assert relay.controller.limiter.used_bytes == 0
    assert relay.facts() == {"passed": 20}


def test_a_relay_in_front_of_a_free_sink_holds_nothing() -> None:
    world = World()
    queue = world.shared()
    relay = Relay("r", queue, capacity_bytes=1, manager=world.manager, clock=world.environment.clock)
    producer = Producer(world, relay)
    for _ in range(10):
        producer.send(world.messages(5))
    assert not producer.is_blocked()
    assert relay.controller.limiter.used_bytes == 0
    assert queue.elements.live_count == 50


def test_what_the_sink_refuses_is_counted_and_does_not_stay_charged() -> None:
    world = World()
    queue = world.shared(full="reject", count_max=4)
    relay = Relay("r", queue, capacity_bytes=10_000, manager=world.manager, clock=world.environment.clock)
    world.send(relay, 3)
    world.send(relay, 3)
    assert (relay.passed_count, relay.rejected_count) == (3, 3)
    assert relay.controller.limiter.used_bytes == 0
    assert relay.facts() == {"passed": 3, "rejected by the sink": 3}
