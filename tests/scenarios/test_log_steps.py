"""What is sent to logs and takes long to check: it is checked in steps, and all is as if it had been done at once."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from sluiceway.queues.logs.batches import CONTENT_TYPE, Batch, encode
from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.log_storage import LogDisk
from tests.limits.law import frame
from tests.scenarios.log_stage import LOG, PASSCODE, LogStage, indexes, receipts_of, records_of
from tests.scenarios.test_faults import check_good, fail_once

MANY = encode([b"x"]) * 2_000
LARGE = encode([b"x" * 100] * 5_000, codec=Codec.GZIP)


def sent(body: bytes, destination: str = LOG, **headers: object) -> bytes:
    return frame("SEND", body, destination=destination, content_type=CONTENT_TYPE, content_length=len(body), **headers)


@pytest.mark.parametrize(("body", "count"), [(MANY, 2_000), (LARGE, 5_000)])
async def test_what_comes_behind_waits(body: bytes, count: int) -> None:
    async with LogStage() as stage:
        client, reader = await stage.connect(), await stage.connect()
        await reader.subscribe("/queue/q")
        data = sent(body, receipt="a") + frame("SEND", b"y", destination=LOG, receipt="b")
        data += sent(encode([b"z"]), receipt="c") + frame("SEND", b"w", destination="/queue/q")
        data += frame("DISCONNECT", receipt="bye")
        for start in range(0, len(data), 20_000):
            await client.send_raw(data[start : start + 20_000])
        await client.expect_receipt("bye")
        assert receipts_of(client) == [(0, count), (count, 1), (count + 1, 1)]
        assert [each.headers["receipt-id"] for each in client.received if each.command == "RECEIPT"] == [
            *list("abc"),
            "bye",
        ]
        assert len(await reader.next_messages(1)) == 1
        other = await stage.connect()
        await other.subscribe(LOG, **{"from": str(count), "to": str(count + 2)})
        assert [value for _, value in records_of(await other.drain())] == [b"y", b"z"]


async def test_what_is_refused_takes_what_came_before_it() -> None:
    bad = encode([b"bad"])[:-1] + b"\1"
    async with LogStage() as stage:
        client, reader = await stage.connect(), await stage.connect()
        await client.send_raw(
            sent(encode([b"good"]), receipt="a") + sent(bad, receipt="b") + sent(encode([b"late"]), receipt="c")
        )
        error = await client.expect_error()
        assert (error.headers["code"], error.headers["receipt-id"]) == ("bad-batch", "b")
        await reader.subscribe(LOG, **{"from": "earliest"})
        assert [value for _, value in records_of(await reader.drain())] == [b"good"]


@pytest.mark.parametrize("memory_bytes", [1_000_000, 5_000])
async def test_all_of_it_goes_though_its_sender_has_gone(memory_bytes: int) -> None:
    """Also what is parked, which was checked before and is not checked again."""
    async with LogStage({"/log/**": {"memory_bytes": memory_bytes}}) as stage:
        client, reader = await stage.connect(), await stage.connect()
        for _ in range(4):
            await client.send_raw(sent(MANY[:9600]) * 5)
        client.vanish()
        await trio.sleep(5)
        await reader.subscribe(LOG, **{"from": "earliest"})
        assert indexes(await reader.drain()) == list(range(9600 // len(encode([b"x"])) * 20))


async def test_a_log_that_is_deleted_meanwhile_is_told() -> None:
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await client.sent(LOG, encode([b"x"]), content_type=CONTENT_TYPE)
        await asker.client.send("/queue/other", b"")
        log = stage.log()
        assert stage.broker.logs is not None
        checking = log.checking

        def deleted(messages: object) -> object:
            stage.broker.logs.delete(log, PASSCODE, lambda _error: None)  # type: ignore[union-attr]
            return checking(messages)

        log.checking = deleted
        await client.send_raw(sent(MANY[:4800], receipt="late"))
        error = await client.expect_error()
        assert (error.headers["code"], error.headers["receipt-id"]) == ("topic-not-exist", "late")
        assert error.headers["result-code"] == "TOPIC_NOT_EXIST"


async def test_a_composite_is_refused_as_a_whole() -> None:
    async with LogStage({"/log/b": {"log_batch_bytes_max": 2_000}}) as stage:
        client, reader = await stage.connect(), await stage.connect()
        await client.send_raw(sent(MANY[:4800], "/log/a,/log/b,/queue/q"))
        error = await client.expect_error()
        assert error.headers["code"] == "message-size-too-large"
        assert error.headers["result-code"] == "MESSAGE_SIZE_TOO_LARGE"
        await reader.subscribe("/queue/q")
        await reader.subscribe("/log/a", id="a", **{"from": "earliest"})
        await reader.silence()


def fail_rooms(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> None:
    """So many times there is no room for what a batch expands to."""
    real = LogDisk.room
    left = [error] * times

    def room(disk: LogDisk, size_bytes: int) -> Any:
        if left:
            raise left.pop()
        return real(disk, size_bytes)

    monkeypatch.setattr(LogDisk, "room", room)


NO_ROOM = [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")]


@pytest.mark.parametrize("error", NO_ROOM)
async def test_what_there_is_no_memory_to_check_is_refused_so_that_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_rooms(monkeypatch, error, 1)
    async with LogStage() as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.send_raw(sent(LARGE, receipt="a") + sent(LARGE, receipt="b"))
        refusal = await client.expect_error()
        assert (refusal.headers["code"], refusal.headers["receipt-id"]) == ("log-failed", "a")
        assert refusal.headers["result-code"] == "INTERNAL_ERROR"
        await other.send_raw(sent(LARGE, receipt="c"))
        await other.expect_receipt("c")
        assert receipts_of(other) == [(0, 5_000)]
        assert stage.broker.faults.count == 0


@pytest.mark.parametrize("error", NO_ROOM)
async def test_what_there_is_no_memory_to_expand_for_a_reader_is_expanded_later(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with LogStage() as stage:
        client, reader = await stage.connect(), await stage.connect()
        await client.send_raw(sent(LARGE, receipt="a"))
        await client.expect_receipt("a")
        fail_rooms(monkeypatch, error, 2)
        await reader.subscribe(LOG, **{"from": "4000", "to": "4100"})
        assert len(records_of(await reader.drain(60))) == 100
        assert stage.broker.faults.count == 0


async def test_a_check_that_breaks_costs_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it would wait for ever."""
    failed = fail_once(Batch, "check", monkeypatch)
    async with LogStage() as stage:
        client, other = await stage.connect(), await stage.connect()
        await client.send_raw(sent(LARGE, receipt="a"))
        assert (await client.expect_error()).headers["code"] == "internal-error"
        await check_good(stage, other)
        assert failed
        assert stage.broker.faults.counts["connection"] == 1
