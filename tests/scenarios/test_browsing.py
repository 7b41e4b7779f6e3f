"""`browser:true`: a client looks at a queue, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.store.engine import PUT
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client, Delivery
from tests.scenarios.stage import Stage
from tests.store.faulty import Failure, FaultyEngine

Q = "/queue/q"


async def browse(client: Client, destination: str = Q, id: str = "b", **headers: str) -> list[Delivery]:
    """Look at all of a queue, end marker included, and unsubscribe."""
    await client.subscribe(destination, id=id, browser="true", **headers)
    shown = [await client.next_message()]
    while "browser" not in shown[-1].headers:
        shown.append(await client.next_message())
    await client.unsubscribe(id)
    return shown


async def texts_in(client: Client, **headers: str) -> list[str]:
    """The bodies that a browser shows, without the end marker."""
    return [delivery.text for delivery in (await browse(client, **headers))[:-1]]


# ---------------------------------------------------------------------- what a client sees


async def test_a_browser_sees_all_and_then_the_end_marker(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.send(Q, "one", note="a\\b")
    await client.sent(Q, "two")
    one, two, end = await browse(client)
    assert (one.text, two.text) == ("one", "two")
    assert one.headers["note"] == "a\\b"
    assert one.headers["subscription"] == "b"
    assert "browser" not in one.headers
    assert end.body == b""
    assert end.headers["browser"] == "end"
    assert (end.headers["destination"], end.headers["subscription"]) == (Q, "b")
    assert len({one.headers["message-id"], two.headers["message-id"], end.headers["message-id"]}) == 3
    assert stage.depth_count(Q) == 2


async def test_an_empty_queue_gives_the_end_marker_at_once(stage: Stage) -> None:
    """One that is not there is not made."""
    client = await stage.connect()
    assert await texts_in(client) == []
    assert Q not in stage.broker.registry.destinations


async def test_nothing_comes_behind_the_end_marker(stage: Stage) -> None:
    """And the subscription is live until its UNSUBSCRIBE: its id can't be used a second time."""
    client = await stage.connect()
    await client.sent(Q, "one")
    await client.subscribe(Q, id="b", browser="true")
    assert [delivery.text for delivery in await client.next_messages(2)] == ["one", ""]
    await client.sent(Q, "two")
    await client.silence()
    await client.frame("SUBSCRIBE", {"destination": Q, "id": "b"})
    await client.expect_error("b")


async def test_without_a_subscription_id_it_ends_by_its_destination(stage: Stage) -> None:
    """1.0."""
    client = await stage.connect("1.0")
    await client.sent(Q, "one")
    await client.request("SUBSCRIBE", {"destination": Q, "browser": "true"})
    one, end = await client.next_messages(2)
    assert one.text == "one"
    assert end.headers["browser"] == "end"
    assert "subscription" not in end.headers
    await client.request("UNSUBSCRIBE", {"destination": Q})


async def test_what_consumers_hold_is_shown_too(stage: Stage) -> None:
    """Also what was given back; a browser says nothing of redeliveries."""
    consumer, viewer = await stage.connect(), await stage.connect()
    await consumer.send_all(Q, range(5))
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="3")
    held = await consumer.next_messages(3)
    await consumer.ack(held[1])
    await consumer.nack(held[0])
    shown = await browse(viewer)
    assert [delivery.text for delivery in shown] == ["0", "2", "3", "4", ""]
    assert not any(delivery.redelivered for delivery in shown)


async def test_higher_priorities_come_first(stage: Stage) -> None:
    client = await stage.connect()
    for priority in "4909":
        await client.sent(Q, priority, priority=priority)
    assert await texts_in(client) == ["9", "9", "4", "0"]


async def test_what_waits_for_its_time_is_shown(stage: Stage) -> None:
    """Delayed messages are in the queue, in their place; and so they stay."""
    client = await stage.connect()
    await client.sent(Q, "later", delay="60000")
    await client.sent(Q, "now")
    assert await texts_in(client) == ["later", "now"]
    await client.subscribe(Q, ack="client")
    assert (await client.next_message()).text == "now"
    assert await texts_in(client) == ["later", "now"]
    await trio.sleep(60)
    assert await client.next_texts(1) == ["later"]


async def test_browsing_changes_nothing_for_consumers(stage: Stage) -> None:
    """They get all of it in order, as new, however often somebody has looked."""
    client = await stage.connect()
    await client.send_all(Q, range(2000))
    await client.sync()
    for _ in range(3):
        assert await texts_in(client) == [str(n) for n in range(2000)]
    await client.subscribe(Q)
    got = await client.next_messages(2000)
    assert [delivery.text for delivery in got] == [str(n) for n in range(2000)]
    assert not any(delivery.redelivered for delivery in got)


