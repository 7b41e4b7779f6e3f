"""Stops in order with receipts under way, and two brokers on one folder."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.store.log_storage import LogStorage
from tests.faults.broker_log import BrokerLog
from tests.faults.logs.lives import LogLives, everything, receipted, records
from tests.scenarios.stage import wall_clock_ms
from tests.store.faulty import FaultyEngine

LOG: Final = "/log/orders"


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_a_stop_with_receipts_under_way_loses_nothing_that_was_taken(tmp_path: Path, turns: int) -> None:
    """What was taken is written, each RECEIPT that still comes is true, and acknowledgements are kept."""
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.sent(LOG, "0")
        await consumer.subscribe(LOG, group="g", ack="client-individual", **{"from": "earliest"})
        await consumer.ack(await consumer.next_message())
        for number in range(1, 40):
            await producer.send(LOG, f"{number}", receipt=f"{number}")
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        await stage.broker.stop()
        producer.receive_now()
    async with lives.life() as stage:
        found = records(await everything(stage, LOG))
        for name, (index, _count, how) in receipted(producer).items():
            assert how == "disk"
            assert name.startswith("client") or found[index] == name.encode()
        assert found == {index: b"%d" % index for index in range(len(found))}, "in order, without holes"
        assert not stage.broker.logs or not stage.broker.logs.logs[LOG].records.gaps
        consumer = await stage.connect()
        await consumer.subscribe(LOG, group="g")
        assert 0 not in records(await consumer.drain())


async def test_a_second_broker_on_one_folder_is_refused_its_logs_and_harms_nobody(
    tmp_path: Path, said: BrokerLog
) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.sent(LOG, "first")
        second = LogStorage(tmp_path / "logs", lives.journal, now_ms=wall_clock_ms, boot="boot 0")
        with pytest.raises(Exception, match="is written to by process"):
            second.open(LOG)
        async with Broker(
            lives.config(), engine=FaultyEngine(Random(1)), journal_folder=tmp_path / "logs", boot="boot 0"
        ) as other:
            assert other.logs is not None
            assert not other.logs.logs
            (line,) = said.lines(event="a log can't be opened")
            assert "is written to by process" in line["error"]
            await other.stop()
        await producer.sent(LOG, "second")
        assert records(await everything(stage, LOG)) == {0: b"first", 1: b"second"}
