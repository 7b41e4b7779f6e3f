"""«Where is my message?»: each thing that can happen to one shows in its trail, and what is still there is found."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import EPOCH_MS, Stage

Q = "/queue/orders"
T = "/topic/news"
KIB = 1024


def by_correlation(stage: Stage, correlation_id: str) -> dict[str, Any]:
    """The one trail with this correlation id."""
    assert stage.broker.trails is not None
    (trail,) = stage.broker.trails.find(correlation_id=correlation_id)
    return trail


def story(trail: dict[str, Any]) -> list[str]:
    """What happened, in order."""
    return [entry["what"] for entry in trail["entries"]]


async def asked(client: Client, **question: Any) -> dict[str, Any]:
    """The broker's answer over STOMP."""
    await client.subscribe("/temp-queue/answers", id="answers")
    await client.send("/sluiceway/trail", json.dumps(question), reply_to="/temp-queue/answers")
    answer = json.loads((await client.next_message()).body)
    await client.unsubscribe("answers")
    assert isinstance(answer, dict)
    return answer


# ---------------------------------------------------------------------- one queue


async def test_an_acknowledged_message_has_come_gone_out_and_been_acked(stage: Stage) -> None:
    """With time, place and name of each."""
    producer, consumer = await stage.connect(name="producer"), await stage.connect(name="consumer")
    await producer.sent(Q, "m", correlation_id="order-1")
    await trio.sleep(2)
    await consumer.subscribe(Q, id="billing", ack="client")
    delivery = await consumer.next_message()
    await trio.sleep(3)
    await consumer.ack(delivery)
    trail = by_correlation(stage, "order-1")
    assert [
        (entry["at_ms"] - EPOCH_MS, entry["what"], entry["where"], entry["detail"]) for entry in trail["entries"]
    ] == [
        (0, "accepted", Q, "from producer"),
        (2000, "sent", Q, "to billing of consumer"),
        (5000, "acked", Q, "by billing of consumer"),
    ]
    assert (trail["message_id"], trail["correlation_id"]) == (delivery.headers["message-id"], "order-1")
    assert trail["complete"] and trail["place"] is None
    assert trail["words"] == "It was acknowledged by billing of consumer."


async def test_records_of_logs_take_no_place_in_an_answer() -> None:
    """They have no trail; many with the same correlation-id hide no message that has one."""
    async with LogStage() as stage:
        producer = await stage.connect(name="producer")
        await producer.sent(Q, "m", correlation_id="order-1")
        for _ in range(30):
            await producer.send("/log/orders", "m", correlation_id="order-1")
        await producer.sync()
        assert story(by_correlation(stage, "order-1")) == ["accepted"]


async def test_a_message_that_waits_is_shown_with_its_place_in_line(stage: Stage) -> None:
    producer = await stage.connect()
    for number in range(3):
        await producer.sent(Q, "m", correlation_id=f"n{number}")
    trail = by_correlation(stage, "n2")
    assert trail["place"]["ahead_count"] == 2
    assert trail["words"] == f"It is in {Q}, in memory; it waits for a consumer, 2 ahead of it."


async def test_a_message_in_somebodys_hands_names_the_holder_and_since_when(stage: Stage) -> None:
    producer, consumer = await stage.connect(name="producer"), await stage.connect(name="consumer")
    await consumer.subscribe(Q, id="slow", ack="client")
    await producer.sent(Q, "m", correlation_id="a")
    await consumer.next_message()
    await trio.sleep(41)
    trail = by_correlation(stage, "a")
    assert trail["place"]["holder"] == "slow of consumer"
    assert trail["words"] == f"It is in {Q}, in memory; not acknowledged by slow of consumer since 41 s."