async def test_a_browser_and_a_consumer_on_one_connection(stage: Stage) -> None:
    """The consumer goes on while the browser looks, and each gets its own."""
    client = await stage.connect()
    await client.send_all(Q, range(100))
    await client.subscribe(Q, id="b", browser="true")
    await client.subscribe(Q, id="c")
    got = await client.drain()
    consumed = [delivery.text for delivery in got if delivery.headers["subscription"] == "c"]
    shown = [delivery for delivery in got if delivery.headers["subscription"] == "b"]
    assert consumed == [str(n) for n in range(100)]
    assert shown[-1].headers["browser"] == "end"


async def test_a_producer_can_not_forge_the_end(stage: Stage) -> None:
    client = await stage.connect()
    await client.sent(Q, "one", browser="end")
    one, end = await browse(client)
    assert one.text == "one"
    assert end.headers["browser"] == "end"


# ---------------------------------------------------------------------- acknowledgements


@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_acks_of_what_was_shown_are_ignored(stage: Stage, later_version: Version, ack: str) -> None:
    """NACKs too. More is shown than the prefetch, though nothing could be acknowledged."""
    client = await stage.connect(later_version)
    await client.send_all(Q, range(5))
    await client.subscribe(Q, id="b", ack=ack, browser="true", prefetch_count="1")
    shown = await client.next_messages(6)
    await client.ack(shown[0])
    await client.nack(shown[1])
    await client.ack(shown[5])
    await client.unsubscribe("b")
    await client.ack(shown[2])
    assert stage.depth_count(Q) == 5
    assert await texts_in(client) == ["0", "1", "2", "3", "4"]


async def test_acks_in_a_transaction_are_ignored_too(stage: Stage) -> None:
    client = await stage.connect()
    await client.sent(Q, "one")
    await client.subscribe(Q, id="b", ack="client-individual", browser="true")
    one, _end = await client.next_messages(2)
    await client.frame("BEGIN", {"transaction": "t"})
    await client.ack(one, transaction="t")
    await client.request("COMMIT", {"transaction": "t"})
    assert await texts_in(client, id="again") == ["one"]


# ---------------------------------------------------------------------- flow and endings


async def test_a_viewer_that_does_not_read_holds_nobody_up() -> None:
    """Its own buffer is full; consumers drain the queue all the same, and it goes on with what is left."""
    async with Stage(outbound_bytes_max=2000) as stage:
        viewer, consumer = await stage.connect(), await stage.connect()
        body = "x" * 1000
        await consumer.send_all(Q, [f"{n} {body}" for n in range(500)])
        await consumer.sync()
        await viewer.frame("SUBSCRIBE", {"destination": Q, "id": "b", "browser": "true"})
        await stage.settled_down()
        assert any("browser" in chain for chain in stage.chains())
        await consumer.subscribe(Q, ack="client", prefetch_count="0")
        got = await consumer.next_messages(500)
        await consumer.ack(got[450])
        shown = await viewer.drain()
        numbers = [int(delivery.text.split()[0]) for delivery in shown[:-1]]
        assert numbers == sorted(numbers)
        assert len(numbers) < 450
        assert numbers[-49:] == list(range(451, 500))
        assert shown[-1].headers["browser"] == "end"


async def test_unsubscribe_ends_it_early() -> None:
    async with Stage(outbound_bytes_max=2000) as stage:
        client = await stage.connect()
        await client.send_all(Q, ["x" * 1000] * 500)
        await client.sync()
        await client.frame("SUBSCRIBE", {"destination": Q, "id": "b", "browser": "true"})
        await client.next_messages(2)
        await client.unsubscribe("b")
        shown = await client.drain()
        assert len(shown) < 400
        assert not any("browser" in delivery.headers for delivery in shown)


@pytest.mark.parametrize("politely", [True, False])
async def test_a_connection_may_end_in_the_midst_of_it(politely: bool) -> None:
    async with Stage(outbound_bytes_max=2000) as stage:
        client = await stage.connect()
        await client.send_all(Q, ["x" * 1000] * 500)
        await client.sync()
        await client.frame("SUBSCRIBE", {"destination": Q, "id": "b", "browser": "true"})
        await client.next_messages(2)
        if politely:
            await client.disconnect()
        else:
            client.vanish()
        assert stage.depth_count(Q) == 500


async def test_browsers_count_as_subscriptions() -> None:
    async with Stage(subscriptions_max=1) as stage:
        client = await stage.connect()
        await client.subscribe(Q, id="b", browser="true")
        await client.frame("SUBSCRIBE", {"destination": Q, "id": "c"})
        await client.expect_error("subscriptions")


@pytest.mark.parametrize(
    ("destination", "browser", "about"),
    [
        ("/topic/t", "true", "is a topic"),
        ("/queue/*", "true", "is a wildcard"),
        ("/queue/a,/queue/b", "true", "is several destinations"),
        (Q, "yes", "browser 'yes'"),
    ],
)
async def test_what_can_not_be_browsed_is_refused_in_words(
    stage: Stage, destination: str, browser: str, about: str
) -> None:
    """A header that is not understood must not lead to a subscription that consumes."""
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": destination, "id": "b", "browser": browser})
    error = await client.expect_error(about)
    assert b"browser:true" in error.body


