"""Runs of ACKs and NACKs: checklist b40-b42."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import AckRun, Frame
from tests.protocols.stomp.connections import connected, flat

SHAPES: list[tuple[Version, str, object]] = [
    ("1.2", "id:{}\n", b"{}"),
    ("1.2", "id:{}\nx:y\n", b"{}"),
    ("1.2", "message-id:m\nid:{}\n", b"{}"),
    ("1.1", "message-id:{}\nsubscription:s\n", (b"s", b"{}")),
    ("1.1", "subscription:s\nmessage-id:{}\n", (b"s", b"{}")),
    ("1.1", "subscription:s\nx:y\nmessage-id:{}\n", (b"s", b"{}")),
    ("1.0", "message-id:{}\n", (None, b"{}")),
    ("1.0", "message-id:{}\nsubscription:s\n", (b"s", b"{}")),
    ("1.0", "subscription:s\nmessage-id:{}\n", (b"s", b"{}")),
    ("1.0", "message-id: {}\n", (None, b"{}")),
]


def filled(token: object, number: int) -> object:
    if isinstance(token, bytes):
        return token.replace(b"{}", b"t-%d" % number)
    assert isinstance(token, tuple)
    return token[0], token[1].replace(b"{}", b"t-%d" % number)


@pytest.mark.parametrize("between", ["", "\n", "\r\n", "\n\n"])
@pytest.mark.parametrize(
    ("command", "version", "lines", "token"),
    [(command, *shape) for command in ("ACK", "NACK") for shape in SHAPES if (command, shape[0]) != ("NACK", "1.0")],
)
def test_plain_acks_make_one_run_in_any_shape(
    version: Version, lines: str, token: object, between: str, command: str
) -> None:
    """b40, b41: any header order, more headers, any EOLs between frames."""
    data = "".join(f"{command}\n{lines.format(f't-{n}')}\n\0{between}" for n in range(20)).encode()
    (run,) = connected(version).receive_data(data)
    assert isinstance(run, AckRun)
    assert run.nack is (command == "NACK")
    assert run.tokens == [filled(token, n) for n in range(20)]


def test_different_shapes_join_one_run_and_nacks_start_another() -> None:
    data = b"ACK\nid:1\n\n\0ACK\nid:2\nx:y\n\n\0ACK\r\nid:3\r\n\r\n\0NACK\nid:4\n\n\0NACK\nid:5\n\n\0\nACK\nid:6\n\n\0"
    assert connected().receive_data(data) == [
        AckRun(False, [b"1", b"2", b"3"]),
        AckRun(True, [b"4", b"5"]),
        AckRun(False, [b"6"]),
    ]


def test_a_send_between_acks_splits_the_run() -> None:
    """Order is kept."""
    events = connected().receive_data(b"ACK\nid:1\n\n\0SEND\ndestination:/queue/a\n\n\0ACK\nid:2\n\n\0")
    assert [frame[0] for frame in flat(events)] == ["ACK", "SEND", "ACK"]


@pytest.mark.parametrize(
    ("version", "data", "token"),
    [
        ("1.2", b"ACK\nid:a\\cb\\\\\n\n\0", b"a:b\\"),
        ("1.2", b"ACK\nid:a:b\n\n\0", b"a:b"),
        ("1.2", b"ACK\nid: a \n\n\0", b" a "),
        ("1.2", "ACK\nid:ä\n\n\0".encode(), "ä".encode()),
        ("1.2", b"ACK\nid:" + b"x" * 1000 + b"\n\n\0", b"x" * 1000),
        ("1.1", b"ACK\nmessage-id:a\\cb\nsubscription:s\\cs\n\n\0", (b"s:s", b"a:b")),
        ("1.0", b"ACK\nmessage-id:a\\cb\n\n\0", (None, b"a\\cb")),
        ("1.0", b"ACK\nsubscription:\nmessage-id:m\n\n\0", (None, b"m")),
        ("1.2", b"ACK\nid:first\nid:second\n\n\0", b"first"),
    ],
)
def test_odd_tokens_are_decoded(version: Version, data: bytes, token: object) -> None:
    """b9, b13: also between plain ones."""
    plain = {
        "1.2": b"ACK\nid:1\n\n\0",
        "1.1": b"ACK\nmessage-id:1\nsubscription:1\n\n\0",
        "1.0": b"ACK\nmessage-id:1\n\n\0",
    }
    (run,) = connected(version).receive_data(plain[version] + data + plain[version])
    assert isinstance(run, AckRun)
    assert len(run.tokens) == 3
    assert run.tokens[1] == token


@pytest.mark.parametrize("header", ["receipt:r", "transaction:t"])
def test_an_ack_with_receipt_or_transaction_comes_alone(header: str) -> None:
    """b42, b48"""
    events = connected().receive_data(f"ACK\nid:1\n\n\0ACK\nid:2\n{header}\n\n\0ACK\n{header}\nid:3\n\n\0".encode())
    assert [type(event) for event in events] == [AckRun, Frame, Frame]
    name, value = header.split(":")
    assert events[1] == Frame("ACK", {"id": "2", name: value})


@pytest.mark.parametrize("line_up", ["message-id:{1}\nsubscription:{0}\n", "subscription:{0}\nmessage-id:{1}\n"])
@pytest.mark.parametrize("subscriptions", ["aaab", "abab", "baaa", "aaba", "a", "ab"])
def test_acks_of_several_subscriptions_keep_theirs(line_up: str, subscriptions: str) -> None:
    """b37: an ACK never crosses subscriptions."""
    expected: list[tuple[bytes | None, bytes]] = [(each.encode(), b"m-%d" % n) for n, each in enumerate(subscriptions)]
    data = "".join(f"ACK\n{line_up.format(each, f'm-{n}')}\n\0" for n, each in enumerate(subscriptions)).encode()
    assert connected("1.1").receive_data(data) == [AckRun(False, expected)]
