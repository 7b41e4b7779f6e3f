"""Metadata in memory, for brokers without a store and for tests: gone with the object, and always durable till then.

An operation happens when it is called; only its answer waits for the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs

from .port import (
    MetadataClosedError,
    MetadataError,
    MetadataStatistics,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    OnDone,
    OnRead,
    OnSubscriptions,
    OnWritten,
    SubscriptionStateExistsError,
    Version,
    Versioned,
    checked_name,
    next_version,
)
from .records import HubInfo, PageRanges, SubscriptionData, SubscriptionPreferences, SubscriptionState

T = TypeVar("T")


class _Answers:
    """Answers of operations, given in order, on the loop."""

    def __init__(self, schedule: Callable[[Callable[[], None]], None]) -> None:
        self._schedule = schedule
        self.operations_count = self.answered_count = 0
        self.closed = False

    def give(self, operation: Callable[[], T], done: Callable[[T | MetadataError], None]) -> None:
        if self.closed:
            raise MetadataClosedError("the metadata managers are closed: nothing can be read or written any more")
        self.operations_count += 1
        result: T | MetadataError
        try:
            result = operation()
        except MetadataError as error:
            result = error

        def answer() -> None:
            self.answered_count += 1
            done(result)

        self._schedule(answer)


class _Cells:
    """Values of one kind by topic."""

    def __init__(self, answers: _Answers, what: str, none_error: type[MetadataError]) -> None:
        self._answers = answers
        self._what = what
        self._none_error = none_error
        self._cells: dict[str, Versioned[object]] = {}

    def read(self, topic: str, done: Callable[..., None]) -> None:
        checked_name("the topic", topic)
        self._answers.give(lambda: self._cells.get(topic), done)

    def write(self, topic: str, value: object, version: Version, done: OnWritten) -> None:
        checked_name("the topic", topic)

        def write() -> Version:
            new = self._next(topic, version, new=True)
            self._cells[topic] = Versioned(value, new)
            return new

        self._answers.give(write, done)

    def delete(self, topic: str, version: Version, done: OnDone) -> None:
        checked_name("the topic", topic)

        def drop() -> None:
            self._next(topic, version, new=False)
            del self._cells[topic]

        self._answers.give(drop, done)

    def _next(self, topic: str, version: Version, *, new: bool) -> Version:
        cell = self._cells.get(topic)
        current = None if cell is None else cell.version
        return next_version(f"{self._what} of {topic}", current, version, self._none_error, new=new)


class MemoryOwnership:
    """TopicOwnershipManager."""

    def __init__(self, answers: _Answers) -> None:
        self._cells = _Cells(answers, "owner", NoTopicOwnerInfoError)

    def read(self, topic: str, done: OnRead[HubInfo]) -> None:
        self._cells.read(topic, done)

    def write(self, topic: str, owner: HubInfo, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        self._cells.write(topic, owner, version, done)

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        self._cells.delete(topic, version, done)


class MemoryPersistence:
    """TopicPersistenceManager."""

    def __init__(self, answers: _Answers) -> None:
        self._cells = _Cells(answers, "persistence info", NoTopicPersistenceInfoError)

    def read(self, topic: str, done: OnRead[PageRanges]) -> None:
        self._cells.read(topic, done)

    def write(self, topic: str, ranges: PageRanges, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        self._cells.write(topic, ranges, version, done)

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        self._cells.delete(topic, version, done)


class MemorySubscriptions:
    """SubscriptionDataManager."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._topics: dict[str, dict[str, Versioned[SubscriptionData]]] = {}

    @property
    def is_partial_update_supported(self) -> bool:
        return True

    def create(
        self, topic: str, subscriber: str, data: SubscriptionData, done: OnWritten, *, durable: bool = True
    ) -> None:
        _check(topic, subscriber)

        def create() -> Version:
            there = self._topics.setdefault(topic, {})
            if subscriber in there:
                raise SubscriptionStateExistsError(f"there is a subscription {subscriber} of {topic} already")
            there[subscriber] = Versioned(data, Version(0))
            return Version(0)

        self._answers.give(create, done)

    def read(self, topic: str, subscriber: str, done: OnRead[SubscriptionData]) -> None:
        _check(topic, subscriber)
        self._answers.give(lambda: self._topics.get(topic, {}).get(subscriber), done)

    def read_subscriptions(self, topic: str, done: OnSubscriptions) -> None:
        checked_name("the topic", topic)

        def read() -> Mapping[str, Versioned[SubscriptionData]]:
            # In the order of UTF-8, as stores have them.
            return dict(sorted(self._topics.get(topic, {}).items(), key=lambda item: item[0].encode()))

        self._answers.give(read, done)

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
        self._change(topic, subscriber, version, done, lambda _old: data)

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
        self._change(topic, subscriber, version, done, lambda old: attrs.evolve(old, state=state))

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
        self._change(topic, subscriber, version, done, lambda old: attrs.evolve(old, preferences=preferences))

    def delete(self, topic: str, subscriber: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        _check(topic, subscriber)

        def drop() -> None:
            self._next(topic, subscriber, version)
            del self._topics[topic][subscriber]
            if not self._topics[topic]:
                del self._topics[topic]

        self._answers.give(drop, done)

    def _change(
        self,
        topic: str,
        subscriber: str,
        version: Version,
        done: OnWritten,
        changed: Callable[[SubscriptionData], SubscriptionData],
    ) -> None:
        _check(topic, subscriber)

        def change() -> Version:
            new = self._next(topic, subscriber, version)
            there = self._topics[topic]
            there[subscriber] = Versioned(changed(there[subscriber].value), new)
            return new

        self._answers.give(change, done)

    def _next(self, topic: str, subscriber: str, version: Version) -> Version:
        there = self._topics.get(topic, {}).get(subscriber)
        what = f"subscription {subscriber} of {topic}"
        current = None if there is None else there.version
        return next_version(what, current, version, NoSubscriptionStateError, new=False)


def _check(topic: str, subscriber: str) -> None:
    checked_name("the topic", topic)
    checked_name("the subscriber", subscriber)


class MemoryMetadata:
    """All three managers."""

    def __init__(self, schedule: Callable[[Callable[[], None]], None]) -> None:
        """Make the managers. `schedule` runs a callback soon, on the loop, in order; never at once."""
        self._answers = _Answers(schedule)
        self.ownership = MemoryOwnership(self._answers)
        self.persistence = MemoryPersistence(self._answers)
        self.subscriptions = MemorySubscriptions(self._answers)

    def flush(self, done: OnDone) -> None:
        """Answer at once: everything is durable already."""
        self._answers.give(lambda: None, done)

    def statistics(self) -> MetadataStatistics:
        """Return the counts of operations; nothing is ever written."""
        answers = self._answers
        return MetadataStatistics(answers.operations_count, answers.operations_count - answers.answered_count)

    def close(self) -> None:
        """See MetadataManagers."""
        self._answers.closed = True
