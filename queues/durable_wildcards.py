"""Durable subscriptions to wildcards: a reader in each topic that matches, made with the topic.

Such a subscription has one record, as any other, and under its id a reader in each of its topics: those that were there
when it was made, and later ones from their first message on. No record names these topics. With the first message of a
topic the places of all its readers are written in one batch, so after a crash each topic has its messages with their
readers, or neither.

While no consumer is attached it is not known which user will come, and all new topics are kept for it. A consumer that
comes gives up those that it may not receive from.

A topic is forgotten when it is empty and idle, though it has such readers: there is nothing that they have yet to read.
When it comes back, so do they.

Bound: WILDCARDS_MAX subscriptions, with TOPICS_MAX topics each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, Protocol, TypeVar

from .durables import Durable, DurableLimitError
from .wildcards import Keep, PatternTrie, path_of

WILDCARDS_MAX: Final = 64
"""Durable subscriptions to wildcards: each is looked at when a topic is made that matches."""

TOPICS_MAX: Final = 1000
"""Topics of one of them at a time: a view of it adds up their backlogs."""


class Covered(Protocol):
    """A topic."""

    @property
    def passing_ids(self) -> set[int]:
        """Ids of the durable subscriptions to wildcards that have readers in it."""


TopicT = TypeVar("TopicT", bound=Covered)


class Reading(Protocol):
    """A consumer that reads as a durable subscription to a wildcard."""

    admits: Callable[[str], bool] | None


class DurablePatternError(Exception):
    """Error of a durable subscription to a wildcard where there can't be one."""

    code = "not-durable"


class DurableWildcards(Generic[TopicT]):
    """Durable subscriptions to wildcards, with their topics and consumers."""

    __slots__ = ("_consumers", "_patterns", "_topics")

    def __init__(self, keep: Keep) -> None:
        self._patterns: PatternTrie[Durable] = PatternTrie(keep)
        self._topics: dict[Durable, dict[TopicT, None]] = {}
        self._consumers: dict[Durable, dict[Reading, None]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def check_new(self) -> None:
        """Raise DurableLimitError if there can't be one more."""
        if len(self._topics) >= WILDCARDS_MAX:
            raise DurableLimitError(
                f"there are {WILDCARDS_MAX} durable subscriptions to wildcards already: remove some, or name topics"
            )

    def check(self, durables: Iterable[Durable], topic: str) -> None:
        """Raise DurableLimitError if one of these can't have one more topic."""
        for durable in durables:
            if len(self._topics[durable]) >= TOPICS_MAX:
                raise DurableLimitError(
                    f"durable subscription {durable.label} has {TOPICS_MAX} topics already, and {topic} would be one "
                    f"more: those that are empty and idle are forgotten, others need a narrower wildcard"
                )

    def add(self, durable: Durable) -> None:
        """Add a durable subscription. Its topics are added by `cover`."""
        self._topics[durable] = {}
        self._consumers[durable] = {}
        self._patterns.add(path_of(durable.destination), durable)

    def discard(self, durable: Durable) -> Collection[TopicT]:
        """Forget a durable subscription. Returns its topics."""
        self._patterns.discard(path_of(durable.destination), durable)
        self._consumers.pop(durable, None)
        topics = self._topics.pop(durable, {})
        for topic in topics:
            topic.passing_ids.discard(durable.durable_id)
        return topics

    def topics(self, durable: Durable) -> Collection[TopicT]:
        """Return the topics in which it has readers. A live view."""
        return self._topics.get(durable, {})

    def wanting(self, topic: str) -> list[Durable]:
        """Return those that a new topic is for: they match, and a consumer may receive from it, or none is there.
        O(levels of all that agree with it).
        """
        found = [durable for durable in self._patterns.matching(path_of(topic)) if durable is not None]
        return [durable for durable in found if not self._consumers[durable] or self.is_admitted(durable, topic)]

    def is_admitted(self, durable: Durable, topic: str) -> bool:
        """Return whether a consumer that is attached now may receive from a topic."""
        return any(each.admits is None or each.admits(topic) for each in self._consumers[durable])

    def cover(self, durable: Durable, topic: TopicT) -> None:
        """Note that it has readers in a topic."""
        self._topics[durable][topic] = None
        topic.passing_ids.add(durable.durable_id)

    def leave(self, durable: Durable, topic: TopicT) -> None:
        """Note that it has no readers there any more."""
        self._topics[durable].pop(topic, None)
        topic.passing_ids.discard(durable.durable_id)

    def forget(self, topic: TopicT) -> None:
        """Forget a topic that is deleted."""
        if topic.passing_ids:
            for topics in self._topics.values():
                topics.pop(topic, None)

    def joined(self, durable: Durable, consumer: Reading) -> None:
        """Note that a consumer reads for it."""
        self._consumers[durable][consumer] = None

    def left(self, durable: Durable, consumer: Reading) -> None:
        """Note that a consumer reads no more."""
        if durable in self._consumers:
            self._consumers[durable].pop(consumer, None)
