"""A connection that ends, in each way, while it has the most of everything."""

from __future__ import annotations

import pytest
import trio

from tests.limits.law import CROWD_COUNT, LawStage, frame
from tests.limits.test_frames import MANY, MOST
from tests.scenarios.client import Client

PARKED = 2_500
"""Messages of one byte, that a stash has room for."""


async def leave(client: Client, how: str) -> None:
    if how == "abrupt":
        client.vanish()
    elif how == "DISCONNECT":
        await client.send_raw(frame("DISCONNECT", receipt="bye"))
    else:
        await client.unsubscribe()
    await trio.sleep(3)


@pytest.mark.parametrize("how", ["abrupt", "DISCONNECT", "UNSUBSCRIBE"])
async def test_with_the_most_unacknowledged(stage: LawStage, how: str) -> None:
    """Every other one was acknowledged, so that what is left lies in runs of one."""
    client = await stage.holding(MANY)
    held = list(client.messages)
    await client.send_raw(b"".join(frame("ACK", id=each.headers["ack"]) for each in held[::2]))
    await client.sync()
    with stage.law(f"{how} with unacknowledged messages", limit="10,000 deliveries, every other one acknowledged"):
        await leave(client, how)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["abrupt", "DISCONNECT", "UNSUBSCRIBE"])
async def test_with_one_long_run_unacknowledged(stage: LawStage, how: str) -> None:
    client = await stage.holding(MOST)
    with stage.law(f"{how} with a run of unacknowledged messages", limit="100,000 deliveries"):
        await leave(client, how)


@pytest.mark.parametrize("how", ["abrupt", "DISCONNECT"])
async def test_with_the_most_subscriptions(stage: LawStage, how: str) -> None:
    client = await stage.client()
    await client.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination=f"/queue/q{n}") for n in range(1000)))
    await client.sync()
    with stage.law(f"{how} with subscriptions", limit="subscriptions_max"):
        await leave(client, how)


async def test_out_of_a_topic_of_many(stage: LawStage) -> None:
    readers = [await stage.client() for _ in range(CROWD_COUNT // 1000)]
    for reader in readers:
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, destination="/topic/t") for n in range(1000)))
        await reader.sync()
    with stage.law("abrupt out of a topic", limit="subscriptions_max", crowd="9,000 others that subscribe"):
        await leave(readers[0], "abrupt")


@pytest.mark.parametrize("how", ["abrupt", "DISCONNECT"])
async def test_with_a_transaction(stage: LawStage, how: str) -> None:
    client = await stage.client()
    await client.frame("BEGIN", {"transaction": "t"})
    sends = (frame("SEND", b"x", destination=f"/queue/q{n}", transaction="t") for n in range(MANY))
    await client.send_raw(b"".join(sends))
    await client.sync()
    with stage.law(f"{how} with a transaction", limit="transaction_bytes_max"):
        await leave(client, how)


