"""Transactions that are larger than memory: with a store they are spooled, are carried out as a whole or not at all,
and take their large bodies with them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.spooled import (
    BODY_BYTES,
    ENDS,
    IN,
    OTHER,
    OUT,
    SMALL,
    TIGHT,
    all_numbers,
    body,
    commit,
    send_transaction,
    spooled_keys,
)
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "volatile"])
async def test_a_transaction_larger_than_memory_arrives_with_commit_in_order(persistent: bool) -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(f"{OUT},{OTHER}")
        await send_transaction(producer, 100, OUT, OTHER, persistent=persistent)
        await producer.sync()
        assert len(spooled_keys(engine)) > 10
        await consumer.silence()
        await commit(producer)
        deliveries = await consumer.next_messages(100)
        for destination, rest in ((OUT, 0), (OTHER, 1)):
            numbers = [int(d.text) for d in deliveries if d.headers["destination"] == destination]
            assert numbers == list(range(rest, 100, 2))
        await stage.settled_down()
        assert not spooled_keys(engine)


async def test_memory_stays_within_its_limit_while_a_transaction_grows() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        producer = await stage.connect()
        await send_transaction(producer, 10, OUT)
        for number in range(200):
            await producer.send(OUT, body(number), transaction="t", persistent="true")
            await stage.settled_down()
            assert stage.used_bytes <= 10_000 + 2 * BODY_BYTES
        await producer.request("ABORT", {"transaction": "t"})


async def test_an_aborted_one_leaves_nothing() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe(OUT)
        await send_transaction(client, 50, OUT)
        await client.request("ABORT", {"transaction": "t"})
        await client.silence()
        assert not spooled_keys(engine)


@pytest.mark.parametrize("ending", ["vanish", "disconnect", "error"])
async def test_the_end_of_its_connection_aborts_it(ending: str) -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 50, OUT)
        await client.sync()
        if ending == "vanish":
            client.vanish()
        elif ending == "disconnect":
            await client.disconnect()
        else:
            await client.frame("BEGIN", {"transaction": "t"})
            await client.expect_error("open already")
        await trio.sleep(5)
        assert not spooled_keys(engine)
        assert stage.depth_count(OUT) == 0


async def test_several_of_one_connection_are_spooled_apart() -> None:
    """Those that hold most leave memory first; each arrives with its own COMMIT."""
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(OUT)
        for name in ("a", "b", "c"):
            await client.frame("BEGIN", {"transaction": name})
        for number in range(90):
            await client.send(OUT, body(number), transaction="abc"[number % 3])
        await commit(client, "b")
        await client.request("ABORT", {"transaction": "a"})
        await commit(client, "c")
        texts = await consumer.next_texts(60)
        assert [int(text) for text in texts] == [*range(1, 90, 3), *range(2, 90, 3)]
        await consumer.silence()


async def test_acks_of_a_spooled_transaction_take_effect_with_it() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.sent(IN, "order", persistent="true")
        await client.subscribe(IN, ack="client-individual")
        order = await client.next_message()
        await send_transaction(client, 30, OUT)
        await client.frame("ACK", {**client.naming(order), "transaction": "t"})
        await client.sync()
        assert stage.depth_count(IN) == 1
        await commit(client)
        assert stage.depth_count(IN) == 0
        await stage.settled_down()
        assert stage.depth_count(OUT) == 30


async def test_requests_to_the_broker_are_answered_with_commit() -> None:
    """They can't be spooled: the answer is the broker's state at COMMIT."""
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe("/temp-queue/stat", id="stat")
        await client.frame("BEGIN", {"transaction": "t"})
        head = {"destination": "/sluiceway/stat", "reply-to": "/temp-queue/stat", "transaction": "t"}
        await client.frame("SEND", head)
        for number in range(30):
            await client.send(OUT, body(number), transaction="t")
        await client.silence()
        await commit(client)
        await client.next_message()


async def test_a_temporary_destination_and_composites_get_theirs() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client = await stage.connect()
        await client.subscribe("/temp-queue/mine", id="mine")
        await client.subscribe("/topic/news", id="news")
        await send_transaction(client, 20, f"/temp-queue/mine,/topic/news,{OUT}")
        await commit(client)
        deliveries = await client.next_messages(40)
        for subscription in ("mine", "news"):
            texts = [d.text for d in deliveries if d.headers["subscription"] == subscription]
            assert [int(text) for text in texts] == list(range(20))
        await stage.settled_down()
        assert stage.depth_count(OUT) == 20


async def test_a_temporary_destination_that_is_gone_swallows_its_part() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        owner, producer = await stage.connect(), await stage.connect()
        await owner.subscribe("/temp-queue/mine")
        await owner.send("/queue/address", "x", reply_to="/temp-queue/mine")
        await producer.subscribe("/queue/address")
        address = (await producer.next_message()).headers["reply-to"]
        await send_transaction(producer, 30, address, OUT)
        await producer.sync()
        owner.vanish()
        await trio.sleep(3)
        await commit(producer)
        await stage.settled_down()
        assert stage.depth_count(OUT) == 15
        assert not spooled_keys(engine)


async def test_a_bad_destination_in_a_spooled_transaction_undoes_all_of_it() -> None:
    engine = FaultyEngine(Random(0))
    async with Stage(engine=engine, **SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 30, OUT)
        await client.send("/queue/*", "wrong", transaction="t")
        await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        error = await client.expect_error("wildcard")
        assert error.headers["receipt-id"] == "r"
        await trio.sleep(3)
        assert stage.depth_count(OUT) == 0
        assert not spooled_keys(engine)


# ---------------------------------------------------------------------- limits


async def test_without_a_store_the_memory_limit_is_the_limit() -> None:
    async with Stage(**SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 30, OUT)
        error = await client.expect_error("more than 10000 bytes")
        assert "have a store" in error.body.decode()


async def test_a_limit_of_zero_never_spools() -> None:
    async with Stage(engine=FaultyEngine(Random(0)), transaction_spool_bytes_max=0, **SMALL) as stage:
        client = await stage.connect()
        await send_transaction(client, 30, OUT)
        await client.expect_error("more than 10000 bytes")


async def test_more_than_the_disk_may_take_is_an_error() -> None:
    """All transactions of the connection together, committed ones that wait for room included."""
    engine = FaultyEngine(Random(0))
    policies: dict[str, dict[str, Any]] = {OUT: {"full": "block", "count_max": 1}}
    async with Stage(policies, engine=engine, transaction_spool_bytes_max=60_000, **SMALL) as stage:
        client = await stage.connect()
        for ending in ("COMMIT", "ABORT", "COMMIT"):
            await send_transaction(client, 40, OTHER)
            await client.request(ending, {"transaction": "t"})
            await stage.settled_down()
        await send_transaction(client, 40, OUT)
        await commit(client)
        await send_transaction(client, 40, OTHER)
        await client.expect_error("more than 60000 bytes of the disk")
        await trio.sleep(3)
        assert sorted(await all_numbers(stage)) == sorted([*range(40)] * 3)


async def test_a_queue_that_rejects_refuses_a_spooled_transaction_as_a_whole() -> None:
    policies: dict[str, dict[str, Any]] = {OUT: {"full": "reject", "count_max": 20}}
    async with Stage(policies, engine=FaultyEngine(Random(0)), **SMALL) as stage:
        client, other = await stage.connect(), await stage.connect()
        await send_transaction(client, 21, OUT, OTHER, OUT)
        await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await other.sent(OUT, "0")
        await client.expect_receipt("r")
        again = await stage.connect()
        await send_transaction(again, 12, OUT)
        await again.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await again.expect_error("has no room for the SENDs of transaction 't'")
        await trio.sleep(1)
        assert stage.depth_count(OUT) == 15


# ---------------------------------------------------------------------- large bodies

LARGE = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    return folder


def files_in(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def send_with_large(client: Client, count: int) -> None:
    """A transaction in which every tenth SEND has a large body."""
    await client.frame("BEGIN", {"transaction": "t"})
    for number in range(count):
        headers = {"destination": OUT, "transaction": "t", "persistent": "true", "n": str(number)}
        if number % 10:
            await client.frame("SEND", headers, body(number))
        else:
            await client.frame("SEND", {**headers, "content-length": str(len(LARGE))}, LARGE)
    await client.sync()


@pytest.mark.parametrize("ending", ["COMMIT", "ABORT"])
async def test_large_bodies_go_with_their_transaction(folder: Path, ending: str) -> None:
    """Files are kept as long as a piece names them."""
    limits = {**SMALL, "large_body_bytes": 5_000}
    async with Stage(engine=FaultyEngine(Random(0)), large_folder=folder, **limits) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_with_large(producer, 50)
        assert files_in(folder) == 5
        await producer.request(ending, {"transaction": "t"})
        await consumer.subscribe(OUT)
        deliveries = await consumer.drain()
        if ending == "COMMIT":
            assert [int(d.headers["n"]) for d in deliveries] == list(range(50))
            assert [d.body for d in deliveries[::10]] == [LARGE] * 5
        else:
            assert not deliveries
        await trio.sleep(10)
        assert not files_in(folder)


@pytest.mark.parametrize("end", ENDS)
async def test_large_bodies_of_a_committed_transaction_outlive_the_broker(folder: Path, end: str) -> None:
    limits = {**SMALL, "large_body_bytes": 5_000}
    lives = Lives(TIGHT, large_folder=folder, **limits)
    async with lives.life(end=end) as stage:
        producer, other = await stage.connect(), await stage.connect()
        await send_with_large(producer, 50)
        await commit(producer)
        await send_with_large(other, 50)
    async with lives.life() as stage:
        assert files_in(folder) == 5, "of the one that was open they are gone"
        consumer = await stage.connect()
        await consumer.subscribe(OUT)
        deliveries = await consumer.next_messages(50)
        assert [int(d.headers["n"]) for d in deliveries] == list(range(50))
        assert [d.body for d in deliveries[::10]] == [LARGE] * 5
        await trio.sleep(10)
        assert not files_in(folder)
