"""One destination and a crowd of thousands who take from it: it is made, is full, gets a priority more, and goes."""

from __future__ import annotations

import pytest
import trio

from tests.how_often import crowd_of
from tests.limits.law import CROWD_COUNT, LawStage, frame
from tests.limits.test_frames import MOST, Q
from tests.scenarios.client import Client

AUTO_DELETED = {"auto_delete_seconds": 2}


async def crowd(stage: LawStage, count: int = CROWD_COUNT, /, **headers: object) -> list[Client]:
    """So many subscriptions, a thousand on each connection."""
    readers = []
    for _part in range(count // 1000):
        reader = await stage.client()
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, **headers) for n in range(1000)))
        await reader.sync()
        readers.append(reader)
    return readers


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("topic", CROWD_COUNT), ("queue", crowd_of(CROWD_COUNT, 4_000))])
async def test_a_destination_that_a_crowd_of_wildcards_matches(kind: str, count: int) -> None:
    async with LawStage({"/topic/>": AUTO_DELETED, "/queue/>": AUTO_DELETED}) as stage:
        await made_and_gone(stage, kind, count)


async def made_and_gone(stage: LawStage, kind: str, count: int) -> None:
    """A destination comes, gets a priority more, and is swept away."""
    await crowd(stage, count, destination=f"/{kind}/>")
    sender = await stage.client()
    name, others = f"/{kind}/new", f"{count:,} wildcards"
    with stage.law(f"SEND to a new {kind} of wildcards", limit="one frame", crowd=others):
        await sender.sent(name, b"x")
        await trio.sleep(1)
    with stage.law(f"SEND of a new priority to a {kind}", limit="one frame", crowd=others):
        await sender.sent(name, b"x", priority="9")
        await trio.sleep(1)
    sender.vanish()
    with stage.law(f"auto-deletion of a {kind} of wildcards", limit="one destination", crowd=others):
        await trio.sleep(20)
    assert name not in stage.broker.registry.destinations


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("topic", crowd_of(1000, 500)), ("queue", crowd_of(1000, 300))])
async def test_ten_priorities_of_a_destination_that_a_crowd_of_wildcards_matches(kind: str, count: int) -> None:
    async with LawStage({"/topic/>": AUTO_DELETED, "/queue/>": AUTO_DELETED}) as stage:
        reader, sender, others = await stage.client(), await stage.client(), f"{count:,} wildcards"
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination=f"/{kind}/>") for n in range(count)))
        await reader.sync()
        with stage.law(f"SENDs to a new {kind} at ten priorities", limit="bytes of one read", crowd=others):
            sends = (frame("SEND", b"x", destination=f"/{kind}/new", priority=n) for n in range(10))
            await sender.send_raw(b"".join(sends))
            await trio.sleep(5)
        late = await stage.client()
        with stage.law(f"SUBSCRIBE to a {kind} of ten priorities", limit="bytes of one read", crowd=others):
            await late.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination=f"/{kind}/new") for n in range(count)))
            await trio.sleep(5)
        with stage.law(f"abrupt out of a {kind} of ten priorities", limit="subscriptions_max", crowd=others):
            late.vanish()
            await trio.sleep(5)
        reader.receive_now()
        sender.vanish()
        with stage.law(f"auto-deletion of a {kind} of ten priorities", limit="one destination", crowd=others):
            await trio.sleep(20)
        assert f"/{kind}/new" not in stage.broker.registry.destinations


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["topic", "queue"])
async def test_the_end_of_a_destination_of_a_crowd(stage: LawStage, kind: str) -> None:
    await crowd(stage, destination=f"/{kind}/t")
    destination = stage.broker.registry.destinations[f"/{kind}/t"]
    with stage.law(f"the end of a {kind}", limit="one destination", crowd="10,000 subscriptions") as counting:
        with counting.called("deletion"):
            stage.broker.registry.delete(destination, "a test")
        await trio.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["UNSUBSCRIBE", "abrupt", "deletion"])
@pytest.mark.parametrize("kind", ["topic", "queue"])
async def test_what_is_forgotten(stage: LawStage, kind: str, how: str) -> None:
    """Every other one was acknowledged before."""
    name = f"/{kind}/q"
    client = await stage.holding(MOST // 2, queue=name)
    acks = (frame("ACK", id=each.headers["ack"]) for each in list(client.messages)[::2])
    await client.send_raw(b"".join(acks))
    await client.sync()
    with stage.law(f"{how} with scattered messages of a {kind}", limit="50,000 deliveries") as counting:
        if how == "deletion":
            with counting.called("deletion"):
                stage.broker.registry.delete(stage.broker.registry.destinations[name], "a test")
        elif how == "abrupt":
            client.vanish()
        else:
            await client.unsubscribe()
        await trio.sleep(3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("plain", CROWD_COUNT), ("grouped", 3_000)])
async def test_one_message_for_each_of_a_crowd(stage: LawStage, kind: str, count: int) -> None:
    await crowd(stage, count, destination=Q)
    sender = await stage.client()
    groups = ({"group": n} if kind == "grouped" else {} for n in range(count))
    data = b"".join(frame("SEND", b"x", destination=Q, **headers) for headers in groups)
    with stage.law(f"SENDs to a crowd, {kind}", limit="bytes of one read", crowd=f"{count:,} subscriptions"):
        await sender.send_raw(data)
        await sender.sync()
        await trio.sleep(1)


@pytest.mark.slow
async def test_an_exclusive_consumer_of_a_crowd(stage: LawStage) -> None:
    await crowd(stage, CROWD_COUNT, destination=Q)
    reader = await stage.client()
    with stage.law("an exclusive consumer comes and goes", limit="one frame", crowd="10,000 subscriptions"):
        await reader.subscribe(Q, exclusive="true")
        await reader.unsubscribe()
        await trio.sleep(1)


@pytest.mark.slow
async def test_dear_selectors_in_one_go(stage: LawStage) -> None:
    """Each as long as one may be, and none like another. More than some would show nothing more."""
    client = await stage.client()
    texts = (" OR ".join(f"a{part} = {number}" for part in range(248)) for number in range(4))
    data = b"".join(frame("SUBSCRIBE", id=n, destination=Q, selector=text) for n, text in enumerate(texts))
    with stage.law("SUBSCRIBE with dear selectors", limit="bytes of one read"):
        await client.send_raw(data)
        await client.sync()


@pytest.mark.slow
async def test_a_crowd_that_lags() -> None:
    """Each holds one message, and loses the oldest of the others."""
    async with LawStage({"/topic/t": {"memory_bytes": 1 << 20, "paging": "throttle"}}) as stage:
        await crowd(stage, destination="/topic/t", ack="client", credit=1)
        reader = await stage.client()
        await reader.subscribe("/topic/t")
        sender = await stage.client()
        await sender.sent("/topic/t", b"x")
        [topic] = stage.broker.registry.destinations["/topic/t"].queues
        while not topic.dropped_count:
            await sender.sent("/topic/t", b"x" * 8_000)
        await trio.sleep(1)
        dropped_count = topic.dropped_count
        with stage.law("SEND to a crowd that lags", limit="the topic's memory", crowd="10,000 subscriptions of it"):
            for _ in range(300):
                await sender.sent("/topic/t", b"x" * 100)
            await trio.sleep(1)
        assert topic.dropped_count > dropped_count + CROWD_COUNT, "room was made"
