"""Durable subscriptions: readers of a topic that stay when their consumer goes.

A durable subscription is known by the client's id and its own name. In each partition of its topic it has a *reader*: a
cursor that outlives the consumer, and whose place is on disk beside the one copy of the messages. While a consumer is
attached it works like any other; when it leaves, what it held and had not settled waits for the next one, marked as
seen. An element leaves a topic only when every reader has passed it.

Abandoned ones, to which nobody has come back for `durable_expires_seconds`, are removed.

Bound: the policy's quota for what they hold back; `durables_max` of them.
Source: seed 002 ("Durables" as cursors); DESIGN section 6; anchors c26, c56, d17, d35.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from queues.cursors import TrackingCursor

if TYPE_CHECKING:
    from queues.subscription import Subscription

LEASE_COUNT: Final = 65_536
"""How far the note "may have been seen" runs ahead of a reader on disk."""


class DurableInUseError(Exception):
    """Somebody else is attached under this name, or it belongs to another topic."""


class DurableLimitError(Exception):
    """There are as many durable subscriptions as the broker is configured for."""


@attrs.frozen
class ReaderState:
    """What is written of a reader."""

    front: int
    handed_to: int
    """Elements below this may have been seen; 0: `attempts` says exactly which."""
    settled: Iterable[int]
    """Above the front."""
    attempts: Mapping[int, int]


class DurableReader:
    """The place of a durable subscription in one partition of its topic."""

    __slots__ = (
        "cursor", "durable_id", "lease", "lease_under_way", "settled_late", "subscription", "written_front",
    )  # fmt: skip

    def __init__(self, durable_id: int, cursor: TrackingCursor) -> None:
        self.durable_id = durable_id
        self.cursor = cursor
        self.subscription: Subscription | None = None
        """Who reads now."""
        self.lease = 0
        """Elements below this count as seen on disk."""
        self.lease_under_way = 0
        self.written_front = -1
        self.settled_late: set[int] | None = None
        """In the hands of who reads now, and settled by a transaction of who read before."""

    def state(self, *, exactly: bool = False) -> ReaderState:
        """What is to be written now. `exactly`: nobody reads any more, so that no lease is needed."""
        cursor = self.cursor
        self.written_front = cursor.front
        if exactly:
            return ReaderState(cursor.front, 0, cursor.settled_above(), cursor.seen())
        position = max(cursor.position, cursor.seen_to)
        if self.subscription is None:  # nobody reads: no need to run ahead
            self.lease = self.lease_under_way = position
        elif position + LEASE_COUNT // 2 > max(self.lease, self.lease_under_way):
            self.lease_under_way = position + LEASE_COUNT
        handed_to = max(self.lease, self.lease_under_way)
        return ReaderState(cursor.front, handed_to, cursor.settled_above(), cursor.attempts_noted())


@attrs.define(eq=False)
class Durable:
    """One durable subscription."""

    durable_id: int
    client_id: str
    name: str
    destination: str
    """Canonical name of its topic."""
    created_ms: int
    last_seen_ms: int
    """When somebody was attached last; kept up to date when they leave."""
    attached: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} of client {self.client_id}" if self.client_id else self.name


class DurableTable:
    """All durable subscriptions of a broker, by client id and name."""

    __slots__ = ("_by_key", "_durables_max", "_next_id", "_note", "_now_ms")

    def __init__(
        self,
        *,
        durables_max: int,
        now_ms: Callable[[], int],
        note: Callable[[Durable, bool], None],
    ) -> None:
        """`note` writes one down; its second argument is False when it is gone."""
        self._by_key: dict[tuple[str, str], Durable] = {}
        self._durables_max = durables_max
        self._now_ms = now_ms
        self._note = note
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Durable]:
        return iter(list(self._by_key.values()))

    def of(self, destination: str) -> list[Durable]:
        """Those of one topic. O(durables)."""
        return [durable for durable in self._by_key.values() if durable.destination == destination]

    def get(self, client_id: str, name: str) -> Durable | None:
        """The one of this name."""
        return self._by_key.get((client_id, name))

    def restore(self, durable: Durable) -> None:
        """An earlier run left it."""
        self._by_key[durable.client_id, durable.name] = durable
        self._next_id = max(self._next_id, durable.durable_id + 1)

    def attach(self, client_id: str, name: str, destination: str) -> tuple[Durable, bool]:
        """The one of this name, made if need be (True), for somebody who attaches now. Raises DurableInUseError,
        DurableLimitError.
        """
        durable = self._by_key.get((client_id, name))
        if durable is not None:
            if durable.attached:
                raise DurableInUseError(
                    f"durable subscription {durable.label} has its consumer already: one at a time may be attached"
                )
            if durable.destination != destination:
                raise DurableInUseError(
                    f"durable subscription {durable.label} belongs to {durable.destination}, not to {destination}: "
                    "remove it first (UNSUBSCRIBE with durable:true), or choose another name"
                )
            durable.attached = True
            return durable, False
        if len(self._by_key) >= self._durables_max:
            raise DurableLimitError(
                f"there are {self._durables_max} durable subscriptions already (durables_max): remove some"
            )
        now_ms = self._now_ms()
        durable = Durable(self._next_id, client_id, name, destination, now_ms, now_ms, attached=True)
        self._next_id += 1
        self._by_key[client_id, name] = durable
        self._note(durable, True)
        return durable, True

    def detached(self, durable: Durable) -> None:
        """Its consumer has gone."""
        durable.attached = False
        durable.last_seen_ms = self._now_ms()
        if self._by_key.get((durable.client_id, durable.name)) is durable:
            self._note(durable, True)

    def remove(self, durable: Durable) -> None:
        """It is no more. The caller removes its readers."""
        if self._by_key.pop((durable.client_id, durable.name), None) is not None:
            self._note(durable, False)

    def abandoned(self, durable: Durable, expires_seconds: float | None) -> bool:
        """Whether nobody has come back to it for so long."""
        if expires_seconds is None or durable.attached:
            return False
        return self._now_ms() - durable.last_seen_ms > expires_seconds * 1000
