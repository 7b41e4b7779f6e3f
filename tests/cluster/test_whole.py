"""Whole hubs from many seeds keep their promises; and the simulation would notice if they did not."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.left_behind import LeftBehind
from sluiceway.simulation import Faults, SeedError, run, run_seeds
from tests.cluster.whole import ClusterSimulation, History, Link, Plan, laws_hold
from tests.how_often import rounds

GROUPS = rounds(2)
SEEDS_IN_GROUP = 4


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.timeout(300)
def test_promises_are_kept_whatever_happens(group: int) -> None:
    """More seeds: python -m tests.cluster.play --messages --seeds 1000."""
    run_seeds(laws_hold, first=group * SEEDS_IN_GROUP, seeds=SEEDS_IN_GROUP)


@pytest.mark.timeout(300)
def test_every_fault_comes_up_and_the_same_seed_is_the_same_history() -> None:
    async def fingerprint(seed: int) -> tuple[str, dict[str, int]]:
        plan = Plan.of(seed)
        async with ClusterSimulation(hubs=plan.hubs, seed=seed, faults=plan.faults) as world:
            await History(world, plan).play()
        return world.fingerprint, dict(world.injected)

    injected: set[str] = set()
    for seed in (1, 2):
        first, again = (run(fingerprint, seed, seed=seed) for _ in range(2))
        assert first == again
        injected |= first[1].keys()
    assert {"cut", "crash"} <= injected
    faults = [Plan.of(seed).faults for seed in range(20)]
    assert all(any(getattr(each, kind) for each in faults) for kind in ("cut", "half_cut", "split", "stall", "disk"))


async def what_comes_after_a_cut() -> list[tuple[str, bool]]:
    """Have a SEND wait at a full queue of another hub while the link is cut; return the deliveries, and their marks."""
    found: list[tuple[str, bool]] = []
    async with ClusterSimulation(hubs=("hub1", "hub2"), seed=0, faults=Faults()) as world:
        await world.start(destinations={"/queue/>": {"count_max": 1}})
        producer = await world.client(world.machines["hub1"])
        await producer.publish("/queue/hub2.a", "fills it")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.publish, "/queue/hub2.a", "waits")
            await trio.sleep(1)
            for connection in world.machines["hub2"].connections:
                if isinstance(connection, Link):
                    connection.cut()
            await trio.sleep(5)
            arrivals = await (await world.client(world.machines["hub2"])).subscribe("/queue/hub2.a")
            with trio.move_on_after(10):
                while True:
                    message = await arrivals.receive()
                    found.append((message.text, message.headers.get("possible-duplicate") == "true"))
    return found


def test_a_send_that_waits_at_another_hub_when_the_link_is_cut_does_not_come_twice() -> None:
    """The hub of the client sends anew; the first copy had no RECEIPT, and would come behind the second, unmarked."""
    assert run(what_comes_after_a_cut) == [("fills it", False), ("waits", True)]


def test_the_laws_notice_a_second_copy_without_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens if the first copy stays."""
    adopting = LeftBehind._adopting
    monkeypatch.setattr(
        LeftBehind,
        "_adopting",
        lambda self, parked, remains, without_owed: adopting(self, parked, remains, without_owed=False),
    )
    assert sorted(run(what_comes_after_a_cut)) == [("fills it", False), ("waits", False), ("waits", True)]
    monkeypatch.setattr("sluiceway.simulation.seeds.SMALLER_RUNS_MAX", 0)  # the first history tells enough
    with pytest.raises(SeedError, match=r"(settled|marked|order): "):
        run_seeds(laws_hold, seeds=[136])
