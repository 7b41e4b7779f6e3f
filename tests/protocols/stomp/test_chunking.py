"""The same bytes mean the same, whatever pieces they come in; and no bytes bring the machine down."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Fault
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine, ServerMachine
from tests.how_often import rounds
from tests.protocols.stomp.connections import TIGHT, VERSIONS, connected, events_of, flat, greet

FRAGMENTS = [
    b"SEND\ndestination:/queue/a\ncontent-length:3\n\nabc\0",
    b"SEND\ndestination:/queue/a\ncontent-length:3\n\nabcd\0",
    b"SEND\ndestination:/queue/a\ncontent-length:0\n\n\0",
    b"SEND\ndestination:/queue/b\n\nbody\n\nwith\r\n\r\nlines\0",
    b"SEND\ndestination:/queue/a\nreceipt:r-1\ncontent-length:3\n\nabc\0",
    b"SEND\ndestination:/queue/a\nreceipt:r-2\ncontent-length:3\n\nabc\0",
    b"SEND\ndestination:/queue/a\nreceipt:r\\c3\ncontent-length:3\n\nabc\0",
    b"SEND\ndestination:/queue/a\nreceipt:" + b"r" * 92 + b"\n\nabc\0",
    b"SEND\nreceipt:r-4\ndestination:/queue/b\n\nabc\0",
    b"SEND\nreceipt:r-5\ndestination:/queue/b\n\n\0",
    b"SEND\r\ndestination:/queue/a\r\ntransaction:t\r\n\r\nabc\0",
    b"SEND\ndestination:/queue/a\n receipt:padded\n\nabc\0",
    b"ACK\nid:1\n\n\0",
    b"ACK\nid:2\n\n\0\n",
    b"ACK\nid:3\nx:y\n\n\0",
    b"ACK\nmessage-id:4\nsubscription:s\n\n\0",
    b"ACK\nsubscription:s\nmessage-id:5\n\n\0",
    b"NACK\nid:6\nmessage-id:6\nsubscription:s\n\n\0",
    b"ACK\nid:7\nmessage-id:7\nsubscription:s\nreceipt:r\n\n\0",
    b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0",
    b"BEGIN\ntransaction:t\n\n\0",
    b"DISCONNECT\nreceipt:bye\n\n\0",
    b"CONNECT\naccept-version:1.2\nhost:h\n\n\0",
    b"\n",
    b"\r\n",
    b"\0",
    b":",
    b"\\",
    b"\xff",
    b"content-length:2\n",
    b"SEND\ndestination:/queue/a\ncontent-length:600\n\n",
    b"SEND\ndestination:/queue/a\ncontent-length:31\n\n" + b"y\0" * 15 + b"z\0",
    b"SEND\ndestination:/queue/a\ncontent-length:31\nreceipt:r-6\n\n" + b"y" * 31 + b"\0",
    b"SEND\ndestination:/queue/a\ncontent-length:31\nreceipt:r\\c7\n\n" + b"y" * 31 + b"z",
    b"SEND\ndestination:/queue/a\ncontent-length:701\n\n",
    b"SEND\ndestination:/queue/b\n\n" + b"y" * 30 + b"\0",
    b"SEND\ndestination:/queue/b\n\n" + b"y" * 31 + b"\0",
    b"SEND\ndestination:/queue/b\nreceipt:r-8\n\n" + b"y" * 31 + b"\0",
    b"SEND\r\ndestination:/queue/b\r\nreceipt: r-9\r\n\r\n" + b"y" * 40 + b"\0",
    b"SEND\ndestination:/queue/b\n\n" + b"y" * 690,
    b"x" * 70,
    b"x" * 70 + b"\0",
    b"x" * 64 + b"\n",
    b"x:" + b"y" * 110 + b"\n",
]

streams = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=5)), max_size=12).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A stream of mostly good frames with one stretch cut out, or some bytes put in."""
    data = draw(streams)
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    data = draw(st.one_of(streams, damaged()))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return data, [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def by_the_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize("stages", [False, True], ids=["in memory", "staged"])
@pytest.mark.parametrize("version", VERSIONS)
@given(parts=chunked())
@settings(max_examples=rounds(50), deadline=None)
def test_chunking_makes_no_difference(version: Version, stages: bool, parts: tuple[bytes, list[bytes]]) -> None:
    """Frames and fault are the same in one chunk, in any chunks, and byte by byte (where no run is ever seen); and so
    are the bodies that come in pieces."""
    data, chunks = parts
    whole = flat(events_of([data], connected(version, TIGHT, stages=stages)))
    assert flat(events_of(chunks, connected(version, TIGHT, stages=stages))) == whole
    assert flat(events_of(by_the_byte(data), connected(version, TIGHT, stages=stages))) == whole


@pytest.mark.parametrize("version", VERSIONS)
@given(data=streams)
@settings(max_examples=rounds(33), deadline=None)
def test_staging_changes_how_a_body_comes_and_nothing_else(version: Version, data: bytes) -> None:
    """Every frame in order, the same heads, receipts and bodies; only limits for larger ones differ, so these end it
    here."""
    limits = attrs.evolve(TIGHT, large_body_bytes_max=500)
    collected = flat(events_of([data], connected(version, limits)))
    staged = flat(events_of([data], connected(version, limits, stages=True)))
    for one, other in zip(collected, staged, strict=False):
        if other[0] == "large SEND":
            _, block, body, receipt, headers, transaction = other
            assert one[:5] == ("SEND", block + b"\n\n" + body + b"\0", receipt, headers, transaction)
            assert len(body) > limits.large_body_bytes
        elif "SEND" in other[0] and other[0] != "SEND":
            assert one[0] == "fault" or one is collected[-1]
            break
        elif other[0] == "fault":
            assert one[:2] == other[:2]
        else:
            assert one == other


@given(parts=chunked())
@settings(max_examples=rounds(50), deadline=None)
def test_chunking_makes_no_difference_to_a_greeting(parts: tuple[bytes, list[bytes]]) -> None:
    data, chunks = parts
    greeting = greet("1.1")
    whole = flat(events_of([greeting + data], ServerMachine(TIGHT)))
    assert flat(events_of([greeting[:20], greeting[20:], *chunks], ServerMachine(TIGHT))) == whole
    assert flat(events_of(by_the_byte(greeting + data), ServerMachine(TIGHT))) == whole
    assert flat(events_of(by_the_byte(data), ServerMachine(TIGHT))) == flat(events_of([data], ServerMachine(TIGHT)))


@pytest.mark.parametrize("version", VERSIONS)
@given(parts=chunked())
@settings(max_examples=rounds(33), deadline=None)
def test_any_bytes_make_events_or_one_fault_at_the_end(version: Version, parts: tuple[bytes, list[bytes]]) -> None:
    """No other exception; nothing behind a fault; and the ERROR for it can be written."""
    machine = connected(version, TIGHT)
    events = events_of(parts[1], machine)
    faults = [event for event in events if isinstance(event, Fault)]
    assert len(faults) <= 1
    if faults:
        assert events[-1] is faults[0]
        assert machine.receive_data(greet(version)) == []
        assert machine.pending_bytes == 0
        answer = machine.fail(faults[0].error)
        (error,) = client_of(version).receive_data(answer)
        assert flat([error])[0][:2] == ("frame", "ERROR")


def client_of(version: Version) -> ClientMachine:
    client = ClientMachine(StompLimits())
    client.connect("h")
    client.receive_data(b"CONNECTED\nversion:%s\n\n\0" % version.encode())
    return client


@given(data=st.binary(max_size=200))
@settings(max_examples=rounds(66), deadline=None)
def test_noise_never_brings_a_machine_down(data: bytes) -> None:
    """Server before and behind its greeting, and client."""
    for machine in (ServerMachine(TIGHT), connected("1.2", TIGHT), client_of("1.2")):
        events = machine.receive_data(data)
        assert all(not isinstance(event, Fault) for event in events[:-1])


SERVER_FRAGMENTS = [
    b"MESSAGE\nsubscription:1\nmessage-id:1\ndestination:/queue/a\n\nabc\0",
    b"MESSAGE\nsubscription:1\nmessage-id:1\ndestination:/queue/a\ncontent-length:3\n\na\0c\0\n",
    b"RECEIPT\nreceipt-id:1\n\n\0",
    b"ERROR\nmessage:no\n\n\0",
    b"\n",
    b"\r\n",
    b"SEND\n\n\0",
    b"\0",
]


@given(data=st.lists(st.sampled_from(SERVER_FRAGMENTS), max_size=8).map(b"".join))
@settings(max_examples=rounds(50), deadline=None)
def test_chunking_makes_no_difference_to_a_client(data: bytes) -> None:
    stream = b"CONNECTED\nversion:1.2\n\n\0" + data
    results = []
    for chunks in ([stream], by_the_byte(stream)):
        client = ClientMachine(TIGHT)
        client.connect("h")
        results.append(flat([event for chunk in chunks for event in client.receive_data(chunk)]))
    assert results[0] == results[1]
