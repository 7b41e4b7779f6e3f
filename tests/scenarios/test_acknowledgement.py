"""What an ACK settles, what it leaves alone, and which ACKs are mistakes. Checklist b35-b44."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client, Delivery
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


DISORDER = (0, 5, 2)


def naming_all(consumer: Client, command: str, deliveries: list[Delivery], **headers: str) -> bytes:
    """One frame for each of these, in one piece of bytes."""
    return b"".join(consumer.encode(command, {**consumer.naming(delivery), **headers}) for delivery in deliveries)


async def left_for_an_heir(stage: Stage, consumer: Client) -> list[tuple[str, int]]:
    """What a queue holds when this consumer has gone: bodies, and how often they have failed. All were seen."""
    consumer.vanish()
    heir = await stage.connect()
    await heir.subscribe(Q)
    left = await heir.drain()
    assert all(delivery.redelivered for delivery in left)
    return [(delivery.text, delivery.delivery_count - 1) for delivery in left]


async def test_individual_acks_in_disorder_settle_what_they_name(stage: Stage, later_version: Version) -> None:
    """In one read: neither their neighbours nor anything twice."""
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(6))
    deliveries = await consumer.next_messages(6)
    await consumer.send_raw(naming_all(consumer, "ACK", [deliveries[n] for n in DISORDER]))
    await consumer.ack(deliveries[1])
    assert await left_for_an_heir(stage, consumer) == [("3", 1), ("4", 0)]


async def test_individual_nacks_in_disorder_return_what_they_name(stage: Stage, later_version: Version) -> None:
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(6))
    deliveries = await consumer.next_messages(6)
    await consumer.send_raw(naming_all(consumer, "NACK", [deliveries[n] for n in DISORDER]))
    again = await consumer.next_messages(3)
    assert [(delivery.text, delivery.delivery_count) for delivery in again] == [("0", 2), ("2", 2), ("5", 2)]
    await consumer.send_raw(naming_all(consumer, "ACK", [again[2], deliveries[4], again[0], deliveries[1]]))
    await consumer.sync()
    assert await left_for_an_heir(stage, consumer) == [("2", 1), ("3", 1)]


async def test_cumulative_acks_in_disorder_settle_up_to_the_latest(stage: Stage, version: Version) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(8))
    deliveries = await consumer.next_messages(8)
    await consumer.send_raw(naming_all(consumer, "ACK", [deliveries[n] for n in DISORDER]))
    await consumer.sync()
    assert await left_for_an_heir(stage, consumer) == [("6", 1), ("7", 0)]


@pytest.mark.parametrize("command", ["ACK", "NACK"])
@pytest.mark.parametrize("ending", ["COMMIT", "ABORT"])
async def test_disorder_in_a_transaction_is_no_different(
    stage: Stage, later_version: Version, command: str, ending: str
) -> None:
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(6))
    deliveries = await consumer.next_messages(6)
    await consumer.request("BEGIN", {"transaction": "t"})
    await consumer.send_raw(naming_all(consumer, command, [deliveries[n] for n in DISORDER], transaction="t"))
    await consumer.send_raw(naming_all(consumer, "ACK", [deliveries[n] for n in (4, 2, 1)]))
    await consumer.request(ending, {"transaction": "t"})
    if ending == "ABORT":  # but for 2, which the transaction held when it was acknowledged outside
        assert await left_for_an_heir(stage, consumer) == [("0", 1), ("2", 0), ("3", 0), ("5", 0)]
    elif command == "NACK":
        assert [delivery.text for delivery in await consumer.next_messages(3)] == ["0", "2", "5"]
        assert await left_for_an_heir(stage, consumer) == [("0", 1), ("2", 1), ("3", 1), ("5", 1)]
    else:
        assert await left_for_an_heir(stage, consumer) == [("3", 1)]


async def test_1_0_disorder_in_a_transaction_is_no_different(stage: Stage) -> None:
    """1.0 has cumulative ACKs only."""
    consumer, producer = await stage.connect("1.0"), await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(8))
    deliveries = await consumer.next_messages(8)
    await consumer.request("BEGIN", {"transaction": "t"})
    await consumer.send_raw(naming_all(consumer, "ACK", [deliveries[n] for n in DISORDER], transaction="t"))
    await consumer.ack(deliveries[6])
    assert stage.depth_count(Q) == 7
    await consumer.request("COMMIT", {"transaction": "t"})
    assert await left_for_an_heir(stage, consumer) == [("7", 1)]


async def test_1_0_acks_of_one_message_in_two_subscriptions_settle_both(stage: Stage) -> None:
    """Without a subscription header the oldest that holds it is meant, also if the two come in one read."""
    consumer, producer = await stage.connect("1.0"), await stage.connect()
    await consumer.subscribe("/topic/t", id="a", ack="client", prefetch_count="1")
    await consumer.subscribe("/topic/t", id="b", ack="client", prefetch_count="1")
    await producer.send_all("/topic/t", range(2))
    message_ids = [delivery.headers["message-id"] for delivery in await consumer.next_messages(2)]
    await consumer.send_raw(b"".join(consumer.encode("ACK", {"message-id": id}) for id in message_ids))
    assert await consumer.next_texts(2) == ["1", "1"]


async def test_unsubscribe_gives_back_what_was_not_acknowledged(stage: Stage, version: Version) -> None:
    """b35: as RabbitMQ and ActiveMQ do. In order, marked, and without a charge: nobody has failed."""
    consumer, heir = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await heir.send_all(Q, range(4))
    first, *_others = await consumer.next_messages(4)
    await consumer.ack(first)
    await heir.subscribe(Q)
    await consumer.unsubscribe()
    got = await heir.next_messages(3)
    assert [(delivery.text, delivery.redelivered, delivery.delivery_count) for delivery in got] == [
        ("1", True, 1),
        ("2", True, 1),
        ("3", True, 1),
    ]


async def test_the_next_subscription_of_the_same_name_gets_what_the_last_one_had(
    stage: Stage, version: Version
) -> None:
    consumer, producer = await stage.connect(version), await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(3))
    await consumer.next_messages(3)
    await consumer.unsubscribe()
    await consumer.subscribe(Q, ack="client")
    again = await consumer.next_messages(3)
    assert [delivery.text for delivery in again] == ["0", "1", "2"]
    await consumer.ack(again[2])
    assert stage.depth_count(Q) == 0


async def test_an_ack_that_comes_after_unsubscribe_settles_nothing(stage: Stage, version: Version) -> None:
    """Somebody else may have the message. Without a receipt it is passed over, for it may have crossed."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(2))
    _first, second = await consumer.next_messages(2)
    await consumer.unsubscribe()
    await consumer.frame("ACK", consumer.naming(second))
    await consumer.request("BEGIN", {"transaction": "t"})
    assert stage.depth_count(Q) == 2


