"""Durable subscriptions: readers of a topic that stay when their consumer goes.

A durable subscription is known by the client's id and its own name. In each partition of its topic it has a *reader*: a
cursor that outlives the consumer, and whose position is on disk beside the one copy of the messages. While a consumer
is attached it works like any other; when the consumer leaves, elements that it held and had not settled wait for the
next one, marked as seen. An element leaves a topic only when every reader has passed it.

A durable subscription without a client's id is known by its topic and name, and is *shared*: any number of consumers
take from its one cursor, and each element goes to one of them. As in a queue, elements that a leaving consumer holds
stay with it until settled or given back.

Abandoned ones, without a consumer for `durable_expires_seconds`, are removed.

Its description (names, topic, time when it was seen last) is kept by a DurableKeeper, apart from the positions of its
readers, which are written with the messages. A crash may come between the two: a subscription without readers on disk
begins at the end of its topic, and no client had a RECEIPT for it; readers without a subscription have no owner and
block nothing. A removal can leave only the second: the description is deleted first, and its readers when that is done.

Bound: the policy's quota for unread messages; `durables_max` subscriptions.

Source: seed 002 ("Durables" as cursors); DESIGN section 6; anchors c26, c56, d17, d35.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from .cursors import TrackingCursor

if TYPE_CHECKING:
    from .selectors.selector import Selection
    from .subscription import Subscription

LEASE_COUNT: Final = 65_536
"""Number of elements by which the note "may have been seen" on disk runs ahead of a reader."""


SEPARATOR: Final = "\x1f"
"""Separator of client id and name. No client id has it, so no two subscriptions have the same joined name."""

_HOST_OF_CLIENT: Final = re.compile(r"^@[A-Za-z0-9_-]+[:/]")

NAMES_BYTES_MAX: Final = 4000
"""Longest client id and name together, in bytes of UTF-8: they are part of a key."""

DurableKey = tuple[str, str, str]
"""Client id, name and topic; unique among durable subscriptions."""

Done = Callable[[Exception | None], None]
"""Callback that gets the error, or None: the change is on disk, if it has to be."""


class DurableNameError(ValueError):
    """Names that no durable subscription can have."""


class DurableInUseError(Exception):
    """Error of an attach: another consumer is attached under this client id and name, or they belong to
    another topic.
    """

    code = "durable-in-use"


class DurableSelectorError(Exception):
    """Error of an attach with another selector than that of the durable subscription."""

    code = "other-selector"


class DurableLimitError(Exception):
    """Error of an attach that would exceed the configured number of durable subscriptions."""

    code = "too-many-destinations"


def subscriber_of(client_id: str, name: str) -> str:
    """Return the joined name of a subscription, under which it is kept. Raises DurableNameError."""
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


HOST_OF_CLIENT: Final = "@"
"""Beginning of the client ids of virtual hosts: `@shop/client`, and with users `@shop:ann/client`."""


def client_id_of_host(host: str, client_id: str, *, has_user: bool) -> str:
    """Return a client id as that of a virtual host, apart from those of others. `has_user`: it begins with a user."""
    return f"{HOST_OF_CLIENT}{host}{':' if has_user else '/'}{client_id}"


def client_id_in_host(client_id: str) -> str:
    """Return a client id that `client_id_of_host` made as clients of its virtual host know it."""
    return _HOST_OF_CLIENT.sub("", client_id, count=1)


def names_client(client_id: str) -> bool:
    """Return whether `client_id` names a client. It does not if it is empty, or (with users) names only the user:
    `ann/`.
    """
    return client_id.find("/") != len(client_id) - 1


def key_of(client_id: str, name: str, destination: str) -> DurableKey:
    """Return the key: a client has each name once; without a client id each topic has."""
    return client_id, name, "" if names_client(client_id) else destination


@attrs.frozen
class ReaderState:
    """State of a reader as it is written."""

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
        """Subscriptions that read now: more than one at a time only if all of them are shared."""
        self.share_count = self.turns_left = 0
        """Elements for each subscription in this round, and number of subscriptions whose turns are left in it."""
        self.selection: Selection | None = None
        """Selection of the last subscription; None: none was attached yet, or it takes all."""
        self.lease = 0
        """Elements below this count as seen on disk."""
        self.lease_under_way = 0
        self.settled_late: set[int] | None = None
        """Elements that a present subscription holds, and that a transaction of an earlier one has settled."""

    def state(self, *, exactly: bool = False) -> ReaderState:
        """Return the state to be written now. `exactly`: no subscription reads any more, so that no lease is needed."""
        cursor = self.cursor
        if exactly:
            return ReaderState(cursor.front, 0, cursor.settled_above(), cursor.seen())
        position = max(cursor.position, cursor.seen_to)
        if not self.subscriptions:  # no subscription reads: no need to run ahead
            self.lease = self.lease_under_way = position
        elif position + LEASE_COUNT // 2 > max(self.lease, self.lease_under_way):
            self.lease_under_way = position + LEASE_COUNT
        handed_to = max(self.lease, self.lease_under_way)
        return ReaderState(cursor.front, handed_to, cursor.settled_above(), cursor.attempts_noted())

    def share_of(self, ready_count: int) -> int:
        """Return the number of elements that the next of `ready_count` ready subscriptions may take: in a round all get
        as many.
        """
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
    """Time when a consumer was attached last; updated when it detaches."""
    selector: str = ""
    """Selector of the subscription; empty: it takes all."""
    consumers_count: int = 0
    """Number of attached consumers: more than one only if the subscription is shared."""
    is_kept: bool = False
    """Whether the keeper is known to have it."""
    was_tried: bool = False
    """Whether the keeper was asked to keep it, and may have it."""

    @property
    def attached(self) -> bool:
        return self.consumers_count > 0

    @property
    def is_shared(self) -> bool:
        """Whether several consumers may be attached at a time."""
        return not names_client(self.client_id)

    @property
    def key(self) -> DurableKey:
        return key_of(self.client_id, self.name, self.destination)

    @property
    def label(self) -> str:
        return f"{self.name} of {self.destination}" if self.is_shared else f"{self.name} of client {self.client_id}"


class DurableKeeper(Protocol):
    """Storage of the durable subscriptions, in the order of the calls. It may answer from inside the call."""

    def keep(self, durable: Durable, done: Done, *, again: bool) -> None:
        """Store a durable subscription. `again`: it may have been stored before."""

    def seen(self, durable: Durable, done: Done) -> None:
        """Store a new `last_seen_ms`; it need not be on disk at once. Does nothing for a subscription that is
        not kept.
        """

    def forget(self, durable: Durable, done: Done) -> None:
        """Delete a durable subscription. Does nothing for one that is not kept."""


class _NoKeeper:
    """Keeper without a store: subscriptions live as long as the table."""

    def keep(self, durable: Durable, done: Done, *, again: bool) -> None:
        done(None)

    def seen(self, durable: Durable, done: Done) -> None:
        done(None)

    def forget(self, durable: Durable, done: Done) -> None:
        done(None)


class DurableIds:
    """Numbers of durable subscriptions: those of each shard have the same remainder, so they never meet."""

    __slots__ = ("_next_ids", "_shard_of", "_shards_count")

    def __init__(self, shards_count: int = 1, shard_of: Callable[[str], int] = lambda _topic: 0) -> None:
        """`shard_of`: returns the shard of a topic."""
        self._shards_count = shards_count
        self._shard_of = shard_of
        self._next_ids: dict[int, int] = {}

    def taken(self, durable_id: int) -> None:
        """Note an id of an earlier run."""
        shard = durable_id % self._shards_count
        self._next_ids[shard] = max(self._next_ids.get(shard, 0), durable_id + self._shards_count)

    def take(self, topic: str) -> int:
        """Return a new id for a subscription of this topic. No id is 0."""
        shard = self._shard_of(topic)
        durable_id = self._next_ids.get(shard, shard or self._shards_count)
        self._next_ids[shard] = durable_id + self._shards_count
        return durable_id


class DurableTable:
    """All durable subscriptions of a broker, by client id and name, or by topic and name."""

    __slots__ = ("_by_key", "_durables_max", "_ids", "_keeper", "_now_ms", "_unseen", "on_change", "when_told")

    def __init__(
        self,
        *,
        durables_max: int,
        now_ms: Callable[[], int],
        keeper: DurableKeeper | None = None,
        ids: DurableIds | None = None,
    ) -> None:
        """Create a table; without a `keeper` its subscriptions live as long as the table. `ids`: of several shards."""
        self._by_key: dict[DurableKey, Durable] = {}
        self._durables_max = durables_max
        self._now_ms = now_ms
        self._keeper: DurableKeeper = keeper if keeper is not None else _NoKeeper()
        self._ids = DurableIds() if ids is None else ids
        self._unseen: dict[Durable, None] = {}
        """Subscriptions whose `last_seen_ms` is to be written anew."""
        self.on_change: Callable[[str, bool], None] = _nothing
        """Callback with a topic that has one subscription more (True) or less."""
        self.when_told: Callable[[Callable[[], None]], None] | None = None
        """Calls back when all other hubs know of these changes; None: there are none."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Durable]:
        return iter(list(self._by_key.values()))

    def of(self, destination: str) -> list[Durable]:
        """Return the durable subscriptions of one topic. O(durables)."""
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
        """Restore a durable subscription of an earlier run. Not `exactly`: that run crashed, and the time of a consumer
        attached then was not written; so it counts as seen now.
        """
        durable.is_kept = True
        self._add(durable)
        if not exactly:
            durable.last_seen_ms = self._now_ms()
            self._unseen[durable] = None
        self._ids.taken(durable.durable_id)

    def leave(self, is_meant: Callable[[str], bool]) -> None:
        """Forget the durable subscriptions of these topics, which stay where they are kept."""
        for durable in [each for each in self._by_key.values() if is_meant(each.destination)]:
            self._delete(durable)
            self._unseen.pop(durable, None)

    def _add(self, durable: Durable) -> None:
        is_new = durable.key not in self._by_key
        self._by_key[durable.key] = durable
        if is_new:
            self.on_change(durable.destination, True)

    def _delete(self, durable: Durable) -> None:
        del self._by_key[durable.key]
        self.on_change(durable.destination, False)

    def attach(self, client_id: str, name: str, destination: str, selector: str = "") -> tuple[Durable, bool]:
        """Attach a consumer to the durable subscription of this name. Returns it, and whether it was made. Nothing is
        written: see `keep`.
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
                    f"durable subscription {durable.label} was made with {has}: skipped messages can't come "
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
        durable_id = self._ids.take(destination)
        durable = Durable(
            durable_id, client_id, name, destination, now_ms, now_ms, selector=selector, consumers_count=1
        )
        self._add(durable)
        return durable, True

    def keep(self, durable: Durable, done: Done) -> None:
        """Write a durable subscription, unless that was done: `done` is called, perhaps at once, when it is on disk and
        other hubs send what is for it. After an error the subscription stays in memory, and the next call tries again.
        """
        if durable.is_kept:
            done(None)
            return
        again, durable.was_tried = durable.was_tried, True
        self._keeper.keep(durable, partial(self._kept, durable, done), again=again)

    def _kept(self, durable: Durable, done: Done, error: Exception | None) -> None:
        durable.is_kept = error is None
        if error is None and self.when_told is not None:
            self.when_told(partial(done, None))
        else:
            done(error)

    def detached(self, durable: Durable) -> None:
        """Note that a consumer of the subscription has detached."""
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
        """Write again what could not be written before, for subscriptions that have no consumer now."""
        unseen, self._unseen = self._unseen, {}
        for durable in unseen:
            if not durable.attached:
                self._write_seen(durable)

    def has(self, durable: Durable) -> bool:
        """Return whether `durable` is the present owner of its name."""
        return self._by_key.get(durable.key) is durable

    def remove(self, durable: Durable, done: Done) -> None:
        """Remove a durable subscription and free its name. `done` is called, perhaps at once, when that is on disk:
        then, not before, the caller removes its readers. After an error the subscription exists again, unless a new one
        has its name.
        """
        if self.has(durable):
            self._delete(durable)
            self._keeper.forget(durable, partial(self._forgotten, durable, done))

    def _forgotten(self, durable: Durable, done: Done, error: Exception | None) -> None:
        if error is not None:
            durable.is_kept = False  # unknown until it is kept again
            if durable.key not in self._by_key:
                self._add(durable)
        done(error)

    def abandoned(self, durable: Durable, expires_seconds: float | None) -> bool:
        """Return whether no consumer has been attached for `expires_seconds`."""
        if expires_seconds is None or durable.attached:
            return False
        return self._now_ms() - durable.last_seen_ms > expires_seconds * 1000


def _nothing(_topic: str, _is_more: bool) -> None:
    return
