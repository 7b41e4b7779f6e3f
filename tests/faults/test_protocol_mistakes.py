"""A peer that breaks the protocol gets one ERROR that says what and is closed; the log has one line; others go on."""

from __future__ import annotations

import ssl

import attrs
import pytest

from tests.faults.broker_log import BrokerLog
from tests.faults.bystander import Bystander
from tests.faults.conftest import StartBroker
from tests.interop.raw_client import RawClient, frame


@attrs.frozen
class Mistake:
    """What is sent on a live connection, and what is said of it."""

    wire: bytes
    code: str
    """The name of the fault, as logged."""
    message: str
    """Part of the ERROR's message."""
    receipt_id: str | None = None


MISTAKES = {
    "header without colon": Mistake(b"SEND\ndestination:/queue/a\nnonsense\n\nx\0", "header-without-colon", "colon"),
    "empty header name": Mistake(b"SEND\ndestination:/queue/a\n:v\n\nx\0", "empty-header-name", "empty name"),
    "header that is not UTF-8": Mistake(b"SEND\ndestination:/queue/\xff\n\nx\0", "not-utf-8", "UTF-8"),
    "unknown escape": Mistake(b"SEND\ndestination:/queue/a\nk:\\t\n\nx\0", "undefined-escape", "undefined escape"),
    "no NUL behind the body": Mistake(
        b"SEND\ndestination:/queue/a\nreceipt:r1\ncontent-length:1\n\nxyz\0", "missing-nul", "NUL", "r1"
    ),
    "NUL in the headers": Mistake(b"SEND\ndestination:/queue/a\0", "nul-in-headers", "NUL"),
    "content-length in words": Mistake(
        b"SEND\ndestination:/queue/a\ncontent-length:ten\n\nx\0", "bad-content-length", "content-length"
    ),
    "unknown command": Mistake(b"PUBLISH\nreceipt:r2\n\n\0", "unknown-command", "unknown command 'PUBLISH'", "r2"),
    "command in small letters": Mistake(b"send\ndestination:/queue/a\n\nx\0", "unknown-command", "unknown command"),
    "a server's command": Mistake(frame("MESSAGE", destination="/queue/a"), "wrong-direction", "MESSAGE"),
    "second CONNECT": Mistake(frame("CONNECT", accept_version="1.2", host="h"), "already-connected", "already"),
    "SEND without destination": Mistake(frame("SEND", b"x", receipt="r3"), "missing-header", "destination", "r3"),
    "SUBSCRIBE without id": Mistake(
        frame("SUBSCRIBE", destination="/queue/a", receipt="r4"), "missing-header", "id", "r4"
    ),
    "SUBSCRIBE with an unknown ack mode": Mistake(
        frame("SUBSCRIBE", id="1", destination="/queue/a", ack="later"), "bad-ack-mode", "later"
    ),
    "UNSUBSCRIBE of nothing": Mistake(frame("UNSUBSCRIBE", id="9"), "unknown-subscription", "9"),
    "ACK without id": Mistake(frame("ACK", message_id="1"), "missing-header", "ACK without id"),
    "ACK of nothing": Mistake(frame("ACK", id="no-such"), "unknown-delivery", "no-such"),
    "COMMIT of an unknown transaction": Mistake(
        frame("COMMIT", transaction="t9", receipt="r5"), "unknown-transaction", "t9", "r5"
    ),
    "SEND in an unknown transaction": Mistake(
        frame("SEND", b"x", destination="/queue/a", transaction="t9", receipt="r6"), "unknown-transaction", "t9", "r6"
    ),
    "BEGIN twice": Mistake(frame("BEGIN", transaction="t") * 2, "transaction-exists", "t"),
    "a body where none may be": Mistake(b"BEGIN\ntransaction:t\n\nbody\0", "unexpected-body", "body"),
    "a destination that can't be": Mistake(frame("SEND", b"x", destination="/topic/a.*"), "bad-destination", "*"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_costs_its_connection_and_nothing_else(
    name: str, address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    mistake = MISTAKES[name]
    with RawClient(address) as client:
        client.connect()
        client.send(mistake.wire)
        frames = client.frames_to_end()
        assert [frame.command for frame in frames] == ["ERROR"]
        assert mistake.message in frames[0]["message"]
        assert frames[0].headers.get("receipt-id") == mistake.receipt_id
    line = broker_log.the_end_of(client.name)
    assert line["level"] == "warning"
    assert line["reason"].startswith(f"{mistake.code}: ")
    bystander.is_served()


OVER_LIMITS = {
    "header block": ("header_block_bytes_max", 4096, b"a:b\n" * 2000, "header-block-too-large"),
    "header line": ("header_line_bytes_max", 512, b"a:" + b"b" * 600 + b"\n\n\0", "header-line-too-long"),
    "header count": ("header_count_max", 20, b"a:b\n" * 30 + b"\n\0", "too-many-headers"),
    "announced body": ("body_bytes_max", 10_000, b"content-length:10001\n\n", "body-too-large"),
    "body without length": ("body_bytes_max", 10_000, b"\n" + b"x" * 20_000, "body-too-large"),
}


@pytest.mark.parametrize("name", OVER_LIMITS)
def test_what_is_over_a_limit_is_refused_before_it_is_complete(
    name: str, start_broker: StartBroker, broker_log: BrokerLog
) -> None:
    """An ERROR that names the limit's excess; of an announced body not one byte is waited for."""
    limit, value, wire, code = OVER_LIMITS[name]
    broker = start_broker(**{limit: value})
    address = (broker.host, broker.port)
    with Bystander(address) as bystander, RawClient(address) as client:
        client.connect()
        client.send(b"SEND\ndestination:/queue/a\n" + wire)
        assert client.expect("ERROR")["message"]
        client.close()
        assert broker_log.the_end_of(client.name)["reason"].startswith(f"{code}: ")
        bystander.is_served()


def test_a_limit_is_no_limit_until_it_is_reached(start_broker: StartBroker) -> None:
    broker = start_broker(body_bytes_max=10_000, header_line_bytes_max=512, header_count_max=20)
    with RawClient((broker.host, broker.port)) as client:
        client.connect()
        head = b"SEND\ndestination:/queue/a\nreceipt:r\n" + b"a:" + b"b" * 500 + b"\n" + b"c:d\n" * 15
        client.send(head + b"content-length:10000\n\n" + b"x" * 10_000 + b"\0")
        assert client.expect("RECEIPT")["receipt-id"] == "r"


def test_before_connected_next_to_nothing_is_accepted(start_broker: StartBroker) -> None:
    """Nobody unknown gets megabytes: the smaller limit holds for CONNECT."""
    broker = start_broker(connect_frame_bytes_max=1024)
    with RawClient((broker.host, broker.port)) as client:
        client.send(b"CONNECT\naccept-version:1.2\nhost:h\n" + b"a:bbbbbbbbbbbb\n" * 100 + b"\n\0")
        assert "1024" in client.expect("ERROR")["message"]


FOREIGN = {
    "http": (b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n", "http-request", "not HTTP"),
    "frame before CONNECT": (frame("SEND", b"x", destination="/queue/a"), "not-connected", "CONNECT"),
    "unknown version": (frame("CONNECT", accept_version="9.9", host="h"), "no-common-version", "version"),
    "heart-beat in words": (
        frame("CONNECT", accept_version="1.2", host="h", heart_beat="soon,never"),
        "bad-heart-beat",
        "heart-beat",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_client_of_another_protocol_is_told_what_this_port_is(
    name: str, address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    wire, code, message = FOREIGN[name]
    with RawClient(address) as client:
        client.send(wire)
        error = client.frames_to_end()[0]
        assert error.command == "ERROR"
        assert message in error["message"]
    assert broker_log.the_end_of(client.name)["reason"].startswith(f"{code}: ")
    bystander.is_served()


def test_a_tls_client_is_turned_away_at_its_first_byte(
    address: tuple[str, int], broker_log: BrokerLog, bystander: Bystander
) -> None:
    """Its handshake fails at once instead of hanging, and the log says why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with RawClient(address) as client:
        name = client.name
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(client.socket, server_hostname="localhost")
    assert "tls" in broker_log.the_end_of(name)["reason"]
    bystander.is_served()


def test_an_error_comes_after_the_answers_to_what_was_right(address: tuple[str, int]) -> None:
    """Pipelined frames before a mistake take effect and are answered; those behind it never do."""
    with RawClient(address) as client:
        client.connect()
        good = frame("SEND", b"1", destination="/queue/a", receipt="before")
        client.send(good + b"NONSENSE\n\n\0" + good.replace(b"before", b"after"))
        before, error = client.frames_to_end()
        assert (before.command, before["receipt-id"], error.command) == ("RECEIPT", "before", "ERROR")
    with RawClient(address) as reader:
        reader.connect()
        reader.send(frame("SUBSCRIBE", id="1", destination="/queue/a"))
        assert reader.expect("MESSAGE").body == b"1"
        reader.send(frame("UNSUBSCRIBE", id="1", receipt="r"))
        reader.expect("RECEIPT")
