"""Runs of plain ACKs and NACKs, taken by one regular expression and one split each.

Consumers acknowledge by the thousand, and nearly all of them write the same two or three lines. Those shapes are
described here, per version; whatever else a client writes (other header order, more headers, escapes, CR LF) is read
by the parser as any frame and then handed to `add_plain_ack`.

Invariant: a run is taken here only if every byte of it was matched, so that splitting it can't go wrong.
Source: STOMP 1.0, 1.1, 1.2 "ACK", "NACK"; checklist b40, b41.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import repeat
from typing import Final

from protocols.stomp.escaping import Version
from protocols.stomp.frames import AckRun, Event

#: Printable ASCII without the backslash: octets that mean themselves in every version. Longer tokens take the slow
#: path.
_PLAIN: Final = rb"[!-\[\]-~]{1,256}+"

_LF: Final = 10


class AckShape:
    """One way in which clients write an ACK, with the expression that finds a whole run of it."""

    __slots__ = ("between", "pattern", "skip_bytes", "split_at", "subscription_first", "tail_bytes")

    def __init__(self, command: bytes, names: tuple[bytes, ...], eol: bytes) -> None:
        lines = b"".join(name + b":" + _PLAIN + b"\n" for name in names)
        #: Possessive throughout (3.11): a run of a thousand frames must not be tried in a thousand ways.
        self.pattern = re.compile(rb"(?:" + command + b"\n" + lines + b"\n\0" + eol + rb")++")
        self.skip_bytes = len(command) + 1 + len(names[0]) + 1
        self.tail_bytes = len(b"\n\n\0" + eol)
        self.split_at = b"\n\n\0" + eol + command + b"\n" + names[0] + b":"
        self.between = b"\n" + names[1] + b":" if len(names) > 1 else b""
        self.subscription_first = names[0] == b"subscription"

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


def take_ack_run(buf: bytes, pos: int, version: Version, nack: bool, events: list[Event]) -> int:
    """Take the run of ACKs (NACKs) that starts at `pos`. Returns the position behind it; `pos` if there is none in a
    common shape."""
    for shape in _ACK_SHAPES[version][nack]:
        match = shape.pattern.match(buf, pos)
        if match is None:
            continue
        end = match.end()
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


def add_plain_ack(headers: Mapping[str, str], version: Version, nack: bool, events: list[Event]) -> bool:
    """Add one ACK in an uncommon shape to a run. Returns False if it is no plain one (receipt, transaction) or lacks
    a header."""
    if "receipt" in headers or "transaction" in headers:
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
    if type(last) is AckRun and last.nack == nack:
        # One version per connection: both lists are of the same kind.
        last.tokens.extend(tokens)  # type: ignore[arg-type]
    else:
        events.append(AckRun(nack, tokens))
