"""The rest of a large frame is written to where it is sent from: the same frames, no copy, and no memory for words."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Event, Fault, Frame, SendRun
from sluiceway.protocols.stomp.machine import ClientMachine, ServerMachine
from sluiceway.protocols.stomp.receive_buffer import ReceiveBuffer
from tests.how_often import rounds
from tests.protocols.stomp.connections import TIGHT, VERSIONS, connected, events_of, flat
from tests.protocols.stomp.test_chunking import chunked

MIB = 1024 * 1024


def send(size_bytes: int, *headers: str) -> bytes:
    lines = "".join(f"{header}\n" for header in headers)
    return f"SEND\ndestination:/queue/a\n{lines}content-length:{size_bytes}\n\n".encode() + b"x" * size_bytes + b"\0"


def fill(machine: ServerMachine | ClientMachine, data: bytes) -> int:
    """Write what `room` there is for of these bytes, and return how many that were."""
    room = machine.receive_buffer.room
    if room is None:
        return 0
    with room:
        count = min(len(room), len(data))
        room[:count] = data[:count]
    machine.fill(count)
    return count


@pytest.mark.parametrize("stages", [False, True], ids=["in memory", "staged"])
@pytest.mark.parametrize("version", VERSIONS)
@given(parts=chunked(), fills=st.lists(st.booleans(), min_size=10, max_size=10))
@settings(max_examples=rounds(50), deadline=None)
def test_it_makes_no_difference_where_bytes_are_written(
    version: Version, stages: bool, parts: tuple[bytes, list[bytes]], fills: list[bool]
) -> None:
    """In room or not, as a reader likes, at any place of the stream: the same frames and the same fault."""
    data, chunks = parts
    whole = flat(events_of([data], connected(version, TIGHT, stages=stages)))
    machine = connected(version, TIGHT, stages=stages)
    events: list[Event] = []
    with patch.multiple(ReceiveBuffer, _MISSING_BYTES_MIN=1, _SHARE=1000):
        for chunk, fills_room in zip(chunks, fills, strict=False):
            filled_bytes = fill(machine, chunk) if fills_room else 0
            if filled_bytes:
                events += events_of([b""], machine)
            events += events_of([chunk[filled_bytes:]], machine)
    assert flat(events) == whole


def test_room_is_made_for_what_was_sent_not_for_what_was_announced() -> None:
    machine = connected()
    frame = send(MIB)
    machine.receive_data(frame[:200_000])
    assert machine.receive_buffer.room is None
    assert machine.pending_bytes <= 200_000
    machine.receive_data(frame[200_000:300_000])
    assert machine.pending_bytes >= MIB, "all that is held is told"
    assert fill(machine, frame[300_000:]) == len(frame) - 300_000
    (run,) = machine.receive_data(b"")
    assert isinstance(run, SendRun)
    assert run.wires == [frame.removeprefix(b"SEND\n")] or run.wires[0].endswith(frame[-MIB:])
    assert machine.pending_bytes == 0
    machine.receive_data(frame[:100])
    assert machine.pending_bytes >= MIB, "as much was sent before"
    machine.park()
    assert machine.pending_bytes == 0
    assert machine.receive_buffer.room is None


@pytest.mark.parametrize("size_bytes", [1000, 65_536, 200_000, 2 * MIB])
def test_little_and_very_much_is_collected(size_bytes: int) -> None:
    """Little comes with what follows it, in one read; very much would take long to make room for."""
    machine = connected()
    for _ in range(2):
        frame = send(size_bytes)
        machine.receive_data(frame[: size_bytes // 2])
        assert machine.receive_buffer.room is None
        (run,) = machine.receive_data(frame[size_bytes // 2 :])
        assert isinstance(run, SendRun)


@pytest.mark.parametrize("headers", [(), ("receipt:r",), ("persistent:true", "receipt:r\\c1")])
def test_the_whole_is_not_copied(headers: tuple[str, ...]) -> None:
    """Neither when the last byte is there nor before: one buffer from the kernel to the wire."""
    machine = connected()
    frame = send(MIB, *headers)
    machine.receive_data(frame[:500_000])
    machine.receive_data(frame[500_000:])
    tracemalloc.start()
    try:
        machine.receive_data(frame[:10_000])
        for place in range(10_000, len(frame), 100_000):
            assert fill(machine, frame[place : place + 100_000])
        (run,) = machine.receive_data(b"")
        assert tracemalloc.get_traced_memory()[1] < MIB + 150_000
    finally:
        tracemalloc.stop()
    assert isinstance(run, SendRun)
    assert type(run.wires[0]) is bytes
    assert run.wires[0].endswith(frame[-MIB - 1 :])


def test_a_missing_nul_is_a_fault_there_too() -> None:
    machine = connected()
    frame = send(MIB)[:-1] + b"y"
    machine.receive_data(frame[:400_000])
    fill(machine, frame[400_000:])
    assert flat(machine.receive_data(b"")) == flat(events_of([frame], connected()))


# ---------------------------------------------------------------------- the client's side


def client() -> ClientMachine:
    machine = ClientMachine()
    machine.connect("h", versions=("1.2",))
    machine.receive_data(b"CONNECTED\nversion:1.2\n\n\0")
    return machine


def message(body: bytes, end: bytes = b"\0") -> bytes:
    return b"MESSAGE\nsubscription:1\nmessage-id:1\ndestination:/queue/a\ncontent-length:%d\n\n%b%b" % (
        len(body),
        body,
        end,
    )


@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 500), max_size=12),
    fills=st.lists(st.booleans(), min_size=14, max_size=14),
    end=st.sampled_from([b"\0", b"\0\n", b"y"]),
)
@settings(max_examples=rounds(50), deadline=None)
def test_it_makes_no_difference_to_a_client_where_bytes_are_written(
    bodies: list[bytes], places: list[int], fills: list[bool], end: bytes
) -> None:
    data = b"".join(message(body) for body in bodies) + message(b"the last", end)
    whole = flat(client().receive_data(data))
    machine = client()
    events: list[Event] = []
    borders = sorted({0, len(data), *(place for place in places if place < len(data))})
    with patch.multiple(ReceiveBuffer, _MISSING_BYTES_MIN=1, _SHARE=1000):
        for (start, stop), fills_room in zip(pairwise(borders), fills, strict=False):
            filled_bytes = fill(machine, data[start:stop]) if fills_room else 0
            if filled_bytes:
                events += machine.receive_data(b"")
            events += machine.receive_data(data[start + filled_bytes : stop])
    assert flat(events) == whole


def test_the_body_of_a_large_message_is_not_copied() -> None:
    """What the kernel writes into the room is the body that its owner gets."""
    machine = client()
    body = b"x" * MIB
    frame = message(body)
    machine.receive_data(frame[:500_000])
    machine.receive_data(frame[500_000:])
    tracemalloc.start()
    try:
        machine.receive_data(frame[:10_000])
        for place in range(10_000, len(frame), 100_000):
            assert fill(machine, frame[place : place + 100_000])
            assert machine.receive_data(b"") == []
        assert machine.receive_buffer.room is None, "all of the body is there"
        (event,) = machine.receive_data(frame[-1:] + frame[:10])
        assert tracemalloc.get_traced_memory()[1] < MIB + 150_000
    finally:
        tracemalloc.stop()
    assert isinstance(event, Frame)
    assert type(event.body) is bytes
    assert event.body == body


def test_a_message_without_its_nul_is_a_fault_when_its_body_came_in_pieces() -> None:
    machine = client()
    frame = message(b"x" * MIB, b"y")
    events = [
        event for place in range(0, len(frame), 100_000) for event in machine.receive_data(frame[place:][:100_000])
    ]
    (fault,) = events
    assert isinstance(fault, Fault)
    assert flat(events) == flat(client().receive_data(frame))
