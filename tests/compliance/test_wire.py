"""The kit's own reader: strict, whatever the pieces."""

from __future__ import annotations

import pytest

from sluiceway.compliance.wire import Frame, Reader, WireFault, escape, frame, readable, unescape


def read(data: bytes, version: str = "1.2", piece: int = 1 << 20) -> list[Frame]:
    reader = Reader()
    reader.version = version
    found: list[Frame] = []
    for at in range(0, len(data), piece):
        reader.feed(data[at : at + piece])
        while (came := reader.next()) is not None:
            found.append(came)
    return found


STREAM = (
    b"\n\nMESSAGE\nx:a\\cb\\n\ncontent-length:3\n\n\0a\0\0\n\nRECEIPT\r\nreceipt-id:1\r\n\r\n\0\r\n"
    b"ERROR\nmessage:no\n\nbody\0"
)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_pieces_do_not_matter(piece: int) -> None:
    message, receipt, error = read(STREAM, piece=piece)
    assert (message.command, message.get("x"), message.body) == ("MESSAGE", "a:b\n", b"\0a\0")
    assert (receipt.command, receipt.get("receipt-id")) == ("RECEIPT", "1")
    assert (error.get("message"), error.body) == ("no", b"body")
    assert not message.irregularities + receipt.irregularities + error.irregularities


@pytest.mark.parametrize(
    ("data", "version", "why"),
    [
        (b"SEND\n\n\0", "1.2", "no frame of a server"),
        (b"message\n\n\0", "1.2", "no frame of a server"),
        (b"MESSAGE\nno colon\n\n\0", "1.2", "no header"),
        (b"MESSAGE\n:value\n\n\0", "1.2", "no header"),
        (b"MESSAGE\ncontent-length:two\n\n\0", "1.2", "content-length"),
        (b"MESSAGE\ncontent-length:2\n\nabc\0", "1.2", "no NUL behind"),
        (b"MESSAGE\nx:\\t\n\n\0", "1.2", "not defined in 1.2"),
        (b"MESSAGE\nx:\\r\n\n\0", "1.1", "not defined in 1.1"),
        (b"MESSAGE\nx:\xff\n\n\0", "1.2", "not UTF-8"),
        (b"MESSAGE\0", "1.2", "no end of the headers"),
        (b"x" * 2_000_000, "1.2", "no end of the headers"),
    ],
)
def test_what_is_no_frame_is_a_fault(data: bytes, version: str, why: str) -> None:
    with pytest.raises(WireFault, match=why):
        read(data, version)


@pytest.mark.parametrize(
    ("data", "version", "what"),
    [
        (b"MESSAGE\nx:a:b\n\n\0", "1.2", "not escaped"),
        (b"RECEIPT\nreceipt-id:1\n\nbody\0", "1.2", "RECEIPT has a body"),
        (b"RECEIPT\r\nreceipt-id:1\r\n\r\n\0", "1.1", "CR LF"),
    ],
)
def test_what_can_be_read_but_is_wrong_is_listed(data: bytes, version: str, what: str) -> None:
    (found,) = read(data, version)
    assert what in found.irregularities[0]


def test_1_0_has_no_escapes_and_1_1_keeps_a_cr() -> None:
    (old,) = read(b"MESSAGE\nx:a\\c:b\n\n\0", "1.0")
    assert old.get("x") == "a\\c:b" and not old.irregularities
    (later,) = read(b"MESSAGE\nx:a\r\n\n\0", "1.1")
    assert later.get("x") == "a\r" and not later.irregularities
    (connected,) = read(b"CONNECTED\nserver:a:\\b\n\n\0", "1.2")
    assert connected.get("server") == "a:\\b"


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_escapes_go_both_ways(version: str) -> None:
    text = "a\\b\\n" if version == "1.0" else "a:b\\c\nd" + ("\r" if version == "1.2" else "")
    assert unescape(escape(text, version), version) == text


def test_frames_are_shown_as_the_specifications_write_them() -> None:
    assert readable(frame("SEND", [("x", "ä\r")], b"\x01\xff")) == "SEND\nx:ä^M\n\n\\x01\\xff^@"
    assert readable(b"abcdef", 3) == "abc … 3 more bytes"
