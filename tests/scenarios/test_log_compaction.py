"""Compacted logs: the last record of each key stays, whoever reads and from wherever; the others are passed over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from sluiceway.config.model import Config, DestinationPolicy
from sluiceway.queues.logs.batches import encode
from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.config import StoreConfig
from tests.scenarios.client import Client, Delivery
from tests.scenarios.log_stage import LOG, LogLives, LogStage, indexes, is_told, records_of, send_batch

POLICIES: Final[dict[str, dict[str, Any]]] = {LOG: {"log_compact": True, "log_tombstone_seconds": 60}}
JOURNAL: Final = {"data_page_bytes": 16384, "index_page_count": 64}
KEYS_COUNT: Final = 7
COUNT: Final = 300


def value(index: int) -> bytes:
    return f"value {index} ".encode() + b"." * 60


async def keyed(client: Client, count: int, first: int = 0) -> None:
    """Append records with keys in turn, each by itself."""
    for index in range(first, first + count):
        await client.send(LOG, value(index), key=f"key {index % KEYS_COUNT}")
    await client.sent(LOG, b"the end", key="end")


async def compacted(stage: LogStage) -> int:
    """Wait until compaction has nothing to do; returns how many records it has removed."""
    for _ in range(200):
        await trio.sleep(1)
        records = stage.log().records
        if not records.compaction_is_due:
            break
    removed: int = records.compacted.removed_count
    return removed


def last_values(got: Iterable[tuple[int, bytes]]) -> dict[int, bytes]:
    return {index % KEYS_COUNT: found for index, found in got if found != b"the end"}


async def all_of(client: Client, **headers: str) -> list[Delivery]:
    """Read all of the log, without a group."""
    await client.subscribe(LOG, id="all", **{"from": "0", "on-gap": "error", **headers})
    got = await client.drain()
    await client.unsubscribe("all")
    assert not any(is_told(each) for each in got), "nothing is told of what was removed"
    return got


async def test_the_last_of_each_key_stays_for_every_kind_of_reader() -> None:
    async with LogStage(POLICIES, journal=JOURNAL) as stage:
        client = await stage.connect_asking()
        await keyed(client.client, COUNT)
        for codec in (Codec.NONE, Codec.ZSTD):  # batches with a key for each record, and some without
            keys = [b"key %d" % (index % KEYS_COUNT) if index % 50 else b"" for index in range(100)]
            for _ in range(2):
                await send_batch(
                    client.client, encode([b"b%d" % index for index in range(100)], keys=keys, codec=codec)
                )
        await keyed(client.client, COUNT, 701)
        assert await compacted(stage) > 500
        end = stage.log().records.next_index

        reader = await stage.connect()
        single = records_of(await all_of(reader))
        assert len(single) < end - 500
        assert last_values(single) == {index % KEYS_COUNT: value(index) for index in range(end - 9, end - 1)}
        assert sum(found in (b"b0", b"b50") for _index, found in single) == 8, "records without a key stay"
        assert records_of(await all_of(reader, batch="65536", compression="zstd")) == single
        assert records_of(await all_of(reader, batch="1024")) == single
        assert records_of(await all_of(reader, selector="key IS NOT NULL")) != []

        fetched, place = [], "0"
        while place != str(end):
            reply = await client.asked("fetch", log=LOG, **{"from": place}, max_bytes=4096)
            assert "gaps" not in reply
            fetched += [row["index"] for row in reply["records"]]
            place = str(reply["next"])
        assert fetched == [index for index, _found in single]

        middle = next(index for index in range(end) if index > 50 and index not in fetched)
        found = await client.asked("closest", log=LOG, timestamp_ms=0)
        assert found["index"] == fetched[0], "from a time: the first record that is there"
        await reader.subscribe(LOG, id="middle", **{"from": str(middle), "to": str(end)})
        got = await reader.drain()
        assert indexes(got[:-1]) == [index for index in fetched if index > middle]
        assert got[-1].headers["range-end"] == "true"
        described = await client.asked("describe", log=LOG)
        assert (
            described["compacts"] is True
            and described["compacted_count"] == stage.log().records.compacted.removed_count
        )


@pytest.mark.parametrize("order", [{}, {"exclusive": "true"}, {"order": "by-key"}])
async def test_a_group_that_stands_in_what_is_removed_continues(order: dict[str, str], tmp_path: Path) -> None:
    lives = LogLives(tmp_path, POLICIES, journal=JOURNAL)
    async with lives.life() as stage:
        producer, worker = await stage.connect(), await stage.connect()
        await keyed(producer, 40)
        await worker.subscribe(
            LOG, id="g", ack="client-individual", group="g", prefetch_count="10", **{"from": "earliest"}, **order
        )
        got = await worker.next_messages(10)
        for each in got[::2]:
            await worker.ack(each)
        await worker.sync()
        await keyed(producer, COUNT, 41)
        assert await compacted(stage) > 100
        await worker.nack(got[1])  # comes again, unless it was removed
        await worker.sync()
    async with lives.life() as stage:
        worker = await stage.connect()
        await worker.subscribe(LOG, id="g", ack="client-individual", group="g", **{"from": "earliest"}, **order)
        seen: dict[int, bytes] = {}
        while got := await worker.drain():
            for each in got:
                seen[int(each.headers["index"])] = each.body
                await worker.ack(each)
            await worker.sync()
        end = stage.log().records.next_index
        assert last_values(seen.items()) == {index % KEYS_COUNT: value(index) for index in range(end - 9, end - 1)}
        assert stage.group().lag_count == 0


async def test_a_tombstone_removes_its_key_and_goes_in_time() -> None:
    async with LogStage(POLICIES, journal=JOURNAL) as stage:
        client = await stage.connect()
        for index in range(3):
            await client.send(LOG, f"old {index}", key="gone")
        await client.send(LOG, "", key="gone", tombstone="true")
        await client.send(LOG, "", key="empty")
        await client.send(LOG, "stays", tombstone="true", key="full")
        await keyed(client, COUNT)
        await compacted(stage)
        got = await all_of(client)
        assert [each.body for each in got if each.headers["key"] == "gone"] == [b""], "for those who read on"
        await trio.sleep(61)
        await keyed(client, COUNT)
        await compacted(stage)
        keys = {each.headers["key"]: each.body for each in await all_of(client)}
        assert "gone" not in keys
        assert keys["empty"] == b"" and keys["full"] == b"stays"


async def test_more_keys_than_have_room_are_compacted_in_rounds() -> None:
    journal = {**JOURNAL, "compaction_bytes_max": 3 * 224}
    async with LogStage(POLICIES, journal=journal) as stage:
        client = await stage.connect()
        await keyed(client, 140)
        await compacted(stage)
        assert stage.log().records.compacted.rounds_count > 5
        assert stage.broker.logs is not None and stage.broker.logs.compactor is not None
        assert stage.broker.logs.compactor.facts()["keys"] == 0
        got = records_of(await all_of(client))
        assert last_values(got) == {index % KEYS_COUNT: value(index) for index in range(133, 140)}


def test_a_database_of_logs_is_refused_in_words() -> None:
    store = StoreConfig(engine="postgresql", url="postgresql://somewhere/broker")
    with pytest.raises(ValueError, match=r"destinations\[1\].log_compact: logs in a database"):
        Config(store=store, destinations=(DestinationPolicy("/log/x", {"log_compact": True}),))
