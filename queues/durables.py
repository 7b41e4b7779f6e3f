"""Durable subscriptions: readers of a topic that stay when their consumer goes.

A durable subscription is known by the client's id and its own name. In each partition of its topic it has a *reader*: a
cursor that outlives the consumer, and whose place is on disk beside the one copy of the messages. While a consumer is
attached it works like any other; when it leaves, what it held and had not settled waits for the next one, marked as
seen. An element leaves a topic only when every reader has passed it.

One without a client's id is known by its topic and name, and is *shared*: any number of consumers take from its one
cursor, each element goes to one of them. As in a queue, what a consumer of it holds when it leaves stays with that
consumer until settled or given back.

Abandoned ones, to which nobody has come back for `durable_expires_seconds`, are removed.

What one *is* (its names, its topic, when it was seen last) is kept by a DurableKeeper, apart from where its readers
stand, which is written with the messages. A crash may come between the two: one without readers on disk begins where
its topic ends, and nobody had a RECEIPT for it; readers without it belong to nobody and hold nothing back. So that the
second is all that can be left of one that is removed, it is forgotten first, and its readers go when that is done.

Bound: the policy's quota for what they hold back; `durables_max` of them.
Source: seed 002 ("Durables" as cursors); DESIGN section 6; anchors c26, c56, d17, d35.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from .cursors import TrackingCursor

if TYPE_CHECKING:
    from .selectors.selector import Selection
    from .subscription import Subscription

LEASE_COUNT: Final = 65_536
"""How far the note "may have been seen" runs ahead of a reader on disk."""


SEPARATOR: Final = "\x1f"
"""Between client id and name. No client id has it, so no two subscriptions come to the same."""

NAMES_BYTES_MAX: Final = 4000
"""Of client id and name together, in UTF-8: they are part of a key."""

DurableKey = tuple[str, str, str]
"""What no two of them have in common."""

Done = Callable[[Exception | None], None]
"""Is told what went wrong; None: it is on disk, if it has to be."""


class DurableNameError(ValueError):
    """Names that no durable subscription can have."""


class DurableInUseError(Exception):
    """Somebody else is attached under this client id and name, or they belong to another topic."""

    code = "durable-in-use"


class DurableSelectorError(Exception):
    """It was made with another selector."""

    code = "other-selector"


class DurableLimitError(Exception):
    """There are as many durable subscriptions as the broker is configured for."""

    code = "too-many-destinations"


def subscriber_of(client_id: str, name: str) -> str:
    """The one name of both that it is kept under. Raises DurableNameError."""
    subscriber = client_id + SEPARATOR + name
    length_bytes = len(subscriber.encode())
    if length_bytes > NAMES_BYTES_MAX:
        raise DurableNameError(
            f"client id and name of a durable subscription have {length_bytes} bytes together: at most "
            f"{NAMES_BYTES_MAX} are allowed"
        )
    if SEPARATOR in client_id:
        raise DurableNameError(f"the client id {client_id[:80]!r} of a durable subscription has the character U+001F")
    return subscriber


def names_client(client_id: str) -> bool:
    """Whether this is a client's id. It is none if it is empty, or (with users) says just whose it is: `ann/`."""
    return client_id.find("/") != len(client_id) - 1


def key_of(client_id: str, name: str, destination: str) -> DurableKey:
    """A client has each name once; without a client id each topic has."""
    return client_id, name, "" if names_client(client_id) else destination


@attrs.frozen
class ReaderState:
    """What is written of a reader."""

    front: int
    handed_to: int
    """Elements below this may have been seen; 0: `attempts` says exactly which."""
    settled: Iterable[tuple[int, int]]
    """Above the front: runs, each from its first to behind its last, ascending."""
    attempts: Mapping[int, int]


