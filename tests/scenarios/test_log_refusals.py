"""What consumers of a log refuse: back-off, a limit, dead letters, as of queues; over restarts and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from sluiceway.queues.dead_letters import DeadLettering
from sluiceway.queues.logs import refused
from tests.scenarios.client import Client, Delivery
from tests.scenarios.log_stage import LOG, LogLives, LogStage, fill, numbered, send_batch

DEAD = "/queue/dead-letters"


async def join(client: Client, prefetch_count: int = 1, **headers: str) -> None:
    named = {"group": "g", "from": "earliest", "prefetch_count": str(prefetch_count), **headers}
    await client.subscribe(LOG, ack="client-individual", **named)


async def letters(stage: LogStage) -> list[Delivery]:
    reader = await stage.connect()
    await reader.subscribe(DEAD, id="dead")
    found = await reader.drain(1)
    await reader.disconnect()
    return found


async def test_a_record_that_nobody_can_digest_goes_to_the_dead_letters_and_the_next_one_comes() -> None:
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 3, custom="yes")
        await join(client)
        counts = []
        while (delivery := await client.next_message()).text == "0":
            counts.append((delivery.redelivered, delivery.delivery_count))
            await client.nack(delivery)
        assert counts == [(number > 1, number) for number in range(1, 22)], "tried once, and twenty times again"
        assert delivery.text == "1"
        (letter,) = await letters(stage)
        assert letter.text == "0"
        wanted = {
            "dead-letter-reason": "redeliveries", "dead-letter-destination": LOG, "dead-letter-subscription": "g",
            "dead-letter-count": "21", "dead-letter-index": "0", "custom": "yes", "destination": DEAD,
        }  # fmt: skip
        assert {name: letter.headers.get(name) for name in wanted} == wanted
        assert "index" not in letter.headers
        (group,) = (await asker.asked("groups", log=LOG))["groups"]
        assert (group["front"], group["dead_lettered"], group["refused"]) == (1, 1, 0)


async def test_a_record_that_failed_waits_longer_each_time_and_later_ones_pass_it() -> None:
    policies = {"/log/>": {"redelivery_delay_ms": 1000, "redelivery_backoff": 3.0, "redeliveries_max": 2}}
    async with LogStage(policies) as stage:
        client = await stage.connect()
        await fill(client, 3)
        await join(client)
        await client.nack(await client.next_message())
        came = []
        for _ in range(2):
            delivery = await client.next_message()
            came.append(delivery.text)
            await client.ack(delivery)
        for waited in (1, 3):
            start = trio.current_time()
            delivery = await client.next_message()
            came.append(delivery.text)
            assert waited - 0.1 < trio.current_time() - start < waited + 0.1
            await client.nack(delivery)
        assert came == ["1", "2", "0", "0"]
        await client.silence(20)
        assert [letter.text for letter in await letters(stage)] == ["0"]
        assert stage.group().front == 3


async def test_without_dead_letters_a_record_is_given_up_all_the_same() -> None:
    async with LogStage({"/log/>": {"redeliveries_max": 0, "dead_letter": None}}) as stage:
        client = await stage.connect()
        await fill(client, 2)
        await join(client)
        await client.nack(await client.next_message())
        assert (await client.next_message()).text == "1"
        assert stage.group().refused.dropped_count == 1


async def test_a_single_reader_passes_over_what_it_can_not_digest() -> None:
    async with LogStage({"/log/>": {"redeliveries_max": 1}}) as stage:
        client = await stage.connect()
        await fill(client, 2)
        await client.subscribe(LOG, ack="client-individual", prefetch_count="1", **{"from": "earliest"})
        for _ in range(2):
            await client.nack(await client.next_message())
        assert (await client.next_message()).text == "1"
        assert [letter.text for letter in await letters(stage)] == ["0"]


async def test_a_batch_that_is_refused_too_often_goes_as_its_records() -> None:
    async with LogStage({"/log/>": {"redeliveries_max": 1}}) as stage:
        client = await stage.connect()
        await send_batch(client, numbered(range(5)))
        await send_batch(client, numbered(range(5, 7)))
        await join(client, batch="1024", from_="earliest")
        for number in range(2):
            delivery = await client.next_message()
            assert (delivery.headers["index"], delivery.redelivered) == ("0", number > 0)
            await client.nack(delivery)
        await client.silence()
        assert sorted(letter.text for letter in await letters(stage)) == [str(number) for number in range(7)]


async def test_a_long_batch_goes_in_parts_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "GIVEN_UP_COUNT", 10)
    monkeypatch.setattr(refused, "REFUSED_MAX", 10)
    counts: list[int] = []
    add = DeadLettering.add

    def added(letters: DeadLettering, sequences: Sequence[int], reason: str) -> None:
        add(letters, sequences, reason)
        counts.append(len(letters))

    monkeypatch.setattr(DeadLettering, "add", added)
    async with LogStage({"/log/>": {"redeliveries_max": 0}}) as stage:
        client = await stage.connect()
        await send_batch(client, numbered(range(53)))
        await join(client, batch="1024", from_="earliest")
        await client.nack(await client.next_message())
        await client.silence()
        assert len(counts) == 6
        assert max(counts) < 20
        assert [letter.text for letter in await letters(stage)] == [str(number) for number in range(53)]
        assert stage.group().front == 53


async def test_what_was_only_prefetched_beside_a_failure_is_not_charged() -> None:
    async with LogStage({"/log/>": {"redeliveries_max": 0}}) as stage:
        client = await stage.connect()
        await fill(client, 3)
        await client.subscribe(LOG, ack="client", group="g", prefetch_count="10", **{"from": "earliest"})
        first, second, third = await client.next_messages(3)
        await client.nack(third)
        again = await client.next_messages(2)
        assert [(each.text, each.delivery_count) for each in again] == [(first.text, 1), (second.text, 1)]
        assert [letter.text for letter in await letters(stage)] == [third.text]


async def test_failures_are_counted_on_after_a_restart(tmp_path: Path) -> None:
    lives = LogLives(tmp_path, {"/log/>": {"redeliveries_max": 3}})
    for life in range(4):
        async with lives.life(end="crash") as stage:
            client = await stage.connect()
            if not life:
                await fill(client, 2)
            await join(client)
            delivery = await client.next_message()
            assert (delivery.text, delivery.delivery_count) == ("0", life + 1)
            await client.nack(delivery)
            if life == 3:
                assert (await client.next_message()).text == "1"
    async with lives.life() as stage:
        client = await stage.connect()
        await join(client)
        assert (await client.next_message()).text == "1"
        assert [letter.text for letter in await letters(stage)] == ["0"]


@pytest.mark.parametrize("seed", range(10))
async def test_a_record_is_in_the_log_for_its_group_or_in_the_dead_letters_after_any_crash(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    lives = LogLives(tmp_path, {"/log/>": {"redeliveries_max": 1}})
    async with lives.life() as stage:
        client = await stage.connect()
        await fill(client, 30)
        await join(client)
        client.vanish()
        await trio.sleep(2)
    for _ in range(3):
        async with lives.life(end="crash") as stage:
            client = await stage.connect()
            await join(client, prefetch_count=3)
            with trio.move_on_after(random.choice((0.01, 0.2, 2)) * random.random()):
                while True:
                    delivery = await client.next_message()
                    await client.frame("NACK", client.naming(delivery))
    async with lives.life() as stage:
        client = await stage.connect()
        await join(client, prefetch_count=100)
        left = [delivery.text for delivery in await client.drain(3)]
        dead = [letter.text for letter in await letters(stage)]
        assert sorted(left + dead, key=int) == [str(number) for number in range(30)]


async def test_a_group_that_is_moved_forgets_what_was_refused() -> None:
    async with LogStage({"/log/>": {"redelivery_delay_ms": 5000}}) as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 3)
        await join(client)
        await client.nack(await client.next_message())
        await client.next_message()
        await asker.asked("seek", log=LOG, group="g", to=0)
        client.vanish()
        client = await stage.connect()
        await join(client, prefetch_count=10)
        assert [delivery.text for delivery in await client.drain(20)] == ["0", "1", "2"]
        assert not stage.group().refused.failures


async def test_what_is_gone_from_the_log_is_not_waited_for() -> None:
    policies: dict[str, Any] = {"/log/>": {"redelivery_delay_ms": 5000, "redeliveries_max": 1}}
    async with LogStage(policies, journal={"data_page_bytes": 4096, "index_page_count": 64}) as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 3)
        await join(client)
        await client.nack(await client.next_message())
        await asker.asked("truncate", log=LOG, before=2)
        for _ in range(2):
            await client.ack(await client.next_message())
        (gap,) = await client.drain(20)
        assert (gap.headers["gap-from"], gap.headers["gap-to"]) == ("0", "2")
        assert stage.group().front == 3
        assert not stage.group().refused.failures


async def test_dead_letters_that_wait_for_room_hold_new_records_back_and_lose_nothing() -> None:
    policies: dict[str, Any] = {"/log/>": {"redeliveries_max": 0}, DEAD: {"memory_bytes": 2000, "paging": "throttle"}}
    async with LogStage(policies) as stage:
        client = await stage.connect()
        await fill(client, 40)
        await join(client, prefetch_count=5)
        for _ in range(40):
            await client.nack(await client.next_message())
        assert stage.group().refused.dead_lettering_count > 0
        assert any("dead" in words for words in stage.chains()), stage.chains()
        found: list[Delivery] = []
        while len(found) < 40:
            found += await letters(stage)
        assert sorted(int(letter.text) for letter in found) == list(range(40))
        assert stage.group().front == 40


async def test_a_refusal_in_a_transaction_counts_when_it_is_committed() -> None:
    async with LogStage({"/log/>": {"redeliveries_max": 0}}) as stage:
        client = await stage.connect()
        await fill(client, 2)
        await join(client)
        delivery = await client.next_message()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.nack(delivery, transaction="t")
        assert await letters(stage) == []
        await client.request("COMMIT", {"transaction": "t"})
        assert [letter.text for letter in await letters(stage)] == ["0"]


@pytest.mark.parametrize("headers", [{"batch": "1024"}, {"prefetch_count": "6000"}])
async def test_also_very_many_that_are_refused_wait_for_their_time(headers: dict[str, str]) -> None:
    count = 6000
    async with LogStage({"/log/>": {"redelivery_delay_ms": 1000, "redeliveries_max": None}}) as stage:
        client = await stage.connect()
        await send_batch(client, numbered(range(count)))
        await client.subscribe(LOG, ack="client-individual", group="g", **{"from": "earliest"}, **headers)
        first = 1 if "batch" in headers else count
        for delivery in await client.next_messages(first):
            await client.frame("NACK", client.naming(delivery))
        await client.silence(0.9)
        again = await client.next_messages(first)
        assert [delivery.delivery_count for delivery in again] == [2] * first
        for delivery in again:
            await client.frame("ACK", client.naming(delivery))
        await client.sync()
        assert stage.group().front == count


async def test_of_a_batch_that_waits_only_what_is_gone_is_not_waited_for() -> None:
    policies: dict[str, Any] = {"/log/>": {"redelivery_delay_ms": 5000}}
    async with LogStage(policies) as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await send_batch(client, numbered(range(10)))
        await join(client, batch="1024")
        await client.nack(await client.next_message())
        await asker.asked("truncate", log=LOG, before=4)
        stage.group().refused.forget(0, 4)
        assert stage.group().state().failures == ((4, 10, 1),)
        await client.drain(20)
        assert not stage.group().refused.failures
