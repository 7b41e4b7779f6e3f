"""Limits per second: whoever is too fast is not read for a while, and that is all that happens."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.security.config import Rates, UserRates
from tests.scenarios.client import Client
from tests.scenarios.guarded import GuardedStage, allow, replaced
from tests.scenarios.stage import Stage, wall_clock_ms

Q = "/queue/q"
ALL = allow("*", "send create receive")


def rated(**rates: Any) -> GuardedStage:
    return GuardedStage(ALL, settings={"rates": (UserRates(users=("ann",), **rates),)})


async def flood(client: Client, count: int, size: int = 10) -> None:
    """Sends as fast as it can."""
    data = client.encode("SEND", {"destination": "/topic/nobody"}, "x" * size)
    await client.stream.send_all(data * count)


async def seconds_of(client: Client, count: int, size: int = 10) -> float:
    start = trio.current_time()
    data = client.encode("SEND", {"destination": "/topic/nobody"}, "x" * size)
    for _ in range(count):
        await client.stream.send_all(data)
    receipt_id = client.new_receipt_id()
    await client.stream.send_all(client.encode("SEND", {"destination": "/topic/nobody", "receipt": receipt_id}))
    while receipt_id not in client.receipts:
        await client._receive()
    return trio.current_time() - start


async def test_a_user_gets_so_many_messages_per_second_and_a_burst() -> None:
    async with rated(messages_per_second=100.0, burst_seconds=2.0) as stage:
        ann = await stage.as_user("ann")
        assert await seconds_of(ann, 150) < 0.5
        took = await seconds_of(ann, 1000)
        assert 9 <= took <= 11.5


async def test_bytes_are_limited_whatever_frames_they_are_of() -> None:
    async with rated(bytes_per_second=10_000) as stage:
        ann = await stage.as_user("ann")
        assert 9 <= await seconds_of(ann, 100, size=1000) <= 12


async def test_all_connections_of_a_user_share_its_limit_and_others_do_not() -> None:
    async with rated(messages_per_second=100.0) as stage:
        connections = [await stage.as_user("ann") for _ in range(4)]
        took: list[float] = []

        async def send(client: Client) -> None:
            took.append(await seconds_of(client, 250))

        async with trio.open_nursery() as nursery:
            for client in connections:
                nursery.start_soon(send, client)
            bob = await stage.as_user("bob")
            assert await seconds_of(bob, 1000) < 0.5
        assert max(took) >= 8.5


async def test_a_new_connection_brings_no_new_burst() -> None:
    async with rated(messages_per_second=10.0) as stage:
        start = trio.current_time()
        for _ in range(5):
            ann = await stage.as_user("ann")
            await seconds_of(ann, 20)
            await ann.disconnect()
        assert trio.current_time() - start > 8


async def test_who_is_held_back_is_told_to_people_and_not_to_the_client() -> None:
    async with rated(messages_per_second=10.0) as stage:
        ann = await stage.as_user("ann", name="ann's")
        await flood(ann, 100)
        await trio.sleep(0.1)
        await flood(ann, 1)
        await trio.sleep(0.1)
        (report,) = [each for each in stage.broker.report()["connections"] if each["user"] == "ann"]
        assert report["waiting_on"] == "rate limit of user ann"
        assert report["blocked_seconds"] > 0
        assert any("user ann" in chain for chain in stage.chains())
        await ann.silence(5)
        await trio.sleep(30)
        assert not stage.chains()


async def test_acks_of_one_held_back_come_later_and_nothing_is_lost() -> None:
    async with rated(messages_per_second=50.0) as stage:
        root = await stage.connect()
        await root.send_all(Q, range(20))
        ann = await stage.as_user("ann")
        await ann.subscribe(Q, ack="client-individual", **{"prefetch-count": "5"})
        await flood(ann, 200)
        for _ in range(20):
            await ann.ack(await ann.next_message())
        await ann.sync()
        assert stage.depth_count(Q) == 0


async def test_one_message_larger_than_the_burst_passes() -> None:
    async with rated(bytes_per_second=1000) as stage:
        ann = await stage.as_user("ann")
        await trio.sleep(5)
        assert await seconds_of(ann, 1, size=20_000) < 25


async def test_heart_beats_are_not_missed_by_one_who_is_not_read() -> None:
    async with rated(messages_per_second=1.0) as stage:
        ann = await stage.connect("1.2", heart_beat=(1000, 0), login="ann", passcode="ann")
        await flood(ann, 20)
        await trio.sleep(10)
        assert not ann.ended
        assert ann.error is None


async def test_other_rates_hold_for_connections_that_are_there() -> None:
    async with rated(messages_per_second=1.0) as stage:
        ann = await stage.as_user("ann")
        await flood(ann, 50)
        await trio.sleep(1)
        replaced(stage, [ALL])
        await trio.sleep(0.1)
        assert await seconds_of(ann, 500) < 0.5


async def test_a_listener_has_a_limit_for_all_who_come_by_it() -> None:
    """Users or not. (Connections within the process come by the name of `memory`.)"""
    async with Stage() as plain:
        config = plain.broker.config
    listener = attrs.evolve(config.listeners[0], name="memory", rates=Rates(messages_per_second=100.0))
    stage = Stage()
    stage.broker = Broker(attrs.evolve(config, listeners=(listener,)), now_ms=wall_clock_ms)
    async with stage:
        one, other = await stage.connect(), await stage.connect()
        await flood(one, 300)
        await trio.sleep(0.1)
        assert await seconds_of(other, 300) > 4


@pytest.mark.parametrize("wrong", [{"messages_per_second": 0}, {"bytes_per_second": -1}, {"burst_seconds": 0}, {}])
def test_rates_that_let_nothing_through_or_everything_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        UserRates(users=("ann",), **wrong)  # type: ignore[arg-type]
