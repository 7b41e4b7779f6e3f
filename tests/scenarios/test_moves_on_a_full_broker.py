"""Messages that an operator moves, and dead letters, where queues or the memory are full: kill -9, a power cut or a
deletion in the midst of it. What was promised is in one place then, and nobody waits for ever.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, suppress
from random import Random
from typing import Any, Final

import pytest
import trio

from sluiceway.admin.errors import ApiError
from sluiceway.admin.messages import MessageReader
from sluiceway.admin.operations import Done, Operations
from sluiceway.store.memory import MemoryEngine
from tests.how_often import rounds
from tests.scenarios.client import Client
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage
from tests.scenarios.tiny_steps import tiny_steps

A: Final = "/queue/a"
B: Final = "/queue/b"
LETTERS: Final = "/queue/letters"
SEEDS_AT_ONCE: Final = 8


def operations(stage: Stage) -> tuple[Operations, MessageReader]:
    """What an operator can do there. The reader is to be closed at the end."""
    reader = MessageReader(stage.broker.manager)
    reader.open()
    return Operations(stage.broker, reader), reader


class Story:
    """One life that fills, consumes, refuses and moves at the same time, and one that counts what it left."""

    def __init__(self, random: Random) -> None:
        self._random = random
        places = (1, 5, 30)
        policies: dict[str, dict[str, Any]] = {
            A: {"redeliveries_max": 0, "dead_letter": LETTERS},
            B: {"count_max": random.choice(places), "full": "block"},
            LETTERS: {"count_max": random.choice(places), "full": "block"},
        }
        if random.random() < 0.3:
            policies[A] |= {"count_max": 40, "full": "dead_letter"}
        if random.random() < 0.5:
            for policy in policies.values():
                policy["memory_bytes"] = 20_000
        self._lives = Lives(policies)
        self._count = random.choice((20, 100))
        self._promised: set[int] = set()
        self._acked: set[int] = set()

    async def run(self) -> None:
        random = self._random
        async with self._lives.life(end=random.choice(("crash", "crash", "power cut", "in order"))) as stage:
            if random.random() < 0.5:
                stage.broker.memory.budget.resize(random.choice((32_768, 400_000)))
            acts, reader = operations(stage)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fill, stage)
                for name, nack_share in ((A, random.choice((0.5, 1))), (B, 0.1), (LETTERS, 0.1)):
                    if random.random() < 0.6:
                        nursery.start_soon(self._consume, stage, name, nack_share)
                for _ in range(2):
                    nursery.start_soon(self._operate, stage, acts)
                await trio.sleep(1 + random.choice((0.5, 2, 5, 20)) * random.random())
                nursery.cancel_scope.cancel()
            reader.close()
            assert stage.broker.faults.count == 0
        found: Counter[int] = Counter()
        async with self._lives.life() as stage:
            for body in await stage.drain_queues():
                found[int(body.split()[0])] += 1
        assert not [number for number, count in found.items() if count > 1], "in two places"
        assert self._promised <= self._acked | found.keys(), "lost"

    async def _fill(self, stage: Stage) -> None:
        client = await stage.connect()
        for number in range(self._count):
            body = f"{number} ".ljust(self._random.choice((10, 1_000)), "x")
            head = {"destination": A, "persistent": "true", "receipt": str(number), "k": str(number)}
            await client.frame("SEND", head, body)
        while True:
            await client._receive()
            while client.receipts:
                self._promised.add(int(client.receipts.popleft()))

    async def _consume(self, stage: Stage, name: str, nack_share: float) -> None:
        random = self._random
        client = await stage.connect()
        await client.frame(
            "SUBSCRIBE", {"destination": name, "id": "s", "ack": "client-individual", "prefetch-count": "3"}
        )
        while True:
            while not client.messages:
                await client._receive()
            delivery = client.messages.popleft()
            await trio.sleep(random.random() * 0.3)
            if random.random() < nack_share:
                await client.frame("NACK", client.naming(delivery))
            else:
                self._acked.add(int(delivery.text.split()[0]))
                await client.frame("ACK", client.naming(delivery))

    async def _operate(self, stage: Stage, acts: Operations) -> None:
        random = self._random
        there = stage.broker.registry.destinations
        while True:
            await trio.sleep(random.random())
            origin, to = random.choice(((A, B), (A, B), (B, A), (LETTERS, "")))
            if origin not in there:
                continue
            with suppress(ApiError):
                if to:
                    await acts.move(there[origin], to, None)
                else:
                    await acts.retry(there[origin], None, republish=True, may_send=lambda _name: True)


def run_story(seed: int) -> None:
    """One of them; the same seed, the same story."""
    random = Random(seed)

    async def main() -> None:
        await Story(random).run()

    with ExitStack() as stack:
        if seed % 2:
            stack.enter_context(tiny_steps())
        run_in_virtual_time(main)


@pytest.mark.parametrize("part", range(rounds(1)))
def test_what_was_promised_is_in_one_place_after_a_crash(part: int) -> None:
    """`run_story(seed)` plays one again."""
    for seed in range(part * SEEDS_AT_ONCE, (part + 1) * SEEDS_AT_ONCE):
        try:
            run_story(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def test_a_move_that_looks_for_a_few_of_many_keeps_nobody_from_their_queue() -> None:
    """It goes through tens of thousands of messages for two of them, and its turn comes while it does not wait."""
    async with Stage({B: {"count_max": 1, "full": "block"}}) as stage, trio.open_nursery() as nursery:
        acts, reader = operations(stage)
        client, consumer = await stage.connect(), await stage.connect()
        await client.send_all(A, range(40_000))
        await client.sent(B, "before")
        elements = stage.partitions(A)[0].elements
        first, last = elements.get(0), elements.get(elements.next_sequence - 1)
        assert first is not None and last is not None
        await consumer.subscribe(B, ack="client-individual", prefetch_count="1")
        before = await consumer.next_message()
        done: list[Done] = []

        async def move() -> None:
            done.append(await acts.move(stage.destination(A), B, frozenset((first.number, last.number))))

        nursery.start_soon(move)
        await trio.sleep(0.01)
        await consumer.ack(before)
        await consumer.ack(await consumer.next_message())
        await client.sent(B, "of somebody else")
        assert not done, "it goes on"
        texts = []
        for _ in range(2):
            delivery = await consumer.next_message()
            texts.append(delivery.text)
            await consumer.ack(delivery)
        assert texts == ["of somebody else", "39999"]
        await trio.sleep(1)
        assert done[0].done == {"moved_count": 2, "skipped_count": 0, "complete": True}
        reader.close()


@pytest.mark.parametrize("engine", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("deleted", [A, B])
async def test_a_queue_that_is_deleted_while_a_move_waits_for_room(deleted: str, engine: bool) -> None:
    """What was moved is in the other queue, once; what was deleted is gone."""
    store = MemoryEngine() if engine else None
    with tiny_steps():
        async with Stage({B: {"count_max": 5, "full": "block"}}, engine=store) as stage:
            acts, reader = operations(stage)
            client = await stage.connect()
            await client.send_all(A, range(300), persistent="true")
            await client.sync()

            async def consume(consumer: Client, texts: list[str]) -> None:
                while True:
                    while not consumer.messages:
                        await consumer._receive()
                    delivery = consumer.messages.popleft()
                    texts.append(delivery.text)
                    await consumer.ack(delivery)

            texts: list[str] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(acts.move, stage.destination(A), B, None)
                await trio.sleep(0.5)
                stage.broker.registry.delete(stage.destination(deleted), "a test")
                consumer = await stage.connect()
                await consumer.subscribe(B, ack="client-individual", prefetch_count="1")
                nursery.start_soon(consume, consumer, texts)
                await trio.sleep(20)
                nursery.cancel_scope.cancel()
            assert texts == [str(n) for n in (range(5) if deleted == A else range(5, 300))]
            assert stage.broker.faults.count == 0
            reader.close()
