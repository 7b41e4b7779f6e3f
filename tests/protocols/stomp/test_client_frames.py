"""What a client may send when, and with which headers: checklist b28-b34, b40, b41, b45, b47, b53, b54, b57."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import AckRun, Fault, Frame, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from sluiceway.protocols.stomp.transitions import ARRIVALS, REQUIRED_HEADERS, State
from tests.protocols.stomp.connections import VERSIONS, connected, fault_of, flat, frames_of


def wire(command: str, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n\0".encode()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("destination", ["", "destination:\n"])
def test_send_needs_a_destination(version: Version, destination: str) -> None:
    """b28; and the ERROR carries the receipt id (b29, b53)."""
    error = fault_of(f"SEND\n{destination}receipt:r-1\n\nbody\0".encode(), version).error
    assert (error.code, error.receipt_id, error.command) == ("missing-header", "r-1", "SEND")


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        ("1.0", wire("SUBSCRIBE", destination="/queue/a")),
        ("1.1", wire("SUBSCRIBE", destination="/queue/a", id="0", ack="client-individual")),
        ("1.2", wire("SUBSCRIBE", destination="/queue/a", id="0", ack="client")),
        ("1.0", wire("UNSUBSCRIBE", destination="/queue/a")),
        ("1.0", wire("UNSUBSCRIBE", id="0")),
        ("1.1", wire("UNSUBSCRIBE", id="0")),
        ("1.2", wire("UNSUBSCRIBE", id="0")),
        ("1.0", wire("ACK", message_id="m", receipt="r")),
        ("1.1", wire("ACK", message_id="m", subscription="0", transaction="t")),
        ("1.2", wire("ACK", id="a", receipt="r")),
        ("1.1", wire("NACK", message_id="m", subscription="0", receipt="r")),
        ("1.2", wire("NACK", id="a", transaction="t")),
        ("1.2", wire("BEGIN", transaction="t")),
        ("1.1", wire("COMMIT", transaction="t", receipt="r")),
        ("1.0", wire("ABORT", transaction="t")),
        ("1.2", wire("DISCONNECT", receipt="r")),
        ("1.0", wire("DISCONNECT")),
    ],
)
def test_complete_frames_pass(version: Version, frame: bytes) -> None:
    """b31-b34, b40-b42, b45, b56"""
    (event,) = connected(version).receive_data(frame)
    assert isinstance(event, Frame)
    assert frame.startswith(event.command.encode())


@pytest.mark.parametrize(
    ("version", "frame", "missing"),
    [
        ("1.0", wire("SUBSCRIBE", id="0"), "destination"),
        ("1.1", wire("SUBSCRIBE", destination="/queue/a"), "id"),
        ("1.2", wire("SUBSCRIBE", destination="/queue/a", id=""), "id"),
        ("1.0", wire("UNSUBSCRIBE"), "id or destination"),
        ("1.1", wire("UNSUBSCRIBE", destination="/queue/a"), "id"),
        ("1.0", wire("ACK", subscription="0"), "message-id"),
        ("1.1", wire("ACK", message_id="m"), "subscription"),
        ("1.1", wire("ACK", subscription="0"), "message-id"),
        ("1.2", wire("ACK", message_id="m", subscription="0"), "id"),
        ("1.2", wire("ACK", id=""), "id"),
        ("1.1", wire("NACK", message_id="m"), "subscription"),
        ("1.2", wire("NACK"), "id"),
        ("1.0", wire("BEGIN"), "transaction"),
        ("1.1", wire("COMMIT", transaction=""), "transaction"),
        ("1.2", wire("ABORT"), "transaction"),
    ],
)
def test_a_missing_header_is_named(version: Version, frame: bytes, missing: str) -> None:
    """b31, b34, b40, b41, b45: required headers per command and version; an empty one is missing."""
    error = fault_of(frame, version).error
    assert error.code == "missing-header"
    assert error.message.endswith(f"without {missing}")


@pytest.mark.parametrize(
    ("version", "mode"), [("1.0", "individual"), ("1.1", "automatic"), ("1.2", "individual"), ("1.2", "")]
)
def test_unknown_ack_modes_are_refused(version: Version, mode: str) -> None:
    """b32. client-individual, which is of 1.1, is taken in 1.0, too."""
    error = fault_of(wire("SUBSCRIBE", destination="/queue/a", id="0", ack=mode), version).error
    assert error.code == "bad-ack-mode"


def test_nack_does_not_exist_in_1_0() -> None:
    """b41"""
    error = fault_of(wire("NACK", message_id="m"), "1.0").error
    assert (error.code, "1.0" in error.message) == ("not-in-this-version", True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("FOO", "unknown-command"),
        ("", "unknown-command"),
        ("MESSAGE", "wrong-direction"),
        ("CONNECTED", "already-connected"),
    ],
)
def test_unknown_commands_are_refused_with_the_receipt_id(version: Version, command: str, code: str) -> None:
    """b53, b54"""
    frame = wire(command or "SENDX", receipt="r")
    error = fault_of(frame, version).error
    assert (error.code, error.receipt_id) == (code, "r")


def test_frames_after_disconnect_are_dropped() -> None:
    """b57: also malformed ones, in the same chunk and later."""
    machine = connected()
    events = machine.receive_data(wire("BEGIN", transaction="t") + wire("DISCONNECT", receipt="r") + b"GARBAGE\0\n\n")
    assert [event.command for event in events if isinstance(event, Frame)] == ["BEGIN", "DISCONNECT"]
    assert len(events) == 2
    assert machine.state is State.DISCONNECTING
    assert machine.receive_data(wire("BEGIN", transaction="u")) == []
    assert machine.pending_bytes == 0


def test_what_was_valid_before_a_fault_is_returned_first() -> None:
    """The session still processes what came before the mistake, then answers it; nothing behind it counts."""
    send = b"SEND\ndestination:/queue/a\n\n1\0"
    machine = connected()
    events = machine.receive_data(send * 2 + wire("ACK", id="a") + wire("BEGIN") + send)
    assert [type(event) for event in events] == [SendRun, AckRun, Fault]
    assert machine.state is State.PARKED
    assert machine.receive_data(send) == []


def test_a_fault_inside_a_run_keeps_the_frames_before_it() -> None:
    good = b"SEND\ndestination:/queue/a\ncontent-length:2\n\nxx\0"
    bad = b"SEND\ndestination:/queue/a\ncontent-length:2\n\nxxx\0"
    assert [kind for kind, *_rest in frames_of(good * 3 + bad + good)] == ["SEND"] * 3 + ["fault"]


def test_the_error_frame_identifies_the_frame() -> None:
    """b52, b53: message, receipt-id, and what else tells the client which frame it was; a text body with the remedy."""
    machine = connected("1.1")
    (fault,) = machine.receive_data(wire("SUBSCRIBE", destination="/queue/a\\c1", receipt="r\\c1"))
    assert isinstance(fault, Fault)
    assert machine.fail(fault.error) == (
        b"ERROR\nmessage:SUBSCRIBE without id\ncode:missing-header\nreceipt-id:r\\c1\n"
        b"command:SUBSCRIBE\ndestination:/queue/a\\c1\n"
        b"content-type:text/plain\ncontent-length:64\n\n"
        b"STOMP 1.1 requires id on SUBSCRIBE; add the header with a value.\0"
    )


def test_an_error_never_tells_a_passcode() -> None:
    machine = ServerMachine(StompLimits())
    (fault,) = machine.receive_data(b"CONNECT\naccept-version:9\nlogin:me\npasscode:secret\n\n\0")
    assert isinstance(fault, Fault)
    assert b"secret" not in machine.fail(fault.error)
    assert "secret" not in repr(fault)


def test_unknown_headers_are_tolerated_everywhere() -> None:
    """PHP's client echoes all headers of a MESSAGE in its ACK."""
    echoed = {"destination": "/queue/a", "message_id": "m", "subscription": "0", "redelivered": "true", "x": "y"}
    assert frames_of(wire("ACK", id="a", **echoed) + wire("NACK", id="b", **echoed)) == [("ACK", b"a"), ("NACK", b"b")]
    assert flat(connected("1.1").receive_data(wire("ACK", **echoed))) == [("ACK", (b"0", b"m"))]


def test_every_required_header_belongs_to_a_legal_command() -> None:
    """The two tables of `transitions` can't drift apart."""
    arrivals = ARRIVALS["server"][State.CONNECTED]
    for command, versions in REQUIRED_HEADERS.items():
        assert set(versions) == arrivals[command].versions
