"""Bytes on their way over links: an account of them on the flow map, and what of one flow the peer has not read.

A flow holds back nothing, so whoever sends over one counts what it sends until the peer has read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...flow import Account, Flow, FlowManager, FlowResource, SizeLimiter, SourceController
from ...flow.bounds import UNBOUNDED
from ...flow.kinds import ResourceKind


class _Place(FlowResource):
    """Place of the bytes on the flow map."""

    passes_through = False

    def __init__(self, name: str, manager: FlowManager, clock: Callable[[], float], bytes_max: int | None) -> None:
        super().__init__(name, ResourceKind.LINK, manager)
        if bytes_max is None:
            limiter = SizeLimiter(UNBOUNDED, UNBOUNDED, clock=clock)
        else:
            limiter = SizeLimiter(bytes_max, clock=clock)
        self.account = Account(self, Flow(name), limiter, clock=clock)
        self.open()


class LinkLoad:
    """Bytes of one user of links, on the flow map from the first of them on."""

    __slots__ = ("_bytes_max", "_clock", "_manager", "_name", "_place", "_source", "_stays")

    def __init__(
        self,
        name: Callable[[], str],
        manager: FlowManager,
        clock: Callable[[], float],
        *,
        bytes_max: int | None = None,
        source: SourceController | None = None,
        stays: bool = False,
    ) -> None:
        """`name`: asked for when there are bytes; `bytes_max`: above it `source` is blocked (None: no limit);
        `stays`: on the flow map until `close`, also while there are none.
        """
        self._name = name
        self._manager = manager
        self._clock = clock
        self._bytes_max = bytes_max
        self._source = source
        self._stays = stays
        self._place: _Place | None = None

    @property
    def used_bytes(self) -> int:
        """Bytes that are counted."""
        return 0 if self._place is None else self._place.account.limiter.used_bytes

    def charge(self, size_bytes: int) -> None:
        """Count bytes, or, below zero, fewer. Fewer behind `close`: nothing happens."""
        place = self._place
        if size_bytes > 0:
            if place is None:
                place = self._place = _Place(self._name(), self._manager, self._clock, self._bytes_max)
            place.account.charge(0, size_bytes, self._source)
        elif place is not None and size_bytes:
            place.account.release(0, -size_bytes)
            if not self._stays and not place.account.limiter.used_bytes:
                self.close()

    def close(self) -> None:
        """Count nothing any more."""
        place, self._place = self._place, None
        if place is not None:
            place.account.release(0, place.account.limiter.used_bytes)
            place.close()


class Carrier(Protocol):
    """Near end of a flow, as far as bytes go. `flow.Flow` fits."""

    @property
    def sent_bytes(self) -> int:
        """All bytes ever sent."""

    def send_frames(self, data: bytes) -> None:
        """Send bytes."""


class Unread:
    """Bytes that were sent over one flow and that the peer has not read: counted until then."""

    __slots__ = ("_charge", "_sent")

    def __init__(self, charge: Callable[[int], None]) -> None:
        """`charge` counts bytes, or fewer."""
        self._charge = charge
        self._sent: deque[tuple[int, int]] = deque()
        """End offset and size."""

    def send(self, flow: Carrier, data: bytes) -> None:
        """Send bytes, and count them."""
        self._charge(len(data))
        flow.send_frames(data)
        self._sent.append((flow.sent_bytes, len(data)))

    def confirmed(self, read_bytes: int) -> None:
        """Note how much of all that was sent the peer has read."""
        sent = self._sent
        while sent and sent[0][0] <= read_bytes:
            self._charge(-sent.popleft()[1])

    def close(self) -> None:
        """Count nothing any more: the flow is over."""
        size_bytes = sum(size_bytes for _end, size_bytes in self._sent)
        self._sent.clear()
        self._charge(-size_bytes)
