"""Work of a queue between its deliveries: in order, and none twice in one dispatch."""

from __future__ import annotations

from sluiceway.queues.chores import Chores
from tests.queues.rig import World


class _Context:
    def request_dispatch(self) -> None: ...

    def close(self) -> None: ...


def test_a_chore_that_an_earlier_one_adds_again_is_done_once() -> None:
    chores = Chores(_Context())
    done: list[str] = []

    def second(_budget: int) -> int:
        done.append("second")
        return 1

    def first(_budget: int) -> int:
        done.append("first")
        chores.add(second)
        return 1

    chores.add(first)
    chores.add(second)
    assert chores.do(10) == 8
    assert done == ["first", "second"] and not chores.due


def test_what_a_chore_adds_waits_for_the_next_dispatch() -> None:
    chores = Chores(_Context())
    done: list[str] = []

    def other(_budget: int) -> int:
        done.append("other")
        return 1

    def again(_budget: int) -> int:
        done.append("again")
        chores.add(other)
        chores.add(again)
        return 1

    chores.add(again)
    chores.do(10)
    assert done == ["again"]
    chores.do(10)
    assert done == ["again", "other", "again"]


def test_one_of_many_who_share_gives_back_while_room_is_made() -> None:
    """It wakes the others, and so does moving on what they share: they are woken once for both."""
    world = World()
    topic = world.topic(full="drop_oldest", memory_bytes=60_000, lead_bytes=1_000_000)
    topic.subscribe(world.consumer(auto=True))
    for _ in range(100):
        topic.subscribe(world.consumer(1))
    sharing = [world.consumer(1) for _ in range(17)]
    for consumer in sharing:
        topic.subscribe(consumer, durable_id=1, shares=True)
    sent_count = 0
    while not topic.laggards.busy:
        sent_count += 1
        world.send(topic, wire_bytes=500)
        if not topic.laggards.busy:
            world.run()
    given_back = next(consumer for consumer in sharing if consumer.held)
    given_back.requeue()
    world.run()
    settled_count = 0
    while any(consumer.held for consumer in sharing):
        for consumer in sharing:
            settled_count += len(consumer.held)
            consumer.settle()
        world.run()
    told_count = sum(sum(consumer.dropped_counts) for consumer in sharing)
    assert told_count > 0
    assert settled_count + told_count == sent_count