@pytest.mark.parametrize("more", [{"receipt": "r"}, {"transaction": "t"}])
async def test_nothing_promises_that_such_an_ack_has_settled_something(
    stage: Stage, version: Version, more: dict[str, str]
) -> None:
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client")
    await producer.send(Q, "x")
    delivery = await consumer.next_message()
    await consumer.request("BEGIN", {"transaction": "t"})
    await consumer.unsubscribe()
    await consumer.frame("ACK", consumer.naming(delivery) | more)
    await consumer.expect_error("its subscription has ended")
    assert stage.depth_count(Q) == 1


@pytest.mark.parametrize(("ending", "left"), [("COMMIT", ["1"]), ("ABORT", ["1", "0"])])
async def test_what_a_transaction_holds_waits_for_its_end(stage: Stage, ending: str, left: list[str]) -> None:
    consumer, heir = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await heir.send_all(Q, range(2))
    first, _second = await consumer.next_messages(2)
    await consumer.request("BEGIN", {"transaction": "t"})
    await consumer.ack(first, transaction="t")
    await consumer.unsubscribe()
    await heir.subscribe(Q)
    assert await heir.next_texts(1) == ["1"]
    await heir.silence()
    await consumer.request(ending, {"transaction": "t"})
    assert await heir.next_texts(len(left) - 1) == left[1:]
    await heir.silence()


async def test_unsubscribed_topic_messages_are_forgotten(version: Version) -> None:
    """A topic takes nothing back, so there is nothing to be kept; ACKs that are under way are no mistakes."""
    async with Stage(subscriptions_max=1) as stage:
        consumer, producer = await stage.connect(version), await stage.connect(version)
        for _ in range(3):
            await consumer.subscribe("/topic/t", ack="client")
            await producer.send_all("/topic/t", range(10))
            deliveries = await consumer.next_messages(10)
            await consumer.unsubscribe()
            await consumer.ack(deliveries[4])
        assert stage.depth_count("/topic/t") == 0
        (connection,) = [c for c in stage.broker.connections if c.session.peer == consumer.name]
        assert connection.session.unsettled_count == 0


