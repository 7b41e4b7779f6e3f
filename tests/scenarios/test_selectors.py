"""SUBSCRIBE with a selector, on each kind of destination, through a whole broker."""

from __future__ import annotations

import pytest
import trio

from sluiceway.queues.pinned import PINNED_COUNT
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.log_stage import LOG, LogStage
from tests.scenarios.stage import Stage

Q = "/queue/orders"
T = "/topic/prices"
RED = "color = 'red'"


async def _send(client: Client, destination: str, colors: str, **headers: str) -> None:
    """A message for each letter; its body is its place."""
    for place, letter in enumerate(colors):
        more = {"r": {"color": "red"}, "b": {"color": "blue"}, "-": {}}[letter]
        await client.send(destination, str(place), **more, **headers)
    await client.sync()


async def _texts(client: Client) -> list[str]:
    return [delivery.text for delivery in await client.drain()]


async def test_a_queue_gives_each_what_it_takes_and_keeps_the_rest(stage: Stage) -> None:
    red, other, producer = [await stage.connect() for _ in range(3)]
    await red.subscribe(Q, selector=RED)
    await _send(producer, Q, "rb-rb")
    assert await red.next_texts(2) == ["0", "3"]
    await red.silence()
    assert stage.depth_count(Q) == 3
    await other.subscribe(Q)
    assert await other.next_texts(3) == ["1", "2", "4"]


async def test_all_versions_and_headers_of_all_kinds(stage: Stage) -> None:
    """Escaped names and values, numbers, priorities, what JMS calls them."""
    producer = await stage.connect("1.2")
    await producer.frame("SEND", {"destination": Q, "a:b": "x\ny", "n": "12", "priority": "7", "type": "t"}, "1")
    await producer.frame("SEND", {"destination": Q, "n": "9"}, "2")
    await producer.sync()
    for version, selector in (
        ("1.1", "\"a:b\" = 'x\ny' AND JMSType = 't'"),
        ("1.2", "JMSPriority > 4 AND n BETWEEN 10 AND 20"),
    ):
        client = await stage.connect(version)  # type: ignore[arg-type]
        await client.subscribe(Q, ack="client", selector=selector)
        assert (await client.next_message()).text == "1"
        await client.silence()
        await client.disconnect()
    await stage.settled_down()
    old = await stage.connect("1.0")
    await old.subscribe(Q, selector="n < 10")
    assert (await old.next_message()).text == "2"


async def test_by_message_id(stage: Stage) -> None:
    producer, viewer, taker = [await stage.connect() for _ in range(3)]
    await _send(producer, Q, "rrr")
    await viewer.subscribe(Q, browser="true")
    shown = await viewer.drain()
    wanted = shown[1].headers["message-id"]
    await taker.subscribe(Q, selector=f"JMSMessageID = '{wanted}'")
    assert await taker.next_texts(1) == ["1"]
    await taker.silence()


async def test_high_priority_comes_first(stage: Stage) -> None:
    producer, red = await stage.connect(), await stage.connect()
    await _send(producer, Q, "rrb")
    await _send(producer, Q, "br", priority="9")
    await red.subscribe(Q, ack="client-individual", selector=RED)
    assert [d.headers.get("priority", "4") for d in await red.next_messages(3)] == ["9", "4", "4"]


async def test_credit_is_for_what_it_takes_only(stage: Stage) -> None:
    red, producer = await stage.connect(), await stage.connect()
    await red.subscribe(Q, ack="client-individual", prefetch_count="1", selector=RED)
    await _send(producer, Q, "bbbrbrb")
    for wanted in ("3", "5"):
        (delivery,) = await red.next_messages(1)
        assert delivery.text == wanted
        await red.silence()
        await red.ack(delivery)
    assert stage.depth_count(Q) == 5


async def test_what_is_refused_comes_again_and_then_goes_to_the_dead_letters() -> None:
    async with Stage({Q: {"redeliveries_max": 1, "dead_letter": "/queue/dead"}}) as stage:
        red, producer = await stage.connect(), await stage.connect()
        await red.subscribe(Q, ack="client-individual", prefetch_count="1", selector=RED)
        await _send(producer, Q, "brr")
        first = await red.next_message()
        await red.nack(first)
        again = await red.next_message()
        assert (again.text, again.redelivered) == ("1", True)
        await red.nack(again)
        assert (await red.next_message()).text == "2"
        grave = await stage.connect()
        await grave.subscribe("/queue/dead")
        assert (await grave.next_message()).headers["dead-letter-reason"] == "redeliveries"


