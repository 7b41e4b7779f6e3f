"""Readers of a topic with a selector: what it costs that they pass over what lies behind something that is held.

What they get, and what leaves the topic, is in test_topic_model.py and scenarios/test_selectors.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from sluiceway.queues.pinned import Pinned
from sluiceway.queues.selectors import Selection, compile_selector
from tests.queues.rig import Head, Producer, World

READERS_COUNT = 500
SENT_COUNT = 20


def test_looking_for_what_nobody_needs_costs_no_more_than_passing_it_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred readers hold one message each, and pass over all that comes behind it: a look at all of them is not
    due after some messages of each, but after as many messages as it looks at readers.
    """
    looks_count = 0
    looking = Pinned._looking

    def counted(pinned: Pinned) -> Iterator[list[int]]:
        nonlocal looks_count
        looks_count += 1
        return looking(pinned)

    monkeypatch.setattr(Pinned, "_looking", counted)
    world = World()
    topic = world.topic()
    selector = compile_selector("color = 'red'")
    assert selector is not None
    readers = [world.consumer() for _ in range(READERS_COUNT)]
    for reader in readers:
        topic.subscribe(reader, selection=Selection(selector))
    world.send(topic, 1, color="red")
    world.run()
    for _ in range(SENT_COUNT):
        world.send(topic, 1, color="blue")
        world.run()
    assert looks_count
    assert looks_count * READERS_COUNT <= READERS_COUNT * SENT_COUNT
    assert topic.elements.live_count <= 1 + 4, "what they hold, and a little behind it"
    for reader in readers:
        reader.settle()
    world.run()
    assert topic.is_empty


def test_senders_do_not_wait_for_room_that_is_taken_by_what_nobody_needs() -> None:
    """The topic may have fewer messages than are passed over before a look is due, and holds its senders up."""
    world = World()
    topic = world.topic(count_max=20, full="block")
    selector = compile_selector("color = 'red'")
    assert selector is not None
    reader = world.consumer()
    topic.subscribe(reader, selection=Selection(selector))
    world.send(topic, 1, color="red")
    world.run()
    producer = Producer(world, topic)
    for _ in range(100):
        producer.send(world.messages(1, head=Head(color="blue")))
        world.run()
    assert not producer.is_blocked()
    assert not producer.outbox
    assert reader.held_numbers == [0]


@pytest.mark.parametrize("away_count", [100, 2_000])
def test_those_away_pass_over_no_more_than_half_of_a_dispatch(away_count: int) -> None:
    """Who is there is served in the same dispatch, however many durable subscriptions have something to pass over."""
    world = World()
    world.core._config = attrs.evolve(world.core._config, dispatches_per_turn_count=1)
    topic = world.topic()
    selector = compile_selector("color = 'red'")
    assert selector is not None
    for durable_id in range(away_count):
        topic.subscribe(world.consumer(1), durable_id=durable_id, selection=Selection(selector)).close()
    reader = world.consumer(auto=True)
    topic.subscribe(reader)
    world.run()
    for number in range(50):
        world.send(topic, 1, color="blue")
        world.core.run_turn()
        assert reader.numbers == list(range(number + 1))
    world.run()
    assert not topic.elements.live_count
