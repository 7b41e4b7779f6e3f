"""COMMITs of many connections to few queues: whatever they wait for, none goes into room that another one has taken,
and none keeps others from queues that have room.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import trio

from sluiceway.protocols.stomp.session import Session
from sluiceway.protocols.stomp.transactions import LANES_PER_STEP, Commit
from sluiceway.queues.steps import Waiting
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.storequeue import StoreQueue
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage
from tests.scenarios.tiny_steps import tiny_steps

Q = "/queue/work"
OTHER = "/queue/other"
COUNT = 6
"""Of SENDs in a transaction, and what a queue takes."""


@pytest.fixture(params=["steps", "at once"])
def steps(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "steps":
            stack.enter_context(tiny_steps())
        yield request.param


async def committed(client: Client, *names: str, persistent: bool = True, count: int = COUNT) -> None:
    """A transaction, and its COMMIT without waiting for it."""
    keeps = {"persistent": "true"} if persistent else {}
    await client.frame("BEGIN", {"transaction": "t"})
    for number in range(count):
        for name in names:
            await client.send(name, f"{client.name} {number:03}", transaction="t", **keeps)
    await client.frame("COMMIT", {"transaction": "t", "receipt": "committed"})


async def drained(stage: Stage, name: str, most_count: int) -> list[str]:
    """All that comes out of a queue, a few at a time; never more are in it."""
    consumer = await stage.connect()
    await consumer.subscribe(name, ack="client", prefetch_count="2")
    texts: list[str] = []
    with trio.move_on_after(20):
        while True:
            delivery = await consumer.next_message()
            texts.append(delivery.text)
            assert stage.depth_count(name) <= most_count
            await consumer.ack(delivery)
            await consumer.sync()
            assert stage.depth_count(name) <= most_count
    consumer.vanish()
    return texts


def in_order(texts: list[str]) -> dict[str, list[int]]:
    """By client, what came of it."""
    came: dict[str, list[int]] = {}
    for text in texts:
        name, number = text.rsplit(" ", 1)
        came.setdefault(name, []).append(int(number))
    return came


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "not persistent"])
@pytest.mark.parametrize("place", ["no store", "in memory", "spooled"])
async def test_they_fill_a_queue_no_further_than_one_of_them_does(steps: str, place: str, persistent: bool) -> None:
    """With what was there, and whole where they must not come apart."""
    limits: dict[str, Any] = {"transaction_bytes_max": 500} if place == "spooled" else {}
    engine = None if place == "no store" else MemoryEngine()
    async with Stage({Q: {"count_max": COUNT, "full": "block"}}, engine=engine, **limits) as stage:
        clients = [await stage.connect() for _ in range(8)]
        for client in clients:
            await committed(client, Q, persistent=persistent)
        await trio.sleep(2)
        texts = await drained(stage, Q, 2 * COUNT)
        for client in clients:
            await client.expect_receipt("committed")
        assert in_order(texts) == {client.name: list(range(COUNT)) for client in clients}


@pytest.mark.parametrize("engine", [True, False], ids=["store", "no store"])
async def test_nothing_comes_into_the_room_that_one_has_found(engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it takes effect in steps: the queues go over their limits by this COMMIT only, not by what others send."""
    looking = Commit.looking
    going_on: list[Callable[[], None]] = []

    def interrupted(self: Commit) -> Generator[object, None, bool]:
        waits = yield from looking(self)
        yield Waiting(going_on.append)
        return waits

    monkeypatch.setattr(Commit, "looking", interrupted)
    policies = {"/queue/>": {"count_max": COUNT, "full": "block"}}
    async with Stage(policies, engine=MemoryEngine() if engine else None) as stage:
        client, *rivals = [await stage.connect(name=f"client {number}") for number in range(4)]
        with tiny_steps():
            await committed(client, Q, OTHER)
            await trio.sleep(1)
            for rival in rivals:
                await rival.send_all(f"{Q},{OTHER}", ["rival"] * 3 * COUNT)
            await trio.sleep(1)
            [go_on] = going_on
            go_on()
            await client.expect_receipt("committed")
            await trio.sleep(1)
        for name in (Q, OTHER):
            assert stage.depth_count(name) == COUNT, "the others wait"
        for name in (Q, OTHER):
            texts = await drained(stage, name, 4 * COUNT)  # what one read brings goes in together
            assert texts == [f"{client.name} {number:03}" for number in range(COUNT)] + ["rival"] * 9 * COUNT


