"""What waits to be written: in order, within its limit, with marks that run once each, and nothing behind the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import Flow, FlowManager, FlowResource, SourceController
from sluiceway.protocols.framing import PLAIN, Framing
from sluiceway.protocols.outbound import ALONE_BYTES, MARKS_MAX, WRITE_BYTES_MAX, Outbound, Piece
from sluiceway.protocols.wsframes import TEXT, WebSocketFraming
from tests.protocols.session.framings import AsGiven, messages_of

AS_GIVEN = AsGiven()


class Wire:
    """An Outbound on a kernel that takes `room_bytes` more, and sources to write there."""

    def __init__(self, *, capacity_bytes: int = 100, room_bytes: int = 0, framing: Framing = AS_GIVEN) -> None:
        self.now_seconds = 5.0
        self.room_bytes = room_bytes
        self.written = b""
        self.writes_count = 0
        self.flushes_requested_count = 0
        self.marks: list[tuple[str, bool]] = []
        self.manager = FlowManager(self.clock)
        self.outbound = Outbound(
            "peer",
            capacity_bytes=capacity_bytes,
            manager=self.manager,
            clock=self.clock,
            write=self.write,
            request_flush=self.count_request,
            framing=framing,
        )

    def clock(self) -> float:
        return self.now_seconds

    def write(self, pieces: Sequence[Piece]) -> int:
        self.writes_count += 1
        taken = b"".join(pieces)[: self.room_bytes]
        self.room_bytes -= len(taken)
        self.written += taken
        return len(taken)

    def count_request(self) -> None:
        self.flushes_requested_count += 1

    def source(self) -> SourceController:
        resource = FlowResource("queue", "queue", self.manager)
        return SourceController(resource, Flow("out"), clock=self.clock)

    def send(self, data: bytes, name: str, source: SourceController | None = None) -> None:
        """A message whose mark is noted under this name."""
        self.outbound.send_messages(
            [data], len(data), source or self.source(), lambda taken: self.marks.append((name, taken))
        )

    def let(self, room_bytes: int) -> bool:
        """The kernel has room again."""
        self.room_bytes += room_bytes
        return self.outbound.flush()


# ---------------------------------------------------------------------- order and marks


def test_everything_goes_out_in_order_in_one_write() -> None:
    wire = Wire(room_bytes=1000)
    wire.outbound.send_control(b"receipt ")
    wire.send(b"one ", "one")
    wire.send(b"x" * ALONE_BYTES, "large")
    wire.outbound.send_control(b"end")
    wire.let(2 * ALONE_BYTES)
    assert wire.written == b"receipt one " + b"x" * ALONE_BYTES + b"end"
    assert wire.writes_count == 1


@pytest.mark.parametrize("size_bytes", [WRITE_BYTES_MAX, WRITE_BYTES_MAX + ALONE_BYTES])
def test_the_end_of_a_large_frame_goes_out_with_it(size_bytes: int) -> None:
    """A write of one LF costs as much as any, and wakes the peer for nothing."""
    wire = Wire(capacity_bytes=4 * WRITE_BYTES_MAX, framing=PLAIN)
    frame = PLAIN.frame([b"MESSAGE\n\n", b"x" * size_bytes])
    for _ in range(2):
        wire.outbound.send_messages(frame, sum(map(len, frame)), wire.source(), None)
    assert wire.let(3 * WRITE_BYTES_MAX)
    assert wire.written == b"".join(frame * 2)
    assert wire.writes_count == 2


def test_many_small_frames_behind_a_large_one_wait_for_the_next_write() -> None:
    wire = Wire(capacity_bytes=4 * WRITE_BYTES_MAX)
    wire.send(b"x" * WRITE_BYTES_MAX, "large")
    for _ in range(5):
        wire.send(b"y" * (ALONE_BYTES // 2), "small")
    assert not wire.let(WRITE_BYTES_MAX + 1)
    assert wire.writes_count == 1
    assert wire.let(4 * ALONE_BYTES)
    assert wire.written == b"x" * WRITE_BYTES_MAX + b"y" * (5 * (ALONE_BYTES // 2))


def test_flush_is_requested_once_per_turn() -> None:
    wire = Wire(room_bytes=1000)
    for _ in range(3):
        wire.send(b"x", "x")
    assert wire.flushes_requested_count == 1
    wire.outbound.flush()
    wire.outbound.send_control(b"r")
    assert wire.flushes_requested_count == 2


def test_mark_runs_when_the_last_byte_before_it_is_taken() -> None:
    wire = Wire()
    wire.send(b"abc", "first")
    wire.send(b"def", "second")
    assert not wire.let(2)
    assert wire.marks == []
    wire.let(1)
    assert wire.marks == [("first", True)]
    assert wire.let(10)
    assert wire.marks == [("first", True), ("second", True)]


def test_marks_that_never_ran_are_handed_back_when_the_connection_ends() -> None:
    """In order, so that those messages come again."""
    wire = Wire()
    for name in ("taken", "half", "never"):
        wire.send(b"abc", name)
    wire.let(4)
    wire.outbound.close()
    assert wire.marks == [("taken", True), ("half", False), ("never", False)]
    wire.send(b"late", "late")
    assert wire.marks[-1] == ("late", False)


@given(
    sizes=st.lists(st.integers(1, 2 * ALONE_BYTES), min_size=1, max_size=12),
    takes=st.lists(st.integers(0, 3 * ALONE_BYTES), max_size=20),
)
def test_bytes_arrive_whole_however_the_kernel_takes_them(sizes: list[int], takes: list[int]) -> None:
    """And each mark has run exactly if its bytes were taken."""
    wire = Wire(capacity_bytes=1000)
    expected = b""
    ends: list[int] = []
    for place, size_bytes in enumerate(sizes):
        data = bytes((65 + place,)) * size_bytes
        wire.send(data, str(place))
        expected += data
        ends.append(len(expected))
    for room_bytes in takes:
        all_out = wire.let(room_bytes)
        assert expected.startswith(wire.written)
        assert all_out == (wire.written == expected)
        taken = [str(place) for place, end in enumerate(ends) if end <= len(wire.written)]
        assert wire.marks == [(name, True) for name in taken]
        assert wire.outbound.waiting_bytes == len(expected) - len(wire.written)
    wire.outbound.close()
    assert wire.marks == [(str(place), end <= len(wire.written)) for place, end in enumerate(ends)]
    assert wire.manager.used_bytes == 0


# ---------------------------------------------------------------------- limits


def test_source_is_blocked_at_the_limit_until_half_has_drained() -> None:
    wire = Wire(capacity_bytes=100)
    source = wire.source()
    blocked = []
    for act in (
        lambda: wire.send(b"x" * 99, "below", source),
        lambda: wire.send(b"x", "full", source),
        lambda: wire.let(49),
        lambda: wire.let(1),
    ):
        act()
        blocked.append(source.blocked)
    assert blocked == [False, True, True, False]


def test_control_frames_are_never_refused_and_counted_until_taken() -> None:
    """The session looks at their count before it reads more."""
    wire = Wire(capacity_bytes=10)
    for _ in range(5):
        wire.outbound.send_control(b"x" * 10)
    wire.send(b"message", "m")
    wire.outbound.send_control(b"y" * 10)
    assert wire.outbound.control_bytes == 60
    wire.let(49)
    assert wire.outbound.control_bytes == 60
    wire.let(1)
    assert wire.outbound.control_bytes == 10
    wire.let(17)
    assert wire.outbound.control_bytes == 0


def test_closing_lets_blocked_sources_go() -> None:
    wire = Wire(capacity_bytes=10)
    source = wire.source()
    wire.send(b"x" * 10, "m", source)
    blocked_before = source.blocked
    wire.outbound.close()
    assert (blocked_before, source.blocked) == (True, False)


def test_idle_time_counts_from_the_last_bytes_taken() -> None:
    wire = Wire()
    wire.send(b"abc", "m")
    wire.now_seconds += 2
    wire.let(1)
    wire.now_seconds += 3
    wire.let(0)
    assert wire.outbound.facts() == {"waiting_bytes": 2, "idle_seconds": 3.0}


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("room_bytes", [0, 3, 1000])
def test_nothing_follows_the_last_frame(room_bytes: int) -> None:
    """An ERROR is the last that a client gets: no receipt, no heart-beat, no message behind it. What was appended
    before it still goes out.
    """
    wire = Wire(room_bytes=room_bytes)
    wire.send(b"message ", "before")
    wire.outbound.send_control(b"ERROR")
    wire.outbound.end()
    wire.outbound.flush()
    wire.outbound.send_control(b"RECEIPT")
    wire.send(b"more", "behind")
    assert ("behind", False) in wire.marks
    assert wire.let(1000)
    assert wire.written == b"message ERROR"
    assert ("before", True) in wire.marks


# ---------------------------------------------------------------------- heart-beats


@pytest.mark.parametrize(("framing", "beat"), [(PLAIN, b"\n"), (WebSocketFraming(), b"\x81\x01\n")])
@pytest.mark.parametrize("room_bytes", [0, 1, 2, 1000])
def test_a_heart_beat_is_an_eol_and_nothing_more_however_the_kernel_takes_it(
    framing: Framing, beat: bytes, room_bytes: int
) -> None:
    wire = Wire(framing=framing, room_bytes=room_bytes)
    wire.outbound.beat()
    wire.outbound.send_control(b"RECEIPT\n\n\0")
    wire.let(1000)
    assert wire.written == beat + framing.control(b"RECEIPT\n\n\0", 1)
    assert wire.outbound.waiting_bytes == wire.outbound.control_bytes == wire.manager.used_bytes == 0


def test_a_batch_of_receipts_is_a_message_for_each_over_a_websocket() -> None:
    wire = Wire(framing=WebSocketFraming(), room_bytes=1000)
    wire.outbound.send_control(b"RECEIPT\nreceipt-id:1\n\n\0\nRECEIPT\nreceipt-id:2\n\n\0", 2)
    wire.outbound.flush()
    assert messages_of(wire.written) == [(TEXT, b"RECEIPT\nreceipt-id:%d\n\n\0\n" % number) for number in (1, 2)]
    assert wire.writes_count == 1


def test_marks_run_in_portions_and_the_rest_stays_charged() -> None:
    """A thousand subscriptions of one connection are settled in turns, and hold those who deliver meanwhile."""
    count = 2 * MARKS_MAX + 1
    wire = Wire(capacity_bytes=count, room_bytes=10 * count)
    for number in range(count):
        wire.send(b"x", str(number))
    assert wire.flushes_requested_count == 1
    for flushes_count, marks_count in enumerate((MARKS_MAX, 2 * MARKS_MAX), 2):
        assert wire.outbound.flush()
        assert [name for name, taken in wire.marks if taken] == [str(n) for n in range(marks_count)]
        assert wire.outbound.controller.limiter.used_bytes == count
        assert wire.flushes_requested_count == flushes_count
    assert wire.outbound.flush()
    assert len(wire.marks) == count
    assert wire.outbound.controller.limiter.used_bytes == 0
    assert wire.flushes_requested_count == 3


def test_what_the_kernel_took_is_told_so_when_the_connection_ends_before_the_marks_have_run() -> None:
    count = 2 * MARKS_MAX
    wire = Wire(capacity_bytes=count, room_bytes=count - 1)
    for number in range(count):
        wire.send(b"x", str(number))
    wire.outbound.flush()
    wire.outbound.close()
    assert wire.marks == [*((str(n), True) for n in range(count - 1)), (str(count - 1), False)]
