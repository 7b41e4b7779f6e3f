"""Consumers with a selector on a shared queue: what they get, what stays for others, and how little is looked at.

Whatever may happen in any order is in test_conservation_model.py and test_paging_model.py (TestSelectors).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.cursored import BLOCK_BITS
from sluiceway.queues.message import Message
from sluiceway.queues.selector_scan import HELD_UP_COUNT
from sluiceway.queues.selectors import Selection, compile_selector
from sluiceway.queues.subscription import Subscription
from sluiceway.store.memory import MemoryEngine
from tests.queues.rig import FakeConsumer, World, assert_exact, numbers
from tests.store.rig import StoreWorld

RED, BLUE = "color = 'red'", "color = 'blue'"


def selection(text: str) -> Selection:
    selector = compile_selector(text)
    assert selector is not None
    return Selection(selector)


def seek(queue: ConsumedQueue, consumer: FakeConsumer, text: str = RED, **options: bool) -> Subscription:
    return queue.subscribe(consumer, selection=selection(text), **options)


def send(world: World, queue: ConsumedQueue, colors: str, **head: Any) -> list[Message]:
    """One message for each letter: r and b for colours, - for none."""
    sent = []
    for letter in colors:
        sent += world.send(queue, 1, color={"r": "red", "b": "blue", "-": ""}[letter], **head)
    return sent


def test_each_gets_what_it_takes_in_order_and_the_rest_stays() -> None:
    world = World()
    queue = world.shared()
    red, blue = world.consumer(auto=True), world.consumer(auto=True)
    seek(queue, red)
    seek(queue, blue, BLUE)
    send(world, queue, "rb-rrb-b")
    world.run()
    assert (red.numbers, blue.numbers) == ([0, 3, 4], [1, 5, 7])
    assert queue.waiting_count == 2
    assert_exact(queue)
    anybody = world.consumer(auto=True)
    queue.subscribe(anybody)
    world.run()
    assert anybody.numbers == [2, 6], "found at once"
    assert queue.is_empty


def test_what_nobody_takes_blocks_nothing_behind_it() -> None:
    world = World()
    queue = world.shared()
    red = world.consumer(2)
    seek(queue, red)
    send(world, queue, "b" * 3000 + "rrr")
    world.run()
    assert red.held_numbers == [3000, 3001]
    red.settle()
    world.run()
    assert red.held_numbers == [3002]


def test_a_new_message_is_matched_when_it_comes() -> None:
    """What was passed over is not looked at again."""
    world = World()
    queue = world.shared()
    red = world.consumer(auto=True)
    subscription = seek(queue, red)
    send(world, queue, "b" * 500)
    world.run()
    send(world, queue, "br")
    world.run()
    assert red.numbers == [501]
    assert subscription.selection is not None
    assert subscription.selection.passed_count == 501


def test_one_without_a_selector_gets_everything_else_in_order() -> None:
    world = World()
    queue = world.shared()
    red = world.consumer(1)
    seek(queue, red)
    send(world, queue, "brbrb")
    world.run()
    assert red.held_numbers == [1]
    anybody = world.consumer()
    queue.subscribe(anybody)
    world.run()
    assert anybody.held_numbers == [0, 2, 3, 4]
    red.requeue()
    world.run()
    assert sorted(red.held_numbers + anybody.held_numbers) == [0, 1, 2, 3, 4]


def test_nobody_starves_where_all_take_the_same() -> None:
    """One with a selector and one without share what both take, whether it comes one by one or all at once."""
    for at_once in (False, True):
        world = World()
        queue = world.shared()
        red, anybody = world.consumer(auto=True), world.consumer(auto=True)
        seek(queue, red)
        queue.subscribe(anybody)
        for _ in range(10):
            if at_once:
                world.send(queue, 20, color="red")
                world.run()
            else:
                for _ in range(20):
                    world.send(queue, 1, color="red")
                    world.run()
        assert len(red.numbers) + len(anybody.numbers) == 200
        assert min(len(red.numbers), len(anybody.numbers)) >= 60, at_once


def test_ten_with_the_same_selector_share_evenly() -> None:
    world = World()
    queue = world.shared()
    consumers = [world.consumer(auto=True) for _ in range(10)]
    for consumer in consumers:
        seek(queue, consumer)
    for _ in range(50):
        world.send(queue, 20, color="red")
        world.send(queue, 20, color="blue")
        world.run()
    counts = [len(consumer.numbers) for consumer in consumers]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) <= 100


def test_what_is_given_back_comes_again_first_and_marked() -> None:
    world = World()
    queue = world.shared()
    red = world.consumer(3)
    seek(queue, red)
    send(world, queue, "brrbrr")
    world.run()
    assert red.held_numbers == [1, 2, 4]
    red.requeue(red.held[:2])
    world.run()
    assert red.held_numbers == [4, 1, 2]
    assert [d.attempts_count for d in red.held] == [0, 1, 1]
    red.settle()
    world.run()
    assert red.held_numbers == [5]


def test_what_was_tried_too_often_is_given_up_and_the_others_go_on() -> None:
    world = World()
    queue = world.shared(redeliveries_max=1, dead_letter=None)
    red = world.consumer(1)
    seek(queue, red)
    send(world, queue, "brr")
    for _ in range(2):
        world.run()
        assert red.held_numbers == [1]
        red.requeue()
    world.run()
    assert red.held_numbers == [2]
    assert queue.dropped_count == 1


def test_what_waits_to_be_tried_again_is_found_when_its_time_has_come() -> None:
    world = World()
    queue = world.shared(redelivery_delay_ms=1000)
    red = world.consumer(1)
    seek(queue, red)
    send(world, queue, "brr")
    world.run()
    red.requeue()
    world.run()
    assert red.held_numbers == [2]
    red.settle()
    world.advance(0.5)
    assert not red.held
    world.advance(0.6)
    assert red.held_numbers == [1]


def test_delayed_and_expired_messages_keep_their_times() -> None:
    world = World()
    queue = world.shared()
    red = world.consumer()
    send(world, queue, "r", delay_ms=1000)
    send(world, queue, "r", ttl_ms=500)
    world.advance(0.6)
    seek(queue, red)
    send(world, queue, "r")
    world.run()
    assert red.held_numbers == [2]
    world.advance(0.6)
    assert red.held_numbers == [2, 0]
    assert queue.expired_count == 1


def test_an_exclusive_consumer_with_a_selector_leaves_the_rest_alone() -> None:
    world = World()
    queue = world.shared()
    first, second = world.consumer(auto=True), world.consumer(auto=True)
    subscription = seek(queue, first, exclusive=True)
    seek(queue, second)
    send(world, queue, "rbr")
    world.run()
    assert (first.numbers, second.numbers) == ([0, 2], [])
    subscription.close()
    send(world, queue, "r")
    world.run()
    assert second.numbers == [3]
    assert queue.waiting_count == 1


def test_a_group_is_with_one_consumer_at_a_time() -> None:
    """Whether who takes it has a selector or not; a selector passes over what it does not take of a group, too."""
    world = World()
    queue = world.shared()
    red, anybody = world.consumer(1), world.consumer(2)
    seek(queue, red)
    send(world, queue, "brbr", group="g")
    world.run()
    assert red.held_numbers == [1]
    queue.subscribe(anybody)
    world.run()
    assert not anybody.held, "the group is held"
    red.settle()
    world.run()
    held = (red.held_numbers, anybody.held_numbers)
    assert held in (([3], []), ([], [0, 2]))
    for _ in range(4):
        red.settle()
        anybody.settle()
        world.run()
    assert sorted(red.numbers + anybody.numbers) == [0, 1, 2, 3]
    assert queue.is_empty


def test_what_is_held_up_by_groups_is_bounded() -> None:
    """A search waits where it would have to remember too much; it goes on when groups are free."""
    world = World()
    queue = world.shared()
    holder, red = world.consumer(1), world.consumer(auto=True)
    queue.subscribe(holder)
    send(world, queue, "r", group="g")
    world.run()
    assert holder.held_numbers == [0]
    seek(queue, red)
    world.send(queue, HELD_UP_COUNT + 100, color="red", group="g")
    world.send(queue, 5, color="red")
    world.run()
    (search,) = queue.distribution.scan.searches.values()
    assert search.held_up_count <= HELD_UP_COUNT
    while holder.held:
        holder.settle()
        world.run()
    assert sorted(red.numbers + holder.numbers) == list(range(HELD_UP_COUNT + 106))


def test_what_is_held_up_is_delivered_once_however_often_a_search_comes_by() -> None:
    """It stops for want of credit, behind it are messages of a group that another consumer holds: they are looked at
    once more each time that it goes on, and are one each when the group is free.
    """
    world = World()
    queue = world.shared()
    holder, red = world.consumer(1), world.consumer(100, 1000)
    held = queue.subscribe(holder)
    send(world, queue, "r", group="g")
    world.run()
    seek(queue, red)
    for _ in range(4):
        world.send(queue, 1, color="red", wire_bytes=600)
        world.send(queue, 1, color="red", group="g")
    world.run()
    (search,) = queue.distribution.scan.searches.values()
    assert search.held_up_count == 4
    held.close()
    holder.settle()
    for _ in range(5):
        world.run()
        red.settle()
    assert sorted(red.numbers) == list(range(1, 9)), "each once"
    assert search.held_up_count == 0
    assert queue.is_empty


def test_given_back_again_and_again_nothing_grows() -> None:
    world = World()
    queue = world.shared()
    red, away = world.consumer(1), world.consumer(1)
    seek(queue, red)
    seek(queue, away)
    send(world, queue, "rr")
    world.run()
    for _ in range(3000):
        red.requeue(attempted=False)
        world.run()
    for search in queue.distribution.scan.searches.values():
        assert len(search._again) < 200
    assert len(queue._cursor._returned) < 200


def test_a_consumer_that_leaves_gives_back_what_others_find_at_once() -> None:
    world = World()
    queue = world.shared()
    first, second = world.consumer(2), world.consumer()
    subscription = seek(queue, first)
    send(world, queue, "brbr")
    world.run()
    seek(queue, second)
    subscription.close()
    first.requeue()
    world.run()
    assert second.held_numbers == [1, 3]


def test_the_oldest_make_room_whoever_takes_them() -> None:
    world = World()
    queue = world.shared(full="drop_oldest", count_max=4)
    red = world.consumer(1)
    seek(queue, red)
    send(world, queue, "brbb")
    world.run()
    send(world, queue, "rr")
    world.run()
    assert red.held_numbers == [1]
    assert queue.dropped_count == 2
    red.settle()
    world.run()
    assert red.held_numbers == [4]


# ---------------------------------------------------------------------- what is on disk


COUNT = 200_000


def _fill(world: StoreWorld, queue: ConsumedQueue, count: int, red: Callable[[int], bool]) -> None:
    run = 1000
    for first in range(0, count, run):
        places = [place for place in range(run) if red(first + place)]
        start = 0
        for place in [*places, run]:
            if place > start:
                world.put(queue, place - start, persistent=False, color="blue")
            if place < run:
                world.put(queue, 1, persistent=False, color="red")
            start = place + 1
        world.settle_down()


def _disk_step(world: StoreWorld) -> None:
    """Each of the two threads does one thing, or time passes."""
    read, wrote = world.worker.step(read=True), world.worker.step(read=False)
    if not (read or wrote):
        world.now_seconds += 0.1


@pytest.fixture
def paged() -> StoreWorld:
    return StoreWorld(MemoryEngine())


def test_a_needle_in_two_hundred_thousand_stored_messages(paged: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is read once, none comes in, and memory stays as it was."""
    world = paged
    queue = world.queue(memory_bytes=4 << 20)
    needles = {70_001, 199_000}
    _fill(world, queue, COUNT, needles.__contains__)
    outside_count = queue.elements.outside_count
    assert outside_count > 150
    assert queue.pager is not None
    loads: Counter[int] = Counter()
    storage: Any = queue.storage
    load = type(storage).load

    def counted(self: Any, index: int, arrived: Any) -> None:
        loads[index] += 1
        load(self, index, arrived)

    monkeypatch.setattr(type(storage), "load", counted)
    used_bytes = queue.controller.limiter.used_bytes
    paged_in_count = queue.pager.paged_in_count
    red = world.consumer()
    subscription = seek(queue, red)
    steps = 0
    while len(red.held) < 2:
        world.run()
        assert world.worker.reads_count <= 1, "one block at a time"
        assert queue.controller.limiter.used_bytes <= used_bytes
        assert queue.distribution.scan._hand is None or queue.distribution.scan._hand.charge[1] <= 1 << 20
        _disk_step(world)
        steps += 1
        assert steps < 1000
    world.settle_down()
    assert red.held_numbers == [70_001, 199_000]
    assert queue.pager.paged_in_count == paged_in_count
    assert len(loads) == outside_count
    twice = {index for index, count in loads.items() if count > 1}
    assert twice <= {needle >> BLOCK_BITS for needle in needles}, "and those while it was noted what goes out"
    assert max(loads.values()) <= 2
    assert subscription.selection is not None
    assert subscription.selection.passed_count == COUNT - 2
    red.settle()
    world.settle_down()
    assert not world.worker.has_work, "it rests at the end"
    assert queue.distribution.scan._hand is None


