"""Frames that are written: checklist b6, b7, b48, b52."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.encoder import HEART_BEAT, encode_frame, error_frame, message_prefix, receipt, receipts
from sluiceway.protocols.stomp.errors import LocalProtocolError
from sluiceway.protocols.stomp.frames import Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from tests.protocols.stomp.connections import ConnectionPair


def test_a_body_gets_its_content_length() -> None:
    """b6"""
    assert encode_frame("SEND", [("destination", "/q")], b"a\0b", version="1.2") == (
        b"SEND\ndestination:/q\ncontent-length:3\n\na\0b\0"
    )


def test_a_wrong_content_length_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match="content-length"):
        encode_frame("SEND", [("destination", "/q"), ("content-length", "2")], b"abc", version="1.2")


@pytest.mark.parametrize(
    ("command", "headers", "word"),
    [
        ("SEND", [("", "x")], "empty name"),
        ("SEND", [("a", "x\0")], "NUL"),
        ("CONNECT", [("a:b", "x")], "never escaped"),
        ("CONNECTED", [("a", "x\ny")], "never escaped"),
        ("CONNECT", [("a", "\0")], "NUL"),
    ],
)
def test_what_cannot_be_written_is_our_bug(command: str, headers: list[tuple[str, str]], word: str) -> None:
    with pytest.raises(LocalProtocolError, match=word):
        encode_frame(command, headers, version="1.2")


def test_a_receipt_may_carry_more_headers() -> None:
    """DESIGN section 7: what a RECEIPT means is stated in its `durability` header."""
    assert receipt("r:1", "1.2", [("durability", "disk")]) == b"RECEIPT\nreceipt-id:r\\c1\ndurability:disk\n\n\0"


def test_no_receipts_are_no_bytes() -> None:
    assert receipts([], "1.2") == b""


def test_a_batch_of_receipts_is_escaped_as_a_whole() -> None:
    assert receipts(["1", "a:b"], "1.0") == b"RECEIPT\nreceipt-id:1\n\n\0\nRECEIPT\nreceipt-id:a:b\n\n\0"
    with pytest.raises(LocalProtocolError, match="NUL"):
        receipts(["1", "\0"], "1.2")


def test_an_error_is_one_line_and_a_text_body() -> None:
    """b7, b52; before a version is agreed on, nothing needs unescaping."""
    assert error_frame("no\nway: out", headers=[("receipt-id", "r")], body="über", version=None) == (
        b"ERROR\nmessage:no way: out\nreceipt-id:r\ncontent-type:text/plain\ncontent-length:5\n\n\xc3\xbcber\0"
    )


def test_a_message_prefix_ends_where_a_header_may_follow() -> None:
    """b33: 1.0 subscriptions without id have none."""
    assert message_prefix(None, "1.0") == b"MESSAGE\n"
    assert message_prefix("a:b", "1.2") == b"MESSAGE\nsubscription:a\\cb\n"


def test_a_heart_beat_is_one_line_feed() -> None:
    """b25"""
    assert HEART_BEAT == b"\n"
    assert ConnectionPair("1.2").to_client(HEART_BEAT) == []


def test_a_client_sends_only_what_it_may() -> None:
    client = ClientMachine()
    with pytest.raises(LocalProtocolError, match="idle"):
        client.send("SEND", [("destination", "/q")])
    pair = ConnectionPair("1.0")
    with pytest.raises(LocalProtocolError, match=r"1\.0"):
        pair.client.send("NACK", [("message-id", "1")])
    with pytest.raises(LocalProtocolError, match="body"):
        pair.client.send("BEGIN", [("transaction", "t")], b"x")
    pair.client.send("DISCONNECT")
    with pytest.raises(LocalProtocolError, match="disconnecting"):
        pair.client.send("SEND", [("destination", "/q")])


def test_a_client_still_reads_behind_its_disconnect() -> None:
    """b56: the RECEIPT of DISCONNECT."""
    pair = ConnectionPair("1.2")
    (event,) = pair.to_server("DISCONNECT", [("receipt", "bye")])
    assert isinstance(event, Frame)
    assert event.command == "DISCONNECT"
    (frame,) = pair.to_client(receipt("bye", "1.2"))
    assert frame == Frame("RECEIPT", {"receipt-id": "bye"})