async def test_ended_subscriptions_count_while_transactions_hold_their_messages() -> None:
    """What is kept for them must be limited."""
    async with Stage(subscriptions_max=2) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.request("BEGIN", {"transaction": "t"})
        await consumer.subscribe(Q, ack="client")
        await producer.send(Q, "held")
        await consumer.ack(await consumer.next_message(), transaction="t")
        await consumer.unsubscribe()
        await consumer.subscribe(Q, ack="client")
        await consumer.frame("SUBSCRIBE", {"destination": Q, "id": "one more"})
        await consumer.expect_error("more than 2 subscriptions on one connection (1 of them ended")


@pytest.mark.parametrize("ending", ["COMMIT", "ABORT"])
async def test_topic_messages_held_by_a_transaction_are_forgotten_with_it(ending: str) -> None:
    async with Stage(subscriptions_max=1) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe("/topic/t", ack="client")
        await producer.send_all("/topic/t", range(3))
        deliveries = await consumer.next_messages(3)
        await consumer.request("BEGIN", {"transaction": "t"})
        await consumer.ack(deliveries[1], transaction="t")
        await consumer.unsubscribe()
        await consumer.request(ending, {"transaction": "t"})
        await consumer.subscribe("/topic/t", ack="client")
        await producer.send("/topic/t", "3")
        assert (await consumer.next_message()).text == "3"


async def test_deleted_destination_gives_its_credit_back(stage: Stage, version: Version) -> None:
    """Nobody waits for the ACK of what is gone, but it is no mistake either."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe("/queue/a,/queue/b", ack="client", prefetch_count="1")
    await producer.send("/queue/a", "gone")
    gone = await consumer.next_message()
    await producer.sent("/queue/b", "next")
    await consumer.silence()
    stage.broker.registry.delete(stage.destination("/queue/a"), "a test")
    delivery = await consumer.next_message()
    assert delivery.text == "next"
    await consumer.ack(gone)
    assert stage.depth_count("/queue/b") == 1
    await consumer.ack(delivery)
    assert stage.depth_count("/queue/b") == 0


async def test_what_transactions_hold_of_a_subscription_is_limited(later_version: Version) -> None:
    """Their ACKs open the window again, so the window is no limit. The ends of transactions make room for others."""
    async with Stage(transaction_acks_max=5) as stage:
        consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
        await consumer.subscribe("/topic/t", ack="client-individual", prefetch_count="2")
        await producer.send_all("/topic/t", range(20))
        for ending in ("COMMIT", "COMMIT"):
            await consumer.request("BEGIN", {"transaction": "t"})
            for _ in range(5):
                await consumer.ack(await consumer.next_message(), transaction="t")
            await consumer.request(ending, {"transaction": "t"})
        for n in range(3):
            await consumer.request("BEGIN", {"transaction": str(n)})
            for _ in range(2):
                naming = consumer.naming(await consumer.next_message())
                await consumer.frame("ACK", {**naming, "transaction": str(n)})
        error = await consumer.expect_error("more than 5 acknowledged messages")
        assert (error.headers["command"], error.headers["transaction"]) == ("ACK", "2")


async def test_credit_asked_for_in_bytes_is_capped() -> None:
    """No error: the client gets what the listener allows."""
    async with Stage(credit_bytes_max=5_000) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual", credit="1000,1000000000000")
        await producer.send_all(Q, [str(n).ljust(2_000) for n in range(10)])
        deliveries = await consumer.next_messages(3)
        await consumer.silence()
        await consumer.ack(deliveries[0])
        await consumer.next_message()
        await consumer.silence()


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


@pytest.mark.parametrize("wrong", ["nonsense", "1-9", "1-1x", "7-1"])
async def test_error_about_an_ack_leaves_earlier_acks_in_force(stage: Stage, wrong: str) -> None:
    """However the network cut them, those before the wrong one have been processed."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(3))
    first, second, _third = await consumer.next_messages(3)
    acks = [consumer.encode("ACK", naming) for naming in map(consumer.naming, (first, second))]
    await consumer.send_raw(acks[0] + consumer.encode("ACK", {"id": wrong}) + acks[1])
    error = await consumer.expect_error("nothing was delivered")
    assert wrong in error.headers["message"]
    assert stage.depth_count(Q) == 2


async def test_1_1_error_about_an_ack_leaves_earlier_acks_in_force(stage: Stage) -> None:
    consumer, producer = await stage.connect("1.1"), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(3))
    first, second, _third = await consumer.next_messages(3)
    wrong = {**consumer.naming(first), "message-id": "nonsense"}
    namings = (consumer.naming(first), wrong, consumer.naming(second))
    await consumer.send_raw(b"".join(consumer.encode("ACK", naming) for naming in namings))
    await consumer.expect_error("nonsense")
    assert stage.depth_count(Q) == 2


