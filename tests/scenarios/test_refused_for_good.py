"""NACK with `requeue:false`, RabbitMQ's way to give a message up: it goes to the dead letters without another try."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client, Delivery
from tests.scenarios.lives import Lives
from tests.scenarios.log_stage import LOG, LogLives, LogStage, fill, numbered, send_batch
from tests.scenarios.stage import Stage

Q = "/queue/work"
T = "/topic/t"
GRAVE = "/queue/dead-letters"
FOR_GOOD = {"requeue": "false"}


async def letters(stage: Stage | LogStage) -> list[Delivery]:
    reader = await stage.connect()
    await reader.subscribe(GRAVE, id="grave")
    found = await reader.drain(1)
    await reader.disconnect()
    return found


def story(letter: Delivery) -> tuple[str, str, str, str]:
    headers = letter.headers
    return (
        letter.text,
        headers["dead-letter-reason"],
        headers["dead-letter-count"],
        headers["dead-letter-destination"],
    )


async def refuse(client: Client, *bodies: str, headers: dict[str, str], receipt: bool = True) -> None:
    for body in bodies:
        delivery = await client.next_message()
        assert delivery.text == body
        if receipt:
            await client.nack(delivery, **headers)
        else:
            await client.frame("NACK", {**client.naming(delivery), **headers})


# ---------------------------------------------------------------------- queues


@pytest.mark.parametrize("receipt", [True, False])
async def test_it_goes_to_the_dead_letters_at_once(later_version: Version, *, receipt: bool) -> None:
    async with Stage() as stage:
        client = await stage.connect(later_version)
        await client.subscribe(Q, ack="client-individual", prefetch_count="1")
        for body in ("bad", "good"):
            await client.sent(Q, body)
        await refuse(client, "bad", headers=FOR_GOOD, receipt=receipt)
        assert (await client.next_message()).text == "good"
        assert [story(letter) for letter in await letters(stage)] == [("bad", "rejected", "1", Q)]
        assert stage.reported(Q)["dead_lettered_count"] == 1


@pytest.mark.parametrize("value", ["true", "yes", ""])
async def test_any_other_value_lets_it_come_again(value: str) -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.sent(Q, "x")
        await refuse(client, "x", headers={"requeue": value})
        delivery = await client.next_message()
        assert (delivery.text, delivery.delivery_count) == ("x", 2)
        assert await letters(stage) == []
        await client.ack(delivery, requeue="false")
        assert await letters(stage) == [], "an ACK is one whatever it says"


async def test_what_failed_before_counts() -> None:
    """A policy that tries for ever, and lets what failed wait, has no say in it."""
    async with Stage({Q: {"redeliveries_max": None, "redelivery_delay_ms": 1000}}) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.sent(Q, "x")
        await refuse(client, "x", headers={})
        await refuse(client, "x", headers=FOR_GOOD)
        assert [story(letter) for letter in await letters(stage)] == [("x", "rejected", "2", Q)]
        await client.silence(120)


async def test_without_dead_letters_it_is_dropped_and_counted() -> None:
    async with Stage({Q: {"dead_letter": None}}) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.sent(Q, "x")
        await refuse(client, "x", headers=FOR_GOOD)
        await client.silence(2)
        assert (stage.depth_count(Q), stage.reported(Q)["dropped_count"]) == (0, 1)


async def test_a_dead_letter_queue_gives_nothing_up() -> None:
    """There are no loops, and what ended there is not lost."""
    async with Stage() as stage:
        client = await stage.connect()
        await client.subscribe(GRAVE, ack="client-individual")
        await client.sent(GRAVE, "x")
        await refuse(client, "x", headers=FOR_GOOD)
        assert (await client.next_message()).delivery_count == 2


@pytest.mark.parametrize("count", [3, 1500])
async def test_a_cumulative_one_gives_up_all_that_it_refuses(count: int) -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client", prefetch_count="0")
        bodies = [str(number) for number in range(count + 1)]
        await client.send_all(Q, bodies)
        deliveries = await client.next_messages(count + 1)
        await client.nack(deliveries[-2], **FOR_GOOD)
        assert [letter.text for letter in await letters(stage)] == bodies[:-1]
        await client.silence()
        assert stage.depth_count(Q) == 1


async def test_in_a_transaction_it_counts_with_the_commit() -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.sent(Q, "x")
        delivery = await client.next_message()
        for end in ("ABORT", "COMMIT"):
            await client.frame("BEGIN", {"transaction": "t"})
            await client.nack(delivery, transaction="t", **FOR_GOOD)
            assert await letters(stage) == []
            await client.request(end, {"transaction": "t"})
        assert [letter.text for letter in await letters(stage)] == ["x"]
        await client.silence()


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_a_persistent_one_is_a_dead_letter_over_a_restart(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.sent(Q, "x", persistent="true")
        await refuse(client, "x", headers=FOR_GOOD)
        await trio.sleep(1)
    async with lives.life() as stage:
        assert (stage.depth_count(Q), [letter.text for letter in await letters(stage)]) == (0, ["x"])


# ---------------------------------------------------------------------- topics


@pytest.mark.parametrize("headers", [{}, {"durable": "true"}])
async def test_of_a_topic_it_is_given_up_for_that_subscription(headers: dict[str, str]) -> None:
    async with Stage() as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.subscribe(T, id="mine", ack="client-individual", **headers)
        await other.subscribe(T, ack="client-individual")
        for body in ("bad", "good"):
            await other.sent(T, body)
        await refuse(client, "bad", headers=FOR_GOOD)
        assert await other.next_texts(2) == ["bad", "good"]
        good = await client.next_message()
        assert good.text == "good"
        await client.ack(good)
        await client.silence()
        assert [story(letter) for letter in await letters(stage)] == [("bad", "rejected", "1", T)]


async def test_of_a_topic_without_dead_letters_it_is_dropped() -> None:
    async with Stage({T: {"dead_letter": None, "redeliveries_max": None}}) as stage:
        client = await stage.connect()
        await client.subscribe(T, ack="client-individual")
        await client.sent(T, "x")
        await refuse(client, "x", headers=FOR_GOOD)
        await client.silence(2)
        assert stage.reported(T)["dropped_count"] == 1


# ---------------------------------------------------------------------- logs


@pytest.mark.parametrize("headers", [{"group": "g"}, {}])
async def test_of_a_log_it_is_passed(headers: dict[str, str]) -> None:
    async with LogStage({"/log/>": {"redeliveries_max": None, "redelivery_delay_ms": 1000}}) as stage:
        client = await stage.connect()
        await fill(client, 3)
        await client.subscribe(LOG, ack="client-individual", **{"from": "earliest", "prefetch_count": "1", **headers})
        await refuse(client, "0", headers=FOR_GOOD)
        assert (await client.next_message()).text == "1"
        assert [story(letter) for letter in await letters(stage)] == [("0", "rejected", "1", LOG)]


async def test_a_batch_goes_as_its_records() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await send_batch(client, numbered(range(5)))
        await client.subscribe(LOG, ack="client-individual", group="g", batch="1024", **{"from": "earliest"})
        await client.nack(await client.next_message(), **FOR_GOOD)
        await client.silence(2)
        assert [letter.text for letter in await letters(stage)] == [str(number) for number in range(5)]


async def test_of_a_group_it_stays_given_up_over_a_restart_while_it_waits_for_room(tmp_path: Path) -> None:
    policies = {"/log/>": {"redeliveries_max": None}, GRAVE: {"count_max": 1}}
    lives = LogLives(tmp_path, policies)
    async with lives.life(end="in order") as stage:
        client = await stage.connect()
        await fill(client, 3)
        await client.subscribe(LOG, ack="client-individual", group="g", **{"from": "earliest"})
        await refuse(client, "0", "1", headers=FOR_GOOD)
        await client.ack(await client.next_message())
        await trio.sleep(2)
        assert stage.depth_count(GRAVE) == 1
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(LOG, ack="client-individual", group="g")
        await client.silence(2)
        found = await letters(stage)
        assert [letter.text for letter in found] == ["0", "1"]
        assert found[1].headers["dead-letter-count"] == "1"
