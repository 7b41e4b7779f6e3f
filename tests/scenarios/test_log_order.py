"""Order while the consumers of a group share a log: exclusive consumers, and records of one key one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

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


BY_KEY = {"order": "by-key"}


async def send_keys(client: Client, keys: str) -> None:
    for number, key in enumerate(keys):
        await client.sent(LOG, str(number), key=key)


class TestByKey:
    async def test_a_key_is_in_one_pair_of_hands_at_a_time(self) -> None:
        async with LogStage() as stage:
            producer, one, two = [await stage.connect() for _ in range(3)]
            await send_keys(producer, "aabbab")
            await join(one, **BY_KEY, prefetch_count="1")
            await join(two, **BY_KEY, prefetch_count="1")
            seen: dict[str, list[int]] = {}
            for _ in range(3):
                for client in (one, two):
                    for delivery in await client.drain(0.01):
                        seen.setdefault(delivery.headers["key"], []).extend(indexes([delivery]))
                        await client.ack(delivery)
            assert seen == {"a": [0, 1, 4], "b": [2, 3, 5]}
            assert stage.group().front == 6

    async def test_a_refused_record_holds_back_its_key_only(self) -> None:
        async with LogStage({LOG: {"redelivery_delay_ms": 1000, "redeliveries_max": 1}}) as stage:
            producer, client = await stage.connect(), await stage.connect()
            await send_keys(producer, "aab")
            await join(client, **BY_KEY, prefetch_count="1")
            [first] = await client.next_messages(1)
            await client.nack(first)
            [other] = await client.next_messages(1)
            assert indexes([other]) == [2]
            await client.ack(other)
            [again] = await client.next_messages(1)
            assert (indexes([again]), again.delivery_count) == ([0], 2)
            await client.nack(again)
            assert indexes(await client.next_messages(1)) == [1], "the record is in the dead letters, its key continues"
            await producer.subscribe("/queue/dead-letters")
            [letter] = await producer.next_messages(1)
            assert (letter.headers["dead-letter-index"], letter.headers["key"]) == ("0", "a")

    @pytest.mark.parametrize("end", ["in order", "crash"])
    async def test_it_holds_over_a_restart(self, tmp_path: Path, end: str) -> None:
        lives = LogLives(tmp_path)
        async with lives.life(end=end) as stage:
            producer, one, two = [await stage.connect() for _ in range(3)]
            await send_keys(producer, "aabbcc")
            await join(one, **BY_KEY, prefetch_count="1")
            await join(two, **BY_KEY, prefetch_count="1")
            [late] = await two.next_messages(1)
            await two.ack(late)
        async with lives.life() as stage:
            client = await stage.connect()
            await join(client, **BY_KEY)
            again = await client.next_messages(5)
            assert indexes(again) == [0, 1, 3, 4, 5]
            assert [delivery.redelivered for delivery in again[:3]] == [True, True, True]

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({"order": "by-size", "group": "g"}, "bad-order"),
            ({"order": "by-key", "exclusive": "true", "group": "g"}, "bad-order"),
            ({"order": "by-key", "batch": "4096", "group": "g"}, "not-for-batches"),
            ({"order": "by-key"}, "not-for-logs"),
            ({"order": "by-key", "group": "taken"}, "other-order"),
        ],
    )
    async def test_what_can_not_be_is_refused_in_words(self, headers: dict[str, str], code: str) -> None:
        async with LogStage() as stage:
            other, client = await stage.connect(), await stage.connect()
            await join(other, "taken")
            await client.frame("SUBSCRIBE", {"destination": LOG, "id": "1", **headers})
            assert (await client.expect_error()).headers["code"] == code
