"""SENDs whose bodies are passed on in pieces: which ones, what the pieces say, what is held meanwhile."""

from __future__ import annotations

import attrs
import pytest

from sluiceway.protocols.stomp.frames import Event, Fault, Frame, LargeSendEnd, LargeSendPiece, LargeSendStart, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from tests.protocols.stomp.connections import connected, flat

LIMITS = StompLimits(large_body_bytes=100, large_body_bytes_max=10_000, body_bytes_max=1000)
HEAD = b"SEND\ndestination:/queue/a\n"


def staging(limits: StompLimits = LIMITS) -> ServerMachine:
    return connected(limits=limits, stages=True)


def counted(size: int, extra: bytes = b"") -> bytes:
    return HEAD + extra + b"content-length:%d\n\n" % size + b"\0" * size + b"\0"


def uncounted(size: int, extra: bytes = b"") -> bytes:
    return HEAD + extra + b"\n" + b"x" * size + b"\0"


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def pieces(events: list[Event]) -> list[bytes]:
    return [event.data for event in events if isinstance(event, LargeSendPiece)]


@pytest.mark.parametrize("shape", [counted, uncounted])
@pytest.mark.parametrize("extra", [b"", b"receipt:r\n", b"receipt:r\\c\n"], ids=["plain", "receipt", "odd receipt"])
def test_a_body_is_large_from_one_byte_beyond_the_threshold_on(shape: object, extra: bytes) -> None:
    assert callable(shape)
    assert kinds(staging().receive_data(shape(100, extra))) == [SendRun]
    events = staging().receive_data(shape(101, extra))
    assert kinds(events) == [LargeSendStart, LargeSendPiece, LargeSendEnd]
    assert isinstance(events[0], LargeSendStart)
    assert events[0].receipt == (None if not extra else "r:" if b"c" in extra[8:] else "r")


def test_without_staging_every_body_is_collected() -> None:
    """The machine of a broker that has nowhere to put them, and of a listener that does not want it."""
    for machine in (connected(limits=LIMITS), staging(attrs.evolve(LIMITS, large_body_bytes=0))):
        assert kinds(machine.receive_data(counted(1000))) == [SendRun]
        (fault,) = machine.receive_data(counted(1001))
        assert isinstance(fault, Fault)
        assert "body_bytes_max" in fault.error.detail
        assert "large" not in fault.error.detail


def test_what_may_not_be_held_in_memory_is_large() -> None:
    """body_bytes_max stays the limit of what is collected, whatever large_body_bytes says."""
    machine = staging(attrs.evolve(LIMITS, large_body_bytes=5000))
    assert kinds(machine.receive_data(counted(1000))) == [SendRun]
    assert kinds(machine.receive_data(counted(1001)))[0] is LargeSendStart


def test_small_sends_around_a_large_one_keep_their_runs_and_their_order() -> None:
    data = counted(3) * 2 + counted(200) + counted(3) * 2 + uncounted(150) + uncounted(2) + counted(200)
    events = staging().receive_data(data)
    large = [LargeSendStart, LargeSendPiece, LargeSendEnd]
    assert kinds(events) == [SendRun, *large, SendRun, *large, SendRun, *large]
    assert [len(event.wires) for event in events if isinstance(event, SendRun)] == [2, 2, 1]


def test_receipts_in_a_run_stay_with_their_frames() -> None:
    """Frames that differ in their receipt only are taken together, up to one that is large."""
    data = b"".join(uncounted(size, b"receipt:r%d\n" % size) for size in (5, 6, 200, 7))
    frames = flat(staging().receive_data(data))
    assert [(frame[0], frame[3] if frame[0] == "large SEND" else frame[2]) for frame in frames] == [
        ("SEND", "r5"),
        ("SEND", "r6"),
        ("large SEND", "r200"),
        ("SEND", "r7"),
    ]


def test_a_chunk_that_lies_inside_a_large_body_is_not_copied() -> None:
    machine = staging()
    machine.receive_data(HEAD + b"content-length:5000\n\n")
    chunk = b"y" * 2000
    (piece,) = machine.receive_data(chunk)
    assert isinstance(piece, LargeSendPiece)
    assert piece.data is chunk


def test_nothing_of_a_large_body_is_held() -> None:
    """Of one without content-length at most the threshold is, because it may end before."""
    machine = staging()
    for chunk in (counted(5000)[:-3000], uncounted(5000)[:3000]):
        machine = staging()
        machine.receive_data(chunk)
        assert machine.pending_bytes == 0
    machine = staging()
    machine.receive_data(uncounted(5000)[: len(HEAD) + 101])
    assert 100 <= machine.pending_bytes <= 100 + len(HEAD) + 1


def test_a_large_body_that_comes_byte_by_byte_is_the_same_body() -> None:
    machine = staging()
    data = uncounted(300) + b"\n" + counted(300) + b"DISCONNECT\n\n\0"
    events = [event for at in range(len(data)) for event in machine.receive_data(data[at : at + 1])]
    assert b"".join(pieces(events)) == b"x" * 300 + b"\0" * 300
    assert isinstance(events[-1], Frame)


def test_every_piece_has_at_least_a_byte() -> None:
    """Borders of chunks just before the body, just before its NUL, and just behind it."""
    data = counted(200)
    for at in (len(data) - 201, len(data) - 1, len(data)):
        machine = staging()
        events = machine.receive_data(data[:at]) + machine.receive_data(data[at:])
        assert all(pieces(events))
        assert b"".join(pieces(events)) == b"\0" * 200
        assert kinds(events)[-1] is LargeSendEnd


@pytest.mark.parametrize("size", [10_000, 10_001])
def test_the_largest_body_is_the_limit_of_its_own(size: int) -> None:
    """An announced length is refused before a byte of the body; else the pieces end at the limit, exactly."""
    for data, shown in ((counted(size), 0), (uncounted(size), 10_000)):
        events = staging().receive_data(data)
        if size == 10_000:
            assert isinstance(events[-1], LargeSendEnd)
            continue
        fault = events[-1]
        assert isinstance(fault, Fault)
        assert fault.error.code == "body-too-large"
        assert "large_body_bytes_max" in fault.error.detail
        assert sum(map(len, pieces(events))) == shown


def test_a_missing_nul_is_a_fault_about_that_frame() -> None:
    events = staging().receive_data(counted(200, b"receipt:r\n")[:-1] + b"x")
    fault = events[-1]
    assert isinstance(fault, Fault)
    assert (fault.error.code, fault.error.receipt_id) == ("missing-nul", "r")
    assert fault.error.headers == {"destination": "/queue/a"}
    assert b"".join(pieces(events)) == b"\0" * 200


def test_a_machine_that_is_parked_in_a_large_body_ignores_the_rest() -> None:
    machine = staging()
    machine.receive_data(counted(5000)[:1000])
    machine.park()
    assert machine.receive_data(counted(5000)[1000:]) == []
