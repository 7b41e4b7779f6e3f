"""What nobody can digest gets out of the way, with its story; what just happened to be there stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage, wall_clock_ms

Q = "/queue/work"
GRAVE = "/queue/dead-letters"
ENDS = ("in order", "crash", "power cut")


def stage_with(**policy: object) -> Stage:
    return Stage({"/queue/work": policy})


# ---------------------------------------------------------------------- the story


async def test_dead_letter_tells_its_story(later_version: Version) -> None:
    """Reason, origin, count and time; its own headers and body as they were sent, less what no longer holds."""
    async with stage_with(redeliveries_max=2) as stage:
        consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
        await consumer.subscribe(Q, ack="client-individual")
        await producer.send(
            Q, "body\0with a NUL", group="g", expiration="60000", own="va:lue", priority="7", content_length="15"
        )
        for _ in range(3):
            delivery = await consumer.next_message()
            await consumer.nack(delivery)
        undertaker = await stage.connect(later_version)
        await undertaker.subscribe(GRAVE)
        letter = await undertaker.next_message()
        assert letter.body == b"body\0with a NUL"
        assert letter.headers["message-id"] == delivery.headers["message-id"]
        told = {name: value for name, value in letter.headers.items() if name.startswith("dead-letter")}
        assert told == {
            "dead-letter-reason": "redeliveries",
            "dead-letter-destination": Q,
            "dead-letter-count": "3",
            "dead-letter-time": str(wall_clock_ms()),
        }
        assert letter.headers["destination"] == GRAVE
        assert (letter.headers["own"], letter.headers["priority"]) == ("va:lue", "7")
        assert not {"group", "expiration", "redelivered", "delivery-count"} & set(letter.headers)
        await trio.sleep(120)
        assert stage.reported(GRAVE)["expired_count"] == 0
        assert stage.reported(Q)["dead_lettered_count"] == 1


async def test_producers_can_not_forge_the_story(stage: Stage) -> None:
    """What a sender wrote into these headers is written over."""
    async with stage_with(redeliveries_max=0) as other:
        consumer, undertaker = await other.connect(), await other.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await consumer.sent(Q, "x", dead_letter_destination="/queue/elsewhere", dead_letter_count="-1")
        await consumer.nack(await consumer.next_message())
        await undertaker.subscribe(GRAVE)
        letter = await undertaker.next_message()
        assert (letter.headers["dead-letter-destination"], letter.headers["dead-letter-count"]) == (Q, "1")


async def test_dead_letter_queue_of_a_policy(later_version: Version) -> None:
    policies = {
        "/queue/a.>": {"redeliveries_max": 0, "dead_letter": "/queue/graves.a"},
        "/queue/b.>": {"redeliveries_max": 0, "dead_letter": "/queue/graves.b"},
    }
    async with Stage(policies) as stage:
        consumer = await stage.connect(later_version)
        for name in ("a", "b"):
            await consumer.subscribe(f"/queue/{name}.1", id=name, ack="client-individual")
            await consumer.sent(f"/queue/{name}.1", name)
            await consumer.nack(await consumer.next_message())
        await consumer.subscribe("/queue/graves.*", id="g")
        letters = await consumer.next_messages(2)
        assert sorted((d.text, d.headers["destination"]) for d in letters) == [
            ("a", "/queue/graves.a"),
            ("b", "/queue/graves.b"),
        ]


async def test_dead_letters_that_are_refused_stay(stage: Stage) -> None:
    """The dead-letter queue gives nothing up: no loops."""
    client = await stage.connect()
    await client.subscribe(GRAVE, ack="client-individual")
    await client.sent(GRAVE, "x")
    for expected in range(1, 40):
        delivery = await client.next_message()
        assert delivery.delivery_count == expected
        await client.nack(delivery)
    await client.ack(await client.next_message())


async def test_expired_go_there_if_the_policy_says_so() -> None:
    async with stage_with(dead_letter_expired=True) as stage:
        client = await stage.connect()
        await client.sent(Q, "x", expiration="1000")
        await client.subscribe(GRAVE)
        await client.silence(0.9)
        letter = await client.next_message()
        assert (letter.text, letter.headers["dead-letter-reason"]) == ("x", "expired")
        assert letter.headers["dead-letter-count"] == "0"


async def test_full_queue_gives_its_oldest_up() -> None:
    async with stage_with(full="dead_letter", count_max=3) as stage:
        client = await stage.connect()
        for number in range(8):
            await client.sent(Q, str(number))
        await client.subscribe(GRAVE, id="grave")
        letters = await client.next_messages(5)
        assert [d.text for d in letters] == ["0", "1", "2", "3", "4"]
        assert {d.headers["dead-letter-reason"] for d in letters} == {"full"}
        await client.subscribe(Q, id="work")
        assert await client.next_texts(3) == ["5", "6", "7"]


# ---------------------------------------------------------------------- who is charged


async def test_broken_connection_charges_only_what_was_worked_on(stage: Stage, version: Version) -> None:
    """The first that was not acknowledged; what had been prefetched behind it is marked, not charged."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, ack="client", prefetch_count="4")
    await producer.send_all(Q, range(6))
    deliveries = await consumer.next_messages(4)
    await consumer.ack(deliveries[0])
    consumer.vanish()
    heir = await stage.connect(version)
    await heir.subscribe(Q)
    seen = [
        (d.text, d.headers.get("redelivered"), d.headers.get("delivery-count")) for d in await heir.next_messages(5)
    ]
    assert seen[:3] == [("1", "true", "2"), ("2", "true", "1"), ("3", "true", "1")]
    assert seen[-1] == ("5", None, None)


