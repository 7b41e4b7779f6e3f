"""Flow of logs: a stalled reader holds nothing but its own place, a slow disk holds senders back, memory is bounded."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
import trio

from sluiceway.queues.logs.codecs import Codec
from tests.scenarios.log_stage import LOG, LogStage, fill, indexes, numbered, records_of, send_batch
from tests.store.bigarray.faulty import FaultyFiles


async def test_a_stalled_reader_holds_nobody_else() -> None:
    """Neither its neighbours nor senders; what is kept for it is its outbound buffer."""
    async with LogStage({LOG: {"memory_bytes": 100_000}}, outbound_bytes_max=50_000) as stage:
        producer, stalled, brisk = [await stage.connect() for _ in range(3)]
        await stalled.subscribe(LOG, **{"from": "earliest"})
        await stalled.subscribe(LOG, id="batches", batch="10000", **{"from": "earliest"})
        await stalled.subscribe(LOG, id="grouped", group="g", **{"from": "earliest"})
        await brisk.subscribe(LOG, **{"from": "earliest"})
        got: list[int] = []
        for start in range(0, 5000, 500):
            await fill(producer, 500, first=start, padding="p" * 200)
            got += indexes(await brisk.drain(0.01))
        assert got == list(range(5000))
        used = {
            resource.name: limiter.used_bytes
            for resource in stage.broker.manager.resources
            for controller in resource.controllers
            if (limiter := controller.sink_limiter) is not None and limiter.used_bytes
        }
        assert sum(used.values()) - used.get("log records", 0) < 300_000, used
        assert used.get("log records", 0) < 64 << 20
        # It is not lost: as soon as it reads it gets all.
        late = await stalled.drain()
        assert records_of(d for d in late if d.headers["subscription"] == "s") == [
            (number, b"%d" % number) for number in range(5000)
        ]
        assert len(records_of(d for d in late if d.headers["subscription"] == "batches")) == 5000
        assert len([d for d in late if d.headers["subscription"] == "grouped"]) == 5000


@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_a_consumer_that_does_not_acknowledge_holds_its_credit_and_no_more(ack: str) -> None:
    async with LogStage() as stage:
        producer, idle = await stage.connect(), await stage.connect()
        await idle.subscribe(LOG, group="g", ack=ack, prefetch_count="10", **{"from": "earliest"})
        await fill(producer, 3000)
        assert len(await idle.drain()) == 10
        other = await stage.connect()
        await other.subscribe(LOG, group="g", **{"from": "earliest"})
        assert len(await other.drain()) == 2990
        assert stage.group().front == 0
        assert len(stage.group()._settled) == 1


async def test_the_cache_of_records_stays_within_its_limit() -> None:
    async with LogStage(journal={"cache_bytes_max": 100_000}) as stage:
        producer = await stage.connect()
        for _ in range(30):
            await send_batch(producer, numbered(("x" * 100 for _ in range(100)), codec=Codec.ZSTD))
        readers = [await stage.connect() for _ in range(5)]
        for number, reader in enumerate(readers):
            await reader.subscribe(LOG, **{"from": str(number * 100)})
        for number, reader in enumerate(readers):
            assert indexes(await reader.drain()) == list(range(number * 100, 3000))
        (controller,) = stage.log().reading.controllers
        assert controller.sink_limiter.used_bytes < 1_500_000


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_fails_holds_senders_back_and_lets_them_go_on(tmp_path: Path, error: int) -> None:
    """Readers go on meanwhile, and all that was sent is there once, in order."""
    files = FaultyFiles(Random(1), tmp_path / "vault")
    policies = {LOG: {"memory_bytes": 20_000}}
    async with LogStage(policies, folder=tmp_path / "logs", files=files, stash_bytes_max=20_000) as stage:
        producer, reader = await stage.connect(), await stage.connect()
        await fill(producer, 100)
        files.fail(1, error, times=1_000_000)
        taken = 0
        with trio.move_on_after(5):
            for number in range(100, 100_000):
                await producer.stream.send_all(producer.encode("SEND", {"destination": LOG}, f"{number}" + "." * 100))
                taken = number
        assert 100 < taken < 2000, "it is held back"
        assert any("log" in chain or LOG in chain for chain in stage.chains()), stage.chains()
        await reader.subscribe(LOG, **{"from": "earliest"})
        assert indexes(await reader.next_messages(100)) == list(range(100))
        assert stage.log().failing
        files.fail(0, 0)
        await trio.sleep(3)
        assert not stage.log().failing
        rest = await reader.drain()
        values = [int(delivery.body.strip(b".")) for delivery in rest]
        assert values == list(range(100, 100 + len(values)))
        assert len(values) >= taken - 100
        producer.vanish()
        await trio.sleep(1)


async def test_receipts_leave_in_the_order_of_indexes_and_none_too_early(tmp_path: Path) -> None:
    files = FaultyFiles(Random(1), tmp_path / "vault")
    async with LogStage(folder=tmp_path / "logs", files=files) as stage:
        producer = await stage.connect()
        await producer.sent(LOG, "first")
        files.fail(1, errno.EIO, times=6)
        for number in range(5):
            await producer.send(LOG, str(number), receipt=f"r{number}")
        await trio.sleep(60)
        for number in range(5):
            await producer.expect_receipt(f"r{number}")
        told = [int(frame.headers["index"]) for frame in producer.received if "index" in frame.headers]
        assert told == list(range(6))
        assert stage.log().records.synced_index == 6
