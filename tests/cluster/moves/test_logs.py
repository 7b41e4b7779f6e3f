"""Logs whose shard moves while their groups are read, and written to by transactions."""

from __future__ import annotations

import pytest

from sluiceway.queues.shard_hash import shard_of
from tests.cluster.moves.moving_hubs import SHARDS, MovingHubs
from tests.scenarios.client import Client

LOG, OUT = "/log/{orders}", "/log/{orders}.out"


@pytest.mark.parametrize(("way", "order"), [("move", {"order": "by-key"}), ("crash", {"exclusive": "true"})])
async def test_a_group_continues_with_its_order_where_its_shard_goes(way: str, order: dict[str, str]) -> None:
    """What was acknowledged by COMMIT is not read again, and its records are in the other log once."""
    async with MovingHubs() as hubs:
        shard = shard_of(LOG, SHARDS)
        owner = hubs.owners()[shard]
        other = "b" if owner == "a" else "a"
        clients = [await hubs.connect(other), await hubs.connect(other)]
        producer = await hubs.connect(other)
        for number in range(12):
            await producer.sent(LOG, str(number), key=f"k{number % 3}")
        for client in clients:
            await client.subscribe(
                LOG, group="g", ack="client-individual", prefetch_count="2", **{"from": "earliest"}, **order
            )
        done: list[tuple[str, bool]] = []
        for _ in range(2):
            await _pass_on(clients, done)
        for client in clients:
            await client.drain(0.05)  # what is in its hands is delivered again, marked
        if way == "move":
            await hubs.member("a").move(shard, other)
        else:
            await hubs.crash(owner)
        await hubs.until(lambda: hubs.owners()[shard] == other)
        while len(done) < 12:
            await _pass_on(clients, done)
        for key in range(3):
            numbers = [int(text) for text, _marked in done if int(text) % 3 == key]
            assert numbers == list(range(key, 12, 3)), "each once, in the order of its key"
        await producer.subscribe(OUT, id="out", **{"from": "earliest"})
        assert sorted([int(each.text) for each in await producer.drain()]) == list(range(12))


async def _pass_on(clients: list[Client], done: list[tuple[str, bool]]) -> None:
    for client in clients:
        for delivery in await client.drain(0.05):
            await client.frame("BEGIN", {"transaction": "t"})
            await client.send(OUT, delivery.text, transaction="t")
            await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
            await client.request("COMMIT", {"transaction": "t"})
            done.append((delivery.text, delivery.redelivered))
