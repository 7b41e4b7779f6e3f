"""Whole hubs from many seeds keep their promises while their shards move; and the parts of that simulation are true."""

from __future__ import annotations

from random import Random

import attrs
import pytest
import trio

from sluiceway.queues.shard_hash import shard_of
from sluiceway.simulation import Faults, Subscription, run, run_seeds
from sluiceway.store.engine import FencedError, put
from tests.cluster.moving import KINDS, SESSION_SECONDS, MovingHistory, MovingPlan, MovingSimulation, laws_hold
from tests.cluster.shared_engine import LawBrokenError, SharedDatabase
from tests.cluster.stopped import Standstill
from tests.cluster.whole import Link

GROUPS = 1
SEEDS_IN_GROUP = 3


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.timeout(300)
def test_promises_are_kept_wherever_shards_move(group: int) -> None:
    """More seeds: python -m tests.cluster.play --messages --seeds 1000."""
    run_seeds(laws_hold, first=group * SEEDS_IN_GROUP, seeds=SEEDS_IN_GROUP)


@pytest.mark.timeout(300)
def test_the_same_seed_is_the_same_history_and_every_fault_is_planned() -> None:
    async def fingerprint(seed: int) -> tuple[str, dict[str, int]]:
        plan = MovingPlan.of(seed)
        async with MovingSimulation(plan, seed) as world:
            await MovingHistory(world, plan).play()
        return world.fingerprint, dict(world.injected)

    first, again = (run(fingerprint, 5, seed=5) for _ in range(2))
    assert first == again
    assert {step.what for seed in range(20) for step in MovingPlan.of(seed).steps} == set(KINDS)


def quiet(session_seconds: float = SESSION_SECONDS) -> MovingSimulation:
    """Return two hubs without faults, which are not started."""
    plan = attrs.evolve(
        MovingPlan.of(0),
        plan=attrs.evolve(MovingPlan.of(0).plan, hubs=("hub1", "hub2"), faults=Faults()),
        shards_count=2,
        engine_fails=0.0,
        drift=0.0,
        expected=True,
    )
    world = MovingSimulation(plan, 0)
    world.session_seconds = session_seconds
    return world


def test_shards_that_are_said_with_the_end_of_a_handshake_are_news() -> None:
    """Seed 52: a session had looked while there was no link, and was not told that it should look again."""

    async def history() -> list[str]:
        heard: list[str] = []
        async with quiet() as world:
            await world.start()
            await world.homes()
            links = world.hub("hub1").broker.links
            assert links is not None
            link = links._open.pop("hub2")
            links._shards_changed = heard.append
            links._link_opened(link)
        return heard

    assert run(history)[:1] == ["hub2"]


def test_a_hub_that_stops_behind_another_owner_ends_in_order() -> None:
    """Seed 133: the service was away, so nothing was handed over; the stop ended with an exception."""

    async def history() -> int:
        async with quiet() as world:
            await world.start()
            await world.homes()
            hub = world.hub("hub1")
            (shard,) = hub.member.open_shards
            hub.member.ownership.leave = lambda done: done()
            world.database.engine_of("hub2")(shard, 2)
            await hub.stop()
            return world.database.owner(shard)[1]

    assert run(history) >= 2


