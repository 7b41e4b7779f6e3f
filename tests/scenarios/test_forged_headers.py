"""What the broker says of a message, its sender can't say: in no version, with no spelling, by no way in."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import SUPPORTED_VERSIONS, Version
from sluiceway.protocols.stomp.head import BROKER_OWNED_HEADERS, FORGEABLE_HEADERS
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from tests.scenarios.client import Client, Delivery
from tests.scenarios.guarded import GuardedLogStage, GuardedStage, allow
from tests.scenarios.log_stage import LOG, LogStage
from tests.scenarios.stage import Stage

Q = "/queue/q"
STRUCTURAL = {"transaction", "receipt"}
"""Mean something on a SEND."""

FORGED = sorted(FORGEABLE_HEADERS - STRUCTURAL)


def said(delivery: Delivery) -> dict[str, str]:
    """The headers that the broker answers for."""
    return {name: value for name, value in delivery.headers.items() if name.strip(" \t\r") in FORGEABLE_HEADERS}


async def readers(stage: Stage, destination: str, **headers: str) -> list[Client]:
    """One of each version, by topic, so that each gets everything."""
    made = []
    for version in SUPPORTED_VERSIONS:
        client = await stage.connect(version)
        await client.subscribe(destination, id="mine", **headers)
        await client.sync()
        made.append(client)
    return made


@pytest.mark.parametrize(
    "spelling", ["{}:forged", " {}:forged", "{} :forged", "\t{}\t:forged", "{}:forged\r", "{}\r:forged"]
)
async def test_no_stamped_header_can_be_forged(version: Version, spelling: str) -> None:
    """Each of them, to readers of each version; blanks are trimmed by some readers, and CR is."""
    async with Stage() as stage:
        clients = await readers(stage, "/topic/t")
        sender = await stage.connect(version)
        for name in FORGED:
            line = spelling.format(name).encode()
            await sender.send_raw(b"SEND\ndestination:/topic/t\n" + line + b"\ncolour:red\n\n" + name.encode() + b"\0")
        for client in clients:
            for name in FORGED:
                delivery = await client.next_message()
                assert delivery.body == name.encode()
                assert "forged" not in said(delivery).values(), (name, delivery.headers)
                assert delivery.headers["subscription"] == "mine"
                assert delivery.headers["colour"] == "red"


async def test_a_line_feed_in_a_header_forges_no_line(later_version: Version) -> None:
    """An escaped LF reads as part of the name or the value, also where the reader's version knows no escapes."""
    async with Stage() as stage:
        clients = await readers(stage, "/topic/t")
        sender = await stage.connect(later_version)
        for name in FORGED:
            line = f"x:1\\n{name}\\cforged\nx\\n{name}:forged\n".encode()
            await sender.send_raw(b"SEND\ndestination:/topic/t\n" + line + b"\nbody\0")
        for client in clients:
            for _ in FORGED:
                delivery = await client.next_message()
                assert "forged" not in {delivery.headers.get(name) for name in FORGED}


