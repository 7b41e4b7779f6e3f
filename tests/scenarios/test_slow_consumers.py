"""Slow consumers: found by age and by rate, marked, told, and disconnected where the policy says so."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from tests.log_lines import LogLines
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

Q, T = "/queue/work", "/topic/news"


def marks(stage: Stage) -> list[str]:
    """The reasons of the slow consumers."""
    return [words for _name, words in stage.broker.slow_consumers.marked.values()]


async def work(client: Client, seconds: float, per_second: float) -> None:
    """Take so many messages a second."""
    for _ in range(round(seconds * per_second)):
        await client.ack(await client.next_message())
        await trio.sleep(1 / per_second)


@pytest.mark.parametrize("destination", [Q, T])
async def test_message_held_for_too_long(destination: str) -> None:
    """Also one of many that were acknowledged: an ACK was forgotten."""
    async with Stage({destination: {"slow_after_seconds": 60.0}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(destination, ack="client-individual")
        await producer.send_all(destination, range(10))
        first, *others = await consumer.next_messages(10)
        for delivery in others:
            await consumer.ack(delivery)
        await trio.sleep(55)
        assert not marks(stage)
        await trio.sleep(25)
        assert marks(stage) == ["for 60 s it has not done with what it was given"]
        assert [row["words"] for row in stage.broker.report()["stalled"] if "slow" in row["words"]]
        await consumer.ack(first)
        await trio.sleep(2)
        assert not marks(stage)


async def test_steady_worker_is_not_slow() -> None:
    """It holds a prefetch for long, but no message for as long as that."""
    async with Stage({Q: {"slow_after_seconds": 10.0, "slow_per_second": 0.5}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="3")
        await producer.send_all(Q, range(60))
        await work(consumer, 60, 1)
        assert stage.broker.slow_consumers.found_count == 0


async def test_client_that_reads_nothing() -> None:
    """With ack auto."""
    async with Stage({Q: {"slow_after_seconds": 5.0}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q)
        await trio.sleep(30)
        assert not marks(stage)
        await producer.send_all(Q, ["x" * 10_000] * 300)
        await trio.sleep(8)
        assert len(marks(stage)) == 1
        await consumer.next_messages(300)
        await trio.sleep(2)
        assert not marks(stage)


@pytest.mark.parametrize("destination", [Q, T])
async def test_consumer_that_takes_less_than_its_peers(destination: str) -> None:
    async with Stage({destination: {"slow_share": 0.2}}) as stage:
        slow, quick, producer = await stage.connect(), await stage.connect(), await stage.connect()
        for client in (slow, quick):
            await client.subscribe(destination, ack="client-individual", prefetch_count="10")
        await producer.send_all(destination, range(2000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, quick, 25, 20)
            nursery.start_soon(work, slow, 25, 1)
        (words,) = marks(stage)
        assert "less than 0.2 of the" in words
        for client in (slow, quick):
            client.vanish()
        if destination == Q:
            last = await stage.connect()
            await last.subscribe(Q)
            await last.drain()


async def test_consumer_that_takes_too_little_with_a_backlog() -> None:
    async with Stage({Q: {"slow_per_second": 5.0, "slow_measure_seconds": 4.0}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="2")
        await work_on(producer, consumer, 20)
        assert not marks(stage), "it takes all there is"
        await producer.send_all(Q, range(60))
        await work(consumer, 20, 1)
        (words,) = marks(stage)
        assert words == "it took 1 messages a second in 4 s, less than 5"
        await consumer.sent("/sluiceway/credit", id="s", paused="true")
        await trio.sleep(10)
        assert not marks(stage), "its client has paused it"
        await consumer.sent("/sluiceway/credit", id="s", credit="100")
        for delivery in await consumer.drain():
            await consumer.ack(delivery)


async def work_on(producer: Client, consumer: Client, count: int) -> None:
    """Send a message a second, and have it done at once."""
    for n in range(count):
        await producer.send(Q, str(n))
        await consumer.ack(await consumer.next_message())
        await trio.sleep(1)


async def test_slow_consumer_is_disconnected_with_the_reason(log_lines: LogLines) -> None:
    """What it held goes to the other one; the log has one warning."""
    async with Stage({Q: {"slow_after_seconds": 30.0, "slow_consumer": "disconnect"}}) as stage:
        slow, other, producer = await stage.connect(), await stage.connect(), await stage.connect()
        await slow.subscribe(Q, ack="client")
        await producer.send_all(Q, range(3))
        await slow.next_messages(3)
        await other.subscribe(Q, ack="client")
        await trio.sleep(40)
        error = await slow.expect_error("is slow: for 30 s")
        assert error.headers["code"] == "slow-consumer"
        assert Q in error.headers["message"]
        assert b"slow_after_seconds" in error.body
        (warning,) = log_lines.of("slow consumer")
        assert (warning["destination"], warning["action"]) == (Q, "disconnect")
        deliveries = await other.next_messages(3)
        assert [each.redelivered for each in deliveries] == [True] * 3
        await other.ack(deliveries[-1])
        assert stage.broker.slow_consumers.disconnected_count == 1
        await trio.sleep(5)
        assert not marks(stage)


async def test_transaction_that_holds_acks_is_not_slow() -> None:
    async with Stage({Q: {"slow_after_seconds": 5.0, "slow_consumer": "disconnect"}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await producer.send(Q, "x")
        await consumer.request("BEGIN", {"transaction": "t"})
        await consumer.ack(await consumer.next_message(), transaction="t")
        await trio.sleep(30)
        assert not marks(stage)
        await consumer.request("COMMIT", {"transaction": "t"})


async def test_wildcard_is_judged_by_age_alone() -> None:
    settings = {"slow_after_seconds": 20.0, "slow_per_second": 100.0}
    async with Stage({"/queue/>": settings}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe("/queue/>", ack="client-individual", prefetch_count="1")
        await producer.send_all(Q, range(3))
        held = await consumer.next_message()
        await trio.sleep(15)
        assert not marks(stage)
        await trio.sleep(15)
        assert marks(stage) == ["for 20 s it has not done with what it was given"]
        await consumer.ack(held)
        for _ in range(2):
            await consumer.ack(await consumer.next_message())


async def test_settings_may_change(stage: Stage) -> None:
    """Without them nothing is looked at; destinations that are there follow new ones, and forget old ones."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await producer.send(Q, "x")
    held = await consumer.next_message()
    await trio.sleep(60)
    watcher = stage.broker.slow_consumers
    assert not watcher._watches
    queue = stage.destination(Q)
    assert "slow_after_seconds" in attrs.asdict(queue.policy)
    config = stage.broker.config
    policies: tuple[Any, ...] = (type_of_policy(Q, {"slow_after_seconds": 3.0}),)
    for destinations, count in ((policies, 1), ((), 0)):
        stage.broker.config = attrs.evolve(config, destinations=destinations)
        stage.broker.shards.reconfigure(stage.broker.config)
        await trio.sleep(20)
        assert len(marks(stage)) == count
    assert not watcher._watches
    await consumer.ack(held)


def type_of_policy(match: str, settings: dict[str, Any]) -> Any:
    """An entry of the configuration."""
    from sluiceway.config import DestinationPolicy

    return DestinationPolicy(match, settings)
