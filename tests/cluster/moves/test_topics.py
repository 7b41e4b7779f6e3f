"""Topics while hubs join, die and hand shards over: subscribers stay, wherever the topics are at home."""

from __future__ import annotations

import pytest
import trio

from sluiceway.queues.names import parse
from sluiceway.queues.registry import ShardAwayError
from tests.cluster.moves.moving_hubs import SHARDS, MovingHubs, names
from tests.scenarios.client import Client

TOPICS = names("/topic/t")


def copies_count(hubs: MovingHubs, hub: str, to: str) -> int:
    """Messages that a hub has sent to another one for its subscribers."""
    links = hubs.running[hub].broker.links
    assert links is not None
    found = links.topics.copies.get(to)
    return 0 if found is None else found.messages_count


async def agreed(hubs: MovingHubs) -> None:
    """Wait until all hubs know what the others are interested in."""

    def is_so() -> bool:
        for name, run in hubs.running.items():
            links = run.broker.links
            assert links is not None
            book = links.topics.book
            if not book.is_complete() or not all(book.is_seen_by(peer) for peer in hubs.running.keys() - {name}):
                return False
        return True

    await hubs.until(is_so)


async def subscriber(hubs: MovingHubs, hub: str) -> Client:
    """A client of a hub that has all topics."""
    client = await hubs.connect(hub)
    for topic in TOPICS:
        await client.subscribe(topic, id=topic)
    return client


async def to_all(publisher: Client, text: str) -> None:
    """A message to each topic."""
    for topic in TOPICS:
        await publisher.sent(topic, f"{text} {topic}")


async def has_all(clients: list[Client], text: str) -> None:
    """Each client gets that message of each topic, once."""
    for client in clients:
        found = await client.next_texts(SHARDS)
        assert sorted(found) == sorted(f"{text} {topic}" for topic in TOPICS)


async def test_each_hub_gets_one_copy_wherever_the_topics_are_at_home() -> None:
    async with MovingHubs(3) as hubs:
        await agreed(hubs)
        clients = [await subscriber(hubs, hub) for hub in ("a", "b", "b", "c", "c")]
        publisher = await hubs.connect("a")
        await to_all(publisher, "1")
        await has_all(clients, "1")
        assert [copies_count(hubs, "a", to) for to in ("b", "c")] == [SHARDS, SHARDS]
        for client in clients:
            await client.silence(0.1)


async def test_subscribers_stay_while_hubs_die_and_come_back() -> None:
    """The shards of a killed hub, and its topics, are opened elsewhere, and handed back."""
    async with MovingHubs(3) as hubs:
        await agreed(hubs)
        clients = [await subscriber(hubs, hub) for hub in ("a", "b", "a")]
        durable = await hubs.connect("a", client_id="reports")
        for topic in TOPICS:
            await durable.subscribe(topic, id=topic, durable="true", name=topic)
        publisher = await hubs.connect("b")
        await to_all(publisher, "1")
        await has_all([*clients, durable], "1")
        await hubs.crash("c")
        await hubs.until(lambda: "" not in hubs.owners())
        await to_all(publisher, "2")
        await has_all([*clients, durable], "2")
        await hubs.start("c")
        await hubs.balanced()
        await agreed(hubs)
        joined = await subscriber(hubs, "c")
        await to_all(publisher, "3")
        await has_all([*clients, joined, durable], "3")
        for client in (*clients, joined, durable):
            await client.silence(0.1)


async def test_a_topic_that_moves_to_the_hub_of_its_subscribers_keeps_them() -> None:
    async with MovingHubs() as hubs:
        await agreed(hubs)
        clients = [await subscriber(hubs, hub) for hub in ("a", "b")]
        everything = [await hubs.connect(hub) for hub in ("a", "b")]
        for client in everything:
            await client.subscribe("/topic/>")
        publisher = await hubs.connect("a")
        await to_all(publisher, "1")
        await has_all([*clients, *everything], "1")
        wanted = ["b" if owner == "a" else "a" for owner in hubs.owners()]
        for shard, hub in enumerate(wanted):
            await hubs.member("a").move(shard, hub)
        await hubs.until(lambda: hubs.owners() == wanted)
        await trio.sleep(1)
        await to_all(publisher, "2")
        await has_all([*clients, *everything], "2")
        for client in (*clients, *everything):
            await client.silence(0.1)


async def test_a_durable_subscription_that_comes_late_is_no_guest() -> None:
    """A SUBSCRIBE that was on its way while the shard moved: the position is kept by the owner, and by no other hub."""
    async with MovingHubs() as hubs:
        topic = TOPICS[hubs.owners().index("b")]
        registry = hubs.running["a"].broker.registry
        with pytest.raises(ShardAwayError, match="is not open here"):
            registry.attach_durable(parse(topic), None, "client", "late")  # type: ignore[arg-type]
        assert len(registry.durables) == 0 and topic not in registry.destinations
