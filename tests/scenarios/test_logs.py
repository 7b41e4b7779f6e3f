"""Logs: what is appended stays, is read from anywhere, as often as one likes, one by one or in batches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.logs.runs import ANEW_COUNT
from tests.scenarios.log_stage import (
    LOG,
    LogLives,
    LogStage,
    batches_of,
    fill,
    indexes,
    is_told,
    numbered,
    receipts_of,
    records_of,
    send_batch,
)
from tests.scenarios.stage import EPOCH_MS

ALL_CODECS = "gzip,snappy,zstd"


# ---------------------------------------------------------------------- appending


async def test_a_receipt_says_index_count_and_that_it_is_on_disk() -> None:
    async with LogStage() as stage:
        producer = await stage.connect()
        for number in range(3):
            await producer.sent(LOG, str(number))
        assert receipts_of(producer) == [(0, 1), (1, 1), (2, 1)]
        assert {f.headers["durability"] for f in producer.received if "durability" in f.headers} == {"disk"}
        assert await send_batch(producer, numbered(range(7)), numbered(range(5), codec=Codec.ZSTD)) == (3, 12)
        await producer.sent(LOG, "last")
        assert receipts_of(producer)[-1] == (15, 1)


@pytest.mark.parametrize("mode", ["interval", "none"])
async def test_where_receipts_do_not_wait_for_the_disk_they_say_so(mode: str) -> None:
    async with LogStage({LOG: {"log_sync": mode}}) as stage:
        producer = await stage.connect()
        await producer.sent(LOG, "a")
        assert [f.headers.get("durability") for f in producer.received if f.command == "RECEIPT"] == ["memory"]


async def test_pipelined_sends_each_get_the_index_of_their_record() -> None:
    """Also where plain ones and batches, with and without headers, come in one piece."""
    async with LogStage() as stage:
        producer = await stage.connect()
        pieces = []
        expected = []
        index = 0
        for number in range(40):
            headers = {"destination": LOG, "receipt": f"r{number}"}
            body = f"{number}".encode()
            count = 1
            if number % 5 == 3:
                headers["content-type"], body, count = CONTENT_TYPE, numbered(range(number)), number
            elif number % 7 == 2:
                headers["kind"] = "odd"
            pieces.append(producer.encode("SEND", headers, body))
            expected.append((index, count))
            index += count
        await producer.send_raw(b"".join(pieces))
        for number in range(40):
            await producer.expect_receipt(f"r{number}")
        assert receipts_of(producer) == expected


async def test_what_was_sent_without_a_receipt_is_there_after_disconnect(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        producer = await stage.connect()
        await producer.send_all(LOG, range(100))
        await producer.disconnect()
        assert stage.log().records.synced_index == 100, "the RECEIPT of DISCONNECT covers what went before"
    async with lives.life() as stage:
        assert stage.log().records.next_index == 100


# ---------------------------------------------------------------------- reading


async def test_records_are_read_again_and_again_in_each_version(version: Version) -> None:
    async with LogStage() as stage:
        producer = await stage.connect()
        await fill(producer, 50, colour="blue")
        for _ in range(2):
            reader = await stage.connect(version)
            await reader.subscribe(LOG, **{"from": "earliest"})
            deliveries = await reader.next_messages(50)
            assert indexes(deliveries) == list(range(50))
            assert [delivery.text for delivery in deliveries] == [str(number) for number in range(50)]
            headers = deliveries[7].headers
            assert headers["colour"] == "blue"
            assert headers["destination"] == LOG
            assert headers["timestamp"] == str(EPOCH_MS)
            assert not deliveries[7].redelivered
            ids = [delivery.headers["message-id"] for delivery in deliveries]
            assert len(set(ids)) == 50
            assert all(each.endswith(f"-{index}") for index, each in enumerate(ids))
            await reader.silence()


async def test_headers_mean_the_same_to_readers_of_all_versions() -> None:
    """Escapes are those of each version; what the broker adds comes first."""
    odd = {"a:b": "c:d", "path": "C:\\new", "lines": "one\ntwo", "cr": "x\ry", "space": " x ", "umlaut": "äß€"}
    async with LogStage() as stage:
        producer = await stage.connect("1.2")
        await producer.frame("SEND", {"destination": LOG, **odd}, "first")
        await producer.frame("SEND", {"destination": LOG, **odd}, "second")
        await producer.sent(LOG, "third")
        for version in ("1.2", "1.1"):
            reader = await stage.connect(version)
            await reader.subscribe(LOG, **{"from": "earliest"})
            deliveries = await reader.next_messages(3)
            for delivery in deliveries[:2]:
                # 1.1 has no escape for CR.
                wanted = odd if version == "1.2" else {name: value for name, value in odd.items() if name != "cr"}
                assert {name: delivery.headers.get(name) for name in wanted} == wanted
        reader = await stage.connect("1.0")
        await reader.subscribe(LOG, **{"from": "earliest"})
        deliveries = await reader.next_messages(3)
        assert [delivery.text for delivery in deliveries] == ["first", "second", "third"]
        assert indexes(deliveries) == [0, 1, 2]
        assert deliveries[0].headers["umlaut"] == "äß€"


@pytest.mark.parametrize("sender", ["1.0", "1.1", "1.2"])
async def test_headers_survive_from_senders_of_all_versions(sender: Version) -> None:
    async with LogStage() as stage:
        producer = await stage.connect(sender)
        await producer.sent(LOG, "x", key="k1", name="value", path="a/b c")
        reader = await stage.connect("1.2")
        await reader.subscribe(LOG, **{"from": "earliest"})
        (delivery,) = await reader.next_messages(1)
        assert [delivery.headers[name] for name in ("key", "name", "path")] == ["k1", "value", "a/b c"]
        assert not {"receipt", "content-type", "persistent"} & set(delivery.headers)


async def test_a_sender_cannot_forge_what_the_broker_says() -> None:
    async with LogStage() as stage:
        producer = await stage.connect("1.2")
        await producer.sent(
            LOG, "x", index="77", timestamp="1", subscription="other", message_id="m", ack="1-1", redelivered="true"
        )
        reader = await stage.connect("1.2")
        await reader.subscribe(LOG, **{"from": "earliest"})
        (delivery,) = await reader.next_messages(1)
        assert delivery.headers["index"] == "0"
        assert delivery.headers["timestamp"] == str(EPOCH_MS)
        assert delivery.headers["subscription"] == "s"
        assert "ack" not in delivery.headers
        assert not delivery.redelivered


async def test_bodies_are_bytes_of_any_kind_and_size() -> None:
    bodies = [b"", b"\0", b"\0\n\0MESSAGE\n\n\0", bytes(range(256)) * 40, b"x" * 300_000, b"y" * 3_000_000, b"end"]
    async with LogStage(large_folder=None) as stage:
        producer, reader = await stage.connect(), await stage.connect()
        await reader.subscribe(LOG)
        for body in bodies:
            await producer.sent(LOG, body)
        deliveries = await reader.next_messages(len(bodies))
        assert [delivery.body for delivery in deliveries] == bodies
        await reader.unsubscribe()
        await reader.subscribe(LOG, **{"from": "0", "ack": "client", "credit": "2,1000"})
        again = []
        for _ in bodies:
            again += await reader.next_messages(1)
            await reader.ack(again[-1])
        assert [delivery.body for delivery in again] == bodies


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"from": "earliest"}, 0),
        ({"from": "latest"}, 19),
        ({"from": "next"}, 20),
        ({}, 20),
        ({"from": "7"}, 7),
        ({"from": "20"}, 20),
        ({"from": f"time:{EPOCH_MS}"}, 0),
        ({"from": f"time:{EPOCH_MS + 1}"}, 10),
        ({"from": f"time:{EPOCH_MS + 60_000}"}, 10),
        ({"from": f"time:{EPOCH_MS + 999_999}"}, 20),
        ({"from": "time:0"}, 0),
        ({"x-stream-offset": "first"}, 0),
        ({"x-stream-offset": "last"}, 19),
        ({"x-stream-offset": "next"}, 20),
        ({"x-stream-offset": "offset=3"}, 3),
        ({"x-stream-offset": f"timestamp={EPOCH_MS // 1000 + 60}"}, 10),
    ],
    ids=str,
)
async def test_a_reader_begins_where_it_says(headers: dict[str, str], expected: int) -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await trio.sleep(60)
        await fill(producer, 10, first=10)
        await reader.request("SUBSCRIBE", {"destination": LOG, "id": "s", **headers})
        await fill(producer, 2, first=20)
        deliveries = await reader.next_messages(22 - expected)
        assert [delivery.text for delivery in deliveries] == [str(number) for number in range(expected, 22)]
        await reader.silence()


@pytest.mark.parametrize("batch", [None, "4096"])
async def test_a_bounded_range_ends_with_a_message_that_says_so(batch: str | None) -> None:
    """Also where it begins or ends in the middle of a compressed batch."""
    async with LogStage() as stage:
        producer = await stage.connect()
        for codec in Codec:
            await send_batch(producer, numbered(range(10), codec=codec))
        for start, stop in ((0, 40), (3, 27), (5, 6), (10, 10), (40, 40), (19, 21)):
            reader = await stage.connect()
            more = {} if batch is None else {"batch": batch}
            await reader.subscribe(LOG, **{"from": str(start), "to": str(stop), **more})
            deliveries = await reader.drain()
            end = deliveries.pop()
            assert end.headers["range-end"] == "true"
            assert end.headers["index"] == str(stop)
            assert not end.body
            assert records_of(deliveries) == [(index, str(index % 10).encode()) for index in range(start, stop)]


async def test_a_range_may_end_where_nothing_is_yet() -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect()
        await fill(producer, 5)
        await reader.subscribe(LOG, **{"from": "3", "to": "8", "ack": "client"})
        assert indexes(await reader.next_messages(2)) == [3, 4]
        await reader.silence()
        await fill(producer, 5, first=5)
        deliveries = await reader.next_messages(4)
        assert indexes(deliveries) == [5, 6, 7, 8]
        assert "range-end" in deliveries[-1].headers
        assert "ack" not in deliveries[-1].headers, "nothing of it is to be acknowledged"
        await reader.silence()


async def test_credit_holds_a_reader_back_and_acks_let_it_go_on(version: Version) -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect(version)
        await fill(producer, 20)
        await reader.subscribe(LOG, ack="client", prefetch_count="5", **{"from": "earliest"})
        got = []
        for _ in range(4):
            deliveries = await reader.next_messages(5)
            await reader.silence()
            got += indexes(deliveries)
            await reader.ack(deliveries[-1])
        assert got == list(range(20))


async def test_nack_brings_a_record_again_marked(later_version: Version) -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect(later_version)
        await fill(producer, 5)
        await reader.subscribe(LOG, ack="client-individual", **{"from": "earliest"})
        deliveries = await reader.next_messages(5)
        await reader.nack(deliveries[2])
        (again,) = await reader.next_messages(1)
        assert indexes([again]) == [2]
        assert again.redelivered
        assert again.delivery_count == 2
        assert again.headers["message-id"] == deliveries[2].headers["message-id"]


async def test_late_acks_of_an_ended_subscription_do_no_harm(version: Version) -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect(version)
        await fill(producer, 5)
        await reader.subscribe(LOG, ack="client", **{"from": "earliest"})
        deliveries = await reader.next_messages(5)
        await reader.unsubscribe()
        await reader.ack(deliveries[1])
        await reader.ack(deliveries[4])
        await reader.subscribe(LOG, ack="client", **{"from": "4"})
        assert indexes(await reader.next_messages(1)) == [4]


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize("keys", [None, [b"%d" % number for number in range(5_000)]], ids=["plain", "keys"])
async def test_a_long_batch_is_written_anew_in_parts_that_are_the_same_each_time(keys: list[bytes] | None) -> None:
    async with LogStage() as stage:
        producer = await stage.connect()
        values = [b"%d" % number for number in range(5_000)]
        await send_batch(producer, encode(values, keys=keys, codec=Codec.GZIP, head=b"k:1"))
        runs = []
        for _ in range(2):
            reader = await stage.connect()
            await reader.subscribe(LOG, batch="1000000", **{"from": "3", "to": "4990"})
            runs.append([delivery for delivery in await reader.drain() if not is_told(delivery)])
        assert [run.body for run in runs[0]] == [run.body for run in runs[1]]
        assert max(int(run.headers["count"]) for run in runs[0]) == ANEW_COUNT
        assert records_of(runs[0]) == list(enumerate(values))[3:4_990]
        for batch in (batch for run in runs[0] for batch in batches_of(run)):
            found = batch.keys()
            assert batch.head == b"k:1"
            assert (found and [bytes(key) for key in found]) == (keys and keys[batch.first_index : batch.end_index])


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd,snappy", ALL_CODECS])
async def test_batches_reach_each_reader_in_codecs_that_it_takes(compression: str) -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect()
        await fill(producer, 3)
        for codec in Codec:
            await send_batch(producer, numbered(range(100), codec=codec, head=b"kind:x\nmore:y"))
        await reader.subscribe(LOG, batch="1048576", compression=compression, **{"from": "earliest", "to": "403"})
        deliveries = await reader.drain()
        assert "range-end" in deliveries.pop().headers
        expected = [str(number).encode() for number in (*range(3), *(number % 100 for number in range(400)))]
        assert records_of(deliveries) == list(enumerate(expected))
        codecs = {batch.codec for delivery in deliveries for batch in batches_of(delivery)}
        named = {codec for codec in Codec if codec.label in compression.split(",")}
        assert codecs == named | {Codec.NONE}
        for batch in batches_of(deliveries[-1]):
            assert batch.head in (b"", b"kind:x\nmore:y", b"kind:x\nmore:y\n")
        if compression == ALL_CODECS:
            assert len(deliveries) == 1, "whole batches as they lie in the file"


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("keyed", [False, True])
async def test_records_of_batches_reach_plain_readers_with_headers_and_keys(
    codec: Codec, keyed: bool, version: Version
) -> None:
    """Keys that not every version can write come in base 64."""
    keys = [b"k1", b"", b"\xff\x00", b"a:b", "schlüssel".encode(), b" pad"]
    values = [b"one", b"", b"three\0", b"four", b"five", b"six" * 100]
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect(version)
        data = encode(values, keys=keys if keyed else None, codec=codec, head=b"kind:blue\nplace:here")
        await send_batch(producer, data)
        await reader.subscribe(LOG, **{"from": "earliest"})
        deliveries = await reader.next_messages(6)
        assert records_of(deliveries) == list(enumerate(values))
        assert all(delivery.headers["kind"] == "blue" for delivery in deliveries)
        assert all(delivery.headers["place"] == "here" for delivery in deliveries)
        named = [(d.headers.get("key"), d.headers.get("key-base64")) for d in deliveries]
        if keyed:
            assert named[:3] == [("k1", None), (None, None), (None, "/wA=")]
            assert all((plain is None) is not (coded is None) for plain, coded in named[3:])
        else:
            assert named == [(None, None)] * 6


@pytest.mark.parametrize("ending", [b"", b"\n"])
async def test_shared_headers_may_end_with_a_line_end_or_not(ending: bytes) -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect()
        await send_batch(producer, encode([b"a", b"b"], head=b"kind:blue" + ending))
        await reader.subscribe(LOG, **{"from": "earliest"})
        deliveries = await reader.next_messages(2)
        assert [delivery.body for delivery in deliveries] == [b"a", b"b"]
        assert deliveries[1].headers["kind"] == "blue"


async def test_an_ack_of_a_batch_message_settles_all_its_records() -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect()
        for _ in range(6):
            await send_batch(producer, numbered("x" * 100 for _ in range(20)))
        await reader.subscribe(LOG, group="g", ack="client", batch="4096", **{"from": "earliest"})
        deliveries = await reader.drain()
        assert len(deliveries) > 1
        assert sum(int(delivery.headers["count"]) for delivery in deliveries) == 120
        await reader.ack(deliveries[0])
        assert stage.group().front == int(deliveries[0].headers["count"])
        await reader.ack(deliveries[-1])
        assert stage.group().front == 120


async def test_a_batch_message_is_as_large_as_asked_for_or_one_batch() -> None:
    async with LogStage() as stage:
        producer, reader = await stage.connect(), await stage.connect()
        for _ in range(20):
            await send_batch(producer, numbered("x" * 100 for _ in range(20)))
        await send_batch(producer, numbered(["y" * 50_000]))
        await reader.subscribe(LOG, batch="10000", **{"from": "earliest", "to": "401"})
        deliveries = [delivery for delivery in await reader.drain() if not is_told(delivery)]
        assert len(records_of(deliveries)) == 401
        assert all(len(delivery.body) <= 10_000 for delivery in deliveries[:-1])
        assert len(deliveries[0].body) > 5000
        assert len(deliveries[-1].body) > 50_000


# ---------------------------------------------------------------------- with other destinations


async def test_a_composite_goes_to_a_queue_and_to_a_log() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.sent("/queue/a,/log/orders,/topic/t,/log/more", "both", colour="red")
        await client.subscribe("/queue/a", id="q")
        assert await client.next_texts(1) == ["both"]
        for name in (LOG, "/log/more"):
            await client.subscribe(name, id=name, **{"from": "earliest"})
            (delivery,) = await client.next_messages(1)
            assert (delivery.text, delivery.headers["colour"]) == ("both", "red")
            assert delivery.headers["destination"] == name


async def test_the_receipt_of_a_composite_names_the_index_in_each_log() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.sent("/log/b", "earlier")
        for destination, indexes in (
            ("/log/a,/log/b", "/log/a=0,/log/b=1"),
            ("/log/b,/log/a", "/log/a=1,/log/b=2"),
            ("/queue/q,/log/a,/topic/t", "/log/a=2"),
        ):
            await client.request("SEND", {"destination": destination}, b"x")
            receipt = client.received[-1]
            assert receipt.headers["indexes"] == indexes
            assert receipt.headers["count"] == "1"
            assert "index" not in receipt.headers  # of which log?


@pytest.mark.parametrize("with_ids", [False, True])
async def test_acks_by_message_id_tell_logs_and_queues_apart(version: Version, with_ids: bool) -> None:
    """Numbers of messages and indexes of records may be the same."""
    if with_ids is False and version != "1.0":
        pytest.skip("only 1.0 has subscriptions without an id")
    async with LogStage() as stage:
        client = await stage.connect(version)
        names = ("/log/a", "/log/b", "/queue/q")
        for name in names:
            await client.send_all(name, range(10))
        for name in names:
            headers = {"destination": name, "ack": "client"}
            headers |= {"from": "earliest"} if name.startswith("/log") else {}
            headers |= {"group": "g"} if name.startswith("/log") else {}
            await client.request("SUBSCRIBE", {**headers, **({"id": name} if with_ids else {})})
        deliveries = await client.next_messages(30)
        by_name = {name: [d for d in deliveries if d.headers["destination"] == name] for name in names}
        await client.ack(by_name["/log/b"][3])
        assert (stage.group(log="/log/a").front, stage.group(log="/log/b").front) == (0, 4)
        assert stage.depth_count("/queue/q") == 10
        await client.ack(by_name["/queue/q"][9])
        assert stage.depth_count("/queue/q") == 0
        assert (stage.group(log="/log/a").front, stage.group(log="/log/b").front) == (0, 4)
        await client.ack(by_name["/log/a"][5])
        assert (stage.group(log="/log/a").front, stage.group(log="/log/b").front) == (6, 4)


async def test_names_with_levels_and_letters_of_all_kinds_are_logs_of_their_own(tmp_path: Path) -> None:
    names = ["/log/a", "/log/a.b", "/log/a/b", "/log/A", "/log/größe", "/log/a%2Eb", "/log/" + "x" * 200, "/log/a~b"]
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        client = await stage.connect()
        for number, name in enumerate(names):
            await client.sent(name, str(number))
    async with lives.life() as stage:
        client = await stage.connect()
        for number, name in enumerate(names):
            await client.subscribe(name, id=str(number), **{"from": "earliest"})
            assert name == "/log/a/b" or await client.next_texts(1) == [str(number)]
            client.messages.clear()
    assert len(os.listdir(tmp_path)) == len(names)
