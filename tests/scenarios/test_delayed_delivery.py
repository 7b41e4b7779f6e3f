"""SEND with `delay`: delivered when its time has come, to the millisecond, whatever happened in between."""

from __future__ import annotations

import pytest
import trio

from tests.scenarios.client import Client, Delivery
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage, wall_clock_ms

Q = "/queue/later"
T = "/topic/later"
DIALECTS = ("delay", "AMQ_SCHEDULED_DELAY", "x-delay")
ENDS = ("in order", "crash", "power cut")


async def next_at(client: Client) -> tuple[Delivery, int]:
    """The next MESSAGE, and the wall clock when it came."""
    with trio.fail_after(3600):
        while not client.messages:
            await client._receive()
    return client.messages.popleft(), wall_clock_ms()


@pytest.mark.parametrize("header", DIALECTS)
async def test_delayed_message_comes_when_it_is_due(stage: Stage, header: str) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    await trio.sleep(0.25)
    sent_ms = wall_clock_ms()
    await producer.request("SEND", {"destination": Q, header: "90000"}, "later")
    await producer.sent(Q, "now")
    assert (await consumer.next_message()).text == "now"
    delivery, at_ms = await next_at(consumer)
    assert (delivery.text, at_ms) == ("later", sent_ms + 90_000)
    assert not delivery.redelivered


async def test_delay_of_zero_is_none(stage: Stage) -> None:
    consumer = await stage.connect()
    await consumer.subscribe(Q)
    await consumer.sent(Q, "x", delay="0")
    assert (await consumer.next_message()).text == "x"


