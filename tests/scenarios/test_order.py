"""Who gets what, and in which order: priorities, message groups, exclusive consumers. DESIGN section 6."""

from __future__ import annotations

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

Q = "/queue/work"


async def test_one_producer_to_one_consumer_is_in_order(stage: Stage, version: Version) -> None:
    producer, consumer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q)
    for n in range(0, 3000, 100):
        await producer.send_all(Q, range(n, n + 100))
    assert await consumer.next_texts(3000) == [str(n) for n in range(3000)]


async def test_every_message_goes_to_exactly_one_consumer(stage: Stage, version: Version) -> None:
    producer = await stage.connect(version)
    consumers = [await stage.connect(version) for _ in range(3)]
    for consumer in consumers:
        await consumer.subscribe(Q)
    await producer.send_all(Q, range(900))
    shares = [[d.text for d in await consumer.drain()] for consumer in consumers]
    assert sorted(int(text) for share in shares for text in share) == list(range(900))
    assert all(share == sorted(share, key=int) for share in shares)
    assert all(len(share) > 100 for share in shares), [len(share) for share in shares]


async def test_every_topic_subscriber_gets_everything_in_order(stage: Stage, version: Version) -> None:
    producer = await stage.connect(version)
    consumers = [await stage.connect(version) for _ in range(3)]
    for consumer in consumers:
        await consumer.subscribe("/topic/t")
    await producer.send_all("/topic/t", range(900))
    for consumer in consumers:
        assert await consumer.next_texts(900) == [str(n) for n in range(900)]


async def test_topic_subscriber_gets_what_comes_after_it(stage: Stage) -> None:
    producer, early, late = await stage.connect(), await stage.connect(), await stage.connect()
    await early.subscribe("/topic/t")
    await producer.sent("/topic/t", "1")
    await late.subscribe("/topic/t")
    await producer.sent("/topic/t", "2")
    assert await early.next_texts(2) == ["1", "2"]
    assert await late.next_texts(1) == ["2"]


# ---------------------------------------------------------------------- priorities


async def test_higher_priority_overtakes_a_backlog(stage: Stage, version: Version) -> None:
    producer, consumer = await stage.connect(version), await stage.connect(version)
    for priority in ("4", "0", "9", "5"):
        for n in range(3):
            await producer.sent(Q, f"{priority}.{n}", priority=priority)
    await producer.sent(Q, "default")
    await consumer.subscribe(Q, ack="client", prefetch_count="1")
    got = []
    for _ in range(13):
        delivery = await consumer.next_message()
        got.append(delivery.text)
        await consumer.ack(delivery)
    assert got == ["9.0", "9.1", "9.2", "5.0", "5.1", "5.2", "4.0", "4.1", "4.2", "default", "0.0", "0.1", "0.2"]


async def test_order_within_a_priority_is_kept(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    frames = [producer.encode("SEND", {"destination": Q, "priority": str(n % 10)}, str(n)) for n in range(500)]
    await producer.send_raw(b"".join(frames))
    got = [int(text) for text in await consumer.next_texts(500)]
    for priority in range(10):
        mine = [n for n in got if n % 10 == priority]
        assert mine == sorted(mine) and len(mine) == 50


async def test_redelivered_messages_keep_their_priority(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="2")
    await producer.sent(Q, "low", priority="1")
    await producer.sent(Q, "high", priority="8")
    deliveries = await consumer.next_messages(2)
    consumer.vanish()
    heir = await stage.connect()
    await heir.subscribe(Q, ack="client-individual", prefetch_count="1")
    assert {d.text for d in deliveries} == {"low", "high"}
    assert (await heir.next_message()).text == "high"


# ---------------------------------------------------------------------- groups


async def send_groups(producer: Client, keys: str, count: int, header: str = "group") -> None:
    """`count` messages, `KEY.NUMBER`, round robin over the keys."""
    frames = [
        producer.encode("SEND", {"destination": Q, header: keys[n % len(keys)]}, f"{keys[n % len(keys)]}.{n}")
        for n in range(count)
    ]
    await producer.send_raw(b"".join(frames))


async def test_group_has_one_consumer_at_a_time(stage: Stage) -> None:
    """And is in order there."""
    producer = await stage.connect()
    consumers = [await stage.connect() for _ in range(3)]
    for consumer in consumers:
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="40")
    await send_groups(producer, "abcdef", 60)
    holders: dict[str, int] = {}
    for place, consumer in enumerate(consumers):
        deliveries = await consumer.drain()
        for delivery in deliveries:
            assert holders.setdefault(delivery.text[0], place) == place
        for key in "abcdef":
            mine = [int(d.text[2:]) for d in deliveries if d.text[0] == key]
            assert mine == sorted(mine)
    assert len(holders) == 6
    assert len(set(holders.values())) > 1, "keys are spread over consumers"


