"""Bytes that are read in steps give the same events as bytes that are read at once, no more than are taken."""

from __future__ import annotations

from itertools import islice
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.stomp.acks import TOKENS_MAX
from sluiceway.protocols.stomp.frames import AckRun, Fault, Frame, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import STEP_BYTES, STEP_EVENTS, ServerMachine

FRAMES = [
    b"SEND\ndestination:/queue/a\n\nx\0",
    b"SEND\ndestination:/queue/a\nk:%d\n\nx\0",
    b"SEND\ndestination:/queue/a\ncontent-length:3\n\na\0b\0",
    b"BEGIN\ntransaction:%d\n\n\0",
    b"ABORT\ntransaction:%d\n\n\0",
    b"ACK\nid:1-%d\n\n\0",
    b"SEND\ndestination:/queue/a\nreceipt:%d\n\nx\0",
    b"SEND\r\ndestination:/queue/a\r\n\r\nx\0",
    b"SEND\ndestination:/queue/a\ncontent-length:700\n\n" + b"a\0b" * 233 + b"c\0",
    b"\n",
]


def connected() -> ServerMachine:
    machine = ServerMachine(StompLimits())
    machine.receive_data(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    machine.accept("session")
    return machine


def shown(events: list[object]) -> list[object]:
    """In words that can be compared; runs of SENDs with one head may be cut anywhere."""
    found: list[object] = []
    for event in events:
        if isinstance(event, SendRun):
            found += [(event.head.destination, bytes(wire)) for wire in event.wires]
        elif isinstance(event, AckRun):
            found += event.tokens
        elif isinstance(event, Fault):
            found.append(event.error.code)
        elif isinstance(event, Frame):
            found.append((event.command, event.headers, event.body))
        else:
            found.append(repr(event))
    return found


@given(
    st.lists(st.tuples(st.integers(0, len(FRAMES) - 1), st.integers(1, 60)), max_size=12),
    st.integers(1, 4000),
    st.integers(1, 2000),
    st.booleans(),
)
def test_the_events_are_the_same_however_they_are_taken(
    kinds: list[tuple[int, int]], chunk_bytes: int, step_bytes: int, is_wrong_at_the_end: bool
) -> None:
    data = b"".join(
        FRAMES[kind] % number if b"%d" in FRAMES[kind] else FRAMES[kind]
        for kind, count in kinds
        for number in range(1, count + 1)
    )
    data += b"NONSENSE\n\n\0" if is_wrong_at_the_end else b""
    at_once, in_steps = connected(), connected()
    expected, found = [], []
    for start in range(0, len(data), chunk_bytes):
        expected += at_once.receive_data(data[start : start + chunk_bytes])
        with patch("sluiceway.protocols.stomp.machine.STEP_BYTES", step_bytes):
            found += list(in_steps.receive_in_steps(data[start : start + chunk_bytes]))
    assert shown(list(found)) == shown(list(expected))
    assert in_steps.pending_bytes == at_once.pending_bytes


def test_no_more_is_read_than_is_taken() -> None:
    machine = connected()
    data = b"".join(b"BEGIN\ntransaction:%d\n\n\0" % number for number in range(10_000))
    events = machine.receive_in_steps(data)
    list(islice(events, 5))
    assert machine.pending_bytes > len(data) * (1 - 2 * STEP_EVENTS / 10_000)


def test_a_parked_machine_gives_no_more() -> None:
    machine = connected()
    events = machine.receive_in_steps(b"".join(b"BEGIN\ntransaction:%d\n\n\0" % number for number in range(1_000)))
    list(islice(events, STEP_EVENTS))
    machine.park()
    assert list(events) == []


def test_a_step_has_so_many_bytes_of_small_frames_and_leaves_the_rest_unread() -> None:
    """SENDs of one head and ACKs become one event however many they are: so that is cut by bytes; the shortest
    SENDs by their number.
    """
    shortest = b"SEND\ndestination:/queue/a\n\nx\0"
    for frame in (
        shortest,
        b"SEND\ndestination:/queue/a\ncontent-length:1\n\nx\0",
        b"SEND\ndestination:/queue/a\nreceipt:r\n\nx\0",
        b"ACK\nid:1-1\n\n\0",
    ):
        machine = connected()
        events = machine.receive_in_steps(frame * 20_000)
        first = next(events)
        assert isinstance(first, SendRun | AckRun)
        count = 20_000 - machine.pending_bytes // len(frame)
        if frame == shortest:
            assert STEP_BYTES * 0.9 <= count * 48 <= STEP_BYTES
        else:
            assert STEP_BYTES <= count * len(frame) <= STEP_BYTES * 1.1
        assert (count if isinstance(first, SendRun) else TOKENS_MAX) == len(
            first.wires if isinstance(first, SendRun) else first.tokens
        )
