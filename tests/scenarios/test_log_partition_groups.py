"""Consumers of a log with partitions: without a group each reads all; a group gives each partition to one of them at a
time, evenly, and nothing of it to the next one before the one before has let go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.client import Client, Delivery
from tests.scenarios.log_stage import LOG, LogLives, LogStage

COUNT = 6
POLICIES: dict[str, dict[str, Any]] = {LOG: {"log_partitions": COUNT}}


async def join(client: Client, group: str = "g", ack: str = "client-individual", **headers: str) -> None:
    await client.subscribe(LOG, group=group, ack=ack, **{"from": "earliest", **headers})


async def try_to_join(client: Client, log: str = LOG, **headers: str) -> None:
    """SUBSCRIBE, and do not wait."""
    await client.frame("SUBSCRIBE", {"destination": log, "id": "s", "ack": "client", **headers})


async def fill(client: Client, count: int, first: int = 0) -> None:
    """Append `count` records to each partition, numbered."""
    for partition in range(COUNT):
        for number in range(first, first + count):
            await client.send(f"{LOG}/{partition}", f"{partition} {number}")
        await client.sent(f"{LOG}/{partition}", f"{partition} {first + count}")


def parts_of(deliveries: list[Delivery]) -> set[int]:
    return {int(each.headers["partition"]) for each in deliveries}


async def work(client: Client, seconds: float = 0.5) -> list[Delivery]:
    """Take and acknowledge all that comes."""
    got = await client.drain(seconds)
    for each in got:
        await client.ack(each)
    await client.sync()
    return got


async def test_without_a_group_all_partitions_are_read_in_their_order() -> None:
    async with LogStage(POLICIES) as stage:
        client, reader = await stage.connect(), await stage.connect()
        await fill(client, 9)
        await reader.subscribe(LOG, id="all", **{"from": "earliest"})
        got = await reader.next_messages(10 * COUNT)
        assert parts_of(got) == set(range(COUNT))
        for partition in range(COUNT):
            own = [each for each in got if each.headers["partition"] == str(partition)]
            assert [each.text for each in own] == [f"{partition} {number}" for number in range(10)]
            assert {each.headers["subscription"] for each in own} == {"all"}
        await client.sent(LOG, "later", key="k")
        assert (await reader.next_message()).text == "later"
        await reader.unsubscribe("all")
        await client.sent(LOG, "too late", key="k")
        await reader.silence()


@pytest.mark.parametrize("version", ["1.1", "1.2"])
async def test_a_group_shares_out_evenly_and_moves_when_members_come_and_go(version: Any) -> None:
    async with LogStage(POLICIES) as stage:
        producer = await stage.connect()
        first, second, third = [await stage.connect(version=version) for _ in range(3)]
        await join(first)
        await fill(producer, 1)
        assert parts_of(await work(first)) == set(range(COUNT))
        await join(second)
        await fill(producer, 1, 10)
        one, two = parts_of(await work(first)), parts_of(await work(second))
        assert (len(one), len(two)) == (3, 3)
        assert one | two == set(range(COUNT))
        await join(third)
        await fill(producer, 1, 20)
        shares = [parts_of(await work(each)) for each in (first, second, third)]
        assert [len(each) for each in shares] == [2, 2, 2]
        assert set().union(*shares) == set(range(COUNT))
        await second.disconnect()
        await third.unsubscribe()
        await fill(producer, 1, 30)
        got = await work(first)
        assert parts_of(got) == set(range(COUNT))
        assert not any(each.headers.get("redelivered") for each in got)
        await producer.sync()
        for partition in range(COUNT):
            group = stage.group(log=f"{LOG}/{partition}")
            assert group.front == 8, partition


async def test_the_next_one_begins_when_the_one_before_has_settled() -> None:
    async with LogStage(POLICIES) as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await fill(producer, 1)
        await join(first)
        held = await first.next_messages(2 * COUNT)
        await join(second)
        await fill(producer, 1, 10)
        await second.silence()
        kept = parts_of(await first.drain())
        assert len(kept) == 3
        for each in held:
            await first.ack(each)
        got = await second.next_messages(6)
        assert parts_of(got) == set(range(COUNT)) - kept
        assert not any("redelivered" in each.headers for each in got)


async def test_what_a_broken_member_held_comes_again_to_others() -> None:
    async with LogStage(POLICIES) as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await join(first)
        await join(second)
        await fill(producer, 1)
        held = await second.next_messages(6)
        await work(first)
        second.vanish()
        got = await first.next_messages(6)
        assert sorted(each.text for each in got) == sorted(each.text for each in held)
        assert {each.headers["redelivered"] for each in got} == {"true"}


async def test_a_member_that_comes_and_goes_loses_and_doubles_nothing() -> None:
    async with LogStage(POLICIES) as stage:
        producer, stays = await stage.connect(), await stage.connect()
        await join(stays)
        seen: list[str] = []
        for turn in range(6):
            comes = await stage.connect()
            await join(comes, prefetch_count="3")
            await fill(producer, 1, 10 * turn)
            seen += [each.text for each in await work(stays, 0.05)]
            if turn % 3:
                seen += [each.text for each in await work(comes, 0.05)]
            await (comes.disconnect() if turn % 2 else comes.unsubscribe())
        while got := await work(stays):
            seen += [each.text for each in got]
        assert len(seen) == 6 * 2 * COUNT
        assert len(set(seen)) == len(seen)
        await stays.unsubscribe()
        assert not stage.broker.logs._shared_out  # type: ignore[union-attr]


async def test_credit_pause_and_acks_are_those_of_the_subscription() -> None:
    async with LogStage(POLICIES) as stage:
        producer, client = await stage.connect(), await stage.connect()
        await fill(producer, 4)
        await join(client, ack="client", paused="true")
        await client.silence()
        await client.send("/sluiceway/credit", id="s", credit="2", paused="false")
        got = await client.next_messages(2 * COUNT)
        await client.silence()
        last = [each for each in got if each.headers["partition"] == "3"][-1]
        await client.ack(last)  # covers what came before of the same partition
        assert parts_of(await client.next_messages(2)) == {3}
        assert stage.group(log=f"{LOG}/3").front == 2
        assert stage.group(log=f"{LOG}/2").front == 0


async def test_acknowledgements_of_several_partitions_in_a_transaction() -> None:
    async with LogStage(POLICIES) as stage:
        producer, client = await stage.connect(), await stage.connect()
        await fill(producer, 1)
        await join(client)
        got = await client.next_messages(2 * COUNT)
        await client.frame("BEGIN", {"transaction": "t"})
        for each in got:
            await client.ack(each, transaction="t")
        await client.send(LOG, "result", key="k", transaction="t")
        assert stage.group(log=f"{LOG}/0").front == 0
        await client.request("COMMIT", {"transaction": "t"})
        assert {stage.group(log=f"{LOG}/{partition}").front for partition in range(COUNT)} == {2}


async def test_one_of_the_whole_and_one_of_a_partition_exclude_each_other() -> None:
    async with LogStage(POLICIES) as stage:
        first, second, third = [await stage.connect() for _ in range(3)]
        await join(first)
        await try_to_join(second, f"{LOG}/2", group="g")
        await second.expect_error("partitions of the whole log")
        asker = await stage.connect_asking()
        assert await asker.refused("delete-group", log=f"{LOG}/2", group="g") == "GROUP_IN_USE"
        await third.subscribe(f"{LOG}/2", group="h", ack="client")
        await try_to_join(first, id="other", group="h")
        await first.expect_error("no order")
        assert set(stage.broker.logs._shared_out) == set()  # type: ignore[union-attr]


@pytest.mark.parametrize("headers", [{"from": "7"}, {"to": "7"}, {"log-id": "x"}, {"exclusive": "true", "group": "g"}])
async def test_what_is_for_one_log_is_refused(headers: dict[str, str]) -> None:
    async with LogStage(POLICIES) as stage:
        client = await stage.connect()
        await try_to_join(client, **headers)
        error = await client.expect_error("is for one log")
        assert b"/log/orders/5" in error.body


async def test_a_partition_that_is_deleted_meanwhile() -> None:
    async with LogStage(POLICIES) as stage:
        asker = await stage.connect_asking()
        producer, client, other = [await stage.connect() for _ in range(3)]
        await join(client)
        await fill(producer, 1)
        got = await client.next_messages(2 * COUNT)
        await asker.asked("delete", log=f"{LOG}/1", passcode="let me")
        told = await client.next_message()
        assert (told.headers["log-deleted"], told.headers["partition"]) == ("true", "1")
        for each in got:
            await client.ack(each)
        await producer.sent(f"{LOG}/1", "anew")
        await client.silence()
        await join(other)
        await producer.sync()
        seen = [*(await client.drain()), *(await other.drain())]
        assert [(each.text, each.headers["index"]) for each in seen] == [("anew", "0")]


async def test_a_crash_in_the_middle_of_a_move_and_a_log_that_has_grown(tmp_path: Path) -> None:
    lives = LogLives(tmp_path, POLICIES)
    async with lives.life(end="crash") as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await join(first)
        await fill(producer, 1)
        held = await first.next_messages(2 * COUNT)
        for each in held[:4]:
            await first.frame("ACK", {"id": each.headers["ack"], "receipt": each.headers["ack"]})
            await first.expect_receipt(each.headers["ack"])
        await join(second)  # waits for what the first one holds
    done = {each.text for each in held[:4]}
    grown = LogLives(tmp_path, {LOG: {"log_partitions": COUNT + 2}})
    grown.engine = lives.engine
    async with grown.life() as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await producer.sent(f"{LOG}/{COUNT}", "new")
        await join(first, **{"from": "next"})
        await join(second, **{"from": "next"})
        seen = [each.text for each in [*(await work(first)), *(await work(second))]]
        assert len(set(seen)) == len(seen)
        assert set(seen) == {each.text for each in held} - done | {"new"}


async def test_many_partitions_members_that_come_at_once_and_one_that_ends_at_once() -> None:
    async with LogStage({LOG: {"log_partitions": 64}}) as stage:
        producer, ends, first, second = [await stage.connect() for _ in range(4)]
        for number in range(50):
            await producer.sent(LOG, str(number), key=str(number))
        for client in (ends, first, second):
            await try_to_join(client, group="g", **{"from": "next"})
        ends.vanish()
        for client in (first, second):
            await client.sync()
        for number in range(50, 100):
            await producer.sent(LOG, str(number), key=str(number))
        got = [await client.drain() for client in (first, second)]
        assert sorted(int(each.text) for each in [*got[0], *got[1]]) == list(range(50, 100))
        assert min(map(len, got)) > 10
        for client in (first, second):
            await client.unsubscribe()
        assert not stage.broker.logs._shared_out  # type: ignore[union-attr]


async def test_a_record_that_waits_for_its_next_attempt_holds_back_its_partition_alone() -> None:
    policies = {LOG: {"log_partitions": COUNT, "redelivery_delay_ms": 5000}}
    async with LogStage(policies) as stage:
        producer, client = await stage.connect(), await stage.connect()
        await join(client, credit="1")
        await producer.sent(f"{LOG}/1", "bad")
        await client.nack(await client.next_message())
        await producer.sent(f"{LOG}/1", "behind it")
        await producer.sent(f"{LOG}/2", "beside it")
        assert (await client.next_message()).text == "beside it"
        await client.silence(4.0)
        again = await client.next_message()
        assert (again.text, again.headers["redelivered"]) == ("bad", "true")
        await client.ack(again)
        assert (await client.next_message()).text == "behind it"