async def test_group_goes_on_elsewhere_only_when_its_messages_are_settled(stage: Stage) -> None:
    producer, first, second = await stage.connect(), await stage.connect(), await stage.connect()
    await first.subscribe(Q, ack="client-individual", prefetch_count="1")
    await send_groups(producer, "a", 2, "JMSXGroupID")
    held = await first.next_message()
    await second.subscribe(Q, ack="client-individual", prefetch_count="1")
    await second.silence()
    await producer.sent(Q, "free")
    assert (await second.next_message()).text == "free"
    await first.ack(held)
    assert (await first.next_message()).text == "a.1"


async def test_group_moves_in_order_when_its_consumer_is_lost(stage: Stage) -> None:
    """Everything that was out comes first at the next one."""
    producer, first = await stage.connect(), await stage.connect()
    await first.subscribe(Q, ack="client-individual", prefetch_count="5")
    await send_groups(producer, "a", 10)
    await first.next_messages(5)
    second = await stage.connect()
    await second.subscribe(Q, ack="client-individual", prefetch_count="20")
    await second.silence()
    first.vanish()
    deliveries = await second.next_messages(10)
    assert [d.text for d in deliveries] == [f"a.{n}" for n in range(10)]
    assert [d.redelivered for d in deliveries] == [True] * 5 + [False] * 5


# ---------------------------------------------------------------------- exclusive consumers


async def test_exclusive_consumer_gets_everything(stage: Stage) -> None:
    for header in ("exclusive", "activemq.exclusive"):
        queue = f"/queue/{header}"
        producer, chosen, standby = await stage.connect(), await stage.connect(), await stage.connect()
        subscribe = {"destination": queue, "id": "s", header: "true"}
        await chosen.request("SUBSCRIBE", subscribe)
        await standby.request("SUBSCRIBE", subscribe)
        await producer.send_all(queue, range(50))
        assert await chosen.next_texts(50) == [str(n) for n in range(50)]
        await standby.silence()


async def test_exclusive_consumer_is_followed_by_the_next(stage: Stage) -> None:
    """When it is lost: what it held comes first, nothing is lost, nothing overtakes."""
    producer, first, second, third = [await stage.connect() for _ in range(4)]
    for consumer in (first, second, third):
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="5", exclusive="true")
    await producer.send_all(Q, range(8))
    await first.next_messages(5)
    first.vanish()
    deliveries = await second.next_messages(5)
    assert [(d.text, d.redelivered) for d in deliveries] == [(str(n), True) for n in range(5)]
    await third.silence()
    for delivery in deliveries:
        await second.ack(delivery)
    assert await second.next_texts(3) == ["5", "6", "7"]


async def test_exclusive_consumer_that_unsubscribes_is_followed_from_what_it_had(stage: Stage) -> None:
    """In order."""
    producer, first, second = await stage.connect(), await stage.connect(), await stage.connect()
    for consumer in (first, second):
        await consumer.subscribe(Q, ack="client-individual", prefetch_count="1", exclusive="true")
    await producer.send_all(Q, range(2))
    assert (await first.next_message()).text == "0"
    await second.silence()
    await first.unsubscribe()
    again = await second.next_message()
    assert (again.text, again.redelivered) == ("0", True)
    await second.ack(again)
    assert (await second.next_message()).text == "1"