async def test_ack_auto_is_consumed_when_the_kernel_has_taken_it(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    await producer.sent(Q, "m", correlation_id="a")
    await consumer.next_message()
    assert story(by_correlation(stage, "a")) == ["accepted", "sent", "consumed"]


async def test_a_nack_and_a_lost_connection_are_told_apart(stage: Stage) -> None:
    producer, first, second = [await stage.connect(name=name) for name in ("producer", "first", "second")]
    await producer.sent(Q, "m", correlation_id="a")
    await first.subscribe(Q, ack="client-individual")
    await first.nack(await first.next_message())
    await first.next_message()
    first.vanish()
    await second.subscribe(Q, ack="client-individual")
    await second.ack(await second.next_message())
    trail = by_correlation(stage, "a")
    assert story(trail) == ["accepted", "sent", "nacked", "sent", "returned", "sent", "acked"]
    assert trail["entries"][5]["detail"] == "to s of second, for the 3rd time"


async def test_of_a_stream_each_message_has_its_own_trail(stage: Stage) -> None:
    """Events are kept for whole batches: what is said of one message must be about that one."""
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="1000")
    await producer.send_all(Q, range(500))
    deliveries = await consumer.next_messages(500)
    for place in (0, 7, 250, 499):
        await consumer.ack(deliveries[place])
    await consumer.nack(deliveries[8])
    assert stage.broker.trails is not None
    for place, delivery in enumerate(deliveries):
        (trail,) = stage.broker.trails.find(message_id=delivery.headers["message-id"])
        acked, nacked = place in (0, 7, 250, 499), place == 8
        expected = ["accepted", "sent", *(["acked"] if acked else ["nacked", "sent"] if nacked else [])]
        assert story(trail) == expected, place