async def test_a_lost_connection_gives_back_to_those_who_take_it(stage: Stage) -> None:
    first, second, other, producer = [await stage.connect() for _ in range(4)]
    await first.subscribe(Q, ack="client-individual", selector=RED)
    await _send(producer, Q, "rbr")
    assert [d.text for d in await first.next_messages(2)] == ["0", "2"]
    await second.subscribe(Q, selector=RED)
    await other.subscribe(Q, selector="color = 'blue'")
    assert (await other.next_message()).text == "1"
    first.vanish()
    deliveries = await second.next_messages(2)
    assert [(d.text, d.redelivered) for d in deliveries] == [("0", True), ("2", True)]


async def test_transactions_settle_what_was_selected(stage: Stage) -> None:
    red, producer = await stage.connect(), await stage.connect()
    await red.subscribe(Q, ack="client-individual", selector=RED)
    await _send(producer, Q, "brbr")
    first, second = await red.next_messages(2)
    await red.frame("BEGIN", {"transaction": "t"})
    await red.ack(first, transaction="t")
    await red.ack(second, transaction="t")
    await red.request("COMMIT", {"transaction": "t"})
    assert stage.depth_count(Q) == 2


async def test_wildcards_select_in_each_that_matches(stage: Stage) -> None:
    red, producer = await stage.connect(), await stage.connect()
    await red.subscribe("/queue/orders.*", selector=RED)
    for name in ("eu", "us"):
        await _send(producer, f"{Q}.{name}", "br")
    assert await red.next_texts(2) == ["1", "1"]
    await red.silence()


async def test_groups_and_exclusive_consumers_keep_their_word(stage: Stage) -> None:
    red, anybody, producer = [await stage.connect() for _ in range(3)]
    await red.subscribe(Q, ack="client-individual", prefetch_count="1", selector=RED)
    await _send(producer, Q, "brr", group="g")
    held = await red.next_message()
    await anybody.subscribe(Q, ack="client-individual", prefetch_count="1")
    await anybody.silence()
    await red.ack(held)
    got = [d.text for client in (red, anybody) for d in await client.drain()]
    assert len(got) == 1, "the group is with one of them"


async def test_the_flow_map_says_how_much_was_passed_over(stage: Stage) -> None:
    red, producer = await stage.connect(), await stage.connect()
    await red.subscribe(Q, selector=RED)
    for _ in range(40):
        await producer.send_all(Q, range(100), color="blue")
    await producer.sync()
    await stage.settled_down()
    words = [node["facts_words"] for node in stage.broker.report()["resources"] if node["kind"] == "subscription"]
    assert any("selector: 4,000 skipped" in each for each in words), words


@pytest.mark.parametrize(
    ("headers", "column", "picture"),
    [
        ({"selector": "color = = 'red'"}, 9, "color = = 'red'\n        ^"),
        ({"selector": "color"[:5] + " >"}, 8, "color >\n       ^"),
        ({"selector": "x-type = 1", "browser": "true"}, 1, "x-type = 1\n^"),
        ({"selector": "(" * 8000}, 1, None),
    ],
)
async def test_a_wrong_selector_is_shown_where_it_is_wrong(
    stage: Stage, headers: dict[str, str], column: int, picture: str | None
) -> None:
    """The SUBSCRIBE has no effect: no destination, no subscription."""
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": Q, "id": "1", "receipt": "r", **headers})
    error = await client.expect_error("the selector is wrong at line 1")
    assert error.headers["code"] == "bad-selector"
    assert error.headers["receipt-id"] == "r"
    if picture is not None:
        assert f"column {column}:" in error.headers["message"]
        assert picture in error.body.decode()
    assert Q not in stage.broker.registry.destinations


async def test_an_empty_selector_takes_all(stage: Stage) -> None:
    client, producer = await stage.connect(), await stage.connect()
    await client.subscribe(Q, selector="")
    await _send(producer, Q, "rb")
    assert await client.next_texts(2) == ["0", "1"]


