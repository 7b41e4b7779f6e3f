"""Dead letters whose queue is at another hub."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from sluiceway.config import DestinationPolicy
from tests.cluster.links.operators import operated
from tests.cluster.links.two_hubs import TwoHubs

DEAD = "/queue/b.dead"


def hubs_with(dead: dict[str, Any] | None = None, **policy: Any) -> TwoHubs:
    """Two hubs; messages of the hub `a` have their dead-letter queue at the hub `b`. `dead`: settings of that queue."""
    given = {"dead_letter": DEAD, "redeliveries_max": 0, **policy}
    policies = [DestinationPolicy(f"/{kind}/a.>", given) for kind in ("queue", "topic", "log")]
    return TwoHubs(destinations=[*policies, DestinationPolicy(DEAD, dead or {})])


async def until_dead(hubs: TwoHubs, count: int) -> None:
    """Wait until so many dead letters are there."""
    for _ in range(100):
        if hubs.depth_count("b", DEAD) >= count:
            return
        await trio.sleep(0.1)
    raise AssertionError(f"{hubs.depth_count('b', DEAD)} dead letters")


def trouble(hubs: TwoHubs) -> str:
    """Return why the dead letters of a queue wait, as it is told to people."""
    (queue,) = hubs.a.registry.destinations["/queue/a.x"].queue.partitions.values()
    return str(queue.facts()["because"])


async def refuse(hubs: TwoHubs, source: str, count: int) -> list[str]:
    """Have messages of a destination of the hub `a` refused; returns their ids."""
    client = await hubs.connect()
    await client.subscribe(source, id="refusing", ack="client-individual", prefetch_count="1000")
    await client.send_all(source, range(count))
    deliveries = await client.next_messages(count)
    for each in deliveries:
        await client.nack(each)
    return [each.headers["message-id"].partition("-")[2] for each in deliveries]


@pytest.mark.parametrize("kind", ["queue", "topic", "log"])
async def test_dead_letters_go_to_a_queue_of_another_hub(kind: str) -> None:
    """They tell their story there, keep their order and numbers, and have left their queue."""
    async with hubs_with() as hubs:
        numbers = await refuse(hubs, f"/{kind}/a.x", 100)
        await until_dead(hubs, 100)
        reader = await hubs.connect()
        await reader.subscribe(DEAD, prefetch_count="1000")
        letters = await reader.next_messages(100)
        assert [each.text for each in letters] == [str(number) for number in range(100)]
        assert {each.headers["dead-letter-destination"] for each in letters} == {f"/{kind}/a.x"}
        if kind == "queue":
            assert [each.headers["message-id"].partition("-")[2] for each in letters] == numbers
            assert hubs.depth_count("a", "/queue/a.x") == 0
        await reader.silence()


async def test_expired_messages_go_there_too() -> None:
    """If the policy says so."""
    async with hubs_with(dead_letter_expired=True) as hubs:
        client = await hubs.connect()
        await client.sent("/queue/a.x", "late", expiration="100")
        await until_dead(hubs, 1)


async def test_dead_letters_wait_for_the_other_hub() -> None:
    """While it is gone they stay where they are, and say why."""
    async with hubs_with() as hubs:
        hubs.network.is_down = True
        hubs.network.cut()
        await refuse(hubs, "/queue/a.x", 40)
        await trio.sleep(3)
        assert hubs.depth_count("a", "/queue/a.x") == 40
        assert "hub b can't be reached" in trouble(hubs)
        hubs.network.is_down = False
        await until_dead(hubs, 40)
        await trio.sleep(2)
        assert [hubs.depth_count("a", "/queue/a.x"), hubs.depth_count("b", DEAD)] == [0, 40]


@pytest.mark.parametrize("left_bytes", [1, 500, 3000, 5000])
async def test_a_link_that_is_lost_loses_no_dead_letter(left_bytes: int) -> None:
    """One that was on its way may come twice, with the same number, and the second one with a mark."""
    async with hubs_with() as hubs:
        hubs.network.left_bytes = left_bytes
        await refuse(hubs, "/queue/a.x", 40)
        await trio.sleep(5)
        assert hubs.depth_count("a", "/queue/a.x") == 0
        reader = await hubs.connect("b")
        await reader.subscribe(DEAD, prefetch_count="1000")
        letters = await reader.drain()
        unmarked = [each.text for each in letters if "possible-duplicate" not in each.headers]
        marked = {each.text for each in letters if "possible-duplicate" in each.headers}
        assert len(unmarked) == len(set(unmarked))
        assert marked | set(unmarked) == {str(number) for number in range(40)}
        assert hubs.network.cuts_count == 1


async def test_a_full_queue_of_another_hub_holds_dead_letters_back() -> None:
    """None is lost, and the rest goes when there is room."""
    async with hubs_with({"count_max": 5}) as hubs:
        await refuse(hubs, "/queue/a.x", 12)
        await trio.sleep(5)
        assert hubs.depth_count("a", "/queue/a.x") + hubs.depth_count("b", DEAD) == 12
        assert "has no room" in trouble(hubs)
        reader = await hubs.connect()
        await reader.subscribe(DEAD)
        assert sorted(int(each.text) for each in await reader.next_messages(12)) == list(range(12))


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_letters_of_another_hub_are_acknowledged_there(version: Any) -> None:
    """Their message-ids are those of the hub from which they come, and the reader is connected to that one."""
    async with hubs_with() as hubs:
        hubs.b.shards.token = hubs.a.shards.token  # as of hubs that share a data folder
        await refuse(hubs, "/queue/a.x", 3)
        await until_dead(hubs, 3)
        reader = await hubs.connect(version=version)
        await reader.subscribe(DEAD, id="letters", ack="client-individual" if version != "1.0" else "client")
        for each in await reader.next_messages(3):
            await reader.ack(each)
        await reader.sync()
        await trio.testing.wait_all_tasks_blocked()
        assert hubs.depth_count("b", DEAD) == 0


async def test_letters_are_retried_where_they_came_from() -> None:
    """Moved back by an operator over the link, with their numbers; and moved on to any other destination."""
    async with hubs_with() as hubs, operated(hubs.b) as operator:
        numbers = await refuse(hubs, "/queue/a.x", 40)
        await until_dead(hubs, 40)
        await hubs.clients[0].disconnect()
        done = await operator.act("retry", name=DEAD, confirm=DEAD, all=True)
        assert (done["moved_count"], done["complete"]) == (40, True)
        assert [hubs.depth_count("a", "/queue/a.x"), hubs.depth_count("b", DEAD)] == [40, 0]
        reader = await hubs.connect()
        await reader.subscribe("/queue/a.x", id="again", ack="client-individual", prefetch_count="1000")
        letters = await reader.next_messages(40)
        assert [each.headers["message-id"].partition("-")[2] for each in letters] == numbers
        assert all("dead-letter-reason" not in each.headers for each in letters)


async def test_what_another_hub_does_not_take_stays_in_its_order() -> None:
    """No consumer gets it meanwhile, and all of it is available again."""
    async with hubs_with({"count_max": 5}) as hubs, operated(hubs.a) as operator:
        client = await hubs.connect()
        await client.send_all("/queue/a.x", range(12))
        await client.sent("/queue/a.x", "12")
        done = await operator.act("move", **{"from": "/queue/a.x"}, to=DEAD, confirm="/queue/a.x", all=True)
        assert (done["moved_count"], done["complete"]) == (5, False)
        await client.subscribe("/queue/a.x", id="rest")
        assert await client.next_texts(8) == [str(number) for number in range(5, 13)]
        assert hubs.depth_count("b", DEAD) == 5
