"""Who waits on whom, in words that name the bottleneck. DESIGN section 4, visibility."""

from __future__ import annotations

import trio

from tests.scenarios.stage import Stage

SMALL = {"/queue/small": {"full": "block", "count_max": 10}}


async def test_nobody_waits_in_a_healthy_broker(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe("/queue/q", ack="client")
    for n in range(100):
        await client.send("/queue/q", str(n))
        await client.ack(await client.next_message())
    report = stage.broker.report()
    assert (report["chains"], report["bottlenecks"], report["cycles"]) == ([], [], [])


async def test_producer_of_a_full_queue_waits_on_the_consumer_that_does_not_acknowledge() -> None:
    """The chain leads through the queue to the culprit, with what it holds and for how long it has done nothing."""
    async with Stage(SMALL) as stage:
        producer = await stage.connect(name="web-3")
        consumer = await stage.connect(name="billing-2")
        await consumer.subscribe("/queue/small", id="slow", ack="client", prefetch_count="5")
        await producer.send_all("/queue/small", range(30))
        await consumer.next_messages(5)
        await trio.sleep(41)
        (words,) = [chain for chain in stage.chains() if chain.startswith("connection web-3")]
        assert "waits on queue /queue/small" in words
        assert "waits on subscription slow of billing-2" in words
        assert "5 unacked" in words
        assert "idle 41 s" in words
        worst = stage.broker.report()["bottlenecks"][0]
        assert worst["sink"] == "subscription slow of billing-2"
        assert not worst["waits_itself"]


async def test_producer_of_a_full_queue_without_consumers_is_told_so() -> None:
    async with Stage(SMALL) as stage:
        producer = await stage.connect(name="web-3")
        await producer.send_all("/queue/small", range(30))
        await producer.silence()
        (words,) = stage.chains()
        assert words.startswith("connection web-3 waits on queue /queue/small")
        assert "subscribe one" in words


async def test_producer_of_a_topic_waits_on_its_lone_stalled_subscriber() -> None:
    """The lead is used up: nobody else is there who would pull ahead."""
    async with Stage({"/topic/t": {"lead_bytes": 10_000}}) as stage:
        producer = await stage.connect(name="ticker")
        consumer = await stage.connect(name="screen")
        await consumer.subscribe("/topic/t", ack="client", prefetch_count="1")
        await producer.send_all("/topic/t", ["x" * 1_000 for _ in range(30)])
        await consumer.next_message()
        await trio.sleep(5)
        (words,) = [chain for chain in stage.chains() if chain.startswith("connection ticker")]
        assert "topic /topic/t" in words
        assert "subscription s of screen" in words
        assert "1 unacked" in words


async def test_producer_waits_on_the_connection_that_does_not_read() -> None:
    """Outbound bytes are a resource like any other."""
    async with Stage({"/queue/q": {"full": "block", "count_max": 50}}) as stage:
        producer = await stage.connect(name="web-3")
        consumer = await stage.connect(name="stuck")
        await consumer.subscribe("/queue/q", id="s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send_all, "/queue/q", ["x" * 20_000 for _ in range(150)])
            await trio.sleep(10)
            (words,) = [
                chain for chain in stage.chains() if chain.startswith("connection web-3 waits on queue /queue/q")
            ]
            assert "waits on outbound stuck" in words
            assert "waiting" in words
            worst = stage.broker.report()["bottlenecks"][0]
            assert worst["sink"] == "outbound stuck"
            await consumer.next_messages(150)


async def test_socket_that_is_not_read_says_why() -> None:
    async with Stage(SMALL, stash_bytes_max=5_000) as stage:
        producer = await stage.connect(name="web-3")
        async with trio.open_nursery() as nursery:
            frame = producer.encode("SEND", {"destination": "/queue/small"}, b"x" * 1_000)
            nursery.start_soon(producer.stream.send_all, frame * 500)
            await trio.sleep(5)
            (connection,) = stage.broker.report()["connections"]
            assert connection["waiting_on"] == "blocked destinations"
            assert connection["blocked_seconds"] >= 4.9
            assert connection["parked_count"] > 0
            assert stage.broker.report()["cycles"] == []
            nursery.cancel_scope.cancel()


async def test_connection_that_produces_and_consumes_is_no_cycle() -> None:
    """Its ACKs do not wait behind its SENDs, so that it waits on itself is no lock, and not shown as one."""
    async with Stage(SMALL) as stage:
        client = await stage.connect(name="both")
        await client.subscribe("/queue/small", ack="client", prefetch_count="5")
        await client.send_all("/queue/small", range(30))
        deliveries = await client.next_messages(5)
        report = stage.broker.report()
        assert report["cycles"] == []
        (words,) = [chain for chain in stage.chains() if chain.startswith("connection both")]
        assert "subscription s of both" in words
        while stage.depth_count("/queue/small"):
            await client.ack(deliveries[-1])
            deliveries = await client.drain() or deliveries


async def test_two_connections_that_feed_each_other_are_no_cycle() -> None:
    async with Stage({"/queue/>": {"full": "block", "count_max": 10}}) as stage:
        one, two = await stage.connect(), await stage.connect()
        await one.subscribe("/queue/a", ack="client", prefetch_count="5")
        await two.subscribe("/queue/b", ack="client", prefetch_count="5")
        await one.send_all("/queue/b", range(30))
        await two.send_all("/queue/a", range(30))
        await one.next_messages(5)
        await two.next_messages(5)
        assert stage.broker.report()["cycles"] == []


async def test_memory_in_use_is_what_the_queues_hold(stage: Stage) -> None:
    client = await stage.connect()
    await client.send_all("/queue/a", ["x" * 1_000] * 100)
    await client.send_all("/queue/b", ["y" * 500] * 100)
    await client.sync()
    upkeep_bytes = stage.upkeep_bytes
    report = stage.broker.report()
    assert report["used_bytes"] - upkeep_bytes == sum(d["depth_bytes"] for d in report["destinations"])
    assert report["used_bytes"] > 150_000


async def test_parked_and_unwritten_bytes_are_memory_in_use() -> None:
    async with Stage(SMALL) as stage:
        producer, stuck = await stage.connect(), await stage.connect()
        await stuck.subscribe("/queue/other")
        for _ in range(5):
            await producer.sent("/queue/other", "x" * 30_000)
        await producer.send_all("/queue/small", ["x" * 1_000] * 30)
        await producer.send_all("/queue/small", ["y" * 1_000] * 30)
        await producer.sync()
        upkeep_bytes = stage.upkeep_bytes
        report = stage.broker.report()
        queues = sum(d["depth_bytes"] for d in report["destinations"])
        connections = sum(c["stash_bytes"] + c["waiting_bytes"] for c in report["connections"])
        assert connections > 100_000
        attachments = stage.broker.registry.attachments.used_bytes
        assert report["used_bytes"] - upkeep_bytes == queues + connections + attachments
