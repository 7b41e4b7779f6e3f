"""Receipts on every frame, the ERROR for every mistake, and how a connection ends. Checklist b21, b22, b29, b48-b57."""

from __future__ import annotations

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.client import UnexpectedError
from tests.scenarios.stage import Stage

Q = "/queue/work"


async def test_every_frame_can_ask_for_a_receipt(stage: Stage, version: Version) -> None:
    """b48."""
    client = await stage.connect(version)
    await client.request("SUBSCRIBE", {"destination": Q, "id": "s", "ack": "client"})
    await client.request("SEND", {"destination": Q}, "x")
    delivery = await client.next_message()
    await client.request("BEGIN", {"transaction": "t"})
    await client.request("SEND", {"destination": Q, "transaction": "t"}, "y")
    await client.request("ACK", {**client.naming(delivery), "transaction": "t"})
    await client.request("ABORT", {"transaction": "t"})
    if version != "1.0":
        await client.request("NACK", client.naming(delivery))
        delivery = await client.next_message()
    await client.request("ACK", client.naming(delivery))
    await client.request("BEGIN", {"transaction": "t"})
    await client.request("COMMIT", {"transaction": "t"})
    await client.request("UNSUBSCRIBE", {"id": "s"})
    await client.request("DISCONNECT")
    await client.expect_closed()


async def test_receipt_of_a_send_says_how_durable_it_is(stage: Stage) -> None:
    client = await stage.connect()
    await client.sent(Q, "x")
    assert client.received[-1].headers["durability"] == "memory"


