"""What is wrong with input for logs: a clear ERROR (or reply) for who sent it, nobody else is hurt, nothing is appended
in half.
"""

from __future__ import annotations

import struct
import zlib
from random import Random
from typing import Any

import pytest

from sluiceway.protocols.stomp.escaping import SUPPORTED_VERSIONS
from sluiceway.queues.logs.batches import CONTENT_TYPE, HEADER, encode
from sluiceway.queues.logs.codecs import Codec, compress
from tests.scenarios.log_stage import LOG, LogStage, indexes, numbered, receipts_of, records_of

GOOD = numbered(range(3))


def forged(batch: bytes, **fields: int) -> bytes:
    """The batch with other fields in its header, and a checksum that is right all the same."""
    names = ("magic", "total", "index", "time", "stamp", "checksum", "count", "plain", "codec", "flags", "head", "body")
    values: list[Any] = list(HEADER.unpack_from(batch))
    for name, value in fields.items():
        values[names.index(name)] = value
    rest = HEADER.pack(*values)[32:] + batch[48:]
    if "checksum" not in fields:
        values[5] = zlib.crc32(rest)
    return HEADER.pack(*values)[:32] + rest


def with_body(body: bytes, *, count: int, plain: int | None = None, codec: int = 0, flags: int = 0) -> bytes:
    """A batch with this body, whatever it is."""
    padded = body + bytes(-len(body) % 8)
    plain = len(body) if plain is None else plain
    batch = HEADER.pack(b"SLB1", 48 + len(padded), 0, 0, 0, 0, count, plain, codec, flags, 0, len(body)) + padded
    return forged(batch)