async def test_report_counts_what_is_delayed(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent(Q, "x", delay="60000")
    await producer.sent(T, "x", delay="60000")
    await producer.sent(Q, "now")
    assert [stage.reported(name)["delayed_count"] for name in (Q, T)] == [1, 1]
    assert [stage.reported(name)["depth_count"] for name in (Q, T)] == [2, 1]
    await trio.sleep(61)
    assert [stage.reported(name)["delayed_count"] for name in (Q, T)] == [0, 0]


async def test_delayed_message_in_a_transaction_counts_from_its_commit(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    await producer.frame("BEGIN", {"transaction": "t"})
    await producer.send(Q, "x", transaction="t", delay="1000")
    await producer.sync()
    await trio.sleep(5)
    await producer.request("COMMIT", {"transaction": "t"})
    committed_ms = wall_clock_ms()
    delivery, at_ms = await next_at(consumer)
    assert (delivery.text, at_ms) == ("x", committed_ms + 1000)


async def test_composite_with_delay_goes_to_queue_and_topic(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, id="q")
    await consumer.subscribe(T, id="t")
    sent_ms = wall_clock_ms()
    await producer.sent(f"{Q},{T}", "x", delay="1000")
    await producer.sent(f"{Q},{T}", "now")
    assert await consumer.next_texts(2) == ["now", "now"]
    for _ in range(2):
        delivery, at_ms = await next_at(consumer)
        assert (delivery.text, at_ms) == ("x", sent_ms + 1000)


async def test_delayed_and_plain_messages_do_not_mix_up_routes(stage: Stage) -> None:
    """The same destination and priority, at once and delayed, in turn and in one read."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(T)
    for destination in (T, Q):
        frames = [
            producer.encode("SEND", {"destination": destination, **({"delay": "1000"} if n % 2 else {})}, str(n))
            for n in range(10)
        ]
        await producer.send_raw(b"".join(frames))
    assert await consumer.next_texts(5) == ["0", "2", "4", "6", "8"]
    await trio.sleep(1)
    assert await consumer.next_texts(5) == ["1", "3", "5", "7", "9"]


async def test_delayed_message_goes_to_the_subscribers_of_its_time(stage: Stage) -> None:
    early, late, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await early.subscribe(T)
    await producer.sent(T, "x", delay="1000")
    await early.unsubscribe()
    await late.subscribe(T)
    assert (await late.next_message()).text == "x"
    await early.silence()


async def test_nobody_is_there_when_it_is_due(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent(T, "x", delay="1000")
    await trio.sleep(2)
    assert stage.reported(T)["unheard_count"] == 1
    assert stage.reported(T)["depth_count"] == 0


async def test_wildcard_subscriber_gets_it_too(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/topic/>")
    await producer.sent(T, "x", delay="1000")
    assert (await consumer.next_message()).text == "x"


async def test_expiration_counts_from_arrival(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, id="q")
    await consumer.subscribe(T, id="t")
    for destination in (Q, T):
        await producer.sent(destination, "dies", delay="2000", expiration="1000")
        await producer.sent(destination, "lives", delay="2000", expiration="3000")
    assert await consumer.next_texts(2) == ["lives", "lives"]
    await consumer.silence()


async def test_browser_shows_what_is_delayed(stage: Stage) -> None:
    viewer, producer = await stage.connect(), await stage.connect()
    await producer.sent(Q, "later", delay="60000")
    await viewer.subscribe(Q, browser="true")
    assert (await viewer.next_message()).text == "later"
    await viewer.drain()
    await trio.sleep(60)


# ---------------------------------------------------------------------- restarts


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("destination", [Q, T])
async def test_delays_outlive_the_broker_to_the_millisecond(end: str, destination: str) -> None:
    """Sent in one life, due in the next; one is due while there is no broker, and comes at once."""
    lives = Lives()
    due_ms: dict[str, int] = {}
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        for delay_ms in (30_000, 7, 10_003, 3_600_001, 10_003):
            due_ms[str(len(due_ms))] = wall_clock_ms() + delay_ms
            await producer.sent(destination, str(len(due_ms) - 1), delay=str(delay_ms), persistent="true")
        assert durability(producer) == ["disk"] * 5
    await trio.sleep(0.1)
    async with lives.life(end=end) as stage:
        if destination == Q:  # a topic has published it before anybody could subscribe
            consumer = await stage.connect()
            await consumer.subscribe(Q)
            assert (await consumer.next_message()).text == "1"
        await stage.settled_down()
        assert stage.reported(destination)["delayed_count"] == 4
        await trio.sleep(5)
    async with lives.life(end=end) as stage:
        consumer = await stage.connect()
        await consumer.subscribe(destination)
        for text in ("2", "4", "0", "3"):
            delivery, at_ms = await next_at(consumer)
            assert (delivery.text, at_ms) == (text, due_ms[text])
            assert not delivery.redelivered, "it was never delivered before"
        await consumer.silence()
        await trio.sleep(5)  # what was settled is on disk
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(destination)
        await consumer.silence()


@pytest.mark.parametrize("end", ENDS)
async def test_delayed_message_to_a_durable_subscription_moves_at_once(end: str) -> None:
    """It is in the delay queue or in the topic, never in both and never in neither."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect(**{"client-id": "c"})
        await client.subscribe(T, id="d", ack="client", durable="true")
        await client.sent(T, "x", delay="1000", persistent="true")
        await trio.sleep(0.999 if end == "crash" else 3)
    async with lives.life() as stage:
        client = await stage.connect(**{"client-id": "c"})
        await client.subscribe(T, id="d", ack="client", durable="true")
        delivery = await client.next_message()
        assert delivery.text == "x"
        await client.ack(delivery)
        await client.silence()


async def test_many_delayed_messages_page_out_and_come_back_in_time() -> None:
    """More than memory has room for, and all in order of their time; what is not delayed passes them."""
    policies = {"/queue/>": {"memory_bytes": 256 * 1024}}
    lives = Lives(policies)
    count = 5000
    async with lives.life(end="crash") as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        for start in range(0, count, 500):
            head = {"destination": Q, "persistent": "true", "delay": str(60_000 + start)}
            frames = [producer.encode("SEND", head, f"{n:06d}".ljust(200)) for n in range(start, start + 500)]
            await producer.send_raw(b"".join(frames))
        await producer.sent(Q, "now")
        delivery = await consumer.next_message()
        assert delivery.text == "now"
        await consumer.ack(delivery)
        report = stage.reported(Q)
        assert report["delayed_count"] == count
        assert report["outside_count"] > 0
        assert report["memory_bytes"] < 256 * 1024
        await trio.sleep(1)
    async with lives.life() as stage:
        consumer = await stage.connect()
        await stage.settled_down()
        assert stage.reported(Q)["delayed_count"] == count
        await consumer.subscribe(Q)
        await consumer.silence(50)
        texts: list[str] = []
        with trio.fail_after(60):
            while len(texts) < count:
                delivery, _at_ms = await next_at(consumer)
                assert not delivery.redelivered
                texts.append(delivery.text.strip())
        assert texts == [f"{n:06d}" for n in range(count)]
        assert stage.reported(Q)["delayed_count"] == 0
