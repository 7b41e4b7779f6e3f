"""WebSocket frames against wsproto as the client, however they are cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import wsproto
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, TextMessage

from sluiceway.protocols import wsframes
from sluiceway.protocols.websocket import WebSocketStream
from sluiceway.protocols.wsframes import FrameError, FrameReader, head, unmasked, unmasked_by_tables

payloads = st.one_of(st.binary(max_size=300), st.sampled_from([b"x" * 125, b"y" * 126, b"z" * 65_535, b"\0" * 65_536]))


@st.composite
def conversations(draw: st.DrawFn) -> list[wsproto.events.Event]:
    """Messages, whole and in pieces, with pings in between."""
    events: list[wsproto.events.Event] = []
    for _ in range(draw(st.integers(1, 6))):
        is_text = draw(st.booleans())
        count = draw(st.integers(1, 4))
        for place in range(count):
            is_last = place == count - 1
            if is_text:
                events.append(TextMessage(draw(st.text(max_size=50)), message_finished=is_last))
            else:
                events.append(BytesMessage(draw(payloads), message_finished=is_last))
            if draw(st.booleans()):
                events.append(Ping(draw(st.binary(max_size=125))))
    return events


@given(conversations(), st.randoms(use_true_random=False))
def test_what_wsproto_sends_arrives_however_it_is_cut(events: list[wsproto.events.Event], cuts: random.Random) -> None:
    client = Connection(ConnectionType.CLIENT)
    data = b"".join(client.send(event) for event in events)
    expected = b"".join(
        event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
        for event in events
        if isinstance(event, Message)
    )
    reader, got, place = FrameReader(1 << 30), b"", 0
    while place < len(data):
        size = cuts.choice((1, 2, 7, 100, 5000, len(data)))
        got += b"".join(reader.feed(data[place : place + size]))
        place += size
    assert got == expected
    pings = [bytes(event.payload) for event in events if isinstance(event, Ping)]
    assert reader.ping == (pings[-1] if pings else None)


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"x" * 65_535, "ä".encode() * 50_000, b"\xff" * 70_000])),
    st.booleans(),
)
def test_wsproto_reads_a_frame_in_fragments(pieces: list[bytes], is_in_parts: bool) -> None:
    """Whatever the borders of pieces and of fragments: no piece of ours holds less than whole WebSocket frames."""
    framing = wsframes.WebSocketFraming()
    pieces = [b"MESSAGE", *pieces]
    if is_in_parts:
        made = framing.part(pieces, first=True, last=False) + framing.part([b"\0"], first=False, last=True)
    else:
        made = framing.frame([*pieces, b"\0"])
    client = Connection(ConnectionType.CLIENT)
    got = b""
    for piece in made:
        client.receive_data(bytes(piece))
        for event in client.events():
            assert isinstance(event, TextMessage | BytesMessage)
            got += event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
    assert got == b"".join(pieces) + b"\0\n"
    assert sum(map(len, made)) <= len(got) + 4 * (2 + len(got) // wsframes.FRAGMENT_BYTES)


@given(
    st.text(alphabet="aä€😀\0", max_size=60),
    st.lists(st.integers(0, 240), max_size=5),
    st.sampled_from([b"", b"\xc3", b"\xff"]),
)
def test_a_text_in_fragments_must_be_utf_8_as_a_whole(text: str, cuts: list[int], behind: bytes) -> None:
    """Characters may be cut, by fragments and by reads; at the end of the message none may be."""
    whole = text.encode() + behind
    places = sorted(min(cut, len(whole)) for cut in cuts)
    parts = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]
    reader, got = FrameReader(1 << 20), b""
    try:
        for place, part in enumerate(parts):
            opcode = wsframes.CONTINUATION if place else wsframes.TEXT
            first, size = head(opcode, len(part), ends=place == len(parts) - 1), len(part)
            frame = (
                bytes((first[0], first[1] | wsframes.MASKED)) + first[2:] + b"\1\2\3\4" + unmasked(part, b"\1\2\3\4")
            )
            got += b"".join(reader.feed(frame[: 6 + size // 2]))
            got += b"".join(reader.feed(frame[6 + size // 2 :]))
    except FrameError as error:
        assert behind
        assert error.code == wsframes.INVALID_DATA
    else:
        assert not behind
        assert got == whole


@given(st.integers(0, 200_000), st.booleans())
def test_wsproto_reads_our_heads(size: int, is_text: bool) -> None:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(head(wsframes.TEXT if is_text else wsframes.BINARY, size) + b"a" * size)
    events = list(client.events())
    assert all(isinstance(event, TextMessage if is_text else BytesMessage) for event in events)
    assert sum(len(event.data) for event in events if isinstance(event, Message)) == size


@pytest.mark.parametrize("unmask", [unmasked, unmasked_by_tables])
@given(data=st.binary(max_size=3000), key=st.binary(min_size=4, max_size=4))
def test_unmasking_is_what_the_rfc_says(unmask: Callable[[memoryview, bytes], bytes], data: bytes, key: bytes) -> None:
    """Octet i with octet i modulo 4 of the key (5.3)."""
    assert unmask(memoryview(data), key) == bytes(octet ^ key[place % 4] for place, octet in enumerate(data))


def test_nothing_is_read_behind_a_close() -> None:
    client, reader = Connection(ConnectionType.CLIENT), FrameReader(1 << 20)
    data = client.send(CloseConnection(code=1000))
    assert reader.feed(data + b"\x82\x81\0\0\0\0x") == []
    assert reader.closed_with == 1000
    assert reader.feed(b"\x82\x81\0\0\0\0x") == []


def test_the_reason_of_a_close_is_cut_between_characters() -> None:
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(wsframes.close_frame(1002, "ä" * 100))
    (event,) = client.events()
    assert isinstance(event, CloseConnection)
    assert (event.code, event.reason) == (1002, "ä" * 61)


class EmptyFrames:
    """A stream of frames without content, of which there is always more than is asked for."""

    peer = "endless"
    peer_certificate = None

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self.taken_bytes = 0

    def read(self, size_max: int) -> bytes:
        start = self.taken_bytes % len(self._frame)
        self.taken_bytes += size_max
        return (self._frame * (size_max // len(self._frame) + 2))[start : start + size_max]

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        return sum(map(len, pieces))


@pytest.mark.parametrize("first", [wsframes.FIN | wsframes.BINARY, wsframes.FIN | wsframes.PING])
def test_frames_that_bring_nothing_do_not_keep_the_loop(first: int) -> None:
    """However fast they come: other connections have their turn."""
    under = EmptyFrames(bytes((first, 0x80, 0, 0, 0, 0)))
    stream = WebSocketStream(under, message_bytes_max=1000)  # type: ignore[arg-type]
    assert stream.read(16 * 1024) is None
    assert under.taken_bytes <= 32 * 1024


class Given:
    """A stream of these bytes."""

    peer = "given"
    peer_certificate = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def read(self, size_max: int) -> bytes | None:
        start, self._at = self._at, min(self._at + size_max, len(self._data))
        return self._data[start : self._at] or None


@given(st.lists(st.integers(0, 5000), max_size=20), st.integers(1, 9000))
def test_a_read_is_filled_where_there_is_enough_and_keeps_nothing_back(sizes: list[int], size_max: int) -> None:
    """So whoever reads knows that there may be more, and nothing is copied to be read later."""
    bodies = [bytes((number,)) * size for number, size in enumerate(sizes)]
    masks = b"\1\2\3\4"
    frames = [
        bytes((lead[0], lead[1] | wsframes.MASKED)) + lead[2:] + masks + unmasked(body, masks)
        for body in bodies
        for lead in [head(wsframes.BINARY, len(body))]
    ]
    under = Given(b"".join(frames))
    stream = WebSocketStream(under, message_bytes_max=10_000)  # type: ignore[arg-type]
    got = []
    while not under.is_empty:
        got.append(stream.read(size_max) or b"")  # heads alone may be more than a read takes
        assert not stream._kept
    assert b"".join(got) == b"".join(bodies)
