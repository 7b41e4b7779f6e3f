"""Messages to topics without a subscriber are dropped by their raw heads; all that can be seen of it stays."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.frames import UnheardRun
from sluiceway.protocols.stomp.sending import Sender
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

T = "/topic/t"
FRAME = b"SEND\ndestination:/topic/t\ncontent-length:2\n\nxx\0"


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of SENDs that were passed over."""
    counts: list[int] = []
    take_unheard = Sender.take_unheard

    def noting(sender: Sender, run: UnheardRun) -> None:
        counts.append(run.count)
        take_unheard(sender, run)

    monkeypatch.setattr(Sender, "take_unheard", noting)
    return counts


async def begin(stage: Stage, *, name: str = "producer") -> Client:
    """A producer whose first SENDs to T have been dropped."""
    producer = await stage.connect(name=name)
    await producer.send_raw(FRAME)
    await producer.send_raw(FRAME)
    await producer.sync()
    return producer


async def test_they_are_counted_as_before(stage: Stage, passed: list[int]) -> None:
    producer = await begin(stage)
    await producer.send_raw(FRAME * 1000)
    await producer.sync()
    assert sum(passed) >= 1000
    assert stage.reported(T)["unheard_count"] == 1002
    (connection,) = stage.broker.connections
    assert connection.session.totals.messages_in_count == 1002
    assert sum(queue.added_count for queue in stage.partitions(T)) == 0


async def test_no_number_is_used_up(stage: Stage, passed: list[int]) -> None:
    """The next message of a queue has the next number, as if there had been none."""
    producer = await begin(stage)
    consumer = await stage.connect()
    await consumer.subscribe("/queue/q")
    await producer.sent("/queue/q", "a")
    await producer.send_raw(FRAME * 1000)
    await producer.sent("/queue/q", "b")
    first, second = await consumer.next_messages(2)
    numbers = [int(each.headers["message-id"].rpartition("-")[2]) for each in (first, second)]
    assert numbers[1] == numbers[0] + 1
    assert sum(passed) >= 1000


async def test_receipts_come_in_order(stage: Stage, passed: list[int]) -> None:
    producer = await begin(stage)
    frames = b"".join(
        FRAME.replace(b"content", b"receipt:%d\ncontent" % n)
        if n % 3
        else b"SEND\ndestination:/queue/q\nreceipt:%d\n\n\0" % n
        for n in range(300)
    )
    await producer.send_raw(frames)
    for number in range(300):
        await producer.expect_receipt(str(number))
    assert stage.depth_count("/queue/q") == 100
    assert sum(passed) > 100


async def test_a_subscriber_gets_all_that_comes_behind_its_subscription(stage: Stage, passed: list[int]) -> None:
    """In the same read, too."""
    producer = await begin(stage)
    await producer.send_raw(FRAME * 5 + b"SUBSCRIBE\nid:s\ndestination:/topic/t\n\n\0" + FRAME * 7)
    assert len(await producer.next_messages(7)) == 7
    await producer.sync()
    assert stage.reported(T)["unheard_count"] == 7
    assert sum(passed) == 5


@pytest.mark.parametrize("pattern", ["/topic/*", "/topic/>", T])
async def test_a_subscriber_of_another_connection_does(stage: Stage, passed: list[int], pattern: str) -> None:
    producer = await begin(stage)
    await producer.send_raw(FRAME * 5)
    await producer.sync()
    consumer = await stage.connect()
    await consumer.subscribe(pattern)
    await producer.send_raw(FRAME * 7)
    assert len(await consumer.next_messages(7)) == 7
    await consumer.unsubscribe()
    await consumer.sync()
    await producer.send_raw(FRAME * 11)
    await producer.send_raw(FRAME * 11)
    await producer.sync()
    assert stage.reported(T)["unheard_count"] == 2 + 5 + 22
    assert sum(passed) >= 5 + 11


async def test_a_durable_subscription_without_a_consumer_gets_them(stage: Stage, passed: list[int]) -> None:
    producer = await begin(stage)
    consumer = await stage.connect(**{"client-id": "c"})
    await consumer.subscribe(T, **{"activemq.subscriptionName": "d"}, ack="client")
    await consumer.disconnect()
    await producer.send_raw(FRAME * 7)
    await producer.sync()
    again = await stage.connect(**{"client-id": "c"})
    await again.subscribe(T, **{"activemq.subscriptionName": "d"}, ack="client")
    await again.ack((await again.next_messages(7))[-1])
    await again.unsubscribe()
    assert not passed


async def test_a_bad_frame_among_them_is_an_error(stage: Stage, passed: list[int]) -> None:
    """What came before it counts."""
    producer = await begin(stage)
    await producer.send_raw(FRAME * 100 + FRAME.replace(b"xx", b"xxx") + FRAME)
    error = await producer.expect_error("no NUL")
    assert error.headers["destination"] == T
    await stage.settled_down()
    assert stage.reported(T)["unheard_count"] == 102
    assert sum(passed) == 100


async def test_one_that_can_be_asked_for_has_a_trail(stage: Stage, passed: list[int]) -> None:
    """By its correlation-id: no client knows the number of one that was not delivered."""
    producer = await begin(stage)
    marked = FRAME.replace(b"content", b"correlation-id:a\ncontent")
    await producer.send_raw(marked * 3)
    await producer.send_raw(marked * 3)
    await producer.sync()
    assert not passed
    assert stage.reported(T)["unheard_count"] == 8


@pytest.mark.parametrize("end", ["COMMIT", "ABORT"])
async def test_those_of_a_transaction_wait_for_its_end(stage: Stage, passed: list[int], end: str) -> None:
    """By then the topic may have a subscriber."""
    producer, consumer = await begin(stage), await stage.connect()
    await producer.request("BEGIN", {"transaction": "t"})
    await producer.send_raw(FRAME.replace(b"content", b"transaction:t\ncontent") * 5)
    await producer.sync()
    await consumer.subscribe(T)
    await consumer.sync()
    await producer.request(end, {"transaction": "t"})
    await producer.sent(T, "last")
    count = 6 if end == "COMMIT" else 1
    assert (await consumer.next_messages(count))[-1].text == "last"
    assert stage.reported(T)["unheard_count"] == 2
    assert not passed


async def test_one_of_an_unknown_transaction_is_an_error(stage: Stage, passed: list[int]) -> None:
    producer = await begin(stage)
    await producer.send_raw(FRAME.replace(b"content", b"transaction:none\ncontent") * 5)
    await producer.expect_error("none")
    assert not passed


async def test_a_deleted_topic_is_made_again(stage: Stage, passed: list[int]) -> None:
    producer = await begin(stage)
    await producer.send_raw(FRAME * 5)
    await producer.sync()
    stage.broker.registry.delete(stage.destination(T), "a test")
    await producer.send_raw(FRAME * 5)
    await producer.sync()
    assert stage.reported(T)["unheard_count"] == 5
