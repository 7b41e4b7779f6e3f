"""`/sluiceway/cluster`: where clients find what, while shards move."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.moves.moving_hubs import SHARDS, MovingHubs, names
from tests.scenarios.client import Client


async def directions(client: Client, **facts: Any) -> dict[str, Any]:
    """Return the answer to a request of a client that reads its answers."""
    await client.send("/sluiceway/cluster", json.dumps(facts), reply_to="/temp-queue/answers")
    told = json.loads((await client.next_message()).body)
    assert told["ok"], told
    return dict(told)


async def asker(hubs: MovingHubs, hub: str) -> Client:
    client = await hubs.connect(hub)
    await client.subscribe("/temp-queue/answers", id="answers")
    return client


async def test_every_hub_tells_clients_the_same_of_owners_before_and_after_a_crash() -> None:
    """The hub that answers, all hubs with their addresses, and the owner of each shard and name with its epoch."""
    queues = names("/queue/q")
    async with MovingHubs() as hubs:
        clients = {hub: await asker(hubs, hub) for hub in "ab"}
        told = {hub: await directions(client, names=queues) for hub, client in clients.items()}
        owners = hubs.owners()
        for hub, of_hub in told.items():
            assert (of_hub["hub"], of_hub["cluster"], of_hub["shards_count"]) == (hub, "0123abcd", SHARDS)
            assert [row["hub"] for row in of_hub["shards"]] == owners
            assert [(row["shard"], row["hub"], row["words"]) for row in of_hub["homes"]] == [
                (shard, owner, "") for shard, owner in enumerate(owners)
            ]
            assert {row["name"]: row["clients"] for row in of_hub["hubs"]} == {
                name: run.broker.urls for name, run in hubs.running.items()
            }
        assert told["a"]["shards"] == told["b"]["shards"]
        temporary = "/remote-temp-queue/" + clients["b"].connected.headers["session"] + ".x"  # type: ignore[union-attr]
        (home,) = (await directions(clients["a"], names=[temporary], shards=False))["homes"]
        assert (home["hub"], home["shard"]) == ("b", None)

        await hubs.crash("b")
        await hubs.balanced()
        after = await directions(clients["a"], names=queues)
        assert {row["hub"] for row in after["homes"]} == {"a"}
        assert [row["name"] for row in after["hubs"]] == ["a"]
        for before, now in zip(told["a"]["shards"], after["shards"], strict=True):
            assert (now["epoch"] > before["epoch"]) == (before["hub"] == "b")
