"""Large bodies: they arrive whole wherever a message may go, and their files go when nobody needs them any more.

«Large» is more than a thousand bytes here. `Stage` checks at the end of each test that no file is left.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

LARGE_BODY_BYTES = 1000
BODY = bytes(range(256)) * 800
"""Larger than what a memory stream and an outbound buffer take at once."""

TEXT = "".join(f"line {number}\n" for number in range(30_000))
"""Without NUL, so that it can do without content-length."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    return folder


@pytest.fixture
async def large(folder: Path) -> AsyncIterator[Stage]:
    async with Stage(large_folder=folder, large_body_bytes=LARGE_BODY_BYTES, outbound_bytes_max=64 * 1024) as stage:
        yield stage


def staged(folder: Path, **policy: object) -> Stage:
    """A stage with a policy for /queue/q."""
    return Stage({"/queue/q": policy}, large_folder=folder, large_body_bytes=LARGE_BODY_BYTES)


def files(folder: Path) -> list[int]:
    """The sizes of the files of bodies, in order of their numbers."""
    return [path.stat().st_size for path in sorted(folder.iterdir())]


async def send_large(client: Client, destination: str, body: bytes | str = BODY, **headers: str) -> None:
    """SEND, and wait for its receipt."""
    if isinstance(body, bytes):
        headers["content_length"] = str(len(body))
    await client.sent(destination, body, **headers)


# ---------------------------------------------------------------------- whole, in every dialect


@pytest.mark.parametrize("receiver_version", ["1.0", "1.1", "1.2"])
async def test_a_large_body_arrives_whole_in_every_dialect(
    large: Stage, folder: Path, version: Version, receiver_version: Version
) -> None:
    """With its headers, also those that read differently in each version."""
    sender, receiver = await large.connect(version), await large.connect(receiver_version)
    await send_large(sender, "/queue/q", note="a\\b c", mark="x")
    assert files(folder) == [len(BODY)]
    await receiver.subscribe("/queue/q")
    delivery = await receiver.next_message()
    assert delivery.body == BODY
    assert (delivery.headers["note"], delivery.headers["mark"]) == ("a\\b c", "x")
    assert delivery.headers["content-length"] == str(len(BODY))


async def test_a_large_body_without_content_length_arrives_whole(large: Stage, folder: Path, version: Version) -> None:
    """It ends with its NUL, on its way in and on its way out."""
    client = await large.connect(version)
    await client.subscribe("/queue/q")
    await client.send_raw(b"SEND\ndestination:/queue/q\nreceipt:r\n\n" + TEXT.encode() + b"\0")
    await client.expect_receipt("r")
    delivery = await client.next_message()
    assert delivery.text == TEXT
    assert delivery.headers.get("content-length") == (str(len(TEXT.encode())) if version == "1.2" else None)


@pytest.mark.parametrize(
    "length, is_large", [(LARGE_BODY_BYTES, False), (LARGE_BODY_BYTES + 1, True)], ids=["at", "above"]
)
async def test_only_a_body_above_the_threshold_goes_to_a_file(
    large: Stage, folder: Path, length: int, is_large: bool
) -> None:
    client = await large.connect()
    await send_large(client, "/queue/q", b"x" * length)
    assert bool(files(folder)) is is_large


async def test_small_and_large_messages_keep_their_order(large: Stage) -> None:
    """Though the large ones go over the disk, and all of them came in one go."""
    client, receiver = await large.connect(), await large.connect()
    bodies = [b"small", BODY, b"small too", b"x" * 1001, b"y" * 1002, b"", BODY]
    head = {"destination": "/queue/q"}
    frames = [client.encode("SEND", {**head, "content-length": str(len(body))}, body) for body in bodies]
    await client.send_raw(b"".join(frames))
    await receiver.subscribe("/queue/q")
    assert [delivery.body for delivery in await receiver.next_messages(len(bodies))] == bodies


