"""Work of a queue between its deliveries: in order, and none twice in one dispatch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sluiceway.queues.chores import Chore, Chores
from sluiceway.queues.selectors import Selection, compile_selector
from sluiceway.queues.topic import Topic
from tests.architecture.sources import modules, parsed
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


def chores_of(topic: Topic) -> Iterator[Chore]:
    """All that any part adds to the chores of a topic, by the source."""
    parts = {type(part).__name__: part for part in vars(topic).values()}
    for path in modules("queues"):
        for made in parsed(path.read_text(encoding="utf-8")).body:
            for node in ast.walk(made) if isinstance(made, ast.ClassDef) else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._chores.add":
                    assert isinstance(made, ast.ClassDef)
                    yield getattr(parts[made.name], ast.unparse(node.args[0]).removeprefix("self."))


def test_a_chore_with_nothing_left_to_do_does_nothing() -> None:
    """What it was added for may have been done by others meanwhile."""
    world = World()
    topic = world.topic()
    topic.subscribe(world.consumer())
    world.run()
    chores = set(chores_of(topic))
    assert len(chores) == 7
    for chore in chores:
        chore(1024)
    assert not topic.chores.due


def test_a_topic_that_is_deleted_with_all_chores_due_lets_go_of_all() -> None:
    world = World(budget_count=30)
    topic = world.topic(full="drop_oldest", count_max=100)
    selector = compile_selector("color = 'red'")
    assert selector is not None
    consumers = [world.consumer(1) for _ in range(300)]
    leader = topic.subscribe(world.consumer(auto=True))
    for number, consumer in enumerate(consumers):
        topic.subscribe(consumer, selection=Selection(selector) if number % 2 else None)
    for durable_id in range(10, 20):
        topic.subscribe(world.consumer(), durable_id=durable_id, selection=Selection(selector)).close()
    sharing = [world.consumer(1) for _ in range(100)]
    for consumer in sharing:
        topic.subscribe(consumer, durable_id=1, shares=True)
    world.send(topic, 1, color="red")
    world.run()
    while not topic.laggards.busy:
        world.send(topic, color="blue")
        if not topic.laggards.busy:
            world.run()
    topic.pinned.begin()
    leader.close()
    next(consumer for consumer in sharing if consumer.held).requeue()
    assert len(topic.chores.due) >= 5
    topic.close_queue("a test")
    for consumer in (*consumers, *sharing):
        consumer.requeue()
    world.run()
    assert not topic.controller.limiter.used_count and not topic.lead.controller.limiter.used_count
    assert all(consumer.cancelled_for == ["a test"] for consumer in (*consumers, *sharing))