def test_others_are_served_while_one_searches(paged: StoreWorld) -> None:
    """The search takes one block at a time; who reads from the front does not wait for it to end."""
    world = paged
    queue = world.queue(memory_bytes=1 << 20)
    _fill(world, queue, 20_000, lambda _number: False)
    seek(queue, world.consumer())
    for _ in range(4):
        world.run()
        world.worker.step(read=True)
    anybody = world.consumer(10)
    queue.subscribe(anybody)
    for _ in range(12):
        world.run()
        _disk_step(world)
    world.run()
    assert anybody.held_numbers == list(range(10))
    (search,) = queue.distribution.scan.searches.values()
    assert search.looked_to < queue.elements.next_sequence, "it is still searching"


def test_searches_that_stand_at_one_place_share_what_is_read(paged: StoreWorld) -> None:
    world = paged
    queue = world.queue(memory_bytes=1 << 20)
    _fill(world, queue, 20_000, lambda number: number % 5000 == 1)
    consumers = [world.consumer() for _ in range(5)]
    for consumer in consumers:
        seek(queue, consumer)
    outside_count = queue.elements.outside_count
    reads = 0
    while True:
        world.run()
        reads += world.worker.reads_count
        if sum(len(consumer.held) for consumer in consumers) == 4 and not world.worker.has_work:
            break
        _disk_step(world)
    assert reads <= outside_count + 5
    assert sorted(n for consumer in consumers for n in consumer.held_numbers) == [1, 5001, 10001, 15001]


