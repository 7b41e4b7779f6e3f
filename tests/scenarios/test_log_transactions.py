"""SENDs to logs in transactions: all or nothing, together with queues and with acknowledgements of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, PASSCODE, LogLives, LogStage
from tests.scenarios.spooled import spooled_keys
from tests.scenarios.stage import Stage
from tests.store.journal_engine import JournalEngine

OUT = "/queue/out"
COPY = "/log/copy"
SMALL = {"transaction_bytes_max": 10_000}


async def texts_of(client: Client, log: str = LOG, count: int = 0) -> list[str]:
    """All records of a log, at least `count`, and nothing twice."""
    await client.subscribe(log, id=f"texts {log}", **{"from": "earliest"})
    found = await client.next_texts(count)
    found += [delivery.text for delivery in await client.drain()]
    await client.unsubscribe(f"texts {log}")
    return found


async def commit(client: Client, name: str = "t") -> None:
    await client.request("COMMIT", {"transaction": name})


async def test_records_are_there_with_the_receipt_of_commit_and_not_before() -> None:
    async with LogStage() as stage:
        client, reader = await stage.connect(), await stage.connect()
        await client.sent(LOG, "before")
        await client.frame("BEGIN", {"transaction": "t"})
        for number in range(3):
            await client.send(LOG, f"r{number}", transaction="t", colour="red", receipt=f"s{number}")
        await client.expect_receipt("s2")
        await client.sent(LOG, "meanwhile")
        assert await texts_of(reader) == ["before", "meanwhile"]
        await commit(client)
        assert stage.log().records.next_index == 5
        await reader.subscribe(LOG, id="all", **{"from": "2"})
        deliveries = await reader.next_messages(3)
        assert [delivery.text for delivery in deliveries] == ["r0", "r1", "r2"]
        assert {delivery.headers["colour"] for delivery in deliveries} == {"red"}
        assert "transaction" not in deliveries[0].headers


async def test_nothing_of_an_aborted_one_is_appended() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send(LOG, "no", transaction="t")
        await client.request("ABORT", {"transaction": "t"})
        await client.frame("BEGIN", {"transaction": "u"})
        await client.send(LOG, "neither", transaction="u")
        client.vanish()
        other = await stage.connect()
        await other.sent(LOG, "yes")
        assert await texts_of(other) == ["yes"]


@pytest.mark.parametrize("many", [False, True])
async def test_what_is_sent_behind_a_commit_is_behind_it_in_the_log(many: bool) -> None:
    """Of one connection; `many`: more COMMITs than may be on their way at once, none of which is waited for."""
    count = 100 if many else 1
    async with LogStage() as stage:
        client = await stage.connect()
        for number in range(count):
            await client.frame("BEGIN", {"transaction": "t"})
            await client.send(LOG, f"a{number}", transaction="t")
            await client.send(LOG, f"b{number}", transaction="t")
            await client.frame("COMMIT", {"transaction": "t"})
            await client.send(LOG, f"c{number}")
        await client.sent(LOG, "last")
        expected = [f"{letter}{number}" for number in range(count) for letter in "abc"]
        assert await texts_of(client) == [*expected, "last"]


@pytest.mark.parametrize("end", ["in order", "crash"])
@pytest.mark.parametrize("large", [False, True])
async def test_consume_transform_produce_is_exactly_once_over_a_restart(tmp_path: Path, end: str, large: bool) -> None:
    """From a group of one log to another log and a queue, at once."""
    lives = LogLives(tmp_path, **SMALL)
    fill = "." * (2_000 if large else 1)
    async with lives.life(end=end) as stage:
        client, worker = await stage.connect(), await stage.connect()
        await client.send_all(LOG, range(10))
        await worker.subscribe(LOG, id="w", group="g", **{"from": "earliest"}, ack="client-individual")
        deliveries = await worker.next_messages(10)
        for name, some in (("first", deliveries[:6]), ("open", deliveries[6:])):
            await worker.frame("BEGIN", {"transaction": name})
            for delivery in some:
                await worker.send(f"{COPY},{OUT}", delivery.text + fill, transaction=name, persistent="true")
                await worker.ack(delivery, transaction=name)
        await commit(worker, "first")
        worker.vanish()
    async with lives.life() as stage:
        client = await stage.connect()
        assert await texts_of(client, COPY) == [f"{number}{fill}" for number in range(6)]
        await client.subscribe(OUT, id="out")
        assert await client.next_texts(6) == [f"{number}{fill}" for number in range(6)]
        await client.silence()
        await client.subscribe(LOG, id="w", group="g", ack="client-individual")
        assert await client.next_texts(4) == ["6", "7", "8", "9"]
        await stage.settled_down()
        assert not spooled_keys(lives.engine)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_batches_are_appended_as_they_are(codec: Codec) -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        batches = [
            encode([f"{number}.{place}".encode() for place in range(3)], head=b"n:1", codec=codec)
            for number in range(2)
        ]
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send(LOG, "plain", transaction="t")
        await client.send(LOG, b"".join(batches), transaction="t", content_type=CONTENT_TYPE)
        await commit(client)
        assert await texts_of(client) == ["plain", "0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


async def test_whatever_of_the_store_a_crash_leaves_the_log_has_each_record_once(tmp_path: Path) -> None:
    """The log has all records; the store may have noted that or not: none is appended again. And where the log has
    nothing yet, a start appends all."""
    journal = JournalEngine()
    async with LogStage(engine=journal, folder=tmp_path / "logs", **SMALL) as stage:
        client = await stage.connect()
        await client.sent(LOG, "before")
        for name in ("t", "u"):
            await client.frame("BEGIN", {"transaction": name})
            for number in range(12):
                await client.send(LOG, f"{name}{number}".ljust(1_000), transaction=name)
        begun = len(journal.batches)
        await commit(client, "t")
        await commit(client, "u")
        client.vanish()
    expected = ["before"] + [f"{name}{number}" for name in "tu" for number in range(12)]
    had = set()
    for count in range(begun, len(journal.batches)):
        engine = journal.after(count)
        had.add(len(spooled_keys(engine)))
        stage = LogStage(engine=engine, folder=tmp_path / "logs", boot=f"boot {count}", **SMALL)
        async with stage.broker:
            client = await stage.connect()
            found = [text.strip() for text in await texts_of(client)]
            # Where logs are in the store, too, they end with this batch.
            assert found == expected or (stage.in_engine and found in (expected[:1], expected[:13])), f"{count} batches"
            await stage.settled_down()
            assert not spooled_keys(engine)
            client.vanish()
    assert len(had) > 3, "there were pieces left"
    if stage.in_engine:
        return
    committed = next(count for count in range(begun, len(journal.batches)) if _commits(journal, count))
    engine = journal.after(committed)
    async with LogStage(engine=engine, folder=tmp_path / "empty", **SMALL).broker as broker:
        assert broker.logs is not None
        assert broker.logs.logs[LOG].records.next_index == 12


def _commits(journal: JournalEngine, count: int) -> int:
    return sum(key[:1] == b"t" for key in spooled_keys(journal.after(count)))


@pytest.mark.parametrize("again", [False, True])
async def test_records_for_a_log_that_is_deleted_are_dropped_with_it(again: bool) -> None:
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await client.sent(LOG, "old")
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send(LOG, "new", transaction="t")
        await client.send(OUT, "to a queue", transaction="t", persistent="true")
        await client.sync()
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        if again:
            await client.sent(LOG, "another")
        await commit(client)  # the log is made when it commits, as for a SEND
        assert await texts_of(client) == (["another"] if again else []) + ["new"]


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        ("x" * 20_000, {}, "message-size-too-large"),
        ("no batch", {"content_type": CONTENT_TYPE}, "bad-batch"),
        ("x", {"long": "y" * 65_480}, "message-size-too-large"),
    ],
)
@pytest.mark.parametrize("spooled", [False, True])
async def test_what_a_log_can_not_take_costs_the_whole_transaction(
    body: str, headers: dict[str, str], code: str, spooled: bool
) -> None:
    limits = {"header_line_bytes_max": 70_000, "header_block_bytes_max": 100_000}
    limits |= {"transaction_bytes_max": 1_000 if spooled else 1_000_000}
    async with LogStage({LOG: {"log_batch_bytes_max": 70_000 if headers else 10_000}}, **limits) as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send(LOG, "good", transaction="t")
        await client.send(OUT, "good", transaction="t")
        await client.send(LOG, body, transaction="t", **headers)
        await client.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        error = await client.expect_error("")
        assert error.headers["code"] == code
        await other.subscribe(OUT)
        await other.silence()
        assert await texts_of(other) == []


async def test_without_a_store_it_is_refused_in_words() -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        await client.send(LOG, "x", transaction="t")
        error = await client.expect_error("data folder")
        assert "/log/" in error.headers["message"]


async def test_one_larger_than_memory_goes_to_its_logs_in_order() -> None:
    async with LogStage(**SMALL) as stage:
        client = await stage.connect()
        await client.frame("BEGIN", {"transaction": "t"})
        for number in range(200):
            await client.send((LOG, COPY)[number % 2], str(number).ljust(1_000), transaction="t")
        await client.sync()
        await commit(client)
        assert [int(text) for text in await texts_of(client)] == list(range(0, 200, 2))
        assert [int(text) for text in await texts_of(client, COPY)] == list(range(1, 200, 2))