async def test_acknowledgements_behind_a_large_send_count(large: Stage) -> None:
    """All sorts of frames that came in one read with the end of a large SEND take effect behind it, in order."""
    client = await large.connect()
    await client.sent("/queue/q", "first")
    await client.subscribe("/queue/q", ack="client-individual")
    first = await client.next_message()
    await client.send_raw(
        client.encode("SEND", {"destination": "/queue/other", "content-length": str(len(BODY))}, BODY)
        + client.encode("ACK", client.naming(first))
        + client.encode("SUBSCRIBE", {"destination": "/queue/other", "id": "other"})
        + client.encode("SEND", {"destination": "/queue/other", "receipt": "last"}, "small")
    )
    await client.expect_receipt("last")
    assert [delivery.body for delivery in await client.next_messages(2)] == [BODY, b"small"]
    assert large.depth_count("/queue/q") == 0


async def test_disconnect_waits_for_the_large_send_before_it(large: Stage, folder: Path) -> None:
    client = await large.connect()
    await client.send_raw(
        client.encode("SEND", {"destination": "/queue/q", "content-length": str(len(BODY))}, BODY)
        + client.encode("DISCONNECT", {"receipt": "bye"})
    )
    await client.expect_receipt("bye")
    assert large.depth_count("/queue/q") == 1


async def test_who_sends_and_hangs_up_has_sent(large: Stage) -> None:
    """The body was complete: its connection may be gone before it is in its file."""
    client = await large.connect()
    await client.send_raw(client.encode("SEND", {"destination": "/queue/q", "content-length": str(len(BODY))}, BODY))
    client.stream.close()
    await trio.sleep(1)
    assert await large.drain_queues() == [BODY]


# ---------------------------------------------------------------------- wherever a message may go


async def test_several_destinations_share_one_file(large: Stage, folder: Path) -> None:
    client = await large.connect()
    await send_large(client, "/queue/a,/queue/b")
    assert files(folder) == [len(BODY)]
    await client.subscribe("/queue/a", id="a")
    assert (await client.next_message()).body == BODY
    await large.settled_down()
    assert files(folder) == [len(BODY)]
    await client.subscribe("/queue/b", id="b")
    assert (await client.next_message()).body == BODY
    await large.settled_down()
    assert files(folder) == []


async def test_subscribers_of_a_topic_share_one_file(large: Stage, folder: Path) -> None:
    client, first, second = await large.connect(), await large.connect("1.1"), await large.connect()
    for receiver in (first, second):
        await receiver.subscribe("/topic/t")
    await send_large(client, "/topic/t")
    assert files(folder) == [len(BODY)]
    assert (await first.next_message()).body == BODY
    assert (await second.next_message()).body == BODY
    await large.settled_down()
    assert files(folder) == []


async def test_nobody_listens_to_a_topic_so_the_file_goes(large: Stage, folder: Path) -> None:
    client = await large.connect()
    await send_large(client, "/topic/nobody")
    await large.settled_down()
    assert files(folder) == []


async def test_request_and_reply_over_temporary_queues(large: Stage) -> None:
    asker, answerer = await large.connect(), await large.connect()
    await asker.subscribe("/temp-queue/reply")
    await answerer.subscribe("/queue/service")
    await send_large(asker, "/queue/service", reply_to="/temp-queue/reply")
    request = await answerer.next_message()
    assert request.body == BODY
    await send_large(answerer, request.headers["reply-to"], BODY[::-1])
    assert (await asker.next_message()).body == BODY[::-1]


async def test_the_temporary_queue_of_who_left_takes_its_file_along(large: Stage, folder: Path) -> None:
    owner, client = await large.connect(), await large.connect()
    await owner.subscribe("/temp-queue/t", ack="client")
    await client.subscribe("/queue/names")
    await owner.sent("/queue/names", "x", reply_to="/temp-queue/t")
    name = (await client.next_message()).headers["reply-to"]
    await send_large(client, name)
    assert (await owner.next_message()).body == BODY
    owner.stream.close()
    await trio.sleep(1)
    assert files(folder) == []


async def test_a_request_to_the_broker_may_be_large(large: Stage, folder: Path) -> None:
    """Nobody asked for that body, so it goes."""
    client = await large.connect()
    await client.subscribe("/temp-queue/reply")
    await send_large(client, "/sluiceway/stat", reply_to="/temp-queue/reply")
    assert (await client.next_message()).headers["content-type"] == "application/json"
    await large.settled_down()
    assert files(folder) == []


