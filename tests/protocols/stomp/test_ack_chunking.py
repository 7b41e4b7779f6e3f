"""Runs of ACKs and NACKs mean what their frames mean one by one, wherever the stream is cut.

A run is taken by an expression of its own, so a cut inside the frame behind it is where a fault of it would show.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

import pytest

from sluiceway.protocols.stomp.acks import TOKENS_MAX
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import AckRun
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ServerMachine
from tests.how_often import rounds
from tests.protocols.stomp.ack_streams import (
    ACK_COMMANDS,
    EOLS,
    GAPS,
    LINE_BYTES_MAX,
    SHAPES,
    acks,
    frame,
    random_chunks,
    random_stream,
    read_slowly,
    tokens_for,
)
from tests.protocols.stomp.connections import VERSIONS, connected, events_of, flat

LIMITS: Final = StompLimits(header_line_bytes_max=LINE_BYTES_MAX)

LINED: Final = [
    (version, command, EOLS[number % len(EOLS)], gap)
    for version in VERSIONS
    for turn, command in enumerate(ACK_COMMANDS[version])
    for number, gap in enumerate(GAPS, turn)
]
"""Each line end and each gap with every command; which of them meet changes with the command."""


def read(chunks: Iterable[bytes], version: Version, limits: StompLimits = LIMITS) -> list[tuple[object, ...]]:
    """What a greeted server makes of `chunks`; a fault as its code only."""
    machine: ServerMachine = connected(version, limits)
    events = flat(events_of(chunks, machine))
    assert machine.pending_bytes == 0
    return [event[:2] if event[0] == "fault" else event for event in events]


def plain(version: Version, numbers: Iterable[int], command: str = "ACK") -> bytes:
    """ACKs as nearly all clients write them."""
    names = ("id",) if version == "1.2" else ("message-id", "subscription")
    return acks(command, names, [f"1-{number}" for number in numbers])


@pytest.mark.parametrize(("version", "command", "eol", "gap"), LINED)
def test_every_shape_is_read_alike_wherever_the_stream_is_cut(
    version: Version, command: str, eol: str, gap: str
) -> None:
    """All orders of all headers: in one piece, and in two with the cut at every place of the last frame."""
    for names in SHAPES[version]:
        whole = acks(command, names, ["1", "1-23", "1-456"], eol, gap)
        data = whole + acks(command, names, ["1-7"], eol, gap)
        expected = read_slowly(data, version)
        assert len(expected) == 4
        assert read([data], version) == expected
        for cut in range(len(whole), len(data)):
            assert read([data[:cut], data[cut:]], version) == expected, (names, cut)


@pytest.mark.parametrize(("version", "command", "eol", "gap"), LINED)
def test_tokens_of_every_kind_are_read_alike_wherever_the_stream_is_cut(
    version: Version, command: str, eol: str, gap: str
) -> None:
    """Short and long, up to the limit on header lines and beyond the fast way, escaped, in UTF-8, with colons; each
    between plain ones."""
    for names in SHAPES[version][:2]:
        for token in tokens_for(version):
            data = acks(command, names, ["1-1", "1-2", token, "1-3"], eol, gap)
            expected = read_slowly(data, version)
            assert expected[-1][0] == command
            assert read([data], version) == expected
            # In the middle of a long token one place is as good as another.
            for cut in range(len(acks(command, names, ["1-1", "1-2"], eol, gap)), len(data), 1 + len(token) // 30):
                assert read([data[:cut], data[cut:]], version) == expected, (names, token, cut)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_header_line_over_its_limit_ends_the_run_in_front_of_it(version: Version) -> None:
    names = SHAPES[version][0]
    token = "x" * (LINE_BYTES_MAX - len(names[0]))
    data = acks("ACK", names, ["1", "2", token, "3"])
    expected = read_slowly(data, version)
    assert [event[0] for event in expected] == ["ACK", "ACK", "fault"]
    for cut in range(0, len(data), 7):
        assert read([data[:cut], data[cut:]], version) == expected


TIGHT: Final[dict[str, tuple[StompLimits, list[str]]]] = {
    "header-line-too-long": (StompLimits(header_line_bytes_max=30), ["message-id:" + "x" * 40, "subscription:s"]),
    "header-block-too-large": (StompLimits(header_block_bytes_max=60), ["message-id:" + "x" * 40, "subscription:s"]),
    "too-many-headers": (StompLimits(header_count_max=1), ["message-id:1", "subscription:s"]),
}


@pytest.mark.parametrize("code", TIGHT)
def test_plain_acks_keep_to_limits_that_are_below_what_a_run_may_hold(code: str) -> None:
    """Or whether a connection is ended would depend on where its bytes were cut."""
    limits, lines = TIGHT[code]
    data = b"ACK\nmessage-id:1\n\n\0" + "\n".join(["ACK", *lines, "", "\0"]).encode()
    for cut in range(len(data)):
        machine = ServerMachine(limits)
        machine.receive_data(b"CONNECT\n\n\0")
        machine.accept("session-1")
        events = flat(events_of([data[:cut], data[cut:]], machine))
        assert [event[:2] for event in events] == [("ACK", (None, b"1")), ("fault", code)], cut


@pytest.mark.parametrize("version", VERSIONS)
def test_the_byte_behind_a_run_decides_nothing_about_the_run(version: Version) -> None:
    """A run ends in front of whatever is no frame of its shape: another command, a longer name, a second line, a body,
    noise."""
    run = plain(version, range(3))
    complete = flat(connected(version).receive_data(run))
    heads = [b"ACK", b"ACK\n", b"ACK\nid", b"ACK\nid:", b"ACK\nid:1", b"ACK\nid:1\n", b"ACK\nid:1\n\n"]
    heads += [head.replace(b"id:1", b"message-id:1\nsubscription:") for head in heads]
    for head in heads:
        for octet in (0, 10, 13, 32, 33, 58, 65, 92, 127, 255):
            events = flat(connected(version).receive_data(run + head + bytes([octet])))
            assert events[:3] == complete, (head, octet)
            assert len(events) == 3 or events[3][0] in ("ACK", "fault"), (head, octet)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [99, 100, 101, 199, 200, 201, 1000])
def test_runs_longer_than_one_match_are_one_run(version: Version, count: int) -> None:
    """Also if the stream ends in the middle of the frame behind them. Beyond TOKENS_MAX there is another one."""
    data = plain(version, range(count))
    whole = read_slowly(data, version)
    for more in (0, 1, 5, 12):
        machine = connected(version)
        events = machine.receive_data(data + plain(version, [7])[:more])
        assert [len(event.tokens) for event in events if isinstance(event, AckRun)] == [
            min(count - start, TOKENS_MAX) for start in range(0, count, TOKENS_MAX)
        ]
        assert flat(events) == whole


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(rounds(25)))
def test_random_streams_in_random_chunks_are_read_as_in_one_piece(version: Version, seed: int) -> None:
    """Shapes, subscriptions, receipts, transactions, line ends and other frames in any mixture."""
    chance = random.Random(f"{version} {seed}")
    data = random_stream(version, chance)
    expected = read_slowly(data, version)
    assert read([data], version) == expected
    for _ in range(4):
        assert read(random_chunks(data, chance), version) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_mixed_stream_is_read_alike_byte_by_byte_and_cut_at_every_place(version: Version) -> None:
    commands = ACK_COMMANDS[version]
    data = b"".join(
        acks(commands[n % len(commands)], names, ["1", f"1-{n}"], gap=GAPS[n % 4])
        + (b"SEND\ndestination:/queue/a\n\nACK\nid:1\n\n\0" if n % 3 == 0 else frame("BEGIN", [("transaction", "t")]))
        for n, names in enumerate(SHAPES[version][:5])
    )
    expected = read_slowly(data, version)
    assert read([data[at : at + 1] for at in range(len(data))], version) == expected
    for cut in range(1, len(data)):
        assert read([data[:cut], data[cut:]], version) == expected, cut
