"""ACKs, NACKs and ends in bites: whatever comes between two of them, it is as if there was one."""

from __future__ import annotations

import random

import pytest
import trio

from tests.how_often import rounds
from tests.scenarios.random_settling import DEAD, Crowd, OneConsumer, Q, make_small
from tests.scenarios.stage import Stage

ONE_SEEDS = range(rounds(5))
CROWD_SEEDS = range(rounds(5))


@pytest.fixture(autouse=True, params=["small bites", "as it comes"])
def bites(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small bites":
        make_small(monkeypatch)


@pytest.mark.parametrize("seed", ONE_SEEDS)
async def test_a_lone_consumer_gets_the_lowest_that_is_there(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice([None, 1, 2])
    policy = {} if most is None else {"redeliveries_max": most, "dead_letter": DEAD}
    if chance.random() < 0.5:
        policy["memory_bytes"] = 20_000
    async with Stage({Q: policy}) as stage:
        sender, client = await stage.connect(name="sender"), await stage.connect(name="consumer")
        model = OneConsumer(
            stage, chance, sender, client, chance.choice(["client", "client-individual"]), chance.choice([3, 40]), most
        )
        await model.subscribe()
        for _ in range(30):
            await model.round()
        await model.check()
        await client.disconnect()
        await stage.settled_down()
        reader = await stage.connect()
        await reader.subscribe(Q)
        expected = sorted([*model.available, *(number for number, _delivery in model.in_hand)])
        assert [int(delivery.text) for delivery in await reader.drain()] == expected
        await reader.subscribe(DEAD, id="dead")
        assert sorted(int(delivery.text) for delivery in await reader.drain()) == sorted(model.dead)


@pytest.mark.parametrize("seed", CROWD_SEEDS)
async def test_nothing_is_lost_or_with_two_at_once(seed: int) -> None:
    chance = random.Random(seed)
    async with Stage({Q: {"memory_bytes": 20_000} if seed % 2 else {}}) as stage:
        sender = await stage.connect(name="sender")
        crowd = Crowd(stage, chance, groups=seed % 3 == 1, priorities=seed % 3 == 2)
        for _ in range(3):
            await crowd.join()
        for _ in range(60):
            await crowd.send(sender, chance.choice([0, 1, 8, 20]))
            for _ in range(chance.randrange(6)):
                await trio.lowlevel.checkpoint()
            crowd.look()
            await crowd.act()
            if chance.random() < 0.2:
                await stage.settled_down()
        await stage.settled_down()
        await crowd.finish()