async def test_what_is_acknowledged_in_a_transaction_is_acked_at_commit(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await producer.frame("BEGIN", {"transaction": "t"})
    await producer.send(Q, "m", transaction="t", correlation_id="a")
    await producer.sync()
    assert stage.broker.trails is not None
    assert stage.broker.trails.find(correlation_id="a") == [], "nothing has taken effect"
    await producer.request("COMMIT", {"transaction": "t"})
    await consumer.subscribe(Q, ack="client")
    await consumer.frame("BEGIN", {"transaction": "u"})
    await consumer.ack(await consumer.next_message(), transaction="u")
    assert story(by_correlation(stage, "a")) == ["accepted", "sent"]
    await consumer.request("COMMIT", {"transaction": "u"})
    assert story(by_correlation(stage, "a")) == ["accepted", "sent", "acked"]


# ---------------------------------------------------------------------- leaving otherwise


async def test_expired(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent(Q, "m", correlation_id="a", expiration="5000")
    await trio.sleep(6)
    trail = by_correlation(stage, "a")
    assert story(trail) == ["accepted", "expired"]
    assert trail["words"] == "It expired."


@pytest.mark.parametrize(
    ("full", "loser", "told"), [("drop_oldest", 0, ["accepted", "dropped"]), ("drop_newest", 3, ["dropped"])]
)
async def test_dropped_by_the_full_policy(full: str, loser: int, told: list[str]) -> None:
    async with Stage({Q: {"full": full, "count_max": 3}}) as stage:
        producer = await stage.connect()
        for number in range(4):
            await producer.sent(Q, "m", correlation_id=f"n{number}")
        trail = by_correlation(stage, f"n{loser}")
        assert story(trail) == told
        assert "policy" in trail["words"]


async def test_parked_in_front_of_a_full_queue() -> None:
    async with Stage({Q: {"count_max": 1}}) as stage:
        producer, consumer = await stage.connect(name="producer"), await stage.connect()
        await producer.send(Q, "m", correlation_id="in")
        await producer.send(Q, "m", correlation_id="outside")
        await stage.settled_down()
        trail = by_correlation(stage, "outside")
        assert story(trail) == ["parked"]
        assert trail["complete"] and trail["place"] is None
        assert trail["words"] == f"It waits in front of {Q}: it has no room: held back in producer."
        await consumer.subscribe(Q)
        await consumer.next_messages(2)
        assert story(by_correlation(stage, "outside")) == ["parked", "accepted", "sent", "consumed"]


async def test_dead_lettered_and_where_it_is_now() -> None:
    async with Stage({Q: {"redeliveries_max": 0}}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await producer.sent(Q, "m", correlation_id="a")
        await consumer.nack(await consumer.next_message())
        trail = by_correlation(stage, "a")
        assert story(trail) == ["accepted", "sent", "nacked", "dead_lettered", "accepted"]
        assert trail["entries"][3]["detail"] == "to /queue/dead-letters, for it was refused too often"
        assert trail["destination"] == "/queue/dead-letters"
        assert trail["words"].startswith("It is in /queue/dead-letters, in memory; it waits for a consumer")


async def test_the_queue_was_deleted(stage: Stage) -> None:
    """A temporary destination goes with its owner, and takes along what is in it."""
    owner, producer = await stage.connect(), await stage.connect()
    await owner.subscribe("/temp-queue/mine", id="m", ack="client")
    await owner.send("/queue/requests", "?", reply_to="/temp-queue/mine")
    await producer.subscribe("/queue/requests")
    reply_to = (await producer.next_message()).headers["reply-to"]
    await producer.sent(reply_to, "m", correlation_id="a")
    await owner.next_message()
    owner.vanish()
    await stage.settled_down()
    trail = by_correlation(stage, "a")
    assert story(trail)[-1] == "dropped"
    assert "the queue was deleted" in trail["words"]


async def test_a_delayed_message_says_when_it_may_go(stage: Stage) -> None:
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    await producer.sent(Q, "m", correlation_id="a", delay="30000")
    await trio.sleep(15)
    assert by_correlation(stage, "a")["words"] == f"It is in {Q}, in memory; it waits for its time, in 15 s."
    await consumer.next_message()
    assert story(by_correlation(stage, "a")) == ["accepted", "sent", "consumed"]


# ---------------------------------------------------------------------- topics


async def test_a_topic_tells_who_had_it_and_who_has_not(stage: Stage) -> None:
    producer, fast, slow = [await stage.connect(name=name) for name in ("producer", "fast", "slow")]
    await fast.subscribe(T, ack="client")
    await slow.subscribe(T, ack="client")
    await producer.sent(T, "m", correlation_id="a")
    await fast.ack(await fast.next_message())
    await slow.next_message()
    trail = by_correlation(stage, "a")
    assert story(trail) == ["accepted", "sent", "sent", "acked"]
    assert trail["place"]["needed_by"] == ["s of slow"]
    assert trail["words"] == f"It is in {T}, in memory; not yet settled by s of slow."


async def test_a_topic_without_subscribers_drops_it_unheard(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent(T, "m", correlation_id="a")
    trail = by_correlation(stage, "a")
    assert story(trail) == ["dropped"]
    assert trail["words"] == f"It never was in {T}: no subscribers."


async def test_a_laggard_of_a_topic_never_gets_it() -> None:
    async with Stage({T: {"memory_bytes": 64 * KIB}}) as stage:
        producer, fast, slow = [await stage.connect(name=name) for name in ("producer", "fast", "slow")]
        await fast.subscribe(T)
        await slow.subscribe(T, ack="client", prefetch_count="1")
        await producer.sent(T, "x" * KIB, correlation_id="first")
        await producer.sent(T, "x" * KIB, correlation_id="second")
        for _ in range(100):
            await producer.sent(T, "x" * KIB)
            fast.receive_now()
        trail = by_correlation(stage, "second")
        assert story(trail) == ["accepted", "sent", "consumed", "dropped"]
        assert trail["entries"][3]["detail"] == "for s of slow, which was too slow"


async def test_a_composite_has_a_trail_for_each_destination(stage: Stage) -> None:
    producer = await stage.connect()
    await producer.sent("/queue/a,/queue/b", "m", correlation_id="a")
    assert stage.broker.trails is not None
    trails = stage.broker.trails.find(correlation_id="a")
    assert [trail["destination"] for trail in trails] == ["/queue/a", "/queue/b"]


# ---------------------------------------------------------------------- the disk


async def test_stored_paged_out_and_in() -> None:
    lives = Lives({Q: {"memory_bytes": 256 * KIB}})
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for first in range(0, 2000, 100):
            await producer.send_all(Q, ["x" * 1000] * 100, persistent="true", correlation_id=f"n{first}")
            await producer.sync()
        await trio.sleep(1)
        assert stage.broker.trails is not None
        trail = stage.broker.trails.find(correlation_id="n1500")[0]
        assert story(trail) == ["accepted", "stored", "paged_out"]
        assert trail["place"]["on_disk"]
        await consumer.subscribe(Q)
        await consumer.next_messages(2000)
        assert stage.broker.trails is not None
        (trail,) = stage.broker.trails.find(message_id=trail["message_id"])
        assert story(trail)[:5] == ["accepted", "stored", "paged_out", "paged_in", "sent"]
        assert story(trail)[-1] == "consumed"


@pytest.mark.parametrize("end", ["in order", "crash"])
async def test_after_a_restart_it_is_said_what_is_known(end: str) -> None:
    """That it is there, and where; from then on all that happens. What was before is forgotten, and that is said."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        for number in range(3):
            await producer.sent(Q, "m", persistent="true", correlation_id=f"n{number}")
        message_id = by_correlation(stage, "n1")["message_id"]
    async with lives.life() as stage:
        client = await stage.connect(name="client")
        answer = await asked(client, message_id=message_id)
        (trail,) = answer["trails"]
        assert not trail["complete"]
        assert [(entry["what"], entry["detail"]) for entry in trail["entries"]] == [
            ("stored", "an earlier run of the broker left it here")
        ]
        assert trail["place"]["on_disk"] and trail["place"]["ahead_count"] == 1
        await client.subscribe(Q, ack="client")
        await client.next_messages(3)
        (trail,) = (await asked(client, message_id=message_id))["trails"]
        assert story(trail) == ["stored", "paged_in", "sent"]
        assert trail["correlation_id"] == "n1"
        await client.unsubscribe()


@pytest.mark.parametrize("queues_count", [1, 2])
async def test_what_an_earlier_run_left_is_still_known_when_it_has_gone(queues_count: int) -> None:
    """From when it comes back from the disk on. With two queues every other number is elsewhere."""
    names = [f"/queue/q{number}" for number in range(queues_count)]
    lives = Lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        for number in range(6):
            await producer.sent(names[number % queues_count], "m", persistent="true", correlation_id=f"n{number}")
        ids = [by_correlation(stage, f"n{number}")["message_id"] for number in range(6)]
    async with lives.life() as stage:
        client = await stage.connect(name="client")
        assert stage.broker.trails is not None
        for name in names:
            await client.subscribe(name, id=name, ack="client-individual")
        for delivery in await client.next_messages(6):
            await client.ack(delivery)
        await client.sync()
        for is_sealed in (False, True):
            if is_sealed:
                for each in stage.broker.trails.trails.queue_trails():
                    each.seal()
            for number, message_id in enumerate(ids):
                (trail,) = stage.broker.trails.find(message_id=message_id)
                assert story(trail) == ["stored", "paged_in", "sent", "acked"]
                assert not trail["complete"]
                assert trail["destination"] == names[number % queues_count]
                assert trail["words"].startswith("It was acknowledged by ")
                assert trail["place"] is None


# ---------------------------------------------------------------------- forgetting


async def test_a_message_is_found_in_its_queue_though_its_trail_is_forgotten(stage: Stage) -> None:
    producer, consumer = await stage.connect(name="producer"), await stage.connect(name="consumer")
    await consumer.subscribe(Q, ack="client", prefetch_count="2")
    for number in range(5):
        await producer.sent(Q, "m", correlation_id=f"n{number}")
    first = by_correlation(stage, "n0")["message_id"]
    await consumer.next_messages(2)
    trails = stage.broker.trails
    assert trails is not None
    for each in trails.trails.queue_trails():
        each.seal(give_back=True)
    trails.trails.correlations.seal(give_back=True)
    trails.trails.configure(bytes_max=1 << 20, keep_seconds=1)
    await trio.sleep(2)
    (trail,) = trails.find(message_id=first)
    assert not trail["complete"] and trail["entries"] == []
    assert trail["words"] == f"It is in {Q}, in memory; not acknowledged by s of consumer."
    waiting = by_correlation(stage, "n4")
    assert waiting["place"]["ahead_count"] == 4


async def test_what_left_long_ago_is_unknown(stage: Stage) -> None:
    assert stage.broker.trails is not None
    token = stage.broker.shards.token.decode()
    assert stage.broker.trails.find(message_id=f"{token}-4711") == []
    assert stage.broker.trails.find(correlation_id="never") == []


async def test_memory_for_trails_stays_within_its_limit() -> None:
    async with Stage() as stage:
        trails = stage.broker.trails
        assert trails is not None
        trails.trails.configure(bytes_max=64 * KIB, keep_seconds=86_400)
        producer = await stage.connect()
        for number in range(3000):
            await producer.send(Q, "m", correlation_id=str(number))
        await producer.sync()
        assert trails.used_bytes <= 64 * KIB + 256 * 240
        assert trails.trails.correlations.has_forgotten
        assert by_correlation(stage, "2999")["complete"]


# ---------------------------------------------------------------------- asking


async def test_the_question_over_stomp(stage: Stage) -> None:
    client = await stage.connect(name="client")
    await client.sent(Q, "m", correlation_id="a")
    await client.sent(Q, "m", correlation_id="a")
    answer = await asked(client, correlation_id="a", limit=1)
    assert answer["ok"]
    (trail,) = answer["trails"]
    assert trail["place"]["ahead_count"] == 1, "of several the latest"
    assert (await asked(client, message_id=trail["message_id"]))["trails"] == [trail]


@pytest.mark.parametrize(
    ("question", "about"),
    [
        ({}, "message_id or a correlation_id"),
        ({"message_id": "a-1", "correlation_id": "b"}, "one of them"),
        ({"message_id": ""}, "1 to 1024 characters"),
        ({"message_id": 7}, "a text"),
        ({"message_id": "nonsense"}, "a token, a dash and a number"),
        ({"message_id": "x-٣"}, "a token, a dash and a number"),
        ({"message_id": f"x-{'9' * 40}"}, "a token, a dash and a number"),
        ({"message_id": "abcdef-1"}, "another broker"),
        ({"correlation_id": "x" * 5000}, "1 to 1024 characters"),
        ({"correlation_id": "x", "limit": 0}, "1 to 100"),
        ({"correlation_id": "x", "limit": True}, "1 to 100"),
        ({"correlation_id": "x", "limt": 3}, "'limt' is not known"),
    ],
)
async def test_questions_that_make_no_sense_are_answered_with_the_reason(
    stage: Stage, question: dict[str, Any], about: str
) -> None:
    client = await stage.connect()
    answer = await asked(client, **question)
    assert not answer["ok"] and answer["error"] == "INVALID_REQUEST"
    assert about in answer["message"]


async def test_trails_that_are_switched_off_say_so() -> None:
    stage = Stage()
    config = stage.broker.config
    stage.broker.config = attrs.evolve(config, trails=attrs.evolve(config.trails, enabled=False))
    async with stage:
        client = await stage.connect()
        await client.sent(Q, "m", correlation_id="a")
        answer = await asked(client, correlation_id="a")
        assert answer["error"] == "TRAILS_OFF" and "enabled = true" in answer["message"]
        assert stage.partitions(Q)[0].observer is None, "and cost nothing"


async def test_too_many_questions_at_once_are_refused(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe("/temp-queue/answers", id="answers")
    question = client.encode(
        "SEND", {"destination": "/sluiceway/trail", "reply-to": "/temp-queue/answers"}, '{"correlation_id": "x"}'
    )
    await client.send_raw(question * 20)
    answers = [json.loads(delivery.body) for delivery in await client.next_messages(20)]
    assert {answer.get("error") for answer in answers} == {None, "TOO_MANY_REQUESTS"}
    await client.unsubscribe("answers")
    assert (await asked(client, correlation_id="x"))["ok"], "later there is room again"


async def test_names_that_clients_choose_are_text(stage: Stage) -> None:
    """Markup, quotes and control characters come back as they are, and break nothing."""
    nasty = '"><script>\x1b[2J\U0001f600'
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, id=nasty, ack="client")
    await producer.sent(Q, "m", correlation_id=nasty)
    await consumer.next_message()
    answer = await asked(producer, correlation_id=nasty)
    (trail,) = answer["trails"]
    assert trail["correlation_id"] == nasty
    assert nasty in trail["entries"][1]["detail"]
