"""Frames whose bodies are pulled while they are written: in order, whole, through a small buffer, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.flow import Flow, FlowManager, FlowResource, SourceController
from sluiceway.protocols.framing import PLAIN, Framing
from sluiceway.protocols.outbound import Outbound, Piece
from sluiceway.protocols.streamed import PieceDone
from sluiceway.protocols.wsframes import BINARY, WebSocketFraming
from tests.protocols.session.framings import AsGiven, messages_of

AS_GIVEN = AsGiven()

CAPACITY_BYTES = 100


class Bodies:
    """Where bodies come from: they are asked for, and given when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, int, int, PieceDone]] = []

    def pull(self, body: bytes) -> Callable[[int, int, PieceDone], None]:
        return lambda offset, size_bytes, done: self.asked.append((body, offset, size_bytes, done))

    def give(self) -> bool:
        """Answer the oldest question. False: there is none."""
        if not self.asked:
            return False
        body, offset, size_bytes, done = self.asked.pop(0)
        done(body[offset : offset + size_bytes])
        return True

    def fail(self) -> None:
        self.asked.pop(0)[3](OSError("the disk is gone"))


class Wire:
    """An Outbound on a kernel that takes `room_bytes` more."""

    def __init__(self, *, room_bytes: int = 0, framing: Framing = AS_GIVEN) -> None:
        self.room_bytes = room_bytes
        self.written = b""
        self.flushes_requested_count = 0
        self.marks: list[tuple[str, bool]] = []
        self.failures: list[bool] = []
        self.on_failure: Callable[[], None] = lambda: None
        self.bodies = Bodies()
        self.manager = FlowManager(lambda: 0.0)
        self.outbound = Outbound(
            "peer",
            capacity_bytes=CAPACITY_BYTES,
            manager=self.manager,
            clock=lambda: 0.0,
            write=self.write,
            request_flush=self.count_request,
            stream_failed=self.failed,
            framing=framing,
        )
        resource = FlowResource("queue", "queue", self.manager)
        self.source = SourceController(resource, Flow("out"), clock=lambda: 0.0)

    def write(self, pieces: Sequence[Piece]) -> int:
        taken = b"".join(pieces)[: self.room_bytes]
        self.room_bytes -= len(taken)
        self.written += taken
        return len(taken)

    def count_request(self) -> None:
        self.flushes_requested_count += 1

    def failed(self, error: Exception, is_begun: bool) -> None:
        self.failures.append(is_begun)
        self.on_failure()

    def stream(self, body: bytes, name: str = "large") -> None:
        """A frame `<body>`."""
        self.outbound.send_streamed(
            [b"<"], self.bodies.pull(body), len(body), b">", self.source, lambda taken: self.marks.append((name, taken))
        )

    def send(self, data: bytes, name: str) -> None:
        self.outbound.send_messages([data], len(data), self.source, lambda taken: self.marks.append((name, taken)))

    def let(self, room_bytes: int) -> bool:
        self.room_bytes += room_bytes
        return self.outbound.flush()

    def run(self, room_bytes: int = 1 << 20) -> None:
        """Let everything happen that can."""
        self.let(room_bytes)
        while self.bodies.give():
            self.outbound.flush()


def test_a_streamed_frame_comes_whole_and_in_its_place() -> None:
    wire = Wire()
    wire.send(b"before", "before")
    wire.stream(b"x" * 1000)
    wire.outbound.send_control(b"receipt")
    wire.send(b"behind", "behind")
    wire.stream(b"y" * 300, "second")
    wire.send(b"last", "last")
    wire.run()
    assert wire.written == b"before<" + b"x" * 1000 + b">receiptbehind<" + b"y" * 300 + b">last"
    assert wire.marks == [(name, True) for name in ("before", "large", "behind", "second", "last")]
    assert (wire.outbound.waiting_bytes, wire.outbound.control_bytes, wire.manager.used_bytes) == (0, 0, 0)


def test_no_more_than_the_capacity_is_in_memory() -> None:
    """One piece with the kernel, one on its way from the disk: each half a buffer at most."""
    wire = Wire()
    wire.stream(b"x" * 100_000)
    asked_bytes = 0
    for _ in range(20):
        wire.let(10)
        while wire.bodies.asked:
            asked_bytes += wire.bodies.asked[0][2]
            wire.bodies.give()
            wire.outbound.flush()
        assert asked_bytes - max(0, len(wire.written) - 1) <= CAPACITY_BYTES
        assert wire.manager.used_bytes <= CAPACITY_BYTES


def test_nothing_is_asked_for_before_it_is_its_turn() -> None:
    """A frame that waits behind others holds no memory yet."""
    wire = Wire()
    wire.send(b"before", "before")
    wire.stream(b"x" * 1000)
    wire.stream(b"y" * 1000, "second")
    wire.outbound.flush()
    assert wire.bodies.asked == []
    wire.let(6)
    assert [body[:1] for body, *_ in wire.bodies.asked] == [b"x"]


def test_a_flush_that_waits_for_the_disk_does_not_wait_for_the_kernel() -> None:
    """It says that all is out, and asks for a flush when there is more."""
    wire = Wire(room_bytes=1000)
    wire.stream(b"x" * 200)
    assert wire.outbound.flush()
    before = wire.flushes_requested_count
    assert wire.outbound.waiting_bytes == 202
    wire.bodies.give()
    assert wire.flushes_requested_count == before + 1


def test_the_head_goes_out_with_the_first_piece() -> None:
    """So a body that can't be read costs no broken frame."""
    wire = Wire(room_bytes=1000)
    wire.stream(b"x" * 10)
    wire.outbound.flush()
    assert wire.written == b""
    wire.run()
    assert wire.written == b"<" + b"x" * 10 + b">"