@pytest.mark.parametrize("engine", [True, False], ids=["store", "no store"])
async def test_one_that_is_refused_leaves_its_queues_to_others(steps: str, engine: bool) -> None:
    """It has kept their turns."""
    policies = {"/queue/refuses": {"count_max": 1, "full": "reject"}}
    async with Stage(policies, engine=MemoryEngine() if engine else None) as stage:
        client, other = await stage.connect(), await stage.connect()
        await committed(client, Q, OTHER, "/queue/refuses")
        await client.expect_error("has no room")
        for name in (Q, OTHER):
            await other.sent(name)


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "not persistent"])
@pytest.mark.parametrize("place", ["no store", "in memory", "spooled"])
async def test_a_queue_that_rejects_takes_what_it_has_room_for(steps: str, place: str, persistent: bool) -> None:
    """Room is promised to one of them, and the others are refused."""
    limits: dict[str, Any] = {"transaction_bytes_max": 500} if place == "spooled" else {}
    engine = None if place == "no store" else MemoryEngine()
    async with Stage({Q: {"count_max": 2 * COUNT + 1, "full": "reject"}}, engine=engine, **limits) as stage:
        clients = [await stage.connect() for _ in range(8)]
        for client in clients:
            await committed(client, Q, persistent=persistent)
        await trio.sleep(2)
        assert stage.depth_count(Q) == 2 * COUNT
        for client in clients:
            client.receive_now()
        assert sum("committed" in client.receipts for client in clients) == 2
        single = await stage.connect()
        await single.sent(Q, "the last place")
        assert len(await stage.drain_queues()) == 2 * COUNT + 1


async def test_what_was_promised_to_a_refused_one_is_free_again(steps: str) -> None:
    policies = {Q: {"count_max": COUNT, "full": "reject"}, OTHER: {"count_max": 1, "full": "reject"}}
    async with Stage(policies, engine=MemoryEngine()) as stage:
        client, second = await stage.connect(), await stage.connect()
        await committed(client, Q, OTHER)
        await client.expect_error("has no room")
        await committed(second, Q)
        await second.expect_receipt("committed")


async def test_who_comes_to_its_turn_looks_for_room_then() -> None:
    """Many have found room, and wait for a large one of another connection."""
    with tiny_steps():
        async with Stage({Q: {"count_max": COUNT, "full": "block"}}, engine=MemoryEngine()) as stage:
            store = stage.broker.store
            assert isinstance(store, StoreQueue)
            joint = store.join(store)
            clients = [await stage.connect() for _ in range(8)]
            for client in clients:
                await committed(client, Q)
            await trio.sleep(1)
            assert stage.depth_count(Q) == 0
            joint.end()
            await trio.sleep(1)
            assert stage.depth_count(Q) == COUNT
            texts = await drained(stage, Q, 2 * COUNT)
            assert in_order(texts) == {client.name: list(range(COUNT)) for client in clients}