def test_with_little_credit_a_block_is_not_read_for_each_message(paged: StoreWorld) -> None:
    """One at a time out of a backlog of which it takes a tenth: each block comes in once, and memory stays bounded."""
    world = paged
    queue = world.queue(memory_bytes=2 << 20)
    _fill(world, queue, 30_000, lambda number: number % 10 == 3)
    assert queue.pager is not None
    outside_count = queue.elements.outside_count
    limit = queue.controller.limiter.used_bytes + 3 * (1 << 20)
    red = world.consumer(1)
    seek(queue, red)
    reads = 0
    for _ in range(3000):
        world.settle_down()
        assert len(red.held) == 1
        assert queue.controller.limiter.used_bytes <= limit
        red.settle()
    world.settle_down()
    reads = queue.pager.paged_in_count
    assert red.numbers == [number for number in range(30_000) if number % 10 == 3]
    assert reads <= outside_count + 5


def test_after_a_restart_what_was_passed_over_is_there_and_the_needle_is_found(paged: StoreWorld) -> None:
    world = paged
    queue = world.queue(memory_bytes=1 << 20)
    for color, count in (("blue", 3000), ("red", 2), ("blue", 3000)):
        world.put(queue, count, color=color)
        world.flush()
    red = world.consumer(1)
    subscription = seek(queue, red)
    world.flush()
    assert red.held_numbers == [3000]
    subscription.close()
    red.requeue()
    world.flush()
    engine = world.close_in_order()
    again = StoreWorld(engine, now_seconds=world.now_seconds)
    restored = again.restored(memory_bytes=1 << 20)
    assert restored.elements.live_count == 6002
    late = again.consumer()
    seek(restored, late)
    again.flush()
    assert late.held_numbers == [3000, 3001]
    assert [d.attempts_count for d in late.held] == [1, 0]
    everybody = again.consumer(auto=True)
    restored.subscribe(everybody)
    again.flush()
    assert everybody.numbers == [*range(3000), *range(3002, 6002)]


def test_one_of_which_all_is_taken_pages_like_any_other(paged: StoreWorld) -> None:
    world = paged
    queue = world.queue(memory_bytes=1 << 20)
    world.put(queue, 20_000, persistent=False, color="red")
    world.settle_down()
    assert queue.elements.outside_count
    red = world.consumer(100, auto=True)
    seek(queue, red)
    world.settle_down()
    assert red.numbers == list(range(20_000))
    assert queue.is_empty
    assert queue.controller.limiter.used_bytes == 0


def test_numbers_are_those_that_were_sent() -> None:
    """The rig itself."""
    world = World()
    queue = world.shared()
    assert numbers(send(world, queue, "rb-")) == [0, 1, 2]
