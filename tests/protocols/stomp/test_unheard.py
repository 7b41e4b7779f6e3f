"""SENDs to topics without a subscriber are passed over: as many, with the same receipts and faults, as if parsed."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from sluiceway.protocols.stomp.frames import Event, Fault, SendRun, UnheardRun
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from sluiceway.protocols.stomp.strides import BLOCK_COUNT
from sluiceway.protocols.stomp.unheard import NAMES_MAX, Unheard
from tests.protocols.stomp.connections import TIGHT, connected
from tests.protocols.stomp.test_strides import ODD

T = "/queue/a"
"""The destination of most frames of `ODD`; here it stands for a topic."""

HEADS = {
    "with a length": b"SEND\ndestination:/queue/a\ncontent-length:4\n\n",
    "without": b"SEND\ndestination:/queue/a\n\n",
    "with receipts": b"SEND\ndestination:/queue/a\nreceipt:r-%04d\ncontent-length:4\n\n",
    "with receipts, without a length": b"SEND\ndestination:/queue/a\nreceipt:r-%04d\nkey:v\n\n",
}
COUNT = 3 * BLOCK_COUNT + 5


class Kept:
    """Memory that was counted."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def __call__(self, more_bytes: int) -> None:
        self.size_bytes += more_bytes


def passing(*, limits: StompLimits | None = None, stages: bool = False) -> ServerMachine:
    """A machine that passes over what goes to T."""
    machine = connected(limits=limits, stages=stages)
    unheard = Unheard(lambda head: head.destination == T, Kept())
    unheard.note(T)
    machine.pass_over(unheard)
    return machine


def told(events: Iterable[Event]) -> list[object]:
    """What the events say, without the bodies of what goes to T."""
    seen: list[object] = []
    for event in events:
        if isinstance(event, UnheardRun):
            seen += [(event.head.block, None, receipt) for receipt in event.receipts or [None] * event.count]
            assert event.receipts is None or len(event.receipts) == event.count
        elif isinstance(event, SendRun):
            receipts = event.receipts or [None] * len(event.wires)
            is_unheard = event.head.destination == T
            seen += [
                (event.head.block, None if is_unheard else wire, receipt)
                for wire, receipt in zip(event.wires, receipts, strict=True)
            ]
        elif isinstance(event, Fault):
            seen.append((event.error.code, event.error.headers))
        else:
            seen.append(repr(event))
    return seen


def frames_of(head: bytes, behind: bytes = b"") -> list[bytes]:
    return [(head % n if b"%" in head else head) + b"%04d\0" % n + behind for n in range(COUNT)]


OTHERS = {
    **ODD,
    "a receipt to unescape": b"SEND\ndestination:/queue/a\nreceipt:a\\cb\ncontent-length:4\n\nwxyz\0",
    "an empty receipt": b"SEND\ndestination:/queue/a\nreceipt:\ncontent-length:4\n\nwxyz\0",
    "an endless head": b"SEND\ndestination:/queue/a\n" + b"k:v\n" * 20_000,
}
PLACES = [0, 1, BLOCK_COUNT, COUNT - 1, COUNT]
BEHIND = [b"", b"\n", b"\r\n", b"x"]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("odd", OTHERS)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_differs_but_the_bodies(head: str, odd: str, place: int) -> None:
    """Also where one of them is none of the others' kind, and however the stream is cut. What stands behind the frames
    changes from one to the next, so that each meets each place and each odd frame.
    """
    behind = BEHIND[(list(HEADS).index(head) + list(OTHERS).index(odd) + PLACES.index(place)) % len(BEHIND)]
    frames = frames_of(HEADS[head], behind)
    frames.insert(place, OTHERS[odd])
    data = b"".join(frames)
    expected = told(connected().receive_data(data))
    assert told(passing().receive_data(data)) == expected
    chance = random.Random(place)
    machine, events, at = passing(), list[Event](), 0
    while at < len(data):
        size = chance.choice((1, 7, 100, 3000))
        events += machine.receive_data(data[at : at + size])
        at += size
    assert told(events) == expected


@pytest.mark.parametrize("head", HEADS)
def test_whole_frames_are_not_cut_out(head: str) -> None:
    events = passing().receive_data(b"".join(frames_of(HEADS[head])))
    assert sum(event.count for event in events if isinstance(event, UnheardRun)) == COUNT
    assert len(events) <= 2


@pytest.mark.parametrize("head", HEADS)
def test_an_unfinished_frame_is_parsed_when_it_is_whole(head: str) -> None:
    """Until then its topic may get a subscriber."""
    machine = passing()
    data = b"".join(frames_of(HEADS[head]))
    assert told(machine.receive_data(data[:-3]) + machine.receive_data(data[-3:])) == told(
        connected().receive_data(data)
    )


@pytest.mark.parametrize("body_bytes", [29, 30, 31, 500, 501, 700, 701])
@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_limits_of_bodies_stay(body_bytes: int, stages: bool, counted: bool) -> None:
    length = b"content-length:%d\n" % body_bytes if counted else b""
    frame = b"SEND\ndestination:/queue/a\n" + length + b"\n" + b"x" * body_bytes + b"\0"
    data = frame * 3
    expected = told(connected(limits=TIGHT, stages=stages).receive_data(data))
    assert told(passing(limits=TIGHT, stages=stages).receive_data(data)) == expected


@pytest.mark.parametrize(
    "before",
    [
        b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0",
        b"BEGIN\ntransaction:t\n\n\0",
        b"SEND\ndestination:/sluiceway/stat\n\n\0",
    ],
    ids=["SUBSCRIBE", "BEGIN", "a request"],
)
def test_nothing_is_passed_over_behind_what_may_bring_a_subscriber(before: bytes) -> None:
    frames = b"".join(frames_of(HEADS["with a length"]))
    machine = passing()
    events = machine.receive_data(before + frames)
    assert not any(isinstance(event, UnheardRun) for event in events)
    assert any(isinstance(event, UnheardRun) for event in machine.receive_data(frames)), "but in the next read"


def test_a_topic_that_is_heard_again_is_forgotten() -> None:
    kept, heard = Kept(), False
    unheard = Unheard(lambda _head: not heard, kept)
    unheard.note(T)
    head = SendHead({"destination": T}, b"destination:/queue/a", "1.2")
    assert unheard.may_pass(head, [])
    heard = True
    assert not unheard.may_pass(head, [])
    assert not unheard.names
    assert kept.size_bytes == 0


def test_names_are_bounded_and_counted() -> None:
    kept = Kept()
    unheard = Unheard(lambda _head: True, kept)
    for number in range(5 * NAMES_MAX + 3):
        unheard.note(f"/topic/{number % (2 * NAMES_MAX + 1)}")
        assert len(unheard.names) <= NAMES_MAX
        assert kept.size_bytes >= 160 * len(unheard.names)
    assert kept.size_bytes <= 200 * NAMES_MAX