@pytest.mark.parametrize("place", ["no store", "in memory"])
async def test_a_turn_that_comes_before_it_is_waited_for(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the transaction ends the turns that it has in its queues."""
    names = [f"/queue/{number}" for number in range(LANES_PER_STEP)]
    async with Stage(engine=None if place == "no store" else MemoryEngine()) as stage:
        turns = stage.broker.store or stage.broker.registry.turns
        joint = turns.join(next(iter(stage.broker.manager.resources)))
        ending_turns = Commit.ending_turns

        def interrupted(self: Commit) -> Iterator[None]:
            for _step in ending_turns(self):
                joint.end()
                yield

        monkeypatch.setattr(Commit, "ending_turns", interrupted)
        client = await stage.connect()
        with tiny_steps():
            await committed(client, *names, count=1)
            await client.expect_receipt("committed")


async def test_who_waits_for_a_turn_does_nothing_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of its connection waits behind it."""
    dispatches_count = 0
    dispatch = Session._dispatch

    def counted(self: Session, budget: int) -> bool:
        nonlocal dispatches_count
        dispatches_count += 1
        assert dispatches_count < 1_000, "it looks again and again"
        return dispatch(self, budget)

    monkeypatch.setattr(Session, "_dispatch", counted)
    with tiny_steps():
        async with Stage(engine=MemoryEngine()) as stage:
            store = stage.broker.store
            assert isinstance(store, StoreQueue)
            joint = store.join(store)
            client = await stage.connect()
            await committed(client, Q)
            await client.send(OTHER, "behind it")
            await trio.sleep(1)
            assert not stage.depth_count(OTHER)
            joint.end()
            await client.expect_receipt("committed")
            await trio.sleep(1)
            assert stage.depth_count(OTHER) == 1


async def test_the_map_says_whose_turn_it_is() -> None:
    with tiny_steps():
        async with Stage({Q: {"count_max": COUNT, "full": "block"}}, engine=MemoryEngine()) as stage:
            store = stage.broker.store
            assert isinstance(store, StoreQueue)
            first, second = await stage.connect(name="first"), await stage.connect(name="second")
            (lanes,) = [
                each for each in stage.broker.manager.resources if "first" in each.name and each.kind == "connection"
            ]
            joint = store.join(lanes)
            await committed(second, Q)
            await trio.sleep(1)
            [chain] = stage.chains()
            assert "second waits on connection" in chain and "first" in chain and "large transaction" in chain, chain
            joint.end()
            await second.expect_receipt("committed")
            await committed(first, Q)
            await trio.sleep(1)
            assert any("first waits on queue /queue/work" in chain for chain in stage.chains())


async def test_one_that_waits_for_a_full_queue_keeps_nobody_from_others(steps: str) -> None:
    """Nor from its own other queues."""
    async with Stage({"/queue/>": {"count_max": COUNT, "full": "block"}}, engine=MemoryEngine()) as stage:
        waiting, others = await stage.connect(), [await stage.connect() for _ in range(5)]
        await waiting.send_all(Q, [f"before {n:03}" for n in range(COUNT)])
        await committed(waiting, OTHER, Q)
        await trio.sleep(1)
        assert stage.depth_count(OTHER) == 0
        for number, client in enumerate(others):
            await committed(client, OTHER if number % 2 else f"/queue/{number}", count=2)
            await client.expect_receipt("committed")


async def test_it_comes_through_where_others_fill_its_queues_in_turns(steps: str) -> None:
    """It gets its turn in one of them while the other is full, again and again."""
    names = (Q, OTHER)
    async with Stage({"/queue/>": {"count_max": 1, "full": "block"}}, engine=MemoryEngine()) as stage:
        rivals = {name: [await stage.connect() for _ in range(3)] for name in names}
        consumers = [await stage.connect() for _ in names]
        both = await stage.connect(name="both")
        counts = dict.fromkeys(names, 0)
        for name in names:
            for rival in rivals[name]:
                for number in range(60):
                    await rival.send(name, "rival", k=str(number))  # each is a run of its own
        await committed(both, *names, count=2)
        came: dict[str, list[str]] = {name: [] for name in names}

        async def consume(consumer: Client, name: str) -> None:
            await consumer.subscribe(name, ack="client", prefetch_count="1")
            for _ in range(120):
                delivery = await consumer.next_message()
                came[name].append(delivery.text)
                counts[name] = max(counts[name], stage.depth_count(name))
                await consumer.ack(delivery)

        async with trio.open_nursery() as nursery:
            for consumer, name in zip(consumers, names, strict=True):
                nursery.start_soon(consume, consumer, name)
        both.receive_now()
        assert "committed" in both.receipts
        for name in names:
            assert [text for text in came[name] if text.startswith("both")] == ["both 000", "both 001"]
            assert counts[name] <= 3
        for consumer in consumers:
            consumer.vanish()
