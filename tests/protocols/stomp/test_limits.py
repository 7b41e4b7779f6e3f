"""What is too much, and when that is said: checklist b14."""

from __future__ import annotations

import attrs
import pytest

from sluiceway.protocols.stomp.frames import Fault
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from tests.protocols.stomp.connections import TIGHT, connected, events_of, fault_of, flat, frames_of


def send(*lines: str, body: bytes = b"") -> bytes:
    return "".join(f"{line}\n" for line in ("SEND", *lines, "")).encode() + body + b"\0"


def test_as_many_headers_as_allowed_and_not_one_more() -> None:
    lines = ["destination:/queue/a"] + [f"{n}:" for n in range(7)]
    assert [frame[0] for frame in frames_of(send(*lines), limits=TIGHT)] == ["SEND"]
    assert fault_of(send(*lines, "x:"), limits=TIGHT).error.code == "too-many-headers"


def test_the_receipt_of_a_send_is_not_counted() -> None:
    lines = ["destination:/queue/a"] + [f"{n}:" for n in range(7)]
    assert [frame[0] for frame in frames_of(send(*lines, "receipt:r") * 2, limits=TIGHT)] == ["SEND"] * 2


@pytest.mark.parametrize("name", ["x", "receipt"])
def test_a_line_as_long_as_allowed_and_not_one_byte_more(name: str) -> None:
    value = "v" * (100 - len(name) - 1)
    for _ in range(2):  # Also where the head is known already.
        assert [frame[0] for frame in frames_of(send("destination:/queue/a", f"{name}:{value}") * 2, limits=TIGHT)] == [
            "SEND"
        ] * 2
    frames = frames_of(
        send("destination:/queue/a", f"{name}:1") + send("destination:/queue/a", f"{name}:{value}v"), limits=TIGHT
    )
    assert [frame[0:2] for frame in frames][1:] == [("fault", "header-line-too-long")]


def block_of(size_bytes: int) -> bytes:
    head = b"SEND\ndestination:/queue/a"
    while len(head) < size_bytes:
        head += b"\nx:" + b"v" * min(90, size_bytes - len(head) - 3)
    assert len(head) == size_bytes
    return head


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
@pytest.mark.parametrize("blank", [b"\n\n", b"\n\r\n"])
def test_a_block_as_large_as_allowed_and_not_one_byte_more(chunk_bytes: int, blank: bytes) -> None:
    """However it arrives: the limit is a position in the stream."""
    for size_bytes, codes in ((400, []), (401, ["header-block-too-large"]), (400_000, ["header-block-too-large"])):
        machine = connected(limits=attrs.evolve(TIGHT, header_count_max=10_000))
        data = block_of(size_bytes) + blank + b"\0"
        events = [
            event
            for at in range(0, len(data), chunk_bytes)
            for event in machine.receive_data(data[at : at + chunk_bytes])
        ]
        assert [event.error.code for event in events if isinstance(event, Fault)] == codes
        assert len(events) == 1


@pytest.mark.parametrize("chunk_bytes", [1, 1000])
def test_a_receipt_counts_as_bytes_of_its_block(chunk_bytes: int) -> None:
    """Also where the rest of the head is known already, up to the last byte."""
    block = block_of(350) + b"\nreceipt:"
    limits = attrs.evolve(TIGHT, header_count_max=10_000)

    def outcome(receipt_bytes: int) -> list[object]:
        machine = connected(limits=limits)
        data = b"".join(block + b"r" * size + b"\n\n\0" for size in (1, receipt_bytes))
        chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
        return [frame[0] for frame in flat(events_of(chunks, machine))]

    for receipt_bytes in range(36, 42):
        assert outcome(receipt_bytes) == ["SEND", "SEND"]
    assert outcome(42) == ["SEND", "fault"]