async def test_priority_of_a_large_message_counts(large: Stage) -> None:
    client, receiver = await large.connect(), await large.connect()
    for body, priority in ((b"low" * 1000, "1"), (b"high" * 1000, "9")):
        await send_large(client, "/queue/q", body, priority=priority)
    await receiver.subscribe("/queue/q")
    assert [delivery.body[:3] for delivery in await receiver.next_messages(2)] == [b"hig", b"low"]


# ---------------------------------------------------------------------- transactions


async def test_a_transaction_publishes_its_large_message_with_commit(large: Stage, folder: Path) -> None:
    client = await large.connect()
    await client.frame("BEGIN", {"transaction": "t"})
    await client.send("/queue/q", "small", transaction="t")
    await send_large(client, "/queue/q", transaction="t")
    assert (files(folder), large.depth_count("/queue/q")) == ([len(BODY)], 0)
    await client.request("COMMIT", {"transaction": "t"})
    await client.subscribe("/queue/q")
    assert [delivery.body for delivery in await client.next_messages(2)] == [b"small", BODY]


@pytest.mark.parametrize("how", ["ABORT", "the connection ends"])
async def test_a_transaction_that_is_undone_takes_its_file_along(large: Stage, folder: Path, how: str) -> None:
    client = await large.connect()
    await client.frame("BEGIN", {"transaction": "t"})
    await send_large(client, "/queue/a,/queue/b", transaction="t")
    if how == "ABORT":
        await client.request("ABORT", {"transaction": "t"})
    else:
        client.stream.close()
        await trio.sleep(1)
    await large.settled_down()
    assert files(folder) == []
    assert (large.depth_count("/queue/a"), large.depth_count("/queue/b")) == (0, 0)


# ---------------------------------------------------------------------- settlement


async def test_the_file_stays_until_the_message_is_acknowledged(large: Stage, folder: Path) -> None:
    """And comes whole again, marked, to whoever is next."""
    sender, first, second = await large.connect(), await large.connect(), await large.connect()
    await send_large(sender, "/queue/q")
    await first.subscribe("/queue/q", ack="client")
    assert (await first.next_message()).body == BODY
    first.stream.close()
    await second.subscribe("/queue/q", ack="client")
    again = await second.next_message()
    assert (again.body, again.redelivered) == (BODY, True)
    assert files(folder) == [len(BODY)]
    await second.request("ACK", second.naming(again))
    await large.settled_down()
    assert files(folder) == []


async def test_a_consumer_that_dies_in_the_middle_of_a_body_has_not_had_it(large: Stage, folder: Path) -> None:
    """With ack auto the message is settled when the kernel has all of it, not before."""
    sender, first, second = await large.connect(), await large.connect(), await large.connect()
    await send_large(sender, "/queue/q")
    await first.frame("SUBSCRIBE", {"destination": "/queue/q", "id": "s"})
    await large.settled_down()
    assert await first.stream.receive_some(100)
    first.stream.close()
    await second.subscribe("/queue/q")
    again = await second.next_message()
    assert (again.body, again.redelivered) == (BODY, True)


async def test_large_messages_go_round_between_consumers(large: Stage) -> None:
    """Their wires are short, but nobody gets a row of them that others could have meanwhile."""
    sender, first, second = await large.connect(), await large.connect(), await large.connect()
    for number in range(6):
        await send_large(sender, "/queue/q", b"%d" % number + BODY)
    for receiver in (first, second):
        await receiver.frame("SUBSCRIBE", {"destination": "/queue/q", "id": "s"})
    await large.settled_down()
    assert large.reported("/queue/q")["unsettled_count"] == 2
    numbers = []
    for _ in range(3):
        for receiver in (first, second):
            numbers.append((await receiver.next_message()).body[:1])
    assert sorted(numbers) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_a_prefetch_of_large_messages_is_used(large: Stage) -> None:
    """A consumer that acknowledges gets as many as it asked for, in order."""
    client = await large.connect()
    for number in range(4):
        await send_large(client, "/queue/q", b"%d" % number + BODY)
    await client.subscribe("/queue/q", ack="client-individual", prefetch_count="3")
    deliveries = await client.next_messages(3)
    assert [delivery.body for delivery in deliveries] == [b"%d" % number + BODY for number in range(3)]
    await client.silence()
    await client.request("ACK", client.naming(deliveries[0]))
    assert (await client.next_message()).body[:1] == b"3"


