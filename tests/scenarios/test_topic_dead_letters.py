"""What a subscriber of a topic can't digest gets out of its way, and out of nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage

T = "/topic/news"
GRAVE = "/queue/dead-letters"
CLIENT = {"client-id": "c"}
ENDS = ("in order", "crash", "power cut")


async def subscribe_durably(client: Client, name: str = "d") -> None:
    await client.subscribe(T, id=name, ack="client-individual", **{"activemq.subscriptionName": name})


async def test_plain_subscription_gives_up_and_says_who_it_was() -> None:
    """The others have the message as before; each that gives it up makes a dead letter of its own."""
    async with Stage({T: {"redeliveries_max": 2}}) as stage:
        one, two, producer = [await stage.connect() for _ in range(3)]
        await one.subscribe(T, id="first", ack="client-individual")
        await two.subscribe(T, id="second", ack="client-individual")
        await producer.send(T, "poison")
        await producer.send(T, "good")
        for client in (one, two):
            for expected in (1, 2, 3):
                delivery = await client.next_message()
                if expected == 1:
                    good = await client.next_message()
                assert (delivery.text, delivery.delivery_count) == ("poison", expected)
                await client.nack(delivery)
            await client.silence()
            await client.ack(good)
        await producer.subscribe(GRAVE, ack="client-individual")
        letters = await producer.next_messages(2)
        assert [letter.text for letter in letters] == ["poison", "poison"]
        assert len({letter.headers["message-id"] for letter in letters}) == 2
        for letter, name in zip(letters, ("first", "second"), strict=True):
            assert letter.headers["dead-letter-subscription"].startswith(f"{name} of ")
        assert letters[0].headers["dead-letter-reason"] == "redeliveries"
        assert letters[0].headers["dead-letter-destination"] == T
        assert letters[0].headers["dead-letter-count"] == "3"
        assert "dead-letter-client-id" not in letters[0].headers
        for letter in letters:
            await producer.ack(letter)
        assert stage.reported(T)["dead_lettered_count"] == 2
        assert stage.depth_count(T) == 0


async def test_what_is_refused_waits_longer_each_time() -> None:
    """And holds nothing up: neither what comes later nor other subscribers."""
    async with Stage({T: {"redelivery_delay_ms": 1000, "redeliveries_max": 2}}) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.subscribe(T, ack="client-individual")
        await other.subscribe(T)
        await other.send(T, "poison")
        await other.send(T, "good")
        assert await other.next_texts(2) == ["poison", "good"]
        poison, good = await client.next_messages(2)
        await client.nack(poison)
        await client.ack(good)
        for delay_seconds in (1, 2):
            await client.silence(delay_seconds - 0.1)
            delivery = await client.next_message()
            assert delivery.text == "poison"
            await client.nack(delivery)
        await client.silence(10)
        assert stage.depth_count(GRAVE) == 1


async def three_refused(stage: Stage) -> tuple[Client, Client]:
    """Who refused all of three messages, and who may come for them."""
    client, undertaker = await stage.connect(), await stage.connect()
    await client.subscribe(T, ack="client-individual")
    for number in range(3):
        await client.send(T, str(number))
    for delivery in await client.next_messages(3):
        await client.nack(delivery)
    return client, undertaker


async def test_full_dead_letter_queue_keeps_it_with_the_subscription() -> None:
    async with Stage({T: {"redeliveries_max": 0}, GRAVE: {"count_max": 1}}) as stage:
        _client, undertaker = await three_refused(stage)
        assert (stage.depth_count(GRAVE), stage.depth_count(T)) == (1, 2)
        await undertaker.subscribe(GRAVE)
        assert await undertaker.next_texts(3) == ["0", "1", "2"]
        assert stage.depth_count(T) == 0


async def test_subscription_that_ends_takes_what_waits_with_it() -> None:
    async with Stage({T: {"redeliveries_max": 0}, GRAVE: {"count_max": 1}}) as stage:
        client, undertaker = await three_refused(stage)
        await client.unsubscribe()
        assert stage.depth_count(T) == 0
        await undertaker.subscribe(GRAVE)
        assert await undertaker.next_texts(1) == ["0"]
        await undertaker.silence()


async def test_without_a_dead_letter_queue_it_is_dropped_and_counted() -> None:
    async with Stage({T: {"redeliveries_max": 0, "dead_letter": None}}) as stage:
        client = await stage.connect()
        await client.subscribe(T, ack="client-individual")
        await client.sent(T, "x")
        await client.nack(await client.next_message())
        await client.silence()
        assert stage.reported(T)["dropped_count"] == 1
        assert stage.depth_count(T) == 0


@pytest.mark.parametrize("end", ENDS)
async def test_durable_subscription_gives_up_across_lives(end: str) -> None:
    """Failures of several lives add up; the letter names the subscription and its client."""
    lives = Lives({T: {"redeliveries_max": 2}})
    async with lives.life(end=end) as stage:
        client = await stage.connect(**CLIENT)
        await subscribe_durably(client)
        await client.sent(T, "poison", persistent="true")
        await trio.sleep(3)
    for life in range(3):
        async with lives.life(end=end) as stage:
            client = await stage.connect(**CLIENT)
            await subscribe_durably(client)
            delivery = await client.next_message()
            assert delivery.delivery_count >= life + 1
            await client.nack(delivery)
            if life < 2:
                await client.next_message()
            await trio.sleep(3)
    async with lives.life() as stage:
        client = await stage.connect(**CLIENT)
        await subscribe_durably(client)
        await client.silence()
        await client.subscribe(GRAVE, id="grave")
        letter = await client.next_message()
        assert letter.headers["dead-letter-subscription"] == "d"
        assert letter.headers["dead-letter-client-id"] == "c"
        await client.silence()


@pytest.mark.parametrize("end", ENDS)
async def test_dead_letter_moves_in_one_write(end: str) -> None:
    """However the broker ends: with the subscription or in the dead-letter queue, never both nor neither."""
    for delay_seconds in (0.0, 0.01, 0.1, 2.0):
        lives = Lives({T: {"redeliveries_max": 0}})
        async with lives.life(end=end) as stage:
            client = await stage.connect(**CLIENT)
            await subscribe_durably(client)
            for number in range(3):
                await client.sent(T, str(number), persistent="true")
            deliveries = await client.next_messages(3)
            await trio.sleep(3)
            for delivery in deliveries:
                await client.send_raw(client.encode("NACK", client.naming(delivery)))
            await trio.sleep(delay_seconds)
        async with lives.life() as stage:
            client = await stage.connect(**CLIENT)
            await subscribe_durably(client)
            await client.subscribe(GRAVE, id="grave")
            texts = [delivery.text for delivery in await client.drain()]
            assert sorted(texts) == ["0", "1", "2"], (end, delay_seconds)


async def test_what_a_durable_consumer_breaks_over_is_charged() -> None:
    """A message that kills its consumer each time does not come for ever; what lay beside it is innocent."""
    async with Stage({T: {"redeliveries_max": 2}}) as stage:
        producer = await stage.connect()
        client = await stage.connect(**CLIENT)
        await subscribe_durably(client)
        for number in range(3):
            await producer.sent(T, str(number))
        for _ in range(3):
            assert [d.text for d in await client.next_messages(3)] == ["0", "1", "2"]
            client.vanish()
            client = await stage.connect(**CLIENT)
            await subscribe_durably(client)
        left = await client.next_messages(2)
        assert [d.text for d in left] == ["1", "2"]
        for delivery in left:
            await client.ack(delivery)
        await producer.subscribe(GRAVE)
        assert (await producer.next_message()).text == "0"


async def test_mistake_of_a_durable_consumer_counts_as_breaking() -> None:
    """The connection ends with an ERROR then: as with a queue, what its consumer was working on is charged."""
    async with Stage({T: {"redeliveries_max": 1}}) as stage:
        producer = await stage.connect()
        client = await stage.connect(**CLIENT)
        await subscribe_durably(client)
        for number in range(2):
            await producer.sent(T, str(number))
        for _ in range(2):
            assert [d.text for d in await client.next_messages(2)] == ["0", "1"]
            await client.send_raw(b"NONSENSE\n\n\0")
            await client.expect_error()
            await client.expect_closed()
            client = await stage.connect(**CLIENT)
            await subscribe_durably(client)
        left = await client.next_message()
        assert left.text == "1"
        await client.ack(left)
        await producer.subscribe(GRAVE)
        assert (await producer.next_message()).text == "0"


async def test_body_that_can_not_be_read_is_not_charged_to_what_lay_beside_it(tmp_path: Path) -> None:
    """The connection ends for it, and its consumer did nothing wrong."""
    body = b"x" * 20_000
    large = {"destination": T, "content-length": str(len(body)), "persistent": "true"}
    async with Stage({T: {"redeliveries_max": 0}}, large_folder=tmp_path, large_body_bytes=10_000) as stage:
        client, producer = await stage.connect(**CLIENT), await stage.connect()
        await subscribe_durably(client)
        await producer.sent(T, "innocent", persistent="true")
        assert (await client.next_message()).text == "innocent"
        await client.unsubscribe("d")
        await producer.request("SEND", large, body)
        file = tmp_path / f"{1:016x}"
        file.unlink()
        await subscribe_durably(client)
        assert (await client.next_message()).text == "innocent"
        await client.expect_error("can't be read")
        file.write_bytes(body)
        client = await stage.connect(**CLIENT)
        await subscribe_durably(client)
        left = await client.next_messages(2)
        assert [delivery.body for delivery in left] == [b"innocent", body]
        assert stage.depth_count(GRAVE) == 0
        for delivery in left:
            await client.ack(delivery)


async def test_large_body_goes_with_its_dead_letter(tmp_path: Path) -> None:
    body = b"x" * 20_000
    async with Stage({T: {"redeliveries_max": 0}}, large_folder=tmp_path, large_body_bytes=10_000) as stage:
        client = await stage.connect()
        await client.subscribe(T, ack="client-individual")
        await client.frame("SEND", {"destination": T, "content-length": str(len(body))}, body)
        await client.nack(await client.next_message())
        await client.subscribe(GRAVE, id="grave")
        assert (await client.next_message()).body == body
