"""What a step may cost with a selector of hundreds of comparisons: counted in its own units, not in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from sluiceway.queues.environment import DispatchHandle, TimerHandle
from sluiceway.queues.names import parse
from sluiceway.queues.policy import QueuePolicy
from sluiceway.queues.registry import DestinationRegistry
from sluiceway.queues.selectors import UNITS_PER_COST, Selection, Selector, compile_selector
from sluiceway.queues.selectors.selector import LOOK_UNITS_MAX
from sluiceway.store.memory import MemoryEngine
from tests.queues.rig import World
from tests.store.rig import StoreWorld

DEAR = " AND ".join(f"n{number % 9} <> {number}" for number in range(120))
DISPATCH_UNITS = 1024 * UNITS_PER_COST


def dear(extra: str = "") -> Selection:
    selector = compile_selector(DEAR + extra)
    assert selector is not None
    return Selection(selector)


class Meter:
    """A dispatcher that knows what each dispatch has spent on selectors."""

    def __init__(self, world: World, selectors: list[Selector]) -> None:
        self.most_units = 0
        self.total_units = 0
        self._core = world.core
        self._selectors = selectors

    def register(self, dispatch: Callable[[int], bool], label: str, priority: int = 4) -> DispatchHandle:
        def metered(budget: int) -> bool:
            before = sum(selector.spent_units for selector in self._selectors)
            more = dispatch(budget)
            units = sum(selector.spent_units for selector in self._selectors) - before
            self.most_units = max(self.most_units, units)
            self.total_units += units
            return more

        return self._core.register(metered, label, priority)

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle:
        return self._core.call_later(delay_seconds, callback)

    def executor(self, priority: int = 4, label: str = "executor") -> Callable[[Callable[[], None]], None]:
        return self._core.executor(priority, label)


def test_a_dear_selector_is_asked_of_few_messages_in_one_step() -> None:
    selector = dear().selector
    cheap = compile_selector("a = 1")
    assert cheap is not None
    assert selector.looks_max <= LOOK_UNITS_MAX // 360
    assert cheap.looks_max >= 200


@pytest.mark.parametrize("kind", ["queue", "topic", "topic without credit", "durable and away", "many on a topic"])
def test_no_dispatch_spends_more_than_its_budget_on_selectors(kind: str) -> None:
    """Whatever asks them."""
    world = World()
    selections = [dear(f" AND m <> {number}") for number in range(40 if kind == "many on a topic" else 1)]
    meter = Meter(world, [selection.selector for selection in selections])
    environment = attrs.evolve(world.environment, scheduling=meter)
    registry = DestinationRegistry(environment, lambda _address: QueuePolicy())
    name = "/queue/a" if kind == "queue" else "/topic/a"
    queue = registry.get(parse(name)).queue.partition(4)
    if kind == "durable and away":
        attached = registry.attach_durable(parse(name), world.consumer(), "client", "durable", selections[0])
        attached.close()
    else:
        for selection in selections:
            window = 0 if kind == "topic without credit" else None
            registry.attach(parse(name), world.consumer(window), selection=selection)
    count = 20 if kind == "many on a topic" else 120
    for number in range(count):
        world.send(queue, 1, color=f"{number}")
    world.run()
    assert meter.total_units >= count * 300, "all of them were looked at"
    assert meter.most_units <= DISPATCH_UNITS + 2 * LOOK_UNITS_MAX


def test_what_is_the_same_for_all_costs_a_look_once() -> None:
    """The cost is that of heads that were judged, so a run of messages with one head goes as fast as ever."""
    world = World()
    queue, selection = world.shared(), dear()
    queue.subscribe(world.consumer(), selection=selection)
    world.send(queue, 5000, color="red")
    world.run()
    assert selection.passed_count == 5000
    assert selection.selector.spent_units <= 2 * 400


def test_a_block_that_was_read_for_a_search_is_looked_at_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is looked at once, and each block read once."""
    world = StoreWorld(MemoryEngine())
    queue = world.queue(memory_bytes=1 << 20)
    count = 20_000
    for _ in range(count // 1000):
        world.put(queue, 1000, persistent=False, color="blue")
        world.settle_down()
    outside_count = queue.elements.outside_count
    assert outside_count > 5
    loads: Counter[int] = Counter()
    storage: Any = queue.storage
    load = type(storage).load

    def counted(self: Any, index: int, arrived: Any) -> None:
        loads[index] += 1
        load(self, index, arrived)

    monkeypatch.setattr(type(storage), "load", counted)
    selection = dear()
    sizes: list[int] = []
    places = Selector.places

    def sized(self: Selector, messages: Any) -> list[int]:
        sizes.append(len(messages))
        return places(self, messages)

    monkeypatch.setattr(Selector, "places", sized)
    queue.subscribe(world.consumer(), selection=selection)
    for _ in range(100):
        world.settle_down()
        world.now_seconds += 0.1
    assert selection.passed_count == count
    assert max(sizes) <= selection.selector.looks_max
    assert len(loads) == outside_count
    assert max(loads.values()) == 1