@pytest.mark.parametrize("how", ["abrupt", "DISCONNECT"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_with_the_most_temporary_destinations(stage: LawStage, how: str, kind: str) -> None:
    client = await stage.client()
    names = [f"/temp-{kind}/t{number}" for number in range(1000)]
    await client.send_raw(
        b"".join(frame("SUBSCRIBE", id=n, destination=name, ack="client") for n, name in enumerate(names))
        + b"".join(frame("SEND", b"x", destination=name, persistent="true") for name in names)
    )
    await client.sync()
    with stage.law(f"{how} with temporary {kind}s", limit="subscriptions_max of them, a message in each"):
        await leave(client, how)
    assert not any("temp" in name for name in stage.broker.registry.destinations)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_with_temporary_destinations_of_ten_priorities(stage: LawStage, kind: str) -> None:
    client = await stage.client()
    names = [f"/temp-{kind}/t{number}" for number in range(100)]
    await client.send_raw(
        b"".join(frame("SUBSCRIBE", id=n, destination=name, ack="client") for n, name in enumerate(names))
        + b"".join(frame("SEND", b"x", destination=name, priority=n) for name in names for n in range(10))
    )
    await client.sync()
    with stage.law(f"abrupt with temporary {kind}s of ten priorities", limit="priorities"):
        await leave(client, "abrupt")
    assert not any("temp" in name for name in stage.broker.registry.destinations)


@pytest.mark.slow
async def test_with_long_temporary_queues_of_ten_priorities(stage: LawStage) -> None:
    client = await stage.client()
    names = [f"/temp-queue/t{number}" for number in range(8)]
    subscribes = (frame("SUBSCRIBE", id=n, destination=name, ack="client", credit=1) for n, name in enumerate(names))
    await client.send_raw(b"".join(subscribes))
    for name in names:
        for priority in range(10):
            await client.send_raw(frame("SEND", b"x", destination=name, priority=priority) * 4096)
            await client.sync()
    with stage.law("abrupt with long temporary queues of ten priorities", limit="priorities, and 4,096 messages each"):
        await leave(client, "abrupt")
    assert not any("temp" in name for name in stage.broker.registry.destinations)


@pytest.mark.parametrize("there_is_room", [True, False])
@pytest.mark.parametrize("how", ["abrupt", "DISCONNECT"])
async def test_with_a_full_stash(how: str, there_is_room: bool) -> None:
    """What is in it goes on by itself, or is dropped where others have left too much."""
    async with LawStage({"/queue/full.*": {"memory_bytes": 1_000}}) as stage:
        if not there_is_room:
            stage.broker.left_behind._bytes_max = 0
        client = await stage.client()
        # Not quite full: a connection that is not read is not seen to be gone.
        sends = (frame("SEND", b"x", destination=f"/queue/full.{n % 1000}", k=n) for n in range(PARKED + 5_000))
        await client.send_raw(b"".join(sends))
        await trio.sleep(1)
        (connection,) = stage.broker.connections
        assert connection.session.lanes.parked_count == PARKED
        case = f"{how} with a full stash" + ("" if there_is_room else " that is dropped")
        with stage.law(case, limit="stash_bytes_max"):
            await leave(client, how)
        if how == "abrupt":
            assert not stage.broker.connections
            assert stage.broker.left_behind.dropped_count == (0 if there_is_room else PARKED)


async def test_a_thousand_at_once(stage: LawStage) -> None:
    clients = [await stage.client() for _ in range(CROWD_COUNT // 10)]
    for client in clients:
        await client.subscribe("/topic/t")
    with stage.law("1,000 connections that end together", limit="one moment"):
        for client in clients:
            client.vanish()
        await trio.sleep(3)


@pytest.mark.parametrize("refused", ["room", "route"])
async def test_of_a_commit_that_is_refused(refused: str) -> None:
    """Thousands of heads are let go of."""
    async with LawStage({"/queue/small": {"full": "reject", "memory_bytes": 1_000}}) as stage:
        client = await stage.client()
        await client.frame("BEGIN", {"transaction": "t"})
        last = "/queue/small" if refused == "room" else "/queue/"
        sends = [frame("SEND", b"x", destination=f"/queue/q{n % 1000}", transaction="t", k=n) for n in range(MANY)]
        sends += [frame("SEND", b"x" * 1000, destination=last, transaction="t")] * 10
        await client.send_raw(b"".join(sends))
        await client.sync()
        with stage.law(f"COMMIT without {refused}", limit="transaction_bytes_max"):
            await client.send_raw(frame("COMMIT", transaction="t", receipt="c"))
            await trio.sleep(3)
        client.receive_now()
        assert client.error is not None


@pytest.mark.slow
async def test_the_removal_of_many_durables_with_a_backlog(stage: LawStage) -> None:
    """Of one topic, whose messages each of them needs."""
    client = await stage.client(client_id="me")
    durable = {"destination": "/topic/t", "durable": "true", "ack": "client", "credit": 10}
    await client.send_raw(b"".join(frame("SUBSCRIBE", id=n, **durable) for n in range(1000)))
    await client.sync()
    await stage.filled("/topic/t", 1000, persistent="true")
    with stage.law("UNSUBSCRIBE of durables", limit="subscriptions_max", crowd="1,000 messages"):
        await client.send_raw(b"".join(frame("UNSUBSCRIBE", id=n, durable="true") for n in range(1000)))
        await client.sync()
        await trio.sleep(3)
    assert not len(stage.broker.registry.durables)