async def test_browser_false_consumes(stage: Stage) -> None:
    client = await stage.connect()
    await client.sent(Q, "one")
    await client.subscribe(Q, browser="false")
    assert (await client.next_message()).text == "one"
    await client.sync()
    assert stage.depth_count(Q) == 0


# ---------------------------------------------------------------------- what is not in memory


async def test_a_paged_queue_is_shown_and_stays_on_disk() -> None:
    """In order, across what is in memory and what is not; the queue takes no more memory than before."""
    async with Stage({Q: {"memory_bytes": 100_000}}, engine=MemoryEngine()) as stage:
        client = await stage.connect()
        for start in range(0, 3000, 100):
            await client.send_all(Q, [f"{n} {'x' * 100}" for n in range(start, start + 100)])
            await client.sync()
        [queue] = stage.partitions(Q)
        before = queue.statistics()
        assert before.outside_count > 10
        assert [int(text.split()[0]) for text in await texts_in(client)] == list(range(3000))
        assert queue.pager is not None
        assert queue.pager.paged_in_count == 0
        after = queue.statistics()
        assert (after.outside_count, after.memory_bytes) == (before.outside_count, before.memory_bytes)


async def test_what_an_earlier_run_left_can_be_browsed() -> None:
    """Before anybody has consumed any of it; those that consumers had seen, too."""
    engine = MemoryEngine()
    contents: list[tuple[bytes, bytes]] = []
    async with Stage(engine=engine) as stage:
        client = await stage.connect()
        await client.send_all(Q, range(10), persistent="true")
        await client.sent(Q, "last", persistent="true")
        await client.subscribe(Q, ack="client", prefetch_count="5")
        await client.ack((await client.next_messages(5))[1])
        contents = engine.contents()
    again = MemoryEngine()
    again.write([(PUT, key, value) for key, value in contents], sync=True)
    async with Stage(engine=again) as stage:
        client = await stage.connect()
        expected = [*map(str, range(2, 10)), "last"]
        assert await texts_in(client) == expected
        [queue] = stage.partitions(Q)
        assert queue.statistics().outside_count == 1
        await client.subscribe(Q)
        assert await client.next_texts(9) == expected


async def fill_beyond_memory(stage: Stage, client: Client) -> None:
    """2,000 messages; most of them on disk only."""
    for start in range(0, 2000, 100):
        await client.send_all(Q, [f"{n} {'x' * 100}" for n in range(start, start + 100)])
        await client.sync()
    assert stage.partitions(Q)[0].statistics().outside_count > 5


async def test_a_browser_waits_for_a_disk_that_can_not_be_read() -> None:
    """It goes on when the disk does; other connections don't notice."""
    engine = FaultyEngine(Random(1))
    async with Stage({Q: {"memory_bytes": 100_000}}, engine=engine) as stage:
        viewer, client = await stage.connect(), await stage.connect()
        await fill_beyond_memory(stage, client)
        engine.fail_next(Failure.READ, 3)
        await viewer.subscribe(Q, id="b", browser="true")
        await viewer.drain()
        await client.sync()
        await trio.sleep(30)
        shown = await viewer.drain()
        assert shown[-1].headers["browser"] == "end"
        assert shown[-2].text.startswith("1999 ")


async def test_a_queue_that_is_deleted_while_the_disk_can_not_be_read_is_at_its_end() -> None:
    engine = FaultyEngine(Random(1))
    async with Stage({Q: {"memory_bytes": 100_000}}, engine=engine) as stage:
        viewer, client = await stage.connect(), await stage.connect()
        await fill_beyond_memory(stage, client)
        engine.fail_at_rate(Failure.READ, 1)
        await viewer.subscribe(Q, id="b", browser="true")
        await viewer.drain()
        stage.broker.registry.delete(stage.destination(Q), "a test")
        await trio.sleep(30)
        assert (await viewer.drain())[-1].headers["browser"] == "end"


async def test_large_bodies_are_shown_and_stay(tmp_path: Path) -> None:
    """Those of a file, in order with the others, while the file is needed by nobody but the browser in the end."""
    async with Stage(large_folder=tmp_path, large_body_bytes=1000, outbound_bytes_max=5000) as stage:
        client, viewer = await stage.connect(), await stage.connect()
        bodies = ["small", "L" * 30_000, "M" * 40_000, "small too", "N" * 20_000]
        for body in bodies:
            await client.sent(Q, body)
        assert await texts_in(viewer) == bodies
        await viewer.frame("SUBSCRIBE", {"destination": Q, "id": "b", "browser": "true"})
        assert (await viewer.next_message()).text == "small"
        await client.subscribe(Q)
        assert await client.next_texts(5) == bodies
        shown = [delivery.text for delivery in await viewer.drain()]
        assert shown[-1] == ""
        assert set(shown[:-1]) <= set(bodies)
