"""Copies of SENDs to topics on their way to other hubs, which give them to their own subscribers.

A hub that lags loses its oldest, and is told how many. Nobody waits for it, but where it is the only one to have a
message: the sender of a run that no hub has begun to get is charged for it, as for all that waits for other hubs. So
senders are paced by the fastest hub, as those of one broker are by the fastest subscriber.

Order: all that a client sends to one hub goes over one flow, copies and what the hub has to confirm.

Bounds: for each client and hub WINDOW_BYTES that the hub has not read, and LAG_BYTES that wait for it; all of it is
charged to an account of the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import attrs

from ...link.records import Kind, encode_missed
from ..placement import FlowEnd

WINDOW_BYTES: Final = 512 * 1024
"""Copies that the other hub has not read, beyond which others wait."""
LAG_BYTES: Final = 4 << 20
"""Copies that wait for one hub, beyond which the oldest are dropped."""
NAMES_LENGTH_MAX: Final = 8_000
"""Characters of the names of topics of which a hub is told at once how many messages it did not get; of more it is not
told. The record fits into a link whatever the characters are.
"""
NAME_LENGTH: Final = 8
"""Characters for which each name counts beside its own."""


class Counts(Protocol):
    """Counters of copies. `Topics` fits."""

    def copied(self, hub: str, count: int, size_bytes: int) -> None:
        """Count messages that were sent to another hub for its subscribers."""

    def missed(self, hub: str, count: int) -> None:
        """Count messages that another hub does not get."""


@attrs.define(eq=False)
class CopyRun:
    """SENDs with one head: the same bytes for all hubs."""

    data: bytes
    count: int
    is_begun: bool
    """Whether a hub, or this one, has them or is getting them."""
    on_begin: Callable[[], None] | None = None
    """Called when the first hub is getting them: their sender may continue."""

    def begin(self) -> None:
        """Note that a hub is getting them."""
        if not self.is_begun:
            self.is_begun = True
            if self.on_begin is not None:
                self.on_begin()


class Missed:
    """Counts of messages that a hub did not get, by the names in their destination header."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._length = 0

    def add(self, names: str, count: int) -> None:
        """Count more of them."""
        if names not in self._counts:
            if self._length + NAME_LENGTH + len(names) > NAMES_LENGTH_MAX:
                return
            self._length += NAME_LENGTH + len(names)
        self._counts[names] = self._counts.get(names, 0) + count

    def take(self) -> Mapping[str, int]:
        """Return the counts by names, and forget them."""
        counts, self._counts, self._length = self._counts, {}, 0
        return counts

    def __bool__(self) -> bool:
        return bool(self._counts)


class CopyLine:
    """Copies for one hub, over one flow."""

    def __init__(self, hub: str, flow: FlowEnd, counts: Counts, missed: Missed, charge: Callable[[int], None]) -> None:
        """`missed`: what the hub has not been told; `charge` counts bytes of memory, or fewer."""
        self._hub = hub
        self._flow = flow
        self._counts = counts
        self._missed = missed
        self._charge = charge
        self._waiting: deque[tuple[str, CopyRun]] = deque()
        self._waiting_bytes = 0
        self._unread: deque[tuple[int, int, str, int]] = deque()
        """End offset, size, names and count of what the hub has not read."""
        self._unread_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether copies wait: what is to come behind them has to wait, too."""
        return bool(self._waiting)

    def send(self, names: str, run: CopyRun) -> None:
        """Send SENDs, now or later. `names`: their destination header."""
        if not self._waiting and self._unread_bytes < WINDOW_BYTES:
            self._write(names, run)
            return
        self._waiting.append((names, run))
        self._waiting_bytes += len(run.data)
        self._charge(len(run.data))
        while self._waiting_bytes > LAG_BYTES and self._waiting[0][1].is_begun:
            names, run = self._next()
            self._miss(names, run.count)

    def flush(self) -> None:
        """Let what waits go now, as far as the hub does not lag too much: something else is to be sent behind it."""
        while self._waiting:
            names, run = self._next()
            if self._unread_bytes > LAG_BYTES and run.is_begun:
                self._miss(names, run.count)
            else:
                self._write(names, run)
        self._tell()

    def confirmed(self, read_bytes: int) -> None:
        """Note how much the hub has read of the flow."""
        while self._unread and self._unread[0][0] <= read_bytes:
            _end, size_bytes, _names, _count = self._unread.popleft()
            self._unread_bytes -= size_bytes
            self._charge(-size_bytes)
        while self._waiting and self._unread_bytes < WINDOW_BYTES:
            self._write(*self._next())
        if not self._waiting:
            self._tell()

    def close(self) -> None:
        """Forget all: the flow is lost. What may not have been read counts as missed."""
        for _end, size_bytes, names, count in self._unread:
            self._charge(-size_bytes)
            self._miss(names, count)
        self._unread.clear()
        self._unread_bytes = 0
        while self._waiting:
            names, run = self._next()
            run.begin()
            self._miss(names, run.count)

    def _next(self) -> tuple[str, CopyRun]:
        names, run = self._waiting.popleft()
        self._waiting_bytes -= len(run.data)
        self._charge(-len(run.data))
        return names, run

    def _miss(self, names: str, count: int) -> None:
        self._missed.add(names, count)
        self._counts.missed(self._hub, count)

    def _write(self, names: str, run: CopyRun) -> None:
        self._tell()
        size_bytes = len(run.data)
        self._charge(size_bytes)
        self._flow.send_frames(run.data)
        self._unread.append((self._flow.sent_bytes, size_bytes, names, run.count))
        self._unread_bytes += size_bytes
        self._counts.copied(self._hub, run.count, size_bytes)
        run.begin()

    def _tell(self) -> None:
        """Tell the hub how many messages it did not get."""
        if self._missed:
            self._flow.say(Kind.MISSED, encode_missed(self._missed.take()))
