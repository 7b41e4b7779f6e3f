"""Topics of two hubs: one copy over the link, whoever owns the topic; order; hubs that lag, are cut off, or are old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from sluiceway.broker import Broker
from sluiceway.cluster.topics import CopiesCount
from sluiceway.config import DestinationPolicy
from sluiceway.protocols.link.flow import Flow, FlowUser
from sluiceway.protocols.link.records import LinkFault
from sluiceway.protocols.stomp.relaying import copies
from sluiceway.queues.topic import Topic
from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.client import Client

TOPICS = ("/topic/a.x", "/topic/b.x")
"""Of the hub `a`, to which the publishers come, and of the hub `b`."""


def copied(hub: Broker, to: str) -> CopiesCount:
    """What a hub has sent to another one for its subscribers."""
    assert hub.links is not None
    return hub.links.topics.copies.get(to, CopiesCount())


def settled(hubs: TwoHubs) -> bool:
    """Whether both hubs know everything of each other."""
    return all(
        hub.links is not None and hub.links.topics.book.is_seen_by(peer) and hub.links.topics.book.is_complete()
        for hub, peer in ((hubs.a, "b"), (hubs.b, "a"))
    )


async def agreed(hubs: TwoHubs) -> None:
    """Wait until both hubs know everything of each other."""
    with trio.fail_after(20):
        while not settled(hubs):  # noqa: ASYNC110 - no event of one task
            await trio.sleep(0.01)
    await trio.testing.wait_all_tasks_blocked()


async def subscribers(hubs: TwoHubs, name: str, count: int, **headers: str) -> dict[str, list[Client]]:
    """So many subscribers at each hub."""
    made: dict[str, list[Client]] = {}
    for hub in ("a", "b"):
        made[hub] = [await hubs.connect(hub) for _ in range(count)]
        for client in made[hub]:
            await client.subscribe(name, **headers)
    return made


def texts(count: int) -> list[str]:
    """Bodies of messages."""
    return [str(number) for number in range(count)]


@pytest.mark.parametrize("name", TOPICS)
async def test_one_copy_of_a_message_goes_over_the_link(name: str) -> None:
    """Whoever owns the topic, and however many subscribers the other hub has."""
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 5)
        publisher = await hubs.connect("a")
        await publisher.send_all(name, range(300))
        await publisher.sent(name, "300")
        for client in (*found["a"], *found["b"]):
            assert await client.next_texts(301) == texts(301)
        assert copied(hubs.a, "b").messages_count == 301
        assert copied(hubs.b, "a").messages_count == 0
        for client in (*found["a"], *found["b"]):
            await client.silence(0.1)


@pytest.mark.parametrize("name", TOPICS)
async def test_what_nobody_hears_stays_at_the_hub_of_its_publisher(name: str) -> None:
    async with TwoHubs() as hubs:
        await agreed(hubs)
        publisher = await hubs.connect("a")
        await publisher.send_all(name, range(10))
        await publisher.sent(name)
        await publisher.send_all(name, range(10))
        await publisher.sync()
        (topic,) = hubs.a.registry.destinations[name].queues
        assert isinstance(topic, Topic)
        assert topic.unheard_count == 21
        assert name not in hubs.b.registry.destinations
        assert hubs.a.links is not None
        assert [each["flows_count"] for each in hubs.a.links.facts()] == [0]


@pytest.mark.parametrize("name", TOPICS)
async def test_a_receipt_of_a_subscribe_means_that_all_hubs_know(name: str) -> None:
    """A message sent after it, at any hub, is delivered; one sent after that of an UNSUBSCRIBE is not."""
    async with TwoHubs() as hubs:
        await agreed(hubs)
        publisher, subscriber = await hubs.connect("a"), await hubs.connect("b")
        await publisher.sent(name, "before")
        for number in range(5):
            await subscriber.subscribe(name)
            await publisher.send(name, str(number))
            assert await subscriber.next_texts(1) == [str(number)]
            await subscriber.unsubscribe()
            await publisher.sent(name, "between")
        await subscriber.silence()
        assert hubs.b.links is not None
        assert not hubs.b.links.topics.book.own(name)


async def test_a_receipt_of_a_subscribe_waits_a_second_for_a_hub_that_hangs() -> None:
    """And the message of another client comes, once. The receipt of a new durable subscription waits until the link is
    given up: nothing that is confirmed is to miss it.
    """
    async with TwoHubs() as hubs:
        await agreed(hubs)
        subscriber, publisher = await hubs.connect("a"), await hubs.connect("a")
        hubs.network.mute("b")
        start = trio.current_time()
        await subscriber.subscribe("/topic/a.x")
        assert 0.9 < trio.current_time() - start < 1.5
        await publisher.send("/topic/a.x", "here")
        assert await subscriber.next_texts(1) == ["here"]
        start = trio.current_time()
        await publisher.subscribe("/topic/a.y", id="d", durable="true")
        assert trio.current_time() - start > 5
        await subscriber.silence()


@pytest.mark.parametrize("name", TOPICS)
async def test_durable_subscriptions_stay_with_the_owner(name: str) -> None:
    """What is confirmed is kept for them, and all subscribers have the same order."""
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 1)
        publisher = await hubs.connect("a")
        await publisher.sent(name, "early")
        durable = await hubs.connect("b", client_id="reports")
        await durable.subscribe(name, durable="true")
        for number in range(20):
            await publisher.sent(name, f"{number}")
        assert await durable.next_texts(20) == texts(20)
        await durable.disconnect()
        await publisher.send_all(name, range(20, 40))
        await publisher.sync()
        durable = await hubs.connect("a", client_id="reports")
        await durable.subscribe(name, durable="true")
        assert await durable.next_texts(20) == texts(40)[20:]
        for client in (*found["a"], *found["b"]):
            assert await client.next_texts(41) == ["early", *texts(40)]
        await durable.unsubscribe()
        await durable.silence()


@pytest.mark.parametrize("name", TOPICS)
async def test_wildcards_and_selectors(name: str) -> None:
    async with TwoHubs() as hubs:
        await agreed(hubs)
        clients = {hub: await hubs.connect(hub) for hub in ("a", "b")}
        for client in clients.values():
            await client.subscribe("/topic/>", id="all")
            await client.subscribe(name, id="red", selector="colour = 'red'")
        publisher = await hubs.connect("a")
        await publisher.send(name, "1", colour="red")
        await publisher.send(name, "2", colour="blue")
        await publisher.send("/topic/c/deep", "3")
        await publisher.sync()
        for client in clients.values():
            found = await client.next_messages(4)
            assert [each.text for each in found if each.headers["subscription"] == "all"] == ["1", "2", "3"]
            assert [each.text for each in found if each.headers["subscription"] == "red"] == ["1"]
            await client.silence(0.1)


@pytest.mark.parametrize("name", TOPICS)
async def test_a_transaction_reaches_all_hubs_when_it_is_committed(name: str) -> None:
    """What the client sends behind the COMMIT stays behind; an aborted one reaches nobody."""
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 1)
        publisher = await hubs.connect("a")
        frames = [publisher.encode("BEGIN", {"transaction": "t"}), publisher.encode("BEGIN", {"transaction": "gone"})]
        frames += [publisher.encode("SEND", {"destination": name, "transaction": "t"}, f"{n}") for n in range(5)]
        frames += [publisher.encode("SEND", {"destination": name, "transaction": "gone"}, "lost")]
        await publisher.send_raw(b"".join(frames))
        await publisher.sync()
        for client in (*found["a"], *found["b"]):
            await client.silence(0.1)
        frames = [publisher.encode("ABORT", {"transaction": "gone"}), publisher.encode("COMMIT", {"transaction": "t"})]
        frames += [publisher.encode("SEND", {"destination": name}, f"{n}") for n in range(5, 10)]
        await publisher.send_raw(b"".join(frames))
        await publisher.disconnect()
        for client in (*found["a"], *found["b"]):
            assert await client.next_texts(10) == texts(10)
            await client.silence(0.1)


async def test_composites_reach_each_destination_once() -> None:
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, "/topic/a.x", 1)
        others = await subscribers(hubs, "/topic/b.x", 1)
        reader = await hubs.connect("a")
        await reader.subscribe("/queue/b.x")
        publisher = await hubs.connect("a")
        await publisher.sent("/topic/a.x,/topic/b.x,/queue/b.x", "to three")
        for client in (*found["a"], *found["b"], *others["a"], *others["b"], reader):
            assert await client.next_texts(1) == ["to three"]
            await client.silence(0.1)


@pytest.mark.parametrize("name", TOPICS)
async def test_a_large_body_reaches_all_hubs(name: str, tmp_path: Any) -> None:
    async with TwoHubs(tmp_path, large_body_bytes=10_000) as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 1)
        publisher = await hubs.connect("a")
        await publisher.send(name, "before")
        await publisher.sent(name, "x" * 100_000)
        await publisher.send(name, "behind")
        for client in (*found["a"], *found["b"]):
            assert [len(text) for text in await client.next_texts(3)] == [6, 100_000, 6]


async def test_total_order_goes_by_way_of_the_owner() -> None:
    """All subscribers get the messages of all publishers in one order, wildcards included."""
    policy = DestinationPolicy("/topic/b.>", {"order": "total"})
    async with TwoHubs(destinations=[policy]) as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, "/topic/b.x", 1)
        wild = await subscribers(hubs, "/topic/>", 1)
        publishers = [await hubs.connect("a"), await hubs.connect("b")]
        for number in range(10):
            for place, publisher in enumerate(publishers):
                await publisher.send("/topic/b.x", f"{place}.{number}")
        await publishers[0].send("/topic/a.x", "direct")
        for publisher in publishers:
            await publisher.sync()
        orders = [await client.next_texts(20) for client in (*found["a"], *found["b"])]
        assert orders[0] == orders[1]
        for client in (*wild["a"], *wild["b"]):
            got = await client.next_texts(21)
            assert [text for text in got if text != "direct"] == orders[0]
            await client.silence(0.1)
        assert copied(hubs.a, "b").messages_count == 1


def misses(found: Sequence[Any]) -> int:
    """Messages that a subscriber was told to have missed."""
    return sum(int(each.headers.get("dropped-count", 0)) for each in found)


@pytest.mark.parametrize("name", TOPICS)
async def test_a_cut_link_costs_messages_that_are_told(name: str) -> None:
    """Subscribers of the publisher's hub get all. Those of the other one are told at least what they lack, get nothing
    twice, and go on when the link is back.
    """
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 1)
        publisher = await hubs.connect("a")
        await publisher.send_all(name, range(10))
        await found["b"][0].next_messages(10)
        await trio.testing.wait_all_tasks_blocked()  # the hub of the publisher hears that they have come
        hubs.network.is_down = True
        hubs.network.cut()
        await trio.testing.wait_all_tasks_blocked()
        await publisher.send_all(name, range(10, 20))
        await trio.sleep(1)
        hubs.network.is_down = False
        await hubs.linked()
        await agreed(hubs)
        await publisher.send_all(name, range(20, 30))
        assert await found["a"][0].next_texts(30) == texts(30)
        got = await found["b"][0].drain()
        if copied(hubs.a, "b").missed_count:
            assert [each.text for each in got] == texts(30)[20:]
            assert misses(got) == 10 == copied(hubs.a, "b").missed_count
        else:
            assert [each.text for each in got] == texts(30)[10:]


@pytest.mark.parametrize("name", TOPICS)
async def test_nobody_waits_for_a_hub_that_lags(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses its oldest and is told how many; what waits for it is bounded."""
    monkeypatch.setattr(copies, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(copies, "LAG_BYTES", 50_000)
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 1)
        publisher = await hubs.connect("a")
        hubs.network.mute("a")
        body = "x" * 1000
        for number in range(300):
            await publisher.sent(name, f"{number} {body}")
        assert len(await found["a"][0].next_messages(300)) == 300
        held = [each for each in hubs.a.manager.resources if "copies to other hubs" in each.name]
        assert len(held) == 1
        hubs.network.cut()
        await hubs.linked()
        await agreed(hubs)
        await publisher.sent(name, "last")
        got = await found["b"][0].drain()
        assert got[-1].text == "last"
        assert misses(got) == 300
        assert copied(hubs.a, "b").missed_count == 300