async def test_impossible_acks_end_their_connection_and_nothing_else(stage: Stage) -> None:
    """What no queue ever gave out must not get as far as a queue."""
    bystander = await stage.connect()
    await bystander.subscribe(Q, ack="client-individual")
    await bystander.send_all(Q, range(2))
    delivery, _other = await bystander.next_messages(2)
    for id in ("1-2", "1-100000000000000000", "2-0"):
        client = await stage.connect()
        await client.subscribe("/queue/own", ack="client")
        await client.frame("ACK", {"id": id})
        await client.expect_error("nothing was delivered")
    await bystander.ack(delivery)
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


async def test_1_0_unsubscribe_by_destination_finds_the_only_subscription_to_it(stage: Stage) -> None:
    """b34: though it gave an id when it subscribed."""
    consumer, producer = await stage.connect("1.0"), await stage.connect("1.0")
    await consumer.subscribe(Q, id="x")
    await consumer.subscribe("/queue/other", id="y")
    await consumer.request("UNSUBSCRIBE", {"destination": Q})
    await producer.sent(Q, "unheard")
    await producer.send("/queue/other", "heard")
    assert (await consumer.next_message()).text == "heard"


async def test_1_0_unsubscribe_by_destination_does_not_guess(stage: Stage) -> None:
    """Two have it: which one is meant?"""
    consumer = await stage.connect("1.0")
    await consumer.subscribe(Q, id="x")
    await consumer.subscribe(Q, id="y")
    await consumer.frame("UNSUBSCRIBE", {"destination": Q})
    await consumer.expect_error("no live subscription")


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


async def test_cumulative_acks_may_come_in_any_order_in_one_read(stage: Stage, version: Version) -> None:
    """What an earlier ACK of the same read has settled is ignored, and those behind it still count."""
    client = await stage.connect(version)
    await client.subscribe(Q, ack="client")
    await client.send_all(Q, range(4))
    messages = await client.next_messages(4)
    await client.send_raw(b"".join(client.encode("ACK", client.naming(messages[place])) for place in (1, 0, 2, 1)))
    await client.sync()
    assert stage.depth_count(Q) == 1
    await client.ack(messages[3])
    assert stage.depth_count(Q) == 0


async def test_client_individual_works_in_1_0(stage: Stage) -> None:
    """Clients of 1.0 ask for it, and both RabbitMQ and ActiveMQ let them."""
    consumer, producer = await stage.connect("1.0"), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(3))
    first, second, third = await consumer.next_messages(3)
    await consumer.ack(second)
    assert stage.depth_count(Q) == 2
    await consumer.ack(third)
    await consumer.ack(first)
    assert stage.depth_count(Q) == 0


@pytest.mark.parametrize("command", ["ACK", "NACK"])
@pytest.mark.parametrize("with_receipt", [False, True])
async def test_1_2_takes_a_message_id_where_it_is_clear(stage: Stage, command: str, with_receipt: bool) -> None:
    """PHP's stomp-php names the message-id."""
    consumer, producer = await stage.connect("1.2"), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(3))
    deliveries = await consumer.next_messages(3)
    await consumer.ack(deliveries[0])
    for delivery in deliveries:  # the first one is settled: ignored
        name = {"id": delivery.headers["message-id"]}
        await (consumer.request(command, name) if with_receipt else consumer.frame(command, name))
    if command == "ACK":
        await consumer.request("BEGIN", {"transaction": "t"})
        assert stage.depth_count(Q) == 0
    await producer.send(Q, "later")
    later = await consumer.next_messages(1 if command == "ACK" else 3)
    assert sorted(delivery.text for delivery in later) == (["later"] if command == "ACK" else ["1", "2", "later"])
    await consumer.request("ACK", {"id": later[-1].headers["message-id"]})


async def test_1_2_takes_the_message_id_of_what_needs_no_ack(stage: Stage) -> None:
    """b36: with ack `auto` there is no ack header that could be named."""
    consumer = await stage.connect("1.2")
    await consumer.subscribe(Q)
    await consumer.send(Q, "x")
    await consumer.request("ACK", {"id": (await consumer.next_message()).headers["message-id"]})


async def test_1_2_does_not_guess_which_of_two_deliveries_is_meant(stage: Stage) -> None:
    consumer, producer = await stage.connect("1.2"), await stage.connect()
    for id in ("a", "b"):
        await consumer.subscribe("/topic/t", id=id, ack="client")
    await producer.send("/topic/t", "x")
    first, _second = await consumer.next_messages(2)
    await consumer.frame("ACK", {"id": first.headers["message-id"]})
    await consumer.expect_error("2 subscriptions of this connection have the message")
