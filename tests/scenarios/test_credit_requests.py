"""A client pauses and resumes a subscription, and changes its credit: SENDs to `/sluiceway/credit`."""

from __future__ import annotations

import json

import pytest

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage

CREDIT = "/sluiceway/credit"
Q, T = "/queue/work", "/topic/news"


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
@pytest.mark.parametrize("destination", [Q, T])
async def test_nothing_comes_between_pause_and_resume(
    stage: Stage, version: Version, destination: str, ack: str
) -> None:
    """The RECEIPT of a pause is the end of what comes; after the resume all of it comes, once and in order."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(destination, ack=ack)
    await producer.send_all(destination, range(3))
    assert await consumer.next_texts(3) == ["0", "1", "2"]
    await consumer.sent(CREDIT, id="s", credit="0")
    await producer.send_all(destination, range(3, 6))
    await consumer.silence()
    await consumer.sent(CREDIT, id="s", paused="false")
    assert await consumer.next_texts(3) == ["3", "4", "5"]


async def test_paused_consumer_leaves_messages_to_others(stage: Stage) -> None:
    paused, other, producer = await stage.connect(), await stage.connect(), await stage.connect()
    await paused.subscribe(Q, paused="true")
    await other.subscribe(Q)
    await producer.send_all(Q, range(10))
    assert len(await other.next_messages(10)) == 10
    await paused.silence()


async def test_subscription_that_begins_paused(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client", paused="true", prefetch_count="2")
    await producer.send_all(Q, range(5))
    await consumer.silence()
    await consumer.sent(CREDIT, id="s", paused="false")
    deliveries = await consumer.next_messages(2)
    await consumer.silence()
    await consumer.ack(deliveries[-1])
    await consumer.drain()


async def test_credit_is_the_whole_window_from_then_on(stage: Stage) -> None:
    """What is out counts: a larger window is filled at once, a smaller one when so much is acknowledged."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="2")
    await producer.send_all(Q, range(20))
    deliveries = await consumer.next_messages(2)
    await consumer.sent(CREDIT, id="s", credit="5")
    deliveries += await consumer.next_messages(3)
    await consumer.silence()
    await consumer.sent(CREDIT, id="s", credit="1")
    for delivery in deliveries[:4]:
        await consumer.ack(delivery)
    await consumer.silence()
    await consumer.ack(deliveries[4])
    assert (await consumer.next_message()).text == "5"
    await consumer.silence()


async def test_credit_in_bytes(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="1")
    await producer.send_all(Q, ["x" * 1000] * 10)
    await consumer.next_message()
    await consumer.sent(CREDIT, id="s", credit="100,3000")
    assert 2 <= 1 + len(await consumer.drain()) <= 4


async def test_window_of_one_has_no_headroom(stage: Stage) -> None:
    """One at a time means one, also where the window was large before, and for messages of raised priority."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="100")
    await consumer.sent(CREDIT, id="s", credit="1")
    await producer.send_all(Q, range(3), priority="9")
    await consumer.next_message()
    await consumer.silence()


async def test_number_while_paused_changes_the_window_only(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await consumer.sent(CREDIT, id="s", credit="2", paused="true")
    await producer.send_all(Q, range(5))
    await consumer.silence()
    await consumer.sent(CREDIT, id="s", paused="false")
    await consumer.next_messages(2)
    await consumer.silence()


async def test_answer_says_what_is_in_force(stage: Stage) -> None:
    consumer = await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await consumer.subscribe("/temp-queue/answers", id="a")
    headers = {"id": "s", "credit": "7,8000", "reply_to": "/temp-queue/answers", "correlation_id": "c"}
    await consumer.send(CREDIT, **headers)
    answer = await consumer.next_message()
    assert answer.headers["correlation-id"] == "c"
    assert json.loads(answer.body) == {"id": "s", "paused": False, "credit_count": 7, "credit_bytes": 8000}


async def test_nack_in_bulk_ends_no_pause(stage: Stage) -> None:
    """What holds deliveries for a moment leaves those of the client in force."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q, ack="client", credit="5000")
    await producer.send_all(Q, range(3000))
    deliveries = await consumer.next_messages(3000)
    await consumer.sent(CREDIT, id="s", credit="0")
    await consumer.nack(deliveries[-1])
    await consumer.silence()
    await consumer.sent(CREDIT, id="s", paused="false")
    assert len(await consumer.next_messages(3000)) == 3000
    await consumer.unsubscribe("s")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"credit": "1"}, "missing-header"),
        ({"id": "s"}, "missing-header"),
        ({"id": "t", "credit": "1"}, "unknown-subscription"),
        ({"id": "s", "credit": "-1"}, "bad-credit"),
        ({"id": "s", "credit": "1,x"}, "bad-credit"),
        ({"id": "s", "credit": "9" * 30}, "bad-credit"),
        ({"id": "s", "paused": "maybe"}, "bad-paused"),
    ],
)
async def test_wrong_request_is_an_error_in_words(stage: Stage, headers: dict[str, str], code: str) -> None:
    consumer = await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await consumer.send(CREDIT, receipt="r", **headers)
    error = await consumer.expect_error()
    assert error.headers["code"] == code
    assert error.headers["receipt-id"] == "r"


