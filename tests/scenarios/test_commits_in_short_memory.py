"""Seeded races in a memory that is short all the time: COMMITs to several queues, SENDs, and consumers of different
speeds. Whatever waits for whatever, all of it comes to its consumers, in order, and nobody is passed over for long.
"""

from __future__ import annotations

from contextlib import ExitStack
from random import Random
from typing import Final

import pytest
import trio

from sluiceway.protocols.stomp.committing import VAIN_COUNT_MAX
from sluiceway.store.memory import MemoryEngine
from tests.how_often import rounds
from tests.scenarios.client import Client
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.stage import Stage
from tests.scenarios.tiny_steps import tiny_steps

QUEUES: Final = ("/queue/a", "/queue/b", "/queue/c", "/queue/d")
SEEDS_AT_ONCE: Final = 6
PASSED_COUNT_MAX: Final = VAIN_COUNT_MAX + 2
"""While one COMMIT waits, each of the others that do the same carries out no more of them: so often it looks in vain,
and goes to its queues by itself then. One that comes off badly several times in a row falls behind by more."""


class Race:
    """One broker, whose memory takes hardly more than what waits."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._stage = Stage(engine=MemoryEngine() if random.random() < 0.5 else None)
        self._wanted: dict[str, dict[str, list[int]]] = {name: {} for name in QUEUES}
        """By queue and sender, what is to come."""
        self._came: dict[str, dict[str, list[int]]] = {name: {} for name in QUEUES}

    async def run(self) -> None:
        random = self._random
        async with self._stage as stage:
            budget = stage.broker.memory.budget
            budget.resize(random.choice((32_768, 500_000, 1_000_000)))
            with trio.fail_after(5_000):
                async with trio.open_nursery() as nursery:
                    for number in range(random.choice((3, 8))):
                        nursery.start_soon(self._send, f"sender {number}")
                    await trio.sleep(random.choice((0, 3)))
                    for name in QUEUES:
                        nursery.start_soon(self._consume, name, random.choice((0, 0, 0.01, 0.2)))
            assert self._came == self._wanted
            assert stage.broker.faults.count == 0

    async def _send(self, name: str) -> None:
        """A script that is made before, so that the consumers know what comes; sent as fast as it is read."""
        random = self._random
        client = await self._stage.connect(name=name)
        frames: list[bytes] = []
        persistent = random.choice(("true", "false"))
        number = 0
        for script in range(random.choice((1, 5, 20))):
            in_transaction = random.random() < 0.7
            body_bytes = random.choice((10, 1_000, 20_000))
            head = {"persistent": persistent}
            if in_transaction:
                head["transaction"] = f"t{script}"
                frames.append(client.encode("BEGIN", {"transaction": head["transaction"]}))
            for _ in range(random.choice((1, 2, 5))):
                names = random.sample(QUEUES, random.choice((1, 2, 3, 4)))
                body = f"{name}:{number}:".ljust(body_bytes, "x")
                frames.append(client.encode("SEND", {"destination": ",".join(names), **head}, body))
                for to in names:
                    self._wanted[to].setdefault(name, []).append(number)
                number += 1
            if in_transaction:
                frames.append(
                    client.encode("COMMIT", {"transaction": head["transaction"], "receipt": head["transaction"]})
                )
        await write(client, b"".join(frames))

    async def _consume(self, name: str, pause_seconds: float) -> None:
        client = await self._stage.connect()
        await client.subscribe(name, ack="client-individual", prefetch_count=self._random.choice(("1", "10")))
        while self._came[name] != self._wanted[name]:
            with trio.fail_after(300):
                delivery = await until_one_comes(client)
            sender, number, _rest = delivery.split(":", 2)
            self._came[name].setdefault(sender, []).append(int(number))
            await trio.sleep(pause_seconds)
        client.vanish()


async def until_one_comes(client: Client) -> str:
    """The next MESSAGE, acknowledged."""
    while not client.messages:
        assert not client.ended
        await client._receive()
    delivery = client.messages.popleft()
    await client.frame("ACK", {"id": delivery.headers["ack"]})
    return delivery.text


async def write(client: Client, data: bytes) -> None:
    """As fast as the broker reads; what it answers is taken."""
    while data:
        client.receive_now()
        assert client.error is None and not client.ended, client.error
        taken_bytes = client.stream.write([data])
        data = data[taken_bytes:]
        if not taken_bytes:
            await trio.sleep(0.05)


def run_race(seed: int) -> None:
    """One of them; the same seed, the same race."""
    random = Random(seed)

    async def main() -> None:
        await Race(random).run()

    with ExitStack() as stack:
        if seed % 2:
            stack.enter_context(tiny_steps())
        run_in_virtual_time(main)


@pytest.mark.parametrize("part", range(rounds(1)))
def test_all_that_waits_for_memory_comes_to_its_consumers(part: int) -> None:
    """`run_race(seed)` plays one again."""
    for seed in range(part * SEEDS_AT_ONCE, (part + 1) * SEEDS_AT_ONCE):
        try:
            run_race(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_an_empty_queue_is_waived_also_where_the_memory_is_not_quite_full() -> None:
    """What three of them leased to look again filled it, and they were refused again, for ever."""
    run_race(106)


@pytest.mark.parametrize("engine", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("steps", [True, False], ids=["steps", "at once"])
@pytest.mark.parametrize("capacity_bytes", [32_768, 700_000])
async def test_of_those_that_do_the_same_nobody_is_passed_often(capacity_bytes: int, steps: bool, engine: bool) -> None:
    """Ten connections, each with one COMMIT to both queues after the other; others send to one of them."""
    done: dict[str, int] = {}
    passed_count = 0

    async def commit(client: Client) -> None:
        nonlocal passed_count
        done[client.name] = 0
        for number in range(12):
            name = {"transaction": str(number)}
            body = client.encode("SEND", {"destination": "/queue/a", **name}, "x" * 5_000)
            body += client.encode("SEND", {"destination": "/queue/b", **name}, "x" * 5_000)
            before = dict(done)
            await write(client, client.encode("BEGIN", name) + body)
            await write(client, client.encode("COMMIT", {**name, "receipt": str(number)}))
            while str(number) not in client.receipts:
                await client._receive()
            done[client.name] += 1
            passed_count = max(passed_count, *(count - before.get(other, 0) for other, count in done.items()))

    async def consume(client: Client, count: int, pause_seconds: float) -> None:
        for _ in range(count):
            await until_one_comes(client)
            await trio.sleep(pause_seconds)

    with ExitStack() as stack:
        if steps:
            stack.enter_context(tiny_steps())
        async with Stage(engine=MemoryEngine() if engine else None) as stage:
            stage.broker.memory.budget.resize(capacity_bytes)
            with trio.fail_after(2_000):
                async with trio.open_nursery() as nursery:
                    rivals = {name: await stage.connect(name=f"rival {name}") for name in QUEUES[:2]}
                    for name, rival in rivals.items():
                        one = rival.encode("SEND", {"destination": name}, "y" * 5_000)
                        nursery.start_soon(write, rival, one * 120)
                    for number in range(10):
                        nursery.start_soon(commit, await stage.connect(name=f"c{number}"))
                    for name, pause_seconds in (("/queue/a", 0.0), ("/queue/b", 0.05)):
                        consumer = await stage.connect()
                        await consumer.subscribe(name, ack="client-individual", prefetch_count="1")
                        nursery.start_soon(consume, consumer, 240, pause_seconds)
    assert 0 < passed_count <= PASSED_COUNT_MAX
