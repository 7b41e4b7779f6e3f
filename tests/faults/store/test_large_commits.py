"""Large COMMITs while the store fails, or their broker stops: no RECEIPT for what is not safe, nothing torn, and nobody
who waits is left behind.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.faulty import Failure

QUEUES = ("/queue/a", "/queue/b", "/queue/c")
COUNT = 300
IN = "/queue/in"

SPOOLS = pytest.mark.parametrize("spools", [False, True], ids=["in memory", "spooled"])


def lives_of(*, spools: bool) -> Lives:
    return Lives(**({"transaction_bytes_max": 20_000} if spools else {}))


async def take(client: Client) -> list[dict[str, str]]:
    """One message of IN, unacknowledged: how an ACK names it."""
    await client.subscribe(IN, id="in", ack="client-individual", prefetch_count="1")
    return [client.naming(await client.next_message())]


async def commit(client: Client, name: str, acks: list[dict[str, str]]) -> str:
    """Sends all of a large transaction; returns the RECEIPT that its COMMIT asks for."""
    frames = [client.encode("BEGIN", {"transaction": name})]
    frames += [client.encode("ACK", {**naming, "transaction": name}) for naming in acks]
    for number in range(COUNT):
        headers = {"destination": QUEUES[number % len(QUEUES)], "persistent": "true", "transaction": name}
        frames.append(client.encode("SEND", headers, f"{name} {number}"))
    frames.append(client.encode("COMMIT", {"transaction": name, "receipt": name}))
    await client.send_raw(b"".join(frames))
    return name


async def found(lives: Lives) -> tuple[dict[str, int], int]:
    """In a new life: how many messages of each transaction there are, and how many inputs."""
    counts: dict[str, int] = {}
    async with lives.life() as stage:
        reader = await stage.connect()
        for queue in QUEUES:
            await reader.subscribe(queue, id=queue)
        texts = [delivery.text for delivery in await reader.drain(3)]
        assert len(texts) == len(set(texts)), "nothing comes twice"
        for text in texts:
            name = text.split()[0]
            counts[name] = counts.get(name, 0) + 1
        await reader.subscribe(IN, id="in")
        return counts, len(await reader.drain(3))


@SPOOLS
@pytest.mark.parametrize("end", ["heals", "in order", "crash", "power cut"])
async def test_while_the_disk_fails_none_is_confirmed_and_none_comes_apart(spools: bool, end: str) -> None:
    lives = lives_of(spools=spools)
    names = ["one", "two", "three"]
    async with lives.life(end="in order" if end == "heals" else end) as stage:
        producer = await stage.connect()
        for name in names:
            await producer.sent(IN, name, persistent="true")
        clients = [await stage.connect() for _ in names]
        acks = [await take(client) for client in clients]
        lives.engine.fail_at_rate(Failure.WRITE, 1.0)
        for client, name, naming in zip(clients, names, acks, strict=True):
            await commit(client, name, naming)
        await trio.sleep(30)
        for client in clients:
            client.receive_now()
            assert not client.receipts
            assert client.error is None, "it waits"
        if end in ("heals", "in order"):
            lives.engine.fail_at_rate(Failure.WRITE, 0)
        if end == "heals":
            for client, name in zip(clients, names, strict=True):
                await client.expect_receipt(name)
    counts, left_count = await found(lives)
    if end == "heals":
        assert counts == dict.fromkeys(names, COUNT)
    assert set(counts.values()) <= {COUNT}, "whole, or not at all"
    assert left_count == len(names) - len(counts), "what none has acknowledged is there"


@SPOOLS
@pytest.mark.parametrize("steps_count", [0, 5, 40, 150, 400])
async def test_a_broker_that_stops_in_the_midst_of_several_leaves_nothing_torn(spools: bool, steps_count: int) -> None:
    """Stopped in order: a COMMIT that came is carried out (b50), or its client has no RECEIPT."""
    lives = lives_of(spools=spools)
    names = ["one", "two", "three"]
    receipts: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(tiny_steps())
        async with lives.life() as stage:
            producer = await stage.connect()
            for name in names:
                await producer.sent(IN, name, persistent="true")
            clients = [await stage.connect() for _ in names]
            acks = [await take(client) for client in clients]
            for client, name, naming in zip(clients, names, acks, strict=True):
                await commit(client, name, naming)
            for _ in range(steps_count):
                await trio.lowlevel.checkpoint()
            await stage.broker.stop()
            for client in clients:
                client.receive_now()
                receipts += [receipt for receipt in client.receipts if receipt in names]
        counts, left_count = await found(lives)
    assert set(receipts) <= set(counts), "what was confirmed is there"
    assert set(counts.values()) <= {COUNT}, "whole, or not at all"
    assert left_count == len(names) - len(counts)
