"""Where frames begin and end: checklist b1-b8, b13."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Frame, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from tests.protocols.stomp.connections import VERSIONS, connected, fault_of, flat, frames_of


def one_send(data: bytes, version: Version = "1.2") -> SendRun:
    (run,) = connected(version).receive_data(data)
    assert isinstance(run, SendRun)
    return run


@pytest.mark.parametrize("version", VERSIONS)
def test_line_ends_between_frames_mean_nothing(version: Version) -> None:
    """b1: any number of line ends, LF or CR LF, before and between frames."""
    plain = b"BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\n\nx\0"
    padded = b"\n\r\n\nBEGIN\ntransaction:t\n\n\0\r\n\n\nSEND\ndestination:/queue/a\n\nx\0\n\n"
    assert frames_of(padded, version) == frames_of(plain, version)
    assert len(frames_of(plain, version)) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_heart_beats_alone_make_no_events(version: Version) -> None:
    """b25: an EOL is life, which the transport sees; it is no event."""
    machine = connected(version)
    assert machine.receive_data(b"\n") == machine.receive_data(b"\r\n") == machine.receive_data(b"\n" * 1000) == []
    assert machine.pending_bytes == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_carriage_returns_belong_to_line_ends_where_the_command_has_one(version: Version) -> None:
    """b2: required in 1.2, lenient before it, so that telnet works everywhere; nothing of them is forwarded."""
    run = one_send(b"SEND\r\ndestination:/queue/a\r\ncolour:red\r\n\r\nbody\0", version)
    assert run.head.headers == {"destination": "/queue/a", "colour": "red"}
    assert run.wires == [b"destination:/queue/a\ncolour:red\n\nbody\0"]
    assert frames_of(b"SUBSCRIBE\r\nid:1\r\ndestination:/queue/a\r\n\r\n\0", version) == [
        ("frame", "SUBSCRIBE", (("id", "1"), ("destination", "/queue/a")), b"")
    ]


@pytest.mark.parametrize("version", ["1.0", "1.2"])
def test_a_carriage_return_ends_any_line(version: Version) -> None:
    """b2: of 1.2 each line may choose; 1.0 would have no use for it either."""
    run = one_send(b"SEND\ndestination:/queue/a\r\ncolour:red\n\r\nbody\0", version)
    assert run.head.headers == {"destination": "/queue/a", "colour": "red"}
    assert run.wires == [b"destination:/queue/a\ncolour:red\n\nbody\0"]


def test_a_carriage_return_is_data_in_1_1() -> None:
    """1.1 has neither CR LF as a line end nor an escape for a CR: it comes out as it went in, for all versions."""
    run = one_send(b"SEND\ndestination:/queue/a\ncolour:red\r\nsize:\r\r\n\nbody\0", "1.1")
    assert run.head.headers == {"destination": "/queue/a", "colour": "red\r", "size": "\r\r"}
    assert run.wires == [b"destination:/queue/a\ncolour:red\r\nsize:\r\r\n\nbody\0"]
    assert run.head.block_for("1.2") == b"destination:/queue/a\ncolour:red\\r\nsize:\\r\\r"
    assert frames_of(b"SUBSCRIBE\nid:1\r\ndestination:/queue/a\n\n\0", "1.1") == [
        ("frame", "SUBSCRIBE", (("id", "1\r"), ("destination", "/queue/a")), b"")
    ]


def test_commands_and_header_names_are_case_sensitive() -> None:
    """b2: `send` is no SEND, `Destination` no destination."""
    assert fault_of(b"send\ndestination:/queue/a\n\n\0").error.code == "unknown-command"
    assert fault_of(b"SEND\nDestination:/queue/a\n\n\0").error.code == "missing-header"


def test_headers_are_utf_8() -> None:
    """b3"""
    assert one_send("SEND\ndestination:/queue/grün\nключ:значение\n\n\0".encode()).head.headers == {
        "destination": "/queue/grün",
        "ключ": "значение",
    }


@pytest.mark.parametrize(
    "data", [b"SEND\ndestination:/queue/\xff\n\n\0", b"SUBSCRIBE\nid:\xc3\ndestination:/queue/a\n\n\0"]
)
def test_headers_that_are_not_utf_8_are_refused(data: bytes) -> None:
    """b3"""
    assert fault_of(data).error.code == "not-utf-8"


@pytest.mark.parametrize(
    "command", ["UNSUBSCRIBE", "BEGIN", "COMMIT", "ABORT", "ACK", "NACK", "DISCONNECT", "SUBSCRIBE"]
)
def test_only_send_may_carry_a_body(command: str) -> None:
    """b4"""
    headers = b"id:1\ntransaction:t\ndestination:/queue/a\n\n"
    error = fault_of(command.encode() + b"\n" + headers + b"body\0").error
    assert error.code == "unexpected-body"
    assert command in error.message


def test_the_body_of_a_1_0_subscribe_is_ignored() -> None:
    """b4: the samples of 1.0 have one."""
    (frame,) = connected("1.0").receive_data(b"SUBSCRIBE\ndestination:/queue/a\n\nignored\0")
    assert frame == Frame("SUBSCRIBE", {"destination": "/queue/a"}, b"")


def test_connect_may_not_carry_a_body() -> None:
    """b4, before any version is known."""
    machine = ServerMachine(StompLimits())
    assert flat(machine.receive_data(b"CONNECT\naccept-version:1.2\n\nx\0"))[0][1] == "unexpected-body"


@pytest.mark.parametrize("version", VERSIONS)
def test_content_length_reads_through_nuls(version: Version) -> None:
    """b5: exactly that many octets, NULs and what looks like frames among them."""
    body = b"a\0\0SEND\ndestination:/queue/b\n\n\0\n"
    data = b"SEND\ndestination:/queue/a\ncontent-length:%d\n\n%s\0" % (len(body), body)
    run = one_send(data * 3, version)
    assert run.wires == [b"destination:/queue/a\ncontent-length:%d\n\n%s\0" % (len(body), body)] * 3
    assert run.wires[0][run.head.body_offset : -1] == body


@pytest.mark.parametrize("length", [3, 5, 0])
def test_a_wrong_content_length_is_a_fault(length: int) -> None:
    """b5: a NUL must follow the counted octets."""
    error = fault_of(b"SEND\ndestination:/queue/a\ncontent-length:%d\nreceipt:r\n\nfour\0\n\n" % length).error
    assert (error.code, error.receipt_id) == ("missing-nul", "r")


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "", "1_0", "٣", "9" * 30, "0x10"])
def test_a_content_length_that_is_no_number_is_a_fault(value: str) -> None:
    """b5"""
    assert (
        fault_of(f"SEND\ndestination:/queue/a\ncontent-length:{value}\n\n\0".encode()).error.code
        == "bad-content-length"
    )


def test_content_length_is_allowed_on_every_frame() -> None:
    """b5 (1.2)"""
    assert frames_of(b"ACK\nid:1\ncontent-length:0\n\n\0BEGIN\ntransaction:t\ncontent-length:0\n\n\0") == [
        ("ACK", b"1"),
        ("frame", "BEGIN", (("transaction", "t"), ("content-length", "0")), b""),
    ]


def test_without_content_length_the_first_nul_ends_the_body() -> None:
    """b6"""
    assert one_send(b"SEND\ndestination:/queue/a\n\none\0SEND\ndestination:/queue/a\n\n\0").wires == [
        b"destination:/queue/a\n\none\0",
        b"destination:/queue/a\n\n\0",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_header_value_may_be_empty(version: Version) -> None:
    """b8: from 1.1 on; we let 1.0 have it, too."""
    assert one_send(b"SEND\ndestination:/queue/a\nempty:\n\n\0", version).head.headers["empty"] == ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("line", "code"),
    [(b":value", "empty-header-name"), (b":", "empty-header-name"), (b"nothing", "header-without-colon")],
)
def test_malformed_header_lines_are_refused(version: Version, line: bytes, code: str) -> None:
    """b8"""
    assert fault_of(b"SEND\ndestination:/queue/a\n" + line + b"\n\n\0", version).error.code == code
    assert fault_of(b"BEGIN\ntransaction:t\n" + line + b"\n\n\0", version).error.code == code


@pytest.mark.parametrize("version", VERSIONS)
def test_of_repeated_headers_the_first_wins(version: Version) -> None:
    """b13: the rest is history, and still forwarded behind it."""
    run = one_send(b"SEND\ndestination:/queue/a\ndestination:/queue/b\npriority:9\npriority:1\n\n\0", version)
    assert (run.head.destination, run.head.priority) == ("/queue/a", 9)
    assert run.wires[0].startswith(b"destination:/queue/a\ndestination:/queue/b\n")
    (frame,) = connected(version).receive_data(b"BEGIN\ntransaction:1\ntransaction:2\n\n\0")
    assert isinstance(frame, Frame)
    assert frame.headers == {"transaction": "1"}


@pytest.mark.parametrize(
    "data", [b"SEND\ndestination:/queue/a\0", b"BEGIN\ntransaction:t\n\0\n\n\0", b"SEND\nreceipt:a\0b\n\n\0", b"\0"]
)
def test_a_nul_among_headers_is_refused_at_once(data: bytes) -> None:
    """A frame whose blank line was forgotten does not wait for one."""
    error = fault_of(data).error
    assert error.code == "nul-in-headers"
    assert "blank line" in error.detail


def test_a_fault_is_an_exception_with_code_and_text() -> None:
    error = fault_of(b"FOO\n\n\0").error
    assert isinstance(error, ProtocolError)
    assert str(error) == error.message
    assert repr(error) == "ProtocolError('unknown-command', \"unknown command 'FOO'\", receipt_id=None)"