def test_whoever_delivers_is_held_back_until_the_frame_is_nearly_out() -> None:
    wire = Wire()
    wire.stream(b"x" * 1000)
    blocked = []
    for room_bytes in (0, 950, 1, 1):
        wire.run(room_bytes)
        blocked.append((1002 - len(wire.written), wire.source.blocked))
    assert blocked == [(1002, True), (52, True), (51, True), (50, False)]


def test_a_mark_runs_when_the_last_byte_is_taken() -> None:
    wire = Wire()
    wire.stream(b"x" * 200)
    wire.run(201)
    assert wire.marks == []
    wire.run(1)
    assert wire.marks == [("large", True)]


def test_a_connection_that_ends_in_the_middle_hands_the_marks_back() -> None:
    """What still arrives from the disk is dropped."""
    wire = Wire()
    wire.stream(b"x" * 200)
    wire.send(b"behind", "behind")
    wire.run(50)
    asked = wire.bodies.asked
    wire.outbound.flush()
    wire.outbound.close()
    assert wire.marks == [("large", False), ("behind", False)]
    assert not wire.source.blocked
    for _body, _offset, _size_bytes, done in asked:
        done(b"late")
    assert wire.manager.used_bytes == 0


def test_a_body_that_can_not_be_read_makes_room_for_an_error() -> None:
    """Nothing of it is out: it and what waits behind it is dropped and handed back, and the ERROR follows at once."""
    wire = Wire(room_bytes=1000)
    wire.send(b"before", "before")
    start_bytes = wire.outbound.appended_bytes
    wire.stream(b"x" * 200)
    behind_bytes = wire.outbound.appended_bytes
    wire.outbound.send_control(b"receipt")
    wire.send(b"behind", "behind")
    wire.outbound.flush()

    def say_error() -> None:
        wire.outbound.send_control(b"ERROR")
        wire.outbound.end()

    wire.on_failure = say_error
    wire.bodies.fail()
    assert wire.failures == [False]
    assert wire.marks == [("before", True), ("large", False), ("behind", False)]
    assert wire.outbound.has_failed_at(start_bytes)
    assert not wire.outbound.has_failed_at(behind_bytes)
    assert wire.outbound.flush()
    assert wire.written == b"beforeERROR"
    assert (wire.outbound.waiting_bytes, wire.outbound.control_bytes, wire.manager.used_bytes) == (0, 0, 0)
    assert not wire.source.blocked


def test_a_body_that_ends_in_the_middle_leaves_nothing_to_say() -> None:
    wire = Wire(room_bytes=1000)
    wire.stream(b"x" * 200)
    wire.outbound.flush()
    wire.bodies.give()
    wire.outbound.flush()
    wire.on_failure = wire.outbound.close
    wire.bodies.fail()
    assert wire.failures == [True]
    assert wire.marks == [("large", False)]


def test_nothing_streams_behind_the_end() -> None:
    wire = Wire(room_bytes=1000)
    wire.outbound.send_control(b"ERROR")
    wire.outbound.end()
    wire.stream(b"x" * 10)
    assert wire.marks == [("large", False)]
    wire.run()
    assert wire.written == b"ERROR"


@given(
    frames=st.lists(st.tuples(st.booleans(), st.integers(1, 300)), min_size=1, max_size=8),
    steps=st.lists(st.one_of(st.just(-1), st.integers(0, 200)), max_size=40),
)
def test_frames_arrive_whole_however_kernel_and_disk_take_turns(
    frames: list[tuple[bool, int]], steps: list[int]
) -> None:
    """And each mark has run exactly if its frame is out; what is charged is what waits, within its bound."""
    wire = Wire()
    expected = b""
    ends: list[int] = []
    for place, (streamed, size_bytes) in enumerate(frames):
        body = bytes((65 + place,)) * size_bytes
        if streamed:
            wire.stream(body, str(place))
            expected += b"<" + body + b">"
        else:
            wire.send(body, str(place))
            expected += body
        ends.append(len(expected))
    for step in steps:
        if step < 0:
            wire.bodies.give()
            wire.outbound.flush()
        else:
            wire.let(step)
        assert expected.startswith(wire.written)
        assert wire.outbound.waiting_bytes == len(expected) - len(wire.written)
        taken = [str(place) for place, end in enumerate(ends) if end <= len(wire.written)]
        assert wire.marks == [(name, True) for name in taken]
    wire.run()
    assert wire.written == expected
    assert wire.manager.used_bytes == 0


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5), rooms=st.lists(st.integers(0, 50), max_size=20))
def test_each_streamed_frame_is_one_message_of_a_websocket(sizes: list[int], rooms: list[int]) -> None:
    """In as many fragments as it has pieces, for nobody knows the next one yet."""
    wire = Wire(framing=WebSocketFraming())
    for size_bytes in sizes:
        wire.stream(b"x" * size_bytes)
    for room_bytes in rooms:
        wire.let(room_bytes)
        wire.bodies.give()
    wire.run()
    assert messages_of(wire.written) == [(BINARY, b"<" + b"x" * size_bytes + b">\n") for size_bytes in sizes]
    assert wire.outbound.appended_bytes == len(wire.written)
    assert wire.manager.used_bytes == 0


def test_a_streamed_frame_ends_as_every_frame() -> None:
    wire = Wire(framing=PLAIN)
    wire.stream(b"x" * 300)
    wire.run()
    assert wire.written == b"<" + b"x" * 300 + b">\n"
    assert wire.outbound.appended_bytes == len(wire.written)