# ---------------------------------------------------------------------- leaving unread


async def test_the_file_of_an_expired_message_goes(large: Stage, folder: Path) -> None:
    client = await large.connect()
    await send_large(client, "/queue/q", expiration="1000")
    assert files(folder) == [len(BODY)]
    await trio.sleep(2)
    assert files(folder) == []


async def test_a_dated_large_message_arrives_whole(large: Stage) -> None:
    """Queues keep dated messages as objects of their own: with the same body."""
    client = await large.connect()
    await send_large(client, "/queue/a,/queue/b", expiration="100000")
    for name in "ab":
        await client.subscribe(f"/queue/{name}", id=name)
        assert (await client.next_message()).body == BODY


async def test_the_file_of_a_dropped_message_goes(folder: Path) -> None:
    async with staged(folder, full="drop_oldest", count_max=2) as stage:
        client = await stage.connect()
        for size in (2001, 2002, 2003):
            await send_large(client, "/queue/q", b"x" * size)
        await stage.settled_down()
        assert files(folder) == [2002, 2003]


async def test_the_file_of_a_refused_message_goes(folder: Path) -> None:
    async with staged(folder, full="reject", count_max=1) as stage:
        client = await stage.connect()
        await send_large(client, "/queue/q")
        await client.send("/queue/q", BODY, content_length=str(len(BODY)), receipt="second")
        error = await client.expect_error("full")
        assert error.headers["receipt-id"] == "second"
        assert files(folder) == [len(BODY)]


async def test_a_large_message_waits_with_its_sender_where_the_queue_is_full(folder: Path) -> None:
    async with staged(folder, count_max=1) as stage:
        client, receiver = await stage.connect(), await stage.connect()
        for number in range(3):
            body = b"%d" % number + BODY
            await client.send("/queue/q", body, content_length=str(len(body)), receipt=f"r{number}")
        await client.expect_receipt("r0")
        await client.silence()
        assert files(folder) == [len(BODY) + 1] * 3
        await receiver.subscribe("/queue/q")
        assert [delivery.body[:1] for delivery in await receiver.next_messages(3)] == [b"0", b"1", b"2"]
        await client.expect_receipt("r2")


@pytest.mark.parametrize("length", [b"content-length:1000000\n", b""], ids=["counted", "uncounted"])
async def test_a_connection_that_dies_in_the_middle_of_a_body_leaves_nothing(
    large: Stage, folder: Path, length: bytes
) -> None:
    client = await large.connect()
    await client.send_raw(b"SEND\ndestination:/queue/q\n" + length + b"\n" + b"x" * 400_000)
    await large.settled_down()
    assert len(files(folder)) == 1
    client.stream.close()
    await trio.sleep(1)
    assert files(folder) == []
    assert large.depth_count("/queue/q") == 0


async def test_a_missing_nul_leaves_nothing(large: Stage, folder: Path) -> None:
    client = await large.connect()
    await client.send_raw(b"SEND\ndestination:/queue/q\ncontent-length:5000\nreceipt:r\n\n" + b"x" * 5001)
    error = await client.expect_error("no NUL")
    assert error.headers["receipt-id"] == "r"
    await large.settled_down()
    assert files(folder) == []


async def test_a_body_beyond_the_largest_is_refused(folder: Path) -> None:
    async with Stage(large_folder=folder, large_body_bytes=1000, large_body_bytes_max=50_000) as stage:
        for length, body in ((b"content-length:50001\n", b""), (b"", b"x" * 50_001)):
            client = await stage.connect()
            await client.send_raw(b"SEND\ndestination:/queue/q\n" + length + b"\n" + body)
            error = await client.expect_error("more than 50000 bytes")
            assert b"large_body_bytes_max" in error.body
            await stage.settled_down()
            assert files(folder) == []


# ---------------------------------------------------------------------- beside others


