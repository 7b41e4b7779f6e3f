"""What an ACK settles, what it leaves alone, and which ACKs are mistakes. Checklist b35-b44."""

from __future__ import annotations

import pytest

from protocols.stomp.escaping import Version
from tests.scenarios.stage import Stage

Q = "/queue/work"


async def test_auto_messages_are_settled_when_they_are_written(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q)
    await producer.send_all(Q, range(3))
    assert await consumer.next_texts(3) == ["0", "1", "2"]
    assert stage.depth_count(Q) == 0


async def test_client_messages_stay_until_they_are_acknowledged(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send(Q, "x")
    delivery = await consumer.next_message()
    assert stage.depth_count(Q) == 1
    await consumer.ack(delivery)
    assert stage.depth_count(Q) == 0


async def test_client_ack_is_cumulative(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(5))
    deliveries = await consumer.next_messages(5)
    await consumer.ack(deliveries[2])
    assert stage.depth_count(Q) == 2
    await consumer.ack(deliveries[4])
    assert stage.depth_count(Q) == 0


async def test_cumulative_ack_never_crosses_subscriptions(stage: Stage, version: Version) -> None:
    """b37: one subscription's ACK leaves what another one was sent before alone."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe("/queue/a", id="a", ack="client")
    await consumer.subscribe("/queue/b", id="b", ack="client")
    await producer.send("/queue/a", "early")
    early = await consumer.next_message()
    await producer.send("/queue/b", "late")
    late = await consumer.next_message()
    await consumer.ack(late)
    assert (stage.depth_count("/queue/a"), stage.depth_count("/queue/b")) == (1, 0)
    await consumer.ack(early)
    assert stage.depth_count("/queue/a") == 0


async def test_cumulative_ack_covers_all_destinations_of_its_subscription(stage: Stage, version: Version) -> None:
    """b37: «sent earlier on that subscription», whichever queue it came from."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe("/queue/a,/queue/b", ack="client")
    await producer.send("/queue/a", "1")
    await consumer.next_message()
    await producer.send("/queue/b", "2")
    await consumer.ack(await consumer.next_message())
    assert (stage.depth_count("/queue/a"), stage.depth_count("/queue/b")) == (0, 0)


async def test_individual_ack_settles_one(stage: Stage, later_version: Version) -> None:
    """b38: earlier ones stay."""
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(5))
    deliveries = await consumer.next_messages(5)
    await consumer.ack(deliveries[3])
    assert stage.depth_count(Q) == 4
    consumer.vanish()
    heir = await stage.connect(later_version)
    await heir.subscribe(Q)
    assert await heir.next_texts(4) == ["0", "1", "2", "4"]


async def test_acks_of_one_chunk_settle_all_they_name(stage: Stage, later_version: Version) -> None:
    """The batched path: a run of ACKs in one piece of bytes, in any order."""
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(100))
    deliveries = await consumer.next_messages(100)
    picked = deliveries[::-2] + deliveries[:10:2]
    await consumer.send_raw(b"".join(consumer.encode("ACK", consumer.naming(delivery)) for delivery in picked))
    await consumer.sync()
    assert stage.depth_count(Q) == 100 - len({delivery.text for delivery in picked})


async def test_ack_after_unsubscribe_still_settles(stage: Stage, version: Version) -> None:
    """b35."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(2))
    first, second = await consumer.next_messages(2)
    await consumer.unsubscribe()
    await consumer.ack(first)
    assert stage.depth_count(Q) == 1
    await consumer.ack(second)
    assert stage.depth_count(Q) == 0


async def test_ack_of_an_old_subscription_settles_though_its_id_is_in_use_again(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send(Q, "old")
    old = await consumer.next_message()
    await consumer.unsubscribe()
    await consumer.subscribe("/queue/other", ack="client")
    await consumer.ack(old)
    assert stage.depth_count(Q) == 0


async def test_unsettled_messages_of_an_ended_subscription_return_with_the_connection(
    stage: Stage, version: Version
) -> None:
    """b35: until then they stay with the connection, which may still acknowledge them."""
    consumer, heir = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await heir.send_all(Q, range(2))
    await consumer.next_messages(2)
    await consumer.unsubscribe()
    await heir.subscribe(Q)
    await heir.silence()
    await consumer.disconnect()
    assert await heir.next_texts(2) == ["0", "1"]


async def test_late_ack_of_a_settled_message_is_ignored(stage: Stage, version: Version) -> None:
    """A cumulative ACK may have overtaken it."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(3))
    first, second, third = await consumer.next_messages(3)
    await consumer.ack(second)
    await consumer.ack(first)
    await consumer.ack(second)
    assert stage.depth_count(Q) == 1
    await consumer.ack(third)
    await consumer.unsubscribe()
    await consumer.ack(third)