@pytest.mark.parametrize("destination", ["/topic/t", "/topic/t,/topic/u"])
@pytest.mark.parametrize("way", ["plain", "transaction", "large", "repeated"])
async def test_no_way_in_is_open(way: str, destination: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("large")
    async with Stage(large_folder=folder, large_body_bytes=1000) as stage:
        (reader, *_others) = await readers(stage, "/topic/t")
        sender = await stage.connect()
        forged = "".join(f"{name}:forged\n" for name in FORGED)
        body = "x" * (3000 if way == "large" else 3)
        if way == "transaction":
            await sender.frame("BEGIN", {"transaction": "t"})
            forged += "transaction:t\n"
        if way == "large":
            forged += f"content-length:{len(body)}\n"
        frame = f"SEND\ndestination:{destination}\n{forged}\n{body}\0".encode()
        for _ in range(3 if way == "repeated" else 1):
            await sender.send_raw(frame)
        if way == "transaction":
            await sender.request("COMMIT", {"transaction": "t"})
        for _ in range(3 if way == "repeated" else 1):
            delivery = await reader.next_message()
            assert "forged" not in delivery.headers.values()


async def test_dead_letters_tell_the_truth_and_are_believed_by_nobody_when_sent() -> None:
    async with Stage({Q: {"redeliveries_max": 0}}) as stage:
        sender = await stage.connect()
        await sender.sent(Q, "x", dead_letter_reason="forged", dead_letter_destination="/queue/elsewhere")
        reader = await stage.connect()
        await reader.subscribe(Q, ack="client-individual")
        await reader.nack(await reader.next_message())
        await reader.subscribe("/queue/dead-letters", id="d")
        letter = await reader.next_message()
        assert letter.headers["dead-letter-reason"] == "redeliveries"
        assert letter.headers["dead-letter-destination"] == Q
        await sender.frame("SEND", {**letter.headers, "destination": "/queue/copy"}, letter.body)
        await reader.subscribe("/queue/copy", id="c")
        assert not {name for name in (await reader.next_message()).headers if name.startswith("dead-letter")}


async def test_a_stored_message_keeps_what_the_broker_said_of_it() -> None:
    """Dead letters and stamps, after a restart."""
    from tests.scenarios.lives import Lives

    lives = Lives({Q: {"redeliveries_max": 0}})
    async with lives.life() as stage:
        sender = await stage.connect()
        await sender.sent(Q, "x", persistent="true", user="forged")
        reader = await stage.connect()
        await reader.subscribe(Q, ack="client-individual")
        await reader.nack(await reader.next_message())
        await reader.sync()
    async with lives.life() as stage:
        reader = await stage.connect()
        await reader.subscribe("/queue/dead-letters")
        letter = await reader.next_message()
        assert letter.headers["dead-letter-reason"] == "redeliveries"
        assert "user" not in letter.headers


# ---------------------------------------------------------------------- logs


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("name", sorted(FORGEABLE_HEADERS - BROKER_OWNED_HEADERS))
async def test_batches_that_say_what_is_the_brokers_are_refused(name: str, codec: Codec) -> None:
    """They are passed on as they are, so what is in them can't be taken out."""
    async with LogStage() as stage:
        sender = await stage.connect()
        batch = encode([b"one"], head=f"{name}:forged".encode(), codec=codec)
        await sender.send(LOG, batch, content_type=CONTENT_TYPE)
        error = await sender.expect_error(f"{name} may be said by the broker only")
        assert error.headers["code"] == "bad-batch"


async def test_records_of_a_log_say_nothing_forged(version: Version) -> None:
    async with LogStage() as stage:
        sender = await stage.connect(version)
        forged = dict.fromkeys(FORGED, "forged")
        await sender.request("SEND", {"destination": LOG, **forged, "index": "9", "timestamp": "9"}, "x")
        for reader_version in SUPPORTED_VERSIONS:
            reader = await stage.connect(reader_version)
            await reader.subscribe(LOG, **{"from": "earliest"})
            delivery = await reader.next_message()
            assert "forged" not in said(delivery).values()
            assert delivery.headers["index"] == "0", "of headers with one name the first counts"


# ---------------------------------------------------------------------- the header user


async def test_messages_say_who_sent_them_if_that_is_wanted(version: Version) -> None:
    async with GuardedStage(allow("ann bob", "send create receive"), settings={"stamp_user": True}) as stage:
        reader = await stage.as_user("bob", version)
        await reader.subscribe("/topic/a,/topic/b")
        await reader.sync()
        ann = await stage.as_user("ann", version)
        for number in range(3):
            await ann.send("/topic/a", f"{number}" * (number + 1), user="root")
        await ann.send("/topic/a,/topic/b", "both")
        assert [(await reader.next_message()).headers["user"] for _ in range(5)] == ["ann"] * 5


async def test_nothing_is_said_of_senders_otherwise() -> None:
    async with GuardedStage(allow("ann", "send create receive")) as stage:
        ann = await stage.as_user("ann")
        await ann.subscribe("/topic/a")
        await ann.sent("/topic/a", "x", user="root")
        assert "user" not in (await ann.next_message()).headers


async def test_records_of_a_log_say_who_sent_them() -> None:
    async with GuardedLogStage(allow("ann", "send create receive"), settings={"stamp_user": True}) as stage:
        ann = await stage.as_user("ann")
        await ann.sent(LOG, "x", user="root")
        await ann.subscribe(LOG, **{"from": "earliest"})
        assert (await ann.next_message()).headers["user"] == "ann"


async def test_a_user_with_any_name_is_stamped_as_one_header(version: Version) -> None:
    name = "a:b\\c \u00e9"
    settings = {"stamp_user": True, "users": {"root": "root", name: "p"}}
    async with GuardedStage(allow("*", "send create receive"), settings=settings) as stage:
        client = await stage.connect(version, login=name, passcode="p")
        await client.subscribe("/topic/a")
        await client.sync()
        await client.send("/topic/a", "x")
        assert (await client.next_message()).headers["user"] == name
