"""COMMITs that find no room do not come apart: nothing of one is promised, dropped or done before all of it is."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio

from sluiceway.config import BrokerConfig
from sluiceway.queues.message import MESSAGE_OVERHEAD_BYTES
from sluiceway.store.engine import Engine
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, PASSCODE, REPLIES, LogStage
from tests.scenarios.stage import Stage

FULL = "/queue/full"
OTHER = "/queue/other"
SMALL = {name: {"count_max": 1, "full": "block"} for name in (FULL, "/queue/full.>")}
MANY = [f"/queue/full.{number}" for number in range(100)]
BODY_BYTES = 1_000


def forgetful(engine: Engine | None = None) -> Stage:
    """A broker that keeps nothing of what ended connections leave behind, but for what is committed."""
    stage = Stage(SMALL, engine=engine)
    stage.broker.config = attrs.evolve(stage.broker.config, broker=BrokerConfig(left_behind_bytes_max=1))
    return stage


async def transaction(client: Client, count: int, *names: str, **headers: str) -> None:
    await client.frame("BEGIN", {"transaction": "t"})
    for number in range(count):
        for name in names:
            await client.send(name, str(number).ljust(BODY_BYTES), transaction="t", **headers)


async def commit(client: Client) -> None:
    await client.frame("COMMIT", {"transaction": "t", "receipt": "committed"})


async def taken(stage: Stage, *names: str) -> dict[str, list[str]]:
    """All that comes out of these queues."""
    consumer = await stage.connect()
    for name in names:
        await consumer.subscribe(name, id=name)
    came: dict[str, list[str]] = {name: [] for name in names}
    for delivery in await consumer.drain():
        came[delivery.headers["subscription"]].append(delivery.text.strip())
    await consumer.disconnect()
    return came


@pytest.mark.parametrize("with_store", [False, True], ids=["no store", "store"])
@pytest.mark.parametrize("count", [1, 200], ids=["at once", "in steps"])
async def test_it_waits_as_a_whole_and_survives_its_connection(count: int, with_store: bool) -> None:
    """Though nothing of it is persistent: its RECEIPT waits, none of its queues has any of it, and none is dropped."""
    async with forgetful(MemoryEngine() if with_store else None) as stage:
        client, filler = await stage.connect(), await stage.connect()
        await filler.sent(FULL, "before")
        await transaction(client, count, FULL, OTHER)
        await commit(client)
        await trio.sleep(1)
        client.receive_now()
        assert "committed" not in client.receipts
        assert stage.depth_count(OTHER) == 0
        client.vanish()
        await trio.sleep(1)
        came = await taken(stage, FULL, OTHER)
        assert came[OTHER] == [str(number) for number in range(count)]
        assert came[FULL] == ["before", *came[OTHER]]


async def test_what_a_composite_leaves_of_it_is_kept_once() -> None:
    """Its SENDs wait for a hundred queues, and their bodies are there once."""
    count = 30
    async with forgetful() as stage:
        filler, client = await stage.connect(), await stage.connect()
        for name in MANY:
            await filler.send(name, "before")
        await filler.sync()
        await transaction(client, count, ",".join(MANY))
        await client.sync()
        [session] = [each.session for each in stage.broker.connections if each.session.name.endswith("client 2")]
        held_bytes = session.lanes.transactions.limiter.used_bytes
        await commit(client)
        await trio.sleep(1)
        assert session.lanes.stash_bytes <= held_bytes
        client.vanish()
        await trio.sleep(1)
        beside_bytes = len(MANY) * count * (MESSAGE_OVERHEAD_BYTES + 256)
        assert session.lanes.stash_bytes <= held_bytes + beside_bytes
        assert session.lanes.stash_bytes < len(MANY) * count * BODY_BYTES / 2
        came = await taken(stage, *MANY)
        assert came == {name: ["before", *map(str, range(count))] for name in MANY}


async def test_more_than_a_transaction_may_have_is_not_parked() -> None:
    """A composite takes something for each of its destinations: where that is too much nothing of it is done."""
    policies = {"/queue/full.>": {"count_max": 2, "full": "block"}}
    async with Stage(policies, transaction_bytes_max=50_000) as stage:
        client, filler = await stage.connect(), await stage.connect()
        await client.subscribe(MANY[0], ack="client-individual")
        for name in MANY:
            await filler.send_all(name, range(2))
        await filler.sync()
        delivery = await client.next_message()
        await transaction(client, 10, ",".join(MANY))
        await client.ack(delivery, transaction="t")
        await commit(client)
        await client.expect_error("none of it was carried out")
        assert client.error is not None and client.error.headers["code"] == "transaction-too-large"
        await trio.sleep(1)
        assert [stage.depth_count(name) for name in MANY] == [2] * len(MANY)


async def test_the_receipt_of_one_that_makes_room_does_not_wait_for_it() -> None:
    """Who has to go on consuming is told that it is carried out; nothing of what is parked is dropped."""
    async with forgetful() as stage:
        client = await stage.connect()
        await client.subscribe(FULL, ack="client-individual")
        await client.send(FULL, "before")
        delivery = await client.next_message()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.ack(delivery, transaction="t")
        for number in range(5):
            await client.send(FULL, str(number), transaction="t")
        await commit(client)
        await client.expect_receipt("committed")
        client.vanish()
        await trio.sleep(1)
        assert (await taken(stage, FULL))[FULL] == [str(number) for number in range(5)]


async def test_a_queue_that_rejects_goes_on_refusing_behind_a_commit() -> None:
    """It does not hold its sender back because a COMMIT has filled it."""
    async with Stage({FULL: {"count_max": 3, "full": "reject"}}) as stage:
        client = await stage.connect()
        await transaction(client, 3, FULL)
        await commit(client)
        await client.expect_receipt("committed")
        await client.send(FULL, "one too many")
        await client.expect_error("is full")
        assert stage.depth_count(FULL) == 3


# ---------------------------------------------------------------------- requests to the broker


async def request_in_transaction(client: Client) -> None:
    body = json.dumps({"log": LOG, "passcode": PASSCODE})
    headers: dict[str, Any] = {"destination": "/sluiceway/log/delete", "reply-to": REPLIES, "transaction": "t"}
    await client.frame("SEND", headers, body)


def is_there(stage: LogStage) -> bool:
    assert stage.broker.logs is not None
    return LOG in stage.broker.logs.logs


@pytest.mark.parametrize("spools", [False, True], ids=["in memory", "spooled"])
async def test_nothing_is_asked_for_by_a_commit_that_is_refused(spools: bool) -> None:
    """Neither before a queue that has no room, nor before a destination that can't be."""
    limits = {"transaction_bytes_max": 2_000} if spools else {}
    async with LogStage({FULL: {"count_max": 1, "full": "reject"}}, **limits) as stage:
        for name, error in ((FULL, "has no room"), ("/sluiceway/no/such", "there is no request")):
            client = await stage.connect()
            await client.subscribe(REPLIES, id="replies")
            await client.sent(LOG, "a record")
            await client.frame("BEGIN", {"transaction": "t"})
            await request_in_transaction(client)
            for number in range(5):
                await client.send(OTHER, str(number) * 500, transaction="t")
            for number in range(2):
                await client.send(name, str(number), transaction="t", **{"reply-to": REPLIES})
            await commit(client)
            await client.expect_error(error)
            await trio.sleep(1)
            assert is_there(stage)


@pytest.mark.parametrize("spools", [False, True], ids=["in memory", "spooled"])
async def test_requests_are_made_when_all_else_has_taken_effect(spools: bool) -> None:
    """Not while the COMMIT waits."""
    limits = {"transaction_bytes_max": 2_000} if spools else {}
    async with LogStage({FULL: {"count_max": 1, "full": "block"}}, **limits) as stage:
        client = await stage.connect()
        await client.subscribe(REPLIES, id="replies")
        await client.sent(LOG, "a record")
        await client.send(FULL, "before")
        await client.frame("BEGIN", {"transaction": "t"})
        await request_in_transaction(client)
        for number in range(5):
            await client.send(FULL, str(number) * 500, transaction="t")
        await trio.sleep(1)
        assert is_there(stage)
        await commit(client)
        if not spools:
            await trio.sleep(1)
            assert is_there(stage)
            await taken(stage, FULL)
        await client.expect_receipt("committed")
        assert json.loads((await client.next_message()).text)["ok"]
        assert not is_there(stage)
        await taken(stage, FULL)