async def test_receipt_ids_come_back_as_they_were(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    for receipt_id in ("1", "with blank", "ünï", *(() if version == "1.0" else ("a:b", "back\\slash", "line\nend"))):
        await client.frame("SEND", {"destination": Q, "receipt": receipt_id}, "x")
        await client.expect_receipt(receipt_id)


async def test_receipts_of_a_chunk_come_in_order(stage: Stage) -> None:
    client = await stage.connect()
    sends = [client.encode("SEND", {"destination": Q, "receipt": str(n)}, "x") for n in range(200)]
    await client.send_raw(b"".join(sends))
    await client.expect_receipt("199")
    assert list(client.receipts) == [str(n) for n in range(199)]


async def test_receipt_and_transaction_never_reach_the_consumer(stage: Stage, version: Version) -> None:
    """They are between the sender and the broker."""
    client = await stage.connect(version)
    await client.subscribe(Q)
    await client.frame("BEGIN", {"transaction": "t"})
    await client.frame("SEND", {"destination": Q, "transaction": "t", "receipt": "r", "x": "kept"}, "x")
    await client.frame("COMMIT", {"transaction": "t"})
    headers = (await client.next_message()).headers
    assert headers["x"] == "kept"
    assert not {"receipt", "transaction", "receipt-id"} & set(headers)


async def test_forged_headers_are_dropped(stage: Stage, version: Version) -> None:
    """What only the broker may say about a delivery is not believed when a producer says it."""
    consumer, producer = await stage.connect(version), await stage.connect(version)
    await consumer.subscribe(Q, id="mine")
    forged = {
        "message-id": "forged",
        "subscription": "forged",
        "ack": "forged",
        "redelivered": "true",
        "delivery-count": "77",
        "dropped-count": "77",
        "user": "admin",
    }
    await producer.frame("SEND", {"destination": Q, **forged, "honest": "yes"}, "x")
    delivery = await consumer.next_message()
    assert delivery.headers["subscription"] == "mine"
    assert delivery.headers["honest"] == "yes"
    for name, value in forged.items():
        assert delivery.headers.get(name) != value


# ---------------------------------------------------------------------- errors

MISTAKES = [
    ("SEND", {}, "missing-header"),
    ("SEND", {"destination": ""}, "missing-header"),
    ("SEND", {"destination": "/queue/"}, "no name"),
    ("SEND", {"destination": "/queue/*"}, "wildcard"),
    ("SEND", {"destination": "/queue/x", "priority": "high"}, "priority"),
    ("SEND", {"destination": "/queue/x", "transaction": "none"}, "none"),
    ("SUBSCRIBE", {"id": "1"}, "destination"),
    ("SUBSCRIBE", {"id": "1", "destination": "/topic/"}, "no name"),
    ("SUBSCRIBE", {"id": "1", "destination": "/queue/>.x"}, "last level"),
    ("SUBSCRIBE", {"id": "1", "destination": "/queue/x", "ack": "sometimes"}, "ack"),
    ("UNSUBSCRIBE", {"id": "none"}, "none"),
    ("ACK", {"id": "none", "message-id": "none", "subscription": "none"}, "none"),
    ("BEGIN", {}, "transaction"),
    ("COMMIT", {"transaction": "none"}, "none"),
    ("ABORT", {"transaction": "none"}, "none"),
]


@pytest.mark.parametrize(("command", "headers", "about"), MISTAKES)
async def test_error_names_its_frame_and_closes(
    stage: Stage, version: Version, command: str, headers: dict[str, str], about: str
) -> None:
    """b29, b52, b53: `receipt-id` and `command` of the offending frame, then the end."""
    client = await stage.connect(version)
    await client.sent(Q, "fine")
    await client.frame(command, {**headers, "receipt": "the culprit"}, "x" if command == "SEND" else "")
    error = await client.expect_error()
    assert error.headers["receipt-id"] == "the culprit"
    assert error.headers["command"] == command
    assert error.headers["code"].replace("-", "").isalnum(), "for programs"
    assert about == "missing-header" or about in (error.headers["message"] + error.body.decode())
    assert not client.receipts, "a frame that failed has no RECEIPT"


async def test_one_error_ends_it(stage: Stage) -> None:
    """Frames behind the mistake are not carried out, and there is one ERROR only."""
    client, other = await stage.connect(), await stage.connect()
    await other.subscribe(Q)
    wrong = client.encode("COMMIT", {"transaction": "none"})
    await client.send_raw(
        client.encode("SEND", {"destination": Q}, "before")
        + wrong * 2
        + client.encode("SEND", {"destination": Q}, "behind")
    )
    await client.expect_error()
    assert [frame.command for frame in client.received].count("ERROR") == 1
    assert (await other.next_message()).text == "before"
    await other.silence()


async def test_error_of_one_connection_hurts_nobody_else(stage: Stage, version: Version) -> None:
    client, other = await stage.connect(version), await stage.connect(version)
    await other.subscribe(Q)
    await client.send_raw(b"NONSENSE\n\n\0")
    await client.expect_error("NONSENSE")
    await other.send(Q, "x")
    assert (await other.next_message()).text == "x"


async def test_second_connect_is_an_error(stage: Stage, version: Version) -> None:
    """b22."""
    client = await stage.connect(version)
    await client.send_raw(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
    await client.expect_error("already connected")


async def test_server_frames_from_a_client_are_an_error(stage: Stage) -> None:
    client = await stage.connect()
    await client.send_raw(b"MESSAGE\ndestination:/queue/a\n\nx\0")
    await client.expect_error("MESSAGE")


async def test_duplicate_subscription_id_is_an_error(stage: Stage, version: Version) -> None:
    """b31."""
    client = await stage.connect(version)
    await client.subscribe("/queue/a", id="same")
    await client.frame("SUBSCRIBE", {"destination": "/queue/b", "id": "same"})
    await client.expect_error("same")


async def test_id_of_an_ended_subscription_can_be_used_again(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    for _ in range(3):
        await client.subscribe(Q)
        await client.unsubscribe()


@pytest.mark.parametrize(
    ("headers", "about"),
    [
        ({"durable": "true"}, "durable"),
        ({"activemq.subscriptionName": "n"}, "durable"),
    ],
)
async def test_what_is_not_there_yet_is_refused_in_words(stage: Stage, headers: dict[str, str], about: str) -> None:
    """Never silently something else than was asked for."""
    client = await stage.connect()
    await client.frame("SUBSCRIBE", {"destination": "/topic/prices,/topic/b", "id": "s", **headers})
    error = await client.expect_error(about)
    assert error.headers["command"] == "SUBSCRIBE"


async def test_sends_that_are_not_possible_yet_are_refused_in_words(stage: Stage) -> None:
    client = await stage.connect()
    await client.frame("SEND", {"destination": Q, "AMQ_SCHEDULED_CRON": "0 * * * *", "receipt": "r"}, "x")
    error = await client.expect_error()
    assert error.headers["receipt-id"] == "r"
    assert "this version" in error.headers["message"]


# ---------------------------------------------------------------------- the end


async def test_error_can_be_read_though_more_was_sent(stage: Stage) -> None:
    """b55: the connection lingers, so input that nobody will read does not destroy the ERROR under way."""
    client = await stage.connect()
    await client.send_raw(b"NONSENSE\n\n\0")
    await client.send_raw(b"SEND\ndestination:/queue/a\n\nx\0" * 1000)
    await client.expect_error("NONSENSE")


async def test_connection_closes_soon_after_an_error(stage: Stage) -> None:
    """Also if the client goes on as if nothing had happened."""
    client = await stage.connect()
    await client.send_raw(b"NONSENSE\n\n\0")
    await client.expect_error()
    await trio.sleep(2)
    with pytest.raises(OSError):
        await client.stream.send_all(b"\n")
    assert not stage.broker.connections


async def test_client_that_does_not_read_its_error_is_cut(stage: Stage) -> None:
    client = await stage.connect()
    await client.send_raw(b"NONSENSE\n\n\0")
    await trio.sleep(2)
    assert not stage.broker.connections


async def test_receipt_of_disconnect_can_be_read(stage: Stage, version: Version) -> None:
    """b56: it comes behind everything else, then the end of the stream."""
    client = await stage.connect(version)
    await client.subscribe(Q)
    await client.send_all(Q, range(100))
    await client.frame("DISCONNECT", {"receipt": "bye"})
    await client.expect_closed()
    assert client.received[-1].headers == {"receipt-id": "bye"}


async def test_disconnect_without_receipt_closes_quietly(stage: Stage, version: Version) -> None:
    """b57."""
    client = await stage.connect(version)
    await client.frame("DISCONNECT")
    await client.expect_closed()
    assert [frame.command for frame in client.received] == ["CONNECTED"]


async def test_frames_after_disconnect_are_dropped(stage: Stage, version: Version) -> None:
    """b57: neither carried out nor complained about."""
    client, other = await stage.connect(version), await stage.connect(version)
    await other.subscribe(Q)
    late = client.encode("SEND", {"destination": Q, "receipt": "late"}, "late")
    await client.send_raw(client.encode("DISCONNECT", {"receipt": "bye"}) + late + b"NONSENSE\n\n\0")
    await client.expect_closed()
    assert list(client.receipts) == ["bye"]
    await other.silence()


async def test_frames_before_a_sudden_end_are_carried_out(stage: Stage, version: Version) -> None:
    """b50: a client that sends and closes at once loses nothing."""
    client, other = await stage.connect(version), await stage.connect(version)
    await other.subscribe(Q)
    await client.send_all(Q, range(10))
    client.vanish()
    assert await other.next_texts(10) == [str(n) for n in range(10)]


async def test_silent_stranger_is_turned_away(stage: Stage) -> None:
    """A connection without CONNECT ends after `connect_timeout_seconds`."""
    client = stage.stranger()
    await client.send_raw(client.machine.connect("x")[:10])
    error = await client.expect_error("no CONNECT within 10 seconds")
    assert error.body
    assert 10 <= trio.current_time() < 12


async def test_login_is_checked(version: Version) -> None:
    async with Stage(users={"ann": "a:b"}) as stage:
        client = await stage.connect(version, login="ann", passcode="a:b")
        await client.sent(Q, "x")
        for login, passcode in (("ann", "wrong"), ("bob", "a:b"), ("", "")):
            intruder = stage.stranger()
            with pytest.raises(UnexpectedError, match="authentication"):
                await intruder.connect(version, login=login, passcode=passcode)
            error = await intruder.expect_error("authentication")
            assert passcode == "" or passcode not in str(error)


async def test_client_that_never_reads_its_receipts_is_no_longer_read_from() -> None:
    """b51: what the broker keeps for it is bounded; when it reads, all goes on and no receipt is missing."""
    async with Stage(receipts_pending_max=100) as stage:
        client = await stage.connect()
        count = 20_000
        sends = b"".join(
            client.encode("SEND", {"destination": "/topic/nobody", "receipt": str(n)}) for n in range(count)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, sends)
            await trio.sleep(5)
            (connection,) = stage.broker.connections
            session = connection.session
            assert session.totals.bytes_in < len(sends) / 2, "the broker stopped reading"
            assert session.outbound.control_bytes < 600_000
            await client.expect_receipt(str(count - 1))
        assert list(client.receipts) == [str(n) for n in range(count - 1)]