async def test_a_publisher_is_paced_by_the_only_hub_that_hears_it() -> None:
    """Without a faster subscriber nothing is lost, as with one broker."""
    policy = DestinationPolicy("/topic/>", {"memory_bytes": 100_000, "lead_bytes": 50_000})
    async with TwoHubs(destinations=[policy], stash_bytes_max=100_000) as hubs:
        await agreed(hubs)
        slow, publisher = await hubs.connect("b"), await hubs.connect("a")
        await slow.subscribe("/topic/a.x", ack="client-individual", prefetch_count="10")
        count = 3000
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for number in range(count):
                    frame = publisher.encode("SEND", {"destination": "/topic/a.x"}, f"{number} {'x' * 1000}")
                    await publisher.stream.send_all(frame)

            nursery.start_soon(publish)
            await trio.sleep(5)
            assert copied(hubs.a, "b").messages_count < count
            for number in range(count):
                delivery = await slow.next_message()
                assert delivery.text.split()[0] == str(number)
                assert "dropped-count" not in delivery.headers
                await slow.frame("ACK", slow.naming(delivery))


def start_again(hub: Broker, run: int) -> None:
    """Let a hub seem to be another run to the others, when links are made anew."""
    assert hub.links is not None
    hub.links._run_id = f"{run:x}"
    hub.links.topics.book.run = run


