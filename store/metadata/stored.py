"""Metadata in the broker's own store, behind an Engine; in memory for brokers without one.

Records: FORMAT.md, families o (owner), r (page ranges), u (preferences) and v (state, with the version of the whole
subscription). A state update writes v alone; an update of preferences writes both, so that the version advances.
Records written together are in one batch.

Versions count from 0. After a power cut an unsynced record is rolled back, and so is its version; a writer with the
later version is refused, unless as many writes have come since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ...queues.environment import Scheduling
from .. import keys
from ..compare_and_set import MetadataError, OnDone, OnRead, OnWritten, Version, Versioned, next_version
from ..io_threads import Worker
from .operations import OperationLine, View
from .port import (
    MetadataStatistics,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    OnSubscriptions,
    SubscriptionStateExistsError,
    checked_name,
)
from .records import (
    MetadataFormatError,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    decode_owner,
    decode_page_ranges,
    decode_preferences,
    decode_subscription_state,
    encode_owner,
    encode_page_ranges,
    encode_preferences,
    encode_subscription_state,
)

T = TypeVar("T")


def _key_of(family: bytes, topic: str) -> bytes:
    return keys.topic_key(family, checked_name("the topic", topic))


def _keys_of(topic: str, subscriber: str) -> tuple[bytes, bytes]:
    """Return the keys of preferences and state."""
    checked_name("the topic", topic)
    checked_name("the subscriber", subscriber)
    return (
        keys.subscription_key(keys.PREFERENCES, topic, subscriber),
        keys.subscription_key(keys.SUBSCRIPTION, topic, subscriber),
    )


class StoredTopics(Generic[T]):
    """One value for each topic. Satisfies TopicOwnershipManager and TopicPersistenceManager."""

    def __init__(
        self,
        line: OperationLine,
        family: bytes,
        encode: Callable[[T, int], bytes],
        decode: Callable[[bytes], tuple[T, int]],
        what: str,
        none_error: type[MetadataError],
    ) -> None:
        """`what` names the value in errors; `none_error` is that of a topic without one."""
        self._line = line
        self._family = family
        self._encode = encode
        self._decode = decode
        self._what = what
        self._none_error = none_error

    def read(self, topic: str, done: OnRead[T]) -> None:
        key = _key_of(self._family, topic)
        self._line.read(lambda view: self._stored(view, key), done)

    def write(self, topic: str, value: T, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        key = _key_of(self._family, topic)

        def write(view: View) -> Version:
            new = self._next(view, key, topic, version, new=True)
            view.put(key, self._encode(value, new.number))
            return new

        self._line.change(write, done, durable=durable)

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        key = _key_of(self._family, topic)

        def drop(view: View) -> None:
            self._next(view, key, topic, version, new=False)
            view.delete(key)

        self._line.change(drop, done, durable=durable)

    def _stored(self, view: View, key: bytes) -> Versioned[T] | None:
        stored = view.get(key)
        if stored is None:
            return None
        value, version = self._decode(stored)
        return Versioned(value, Version(version))

    def _next(self, view: View, key: bytes, topic: str, version: Version, *, new: bool) -> Version:
        there = self._stored(view, key)
        current = None if there is None else there.version
        return next_version(f"{self._what} of {topic}", current, version, self._none_error, new=new)


class StoredSubscriptions:
    """SubscriptionDataManager."""

    def __init__(self, line: OperationLine) -> None:
        self._line = line

    @property
    def is_partial_update_supported(self) -> bool:
        return True

    def create(
        self, topic: str, subscriber: str, data: SubscriptionData, done: OnWritten, *, durable: bool = True
    ) -> None:
        preferences_key, state_key = _keys_of(topic, subscriber)

        def create(view: View) -> Version:
            if view.get(state_key) is not None:
                raise SubscriptionStateExistsError(f"there is a subscription {subscriber} of {topic} already")
            view.put(preferences_key, encode_preferences(data.preferences))
            view.put(state_key, encode_subscription_state(data.state, 0))
            return Version(0)

        self._line.change(create, done, durable=durable)

    def read(self, topic: str, subscriber: str, done: OnRead[SubscriptionData]) -> None:
        preferences_key, state_key = _keys_of(topic, subscriber)

        def read(view: View) -> Versioned[SubscriptionData] | None:
            state = view.get(state_key)
            return None if state is None else _whole(topic, subscriber, view.get(preferences_key), state)

        self._line.read(read, done)

    def read_subscriptions(self, topic: str, done: OnSubscriptions) -> None:
        checked_name("the topic", topic)
        preferences_range = keys.subscriptions_range(keys.PREFERENCES, topic)
        states_range = keys.subscriptions_range(keys.SUBSCRIPTION, topic)

        def read(view: View) -> Mapping[str, Versioned[SubscriptionData]]:
            preferences = {keys.parse_subscription_key(key)[1]: value for key, value in view.scan(*preferences_range)}
            found: dict[str, Versioned[SubscriptionData]] = {}
            for key, value in view.scan(*states_range):
                subscriber = keys.parse_subscription_key(key)[1]
                found[subscriber] = _whole(topic, subscriber, preferences.get(subscriber), value)
            return found

        self._line.read(read, done)

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
        self._change(topic, subscriber, data.preferences, data.state, version, done, durable)

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
        self._change(topic, subscriber, None, state, version, done, durable)

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
        self._change(topic, subscriber, preferences, None, version, done, durable)

    def delete(self, topic: str, subscriber: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        preferences_key, state_key = _keys_of(topic, subscriber)

        def drop(view: View) -> None:
            _next(view.get(state_key), topic, subscriber, version)
            view.delete(preferences_key)
            view.delete(state_key)

        self._line.change(drop, done, durable=durable)

    def _change(
        self,
        topic: str,
        subscriber: str,
        preferences: SubscriptionPreferences | None,
        state: SubscriptionState | None,
        version: Version,
        done: OnWritten,
        durable: bool,
    ) -> None:
        """Change a subscription; a part that is None stays."""
        preferences_key, state_key = _keys_of(topic, subscriber)

        def change(view: View) -> Version:
            there, new = _next(view.get(state_key), topic, subscriber, version)
            if preferences is not None:
                view.put(preferences_key, encode_preferences(preferences))
            view.put(state_key, encode_subscription_state(there if state is None else state, new.number))
            return new

        self._line.change(change, done, durable=durable)


def _next(stored: bytes | None, topic: str, subscriber: str, version: Version) -> tuple[SubscriptionState, Version]:
    """Return the stored state, and the version of the next one."""
    state, number = decode_subscription_state(stored) if stored is not None else (SubscriptionState(), -1)
    current = None if stored is None else Version(number)
    what = f"subscription {subscriber} of {topic}"
    return state, next_version(what, current, version, NoSubscriptionStateError, new=False)


def _whole(topic: str, subscriber: str, preferences: bytes | None, state: bytes) -> Versioned[SubscriptionData]:
    if preferences is None:
        raise MetadataFormatError(f"the preferences of subscription {subscriber} of {topic} are missing")
    decoded, version = decode_subscription_state(state)
    return Versioned(SubscriptionData(decode_preferences(preferences), decoded), Version(version))


class StoredMetadata:
    """The three managers, behind the engine of a store."""

    def __init__(
        self,
        worker: Worker,
        *,
        scheduling: Scheduling | None = None,
        sync_interval_seconds: float = 1.0,
        contain: Callable[[Exception], None] | None = None,
    ) -> None:
        """Make the managers. `contain`: see OperationLine. `worker`: that of the store. `scheduling` and
        `sync_interval_seconds`: writes that are not durable become so after that time at the latest; without, with the
        next sync of the store.
        """
        self._line = OperationLine(
            worker, scheduling=scheduling, sync_interval_seconds=sync_interval_seconds, contain=contain
        )
        self.ownership = StoredTopics(
            self._line, keys.OWNER, encode_owner, decode_owner, "owner", NoTopicOwnerInfoError
        )
        self.persistence = StoredTopics(
            self._line,
            keys.PAGE_RANGES,
            encode_page_ranges,
            decode_page_ranges,
            "persistence info",
            NoTopicPersistenceInfoError,
        )
        self.subscriptions = StoredSubscriptions(self._line)

    def flush(self, done: OnDone) -> None:
        self._line.flush(done)

    def statistics(self) -> MetadataStatistics:
        """Return the counts."""
        return self._line.statistics()

    def close(self) -> None:
        """Close before the worker, which carries out earlier operations."""
        self._line.close()
