"""Logs at the limits of the default configuration: what is sent to them, asked about them and read from them, on a
counted clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.log_storage import LogDisk
from tests.limits.law import LawStage, frame
from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, PASSCODE, LogStage

READ = "bytes of one read"
LARGEST = "log_batch_bytes_max"


class LogLawStage(LawStage, LogStage):
    """With logs."""


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogLawStage]:
    async with LogLawStage(folder=tmp_path) as stage:
        yield stage


def batches(body: bytes, destination: str = LOG) -> bytes:
    return frame("SEND", body, destination=destination, content_type=CONTENT_TYPE, content_length=len(body))


SENDS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "SEND to a log of the longest batch": (LARGEST, lambda: batches(encode([b""] * (1 << 20)))),
    "SEND to a log of keys": (LARGEST, lambda: batches(encode([b""] * 200_000, keys=[b"k"] * 200_000))),
    "SEND to a log of large records": (LARGEST, lambda: batches(encode([b"x" * 1_000_000] * 6))),
    "SEND to a log of tiny batches": (READ, lambda: batches(encode([b""]) * 7_000)),
    "SEND to a log of tiny compressed batches": (READ, lambda: batches(encode([b""], codec=Codec.ZSTD) * 6_000)),
    "SEND to a log of what expands": (
        "log_expanded_bytes_max",
        lambda: batches(encode([b"x" * 100] * 600_000, codec=Codec.GZIP)),
    ),
    "SEND to a log of many that expand": (
        "log_expanded_bytes_max",
        lambda: batches(encode([b"x" * 60] * 2_000, codec=Codec.SNAPPY) * 400),
    ),
    "SENDs to a log of a batch": (READ, lambda: batches(encode([b"x"])) * 3_000),
    "SENDs to a log of batches with heads": (
        READ,
        lambda: b"".join(batches(encode([b"x"], head=b"k:%d" % n)) for n in range(3_000)),
    ),
    "SENDs to a log": (READ, lambda: frame("SEND", b"x", destination=LOG) * 8_000),
    "SENDs to a log with headers of their own": (
        READ,
        lambda: b"".join(frame("SEND", b"x", destination=LOG, k=n) for n in range(8_000)),
    ),
    "SENDs to a log with receipts": (
        READ,
        lambda: b"".join(frame("SEND", b"x", destination=LOG, receipt=n) for n in range(900)),
    ),
    "SEND to a log of a large body": (LARGEST, lambda: frame("SEND", b"x" * 7_000_000, destination=LOG)),
    "SEND to logs": (
        "100 destinations, bytes of one read",
        lambda: batches(encode([b"x"]) * 500, ",".join(f"/log/l{n}" for n in range(100))),
    ),
}


@pytest.mark.parametrize("kind", SENDS)
async def test_sends(logs: LogLawStage, kind: str) -> None:
    limit, make = SENDS[kind]
    sender = await logs.client()
    data = make()
    with logs.law(kind, limit=limit):
        await sender.send_raw(data)
        await sender.sync()
        await trio.sleep(1)


# ---------------------------------------------------------------------- requests, with the most of everything there


RECORDS_COUNT = 100_000
GROUPS_COUNT = 1_000
LOGS_COUNT = 200

REQUESTS: dict[str, str] = {
    "log/list": "{}",
    "log/describe": '{"log": "orders"}',
    "log/size": '{"log": "orders"}',
    "log/size of a group": '{"log": "orders", "group": "g7"}',
    "log/closest": '{"log": "orders", "timestamp_ms": 1}',
    "log/groups": '{"log": "orders", "limit": 1000}',
    "log/seek": '{"log": "orders", "group": "g7", "to": 50000}',
    "log/seek to a time": '{"log": "orders", "group": "g7", "to": "time:1"}',
    "log/cursor": '{"log": "orders", "group": "g8"}',
    "log/delete-group": '{"log": "orders", "group": "g9"}',
    "log/truncate": '{"log": "orders", "before": 70000}',
    "log/truncate by size": '{"log": "orders", "before": "size:1000"}',
}


async def test_requests(logs: LogLawStage) -> None:
    client = await logs.client()
    for _ in range(RECORDS_COUNT // 1_000):
        await client.send_raw(batches(encode([b"x"]) * 50) + batches(encode([b"x"] * 950)))
    await client.send_raw(b"".join(frame("SEND", b"x", destination=f"/log/l{n}") for n in range(LOGS_COUNT)))
    await client.sync()
    await trio.sleep(1)
    await client.subscribe("/temp-queue/r")
    groups = [await logs.client() for _ in range(GROUPS_COUNT // 500)]
    for place, each in enumerate(groups):
        numbers = range(place * 500, place * 500 + 500)
        # Of the log that is full 999, for one is made by a request.
        headers = {"destination": LOG, "ack": "client-individual", "from": "earliest"}
        data = b"".join(frame("SUBSCRIBE", id=n, group=f"g{n}", **headers, prefetch_count=1) for n in numbers[1:])
        data += b"".join(frame("UNSUBSCRIBE", id=n) for n in numbers[5:10])
        await each.send_raw(data)
        await each.sync()
    crowd = "1,000 groups, 200 logs, 100,000 records"
    for name, body in REQUESTS.items():
        with logs.law(f"/sluiceway/{name}", limit="one request", crowd=crowd) as counting:
            counting.measures_with(logs.broker.answers, logs.broker.answers._pace)
            await client.send(f"/sluiceway/{name.partition(' ')[0]}", body.encode(), reply_to="/temp-queue/r")
            answer = await client.next_message()
            await trio.sleep(1)
        assert json.loads(answer.body)["ok"], (name, answer.body)


async def test_records_out_of_a_long_batch(logs: LogLawStage) -> None:
    """A thread checks and expands it; the reader goes on behind that."""
    sender, reader = await logs.client(), await logs.client()
    for batch in (encode([b""] * 200_000, keys=[b"k"] * 200_000), encode([b"x" * 100] * 20_000, codec=Codec.GZIP)):
        await sender.send_raw(batches(batch))
    await sender.sync()
    await trio.sleep(1)
    with logs.law("SUBSCRIBE to a log, out of long batches", limit="log_batch_bytes_max"):
        await reader.subscribe(LOG, **{"from": "199000", "to": "203000"})
        await reader._until(lambda: len(reader.messages) == 4_001, "4,000 records, and that this was all")


READS: dict[str, dict[str, str]] = {
    "by index": {"from": "50000"},
    "of batches": {"from": "earliest", "batch": "1000000", "compression": "gzip,snappy,zstd"},
    "of a group": {"from": "earliest", "group": "g", "ack": "client-individual", "credit": "100000,67108864"},
}


@pytest.mark.parametrize("kind", READS)
async def test_reads(logs: LogLawStage, kind: str) -> None:
    """Also of a group that is moved with all of that out, and of consumers that end then."""
    sender, reader, mover = [await logs.client() for _ in range(3)]
    for _ in range(4):
        await sender.send_raw(batches(encode([b"x"] * 500) * 10))
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=LOG, k=n) for n in range(2_000)))
    await sender.sync()
    await trio.sleep(1)
    headers = {**READS[kind], **({"from": "12000"} if kind == "by index" else {})}
    with logs.law(f"SUBSCRIBE to a log, {kind}", limit="22,000 records"):
        await reader.send_raw(frame("SUBSCRIBE", id="s", destination=LOG, **headers))
        await trio.sleep(3)
    assert reader.error is None
    if "group" in READS[kind]:
        await mover.subscribe("/temp-queue/r")
        with logs.law(f"seek with all out, {kind}", limit="22,000 deliveries"):
            body = f'{{"log": "orders", "group": "{READS[kind]["group"]}", "to": "earliest"}}'
            await mover.send("/sluiceway/log/seek", body.encode(), reply_to="/temp-queue/r")
            assert json.loads((await mover.next_message()).body)["ok"]
            await trio.sleep(3)
    with logs.law(f"the end of a reader, {kind}", limit="22,000 records, twice of a group that was moved"):
        reader.vanish()
        await trio.sleep(3)


async def test_a_log_with_groups_is_deleted(logs: LogLawStage) -> None:
    """Each of them with a consumer that has records out."""
    client = await logs.client()
    await client.send_raw(batches(encode([b"x"] * 950)) * 10)
    await client.sync()
    headers = {"destination": LOG, "ack": "client-individual", "from": "earliest", "credit": "50,65536"}
    for place in range(GROUPS_COUNT // 500):
        reader = await logs.client()
        numbers = range(place * 500, place * 500 + 500)
        await reader.send_raw(b"".join(frame("SUBSCRIBE", id=n, group=f"g{n}", **headers) for n in numbers))
        await reader.sync()
    await trio.sleep(1)
    await client.subscribe("/temp-queue/r")
    with logs.law("/sluiceway/log/delete", limit="one request", crowd="1,000 groups"):
        body = json.dumps({"log": "orders", "passcode": PASSCODE})
        await client.send("/sluiceway/log/delete", body.encode(), reply_to="/temp-queue/r")
        answer = await client.next_message()
        await trio.sleep(1)
    assert json.loads(answer.body)["ok"], answer.body


# ---------------------------------------------------------------------- many who wait for the disk


class HeldJobs:
    """What is to be synced (or appended) waits, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str = "sync") -> None:
        self._real = getattr(LogDisk, kind)
        self._held: list[tuple[LogDisk, Callable[[], Any], Callable[[Any], None]]] | None = []
        monkeypatch.setattr(LogDisk, kind, lambda *job: self._put(*job))

    def _put(self, disk: LogDisk, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._held is None:
            self._real(disk, work, done)
        else:
            self._held.append((disk, work, done))

    def let_go(self) -> None:
        held, self._held = self._held, None
        for job in held or ():
            self._real(*job)


WAITING_COUNT = 10_000
EACH_COUNT = 500


async def waiting(logs: LogLawStage) -> list[Client]:
    """Clients with so many SENDs in all, each for itself, that wait for their RECEIPTs."""
    senders = [await logs.client() for _ in range(WAITING_COUNT // EACH_COUNT)]
    apart = frame("BEGIN", transaction="t") + frame("ABORT", transaction="t")
    data = b"".join(frame("SEND", b"x", destination=LOG, receipt=n) + apart for n in range(EACH_COUNT))
    for sender in senders:
        await sender.send_raw(data)
    await trio.sleep(1)
    return senders


def receipts_count(client: Client) -> int:
    return len([each for each in client.received if each.command == "RECEIPT" and "index" in each.headers])


async def test_a_sync_for_which_many_wait(logs: LogLawStage, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldJobs(monkeypatch)
    senders = await waiting(logs)
    assert logs.log().records.next_index == WAITING_COUNT
    with logs.law("a sync of a log", limit="one sync", crowd=f"{WAITING_COUNT:,} SENDs that wait for it"):
        held.let_go()
        await trio.sleep(3)
    for sender in senders:
        await sender.sync()
        assert receipts_count(sender) == EACH_COUNT


async def test_a_log_for_which_many_wait_is_deleted(logs: LogLawStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is told: its connection ends."""
    held = HeldJobs(monkeypatch)
    client = await logs.client()
    await client.subscribe("/temp-queue/r")
    senders = await waiting(logs)
    with logs.law("/sluiceway/log/delete, waited for", limit="one request", crowd=f"{WAITING_COUNT:,} SENDs that wait"):
        body = json.dumps({"log": "orders", "passcode": PASSCODE})
        await client.send("/sluiceway/log/delete", body.encode(), reply_to="/temp-queue/r")
        await trio.sleep(3)
        held.let_go()
        answer = await client.next_message()
    assert json.loads(answer.body)["ok"], answer.body
    for sender in senders:
        assert (await sender.expect_error()).headers["code"] == "topic-not-exist"


async def test_a_log_that_holds_many_back_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a connection of its own, and goes on when the log has gone."""
    held, count = HeldJobs(monkeypatch, "append"), 2_000
    async with LogLawStage({LOG: {"memory_bytes": 1_000}}, folder=tmp_path) as logs:
        client = await logs.client()
        await client.subscribe("/temp-queue/r")
        senders = [await logs.client() for _ in range(count)]
        for sender in senders:
            await sender.send_raw(frame("SEND", b"x" * 1_000, destination=LOG) * 2)
        await trio.sleep(1)
        gate = logs.log().controller
        assert len(gate.blocked_sources()) >= count - 10
        with logs.law("/sluiceway/log/delete, full", limit="one request", crowd=f"{count:,} connections held back"):
            body = json.dumps({"log": "orders", "passcode": PASSCODE})
            await client.send("/sluiceway/log/delete", body.encode(), reply_to="/temp-queue/r")
            await trio.sleep(3)
            held.let_go()
            answer = await client.next_message()
            await trio.sleep(3)
        assert json.loads(answer.body)["ok"], answer.body
        assert not gate.blocks_somebody


# ---------------------------------------------------------------------- what is made of batches

KEYED = [b"k"] * 8_000
LONG = {
    "of ten thousand": encode([b"x"] * 10_000, head=b"color:red"),
    "of eight thousand with keys": encode([b"x"] * 8_000, keys=KEYED),
    "that expands": encode([b""] * 8_000, codec=Codec.GZIP, keys=KEYED),
    "of a megabyte": encode([b"x" * 1_000] * 1_000),
}
WAYS: dict[str, dict[str, str]] = {
    "with a selector": {"from": "earliest", "selector": "color = 'blue'"},
    "with a selector of records": {"from": "earliest", "selector": "key = 'blue' AND timestamp > 5 OR index = 7"},
    "one by one": {"from": "earliest", "credit": "100000,67108864"},
    "of batches, from their midst": {"from": "3", "batch": "1000000"},
    "of batches without codecs": {"from": "earliest", "batch": "1000000"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LONG)
async def test_new_records(logs: LogLawStage, kind: str, way: str) -> None:
    """They were never read, and come from a page as they lie; once more, when they are messages already."""
    sender, reader = await logs.client(), await logs.client()
    await sender.send_raw(batches(LONG[kind]) * 3)
    await sender.sync()
    await trio.sleep(1)
    with logs.law(f"SUBSCRIBE to a log, batches {kind}, {way}", limit="log_batch_bytes_max"):
        await reader.send_raw(frame("SUBSCRIBE", id="s", destination=LOG, **WAYS[way]))
        await trio.sleep(5)
    assert reader.error is None
    with logs.law(f"SUBSCRIBE to a log, batches {kind}, {way}, once more", limit="log_batch_bytes_max"):
        await reader.send_raw(frame("SUBSCRIBE", id="more", destination=LOG, **WAYS[way]))
        await trio.sleep(5)
    assert reader.error is None
