"""Port to the state that brokers must agree upon: owners of topics, location of their records, positions of
subscribers.

Three managers over *compare-and-set*. A value is read with its *version*; a write names the version it is based on, and
is refused if another write came since. So two brokers that share a store never overwrite each other unknowingly,
without a lock.

    read       gives the value and its version, None if there is none
    write      with Version.NEW: only if there is none. With a version: only if that is the current one. With
               Version.ANY: any version, but there must be one. Gives the new version
    delete     with a version or Version.ANY

Every call returns at once and takes `done`, which is called on the dispatch loop, later, never from inside the call,
with the result or with a MetadataError (never raised). Operations of one manager happen one after the other, in the
order of the calls; each sees all those before it, answered or not, and answers come in that order.

`durable` says when a change counts as done: True, when it is on disk and survives a power cut; False, when it is
written and survives the end of the process (a remote store may be stricter). Changes become durable in order: if one
survived, so did all those before it.

A MetadataFailedError leaves it open whether the change happened. Read again, and continue from there.

Arguments that can never be stored (a name that is too long) are mistakes of the caller: ValueError, at once.

Implementations: StoredMetadata (stored.py), behind an Engine; RecordedMetadata (recorded.py), over records that hubs
share. The contract suite, tests/contract/test_metadata.py, is for both.

Source: seed 003 "Metadata Management"; DESIGN section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import attrs

from ..compare_and_set import MetadataError, OnDone, OnRead, OnWritten, Version, Versioned
from .records import HubInfo, PageRanges, SubscriptionData, SubscriptionPreferences, SubscriptionState

T = TypeVar("T")

NAME_BYTES_MAX: Final = 4096
"""Bytes of a topic or a subscriber, in UTF-8: destinations have 1,024 characters at most."""


class NoTopicOwnerInfoError(MetadataError):
    """The topic has no owner."""


class NoTopicPersistenceInfoError(MetadataError):
    """The topic has no location."""


class SubscriptionStateExistsError(MetadataError):
    """A subscription of this name exists."""


class NoSubscriptionStateError(MetadataError):
    """No subscription has this name."""


class MetadataClosedError(Exception):
    """A manager was used after `close`: a mistake of the caller, raised at once."""


OnSubscriptions = Callable[[Mapping[str, Versioned[SubscriptionData]] | MetadataError], None]


class TopicManager(Protocol[T]):
    """Port to one value for each topic: its owner, or the location of its records."""

    def read(self, topic: str, done: OnRead[T]) -> None:
        """Read the value of a topic, None if it has none."""

    def write(self, topic: str, value: T, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        """Set the value of the topic.

        Errors: BadVersionError; NoTopicOwnerInfoError or NoTopicPersistenceInfoError unless `version` is NEW;
        MetadataFailedError.
        """

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        """Remove the value of the topic. Errors: as `write`."""


TopicOwnershipManager = TopicManager[HubInfo]
TopicPersistenceManager = TopicManager[PageRanges]


class SubscriptionDataManager(Protocol):
    """Port to the preferences (written rarely) and positions (state, written often) of subscribers.

    One version covers the whole of a subscription, as the seed has it: an update of one part is refused if the other
    has changed since. A single writer that writes state only may keep one write under way, with the version of the last
    one.
    """

    @property
    def is_partial_update_supported(self) -> bool:
        """Whether an update of one part leaves the other unwritten. False: updates work all the same, but each reads
        and writes the whole.
        """

    def create(
        self, topic: str, subscriber: str, data: SubscriptionData, done: OnWritten, *, durable: bool = True
    ) -> None:
        """Create a subscription; `done` gets its first version.

        Errors: SubscriptionStateExistsError; MetadataFailedError.
        """

    def read(self, topic: str, subscriber: str, done: OnRead[SubscriptionData]) -> None:
        """Read a subscription, None if there is none."""

    def read_subscriptions(self, topic: str, done: OnSubscriptions) -> None:
        """Read all subscriptions of a topic, by subscriber, in order of their names; empty if it has none.
        O(subscriptions).
        """

    def replace(
        self,
        topic: str,
        subscriber: str,
        data: SubscriptionData,
        version: Version,
        done: OnWritten,
        *,
        durable: bool = True,
    ) -> None:
        """Replace both parts. Errors: BadVersionError, NoSubscriptionStateError, MetadataFailedError."""

    def update_state(
        self,
        topic: str,
        subscriber: str,
        state: SubscriptionState,
        version: Version,
        done: OnWritten,
        *,
        durable: bool = True,
    ) -> None:
        """Replace the state; the preferences stay. Errors: as `replace`."""

    def update_preferences(
        self,
        topic: str,
        subscriber: str,
        preferences: SubscriptionPreferences,
        version: Version,
        done: OnWritten,
        *,
        durable: bool = True,
    ) -> None:
        """Replace the preferences; the state stays. Errors: as `replace`."""

    def delete(self, topic: str, subscriber: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        """Delete the subscription. Errors: as `replace`."""


@attrs.frozen
class MetadataStatistics:
    """Counts since the start."""

    operations_count: int = 0
    """Number of operations requested."""
    waiting_count: int = 0
    """Number of operations not answered yet."""
    batches_count: int = 0
    """Number of writes: operations requested while one is under way share the next."""
    syncs_count: int = 0
    """Number of synced writes."""
    failures_count: int = 0
    """Number of failures of the store below."""


class MetadataManagers(Protocol):
    """The three managers."""

    @property
    def ownership(self) -> TopicOwnershipManager: ...

    @property
    def persistence(self) -> TopicPersistenceManager: ...

    @property
    def subscriptions(self) -> SubscriptionDataManager: ...

    def flush(self, done: OnDone) -> None:
        """Call `done` when all earlier operations are durable."""

    def statistics(self) -> MetadataStatistics:
        """Return the counts."""

    def close(self) -> None:
        """Refuse further operations; earlier ones are carried out and answered. Does not wait for them."""


def checked_name(what: str, name: str) -> str:
    """Return the name of a topic or a subscriber. Raises ValueError if it can't be stored."""
    try:
        length_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {name!r} is no Unicode text: {error}") from error
    if not 0 < length_bytes <= NAME_BYTES_MAX:
        raise ValueError(f"{what} {name[:80]!r} has {length_bytes} bytes: 1 to {NAME_BYTES_MAX} are allowed")
    return name
