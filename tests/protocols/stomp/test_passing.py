"""SENDs that are passed on as they lie are the same SENDs, however the stream is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.stomp.frames import Event, Fault, Frame, PassedRun, SendRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine

CONNECT = b"CONNECT\naccept-version:1.2\nhost:h\n\n\0"
HEADS = (
    b"SEND\ndestination:/queue/far\ncontent-length:5\n\n",
    b"SEND\ndestination:/queue/far\n\n",
    b"SEND\ndestination:/queue/near\ncontent-length:5\n\n",
    b"SEND\r\ndestination:/queue/far\r\ncontent-length:5\r\n\r\n",
    b"SEND\ndestination:/queue/far\ncontent-length:5\nreceipt:r\n\n",
)
frames = st.lists(
    st.tuples(st.sampled_from(HEADS), st.sampled_from([b"\0", b"\0\n", b"\0\n\n", b"!"]), st.integers(1, 40)),
    max_size=6,
)


def events_of(stream: bytes, cuts: list[int], *, passes: bool) -> list[Event]:
    """Events behind CONNECT; with `passes` the far queue is one of another hub."""
    machine = ServerMachine(StompLimits(), may_pass=(lambda head: head.destination == "/queue/far") if passes else None)
    machine.receive_data(CONNECT)
    machine.accept("s")
    events: list[Event] = []
    at = 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        events += machine.receive_data(stream[at:cut])
        at = cut
    return events


def told(events: list[Event]) -> list[object]:
    """Each SEND by itself, and the fault."""
    found: list[object] = []
    for event in events:
        run = event.cut() if isinstance(event, PassedRun) else event
        if isinstance(run, SendRun):
            receipts = run.receipts or [None] * len(run.wires)
            assert run.size_bytes == sum(map(len, run.wires))
            found += [(run.head.block, wire, receipt) for wire, receipt in zip(run.wires, receipts, strict=True)]
        elif isinstance(run, Fault):
            found.append(run.error.code)
        else:
            assert isinstance(run, Frame)
            found.append(run)
    return found


@given(frames, st.lists(st.integers(0, 5000), max_size=4))
def test_what_is_passed_is_what_would_have_been_cut(parts: list[tuple[bytes, bytes, int]], cuts: list[int]) -> None:
    """Also the fault, where there is one."""
    stream = b"".join((head + b"%05d" % number + end) for head, end, count in parts for number in range(count))
    assert told(events_of(stream, cuts, passes=True)) == told(events_of(stream, cuts, passes=False))


def test_a_run_for_another_hub_stays_as_it_lies() -> None:
    """With what stands between its frames; one frame alone, and other runs, are cut as always."""
    far, near = HEADS[0], HEADS[2]
    stream = b"".join(far + b"%05d\0\n" % number for number in range(100))
    (run,) = events_of(stream, [], passes=True)
    assert isinstance(run, PassedRun)
    assert (run.data, run.count, run.span) == (stream[:-1], 100, len(far) + 5)
    assert [type(each) for each in events_of(stream.replace(far, near), [], passes=True)] == [SendRun]
    assert [type(each) for each in events_of(far + b"12345\0", [], passes=True)] == [SendRun]