@pytest.mark.parametrize("how", ["stands still", "is cut off", "hears late"])
def test_what_a_hub_hears_later_than_its_owner_waits_is_not_delivered(how: str) -> None:
    """Its session is long, so it is in the cluster still; the owner has given the message to another client, which has
    acknowledged it. `hears late`: nothing of the hub comes to the owner, then what the owner has sent comes late.
    """

    async def history() -> list[str]:
        came: list[str] = []

        async def take(messages: Subscription) -> None:
            async for message in messages:
                came.append(message.text)
                await messages.acknowledge(message)

        async with quiet(session_seconds=40.0) as world, trio.open_nursery() as taking:
            await world.start()
            await world.homes()
            hub, owner = world.hub("hub1"), world.hub("hub2")
            (shard,) = owner.member.open_shards
            queue = next(name for name in (f"/queue/{n}" for n in range(99)) if shard_of(name, 2) == shard)
            far, near = await world.client(hub, name="far"), await world.client(owner, name="near")
            messages = await far.subscribe(queue)
            taking.start_soon(take, messages)
            await near.publish(queue, "before")
            await trio.sleep(1)
            (link,) = [each for each in hub.connections if isinstance(each, Link)]
            match how:
                case "stands still":
                    hub.pause()
                case "is cut off":
                    link.there.lose()
                    link.back.lose()
                case "hears late":
                    link.there.lose()
                    await trio.sleep(9)
                    link.back.lose()
            await near.publish(queue, "late")
            others = await near.subscribe(queue)
            with trio.fail_after(20):
                late = await anext(others)
            assert late.text == "late"
            assert late.headers.get("redelivered") == "true"
            await others.acknowledge(late)
            if how == "hears late":  # and of its end nothing yet
                assert link.back._pieces.pop()[1] == b""
                link.back.is_ended = False
            link.back.is_lost = False
            link.back.wake()
            hub.wake()
            await trio.sleep(1)
            await others.unsubscribe()
            await near.publish(queue, "behind")
            await trio.sleep(30)
            taking.cancel_scope.cancel()
        return came

    assert run(history) == ["before", "behind"]


def test_a_stopped_hub_does_nothing_and_its_engine_refuses_it_when_it_wakes() -> None:
    async def history() -> tuple[int, set[int], set[int]]:
        async with quiet() as world:
            await world.start()
            await world.homes()
            hub, other = world.hub("hub1"), world.hub("hub2")
            hub.pause()
            turns_count = hub.broker.dispatcher.statistics().turns_count
            await trio.sleep(30)
            assert hub.broker.dispatcher.statistics().turns_count <= turns_count + 1
            taken = set(other.member.open_shards)
            hub.wake()
            await trio.sleep(30)
            return world.database.owner(0)[1] + world.database.owner(1)[1], taken, set(hub.member.open_shards)

    epochs, taken, back = run(history)
    assert taken == {0, 1}
    assert len(back) == 1
    assert epochs == 4, "each owner once, the one that came back with another epoch"


def test_the_shared_engine_is_one_owner_s_and_keeps_what_was_synced() -> None:
    database = SharedDatabase(Random(1))
    first = database.engine_of("a")(3, 1)
    first.write([put(b"k", b"1")], sync=True)
    first.write([put(b"k", b"2")], sync=False)
    database.restart()
    assert first.get(b"k") == b"2", "its owner had kept it"
    with pytest.raises(FencedError):
        database.engine_of("a")(3, 1)  # an epoch is taken once
    with pytest.raises(LawBrokenError, match="owners: b and a"):
        database.engine_of("b")(3, 1)
    second = database.engine_of("b")(3, 2)
    for use in (lambda: first.write([], sync=False), lambda: first.get(b"k")):
        with pytest.raises(FencedError):
            use()
    assert second.get(b"k") == b"2"
    database.unreachable.add("b")
    with pytest.raises(Exception, match="can't be reached"):
        second.get(b"k")


def test_a_task_that_stands_still_misses_nothing() -> None:
    async def history() -> list[str]:
        seen: list[str] = []

        async def sleeper(task_status: trio.TaskStatus[trio.lowlevel.Task]) -> None:
            task_status.started(trio.lowlevel.current_task())
            async with trio.open_nursery() as below:
                below.start_soon(trio.sleep, 1)
            seen.append(f"slept until {trio.current_time() - began:g}")
            await trio.sleep_forever()

        began = trio.current_time()
        with Standstill() as standstill:
            async with trio.open_nursery() as nursery:
                task = await nursery.start(sleeper)
                standstill.stop(task)
                await trio.sleep(5)
                seen.append("wakes")
                standstill.go_on(task)
                await trio.sleep(1)
                standstill.stop(task)
                nursery.cancel_scope.cancel()
                standstill.go_on(task)
        return seen

    assert run(history) == ["wakes", "slept until 5"]
