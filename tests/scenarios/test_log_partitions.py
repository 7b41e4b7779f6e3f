"""Partitions of a log: each is a log of its own, and the key of a SEND decides, always for the same one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from sluiceway.config.errors import ConfigError
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from tests.scenarios.client import Client, Delivery
from tests.scenarios.log_stage import LOG, LogLives, LogStage, send_batch

COUNT = 4
POLICIES: dict[str, dict[str, Any]] = {LOG: {"log_partitions": COUNT}}


def place_of(key: str, count: int = COUNT) -> int:
    return crc32(key.encode()) % count


async def receipted(client: Client, log: str = LOG, **headers: str) -> dict[str, str]:
    """Append a record; returns what its RECEIPT says."""
    await client.sent(log, "r", **headers)
    found = [frame for frame in client.received if frame.command == "RECEIPT" and "count" in frame.headers]
    return dict(found[-1].headers)


async def keyed(client: Client, keys_count: int, rounds: int) -> None:
    """Append `rounds` records of each key, in turns."""
    for number in range(rounds):
        for key in range(keys_count):
            await client.send(LOG, f"{key} {number}", key=f"key {key}")
    await client.sent(LOG, "the end", key="key 0")


async def records_in(client: Client, partition: int) -> list[Delivery]:
    await client.subscribe(f"{LOG}/{partition}", id="all", **{"from": "earliest"})
    found = await client.drain()
    await client.unsubscribe("all")
    return found


async def test_a_key_is_in_one_partition_in_order_and_the_receipt_says_where() -> None:
    async with LogStage(POLICIES) as stage:
        client, reader = await stage.connect(), await stage.connect()
        await keyed(client, 20, 5)
        seen = 0
        for partition in range(COUNT):
            rows: dict[str, list[str]] = {}
            for each in await records_in(reader, partition):
                assert each.headers["partition"] == str(partition)
                assert each.headers["destination"] == f"{LOG}/{partition}"
                assert place_of(each.headers["key"]) == partition
                rows.setdefault(each.headers["key"], []).append(each.text)
                seen += 1
            for key, texts in rows.items():
                texts = [text for text in texts if text != "the end"]
                assert texts == [f"{key[4:]} {number}" for number in range(5)]
        assert seen == 101
        receipt = await receipted(client, key="key 1")
        assert receipt["partition"] == str(place_of("key 1"))
        assert int(receipt["index"]) == stage.log(f"{LOG}/{place_of('key 1')}").records.next_index - 1


async def test_other_keys_and_none() -> None:
    async with LogStage(POLICIES) as stage:
        client = await stage.connect()
        same = {
            (await receipted(client, **headers))["partition"]
            for headers in ({"key": "ab"}, {"key_base64": "YWI="}, {"group": "ab"})
        }
        assert same == {str(place_of("ab"))}
        assert (await receipted(client, key_base64="größe"))["partition"] == str(place_of("größe"))  # as it is written
        found = Counter([(await receipted(client))["partition"] for _ in range(200)])
        assert len(found) == COUNT
        assert min(found.values()) > 25, found
        receipt = await receipted(client, f"{LOG}/2", key="ab")
        assert receipt["partition"] == "2"


async def test_a_repeated_send_finds_its_partition_with_a_key_and_without() -> None:
    async with LogStage(POLICIES) as stage:
        client = await stage.connect()
        keys: list[dict[str, str]] = [{"key": "ab"}, {}]
        for headers in keys:
            places = []
            for sequence in ("7", "7"):
                receipt = await receipted(client, **headers, producer_id="p", producer_sequence=sequence)
                places.append((receipt["partition"], receipt["index"]))
            assert places[0] == places[1]


async def test_a_transaction_over_partitions_is_one() -> None:
    async with LogStage(POLICIES) as stage:
        client = await stage.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        for key in range(12):
            await client.send(LOG, str(key), key=f"key {key}", transaction="t")
        assert all(not log.records.next_index for log in stage.broker.logs)  # type: ignore[union-attr]
        await client.request("COMMIT", {"transaction": "t"})
        counts = Counter(place_of(f"key {key}") for key in range(12))
        found = {log.partition: log.records.next_index for log in stage.broker.logs}  # type: ignore[union-attr]
        assert found == dict(counts)


async def test_a_batch_names_a_partition_or_a_key() -> None:
    async with LogStage(POLICIES) as stage:
        client = await stage.connect()
        batch = encode([b"a", b"b"], codec=Codec.NONE)
        await send_batch(client, batch, log=f"{LOG}/1")
        await client.sent(LOG, batch, content_type=CONTENT_TYPE, key="ab")
        assert stage.log(f"{LOG}/1").records.next_index == 2 + 2 * (place_of("ab") == 1)
        await client.send(LOG, batch, content_type=CONTENT_TYPE)
        error = await client.expect_error()
        assert "divided" in error.headers["message"]


async def test_names_that_are_no_partition_are_refused() -> None:
    async with LogStage(POLICIES) as stage:
        asker = await stage.connect_asking()
        await asker.client.sent(f"{LOG}/0", "a")
        assert (await asker.asked("size", log=f"{LOG}/0"))["size"] == 1
        reply = await asker.ask("describe", log=LOG)
        assert "/log/orders/0 to /log/orders/3" in reply["message"]
        assert await asker.refused("cursor", log=LOG, group="g") == "INVALID_TOPIC"
        await asker.client.send(f"{LOG}/{COUNT}", "a")
        error = await asker.client.expect_error()
        assert "none of the 4 partitions" in error.headers["message"]
        assert set(stage.broker.logs.logs) == {f"{LOG}/0"}  # type: ignore[union-attr]


async def test_the_number_may_grow_and_never_shrink(tmp_path: Path) -> None:
    lives = LogLives(tmp_path, POLICIES)
    async with lives.life() as stage:
        client = await stage.connect()
        for partition in range(COUNT):
            await client.sent(f"{LOG}/{partition}", "a")
    lives = LogLives(tmp_path, {LOG: {"log_partitions": 3}})
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        async with lives.life():
            pass
    text = str(caught.value if isinstance(caught.value, ConfigError) else caught.value.exceptions[0])
    assert "/log/orders/3 exists" in text
    assert "set 4 or more" in text
    lives = LogLives(tmp_path, {LOG: {"log_partitions": 8}})
    async with lives.life() as stage:
        client = await stage.connect()
        key = next(f"key {number}" for number in range(100) if place_of(f"key {number}", 8) >= COUNT)
        receipt = await receipted(client, key=key)
        assert receipt["partition"] == str(place_of(key, 8))


async def test_a_log_that_exists_is_not_divided(tmp_path: Path) -> None:
    async with LogLives(tmp_path).life() as stage:
        await (await stage.connect()).sent(LOG, "a")
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        async with LogLives(tmp_path, POLICIES).life():
            pass
    text = str(caught.value if isinstance(caught.value, ConfigError) else caught.value.exceptions[0])
    assert "exists as one log" in text
