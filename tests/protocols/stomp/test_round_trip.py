"""What is encoded reads back as the same frame, in every version and in both directions: checklist b6, b9, b10, b12."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.protocols.stomp.encoder import encode_frame, error_frame, message_prefix, receipt, receipts
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import AckRun, Connect, Frame, SendRun
from sluiceway.protocols.stomp.head import FORGEABLE_HEADERS
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine, ServerMachine
from tests.how_often import rounds
from tests.protocols.stomp.connections import VERSIONS, ConnectionPair

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
tricky = st.text(st.sampled_from("\\:\n\r crn\t"), max_size=8)
values = st.one_of(text, tricky)
names = values.filter(bool)
bodies = st.binary(max_size=60)


def as_read(value: str, version: Version) -> str:
    """What a value becomes on the way: 1.0 can't carry everything (see `escaping`)."""
    return value.replace("\n", "\\n").replace("\r", "\\r").strip(" \t") if version == "1.0" else value


def name_as_read(name: str, version: Version) -> str:
    return as_read(name.replace(":", "\\c"), version) if version == "1.0" else name


def headers_as_read(headers: list[tuple[str, str]], version: Version) -> dict[str, str]:
    read: dict[str, str] = {}
    for name, value in headers:
        read.setdefault(name_as_read(name, version), as_read(value, version))
    return read


def usable(headers: list[tuple[str, str]], version: Version) -> list[tuple[str, str]]:
    """Without names that are empty once 1.0 has trimmed them, and those that mean something here."""
    special = FORGEABLE_HEADERS | {
        "content-length",
        "destination",
        "priority",
        "expires",
        "expiration",
        "delay",
        "x-delay",
        "AMQ_SCHEDULED_DELAY",
        "AMQ_SCHEDULED_CRON",
        "AMQ_SCHEDULED_PERIOD",
        "AMQ_SCHEDULED_REPEAT",
    }
    return [pair for pair in headers if name_as_read(pair[0], version) not in special | {""}]


any_headers = st.lists(st.tuples(names, values), max_size=6)


@pytest.mark.parametrize("version", VERSIONS)
@given(headers=any_headers, body=bodies, destination=values.filter(lambda value: bool(value.strip(" \t\r"))))
@settings(max_examples=rounds(50), deadline=None)
def test_a_send_reads_back(version: Version, headers: list[tuple[str, str]], body: bytes, destination: str) -> None:
    headers = [("destination", destination), *usable(headers, version)]
    (run,) = ConnectionPair(version).to_server("SEND", headers, body)
    assert isinstance(run, SendRun)
    expected = headers_as_read(headers, version)
    if body:
        expected["content-length"] = str(len(body))
    assert run.head.headers == expected
    assert run.wires[0][run.head.body_offset : -1] == body


@pytest.mark.parametrize("target", VERSIONS)
@pytest.mark.parametrize("origin", VERSIONS)
@given(headers=any_headers, body=bodies)
@settings(max_examples=rounds(20), deadline=None)
def test_a_message_means_the_same_to_a_reader_of_another_version(
    origin: Version, target: Version, headers: list[tuple[str, str]], body: bytes
) -> None:
    """b28: from a producer of one version through `block_for` to a consumer of another; nothing is forged."""
    headers = [("destination", "/queue/a"), *usable(usable(headers, target), origin)]
    producer, consumer = ConnectionPair(origin), ConnectionPair(target)
    (run,) = producer.to_server("SEND", headers, body)
    assert isinstance(run, SendRun)
    wire = run.head.block_for(target) + run.wires[0][len(run.head.block) :]
    (message,) = consumer.to_client(message_prefix("s:1", target) + b"message-id:m-1\n" + wire)
    assert isinstance(message, Frame)
    assert (message.command, message.body) == ("MESSAGE", body)
    assert (message.headers.pop("subscription"), message.headers.pop("message-id")) == ("s:1", "m-1")
    if origin == target:
        assert message.headers == run.head.headers
    else:
        assert message.headers == headers_as_read(list(run.head.headers.items()), target)


@pytest.mark.parametrize("version", VERSIONS)
@given(headers=any_headers)
@settings(max_examples=rounds(33), deadline=None)
def test_other_frames_read_back(version: Version, headers: list[tuple[str, str]]) -> None:
    headers = [("transaction", "t"), *usable(headers, version)]
    (frame,) = ConnectionPair(version).to_server("BEGIN", headers)
    assert frame == Frame("BEGIN", headers_as_read(headers, version))


@pytest.mark.parametrize("version", VERSIONS)
@given(ids=st.lists(values, max_size=5), extra=any_headers)
@settings(max_examples=rounds(33), deadline=None)
def test_receipts_read_back_in_order(version: Version, ids: list[str], extra: list[tuple[str, str]]) -> None:
    """b48: whatever the client chose as an id."""
    extra = [pair for pair in usable(extra, version) if name_as_read(pair[0], version) != "receipt-id"]
    frames = ConnectionPair(version).to_client(receipts(ids, version, extra))
    assert frames == [
        Frame("RECEIPT", {"receipt-id": as_read(each, version), **headers_as_read(extra, version)}) for each in ids
    ]
    assert receipts(ids, version, extra) == b"\n".join(receipt(each, version, extra) for each in ids)


@pytest.mark.parametrize("version", VERSIONS)
@given(message=text, body=text)
@settings(max_examples=rounds(20), deadline=None)
def test_errors_read_back(version: Version, message: str, body: str) -> None:
    """b52: one line of message, a body of text."""
    (frame,) = ConnectionPair(version).to_client(error_frame(message, body=body, version=version))
    assert isinstance(frame, Frame)
    assert frame.headers["message"] == " ".join(message.split())
    assert frame.body.decode() == body


@pytest.mark.parametrize("version", VERSIONS)
@given(tokens=st.lists(values.filter(lambda value: bool(value.strip(" \t\r"))), min_size=1, max_size=6))
@settings(max_examples=rounds(33), deadline=None)
def test_acks_read_back(version: Version, tokens: list[str]) -> None:
    """Odd and plain ids in one run."""
    pair = ConnectionPair(version)
    data = b""
    for token in tokens:
        headers = [("id", token)] if version == "1.2" else [("message-id", token), ("subscription", "s")]
        data += encode_frame("ACK", headers, version=version)
    (run,) = pair.server.receive_data(data)
    assert isinstance(run, AckRun)
    read = [as_read(token, version).encode() for token in tokens]
    assert run.tokens == (read if version == "1.2" else [(b"s", token) for token in read])


@given(login=text, passcode=text)
@settings(max_examples=rounds(20), deadline=None)
def test_credentials_survive_connect(login: str, passcode: str) -> None:
    """b10: unescaped, so all but line ends passes."""
    login, passcode = (value.replace("\n", "").rstrip("\r") for value in (login, passcode))
    (connect,) = ServerMachine(StompLimits()).receive_data(ClientMachine().connect("h", login=login, passcode=passcode))
    assert isinstance(connect, Connect)
    assert (connect.login, connect.passcode) == (login, passcode)
