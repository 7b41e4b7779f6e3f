"""Runs of plain ACKs and NACKs, taken by one regular expression and one split each.

Consumers acknowledge by the thousand, and nearly all of them write the same two or three lines. Those shapes are
described here, per version; whatever else a client writes (other header order, more headers, escapes, CR LF) is read
by the parser as any frame and then handed to `add_plain_ack`.

Invariant: a run is taken here only if every byte of it was matched, so that splitting it can't go wrong.

How a run is matched: a value can't hold the line end behind it, so a frame matches in one way only, and nothing stands
behind the last frame of a match, so no frame is tried again: the time is linear. The frames are repeated greedily, with
a bound, because a greedy round keeps memory until its match ends (90 bytes). A possessive group would keep none, but
CPython 3.11.0 to 3.11.4 leave one that fails in its next round behind the literal part of that round (gh-106052), in
the middle of a frame. A possessive *character* is another instruction of the engine, right in every version.

Source: STOMP 1.0, 1.1, 1.2 "ACK", "NACK"; checklist b40, b41.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import repeat
from typing import Final

from .escaping import Version
from .frames import AckRun, Event
from .limits import StompLimits

#: Longer tokens take the slow path.
_TOKEN_BYTES_MAX: Final = 256

#: Printable ASCII without the backslash: octets that mean themselves in every version.
_PLAIN: Final = rb"[!-\[\]-~]{1,%d}+" % _TOKEN_BYTES_MAX

_LINE_BYTES_MAX: Final = len("subscription:") + _TOKEN_BYTES_MAX
_HEAD_BYTES_MAX: Final = len("NACK\n") + 2 * (_LINE_BYTES_MAX + 1)

#: Frames per match. More would save calls, and cost memory that no limiter counts.
_ROUNDS_MAX: Final = 100

#: ACKs of one event: what they do is done at once, and others may have their turn behind it.
TOKENS_MAX: Final = 512

_LF: Final = 10


class AckShape:
    """One way in which clients write an ACK, with the expression that finds a whole run of it."""

    __slots__ = (
        "between",
        "full_match_bytes_min",
        "pattern",
        "skip_bytes",
        "split_at",
        "subscription_first",
        "tail_bytes",
    )

    def __init__(self, command: bytes, names: tuple[bytes, ...], eol: bytes) -> None:
        lines = b"".join(name + b":" + _PLAIN + b"\n" for name in names)
        self.pattern = re.compile(b"(?:" + command + b"\n" + lines + b"\n\0" + eol + b"){1,%d}" % _ROUNDS_MAX)
        #: A match of fewer bytes ended before its last round: nothing in this shape comes behind it.
        self.full_match_bytes_min = _ROUNDS_MAX * (len(command) + sum(len(name) + 3 for name in names) + 3 + len(eol))
        self.skip_bytes = len(command) + 1 + len(names[0]) + 1
        self.tail_bytes = len(b"\n\n\0" + eol)
        self.split_at = b"\n\n\0" + eol + command + b"\n" + names[0] + b":"
        self.between = b"\n" + names[1] + b":" if len(names) > 1 else b""
        self.subscription_first = names[0] == b"subscription"

    def end_of_run(self, buf: bytes, pos: int, stop: int) -> int:
        """Return the end of the run of frames in this shape that starts at `pos`, `pos` if there is none. In a longer
        run: the end of a frame not far behind `stop`.
        """
        while pos < stop and (found := self.pattern.match(buf, pos)) is not None:
            start, pos = pos, found.end()
            if pos - start < self.full_match_bytes_min:
                break
        return pos

    def ids(self, run: bytes) -> list[bytes]:
        """The values in a run of frames with one header."""
        return run.split(self.split_at)

    def pairs(self, run: bytes) -> list[tuple[bytes | None, bytes]]:
        """Subscription and message id of each frame in a run with both headers."""
        if self.subscription_first:
            subscription, _, ids = run.partition(self.between)
            found = ids.split(self.split_at + subscription + self.between)
        else:
            subscription = run[run.rindex(self.between) + len(self.between) :]
            found = run[: -len(self.between + subscription)].split(self.between + subscription + self.split_at)
        # Acknowledged are nearly always messages of one subscription; any other would be left inside a value, behind
        # a line end.
        if _LF not in b"".join(found):
            return list(zip(repeat(subscription), found))
        flat = run.replace(self.split_at, b"\n").replace(self.between, b"\n").split(b"\n")
        if self.subscription_first:
            return list(zip(flat[0::2], flat[1::2], strict=True))
        return list(zip(flat[1::2], flat[0::2], strict=True))


_ACK_NAMES: Final[dict[Version, tuple[tuple[bytes, ...], ...]]] = {
    "1.0": ((b"message-id",), (b"message-id", b"subscription"), (b"subscription", b"message-id")),
    "1.1": ((b"message-id", b"subscription"), (b"subscription", b"message-id")),
    "1.2": ((b"id",),),
}

_ACK_SHAPES: Final[dict[Version, tuple[tuple[AckShape, ...], tuple[AckShape, ...]]]] = {
    version: (
        tuple(AckShape(b"ACK", names, eol) for names in shapes for eol in (b"\n", b"")),
        () if version == "1.0" else tuple(AckShape(b"NACK", names, eol) for names in shapes for eol in (b"\n", b"")),
    )
    for version, shapes in _ACK_NAMES.items()
}


def runs_keep_to(limits: StompLimits) -> bool:
    """True if no frame of a run can exceed these limits; otherwise each frame has to be judged by itself."""
    return (
        limits.header_line_bytes_max >= _LINE_BYTES_MAX
        and limits.header_block_bytes_max >= _HEAD_BYTES_MAX
        and limits.header_count_max >= 2
    )


def take_ack_run(buf: bytes, pos: int, stop: int, version: Version, nack: bool, events: list[Event]) -> int:
    """Take the run of ACKs (NACKs) that starts at `pos`, up to its end or a little behind `stop`. Returns the position
    behind it; `pos` if there is no ACK in a common shape.
    """
    for shape in _ACK_SHAPES[version][nack]:
        end = shape.end_of_run(buf, pos, stop)
        if end == pos:
            continue
        run = buf[pos + shape.skip_bytes : end - shape.tail_bytes]
        if shape.between:
            _add_tokens(shape.pairs(run), nack, events)
        elif version == "1.2":
            _add_tokens(shape.ids(run), nack, events)
        else:
            without: list[tuple[bytes | None, bytes]] = [(None, message_id) for message_id in shape.ids(run)]
            _add_tokens(without, nack, events)
        return end
    return pos


def is_for_good(headers: Mapping[str, str]) -> bool:
    """Whether a NACK with these headers gives its messages up at once. The header is RabbitMQ's."""
    return headers.get("requeue", "true").lower() == "false"