class DurableReader:
    """The place of a durable subscription in one partition of its topic."""

    __slots__ = (
        "cursor", "durable_id", "lease", "lease_under_way", "selection", "settled_late", "share_count",
        "subscriptions", "turns_left",
    )  # fmt: skip

    def __init__(self, durable_id: int, cursor: TrackingCursor) -> None:
        self.durable_id = durable_id
        self.cursor = cursor
        self.subscriptions: dict[Subscription, None] = {}
        """Who reads now: more than one at a time only if all of them share."""
        self.share_count = self.turns_left = 0
        """What each gets in this round, and whose turns are left in it."""
        self.selection: Selection | None = None
        """What whoever read last selects by; None: nobody has come yet, or it takes all."""
        self.lease = 0
        """Elements below this count as seen on disk."""
        self.lease_under_way = 0
        self.settled_late: set[int] | None = None
        """In the hands of who reads now, and settled by a transaction of who read before."""

    def state(self, *, exactly: bool = False) -> ReaderState:
        """What is to be written now. `exactly`: nobody reads any more, so that no lease is needed."""
        cursor = self.cursor
        if exactly:
            return ReaderState(cursor.front, 0, cursor.settled_above(), cursor.seen())
        position = max(cursor.position, cursor.seen_to)
        if not self.subscriptions:  # nobody reads: no need to run ahead
            self.lease = self.lease_under_way = position
        elif position + LEASE_COUNT // 2 > max(self.lease, self.lease_under_way):
            self.lease_under_way = position + LEASE_COUNT
        handed_to = max(self.lease, self.lease_under_way)
        return ReaderState(cursor.front, handed_to, cursor.settled_above(), cursor.attempts_noted())

    def share_of(self, ready_count: int) -> int:
        """How much of what waits the next may take, of so many who are ready: in a round each gets as much."""
        if self.turns_left <= 0:
            self.turns_left = ready_count
            self.share_count = max(1, -(-self.cursor.ahead_count // ready_count))
        self.turns_left -= 1
        return self.share_count


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
    selector: str = ""
    """What it selects by; empty: it takes all."""
    consumers_count: int = 0
    """Who is attached now: more than one only if it is shared."""
    is_kept: bool = False
    """Its keeper has it for sure."""
    was_tried: bool = False
    """Its keeper was asked to keep it, and may have it."""

    @property
    def attached(self) -> bool:
        return self.consumers_count > 0

    @property
    def is_shared(self) -> bool:
        """Several consumers may be attached at a time."""
        return not names_client(self.client_id)

    @property
    def key(self) -> DurableKey:
        return key_of(self.client_id, self.name, self.destination)

    @property
    def label(self) -> str:
        return f"{self.name} of {self.destination}" if self.is_shared else f"{self.name} of client {self.client_id}"


class DurableKeeper(Protocol):
    """Keeps what durable subscriptions are, in the order in which it is told. It may answer from inside the call."""

    def keep(self, durable: Durable, done: Done, *, again: bool) -> None:
        """This one is there. `again`: it may have been kept before."""

    def seen(self, durable: Durable, done: Done) -> None:
        """Its `last_seen_ms` has changed: need not be on disk at once. One that is not kept: does nothing."""

    def forget(self, durable: Durable, done: Done) -> None:
        """It is there no more. One that is not kept: does nothing."""


class _NoKeeper:
    """They live as long as the table."""

    def keep(self, durable: Durable, done: Done, *, again: bool) -> None:
        done(None)

    def seen(self, durable: Durable, done: Done) -> None:
        done(None)

    def forget(self, durable: Durable, done: Done) -> None:
        done(None)


class DurableTable:
    """All durable subscriptions of a broker, by client id and name, or by topic and name."""

    __slots__ = ("_by_key", "_durables_max", "_keeper", "_next_id", "_now_ms", "_unseen")

    def __init__(
        self,
        *,
        durables_max: int,
        now_ms: Callable[[], int],
        keeper: DurableKeeper | None = None,
    ) -> None:
        """Without a `keeper` they live as long as the table."""
        self._by_key: dict[DurableKey, Durable] = {}
        self._durables_max = durables_max
        self._now_ms = now_ms
        self._keeper: DurableKeeper = keeper if keeper is not None else _NoKeeper()
        self._next_id = 1
        self._unseen: dict[Durable, None] = {}
        """Those of which it has to be written anew when they were seen."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Durable]:
        return iter(list(self._by_key.values()))

    def of(self, destination: str) -> list[Durable]:
        """Those of one topic. O(durables)."""
        return [durable for durable in self._by_key.values() if durable.destination == destination]

    def find(self, client_id: str, name: str, destination: str | None) -> Durable | None:
        """The one of this name. Without a client id each topic may have one: where the `destination` is not said, the
        name has to be that of one only. O(1), O(durables) without either. Raises DurableNameError.
        """
        if names_client(client_id) or destination is not None:
            return self._by_key.get(key_of(client_id, name, destination or ""))
        of_name = [each for each in self._by_key.values() if each.client_id == client_id and each.name == name]
        if len(of_name) > 1:
            raise DurableNameError(
                f"{len(of_name)} topics have a durable subscription {name!r} without a client id: say which by the "
                "destination"
            )
        return of_name[0] if of_name else None

    def restore(self, durable: Durable, *, exactly: bool = True) -> None:
        """An earlier run left it, and it is kept. Not `exactly`: that run broke off, and if somebody was attached then,
        it was not written when; so it counts as seen now.
        """
        durable.is_kept = True
        self._by_key[durable.key] = durable
        if not exactly:
            durable.last_seen_ms = self._now_ms()
            self._unseen[durable] = None
        self._next_id = max(self._next_id, durable.durable_id + 1)

    def attach(self, client_id: str, name: str, destination: str, selector: str = "") -> tuple[Durable, bool]:
        """The one of this name, made if need be (True), for somebody who attaches now. Nothing is written: see `keep`.
        Raises DurableNameError, DurableInUseError, DurableSelectorError, DurableLimitError.
        """
        key = key_of(client_id, name, destination)
        durable = self._by_key.get(key)
        if durable is not None:
            if durable.attached and not durable.is_shared:
                raise DurableInUseError(
                    f"durable subscription {durable.label} has its consumer already: end that one, or choose another "
                    "name; several consumers share one that is made without a client-id"
                )
            if durable.destination != destination:
                raise DurableInUseError(
                    f"durable subscription {durable.label} belongs to {durable.destination}, not to {destination}: "
                    "remove it first (UNSUBSCRIBE with durable:true), or choose another name"
                )
            if durable.selector != selector:
                has = f"the selector {durable.selector[:200]!r}" if durable.selector else "no selector"
                raise DurableSelectorError(
                    f"durable subscription {durable.label} was made with {has}: what it has passed over can't come "
                    "back. Subscribe with the same, or remove it first (UNSUBSCRIBE with durable:true), or choose "
                    "another name"
                )
            durable.consumers_count += 1
            return durable, False
        if len(self._by_key) >= self._durables_max:
            raise DurableLimitError(
                f"there are {self._durables_max} durable subscriptions already (durables_max): remove some"
            )
        subscriber_of(client_id, name)  # raises for names that can't be kept
        now_ms = self._now_ms()
        durable = Durable(
            self._next_id, client_id, name, destination, now_ms, now_ms, selector=selector, consumers_count=1
        )
        self._next_id += 1
        self._by_key[key] = durable
        return durable, True

    def keep(self, durable: Durable, done: Done) -> None:
        """Write it, unless that was done: `done` is called, perhaps at once, when it is on disk. After an error it goes
        on in memory, and the next call tries again.
        """
        if durable.is_kept:
            done(None)
            return
        again, durable.was_tried = durable.was_tried, True
        self._keeper.keep(durable, partial(self._kept, durable, done), again=again)

    @staticmethod
    def _kept(durable: Durable, done: Done, error: Exception | None) -> None:
        durable.is_kept = error is None
        done(error)

    def detached(self, durable: Durable) -> None:
        """A consumer of it has gone."""
        durable.consumers_count -= 1
        durable.last_seen_ms = self._now_ms()
        self._write_seen(durable)

    def _write_seen(self, durable: Durable) -> None:
        if self.has(durable):
            self._keeper.seen(durable, partial(self._seen, durable))

    def _seen(self, durable: Durable, error: Exception | None) -> None:
        if error is not None:
            self._unseen[durable] = None

    def try_again(self) -> None:
        """Write what could not be written before, of those to whom nobody has come meanwhile."""
        unseen, self._unseen = self._unseen, {}
        for durable in unseen:
            if not durable.attached:
                self._write_seen(durable)

    def has(self, durable: Durable) -> bool:
        """Whether it is this one that has its name."""
        return self._by_key.get(durable.key) is durable

    def remove(self, durable: Durable, done: Done) -> None:
        """It is no more, and its name is free. `done` is called, perhaps at once, when that is on disk: then, not
        before, the caller removes its readers. After an error it is there again, unless a new one has its name.
        """
        if self.has(durable):
            del self._by_key[durable.key]
            self._keeper.forget(durable, partial(self._forgotten, durable, done))

    def _forgotten(self, durable: Durable, done: Done, error: Exception | None) -> None:
        if error is not None:
            durable.is_kept = False  # nobody knows
            self._by_key.setdefault(durable.key, durable)
        done(error)

    def abandoned(self, durable: Durable, expires_seconds: float | None) -> bool:
        """Whether nobody has come back to it for so long."""
        if expires_seconds is None or durable.attached:
            return False
        return self._now_ms() - durable.last_seen_ms > expires_seconds * 1000