async def test_disconnect_charges_nothing(stage: Stage, version: Version) -> None:
    """Who takes leave has failed at nothing: its next life may come as often as it likes."""
    producer = await stage.connect(version)
    await producer.send_all(Q, range(3))
    for _ in range(30):
        consumer = await stage.connect(version)
        await consumer.subscribe(Q, ack="client")
        deliveries = await consumer.next_messages(3)
        await consumer.disconnect()
    assert [(d.text, d.headers["delivery-count"]) for d in deliveries] == [("0", "1"), ("1", "1"), ("2", "1")]


async def test_each_subscription_was_at_work(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    for name in ("a", "b"):
        await consumer.subscribe(f"/queue/{name}", id=name, ack="client")
        await producer.send_all(f"/queue/{name}", range(2))
    await consumer.next_messages(4)
    consumer.vanish()
    heir = await stage.connect()
    for name in ("a", "b"):
        await heir.subscribe(f"/queue/{name}", id=name)
        assert [d.delivery_count for d in await heir.next_messages(2)] == [2, 1]


async def test_what_a_transaction_had_acknowledged_was_finished(stage: Stage) -> None:
    """It comes again, because nothing was committed; at work was the first that is in no transaction."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.send_all(Q, range(4))
    deliveries = await consumer.next_messages(4)
    await consumer.frame("BEGIN", {"transaction": "t"})
    for delivery in deliveries[:2]:
        await consumer.ack(delivery, transaction="t")
    consumer.vanish()
    heir = await stage.connect()
    await heir.subscribe(Q)
    assert [(d.text, d.delivery_count) for d in await heir.next_messages(4)] == [
        ("0", 1),
        ("1", 1),
        ("2", 2),
        ("3", 1),
    ]


async def test_cumulative_nack_charges_only_what_it_names(stage: Stage, later_version: Version) -> None:
    consumer, producer = await stage.connect(later_version), await stage.connect(later_version)
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(4))
    deliveries = await consumer.next_messages(4)
    await consumer.nack(deliveries[2])
    again = await consumer.next_messages(3)
    assert [(d.text, d.redelivered, d.delivery_count) for d in again] == [
        ("0", True, 1),
        ("1", True, 1),
        ("2", True, 2),
    ]
    await consumer.ack(again[-1])


async def test_nacks_in_one_read_charge_as_if_they_came_one_by_one(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(5))
    deliveries = await consumer.next_messages(5)
    nacks = [consumer.encode("NACK", consumer.naming(deliveries[i])) for i in (1, 3, 0)]
    await consumer.send_raw(b"".join(nacks))
    again = await consumer.next_messages(4)
    assert [d.delivery_count for d in again] == [1, 2, 1, 2]
    await consumer.ack(again[-1])
    await consumer.ack(deliveries[4])


async def test_nack_in_a_transaction_charges_at_commit(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await producer.send_all(Q, range(3))
    deliveries = await consumer.next_messages(3)
    await consumer.frame("BEGIN", {"transaction": "t"})
    await consumer.nack(deliveries[1], transaction="t")
    await consumer.silence()
    await consumer.request("COMMIT", {"transaction": "t"})
    assert [d.delivery_count for d in await consumer.next_messages(2)] == [1, 2]
    await consumer.disconnect()


async def test_message_that_was_cut_off_is_charged_the_others_not(stage: Stage) -> None:
    """Ack auto: what the kernel took whole is marked, what it was in the midst of is charged, the rest is new."""
    consumer, producer = await stage.connect(name="stuck"), await stage.connect()
    await producer.send_all(Q, [f"{n}".ljust(30_000, "x") for n in range(8)])
    await producer.sync()
    await consumer.subscribe(Q)
    await stage.settled_down()
    consumer.vanish()
    heir = await stage.connect()
    await heir.subscribe(Q)
    deliveries = await heir.drain()
    counts = [d.headers.get("delivery-count") for d in deliveries]
    assert [d.text[0] for d in deliveries] == list("01234567")[-len(deliveries) :]
    assert counts.count("2") == 1
    cut = counts.index("2")
    assert counts == ["1"] * cut + ["2"] + [None] * (len(counts) - cut - 1)


async def test_poison_goes_and_innocents_are_all_consumed() -> None:
    """A consumer that dies whenever it comes to one message, with a full prefetch each time."""
    async with stage_with(redeliveries_max=4) as stage:
        producer = await stage.connect()
        await producer.send_all(Q, range(50))
        await producer.sync()
        done: list[str] = []
        deaths = 0
        while stage.depth_count(Q):
            consumer = await stage.connect()
            await consumer.subscribe(Q, ack="client", prefetch_count="20")
            while True:
                with trio.move_on_after(1) as quiet:
                    delivery = await consumer.next_message()
                if quiet.cancelled_caught:
                    break
                if delivery.text == "17":
                    deaths += 1
                    break
                await consumer.ack(delivery)
                done.append(delivery.text)
            consumer.vanish()
            await stage.settled_down()
        assert deaths == 5
        assert done == [str(n) for n in range(50) if n != 17]
        undertaker = await stage.connect()
        await undertaker.subscribe(GRAVE)
        letter = await undertaker.next_message()
        assert (letter.text, letter.headers["dead-letter-count"]) == ("17", "5")


# ---------------------------------------------------------------------- back-off


async def test_redelivery_waits_longer_each_time() -> None:
    async with stage_with(redelivery_delay_ms=100, redelivery_backoff=3.0, redelivery_delay_max_ms=500) as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await consumer.sent(Q, "x")
        delivery = await consumer.next_message()
        for wait_ms in (100, 300, 500, 500):
            at_ms = wall_clock_ms()
            await consumer.nack(delivery)
            delivery = await consumer.next_message()
            assert wall_clock_ms() - at_ms == wait_ms
        await consumer.ack(delivery)


# ---------------------------------------------------------------------- full, and kept


async def test_full_dead_letter_queue_holds_back_and_says_so() -> None:
    """Nothing is lost, and the flow map names who waits for whom."""
    policies = {Q: {"redeliveries_max": 0}, GRAVE: {"count_max": 2}}
    async with Stage(policies) as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await consumer.send_all(Q, range(6))
        for delivery in await consumer.next_messages(6):
            await consumer.nack(delivery)
        assert (stage.depth_count(GRAVE), stage.depth_count(Q)) == (2, 4)
        assert any(GRAVE in chain and Q in chain for chain in stage.chains()), stage.chains()
        undertaker = await stage.connect()
        await undertaker.subscribe(GRAVE)
        assert await undertaker.next_texts(6) == [str(n) for n in range(6)]
        assert stage.depth_count(Q) == 0


@pytest.mark.parametrize("end", ENDS)
async def test_redelivery_count_outlives_the_broker(end: str) -> None:
    """Failures of several lives add up. (A crash may forget those that it came too soon after.)"""
    lives = Lives({Q: {"redeliveries_max": 3}})
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.sent(Q, "x", persistent="true")
    for life in range(4):
        async with lives.life(end=end) as stage:
            client = await stage.connect()
            await client.subscribe(Q, ack="client-individual")
            delivery = await client.next_message()
            assert delivery.delivery_count == life + 1
            await client.nack(delivery)
            await client.unsubscribe()
            await trio.sleep(1)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(Q)
        await client.silence()
        await client.subscribe(GRAVE, id="grave")
        assert (await client.next_message()).headers["dead-letter-count"] == "4"


@pytest.mark.parametrize("end", ENDS)
async def test_count_of_what_was_not_on_disk_yet_is_kept(end: str) -> None:
    """It failed before it was written: the count goes with it."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        await client.send(Q, "x", persistent="true")
        await client.nack(await client.next_message())
        await client.next_message()
        await trio.sleep(3)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(Q)
        assert (await client.next_message()).delivery_count >= 2


@pytest.mark.parametrize("end", ENDS)
async def test_dead_letter_moves_in_one_write(end: str) -> None:
    """However the broker ends: a message is in its queue or in the dead-letter queue, never in both nor in neither."""
    for delay_seconds in (0.0, 0.01, 0.05, 0.1, 0.2, 2.0):
        lives = Lives({Q: {"redeliveries_max": 0}})
        async with lives.life(end=end) as stage:
            client, undertaker = await stage.connect(), await stage.connect()
            await client.subscribe(Q, ack="client-individual")
            await undertaker.subscribe(GRAVE, ack="client-individual")
            for number in range(4):
                await client.sent(Q, str(number), persistent="true")
            first, *others = await client.next_messages(4)
            await client.nack(first)
            letter = await undertaker.next_message()
            await trio.sleep(1)  # so that the dead-letter queue is in less of a hurry to write than this one
            await undertaker.ack(letter)
            for delivery in others:
                await client.send_raw(client.encode("NACK", client.naming(delivery)))
            await trio.sleep(delay_seconds)
        async with lives.life() as stage:
            client = await stage.connect()
            await client.subscribe(Q, id="work")
            await client.subscribe(GRAVE, id="grave")
            texts = [delivery.text for delivery in await client.drain()]
            assert sorted(texts) == ["1", "2", "3"], (end, delay_seconds)


@pytest.mark.parametrize("end", ENDS)
async def test_what_waits_for_the_dead_letter_queue_outlives_the_broker(end: str) -> None:
    lives = Lives({Q: {"redeliveries_max": 0}, GRAVE: {"count_max": 1}})
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        for number in range(3):
            await client.sent(Q, str(number), persistent="true")
        for delivery in await client.next_messages(3):
            await client.nack(delivery)
        await client.unsubscribe()
        await trio.sleep(3)
        assert (stage.depth_count(GRAVE), stage.depth_count(Q)) == (1, 2)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(Q, id="work")
        await client.silence()
        await client.subscribe(GRAVE, id="grave")
        assert await client.next_texts(3) == ["0", "1", "2"]


async def test_dead_letters_of_a_paged_queue_come_in_to_go() -> None:
    """Policy `dead_letter` over a quota: the oldest are on disk only, and are read to be moved."""
    lives = Lives({Q: {"full": "dead_letter", "count_max": 3000, "memory_bytes": 128 * 1024}})
    async with lives.life() as stage:
        producer = await stage.connect()
        for start in range(0, 6000, 250):
            await producer.send_all(Q, [f"{n:05d}".ljust(100) for n in range(start, start + 250)])
            await producer.sync()
        await trio.sleep(5)
        client = await stage.connect()
        await client.subscribe(GRAVE, id="grave")
        dead = [delivery.text.strip() for delivery in await client.drain(2)]
        await client.subscribe(Q, id="work")
        left = [delivery.text.strip() for delivery in await client.drain(2)]
        assert dead + left == [f"{n:05d}" for n in range(6000)]
        assert len(left) <= 3000


async def test_large_body_is_delayed_and_dead_lettered_with_its_message(tmp_path: Path) -> None:
    """One file all the way; it is gone when the dead letter is consumed (the stage checks that)."""
    body = bytes(range(256)) * 2000
    async with Stage({Q: {"redeliveries_max": 1}}, large_folder=tmp_path, large_body_bytes=100_000) as stage:
        consumer, producer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await producer.sent(Q, body, delay="1000")
        await consumer.silence(0.9)
        for expected in (1, 2):
            delivery = await consumer.next_message()
            assert (delivery.body, delivery.delivery_count) == (body, expected)
            await consumer.nack(delivery)
        await consumer.subscribe(GRAVE, id="grave")
        letter = await consumer.next_message()
        assert letter.body == body
        assert letter.headers["dead-letter-reason"] == "redeliveries"
        assert "delay" not in letter.headers
