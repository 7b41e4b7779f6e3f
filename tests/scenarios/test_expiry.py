"""Messages that are too old are nobody's business any more. DESIGN section 9: `expires` (a date), `expiration` (a
time).
"""

from __future__ import annotations

import pytest
import trio

from tests.scenarios.stage import Stage, wall_clock_ms

Q = "/queue/work"


@pytest.fixture(params=["expires", "expiration"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Either header."""
    chosen: str = request.param
    return chosen


def in_ms(dialect: str, delay_ms: int) -> dict[str, str]:
    """The header that lets a message live so long from now."""
    return {dialect: str(delay_ms + (wall_clock_ms() if dialect == "expires" else 0))}


async def test_message_is_gone_after_its_time(stage: Stage, dialect: str) -> None:
    """Also if nobody looks: its memory is free at once."""
    producer = await stage.connect()
    await producer.sent(Q, "x", **in_ms(dialect, 5_000))
    await trio.sleep(4.9)
    assert stage.depth_count(Q) == 1
    await trio.sleep(0.2)
    assert stage.depth_count(Q) == 0
    assert stage.reported(Q)["expired_count"] == 1
    assert stage.reported(Q)["depth_bytes"] == 0


async def test_message_is_delivered_before_its_time(stage: Stage, dialect: str) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await producer.sent(Q, "x", **in_ms(dialect, 5_000))
    await trio.sleep(4)
    await consumer.subscribe(Q)
    assert (await consumer.next_message()).text == "x"


async def test_expired_messages_leave_the_others_in_order(stage: Stage, dialect: str) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    for n in range(10):
        await producer.sent(Q, str(n), **(in_ms(dialect, 1_000) if n % 3 == 0 else {}))
    await trio.sleep(2)
    await consumer.subscribe(Q)
    assert await consumer.next_texts(6) == ["1", "2", "4", "5", "7", "8"]


async def test_date_in_the_past_expires_at_once(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    await producer.sent(Q, "x", expires="1000")
    await consumer.silence()
    assert stage.depth_count(Q) == 0


async def test_what_a_consumer_holds_does_not_expire_in_its_hands(stage: Stage) -> None:
    """Its ACK is in time; but it does not come again after its date."""
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(2), **in_ms("expiration", 1_000))
    first, second = await consumer.next_messages(2)
    await trio.sleep(3)
    await consumer.ack(first)
    assert stage.depth_count(Q) == 1
    await consumer.nack(second)
    await consumer.silence()
    assert stage.depth_count(Q) == 0


async def test_full_queue_makes_room_by_expiry() -> None:
    """A producer that waits goes on when the backlog has expired."""
    async with Stage({Q: {"full": "block", "count_max": 5}}) as stage:
        producer = await stage.connect()
        await producer.send_all(Q, range(5), expiration="1000")
        await producer.frame("SEND", {"destination": Q, "receipt": "late"}, "late")
        with pytest.raises(AssertionError):
            await producer.silence(3)
        assert list(producer.receipts) == ["late"] or stage.depth_count(Q) == 1


async def test_policy_limits_the_life_of_all_messages() -> None:
    async with Stage({Q: {"expires_max_ms": 2_000}}) as stage:
        producer = await stage.connect()
        await producer.sent(Q, "x")
        await producer.sent(Q, "y", expiration="60000")
        await producer.sent(Q, "z", expiration="500")
        await trio.sleep(1)
        assert stage.depth_count(Q) == 2
        await trio.sleep(1.5)
        assert stage.depth_count(Q) == 0


async def test_topic_subscriber_that_comes_late_to_a_message_misses_it(stage: Stage) -> None:
    """It lagged until the date was over."""
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe("/topic/t", ack="client-individual", prefetch_count="1")
    await producer.sent("/topic/t", "kept")
    await producer.sent("/topic/t", "short", expiration="1000")
    await producer.sent("/topic/t", "long", expiration="100000")
    delivery = await consumer.next_message()
    await trio.sleep(2)
    await consumer.ack(delivery)
    assert (await consumer.next_message()).text == "long"


async def test_what_was_given_back_and_expired_troubles_nobody(stage: Stage) -> None:
    """Two consumers that come at once, to a queue where all that lay ahead has expired."""
    first, second = await stage.connect(), await stage.connect()
    await first.subscribe(Q, ack="client-individual", prefetch_count="1")
    await second.sent(Q, "short-lived", expiration="5000")
    await first.next_message()
    first.vanish()
    await trio.sleep(60)
    subscribing = [("SUBSCRIBE", {"destination": Q, "id": id, "ack": "client-individual"}) for id in ("a", "b")]
    await second.send_raw(b"".join(second.encode(command, headers) for command, headers in subscribing))
    await second.sync()
    await second.send(Q, "next")
    assert (await second.next_message()).text == "next"