@pytest.mark.parametrize(
    "id", ["nonsense", "7-1", "0-0", "1-9", "1-", "-1", "1-1x", "99999999999999-1", "1-" + "9" * 30]
)
async def test_ack_of_what_was_never_delivered_is_an_error(stage: Stage, id: str) -> None:
    """b43: it is a mistake of the client, and silence would hide a message that is never acknowledged."""
    consumer = await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await consumer.frame("ACK", {"id": id, "receipt": "r"})
    error = await consumer.expect_error("nothing was delivered")
    assert error.headers["receipt-id"] == "r"
    assert error.headers["command"] == "ACK"


@pytest.mark.parametrize("id", ["nonsense", "x-1"])
async def test_ack_of_a_foreign_message_id_is_an_error(stage: Stage, id: str) -> None:
    """The same for 1.1, whose ACKs name the message-id."""
    consumer = await stage.connect("1.1")
    await consumer.subscribe(Q, ack="client-individual")
    await consumer.frame("ACK", {"message-id": id, "subscription": "s"})
    await consumer.expect_error("nothing was delivered")


async def test_error_about_an_ack_leaves_earlier_acks_in_force(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(2))
    first, _second = await consumer.next_messages(2)
    acks = consumer.encode("ACK", consumer.naming(first)) + consumer.encode("ACK", {"id": "nonsense"})
    await consumer.send_raw(acks)
    await consumer.expect_error()
    assert stage.depth_count(Q) == 1


async def test_ack_in_auto_mode_does_no_harm(stage: Stage, version: Version) -> None:
    """b36: there is nothing to settle, and some clients do it all the same."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q)
    await producer.send(Q, "x")
    delivery = await consumer.next_message()
    naming = {"id": "1-0"} if version == "1.2" else consumer.naming(delivery)
    await consumer.request("ACK", naming)
    await producer.send(Q, "y")
    assert (await consumer.next_message()).text == "y"


async def test_1_0_ack_needs_no_subscription(stage: Stage) -> None:
    """b40: the message-id alone tells, also with several subscriptions."""
    consumer, producer = await stage.connect("1.0"), await stage.connect()
    await consumer.subscribe("/queue/a", id="a", ack="client")
    await consumer.subscribe("/queue/b", id="b", ack="client")
    await producer.send("/queue/a")
    await producer.send("/queue/b")
    for delivery in await consumer.next_messages(2):
        await consumer.request("ACK", {"message-id": delivery.headers["message-id"]})
    assert (stage.depth_count("/queue/a"), stage.depth_count("/queue/b")) == (0, 0)


async def test_1_0_subscription_without_id_works(stage: Stage) -> None:
    """b33, b34: no `subscription` header then, and UNSUBSCRIBE names the destination."""
    consumer, producer = await stage.connect("1.0"), await stage.connect("1.0")
    await consumer.request("SUBSCRIBE", {"destination": Q, "ack": "client"})
    await producer.send(Q, "x")
    delivery = await consumer.next_message()
    assert "subscription" not in delivery.headers
    await consumer.ack(delivery)
    await consumer.request("UNSUBSCRIBE", {"destination": Q})
    await producer.sent(Q, "y")
    await consumer.silence()


async def test_every_message_names_its_subscription_and_id(stage: Stage, version: Version) -> None:
    """b33, b44: `ack` where a 1.2 client must answer, and only there."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe("/queue/a", id="sub a", ack="client")
    await consumer.subscribe("/queue/b", id="sub b")
    await producer.send("/queue/a")
    await producer.send("/queue/b")
    deliveries = {d.headers["subscription"]: d for d in await consumer.next_messages(2)}
    assert set(deliveries) == {"sub a", "sub b"}
    assert ("ack" in deliveries["sub a"].headers) == (version == "1.2")
    assert "ack" not in deliveries["sub b"].headers
    assert deliveries["sub a"].headers["message-id"] != deliveries["sub b"].headers["message-id"]


async def test_unknown_headers_in_ack_and_nack_are_tolerated(stage: Stage, later_version: Version) -> None:
    """PHP's client echoes all headers of the MESSAGE."""
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(2), x="y", content_type="text/plain")
    for delivery, command in zip(await consumer.next_messages(2), ("ACK", "NACK"), strict=True):
        echoed = {name: value for name, value in delivery.headers.items() if name != "content-length"}
        await consumer.request(command, {**echoed, **consumer.naming(delivery)})
    assert (await consumer.next_message()).redelivered
    assert stage.depth_count(Q) == 1


async def test_no_message_follows_the_receipt_of_unsubscribe(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q)
    await consumer.unsubscribe()
    await producer.sent(Q, "x")
    await consumer.silence()
    assert stage.depth_count(Q) == 1