def test_a_longer_number_does_not_carry_a_known_head_over_a_limit() -> None:
    """A head derived from a sibling obeys the same limits as a parsed one."""
    frames = [b"SEND\ndestination:/q\nx:1234567890\ncontent-length:%d\n\n" % n + b"x" * n + b"\0" for n in (100, 1000)]
    short = frames[0].index(b"\n\n")
    for name, limit, code in (
        ("header_block_bytes_max", short, "header-block-too-large"),
        ("header_line_bytes_max", len(b"content-length:100"), "header-line-too-long"),
    ):
        limits = attrs.evolve(StompLimits(), **{name: limit})
        found = frames_of(b"".join(frames), limits=limits)
        assert [frame[0:2] for frame in found][1:] == [("fault", code)]


def test_headers_that_never_end_are_cut_at_the_limit() -> None:
    """Nothing beyond the limit is held, and nobody waits for the blank line."""
    machine = connected(limits=TIGHT)
    held: list[int] = []
    for _ in range(1000):
        events = machine.receive_data(b"SEND\nx:yyyyyyyy\n" if not held else b"x:yyyyyyyyyyyyyy\n")
        held.append(machine.pending_bytes)
        if events:
            break
    (fault,) = events
    assert isinstance(fault, Fault)
    assert fault.error.code == "header-block-too-large"
    assert "header_block_bytes_max" in fault.error.detail
    assert max(held) <= TIGHT.header_block_bytes_max


def test_a_command_line_that_never_ends_is_cut_early() -> None:
    machine = connected()
    assert machine.receive_data(b"x" * 64) == []
    (fault,) = machine.receive_data(b"x")
    assert isinstance(fault, Fault)
    assert fault.error.code == "unknown-command"


def test_a_content_length_over_the_limit_is_refused_before_the_body() -> None:
    error = fault_of(b"SEND\ndestination:/queue/a\ncontent-length:501\nreceipt:r\n\n", limits=TIGHT).error
    assert (error.code, error.receipt_id) == ("body-too-large", "r")
    assert "body_bytes_max" in error.detail
    assert [
        frame[0] for frame in frames_of(send("destination:/q", "content-length:500", body=b"x" * 500), limits=TIGHT)
    ] == ["SEND"]


@pytest.mark.parametrize("receipt", [[], ["receipt:r"], ["receipt:\\c"]])
@pytest.mark.parametrize("chunk_bytes", [1, 100, 10_000])
def test_a_body_without_content_length_is_cut_at_the_limit(receipt: list[str], chunk_bytes: int) -> None:
    def run(size_bytes: int) -> list[str]:
        machine = connected(limits=TIGHT)
        data = send("destination:/queue/a", *receipt, body=b"x" * size_bytes)
        codes = []
        for at in range(0, len(data), chunk_bytes):
            for event in machine.receive_data(data[at : at + chunk_bytes]):
                codes.append(event.error.code if isinstance(event, Fault) else "ok")
            assert machine.pending_bytes <= 400 + 500
        return codes

    assert run(500) == ["ok"]
    assert run(501) == ["body-too-large"]
    assert run(5000) == ["body-too-large"]


@pytest.mark.parametrize("length", [b"content-length:1000000\n", b""])
def test_a_body_where_none_may_be_is_not_collected(length: bytes) -> None:
    """Only SEND gets megabytes."""
    machine = connected(limits=TIGHT)
    events = machine.receive_data(b"BEGIN\ntransaction:t\n" + length + b"\n")
    events += machine.receive_data(b"x" * 401)
    (fault,) = events
    assert isinstance(fault, Fault)
    assert fault.error.code == "body-too-large"


@pytest.mark.parametrize(
    "data", [b"CONNECT\nx:" + b"y" * 300, b"CONNECT\n\n" + b"x" * 301, b"CONNECT\ncontent-length:301\n\n"]
)
def test_before_connected_there_is_little_room(data: bytes) -> None:
    """Nobody unknown gets megabytes."""
    machine = ServerMachine(TIGHT)
    (fault,) = machine.receive_data(data)
    assert isinstance(fault, Fault)
    assert fault.error.code in ("header-block-too-large", "body-too-large")


def test_every_limit_is_documented_and_positive() -> None:
    """The sample configuration is printed from this."""
    for field in attrs.fields(StompLimits):
        assert field.metadata["unit"], field.name
        assert len(field.metadata["doc"]) > 40, field.name
        with pytest.raises(ValueError, match=field.name):
            StompLimits(**{field.name: -1})
