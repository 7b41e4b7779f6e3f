"""Order while the consumers of a group share a log: exclusive consumers, and records of one key one after the other."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, LogLives, LogStage, fill, indexes

EXCLUSIVE = {"exclusive": "true"}


async def join(client: Client, group: str = "g", **headers: str) -> None:
    await client.subscribe(LOG, **{"group": group, "ack": "client-individual", "from": "earliest", **headers})


class TestExclusive:
    async def test_others_stand_by_and_take_over_in_order(self) -> None:
        async with LogStage() as stage:
            producer, first, second = [await stage.connect() for _ in range(3)]
            await fill(producer, 6)
            await join(first, **EXCLUSIVE, prefetch_count="4")
            got = await first.next_messages(4)
            await join(second, **{"activemq.exclusive": "true"})
            await first.ack(got[1])
            await second.silence()
            assert indexes(await first.next_messages(1)) == [4]
            first.vanish()
            again = await second.next_messages(5)
            assert indexes(again) == [0, 2, 3, 4, 5]
            assert [delivery.redelivered for delivery in again] == [True, True, True, True, False]

    async def test_unsubscribing_hands_over_what_was_not_acknowledged(self) -> None:
        async with LogStage() as stage:
            producer, first, second = [await stage.connect() for _ in range(3)]
            await fill(producer, 3)
            await join(first, **EXCLUSIVE)
            got = await first.next_messages(3)
            await join(second, **EXCLUSIVE)
            await first.ack(got[0])
            await first.unsubscribe()
            assert indexes(await second.next_messages(2)) == [1, 2]

    async def test_it_holds_over_a_crash(self, tmp_path: Path) -> None:
        lives = LogLives(tmp_path)
        async with lives.life(end="crash") as stage:
            producer, first, second = [await stage.connect() for _ in range(3)]
            await fill(producer, 5)
            await join(first, **EXCLUSIVE)
            await join(second, **EXCLUSIVE)
            got = await first.next_messages(5)
            await first.ack(got[2])
        async with lives.life() as stage:
            first, second = [await stage.connect() for _ in range(2)]
            await join(first, **EXCLUSIVE)
            await join(second, **EXCLUSIVE)
            again = await first.next_messages(4)
            assert indexes(again) == [0, 1, 3, 4]
            assert all(delivery.redelivered for delivery in again)
            await second.silence()


async def test_members_that_disagree_are_refused_in_words() -> None:
    async with LogStage() as stage:
        first, second = await stage.connect(), await stage.connect()
        await join(first, **EXCLUSIVE)
        await second.frame("SUBSCRIBE", {"destination": LOG, "id": "1", "group": "g"})
        error = await second.expect_error("exclusive:true, this one asks for no order")
        assert error.headers["code"] == "other-order"
        await first.disconnect()
        third = await stage.connect()
        await join(third)
