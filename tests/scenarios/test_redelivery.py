"""What comes back comes again: in order, marked, and never lost. Checklist b39, b41; DESIGN section 6."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.stage import Stage

Q = "/queue/work"


async def test_nack_redelivers_and_says_so(stage: Stage, later_version: Version) -> None:
    """`redelivered:true` and a `delivery-count` that counts up; neither on the first delivery."""
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send(Q, "x")
    delivery = await consumer.next_message()
    assert "redelivered" not in delivery.headers
    assert "delivery-count" not in delivery.headers
    for expected_count in (2, 3, 4):
        await consumer.nack(delivery)
        delivery = await consumer.next_message()
        assert (delivery.text, delivery.redelivered) == ("x", True)
        assert delivery.headers["delivery-count"] == str(expected_count)
    await consumer.ack(delivery)


async def test_nack_keeps_the_message_id(stage: Stage, later_version: Version) -> None:
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send(Q, "x")
    first = await consumer.next_message()
    await consumer.nack(first)
    again = await consumer.next_message()
    assert again.headers["message-id"] == first.headers["message-id"]


async def test_nacked_messages_come_again_in_order_before_later_ones(stage: Stage, later_version: Version) -> None:
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="4")
    await producer.send_all(Q, range(6))
    deliveries = await consumer.next_messages(4)
    nacks = [consumer.encode("NACK", consumer.naming(deliveries[i])) for i in (2, 0, 1)]
    await consumer.send_raw(b"".join(nacks))
    again = await consumer.next_messages(3)
    assert [(d.text, d.delivery_count) for d in again] == [("0", 2), ("1", 2), ("2", 2)]
    await consumer.ack(deliveries[3])
    assert (await consumer.next_message()).text == "4"


async def test_nack_in_client_mode_covers_everything_earlier(stage: Stage, later_version: Version) -> None:
    """b41: all that was sent before on this subscription and is not settled yet."""
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(5))
    deliveries = await consumer.next_messages(5)
    await consumer.ack(deliveries[1])
    await consumer.nack(deliveries[3])
    again = await consumer.next_messages(2)
    assert [(d.text, d.redelivered) for d in again] == [("2", True), ("3", True)]
    await consumer.ack(again[-1])
    assert stage.depth_count(Q) == 0, "an ACK of what came last covers what came before, number 4 among it"


async def test_nack_in_auto_mode_does_no_harm(stage: Stage) -> None:
    consumer, producer = await stage.connect("1.1"), await stage.connect()
    await consumer.subscribe(Q)
    await producer.send(Q, "x")
    await consumer.nack(await consumer.next_message())
    await consumer.silence()


async def test_lost_connection_returns_unsettled_messages_in_order(stage: Stage, version: Version) -> None:
    """b39: whoever consumes next gets them first, marked as seen before."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client", prefetch_count="4")
    await producer.send_all(Q, range(6))
    await consumer.next_messages(4)
    consumer.vanish()
    heir = await stage.connect(version)
    await heir.subscribe(Q)
    deliveries = await heir.next_messages(6)
    assert [d.text for d in deliveries] == ["0", "1", "2", "3", "4", "5"]
    assert [d.redelivered for d in deliveries] == [True] * 4 + [False] * 2


async def test_disconnect_returns_unsettled_messages(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(2))
    await consumer.next_messages(2)
    await consumer.disconnect()
    heir = await stage.connect(version)
    await heir.subscribe(Q)
    assert [(d.text, d.redelivered) for d in await heir.next_messages(2)] == [("0", True), ("1", True)]


async def test_error_returns_unsettled_messages(stage: Stage, version: Version) -> None:
    """Any end of a connection is one."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(2))
    await consumer.next_messages(2)
    await consumer.frame("COMMIT", {"transaction": "none"})
    await consumer.expect_error()
    heir = await stage.connect(version)
    await heir.subscribe(Q)
    assert await heir.next_texts(2) == ["0", "1"]


@pytest.mark.parametrize(("ack", "settled_count"), [("auto", 2), ("client", 0)])
async def test_what_was_never_handed_over_is_not_charged_as_an_attempt(
    stage: Stage, ack: str, settled_count: int
) -> None:
    """Messages that waited for the kernel when the connection died come as new to the next consumer. (Two fit into the
    stream whole; with ack auto they are settled then.)"""
    consumer, producer = await stage.connect(name="stuck"), await stage.connect()
    await consumer.subscribe(Q, ack=ack, prefetch_count="1000")
    for number in range(8):
        await producer.sent(Q, str(number) + "x" * 30_000)
    consumer.vanish()
    heir = await stage.connect()
    await heir.subscribe(Q)
    deliveries = await heir.next_messages(8 - settled_count)
    assert [d.text[0] for d in deliveries] == list("01234567")[settled_count:]
    assert deliveries[0].redelivered
    assert not deliveries[-1].redelivered
    marks = [d.redelivered for d in deliveries]
    assert marks == sorted(marks, reverse=True), marks


async def test_unread_auto_messages_are_not_lost_when_their_reader_closes(stage: Stage) -> None:
    """What was written but waits in our buffer was not consumed."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    for number in range(40):
        await producer.sent(Q, str(number).ljust(10_000))
    consumer.vanish()
    heir = await stage.connect()
    await heir.subscribe(Q)
    texts = [d.text.strip() for d in await heir.drain()]
    assert texts == [str(number) for number in range(40 - len(texts), 40)]
    assert len(texts) >= 30


async def test_redelivery_goes_to_another_consumer_with_credit(stage: Stage) -> None:
    first, second, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await first.subscribe(Q, ack="client-individual", prefetch_count="1")
    await producer.send(Q, "x")
    await first.next_message()
    await second.subscribe(Q, ack="client-individual", prefetch_count="1")
    first.vanish()
    delivery = await second.next_message()
    assert (delivery.text, delivery.delivery_count) == ("x", 2)


async def test_nacked_topic_message_comes_again_to_its_subscriber_only(stage: Stage) -> None:
    one, other, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await one.subscribe("/topic/t", ack="client-individual")
    await other.subscribe("/topic/t", ack="client-individual")
    await producer.send("/topic/t", "x")
    await other.next_message()
    await one.nack(await one.next_message())
    assert (await one.next_message()).delivery_count == 2
    await other.silence()
