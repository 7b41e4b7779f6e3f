"""Frames of one head and one length are taken in blocks: with the very result of taking them one by one."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.frames import Event, Fault, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.strides import BLOCK_COUNT
from tests.protocols.stomp.connections import connected

HEAD = b"SEND\ndestination:/queue/a\ncontent-length:4\n\n"
OTHER = b"SEND\ndestination:/queue/b\ncontent-length:4\n\n"
COUNT = 3 * BLOCK_COUNT + 5

ODD = {
    "another head": OTHER + b"wxyz\0",
    "another length": HEAD.replace(b"4", b"3") + b"wxy\0",
    "an EOL before": b"\n" + HEAD + b"wxyz\0",
    "two EOLs before": b"\n\r\n" + HEAD + b"wxyz\0",
    "a receipt": HEAD[:-1] + b"receipt:r\n\nwxyz\0",
    "lines with CR": HEAD.replace(b"\n", b"\r\n") + b"wxyz\0",
    "no NUL": HEAD + b"wxyz!",
    "no SEND": b"BEGIN\ntransaction:t\n\n\0",
    "a frame that looks like the next two": HEAD.replace(b"4", str(len(HEAD) + 9).encode())
    + b"wxyz\0"
    + HEAD
    + b"wxyz\0",
}


def wires_of(events: list[Event]) -> list[object]:
    """What the events say, whatever the borders of runs."""
    seen: list[object] = []
    for event in events:
        if isinstance(event, SendRun):
            assert event.size_bytes == sum(map(len, event.wires))
            receipts = event.receipts or [None] * len(event.wires)
            seen += [(event.head.block, *both) for both in zip(event.wires, receipts, strict=True)]
        elif isinstance(event, Fault):
            seen.append(event.error.code)
        else:
            seen.append(event)
    return seen


@pytest.mark.parametrize("behind", [b"", b"\n", b"\r\n", b"\r", b"x"], ids=["nothing", "LF", "CR LF", "CR", "x"])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", [0, 1, BLOCK_COUNT - 1, BLOCK_COUNT, BLOCK_COUNT + 1, COUNT - 1, COUNT])
def test_a_block_is_what_its_frames_are(behind: bytes, odd: str, place: int) -> None:
    """Wherever one of them is none of the others' kind."""
    frames = [HEAD + b"%04d\0" % n + behind for n in range(COUNT)]
    frames.insert(place, ODD[odd])
    data = b"".join(frames)
    one_by_one = connected()
    expected: list[Event] = []
    for frame in frames:
        expected += one_by_one.receive_data(frame)
    assert wires_of(connected().receive_data(data)) == wires_of(expected)


@pytest.mark.parametrize("missing_bytes", [1, 5, len(HEAD) + 4, len(HEAD) + 5, len(HEAD) + 6])
def test_the_last_frame_may_be_unfinished(missing_bytes: int) -> None:
    frames = [HEAD + b"%04d\0" % n for n in range(COUNT)]
    data = b"".join(frames)
    machine = connected()
    events = machine.receive_data(data[:-missing_bytes])
    events += machine.receive_data(data[-missing_bytes:])
    assert [wire for event in events if isinstance(event, SendRun) for wire in event.wires] == [f[5:] for f in frames]


@pytest.mark.parametrize("body", [b"", b"x" * 1000], ids=["empty", "a kilobyte"])
def test_heads_that_are_not_forwarded_as_they_came(body: bytes) -> None:
    """Their wires begin with the head block that is forwarded."""
    frame = b"SEND\ndestination:/queue/a\nmessage-id:forged\ncontent-length:%d\n\n%b\0" % (len(body), body)
    machine = connected()
    events = [event for event in machine.receive_data(frame * COUNT) if isinstance(event, SendRun)]
    wire = b"destination:/queue/a\ncontent-length:%d\n\n%b\0" % (len(body), body)
    assert [one for event in events for one in event.wires] == [wire] * COUNT


def test_a_step_ends_within_a_block_of_its_bytes() -> None:
    """Whatever lies behind it is for the next step."""
    frame = HEAD + b"wxyz\0"
    machine = connected(limits=StompLimits())
    parser = machine._parser
    parser.step_bytes = 1000 * len(frame)
    (run,) = parser.feed(frame * 2000)
    assert isinstance(run, SendRun)
    assert 1000 <= len(run.wires) <= 1000 + BLOCK_COUNT
    assert parser.has_more
