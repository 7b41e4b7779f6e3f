"""A disk that is full or broken: senders wait and are told the truth later, readers and retention go on, nothing is
appended twice or in half.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import pytest
import trio

from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from tests.faults.broker_log import BrokerLog
from tests.faults.logs.lives import LogLives, LogStage, everything, index_of, receipted, records
from tests.how_often import rounds
from tests.scenarios.client import Client

LOG: Final = "/log/orders"
ERRORS: Final = {"full": errno.ENOSPC, "broken": errno.EIO}
FOREVER: Final = 1_000_000
WAYS: Final = (
    *(("full", False, 1), ("broken", True, 4), ("full", True, 1), ("broken", False, 4)),
    *(("full", False, 4), ("broken", True, 1), ("full", True, 4), ("broken", False, 1)),
)
"""With which error, after a part of it or not, and how many times in turn: pairs of opposites."""
OPERATIONS_COUNT: Final = 84
"""More than `a_busy_time` makes: 66, or 74 when a thread is late."""


async def batch(client: Client, values: list[list[bytes]], **headers: str) -> None:
    """SEND these as so many batches."""
    body = b"".join(encode(some, codec=Codec.ZSTD if number % 2 else Codec.NONE) for number, some in enumerate(values))
    await client.send(LOG, body, content_type=CONTENT_TYPE, **headers)


def large(name: str, count: int) -> list[bytes]:
    return [f"{name} {number} ".encode() + b"x" * 300 for number in range(count)]


async def a_busy_time(stage: LogStage) -> list[bytes]:
    """Appends of all kinds, each confirmed, with readers; returns what is in the log, in order. Its first is there."""
    producer, consumer = await stage.connect(), await stage.connect()
    await consumer.subscribe(LOG, ack="client-individual", group="g", **{"from": "earliest"})
    sent = [b"first"]
    for number in range(3):
        await producer.sent(LOG, f"plain {number}")
        sent.append(f"plain {number}".encode())
    runs = [large("a", 8), large("b", 3), large("c", 7)]  # more than a page of data
    await batch(producer, runs, receipt="batch")
    await producer.expect_receipt("batch")
    sent += [value for some in runs for value in some]
    for number in range(3):
        await producer.send(LOG, f"together {number}", receipt=f"t{number}")
        sent.append(f"together {number}".encode())
    for number in range(3):
        await producer.expect_receipt(f"t{number}")
    await batch(producer, [[b"%d" % number for number in range(70)]], receipt="many")  # more than a page of the index
    await producer.expect_receipt("many")
    sent += [b"%d" % number for number in range(70)]
    for index, delivery in enumerate(await consumer.next_messages(len(sent))):
        assert (index_of(delivery), delivery.body) == (index, sent[index])
        await consumer.ack(delivery)
    told = receipted(producer)
    assert told["batch"] == (4, 18, "disk")
    assert [told[f"t{number}"] for number in range(3)] == [(22 + number, 1, "disk") for number in range(3)]
    assert told["many"] == (25, 70, "disk")
    return sent


async def operations_of_a_busy_time(folder: Path) -> int:
    lives = LogLives(folder)
    async with lives.life() as stage:
        await (await stage.connect()).sent(LOG, "first")
        before = lives.files.operations_count
        await a_busy_time(stage)
        return lives.files.operations_count - before


async def test_there_are_not_more_operations_than_are_tried(tmp_path: Path) -> None:
    assert 20 < await operations_of_a_busy_time(tmp_path) <= OPERATIONS_COUNT


@pytest.mark.parametrize("first", range(1, OPERATIONS_COUNT, 6))
async def test_an_operation_that_fails_costs_time_only(tmp_path: Path, first: int) -> None:
    """Whichever it is; and after a power cut all of it is there. Each fails in one way, and the next one in another."""
    for at in range(first, first + 6):
        for way in range(at, at + min(rounds(1), len(WAYS))):
            await _with_a_failure(tmp_path / f"{at} {way}", at, *WAYS[way % len(WAYS)])


async def _with_a_failure(folder: Path, at: int, kind: str, short: bool, times: int) -> None:
    lives = LogLives(folder)
    async with lives.life(end="power cut") as stage:
        await (await stage.connect()).sent(LOG, "first")
        lives.files.fail(at, ERRORS[kind], short=short, times=times)
        sent = await a_busy_time(stage)
        lives.files.fail(0, 0)
    async with lives.life() as stage:
        assert records(await everything(stage, LOG)) == dict(enumerate(sent))
        consumer = await stage.connect()
        await consumer.subscribe(LOG, group="g")
        assert not records(await consumer.drain()), "all of it was acknowledged"


@pytest.mark.parametrize("kind", ERRORS)
async def test_while_the_disk_fails_senders_wait_and_readers_go_on(tmp_path: Path, said: BrokerLog, kind: str) -> None:
    lives = LogLives(tmp_path, policies={"/log/>": {"memory_bytes": 5_000}})
    async with lives.life(end="power cut") as stage:
        producer, other, asker = await stage.connect(), await stage.connect(), await stage.connect()
        for number in range(10):
            await producer.sent(LOG, f"{number}")
        consumer = await stage.connect()
        await consumer.subscribe(LOG, group="g", ack="client-individual", **{"from": "earliest"})
        lives.files.fail(1, ERRORS[kind], times=FOREVER)
        for number in range(10, 30):
            await producer.send(LOG, f"{number} " + "x" * 1000, receipt=f"{number}")
            await trio.sleep(0.3)
        await producer.silence(30)
        assert "/log/orders" in str(stage.chains()), "who waits for whom can be seen"
        report = await stage.ask(asker, "describe", log=LOG)
        assert report["next"] == 10
        assert report["failing"]
        (line,) = said.lines(event="the disk of a log fails: its senders and readers wait")
        assert line["log"] == LOG
        # Readers read, groups settle (their places are in the store), queues work.
        assert len(records(await everything(stage, LOG))) == 10
        for delivery in await consumer.next_messages(10):
            await consumer.ack(delivery)
        await other.sent("/queue/q", "passes")
        lives.files.fail(0, 0)
        for number in range(10, 30):
            await producer.expect_receipt(f"{number}")
        assert {index for index, _count, _how in receipted(producer).values()} == set(range(30))
        assert said.lines(event="the disk serves the log again", log=LOG)
        assert len(await consumer.next_messages(20)) == 20
    async with lives.life() as stage:
        assert list(records(await everything(stage, LOG))) == list(range(30))


@pytest.mark.parametrize("short", [False, True], ids=["whole", "short"])
async def test_a_disk_that_is_full_in_the_middle_of_a_batch(tmp_path: Path, short: bool) -> None:
    """Nothing of it is to be seen until all of it is there; also not after a crash."""
    for end in ("in order", "crash", "power cut"):
        for at in range(1, 9):
            lives = LogLives(tmp_path / f"{end} {at}")
            async with lives.life(end=end) as stage:
                producer = await stage.connect()
                await producer.sent(LOG, "first")
                lives.files.fail(at, errno.ENOSPC, short=short, times=FOREVER)
                runs = [large("a", 8), large("b", 8), large("c", 7)]
                await batch(producer, runs, receipt="batch")
                await trio.sleep(3)
                there = len(records(await everything(stage, LOG)))
                assert there in (1, 24), "all or nothing"
                if end == "in order":
                    lives.files.fail(0, 0)
                    await producer.expect_receipt("batch")
            lives.files.fail(0, 0)
            async with lives.life() as stage:
                found = records(await everything(stage, LOG))
                assert len(found) in ((24,) if end == "in order" else (there,) if end == "crash" else (1, 24))
                producer = await stage.connect()
                await producer.send(LOG, "goes on", receipt="r")
                await producer.expect_receipt("r")
                assert receipted(producer)["r"][0] >= len(found)


async def test_a_log_that_can_not_be_made_is_refused_and_made_later(tmp_path: Path) -> None:
    for at in range(1, 8):
        lives = LogLives(tmp_path / str(at))
        async with lives.life() as stage:
            lives.files.fail(at, errno.ENOSPC)
            producer = await stage.connect()
            await producer.send(LOG, "perhaps", receipt="r")
            await trio.sleep(3)
            producer.receive_now()
            if producer.error is not None:
                await producer.expect_error("No space left on device")
                producer = await stage.connect()
                await producer.sent(LOG, "perhaps")
            assert records(await everything(stage, LOG)) == {0: b"perhaps"}


async def test_retention_goes_on_while_the_disk_is_full(tmp_path: Path) -> None:
    """Files go; that is what makes room."""
    lives = LogLives(tmp_path, policies={"/log/>": {"log_retention_seconds": 60.0}})
    async with lives.life() as stage:
        producer = await stage.connect()
        for value in large("old", 60):
            await producer.sent(LOG, value)
        pages = set(lives.folder_of(LOG).glob("data-*"))
        write, truncate = lives.files.pwritev, lives.files.truncate

        def full(file: int, parts: list[bytes], offset: int) -> int:
            if sum(map(len, parts)) == 72:  # a slot of the head, which has its space
                return write(file, parts, offset)
            raise OSError(errno.ENOSPC, "full")

        lives.files.pwritev = full  # type: ignore[method-assign,assignment]
        await producer.send(LOG, "waits", receipt="waits")
        await trio.sleep(100)
        left = set(lives.folder_of(LOG).glob("data-*"))
        assert len(left) < len(pages) / 2
        asker = await stage.connect()
        assert (await stage.ask(asker, "describe", log=LOG))["first"] > 50
        lives.files.pwritev, lives.files.truncate = write, truncate  # type: ignore[method-assign]
        await producer.expect_receipt("waits")
        assert receipted(producer)["waits"][0] == 60


async def test_a_record_that_fits_into_no_page_is_refused_and_holds_up_nobody(tmp_path: Path) -> None:
    """However much the destination would take."""
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, other = await stage.connect(), await stage.connect()
        await other.sent(LOG, "before")
        await producer.send(LOG, "x" * 5_000, receipt="r")
        await producer.expect_error("5")
        await other.sent(LOG, "after")
        assert records(await everything(stage, LOG)) == {0: b"before", 1: b"after"}


async def test_small_records_that_come_together_are_more_than_a_page(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.send_all(LOG, ("x" * 1000 + str(number) for number in range(50)), receipt="r")
        await trio.sleep(1)
        assert len(records(await everything(stage, LOG))) == 50


async def test_a_file_that_can_not_be_opened_now_is_read_later(tmp_path: Path, said: BrokerLog) -> None:
    """Too many open files says nothing of the records: the reader waits."""
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer = await stage.connect()
        for value in large("v", 60):
            await producer.sent(LOG, value)
    async with lives.life() as stage:
        real = lives.files.map

        def none_left(path: Path) -> None:
            raise OSError(errno.EMFILE, "Too many open files", str(path))

        lives.files.map = none_left  # type: ignore[method-assign]
        reader, batches = await stage.connect(), await stage.connect()
        await reader.subscribe(LOG, **{"from": "earliest"})
        await batches.subscribe(LOG, batch="4000", **{"from": "earliest"})
        await trio.sleep(10)
        assert said.lines(event="the disk of a log fails: its senders and readers wait")
        lives.files.map = real  # type: ignore[method-assign]
        assert len(await reader.next_messages(60)) == 60
        assert (await batches.next_message()).headers["index"] == "0"


@pytest.mark.parametrize("kind", ERRORS)
async def test_a_broker_that_stops_while_the_disk_fails_loses_nothing_that_was_receipted(
    tmp_path: Path, kind: str
) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer = await stage.connect()
        for number in range(5):
            await producer.sent(LOG, f"{number}")
        lives.files.fail(1, ERRORS[kind], times=FOREVER)
        await producer.send(LOG, "never told", receipt="never")
        await trio.sleep(2)
    assert "never" not in receipted(producer)
    lives.files.kill()
    async with lives.life() as stage:
        found = records(await everything(stage, LOG))
        assert [found[index] for index in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(found) <= 6
