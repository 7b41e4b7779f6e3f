"""How much a subscription is given before it must acknowledge, in both header dialects. DESIGN sections 6 and 9."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.stage import Stage

Q = "/queue/work"

COUNT_HEADERS = [{"prefetch-count": "3"}, {"activemq.prefetchSize": "3"}, {"credit": "3"}, {"credit": "3,1000000"}]


@pytest.mark.parametrize("headers", COUNT_HEADERS)
@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_window_in_messages(stage: Stage, headers: dict[str, str], ack: str) -> None:
    """No more than asked for are out; every ACK lets so many follow."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.request("SUBSCRIBE", {"destination": Q, "id": "s", "ack": ack, **headers})
    await producer.send_all(Q, range(10))
    deliveries = await consumer.next_messages(3)
    await consumer.silence()
    await consumer.ack(deliveries[0])
    deliveries += await consumer.next_messages(1)
    await consumer.silence()
    await consumer.ack(deliveries[1])
    await consumer.ack(deliveries[2])
    assert await consumer.next_texts(2) == ["4", "5"]
    await consumer.silence()


async def test_window_is_filled_in_one_go(stage: Stage, version: Version) -> None:
    """A backlog is there: the window is used at once, not message by message."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await producer.send_all(Q, range(100))
    await consumer.subscribe(Q, ack="client", prefetch_count="50")
    deliveries = await consumer.next_messages(50)
    await consumer.silence()
    await consumer.ack(deliveries[-1])
    assert len(await consumer.next_messages(50)) == 50


async def test_prefetch_one_means_one(stage: Stage, later_version: Version) -> None:
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="1")
    await producer.send_all(Q, range(3))
    for n in range(3):
        delivery = await consumer.next_message()
        assert delivery.text == str(n)
        await consumer.silence()
        await consumer.ack(delivery)


async def test_nack_opens_the_window(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="1")
    await producer.send(Q, "x")
    for _ in range(3):
        await consumer.nack(await consumer.next_message())
    assert (await consumer.next_message()).delivery_count == 4


@pytest.mark.parametrize("headers", [{"prefetch-count": "0"}, {"credit": "1000000"}])
async def test_no_limit_in_messages(stage: Stage, headers: dict[str, str]) -> None:
    """0 in RabbitMQ's dialect."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.request("SUBSCRIBE", {"destination": Q, "id": "s", "ack": "client", **headers})
    await producer.send_all(Q, range(3000))
    assert len(await consumer.next_messages(3000)) == 3000


async def test_activemq_prefetch_0_is_one_at_a_time(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    headers = {"destination": Q, "id": "s", "ack": "client", "activemq.prefetchSize": "0"}
    await consumer.request("SUBSCRIBE", headers)
    await producer.send_all(Q, range(3))
    await consumer.next_message()
    await consumer.silence()


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "", "99999999999999999999"])
@pytest.mark.parametrize("name", ["prefetch-count", "activemq.prefetchSize", "credit"])
async def test_nonsense_is_refused(stage: Stage, name: str, value: str) -> None:
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": Q, "id": "s", "ack": "client", name: value})
    await client.expect_error(name)


async def test_default_window_comes_from_the_policy() -> None:
    async with Stage({"/queue/slow.>": {"prefetch_count": 2}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe("/queue/slow.down", ack="client")
        await producer.send_all("/queue/slow.down", range(5))
        await consumer.next_messages(2)
        await consumer.silence()


async def test_window_in_bytes() -> None:
    """It is used up by the message that goes beyond it, and open again when there is room for a byte."""
    async with Stage({"/queue/big": {"prefetch_bytes": 5_000}}) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe("/queue/big", ack="client-individual")
        await producer.send_all("/queue/big", [str(n).ljust(2_000) for n in range(10)])
        deliveries = await consumer.next_messages(3)
        await consumer.silence()
        await consumer.ack(deliveries[0])
        await consumer.next_message()
        await consumer.silence()


async def test_message_larger_than_the_window_still_comes(stage: Stage) -> None:
    """But nothing beside it."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", credit="10,100")
    await producer.send(Q, b"x" * 100_000)
    await producer.send(Q, b"y")
    large = await consumer.next_message()
    await consumer.silence()
    await consumer.ack(large)
    assert (await consumer.next_message()).body == b"y"


async def test_window_is_shared_by_all_destinations_of_a_subscription(stage: Stage) -> None:
    """A wildcard over many queues does not multiply the prefetch."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/queue/many.*", ack="client-individual", prefetch_count="2")
    for n in range(6):
        await producer.sent(f"/queue/many.{n}", str(n))
    got: list[str] = []
    while len(got) < 6:
        deliveries = await consumer.next_messages(min(2, 6 - len(got)))
        await consumer.silence()
        for delivery in deliveries:
            got.append(delivery.text)
            await consumer.ack(delivery)
    assert sorted(got) == [str(n) for n in range(6)]


async def test_window_is_shared_by_all_priorities(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="2")
    for priority in range(10):
        await producer.sent(Q, str(priority), priority=str(priority))
    await consumer.next_messages(2)
    await consumer.silence()


async def test_subscriptions_have_windows_of_their_own(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/queue/a", id="a", ack="client", prefetch_count="1")
    await consumer.subscribe("/queue/b", id="b", ack="client", prefetch_count="1")
    for n in range(3):
        await producer.send("/queue/a", f"a{n}")
        await producer.send("/queue/b", f"b{n}")
    assert sorted(await consumer.next_texts(2)) == ["a0", "b0"]
    await consumer.silence()


async def test_queue_is_shared_out_by_credit(stage: Stage) -> None:
    """A consumer whose window is full is passed by."""
    stuck, busy, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await stuck.subscribe(Q, ack="client", prefetch_count="1")
    await busy.subscribe(Q, ack="client-individual", prefetch_count="1")
    await producer.send_all(Q, range(20))
    await stuck.next_message()
    for _ in range(19):
        await busy.ack(await busy.next_message())
    assert stage.depth_count(Q) == 1


# ---------------------------------------------------------------------- the express lane


async def test_high_priority_passes_a_full_window(stage: Stage) -> None:
    """A tenth beyond the window is kept for raised priority, so that what the consumer holds does not hold it up."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="20")
    await producer.send_all(Q, range(30))
    await consumer.next_messages(20)
    await consumer.silence()
    for n in range(4):
        await producer.send(Q, f"express {n}", priority="9")
    assert await consumer.next_texts(2) == ["express 0", "express 1"]
    await consumer.silence()


async def test_express_messages_use_the_window_like_others(stage: Stage) -> None:
    """What is beyond the window must be acknowledged before anything of ordinary priority follows."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="10")
    await producer.send_all(Q, range(20))
    deliveries = await consumer.next_messages(10)
    await producer.send(Q, "express", priority="9")
    express = await consumer.next_message()
    assert express.text == "express"
    await consumer.ack(deliveries[0])
    await consumer.silence()
    await consumer.ack(express)
    assert (await consumer.next_message()).text == "10"


@pytest.mark.parametrize("prefetch", ["1", "9"])
async def test_small_windows_have_no_express_lane(stage: Stage, prefetch: str) -> None:
    """ "One at a time" means one."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count=prefetch)
    await producer.send_all(Q, range(20))
    deliveries = await consumer.next_messages(int(prefetch))
    await producer.send(Q, "express", priority="9")
    await consumer.silence()
    await consumer.ack(deliveries[0])
    assert (await consumer.next_message()).text == "express"