def add_plain_ack(headers: Mapping[str, str], version: Version, nack: bool, events: list[Event]) -> bool:
    """Add one ACK in an uncommon shape to a run. Returns False if the frame is no plain ACK (a receipt, a transaction,
    a final NACK) or lacks a header.
    """
    if "receipt" in headers or "transaction" in headers or (nack and is_for_good(headers)):
        return False
    if version == "1.2":
        token = headers.get("id")
        if not token:
            return False
        _add_tokens([token.encode()], nack, events)
        return True
    message_id = headers.get("message-id")
    subscription = headers.get("subscription")
    if not message_id or (not subscription and version == "1.1"):
        return False
    _add_tokens([(subscription.encode() if subscription else None, message_id.encode())], nack, events)
    return True


def _add_tokens(tokens: list[bytes] | list[tuple[bytes | None, bytes]], nack: bool, events: list[Event]) -> None:
    last = events[-1] if events else None
    start = 0
    if type(last) is AckRun and last.nack == nack:
        start = TOKENS_MAX - len(last.tokens)
        # One version per connection: both lists are of the same kind.
        last.tokens.extend(tokens[:start])  # type: ignore[arg-type]
    for place in range(start, len(tokens), TOKENS_MAX):
        events.append(AckRun(nack, tokens[place : place + TOKENS_MAX]))