@pytest.mark.parametrize("name", TOPICS)
async def test_with_a_hub_of_an_earlier_version_topics_go_by_way_of_their_owner(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything works; when that hub is one of this version subscriptions move."""
    async with TwoHubs() as hubs:
        await agreed(hubs)
        found = await subscribers(hubs, name, 1)
        publisher = await hubs.connect("a")
        for hub in (hubs.a, hubs.b):
            assert hub.links is not None

            def refuse(_hub: str, _flow: Flow) -> FlowUser:
                raise LinkFault("the peer opened a flow with an invalid record")

            monkeypatch.setattr(hub.links.topics, "opened", refuse)
            start_again(hub, 1)
        hubs.network.cut()
        await hubs.linked()
        await trio.sleep(1)
        assert not hubs.a.links.topics.is_on
        await publisher.sent(name, "by way of the owner")
        for client in (*found["a"], *found["b"]):
            assert (await client.drain())[-1].text == "by way of the owner"
        assert copied(hubs.a, "b").messages_count == 0
        monkeypatch.undo()
        for hub in (hubs.a, hubs.b):
            start_again(hub, 2)
        hubs.network.cut()
        await hubs.linked()
        await agreed(hubs)
        await trio.sleep(1)
        assert hubs.a.links.topics.is_on
        await publisher.sent(name, "direct")
        for client in (*found["a"], *found["b"]):
            assert [each.text for each in await client.drain()] == ["direct"]
        assert copied(hubs.a, "b").messages_count == 1


async def test_a_hub_that_lies_about_interest_costs_its_link() -> None:
    async with TwoHubs() as hubs:
        await agreed(hubs)
        assert hubs.a.links is not None
        outward = hubs.a.links.topics._outward["b"]
        outward.flow.send_frames(b"\0\0\0\1\xff")
        await trio.sleep(1)
        await hubs.linked()
        await agreed(hubs)
        assert hubs.a.links.topics._outward["b"] is not outward
