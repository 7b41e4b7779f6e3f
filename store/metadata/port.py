"""The port to what brokers must agree upon: who owns a topic, where its records lie, and where its subscribers stand.

Three managers over *compare-and-set*. What is read comes with its *version*; whoever writes says which version he has
seen, and is refused if somebody else has written since. So two brokers that share a store never overwrite each other
unknowingly, without a lock.

    read       gives the value and its version, None if there is none
    write      with Version.NEW: only if there is none. With a version: only if that is the current one. With
               Version.ANY: whatever it is, but there must be one. Gives the new version
    delete     with a version or Version.ANY

Every call returns at once and takes `done`, which is called on the dispatch loop, later, never from inside the call,
with the result or with a MetadataError (never raised). Operations of one manager happen one after the other, in the
order of the calls; each sees all those before it, answered or not, and answers come in that order.

`durable` says when a change counts as done: True, when it is on disk and survives a power cut; False, when it is
written and survives the end of the process (a remote store may be stricter). Changes become durable in order: if one
survived, so did all those before it.

A MetadataFailedError leaves it open whether the change happened. Read again, and go on from what is there.

Arguments that can never be stored (a name that is too long) are mistakes of the caller: ValueError, at once.

Implementations: MemoryMetadata (memory.py), StoredMetadata (stored.py; behind an Engine). One contract suite holds for
all: tests/contract/test_metadata.py. One on ZooKeeper would keep a znode for each record.

Source: seed 003 "Metadata Management"; DESIGN section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import attrs

from .records import HubInfo, PageRanges, SubscriptionData, SubscriptionPreferences, SubscriptionState

T = TypeVar("T")

NAME_BYTES_MAX: Final = 4096
"""Of a topic or a subscriber, in UTF-8: destinations have 1,024 characters at most."""


@attrs.frozen(repr=False)
class Version:
    """Of one record. Opaque: keep what you are given, hand it back, compare for equality. Versions of a record do not
    come twice while it lives; once it is deleted and made again, they may.
    """

    number: int
    """For implementations only."""

    NEW: ClassVar[Version]
    """There must be none yet."""
    ANY: ClassVar[Version]
    """Whatever is there, but something must be. For those who know that they are alone."""

    def __repr__(self) -> str:
        return {-1: "Version.NEW", -2: "Version.ANY"}.get(self.number, f"Version({self.number})")


Version.NEW = Version(-1)
Version.ANY = Version(-2)


@attrs.frozen
class Versioned(Generic[T]):
    """What was read."""

    value: T
    version: Version


class MetadataError(Exception):
    """An operation did not do what was asked. Base of all that `done` is given."""


class BadVersionError(MetadataError):
    """Somebody else has written since. Nothing was changed; read again."""

    def __init__(self, what: str, *, given: Version, current: Version) -> None:
        expected = "was expected not to be there yet" if given == Version.NEW else f"was expected to be {given!r}"
        super().__init__(f"{what} {expected}, and is {current!r}: read it again, and decide anew")
        self.given = given
        self.current = current


class NoTopicOwnerInfoError(MetadataError):
    """The topic has no owner."""


class NoTopicPersistenceInfoError(MetadataError):
    """Nobody has said where the topic lies."""


class SubscriptionStateExistsError(MetadataError):
    """There is a subscription of this name already."""


class NoSubscriptionStateError(MetadataError):
    """There is no such subscription."""


class MetadataFailedError(MetadataError):
    """The store below failed; the message says what helps. Whether the change happened is not known: read again."""


class MetadataClosedError(Exception):
    """A manager was used after `close`: a mistake of the caller, raised at once."""


OnRead = Callable[[Versioned[T] | MetadataError | None], None]
OnWritten = Callable[[Version | MetadataError], None]
"""Gets the new version."""
OnDone = Callable[[MetadataError | None], None]
"""None: it is done."""
OnSubscriptions = Callable[[Mapping[str, Versioned[SubscriptionData]] | MetadataError], None]


class TopicOwnershipManager(Protocol):
    """Which broker serves a topic."""

    def read(self, topic: str, done: OnRead[HubInfo]) -> None:
        """The owner of a topic, None if it has none."""

    def write(self, topic: str, owner: HubInfo, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        """This broker owns the topic from now on.

        Errors: BadVersionError; NoTopicOwnerInfoError unless `version` is NEW; MetadataFailedError.
        """

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        """The topic has no owner any more. Errors: as `write`."""


class TopicPersistenceManager(Protocol):
    """Where the records of a topic lie."""

    def read(self, topic: str, done: OnRead[PageRanges]) -> None:
        """Where they lie, None if nobody has said."""

    def write(self, topic: str, ranges: PageRanges, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        """They lie there from now on.

        Errors: BadVersionError; NoTopicPersistenceInfoError unless `version` is NEW; MetadataFailedError.
        """

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        """Nobody says any more. Errors: as `write`."""


class SubscriptionDataManager(Protocol):
    """What subscribers of a topic want (preferences, written rarely) and where they stand (state, written often).

    There is one version for the whole of a subscription, as the seed has it: an update of one part is refused if the
    other has changed since. Who writes state only, and alone, may keep one write under way and the version that the
    last one gave.
    """

    @property
    def is_partial_update_supported(self) -> bool:
        """Whether an update of one part leaves the other where it is. False: updates work all the same, but each reads
        and writes the whole.
        """

    def create(
        self, topic: str, subscriber: str, data: SubscriptionData, done: OnWritten, *, durable: bool = True
    ) -> None:
        """A new subscription; `done` gets its first version.

        Errors: SubscriptionStateExistsError; MetadataFailedError.
        """

    def read(self, topic: str, subscriber: str, done: OnRead[SubscriptionData]) -> None:
        """All of a subscription, None if there is none."""

    def read_subscriptions(self, topic: str, done: OnSubscriptions) -> None:
        """All subscriptions of a topic, by subscriber, in order of their names; empty if it has none. O(them)."""

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
        """Both parts anew. Errors: BadVersionError, NoSubscriptionStateError, MetadataFailedError."""

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
        """Where it stands now; its preferences stay. Errors: as `replace`."""

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
        """What it wants now; its state stays. Errors: as `replace`."""

    def delete(self, topic: str, subscriber: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        """There is no such subscription any more. Errors: as `replace`."""


@attrs.frozen
class MetadataStatistics:
    """Since the start."""

    operations_count: int = 0
    """Asked for."""
    waiting_count: int = 0
    """Of those, not answered yet."""
    batches_count: int = 0
    """Writes: operations that come while one is under way share the next."""
    syncs_count: int = 0
    """Of those, synced."""
    failures_count: int = 0
    """Times that the store below failed."""


class MetadataManagers(Protocol):
    """All three."""

    @property
    def ownership(self) -> TopicOwnershipManager: ...

    @property
    def persistence(self) -> TopicPersistenceManager: ...

    @property
    def subscriptions(self) -> SubscriptionDataManager: ...

    def flush(self, done: OnDone) -> None:
        """`done` is called when all that was asked for before is durable."""

    def statistics(self) -> MetadataStatistics:
        """What they have done."""

    def close(self) -> None:
        """No operation is taken any more; those that were are carried out and answered. Does not wait for it."""


def next_version(
    what: str, current: Version | None, given: Version, none_error: type[MetadataError], *, new: bool = True
) -> Version:
    """The rules of compare-and-set, for implementations that count: the version after this write. `what` names the
    record, `current` is its version (None: there is none); `new`: Version.NEW makes it.

    Raises BadVersionError, and `none_error` where there is nothing to write over.
    """
    if current is None:
        if new and given == Version.NEW:
            return Version(0)
        raise none_error(f"there is no {what}")
    if given not in (current, Version.ANY):
        raise BadVersionError(what, given=given, current=current)
    return Version(current.number + 1)


def checked_name(what: str, name: str) -> str:
    """A topic or a subscriber. Raises ValueError for one that can't be stored."""
    try:
        length_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {name!r} is no Unicode text: {error}") from error
    if not 0 < length_bytes <= NAME_BYTES_MAX:
        raise ValueError(f"{what} {name[:80]!r} has {length_bytes} bytes: 1 to {NAME_BYTES_MAX} are allowed")
    return name