# ---------------------------------------------------------------------- browsing


async def test_a_browser_shows_what_it_selects(stage: Stage) -> None:
    producer, viewer = await stage.connect(), await stage.connect()
    await _send(producer, Q, "rb" * 100)
    await viewer.subscribe(Q, browser="true", prefetch_count="3", selector=RED)
    shown = await viewer.drain()
    assert [d.text for d in shown[:-1]] == [str(place) for place in range(0, 200, 2)]
    assert shown[-1].headers["browser"] == "end"
    assert stage.depth_count(Q) == 200


# ---------------------------------------------------------------------- topics


async def test_a_topic_gives_each_what_it_takes(stage: Stage) -> None:
    red, also_red, blue, all_of_it, producer = [await stage.connect() for _ in range(5)]
    for client, selector in ((red, RED), (also_red, RED), (blue, "color <> 'red'"), (all_of_it, "")):
        await client.subscribe(T, selector=selector)
    await _send(producer, T, "rb-br")
    assert await _texts(red) == ["0", "4"]
    assert await _texts(also_red) == ["0", "4"]
    assert await _texts(blue) == ["1", "3"]
    assert await _texts(all_of_it) == ["0", "1", "2", "3", "4"]
    assert stage.depth_count(T) == 0


async def test_what_is_not_taken_holds_nobody_up_and_is_no_lag() -> None:
    """Neither with credit nor without: the topic keeps nothing for it, and the sender never waits."""
    async with Stage({T: {"memory_bytes": 256 * 1024, "lead_bytes": 64 * 1024}}) as stage:
        red, producer = await stage.connect(), await stage.connect()
        await red.subscribe(T, ack="client-individual", prefetch_count="1", selector=RED)
        await producer.send_all(T, ["x" * 1000] * 2000, color="blue")
        await producer.sync()
        assert stage.depth_count(T) == 0
        await _send(producer, T, "r")
        held = await red.next_message()
        await producer.send_all(T, ["x" * 1000] * 2000, color="blue")
        await producer.sync()
        assert 0 < stage.depth_count(T) <= 1 + PINNED_COUNT, "what it holds, and a little behind it"
        await red.nack(held)
        again = await red.next_message()
        assert (again.text, again.redelivered) == ("0", True), "it was not lost"
        await red.ack(again)
        await stage.settled_down()
        assert stage.depth_count(T) == 0
        await _send(producer, T, "-r")
        assert (await red.next_message()).headers.get("dropped-count") is None


async def test_topics_with_groups_of_readers_at_one_place_share_what_is_made(stage: Stage) -> None:
    """Many subscribers with few selectors, in all versions; each gets exactly its own."""
    clients = [await stage.connect(version) for version in ("1.0", "1.1", "1.2") for _ in range(3)]
    for place, client in enumerate(clients):
        await client.subscribe(T, selector=(RED, "color = 'blue'", "")[place % 3])
    producer = await stage.connect()
    await producer.send_all(T, range(300), color="red")
    await producer.send_all(T, range(300), color="blue")
    await producer.sync()
    for place, client in enumerate(clients):
        assert len(await client.drain()) == (300, 300, 600)[place % 3]


# ---------------------------------------------------------------------- durable subscriptions


