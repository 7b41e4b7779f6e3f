"""A new priority of a topic with many durable subscriptions: their places are made in steps, and nobody misses one
message.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from sluiceway.queues.readers import MADE_AT_ONCE
from sluiceway.queues.topic import Topic
from tests.queues.rig import World, make_policy

COUNT = 3 * MADE_AT_ONCE
LAST = COUNT


class _Begun:
    """A topic that is to have so many durable subscriptions, of which none has its place yet."""

    def __init__(self, **policy: object) -> None:
        self.world = World()
        self._work: list[Iterator[object]] = []
        environment = attrs.evolve(self.world.environment, in_steps=lambda _owner, work: self._work.append(work))
        self.topic = Topic("/topic/a", make_policy(**policy), environment)
        self.topic.readers.begin_with(range(1, COUNT + 1))
        assert not self.topic.readers.by_id

    def steps(self, count: int) -> None:
        for _ in range(count):
            for work in self._work:
                next(work, None)

    def read_all(self) -> dict[int, int]:
        """How many messages each gets that is there."""
        got = {}
        for durable_id in list(self.topic.readers.by_id):
            consumer = self.world.consumer()
            subscription = self.topic.subscribe(consumer, durable_id=durable_id)
            self.world.run()
            got[durable_id] = len(consumer.deliveries)
            subscription.close()
        return got


def test_each_gets_what_came_before_its_place_was_made() -> None:
    begun = _Begun()
    begun.world.send(begun.topic)
    begun.steps(COUNT // 2)
    begun.world.send(begun.topic)
    assert len(begun.topic.readers.by_id) == COUNT // 2
    begun.steps(COUNT)
    assert begun.topic.readers.beginning.cursor is None
    assert begun.read_all() == dict.fromkeys(range(1, COUNT + 1), 2)


def test_one_that_attaches_before_its_place_is_made_gets_all() -> None:
    begun = _Begun()
    begun.world.send(begun.topic)
    consumer = begun.world.consumer()
    begun.topic.subscribe(consumer, durable_id=LAST)
    begun.world.run()
    assert len(consumer.deliveries) == 1
    begun.steps(COUNT)
    begun.world.send(begun.topic)
    begun.world.run()
    assert len(consumer.deliveries) == 2


def test_one_that_is_new_meanwhile_begins_behind_what_is_there() -> None:
    begun = _Begun()
    begun.world.send(begun.topic)
    begun.topic.readers.add(COUNT + 1)
    begun.steps(COUNT)
    assert begun.read_all()[COUNT + 1] == 0


def test_those_that_are_removed_before_they_have_a_place_hold_nothing_back() -> None:
    begun = _Begun()
    begun.world.send(begun.topic)
    begun.steps(1)
    assert begun.topic.readers.backlog_of(LAST) == 1
    for durable_id in range(1, COUNT + 1):
        begun.topic.remove_reader(durable_id)
    assert begun.topic.readers.beginning.cursor is None and begun.topic.is_empty and not begun.topic.readers.count
    begun.steps(COUNT)
    assert not begun.topic.readers.by_id


def test_what_they_are_to_get_is_not_dropped_for_room() -> None:
    begun = _Begun(memory_bytes=4_096, lead_bytes=1_024)
    begun.topic.subscribe(begun.world.consumer(auto=True))
    for _ in range(20):
        begun.world.send(begun.topic, wire_bytes=500)
        begun.world.run()
    assert begun.topic.intake.overhang(0, 0)[1] > 0, "room was to be made"
    begun.steps(COUNT)
    assert set(begun.read_all().values()) == {20}


def test_one_that_is_closed_meanwhile_makes_no_more_places() -> None:
    begun = _Begun()
    begun.world.send(begun.topic)
    begun.topic.close_queue("a test")
    begun.steps(COUNT)
    assert not begun.topic.readers.by_id
