"""Escapes and trimming per version: checklist b9-b12."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.encoder import encode_frame
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.escaping import Version, escape_name, escape_value, unescape
from sluiceway.protocols.stomp.frames import SendRun
from tests.protocols.stomp.connections import connected, fault_of


def header_of(line: bytes, version: Version) -> tuple[str, str]:
    (run,) = connected(version).receive_data(b"SEND\ndestination:/queue/a\n" + line + b"\n\n\0")
    assert isinstance(run, SendRun)
    return list(run.head.headers.items())[1]


@pytest.mark.parametrize(
    ("version", "line", "expected"),
    [
        ("1.0", rb"a:x\ny\cz\\", ("a", r"x\ny\cz" + "\\\\")),
        ("1.1", rb"a:x\ny\cz\\", ("a", "x\ny:z\\")),
        ("1.2", rb"a:x\ny\cz\\", ("a", "x\ny:z\\")),
        ("1.2", rb"a\cb\n:\r\\n", ("a:b\n", "\r\\n")),
        ("1.1", rb"a\cb:\\c", ("a:b", r"\c")),
    ],
)
def test_escapes_are_read_as_their_version_defines(version: Version, line: bytes, expected: tuple[str, str]) -> None:
    """b9: 1.0 has none, 1.1 three, 1.2 four; also in names."""
    assert header_of(line, version) == expected


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("1.1", rb"a:\r"),
        ("1.1", rb"a:\t"),
        ("1.2", rb"a:\t"),
        ("1.2", rb"a:x\\\y"),
        ("1.2", rb"a:\N"),
        ("1.2", b"a:end\\"),
    ],
)
@pytest.mark.parametrize("command", [b"SEND\ndestination:/queue/a\nreceipt:r\n", b"BEGIN\ntransaction:t\nreceipt:r\n"])
def test_undefined_escapes_are_fatal(version: Version, line: bytes, command: bytes) -> None:
    r"""b11: `\t` everywhere, `\r` under 1.1, a lone backslash at the end."""
    error = fault_of(command + line + b"\n\n\0", version).error
    assert (error.code, error.receipt_id) == ("undefined-escape", "r")


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        ("1.0", "a\r\nb:c\\", "a\\r\\nb:c\\"),
        ("1.1", "a\r\nb:c\\", "a\r\\nb\\cc\\\\"),
        ("1.2", "a\r\nb:c\\", "a\\r\\nb\\cc\\\\"),
    ],
)
def test_values_are_written_as_their_version_defines(version: Version, text: str, expected: str) -> None:
    """b9; a line feed never goes out raw, not even to a 1.0 client that knows no escapes."""
    assert escape_value(text, version) == expected


def test_a_1_0_name_never_holds_a_raw_colon() -> None:
    """A name with a colon from a 1.2 producer must not become another header for a 1.0 consumer."""
    assert escape_name("destination:x", "1.0") == "destination\\cx"


def test_an_undefined_escape_names_the_remedy() -> None:
    with pytest.raises(ProtocolError) as caught:
        unescape("\\t", "1.1")
    assert "\\n, \\c, \\\\" in caught.value.detail


def test_connected_is_never_escaped() -> None:
    """b10, on writing."""
    assert b"\nserver:a:b\\c\n" in encode_frame("CONNECTED", [("server", "a:b\\c")], version="1.2")


@pytest.mark.parametrize(
    ("version", "expected"), [("1.0", ("a", "b c")), ("1.1", (" a ", " b c ")), ("1.2", (" a ", " b c "))]
)
def test_only_1_0_trims(version: Version, expected: tuple[str, str]) -> None:
    """b12"""
    assert header_of(b" a : b c ", version) == expected
    assert header_of(b"\ta\t:\tb c\t", version) == tuple(
        text.replace(" a ", "\ta\t").replace(" b c ", "\tb c\t") for text in expected
    )


def test_a_padded_1_0_receipt_is_found() -> None:
    """b12: a receipt with blanks around its name is one under 1.0, and leaks into nothing."""
    for line in (b" receipt : r1 ", b"receipt: r1", b"receipt :r1"):
        (run,) = connected("1.0").receive_data(b"SEND\ndestination:/queue/a\n" + line + b"\n\nx\0")
        assert isinstance(run, SendRun)
        assert run.receipts == ["r1"]
        assert run.wires == [b"destination:/queue/a\n\nx\0"]
        assert "receipt" not in run.head.headers


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_raw_colon_in_a_value_is_tolerated(version: Version) -> None:
    """Clients that forget to escape a time or an address are served: a line is split at its first colon."""
    assert header_of(b"time:12:30:00", version) == ("time", "12:30:00")