async def _durable(stage: Stage, **headers: str) -> Client:
    client = await stage.connect(**{"client-id": "shop"})
    await client.subscribe(T, ack="client-individual", **{"activemq.subscriptionName": "audit"}, **headers)
    return client


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_a_durable_subscription_keeps_its_selector_over_a_restart(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        await _durable(stage, selector=RED)
        producer = await stage.connect()
        for place, color in enumerate(("red", "blue", "red")):
            await producer.sent(T, str(place), persistent="true", color=color)
        await trio.sleep(2)
    async with lives.life() as stage:
        assert [durable.selector for durable in stage.broker.registry.durables] == [RED]
        reader = await _durable(stage, selector=f" {RED} ")
        assert await _texts(reader) == ["0", "2"]
        await reader.disconnect()
        for other in ({"selector": "color = 'blue'"}, {}):
            client = await stage.connect(**{"client-id": "shop"})
            name = {"activemq.subscriptionName": "audit"}
            await client.frame("SUBSCRIBE", {"destination": T, "id": "1", **name, **other})
            error = await client.expect_error("was made with the selector")
            assert error.headers["code"] == "other-selector"
        reader = await _durable(stage, selector=RED)
        assert await _texts(reader) == ["0", "2"], "as before"


async def test_a_durable_subscription_without_a_selector_does_not_get_one(stage: Stage) -> None:
    first = await _durable(stage)
    await first.disconnect()
    client = await stage.connect(**{"client-id": "shop"})
    name = {"activemq.subscriptionName": "audit"}
    await client.frame("SUBSCRIBE", {"destination": T, "id": "1", "selector": RED, **name})
    await client.expect_error("was made with no selector")


async def test_nothing_is_kept_for_a_durable_subscription_that_it_does_not_take() -> None:
    lives = Lives()
    async with lives.life() as stage:
        reader = await _durable(stage, selector=RED)
        await reader.disconnect()
        producer = await stage.connect()
        await _send(producer, T, "b" * 50, persistent="true")
        await stage.settled_down()
        assert stage.depth_count(T) == 0
        await _send(producer, T, "rb", persistent="true")
        reader = await _durable(stage, selector=RED)
        assert await _texts(reader) == ["0"]


# ---------------------------------------------------------------------- logs


@pytest.mark.parametrize("ack", ["auto", "client-individual"])
async def test_a_reader_of_a_log_gets_what_it_takes(ack: str) -> None:
    async with LogStage() as stage:
        producer, red = await stage.connect(), await stage.connect()
        await _send(producer, LOG, "rb" * 50)
        await red.subscribe(LOG, ack=ack, selector=RED, prefetch_count="5", **{"from": "earliest"})
        got: list[str] = []
        while deliveries := await red.drain(0.1):
            got += [d.text for d in deliveries]
            for delivery in deliveries if ack != "auto" else ():
                await red.ack(delivery)
        assert got == [str(place) for place in range(0, 100, 2)]
        await _send(producer, LOG, "br")
        assert (await red.next_message()).headers["index"] == "101"


async def test_in_a_group_what_is_not_taken_is_settled() -> None:
    async with LogStage() as stage:
        producer = await stage.connect()
        consumers = [await stage.connect() for _ in range(2)]
        await _send(producer, LOG, "bbrbrb")
        for consumer in consumers:
            await consumer.subscribe(
                LOG, group="g", ack="client-individual", selector=RED, prefetch_count="1", **{"from": "earliest"}
            )
        held = [(consumer, delivery) for consumer in consumers for delivery in await consumer.drain()]
        assert sorted(d.text for _c, d in held) == ["2", "4"]
        assert stage.group().front == 2
        consumer, delivery = held[0]
        await consumer.nack(delivery)
        again = [(c, d) for c in consumers for d in await c.drain()]
        assert [d.redelivered for _c, d in again] == [True]
        for consumer, delivery in [held[1], *again]:
            await consumer.ack(delivery)
        assert stage.group().front == 6
        assert stage.group().lag_count == 0


async def test_the_consumers_of_a_group_have_one_selector() -> None:
    async with LogStage() as stage:
        first, other = await stage.connect(), await stage.connect()
        await first.subscribe(LOG, group="g", selector=RED)
        await other.frame("SUBSCRIBE", {"destination": LOG, "id": "1", "group": "g"})
        error = await other.expect_error("have the selector")
        assert error.headers["code"] == "other-selector"
        await first.disconnect()
        third = await stage.connect()
        await third.subscribe(LOG, group="g", selector="color = 'blue'")


async def test_a_large_backlog_on_disk_is_searched_while_others_are_served() -> None:
    lives = Lives({Q: {"memory_bytes": 256 * 1024}})
    async with lives.life() as stage:
        producer, red, other = [await stage.connect() for _ in range(3)]
        for first in range(0, 6000, 1000):
            await producer.send_all(Q, range(first, first + 1000), color="blue")
        await producer.sent(Q, "needle", color="red")
        assert stage.reported(Q)["outside_count"] > 2
        await red.subscribe(Q, selector=RED)
        await other.subscribe("/queue/other")
        await producer.sent("/queue/other", "quick")
        assert (await other.next_message()).text == "quick"
        assert (await red.next_message()).text == "needle"
        assert stage.depth_count(Q) == 6000