def offsets(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


BOMB = compress(Codec.ZSTD, bytes(100_000_000))

BAD_BATCHES = {
    "empty": b"",
    "too short": b"SLB1",
    "no magic": b"X" * 100,
    "cut": GOOD[:-8],
    "more behind": GOOD + b"more",
    "second is cut": GOOD + GOOD[:-1],
    "wrong checksum": GOOD[:-1] + b"\x01",
    "total too large": forged(GOOD, total=len(GOOD) + 8),
    "total of nothing": forged(GOOD, total=0),
    "no records": forged(GOOD, count=0),
    "absurd count": forged(GOOD, count=2**32 - 1),
    "count beyond the table": forged(GOOD, count=4),
    "fewer than the table": forged(GOOD, count=2),
    "unknown codec": forged(GOOD, codec=9),
    "unknown flags": forged(GOOD, flags=0x80),
    "keys that are not there": forged(GOOD, flags=1),
    "wrong codec": forged(GOOD, codec=3),
    "head beyond the end": forged(GOOD, head=60_000),
    "body beyond the end": forged(GOOD, body=2**32 - 1),
    "plain size is wrong": forged(GOOD, plain=5),
    "offsets go back": with_body(offsets(0, 2, 1) + b"ab", count=2),
    "offsets do not begin at 0": with_body(offsets(1, 2, 2) + b"ab", count=2),
    "offsets lead out": with_body(offsets(0, 1, 2**31) + b"ab", count=2),
    "bytes behind the records": with_body(offsets(0, 1, 2) + b"abc", count=2),
    "cut compressed": with_body(compress(Codec.GZIP, b"x" * 100)[:-5], count=1, plain=100, codec=1),
    "expands to more": with_body(compress(Codec.SNAPPY, offsets(0, 10) + b"x" * 10), count=1, plain=10, codec=2),
    "expands to less": with_body(compress(Codec.ZSTD, offsets(0, 10) + b"x" * 10), count=1, plain=1000, codec=3),
    "bomb": with_body(BOMB, count=1, plain=100_000_000, codec=3),
    "bomb that lies": with_body(BOMB, count=1, plain=1000, codec=3),
    "bomb beyond memory": with_body(BOMB, count=1, plain=2**32 - 1, codec=3),
    "head without colon": encode([b"a"], head=b"nonsense"),
    "head with a blank line": encode([b"a"], head=b"a:b\n\nMESSAGE"),
    "head that ends twice": encode([b"a"], head=b"a:b\n\n"),
    "head that is a line end": encode([b"a"], head=b"\n\n"),
    "head with NUL": encode([b"a"], head=b"a:b\0MESSAGE"),
    "head with CR": encode([b"a"], head=b"a:b\rc:d"),
    "head not UTF-8": encode([b"a"], head=b"a:\xff\xfe"),
    "head with a wrong escape": encode([b"a"], head=b"a:\\q"),
    "head with an empty name": encode([b"a"], head=b":x"),
    "head with a number that is none": encode([b"a"], head=b"expires:soon"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_a_bad_batch_is_refused_whole(name: str) -> None:
    """Also where a good one stands before it in the same SEND. Others go on."""
    async with LogStage() as stage:
        other = await stage.connect()
        await other.sent(LOG, "before")
        for before in (b"", GOOD):
            bad = BAD_BATCHES[name]
            if before and not bad:
                continue
            client = await stage.connect()
            await client.send(LOG, before + bad, content_type=CONTENT_TYPE, receipt="bad one")
            error = await client.expect_error()
            assert error.headers["receipt-id"] == "bad one"
            assert error.headers["destination"] == LOG
            assert len(error.headers["message"]) > 10
            assert not receipts_of(client)
        assert stage.log().records.next_index == 1
        await other.sent(LOG, "after")
        await other.subscribe(LOG, **{"from": "earliest"})
        assert await other.next_texts(2) == ["before", "after"]


async def test_what_came_before_a_bad_batch_is_appended_however_the_network_cut_it() -> None:
    """The ERROR names the one that is bad, those before it took effect, those behind it did not."""
    async with LogStage() as stage:
        for whole in (True, False):
            first = stage.log().records.next_index if whole is False else 0
            client = await stage.connect()
            frames = [client.encode("SEND", {"destination": LOG, "receipt": f"r{n}"}, f"{n}") for n in range(3)]
            frames.append(
                client.encode("SEND", {"destination": LOG, "content-type": CONTENT_TYPE, "receipt": "b0"}, GOOD)
            )
            frames.append(
                client.encode("SEND", {"destination": LOG, "content-type": CONTENT_TYPE, "receipt": "b1"}, GOOD[:-1])
            )
            frames.append(client.encode("SEND", {"destination": LOG, "receipt": "r9"}, "9"))
            for piece in [b"".join(frames)] if whole else frames:
                try:
                    await client.send_raw(piece)
                except BrokenPipeError:
                    break
                if not whole:
                    await stage.settled_down()
            error = await client.expect_error("bytes")
            assert error.headers["receipt-id"] == "b1"
            assert stage.log().records.next_index == first + 6


async def test_many_bombs_in_one_send_are_too_large_together() -> None:
    """What one SEND may expand to is limited, not what each of its batches may."""
    plain = offsets(0, 50_000_000) + bytes(50_000_000)
    one = with_body(compress(Codec.ZSTD, plain), count=1, plain=len(plain), codec=3)
    async with LogStage() as stage:
        client = await stage.connect()
        await client.send(LOG, one * 20, content_type=CONTENT_TYPE)
        error = await client.expect_error("expand")
        assert "log_expanded_bytes_max" in error.headers["message"]
        assert stage.log().records.next_index == 0


async def test_headers_of_a_batch_cannot_forge_frames_or_lengths() -> None:
    """What the broker says comes first, to readers of every version."""
    head = b"content-length:3\n content-length :2\nindex:9\nmessage-id:x\nack:1-1\nsubscription:z\ndestination:/queue/x"
    async with LogStage() as stage:
        producer = await stage.connect()
        await producer.sent(LOG, encode([b"one\0two", b"three"], head=head), content_type=CONTENT_TYPE)
        await producer.sent(LOG, encode([b"four\0"], head=head, keys=[b"k"]), content_type=CONTENT_TYPE)
        for version in SUPPORTED_VERSIONS:
            reader = await stage.connect(version)
            await reader.subscribe(LOG, **{"from": "earliest"})
            deliveries = await reader.next_messages(3)
            assert [delivery.body for delivery in deliveries] == [b"one\0two", b"three", b"four\0"]
            assert indexes(deliveries) == [0, 1, 2]
            assert {delivery.headers["destination"] for delivery in deliveries} == {LOG}
            assert {delivery.headers["subscription"] for delivery in deliveries} == {"s"}
            await reader.silence()


@pytest.mark.parametrize("seed", range(8))
async def test_fuzzed_batches_are_refused_or_harmless(seed: int) -> None:
    """A batch with a few bytes changed, with and without a checksum that fits: whatever is taken can be read back, by
    plain readers and in batches.
    """
    random = Random(seed)
    taken = 0
    async with LogStage({LOG: {"log_expanded_bytes_max": 1 << 20}}) as stage:
        client = await stage.connect()
        for _ in range(120):
            values = [random.randbytes(random.randint(0, 9)) for _ in range(random.randint(1, 6))]
            keys = [b"k" * random.randint(0, 2) for _ in values] if random.random() < 0.5 else None
            data = bytearray(encode(values, keys=keys, codec=random.choice(list(Codec)), head=b"a:b"))
            for _ in range(random.randint(1, 3)):
                data[random.choice((random.randrange(32, 48), random.randrange(len(data))))] = random.randrange(256)
            if random.random() < 0.8:
                data[28:32] = struct.pack("<I", zlib.crc32(data[32:]))
            if client.ended:
                client = await stage.connect()
            await client.send(LOG, bytes(data), content_type=CONTENT_TYPE, receipt="r")
            try:
                await client.expect_receipt("r")
                taken += receipts_of(client)[-1][1]
            except AssertionError:
                await client.expect_error()
        assert stage.log().records.next_index == taken
        reader = await stage.connect()
        await reader.subscribe(LOG, id="plain", **{"from": "earliest", "to": str(taken)})
        plain = await reader.drain()
        await reader.subscribe(LOG, id="batch", batch="1000", **{"from": "earliest", "to": str(taken)})
        batches = await reader.drain()
        assert records_of(plain) == records_of(batches)
        assert len(records_of(plain)) == taken
        assert not any("gap" in delivery.headers for delivery in plain + batches)


# ---------------------------------------------------------------------- names


BAD_NAMES = (
    "/log/",
    "/log/..",
    "/log/../../etc/passwd",
    "/log/a/../b",
    "/log/.hidden",
    "/log//a",
    "/log/a//b",
    "/log/a.",
    "/log/a..b",
    "/log/a b",
    "/log/*",
    "/log/a.>",
    "/log/a\\b",
    "/log/" + "x" * 201,
    "/log/" + "€" * 200,
)


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_names_that_can_not_be_are_refused(name: str, tmp_path: Any) -> None:
    folder = tmp_path / "logs"
    async with LogStage(folder=folder) as stage:
        for command in ("SEND", "SUBSCRIBE"):
            client = await stage.connect()
            await client.frame(command, {"destination": name, "id": "1"})
            error = await client.expect_error()
            assert len(error.headers["message"]) > 10
            assert str(tmp_path) not in repr(error), "paths of the machine are nobody's business"
        assert not stage.broker.logs or not list(stage.broker.logs)
        asker = await stage.connect_asking()
        assert await asker.refused("describe", log=name) in ("INVALID_TOPIC", "TOPIC_NOT_EXIST")
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert not list(folder.iterdir())


async def test_more_logs_than_allowed_are_refused() -> None:
    async with LogStage(journal={"logs_max": 2}) as stage:
        good = await stage.connect()
        await good.sent("/log/a", "1")
        await good.sent("/log/b", "1")
        for command in ("SEND", "SUBSCRIBE"):
            client = await stage.connect()
            await client.frame(command, {"destination": "/log/c", "id": "1"})
            await client.expect_error("logs_max")
        await good.sent("/log/a", "2")


async def test_more_groups_than_allowed_are_refused() -> None:
    async with LogStage({LOG: {"log_groups_max": 2}}) as stage:
        good = await stage.connect()
        await good.subscribe(LOG, id="1", group="a")
        await good.subscribe(LOG, id="2", group="b")
        client = await stage.connect()
        await client.frame("SUBSCRIBE", {"destination": LOG, "id": "3", "group": "c"})
        await client.expect_error("groups already")


# ---------------------------------------------------------------------- SUBSCRIBE


@pytest.mark.parametrize(
    ("headers", "about"),
    [
        ({"from": "6"}, "ends before index 5"),
        ({"from": "-1"}, "no place in a log"),
        ({"from": "first"}, "no place in a log"),
        ({"from": ""}, "no place in a log"),
        ({"from": "99999999999999999999"}, "no place in a log"),
        ({"from": "9999999999999999999"}, "whole number"),
        ({"from": "time:"}, "whole number"),
        ({"from": "time:yesterday"}, "whole number"),
        ({"from": "٣"}, "no place in a log"),
        ({"x-stream-offset": "offset="}, "whole number"),
        ({"x-stream-offset": "earliest"}, "x-stream-offset"),
        ({"from": "3", "to": "2"}, "is before"),
        ({"to": "x"}, "whole number"),
        ({"group": "g", "to": "5"}, "no end"),
        ({"group": ""}, "1 to 200 characters"),
        ({"group": "x" * 201}, "1 to 200 characters"),
        ({"group": "a\nb"}, "1 to 200 characters"),
        ({"on-gap": "shrug"}, "on-gap"),
        ({"batch": "many"}, "batch"),
        ({"batch": "-1"}, "batch"),
        ({"batch": "4096", "compression": "lzma"}, "lzma"),
        ({"browser": "true"}, "browser"),
        ({"durable": "true"}, "durable"),
        ({"selector": "a = 1", "batch": "4096"}, "batches"),
        ({"selector": "a = = 1"}, "column 5"),
        ({"exclusive": "true"}, "exclusive"),
        ({"ack": "perhaps"}, ""),
        ({"prefetch-count": "x"}, "prefetch-count"),
    ],
    ids=str,
)
async def test_a_subscription_that_can_not_be_is_refused(headers: dict[str, str], about: str) -> None:
    async with LogStage() as stage:
        other = await stage.connect()
        for number in range(5):
            await other.sent(LOG, str(number))
        client = await stage.connect()
        await client.frame("SUBSCRIBE", {"destination": LOG, "id": "1", "receipt": "r", **headers})
        error = await client.expect_error(about)
        assert error.headers["receipt-id"] == "r"
        assert not stage.log().outlets
        assert not stage.broker.logs or not stage.broker.logs.groups.get(LOG)
        await other.sent(LOG, "5")


@pytest.mark.parametrize("destination", ["/log/a,/log/b", "/log/a,/queue/b", "/queue/b,/log/a", "/log/a.*"])
async def test_subscriptions_to_several_logs_are_refused(destination: str) -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.frame("SUBSCRIBE", {"destination": destination, "id": "1"})
        await client.expect_error()


@pytest.mark.parametrize("batch", [False, True])
async def test_a_send_that_is_too_large_is_refused(batch: bool) -> None:
    async with LogStage({LOG: {"log_batch_bytes_max": 10_000}}) as stage:
        client = await stage.connect()
        more = {"content_type": CONTENT_TYPE} if batch else {}
        await client.sent(LOG, numbered(["x" * 9000]), **more)
        await client.send(LOG, numbered(["x" * 11_000]), receipt="r", **more)
        error = await client.expect_error("log_batch_bytes_max")
        assert error.headers["receipt-id"] == "r"
        assert stage.log().records.next_index == 1


@pytest.mark.parametrize("whole", [False, True])
async def test_what_does_not_fit_into_a_file_is_refused_and_does_not_block_the_log(whole: bool) -> None:
    """Whatever the policy says: a file holds `data_page_bytes`."""
    async with LogStage(journal={"data_page_bytes": 65_536}) as stage:
        good = await stage.connect()
        if whole:
            # Each fits, all together do not.
            await good.send_all(LOG, ["x" * 30_000] * 10)
            await good.sync()
        else:
            for more in ({}, {"content_type": CONTENT_TYPE}):
                client = await stage.connect()
                await client.send(LOG, numbered(["x" * 70_000]), receipt="r", **more)
                error = await client.expect_error("data_page_bytes")
                assert error.headers["receipt-id"] == "r"
        await good.sent(LOG, "after")
        assert stage.log().records.next_index == (11 if whole else 1)


# ---------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("request_name", "body"),
    [
        ("describe", b"{"),
        ("describe", b"[]"),
        ("describe", b"[" * 100_000),
        ("describe", b'{"log":' * 50_000),
        ("describe", b"\xff\xfe"),
        ("describe", b"{}"),
        ("describe", b'{"log":5}'),
        ("describe", b'{"log":null}'),
        ("describe", b'{"log":["/log/orders"]}'),
        ("closest", b'{"log":"orders"}'),
        ("closest", b'{"log":"orders","timestamp_ms":-1}'),
        ("closest", b'{"log":"orders","timestamp_ms":1.5}'),
        ("closest", b'{"log":"orders","timestamp_ms":true}'),
        ("closest", b'{"log":"orders","timestamp_ms":' + b"9" * 5000 + b"}"),
        ("closest", b'{"log":"orders","timestamp_ms":NaN}'),
        ("seek", b'{"log":"orders","group":"g","to":true}'),
        ("seek", b'{"log":"orders","group":"g","to":-3}'),
        ("seek", b'{"log":"orders","group":"g","to":"soon"}'),
        ("seek", b'{"log":"orders","to":3}'),
        ("truncate", b'{"log":"orders"}'),
        ("truncate", b'{"log":"orders","before":"size:"}'),
        ("truncate", b'{"log":"orders","before":"size:-1"}'),
        ("truncate", '{"log":"orders","before":"size:²"}'.encode()),
        ("truncate", b'{"log":"orders","before":"size:' + b"9" * 5000 + b'"}'),
        ("truncate", b'{"log":"orders","before":"time:x"}'),
    ],
    ids=lambda value: value[:40].decode("latin1") if isinstance(value, bytes) else value,
)
async def test_a_bad_request_is_answered_so(request_name: str, body: bytes) -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.sent(LOG, "x")
        await client.subscribe(LOG, group="g")
        asker = await stage.connect_asking()
        assert await asker.refused(request_name, body) in ("INVALID_REQUEST", "INVALID_TOPIC")
        await asker.asked("describe", log=LOG)


@pytest.mark.parametrize(
    ("request_name", "facts"),
    [
        ("closest", {"timestamp_ms": 10**30}),
        ("truncate", {"before": "time:9223372036854775807"}),
        ("truncate", {"before": "size:99999999999999999999"}),
        ("truncate", {"before": "size:0"}),
        ("truncate", {"before": "time:0"}),
    ],
)
async def test_requests_with_extreme_numbers_are_answered(request_name: str, facts: dict[str, Any]) -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.sent(LOG, "x")
        asker = await stage.connect_asking()
        reply = await asker.ask(request_name, log=LOG, **facts)
        assert reply["ok"] or reply["error"] == "INVALID_REQUEST"
        await client.sent(LOG, "y")


async def test_unknown_requests_and_those_without_an_address_are_errors() -> None:
    async with LogStage() as stage:
        for destination, headers in (
            ("/sluiceway/log/explode", {"reply_to": "/temp-queue/r"}),
            ("/sluiceway/log/", {"reply_to": "/temp-queue/r"}),
            ("/sluiceway/log/list", {}),
            ("/sluiceway/log/list", {"reply_to": "/log/replies"}),
        ):
            client = await stage.connect()
            await client.send(destination, "{}", **headers)
            await client.expect_error("re")


async def test_a_composite_with_a_bad_batch_goes_nowhere() -> None:
    async with LogStage() as stage:
        client = await stage.connect()
        await client.send("/queue/a,/log/orders,/queue/b", GOOD[:-1], content_type=CONTENT_TYPE, receipt="r")
        error = await client.expect_error("bytes")
        assert error.headers["receipt-id"] == "r"
        assert (stage.depth_count("/queue/a"), stage.depth_count("/queue/b")) == (0, 0)
        assert stage.log().records.next_index == 0


async def test_headers_that_no_record_can_have_are_refused() -> None:
    async with LogStage(header_block_bytes_max=200_000, header_line_bytes_max=200_000) as stage:
        client = await stage.connect()
        await client.sent(LOG, "x", big="y" * 60_000)
        await client.send(LOG, "x", big="y" * 70_000, receipt="r")
        error = await client.expect_error("headers")
        assert error.headers["receipt-id"] == "r"
        assert stage.log().records.next_index == 1