async def test_a_reader_that_stalls_in_a_large_body_costs_a_small_buffer(large: Stage) -> None:
    """What waits for it is on the disk; everybody else goes on."""
    sender, stalled, other = await large.connect(), await large.connect(), await large.connect()
    body = b"x" * 5_000_000
    await send_large(sender, "/queue/q", body)
    await stalled.frame("SUBSCRIBE", {"destination": "/queue/q", "id": "s"})
    await large.settled_down()
    assert large.broker.manager.used_bytes < 200_000
    await other.subscribe("/queue/other")
    await other.sent("/queue/other", "passes")
    assert (await other.next_message()).text == "passes"
    assert (await stalled.next_message()).body == body


async def test_what_comes_behind_a_large_body_keeps_its_place(large: Stage) -> None:
    """Messages, receipts and heart-beats on the same connection wait for the end of the frame."""
    client = await large.connect(heart_beat=(0, 1000))
    await client.subscribe("/queue/q")
    await client.send_raw(
        b"".join(
            client.encode("SEND", {"destination": "/queue/q", "receipt": f"r{n}", "content-length": str(len(b))}, b)
            for n, b in enumerate([BODY, b"one", BODY, b"two"])
        )
    )
    await trio.sleep(5)
    assert [d.body for d in await client.next_messages(4)] == [BODY, b"one", BODY, b"two"]
    assert list(client.receipts) == ["r0", "r1", "r2", "r3"]


async def test_large_bodies_of_many_connections_at_once(large: Stage) -> None:
    """Bodies that come in turns, piece by piece, do not get into each other."""
    receiver = await large.connect()
    await receiver.subscribe("/queue/q")
    bodies = [bytes([65 + number]) * (50_000 + number) for number in range(8)]
    senders = [await large.connect() for _ in bodies]
    frames = [
        sender.encode("SEND", {"destination": "/queue/q", "content-length": str(len(body))}, body)
        for sender, body in zip(senders, bodies, strict=True)
    ]
    for at in range(0, 51_000, 10_000):
        for sender, frame in zip(senders, frames, strict=True):
            await sender.send_raw(frame[at : at + 10_000])
    assert sorted(delivery.body for delivery in await receiver.next_messages(8)) == bodies


# ---------------------------------------------------------------------- damage


def damage(path: Path, keep_bytes: int | None) -> None:
    """Cut this file to a length, or remove it."""
    if keep_bytes is None:
        path.unlink()
    else:
        os.truncate(path, keep_bytes)


async def broken_delivery(stage: Stage, folder: Path, *, keep_bytes: int | None) -> Client:
    """A consumer that meets a message whose file was cut to this length, or removed."""
    sender, receiver = await stage.connect(), await stage.connect()
    await send_large(sender, "/queue/q", persistent="true")
    damage(folder / f"{1:016x}", keep_bytes)
    await receiver.frame("SUBSCRIBE", {"destination": "/queue/q", "id": "s"})
    return receiver


async def settle_broken(stage: Stage, folder: Path) -> None:
    """Give the message that nobody can read its body again, so that the stage can be cleared."""
    (folder / f"{1:016x}").write_bytes(BODY)
    client = await stage.connect()
    await client.subscribe("/queue/q")
    again = await client.next_message()
    assert (again.body, again.redelivered) == (BODY, True)


async def test_a_body_that_can_not_be_read_ends_its_consumer_with_an_error(large: Stage, folder: Path) -> None:
    """Before a byte of the frame is out. The message is back in its queue, and has been tried."""
    receiver = await broken_delivery(large, folder, keep_bytes=None)
    await receiver.expect_error("can't be read")
    assert not receiver.messages
    assert large.depth_count("/queue/q") == 1
    await settle_broken(large, folder)


async def test_a_body_that_ends_too_soon_ends_its_consumer_in_the_middle(large: Stage, folder: Path) -> None:
    """Nothing can be said there any more; the client sees that the frame is not complete."""
    receiver = await broken_delivery(large, folder, keep_bytes=150_000)
    await receiver.expect_closed()
    assert (receiver.error, list(receiver.messages)) == (None, [])
    await settle_broken(large, folder)
