"""What a consumer gets is what the producer sent, whatever versions the two speak. Checklist b1-b13, b28, b30."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import SUPPORTED_VERSIONS, Version
from tests.scenarios.stage import Stage

Q = "/queue/work"


@pytest.fixture(params=["1.0", "1.1", "1.2"])
def other_version(request: pytest.FixtureRequest) -> Version:
    """The version of the other side."""
    chosen: Version = request.param
    return chosen


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"\n",
        b"\n\nleading and trailing\n\n",
        b"nul \0 inside \0",
        b"\0",
        "ünïcödé ✓".encode(),
        b"\xff\xfe\x00\x01",
        b"MESSAGE\nfake:1\n\nx\0",
        b"x" * 70_000,
    ],
    ids=["empty", "one", "newline", "newlines", "NUL", "only NUL", "UTF-8", "binary", "a frame", "large"],
)
async def test_bodies_arrive_unchanged(stage: Stage, version: Version, other_version: Version, body: bytes) -> None:
    """b5, b6."""
    producer, consumer = await stage.connect(version), await stage.connect(other_version)
    await consumer.subscribe(Q)
    await producer.send(Q, body)
    assert (await consumer.next_message()).body == body


async def test_body_without_content_length_ends_at_the_nul(stage: Stage, version: Version) -> None:
    """b6."""
    client = await stage.connect(version)
    await client.subscribe(Q)
    await client.send_raw(b"SEND\ndestination:/queue/work\n\nplain\0\n\nSEND\ndestination:/queue/work\n\n\0")
    assert await client.next_texts(2) == ["plain", ""]


async def test_user_headers_arrive_in_order_and_unchanged(
    stage: Stage, version: Version, other_version: Version
) -> None:
    """b28: whatever both versions can say."""
    producer, consumer = await stage.connect(version), await stage.connect(other_version)
    await consumer.subscribe(Q)
    sent = {
        "a": "1",
        "Case-Matters": "Yes",
        "case-matters": "no",
        "ünï": "ünïcödé ✓",
        "content-type": "text/plain",
        "z": "26",
    }
    await producer.frame("SEND", {"destination": Q, **sent}, "x")
    headers = (await consumer.next_message()).headers
    assert [(name, value) for name, value in headers.items() if name in sent] == list(sent.items())


async def test_escapes_survive_between_versions(stage: Stage, later_version: Version, other_version: Version) -> None:
    """b9: what a 1.0 consumer cannot be told it gets escaped, and a newline is never raw (it would forge a header)."""
    producer, consumer = await stage.connect(later_version), await stage.connect(other_version)
    await consumer.subscribe(Q)
    value = "colon: back\\slash new\nline"
    await producer.frame("SEND", {"destination": Q, "odd": value, "na:me": "v", "line\nend": "v"}, "x")
    delivery = await consumer.next_message()
    if other_version == "1.0":
        assert "\n" not in delivery.headers["odd"]
        assert delivery.headers["odd"].startswith("colon: back\\")
    else:
        assert delivery.headers["odd"] == value
        assert (delivery.headers["na:me"], delivery.headers["line\nend"]) == ("v", "v")
    assert delivery.text == "x"


async def test_newline_in_a_header_cannot_forge_one_for_1_0(stage: Stage, later_version: Version) -> None:
    producer, consumer = await stage.connect(later_version), await stage.connect("1.0")
    await consumer.subscribe(Q, id="s")
    await producer.frame("SEND", {"destination": Q, "x": "1\nmessage-id:forged\nsubscription:forged"}, "x")
    delivery = await consumer.next_message()
    assert delivery.headers["subscription"] == "s"
    assert delivery.headers["message-id"] != "forged"
    assert not [name for name in delivery.headers if "forged" in delivery.headers[name] and name != "x"]


@pytest.mark.parametrize(("producing", "consuming"), [("1.2", "1.1"), ("1.2", "1.2"), ("1.1", "1.2")])
async def test_carriage_return_in_a_header_survives(stage: Stage, producing: Version, consuming: Version) -> None:
    r"""1.2 writes it `\r`; 1.1 has no such escape and would call it a fatal error."""
    producer, consumer = await stage.connect(producing), await stage.connect(consuming)
    await consumer.subscribe(Q)
    await producer.frame("SEND", {"destination": Q, "odd": "a\rb"}, "x")
    assert (await consumer.next_message()).headers["odd"] == "a\rb"


async def test_first_of_repeated_headers_counts(stage: Stage, version: Version, other_version: Version) -> None:
    """b13: for the broker and for whoever reads the MESSAGE."""
    producer, consumer = await stage.connect(version), await stage.connect(other_version)
    await consumer.subscribe(Q)
    await producer.frame(
        "SEND", [("destination", Q), ("x", "first"), ("x", "second"), ("destination", "/queue/no")], "x"
    )
    headers = (await consumer.next_message()).headers
    assert (headers["x"], headers["destination"]) == ("first", Q)


async def test_header_values_may_be_empty(stage: Stage, later_version: Version) -> None:
    """b8."""
    client = await stage.connect(later_version)
    await client.subscribe(Q)
    await client.frame("SEND", {"destination": Q, "empty": ""}, "x")
    assert (await client.next_message()).headers["empty"] == ""


async def test_blanks_in_headers_are_kept(stage: Stage, later_version: Version) -> None:
    """b12: no trimming from 1.1 on."""
    client = await stage.connect(later_version)
    await client.subscribe(Q)
    await client.frame("SEND", {"destination": Q, "x": "  padded  "}, "x")
    assert (await client.next_message()).headers["x"] == "  padded  "


async def test_1_0_headers_may_be_padded(stage: Stage) -> None:
    """b12: the samples of 1.0 are."""
    client = await stage.connect("1.0")
    await client.subscribe(Q)
    await client.send_raw(b"SEND\ndestination: /queue/work\nx : y \n\nhello\0")
    delivery = await client.next_message()
    assert delivery.text == "hello"
    assert delivery.headers["destination"].strip() == Q


async def test_message_destination_is_the_sends(stage: Stage, version: Version) -> None:
    """b30, also where a wildcard or a composite subscribed."""
    client = await stage.connect(version)
    await client.subscribe("/queue/a.*,/queue/b,/topic/>", id="s")
    for destination in ("/queue/a.x", "/queue/b", "/topic/deep.down"):
        await client.send(destination)
        assert (await client.next_message()).headers["destination"] == destination


async def test_bare_name_stays_as_it_was_sent(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe("bare")
    await client.send("bare", "x")
    assert (await client.next_message()).headers["destination"] == "bare"


async def test_telnet_works(stage: Stage) -> None:
    """Keystrokes one by one, CR LF line ends, NUL and a line end behind each frame."""
    client = stage.stranger()
    typed = b"CONNECT\r\naccept-version:1.2\r\nhost:x\r\n\r\n\0\r\n"
    typed += b"SUBSCRIBE\r\nid:0\r\ndestination:/queue/work\r\n\r\n\0\r\n"
    client.machine.connect("x")
    for at in range(len(typed)):
        await client.send_raw(typed[at : at + 1])
    await client.send_raw(b"\r\n\r\nSEND\r\ndestination:/queue/work\r\nx:y\r\n\r\nhello\r\n\0\r\n")
    delivery = await client.next_message()
    assert (delivery.text, delivery.headers["x"]) == ("hello\r\n", "y")


async def test_frames_may_come_in_any_pieces(stage: Stage, version: Version) -> None:
    client = await stage.connect(version)
    await client.subscribe(Q)
    frames = b"".join(client.encode("SEND", {"destination": Q, "n": str(n)}, f"body {n}") for n in range(30))
    for size in (1, 7, 64, len(frames)):
        for at in range(0, len(frames), size):
            await client.send_raw(frames[at : at + size])
        assert await client.next_texts(30) == [f"body {n}" for n in range(30)]


async def test_mixed_batches_keep_their_order(stage: Stage, version: Version) -> None:
    """Runs of equal heads are handled at once: never out of order."""
    client = await stage.connect(version)
    await client.subscribe(Q)
    frames = []
    for n in range(300):
        headers = {"destination": Q, "kind": str(n // 7 % 3)}
        if n % 11 == 0:
            headers["receipt"] = f"r{n}"
        frames.append(client.encode("SEND", headers, str(n)))
    await client.send_raw(b"".join(frames))
    assert await client.next_texts(300) == [str(n) for n in range(300)]
    await client.sync()
    assert list(client.receipts) == [f"r{n}" for n in range(0, 300, 11)]


async def test_batches_reach_consumers_of_every_version(stage: Stage) -> None:
    """The same run is rendered for different dialects at once (topic, auto and client)."""
    producer = await stage.connect("1.2")
    consumers = []
    for version in SUPPORTED_VERSIONS:
        for ack in ("auto", "client"):
            consumer = await stage.connect(version)
            await consumer.subscribe("/topic/t", ack=ack)
            consumers.append(consumer)
    heads: list[dict[str, str]] = [{"plain": "1"}, {"odd": "a:b\\c\nd"}]
    frames = [producer.encode("SEND", {"destination": "/topic/t", **heads[n % 20 // 10]}, str(n)) for n in range(100)]
    await producer.send_raw(b"".join(frames))
    for consumer in consumers:
        deliveries = await consumer.next_messages(100)
        assert [d.text for d in deliveries] == [str(n) for n in range(100)]
        if consumer.version != "1.0":
            assert all(d.headers["odd"] == "a:b\\c\nd" for d in deliveries if "odd" in d.headers)


@pytest.mark.parametrize("ack", ["auto", "client"])
@pytest.mark.parametrize("size", [0, 1, 20_000])
async def test_a_message_of_1_2_has_a_length_though_its_sender_gave_none(
    stage: Stage, version: Version, ack: str, size: int
) -> None:
    """b6. Alone, among others, rewritten, and given back; beside those of senders who gave one."""
    readers = [await stage.connect(version) for _ in range(2)]
    for reader in readers:
        await reader.subscribe("/topic/t", ack=ack)
    for sender_version, line in (("1.2", "kind:plain"), ("1.2", r"kind:a\\cb"), ("1.0", "kind: a:b")):
        sender = await stage.connect(sender_version)  # type: ignore[arg-type]
        frames = [
            f"SEND\ndestination:/topic/t\n{line}\n\n{'x' * size}\0",
            f"SEND\ndestination:/topic/t\ncontent-length:{size}\n\n{'x' * size}\0",
        ]
        await sender.send_raw("".join(frames * 3).encode())
    for reader in readers:
        for delivery in await reader.next_messages(18):
            given = delivery.headers.get("kind") is None
            expected = str(size) if given or version == "1.2" else None
            assert delivery.headers.get("content-length") == expected
            assert len(delivery.body) == size


async def test_what_comes_again_has_a_length_too(stage: Stage) -> None:
    client = await stage.connect()
    await client.subscribe("/queue/work", ack="client")
    await client.send_raw(b"SEND\ndestination:/queue/work\n\nbody\0")
    await client.nack(await client.next_message())
    again = await client.next_message()
    assert (again.redelivered, again.headers["content-length"], again.text) == (True, "4", "body")
    await client.ack(again)
