"""What is sent can be recognised, and the ledger finds every way in which it can arrive wrongly."""

from __future__ import annotations

import re

import pytest

from perf.load import frames
from perf.load.ledger import Ledger


def _tags(data: memoryview) -> list[tuple[int, int, int]]:
    return [(int(stream), int(number), int(made)) for stream, number, made in frames.TAG.findall(data.tobytes())]


def test_identical_frames_are_whole_frames_of_the_asked_number() -> None:
    """A cut of the block ends at a frame's end."""
    source = frames.IdenticalFrames("/queue/a", 20, persistent=False)
    data = source.take(7, 0).tobytes()
    assert data.count(0) == 7
    assert data.endswith(b"x" * 20 + b"\0")
    assert b"content-length:20\n" in data
    assert b"persistent" not in data


def test_tagged_frames_number_on_over_batches_and_keep_their_size() -> None:
    """Sequences have no gap, and every body has exactly the size that content-length says."""
    source = frames.TaggedFrames("/queue/a", 60, True, stream=3, receipt_every=1, high_priority_every=0)
    data = [source.take(4, 5), source.take(3, 6)]
    assert [tag for part in data for tag in _tags(part)] == [(3, n, 5 if n < 4 else 6) for n in range(7)]
    frame = data[0].tobytes().split(b"\0")[0]
    assert len(frame.partition(b"\n\n")[2]) == 60
    assert b"receipt:1\n" in frame
    assert b"persistent:true\n" in frame


def test_every_so_manieth_frame_asks_for_a_receipt_also_over_the_end_of_the_ring() -> None:
    """Batches of any size are whole frames, the receipts fall where they should, and the count of them is right."""
    source = frames.ReceiptedFrames("/queue/a", 20, True, receipt_every=4, window_count=300)
    taken = b"".join(source.take(count, 0).tobytes() for count in (1, 2, 300, 7, 299, 300, 300, 300))
    sent = taken.split(b"\0")[:-1]
    assert len(sent) == 1509
    assert source.receipts_asked == 1509 // 4
    for number, frame in enumerate(sent, 1):
        assert frame.endswith(b"\n\n" + b"x" * 20)
        assert (b"\nreceipt:" in frame) == (number % 4 == 0)


def test_no_receipt_that_can_be_waited_for_has_the_name_of_another() -> None:
    """Any stretch as long as the window has different receipts, though the names come again."""
    source = frames.ReceiptedFrames("/queue/a", 20, True, receipt_every=1, window_count=1500)
    names = re.findall(rb"\nreceipt:(\d+)", b"".join(source.take(1000, 0).tobytes() for _ in range(5)))
    assert len(names) == 5000
    for first in range(0, 3500, 250):
        assert len(set(names[first : first + 1500])) == 1500


def test_priorities_are_streams_of_their_own() -> None:
    """Every third message has priority 9 and is numbered apart, so that overtaking is not taken for disorder."""
    source = frames.TaggedFrames("/queue/a", 60, False, stream=0, receipt_every=0, high_priority_every=3)
    data = source.take(6, 0)
    high = frames.HIGH_STREAM
    assert [(s, n) for s, n, _ in _tags(data)] == [(0, 0), (0, 1), (high, 0), (0, 2), (0, 3), (high, 1)]
    assert data.tobytes().count(b"priority:9\n") == 2


def test_a_tag_that_does_not_fit_is_refused() -> None:
    """A scenario with too small a body fails at once and says what to do."""
    with pytest.raises(ValueError, match="use bodies of 40 bytes or more"):
        frames.tagged_body(0, 1, 10**18, 12)


def test_ack_ids_are_returned_as_they_came() -> None:
    """Escapes stay as they are, since an ack id is opaque to a client."""
    ids = frames.ACK_ID.findall(
        b"MESSAGE\nack:T_s1@@x\\c1\nmessage-id:1\n\nbody\0\nMESSAGE\nmessage-id:2\nack:b\r\n\nbody\0"
    )
    assert ids == [b"T_s1@@x\\c1", b"b"]
    assert frames.acks(ids) == b"ACK\nid:T_s1@@x\\c1\n\n\0ACK\nid:b\n\n\0"


def test_ledger_accepts_interleaved_streams_in_order() -> None:
    """Two consumers of one queue see parts of two streams, each rising."""
    ledger = Ledger()
    ledger.enter(0, 0, [(0, 0), (1, 0), (0, 2)], (0, 1), True)
    ledger.enter(1, 0, [(0, 1), (1, 1)], (0, 1), True)
    assert list(ledger.faults()) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param((0, 0, [(0, 0), (0, 1)]), (1, 0, [(0, 1)]), "came twice", id="twice in a group"),
        pytest.param((0, 0, [(0, 1)]), (0, 0, [(0, 0)]), "came after 1", id="disorder"),
        pytest.param((0, 0, [(0, 0)]), (0, 0, [(7, 0)]), "sends to another destination", id="astray"),
    ],
)
def test_ledger_finds_what_is_wrong(
    first: tuple[int, int, list[tuple[int, int]]], second: tuple[int, int, list[tuple[int, int]]], expected: str
) -> None:
    """Doubled, disordered and astray messages each make one fault."""
    ledger = Ledger()
    for consumer, group, tags in (first, second):
        ledger.enter(consumer, group, tags, (0,), True)
    assert [expected in fault for fault in ledger.faults()] == [True]


def test_a_topic_subscriber_may_get_what_another_got() -> None:
    """Each subscriber of a topic is a group of its own."""
    ledger = Ledger()
    ledger.enter(0, 0, [(0, 0)], (0,), True)
    ledger.enter(1, 1, [(0, 0)], (0,), True)
    assert list(ledger.faults()) == []


def test_faults_are_listed_up_to_twenty_and_then_counted() -> None:
    """A broker that doubles everything does not fill the memory with complaints."""
    ledger = Ledger()
    for number in range(25):
        ledger.fault(f"fault {number}")
    faults = list(ledger.faults())
    assert len(faults) == 21
    assert faults[-1] == "… and 5 more"