async def test_request_in_a_transaction_is_refused(stage: Stage) -> None:
    consumer = await stage.connect()
    await consumer.subscribe(Q, ack="client")
    await consumer.request("BEGIN", {"transaction": "t"})
    await consumer.send(CREDIT, id="s", credit="0", transaction="t")
    assert (await consumer.expect_error()).headers["code"] == "not-supported"


async def test_ended_subscription_has_no_credit(stage: Stage) -> None:
    """A pause ends with its subscription: another one with its id begins as usual."""
    consumer, producer = await stage.connect(), await stage.connect()
    await consumer.subscribe(Q)
    await consumer.sent(CREDIT, id="s", credit="0")
    await consumer.unsubscribe("s")
    await consumer.subscribe(Q)
    await producer.send(Q, "x")
    assert (await consumer.next_message()).text == "x"


async def test_paused_reader_of_a_log() -> None:
    async with LogStage() as stage:
        reader, group, producer = await stage.connect(), await stage.connect(), await stage.connect()
        await reader.subscribe("/log/a", **{"from": "earliest"})
        await group.subscribe("/log/a", ack="client-individual", group="g", **{"from": "earliest"})
        for client in (reader, group):
            await client.sent(CREDIT, id="s", credit="0")
        await producer.send_all("/log/a", range(3))
        await reader.silence()
        await group.silence()
        await reader.sent(CREDIT, id="s", paused="false")
        assert await reader.next_texts(3) == ["0", "1", "2"]
        await group.sent(CREDIT, id="s", credit="2")
        assert len(await group.next_messages(2)) == 2
        await group.silence()


async def test_paused_durable_subscription_and_wildcard(stage: Stage) -> None:
    durable, wild, producer = await stage.connect(client_id="c"), await stage.connect(), await stage.connect()
    await durable.subscribe(T, id="d", durable="true", paused="true")
    await wild.subscribe("/topic/>", paused="true")
    await producer.send_all(T, range(3))
    await durable.silence()
    await wild.silence()
    for client, id in ((durable, "d"), (wild, "s")):
        await client.sent(CREDIT, id=id, paused="false")
        assert await client.next_texts(3) == ["0", "1", "2"]
    await durable.request("UNSUBSCRIBE", {"id": "d", "durable": "true"})


async def test_paused_browser(stage: Stage) -> None:
    """Looks at nothing until it resumes, and then at what it has room for."""
    browser, producer = await stage.connect(), await stage.connect()
    await producer.send_all(Q, range(50))
    await producer.sync()
    await browser.subscribe(Q, browser="true", paused="true")
    await browser.silence()
    await browser.sent(CREDIT, id="s", credit="3")
    assert len([each for each in await browser.drain() if each.text]) == 50
    await browser.unsubscribe()
    consumer = await stage.connect()
    await consumer.subscribe(Q)
    await consumer.next_messages(50)
