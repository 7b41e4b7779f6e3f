"""Runs of SENDs: what is forwarded, receipts, heads and their cache: checklist b28, b30, b13, and DESIGN section 9."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Event, Fault, SendRun
from sluiceway.protocols.stomp.head import BROKER_OWNED_HEADERS, SendHead
from sluiceway.protocols.stomp.headcache import HEAD_CACHE_BYTES_MAX, HEAD_CACHE_COUNT_MAX, HeadCache, cut_length
from sluiceway.protocols.stomp.limits import StompLimits
from tests.protocols.stomp.connections import VERSIONS, connected, fault_of, frames_of


def send(*lines: str, body: bytes = b"") -> bytes:
    return "".join(f"{line}\n" for line in ("SEND", *lines, "")).encode() + body + b"\0"


def runs(data: bytes, version: Version = "1.2") -> list[SendRun]:
    events: list[Event] = connected(version).receive_data(data)
    sends = [event for event in events if isinstance(event, SendRun)]
    assert len(sends) == len(events)
    return sends


def head_of(*lines: str, version: Version = "1.2") -> SendHead:
    return SendHead.parse("\n".join(lines).encode(), version, StompLimits())[0]


def test_sends_with_one_head_make_one_run() -> None:
    frame = send("destination:/queue/a", "content-length:4", body=b"abcd")
    (run,) = runs(frame * 1000)
    assert run.wires == [frame[5:]] * 1000
    assert run.size_bytes == 1000 * len(frame[5:])
    assert run.receipts is None


def test_a_head_is_shared_across_chunks_and_interleaving() -> None:
    """Routing may be cached by head object."""
    machine = connected()
    a, b = send("destination:/queue/a"), send("destination:/queue/b")
    heads = [
        event.head for event in machine.receive_data(a + b + a) + machine.receive_data(b) if isinstance(event, SendRun)
    ]
    assert heads[0] is heads[2]
    assert heads[1] is heads[3]
    assert heads[0] is not heads[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("length", ["content-length:2", "x:y"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_receipts_that_differ_stay_in_one_run(version: Version, length: str, place: int) -> None:
    """A sender that asks for a receipt per message is served as fast as others; no receipt is forwarded."""
    lines = ["destination:/queue/a", length]
    frames = [send(*lines[:place], f"receipt:r-{n}", *lines[place:], body=b"%02d" % n) for n in range(50)]
    (run,) = runs(b"\n".join(frames), version)
    assert run.receipts == [f"r-{n}" for n in range(50)]
    assert run.wires == [f"destination:/queue/a\n{length}\n\n{n:02d}\0".encode() for n in range(50)]


def test_a_run_never_mixes_frames_with_and_without_receipt() -> None:
    plain, asking = send("destination:/queue/a"), send("destination:/queue/a", "receipt:1")
    assert [run.receipts for run in runs(plain + asking + plain)] == [None, ["1"], None]
    assert len({run.head for run in runs(plain + asking + plain)}) == 1


@pytest.mark.parametrize(
    ("version", "value", "receipt"),
    [
        ("1.2", r"a\cb\\", "a:b\\"),
        ("1.2", " a b ", " a b "),
        ("1.0", " a b ", "a b"),
        ("1.0", r"a\cb", r"a\cb"),
        ("1.1", "ä", "ä"),
        ("1.2", "", ""),
        ("1.2", "x" * 300, "x" * 300),
        ("1.2", "a:b", "a:b"),
    ],
)
def test_odd_receipts_are_read_inside_a_run(version: Version, value: str, receipt: str) -> None:
    """b48: the RECEIPT must echo the value, so it is decoded whatever it holds; also in the middle of plain ones."""
    frames = [send("destination:/queue/a", f"receipt:{text}", "x:y", body=b"1") for text in ("1", value, "2")]
    found = runs(b"".join(frames), version)
    assert [each for run in found for each in run.receipts or []] == ["1", receipt, "2"]
    assert {wire for run in found for wire in run.wires} == {b"destination:/queue/a\nx:y\n\n1\0"}


def test_of_two_receipts_the_first_counts() -> None:
    """b13"""
    (run,) = runs(send("destination:/queue/a", "receipt:1", "receipt:2"))
    assert (run.receipts, run.head.block) == (["1"], b"destination:/queue/a")


def test_of_a_padded_and_a_plain_receipt_the_first_counts() -> None:
    """b12, b13: under 1.0 both are receipts, and the fast look finds the second one."""
    frame = b"SEND\ndestination:/queue/a\n receipt:1\nreceipt:2\n\n\0"
    assert [run.receipts for run in runs(frame * 2, "1.0")] == [["1"], ["1"]]


def test_a_receipt_with_an_undefined_escape_faults_behind_the_frames_before_it() -> None:
    """b11"""
    frames = [send("destination:/queue/a", f"receipt:{text}") for text in ("1", "2", "\\t", "3")]
    assert [frame[0] for frame in frames_of(b"".join(frames))] == ["SEND", "SEND", "fault"]


def test_what_is_the_brokers_is_not_forwarded() -> None:
    """Deliveries can't be forged, and receipt and transaction of a SEND never show up in the MESSAGE (PHP would ask
    for a RECEIPT)."""
    forged = [f"{name}:forged" for name in sorted(BROKER_OWNED_HEADERS)]
    (run,) = runs(send("destination:/queue/a", *forged, "colour:red", body=b"x") * 3)
    assert run.wires == [b"destination:/queue/a\ncolour:red\n\nx\0"] * 3
    assert run.head.transaction == "forged"
    assert run.receipts == ["forged"] * 3


def test_user_headers_pass_through_as_they_came() -> None:
    """b28: order, repetition, escapes and unknown names."""
    lines = ("z:1", "destination:/queue/a", "a\\cb:c\\nd", "z:2", "persistent:true")
    (run,) = runs(send(*lines, body=b"x"))
    assert run.wires == ["\n".join(lines).encode() + b"\n\nx\0"]


@pytest.mark.parametrize(
    ("lines", "attribute", "value"),
    [
        (["priority:7"], "priority", 7),
        (["x:y"], "priority", 4),
        (["persistent:true"], "persistent", True),
        (["persistent:false"], "persistent", False),
        (["expires:1700000000000"], "expires_at_ms", 1_700_000_000_000),
        (["expiration:60000"], "ttl_ms", 60_000),
        (["group:g"], "group", "g"),
        (["JMSXGroupID:g"], "group", "g"),
        (["delay:1"], "delay_ms", 1),
        (["AMQ_SCHEDULED_DELAY:2"], "delay_ms", 2),
        (["x-delay:3"], "delay_ms", 3),
        (["reply-to:/temp-queue/r"], "reply_to", "/temp-queue/r"),
        (["priority:10"], "priority", 9),
        (["priority:255"], "priority", 9),
        (["priority:-1"], "priority", 0),
        (["expires:-1"], "expires_at_ms", 0),
        (["transaction:t"], "transaction", "t"),
        (["content-length:12"], "content_length", 12),
        (["x:y"], "content_length", -1),
    ],
)
def test_a_head_knows_both_header_dialects(lines: list[str], attribute: str, value: object) -> None:
    """DESIGN section 9"""
    assert getattr(head_of("destination:/queue/a", *lines), attribute) == value


@pytest.mark.parametrize(
    "line", ["priority:high", "priority:-", "priority:--1", "expires:soon", "expiration:-5", "delay:1.5", "x-delay:"]
)
def test_a_number_that_is_none_is_refused(line: str) -> None:
    """b29"""
    error = fault_of(send("destination:/queue/a", line, "receipt:r")).error
    assert error.code == f"bad-{line.split(':')[0]}"
    assert (error.receipt_id, error.headers) == ("r", {"destination": "/queue/a"})


@pytest.mark.parametrize(
    ("version", "line", "neutral"),
    [
        ("1.2", "a:b", True),
        ("1.0", "a:b c", True),
        ("1.2", "a:b\\cc", False),
        ("1.2", "a:b:c", False),
        ("1.0", "a: b", False),
        ("1.1", "a :b", False),
        ("1.1", " a:b", False),
        ("1.1", "a:b ", False),
    ],
)
def test_a_head_knows_whether_all_versions_read_it_alike(version: Version, line: str, neutral: bool) -> None:
    assert head_of(line, "destination:/queue/a", version=version).neutral is neutral
    assert head_of("destination:/queue/a", line, version=version).neutral is neutral


@pytest.mark.parametrize(
    ("origin", "line", "target", "expected"),
    [
        ("1.2", "a:\\r\\n\\c\\\\", "1.2", b"a:\\r\\n\\c\\\\"),
        ("1.2", "a:\\r\\n\\c\\\\", "1.1", b"a:\r\\n\\c\\\\"),
        ("1.2", "a:x\\ny:z\\\\", "1.0", b"a:x\\ny:z\\"),
        ("1.0", "a:b:c\\", "1.2", b"a:b\\cc\\\\"),
        ("1.0", "a : b", "1.1", b"a:b"),
        ("1.0", "a : b", "1.0", b"a : b"),
        ("1.1", "a\\cb:c", "1.0", b"a\\cb:c"),
        ("1.2", "a:b:c", "1.2", b"a:b:c"),
    ],
)
def test_a_block_is_rewritten_for_the_version_of_its_reader(
    origin: Version, line: str, target: Version, expected: bytes
) -> None:
    """A header line feed never reaches a 1.0 client raw; same version, same bytes."""
    head = head_of("destination:/queue/a", line, version=origin)
    assert head.block_for(target) == b"destination:/queue/a\n" + expected
    assert head.block_for(target) is head.block_for(target)


def test_padding_does_not_smuggle_broker_headers_to_a_1_0_reader() -> None:
    """A 1.0 client trims: what 1.1 reads as the header " ack" would be `ack` there."""
    head = head_of("destination:/queue/a", " ack:forged", "message-id :forged", "\tsubscription:forged", version="1.1")
    assert head.block == head.block_for("1.0") == b"destination:/queue/a"


def test_with_headers_sets_and_removes() -> None:
    """For one destination of a composite, or a reply-to that must be known to others."""
    head = head_of("destination:/queue/a,/queue/b", "reply-to:/temp-queue/r", "priority:9", "x:\\c")
    changed = head.with_headers({"destination": "/queue/b", "reply-to": None, "new": "a:b\n"})
    assert changed.block == b"destination:/queue/b\npriority:9\nx:\\c\nnew:a\\cb\\n"
    assert (changed.destination, changed.reply_to, changed.priority) == ("/queue/b", None, 9)
    assert changed.body_offset == len(changed.block) + 2
    assert head.destination == "/queue/a,/queue/b"
    with pytest.raises(ProtocolError):
        head.with_headers({"destination": None})


@pytest.mark.parametrize("version", VERSIONS)
def test_bodies_of_all_lengths_make_heads_like_parsed_ones(version: Version) -> None:
    """A head that was derived from a sibling is no different from one that was parsed."""
    lines = ("destination:/queue/a", "priority:3", "group:g", "expires:5")
    frames = [send(*lines, f"content-length:{n}", "z:1", body=b"x" * n) for n in (3, 0, 10, 200, 3)]
    machine = connected(version)
    for frame in frames:
        (run,) = machine.receive_data(frame)
        assert isinstance(run, SendRun)
        assert run.wires == [frame[5:]]
        fresh, _receipt = SendHead.parse(run.head.block, version, StompLimits())
        for name in SendHead.__slots__:
            assert getattr(run.head, name) == getattr(fresh, name), name


def test_a_derived_head_respects_the_body_limit() -> None:
    machine = connected(limits=StompLimits(body_bytes_max=10))
    assert len(machine.receive_data(send("destination:/queue/a", "content-length:10", body=b"x" * 10))) == 1
    (fault,) = machine.receive_data(send("destination:/queue/a", "content-length:11", body=b"x" * 11))
    assert isinstance(fault, Fault)
    assert fault.error.code == "body-too-large"


def test_a_padded_content_length_is_no_sibling() -> None:
    """1.0: the padded one comes first and wins (b13), so the plain one behind it must not be taken for the length."""
    first = b"SEND\ndestination:/queue/a\n content-length:2\ncontent-length:2\n\nab\0"
    second = b"SEND\ndestination:/queue/a\n content-length:2\ncontent-length:7\n\nab\0"
    found = [wire for run in runs(first + second, "1.0") for wire in run.wires]
    assert [wire[-3:] for wire in found] == [b"ab\0", b"ab\0"]


def test_the_head_cache_is_bounded() -> None:
    """However many distinct heads a client sends, and however long they are."""
    cache = HeadCache()
    for n in range(3 * HEAD_CACHE_COUNT_MAX):
        lines = ("destination:/queue/a", f"id:{n}", "content-length:1")
        head = head_of(*lines)
        key = send(*lines)[:-1]
        cache.put(key, cut_length(key)[0], head)
        assert 0 < len(cache) <= HEAD_CACHE_COUNT_MAX
    long = send("destination:/queue/a", "x:" + "y" * HEAD_CACHE_BYTES_MAX)[:-1]
    cache.clear()
    cache.put(long, cut_length(long)[0], SendHead.parse(long[5:-2], "1.2", StompLimits())[0])
    assert len(cache) == 0
