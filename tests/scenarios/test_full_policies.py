"""What happens when a destination is full, seen by its clients; and when it is idle. DESIGN section 6."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.stage import Stage

Q = "/queue/small"
T = "/topic/small"


async def test_block_holds_its_sender_back_and_loses_nothing(version: Version) -> None:
    async with Stage({Q: {"full": "block", "count_max": 10}}) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        await producer.send_all(Q, range(30))
        await producer.frame("SEND", {"destination": Q, "receipt": "r"}, "30")
        await producer.silence()
        await consumer.subscribe(Q)
        assert await consumer.next_texts(31) == [str(n) for n in range(31)]
        await producer.expect_receipt("r")


async def test_block_resumes_senders_in_turn() -> None:
    """Several that wait all get through, none starves, each in its own order."""
    async with Stage({Q: {"full": "block", "count_max": 10}}) as stage:
        producers = [await stage.connect() for _ in range(4)]
        consumer = await stage.connect()
        for place, producer in enumerate(producers):
            for n in range(25):
                await producer.send(Q, f"{place}.{n}")
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="1")
        got = []
        for _ in range(100):
            delivery = await consumer.next_message()
            got.append(delivery.text)
            await consumer.ack(delivery)
        for place in range(4):
            assert [text for text in got if text.startswith(f"{place}.")] == [f"{place}.{n}" for n in range(25)]


async def test_drop_oldest_keeps_the_newest(version: Version) -> None:
    async with Stage({Q: {"full": "drop_oldest", "count_max": 10}}) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        for n in range(0, 30, 3):
            await producer.send_all(Q, range(n, n + 3))
        await producer.sync()
        assert stage.reported(Q)["dropped_count"] == 20
        await consumer.subscribe(Q)
        assert await consumer.next_texts(10) == [str(n) for n in range(20, 30)]


async def test_drop_oldest_leaves_what_a_consumer_holds() -> None:
    async with Stage({Q: {"full": "drop_oldest", "count_max": 10}}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="4")
        await producer.send_all(Q, range(10))
        held = await consumer.next_messages(4)
        await producer.send_all(Q, range(10, 30))
        await producer.sync()
        for delivery in held:
            await consumer.ack(delivery)
        assert [d.text for d in held] == ["0", "1", "2", "3"]
        assert await consumer.next_texts(4) == [str(n) for n in range(24, 28)]


async def test_drop_newest_keeps_the_oldest(version: Version) -> None:
    async with Stage({Q: {"full": "drop_newest", "count_max": 10}}) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        await producer.send_all(Q, range(25))
        await producer.sync()
        assert stage.reported(Q)["dropped_count"] == 15
        await consumer.subscribe(Q)
        assert await consumer.next_texts(10) == [str(n) for n in range(10)]


@pytest.mark.parametrize("at_once", [True, False])
async def test_reject_refuses_exactly_what_does_not_fit(version: Version, at_once: bool) -> None:
    """The ERROR is for the first SEND that did not fit, whether they came in one chunk or one by one."""
    async with Stage({Q: {"full": "reject", "count_max": 10}}) as stage:
        producer = await stage.connect(version)
        frames = [producer.encode("SEND", {"destination": Q, "receipt": str(n)}, str(n)) for n in range(13)]
        if at_once:
            await producer.send_raw(b"".join(frames))
        else:
            for frame in frames:
                await producer.send_raw(frame)
        error = await producer.expect_error("full")
        assert (error.headers["receipt-id"], error.headers["command"]) == ("10", "SEND")
        assert list(producer.receipts) == [str(n) for n in range(10)]
        assert stage.depth_count(Q) == 10


async def test_reject_costs_nobody_else_anything() -> None:
    async with Stage({Q: {"full": "reject", "count_max": 2}}) as stage:
        producer, other = await stage.connect(), await stage.connect()
        await producer.send_all(Q, range(3))
        await producer.expect_error("full")
        await other.subscribe(Q)
        assert await other.next_texts(2) == ["0", "1"]
        await other.send(Q, "again")
        assert (await other.next_message()).text == "again"


async def test_limit_in_bytes_counts_like_the_one_in_messages() -> None:
    async with Stage({Q: {"full": "drop_newest", "bytes_max": 20_000}}) as stage:
        producer = await stage.connect()
        for _ in range(10):
            await producer.send(Q, "x" * 3_000)
        await producer.sync()
        report = stage.reported(Q)
        assert report["depth_count"] == 6
        assert report["depth_bytes"] <= 20_000


async def test_lagging_topic_subscriber_loses_the_oldest_and_is_told_how_many(version: Version) -> None:
    """`dropped-count` on the next MESSAGE; a fast subscriber beside it gets everything."""
    async with Stage({T: {"memory_bytes": 20_000, "lead_bytes": 20_000}}) as stage:
        producer, fast, slow = [await stage.connect(version) for _ in range(3)]
        await fast.subscribe(T)
        await slow.subscribe(T, ack="client", prefetch_count="2")
        for n in range(300):
            await producer.sent(T, str(n))
            assert (await fast.next_message()).text == str(n)
        deliveries = await slow.next_messages(2)
        assert [d.text for d in deliveries] == ["0", "1"]
        missed = 0
        numbers = [0, 1]
        while numbers[-1] != 299:
            await slow.ack(deliveries[-1])
            deliveries = [await slow.next_message()]
            if numbers[-1] < 298 and int(deliveries[0].text) < 299:
                deliveries.append(await slow.next_message())
            for delivery in deliveries:
                missed += int(delivery.headers.get("dropped-count", "0"))
                numbers.append(int(delivery.text))
        assert numbers == sorted(numbers)
        assert missed > 0
        assert len(numbers) + missed == 300, "what is missing is what it was told"


async def test_topic_with_policy_block_waits_for_its_slowest_subscriber() -> None:
    async with Stage({T: {"full": "block", "count_max": 10}}) as stage:
        producer, fast, slow = [await stage.connect() for _ in range(3)]
        await fast.subscribe(T)
        await slow.subscribe(T, ack="client-individual", prefetch_count="1")
        await producer.send_all(T, range(40))
        await producer.frame("SEND", {"destination": T, "receipt": "r"}, "40")
        await producer.silence()
        for n in range(41):
            delivery = await slow.next_message()
            assert delivery.text == str(n)
            await slow.ack(delivery)
        await producer.expect_receipt("r")
        assert await fast.next_texts(41) == [str(n) for n in range(41)]


async def test_topic_that_nobody_hears_costs_nothing(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.send_all("/topic/t", range(1000))
    await producer.sync()
    assert stage.reported("/topic/t")["unheard_count"] == 1000
    assert stage.reported("/topic/t")["depth_bytes"] == 0


# ---------------------------------------------------------------------- idle destinations


async def test_idle_empty_destination_is_forgotten(stage: Stage) -> None:
    """After `auto_delete_seconds`, once it has no messages, no consumers and no senders."""
    client = await stage.connect()
    await client.subscribe("/queue/passing")
    await client.sent("/queue/passing", "x")
    await client.next_message()
    await trio.sleep(100)
    assert "/queue/passing" in stage.broker.registry.destinations
    await client.disconnect()
    await trio.sleep(20)
    assert "/queue/passing" in stage.broker.registry.destinations
    await trio.sleep(25)
    assert "/queue/passing" not in stage.broker.registry.destinations


async def test_destination_with_messages_is_never_forgotten(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent("/queue/kept", "x")
    await producer.disconnect()
    await trio.sleep(1000)
    consumer = await stage.connect()
    await consumer.subscribe("/queue/kept")
    assert (await consumer.next_message()).text == "x"


async def test_forgotten_destination_comes_back_when_it_is_used(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/queue/>")
    for n in range(3):
        await producer.sent("/queue/again", str(n))
        assert (await consumer.next_message()).text == str(n)
        await producer.disconnect()
        await trio.sleep(60)
        assert "/queue/again" not in stage.broker.registry.destinations
        producer = await stage.connect()


@pytest.mark.parametrize("full", ["block", "reject", "drop_oldest", "drop_newest", "dead_letter"])
async def test_limits_hold_for_many_at_once(full: str) -> None:
    """Exactly; or, where senders wait, but for what was read at once (docs/flow-control.md)."""
    async with Stage({Q: {"full": full, "count_max": 10}}) as stage:
        producers = [await stage.connect() for _ in range(2)]
        for producer in producers:
            for _ in range(3):
                await producer.send_raw(b"".join(producer.encode("SEND", {"destination": Q}, "x") for _ in range(30)))
                await trio.sleep(0.1)
        most = 10 + 2 * 30 if full in ("block", "dead_letter") else 10
        assert 10 <= stage.depth_count(Q) <= most
