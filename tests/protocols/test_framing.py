"""Frames on their streams: each ends with NUL and LF, and over a WebSocket each is one message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.protocols.framing import PLAIN
from sluiceway.protocols.wsframes import BINARY, FRAGMENT_BYTES, TEXT, WebSocketFraming
from tests.protocols.session.framings import messages_of

WEB = WebSocketFraming()
PREFIX = b"MESSAGE\nsubscription:s\n"

bodies = st.lists(
    st.one_of(
        st.integers(0, 300).map(lambda size: b"x" * size),
        st.just("zwölf Boxkämpfer".encode()),
        st.just(b"\xff\xfe"),
        st.integers(FRAGMENT_BYTES - 60, FRAGMENT_BYTES + 60).map(lambda size: b"y" * size),
    ),
    min_size=1,
    max_size=6,
)


def frames_of(some: list[bytes]) -> list[bytes]:
    """As they lie in a queue, with the header line that each has for itself."""
    return [b"message-id:%d\n\n" % number + body + b"\0" for number, body in enumerate(some)]


@given(bodies)
def test_messages_are_joined_with_an_lf_behind_each(some: list[bytes]) -> None:
    frames = frames_of(some)
    assert PLAIN.messages(PREFIX, frames.copy()) == b"".join(PREFIX + frame + b"\n" for frame in frames)


@given(bodies)
def test_each_message_is_one_of_a_websocket_text_if_it_can_be(some: list[bytes]) -> None:
    frames = frames_of(some)
    found = messages_of(WEB.messages(PREFIX, frames.copy()))
    assert [message for _opcode, message in found] == [PREFIX + frame + b"\n" for frame in frames]
    assert [opcode for opcode, _message in found] == [BINARY if b"\xff" in body else TEXT for body in some]


@pytest.mark.parametrize("size", [1, 124, 125, 126, FRAGMENT_BYTES - 1, FRAGMENT_BYTES, 3 * FRAGMENT_BYTES, 1 << 20])
def test_how_long_a_frame_gets_is_known_before(size: int) -> None:
    frame = b"x" * size
    assert WEB.frame_bytes(size) == sum(map(len, WEB.frame((frame[:1], memoryview(frame)[1:]))))
    assert PLAIN.frame_bytes(size) == sum(map(len, PLAIN.frame((frame[:1], memoryview(frame)[1:]))))
    assert WEB.part_bytes(size, last=False) == sum(map(len, WEB.part((frame,), first=True, last=False)))


def test_long_messages_come_in_fragments_that_end_between_pieces() -> None:
    """So that a pong may come between any two, and no client meets a frame of more than 64 KiB."""
    pieces = WEB.frame((b"x" * 200_000,))
    assert len(pieces) == 4
    assert [piece[0] for piece in pieces] == [0x01, 0x00, 0x00, 0x80]
    assert all(len(piece) <= FRAGMENT_BYTES + 4 for piece in pieces)


def test_a_character_may_be_cut_between_fragments_and_the_message_is_text_all_the_same() -> None:
    text = ("ü" * FRAGMENT_BYTES).encode()
    assert messages_of(b"".join(WEB.frame((text, b"\0")))) == [(TEXT, text + b"\0\n")]
