"""SENDs to topics without a subscriber, passed over as bytes: nothing of them is cut out, numbered or made a message.

`Unheard` says for which heads that may be; the other functions walk over frames with one head and stop at the first one
that is not whole, not like the first or not plain. So every fault, and every frame that has not come whole, is met by
the parser as always.

A frame may be passed over only while nothing that was read before it, and has had no effect yet, can give its topic a
subscriber: behind SUBSCRIBE, BEGIN or a request to the broker in the same read frames are parsed as always.

Source: seed 004, "discard it as soon as possible".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from .frames import AckRun, Event, SendRun, UnheardRun
from .head import SendHead
from .octets import EOL_OCTETS, PLAIN_OCTETS
from .strides import pass_alike

NAMES_MAX: Final = 256
"""Topics of one connection that are kept as unheard; all are forgotten when there are more."""

NAME_BYTES: Final = 160
"""Memory of a name beside its characters: the string and its place in the set."""

_REQUESTS: Final = "/sluiceway/"


class Unheard:
    """Topics of one connection that had no subscriber when it sent to them last."""

    __slots__ = ("_is_unheard", "_keep", "_kept_bytes", "names")

    def __init__(self, is_unheard: Callable[[SendHead], bool], keep: Callable[[int], None]) -> None:
        """Begin without any. `is_unheard`: whether a SEND with this head would be dropped now, with no other effect
        than to be counted and, if it asks for that, receipted; `keep` counts bytes of memory.
        """
        self._is_unheard = is_unheard
        self._keep = keep
        self._kept_bytes = 0
        self.names: set[str] = set()
        """Names as the client writes them."""

    def note(self, name: str) -> None:
        """Note that messages to this destination were dropped for want of a subscriber."""
        if name not in self.names:
            if len(self.names) >= NAMES_MAX:
                self.names.clear()
                self._keep(-self._kept_bytes)
                self._kept_bytes = 0
            self.names.add(name)
            self._kept_bytes += NAME_BYTES + len(name)
            self._keep(NAME_BYTES + len(name))

    def may_pass(self, head: SendHead, before: Iterable[Event]) -> bool:
        """Return whether SENDs with this head may be passed over, behind the events `before` that had no effect yet.
        `names` has the destination of the head.
        """
        for event in before:
            kind = type(event)
            if kind is SendRun:
                if event.head.destination.startswith(_REQUESTS):  # type: ignore[union-attr]
                    return False
            elif kind is not UnheardRun and kind is not AckRun:
                return False
        if self._is_unheard(head):
            return True
        self.names.discard(head.destination)
        self._kept_bytes -= NAME_BYTES + len(head.destination)
        self._keep(-NAME_BYTES - len(head.destination))
        return False


def pass_counted(buf: bytes, pos: int, stop: int, before: bytes, span: int) -> tuple[int, int]:
    """Pass over frames at `pos` that begin with `before` and are `span` octets long without their NUL. Returns where
    the first one left begins, and the number of those passed. No frame that begins at `stop` or behind is passed.
    """
    pos, count = pass_alike(buf, pos, stop, before, span)
    startswith = buf.startswith
    while pos < stop and startswith(before, pos) and not buf[pos + span]:
        count += 1
        pos += span + 1
        if pos < stop and buf[pos] in EOL_OCTETS and startswith(before, pos + 1):
            pos += 1
    return pos, count


def pass_uncounted(buf: bytes, pos: int, stop: int, before: bytes, body_bytes_max: int) -> tuple[int, int]:
    """Pass over frames whose bodies end at a NUL. Returns as `pass_counted` does."""
    count = 0
    find = buf.find
    startswith = buf.startswith
    before_bytes = len(before)
    while pos < stop and startswith(before, pos):
        end = find(b"\0", pos + before_bytes, pos + before_bytes + body_bytes_max + 1)
        if end < 0:
            break
        count += 1
        pos = end + 1
        if pos < stop and buf[pos] in EOL_OCTETS and startswith(before, pos + 1):
            pos += 1
    return pos, count


def pass_receipted(
    buf: bytes, pos: int, stop: int, before: bytes, behind: bytes, room: int, length: int, body_bytes_max: int
) -> tuple[int, list[str]]:
    """Pass over frames that differ in their receipt only, which stands between `before` and `behind` and has at most
    `room` octets. `length`: of each body; -1: it ends at a NUL, after at most `body_bytes_max` octets. Returns where
    the first one left begins, and the receipts of those passed.
    """
    size = len(buf)
    find = buf.find
    startswith = buf.startswith
    before_bytes, behind_bytes = len(before), len(behind)
    values: list[bytes] = []
    starts: list[int] = []
    while pos < stop and startswith(before, pos):
        value_at = pos + before_bytes
        value_end = find(behind, value_at, value_at + room + behind_bytes)
        if value_end <= value_at:
            break
        body = value_end + behind_bytes
        if length >= 0:
            end = body + length
            if end >= size or buf[end]:
                break
        else:
            end = find(b"\0", body, body + body_bytes_max + 1)
            if end < 0:
                break
        values.append(buf[value_at:value_end])
        starts.append(pos)
        pos = end + 1
        if pos < stop and buf[pos] in EOL_OCTETS and startswith(before, pos + 1):
            pos += 1
    if b"".join(values).translate(None, PLAIN_OCTETS):
        odd = next(place for place, value in enumerate(values) if value.translate(None, PLAIN_OCTETS))
        pos = starts[odd]
        del values[odd:]
    return pos, [value.decode() for value in values]
