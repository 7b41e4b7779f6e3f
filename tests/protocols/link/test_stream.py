"""A flow as the stream of a session: what has come is read at once, whatever portions it came in."""

from __future__ import annotations

from sluiceway.protocols.framing import PLAIN
from sluiceway.protocols.link.flow import Flow
from sluiceway.protocols.link.records import Kind
from sluiceway.protocols.link.stream import FlowStream
from tests.protocols.link.pairs import Noting, linked


def stream_of(flow: Flow, counted: list[int]) -> FlowStream:
    """Make a stream without a session; `counted` gets what is charged."""
    return FlowStream(
        flow, "peer", PLAIN, charge=counted.append, closed=lambda: None, contain=_raise, missed=lambda _missed: None
    )


def test_all_that_has_come_is_one_read() -> None:
    """Also behind a read that ended within a portion, up to the size that is asked for."""
    one, _other = linked()
    counted: list[int] = []
    stream = stream_of(one.machine.open(b"", Noting()), counted)
    for piece in (b"one ", b"two ", b"three"):
        stream.arrived(Kind.PART, piece)
    assert stream.read(2) == b"on"
    assert stream.read(100) == b"e two three"
    assert stream.read(100) is None
    assert not sum(counted)


def test_an_empty_portion_is_not_the_end() -> None:
    """A read of no bytes means that the client has gone."""
    one, _other = linked()
    stream = stream_of(one.machine.open(b"", Noting()), [])
    stream.arrived(Kind.PART, b"")
    assert stream.read(100) is None
    assert not stream.has_input


def _raise(error: Exception) -> None:
    raise error
