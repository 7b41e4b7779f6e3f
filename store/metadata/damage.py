"""Unreadable metadata records and their repairs: for the start of a broker, which continues all the same, and for the
survey of `sluiceway store check` and `repair`.

Nothing is guessed: the broker that serves a topic writes its owner and location anew; a subscription whose state is
lost begins with the oldest record, so that nothing is missed; one whose preferences are lost has none. A durable
subscription of a topic consists of its preferences only: without them it is lost.

Bound: one short entry for each subscription.

Source: FORMAT.md, "MetadataDamage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from ...queues.names import HOST_SIGN
from .. import keys
from ..engine import Change, Engine, delete, put
from ..keys import KeyFormatError, StoreFormatError
from .records import (
    SubscriptionPreferences,
    SubscriptionState,
    decode_owner,
    decode_page_ranges,
    decode_preferences,
    decode_subscription_state,
    encode_preferences,
    encode_subscription_state,
)

NO_PREFERENCES: Final = encode_preferences(SubscriptionPreferences())
FROM_THE_OLDEST: Final = encode_subscription_state(SubscriptionState(), 0)

TOPICS: Final = (b"/topic/", HOST_SIGN.encode())
"""Prefixes of the topics of durable subscriptions: in virtual hosts there are no logs."""


@attrs.frozen
class MetadataDamage:
    """One damaged or missing record."""

    kind: str
    where: str
    what: str
    effect: str
    """Effect of the repair."""
    key: bytes
    value: bytes | None
    """Value to keep before the repair; None: missing."""
    changes: tuple[Change, ...]
    """Changes of the repair."""


class DamageSearch:
    """One pass over all metadata records. Run `found` to its end; then the count is complete."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.subscriptions_count = 0
        """Number of subscriptions without durable ones."""
        self._lost: set[bytes] = set()
        """Keys, without their family, of lost durable subscriptions: both records go."""

    def found(self) -> Iterator[MetadataDamage]:
        """Yield all damage. Raises EngineError where the store can't be read on."""
        yield from self._topics(keys.OWNER, "owner", decode_owner, "the topic has no owner")
        yield from self._topics(
            keys.PAGE_RANGES, "page-ranges", decode_page_ranges, "the place of the topic is unknown until it is written"
        )
        with_preferences: set[bytes] = set()
        with_state: set[bytes] = set()
        yield from self._parts(
            keys.PREFERENCES,
            "preferences",
            decode_preferences,
            "it has none any more",
            NO_PREFERENCES,
            with_preferences,
        )
        yield from self._parts(
            keys.SUBSCRIPTION,
            "subscription",
            decode_subscription_state,
            "it begins with the oldest record there is",
            FROM_THE_OLDEST,
            with_state,
        )
        self.subscriptions_count = sum(not _is_durable(rest) for rest in with_state | with_preferences)
        for rest in sorted(with_preferences - with_state - self._lost):
            yield _missing(
                keys.SUBSCRIPTION + rest,
                "subscription",
                "its state",
                "it begins with the oldest record there is",
                FROM_THE_OLDEST,
            )
        for rest in sorted(with_state - with_preferences - self._lost):
            yield _missing(
                keys.PREFERENCES + rest, "preferences", "its preferences", "it has none any more", NO_PREFERENCES
            )

    def _topics(
        self, family: bytes, kind: str, decode: Callable[[bytes], object], effect: str
    ) -> Iterator[MetadataDamage]:
        for key, value in self._engine.iterate(*keys.family_range(family)):
            try:
                topic = keys.parse_topic_key(key)
            except KeyFormatError as error:
                yield _bad_key(key, value, error)
                continue
            try:
                decode(value)
            except StoreFormatError as error:
                yield MetadataDamage(f"corrupt-{kind}", topic, str(error), effect, key, value, (delete(key),))

    def _parts(
        self,
        family: bytes,
        kind: str,
        decode: Callable[[bytes], object],
        effect: str,
        instead: bytes,
        seen: set[bytes],
    ) -> Iterator[MetadataDamage]:
        for key, value in self._engine.iterate(*keys.family_range(family)):
            try:
                topic, subscriber = keys.parse_subscription_key(key)
            except KeyFormatError as error:
                yield _bad_key(key, value, error)
                continue
            seen.add(key[1:])
            if key[1:] in self._lost:
                continue
            try:
                decode(value)
            except StoreFormatError as error:
                where = f"subscription {subscriber} of {topic}"
                effect, changes = _mend(key, effect, instead)
                if family == keys.PREFERENCES and _is_durable(key[1:]):
                    self._lost.add(key[1:])
                yield MetadataDamage(f"corrupt-{kind}", where, str(error), effect, key, value, changes)


def _is_durable(rest: bytes) -> bool:
    """Return whether this key, without its family, is of a durable subscription of a topic: others are of logs."""
    return rest[2:].startswith(TOPICS)


def _mend(key: bytes, effect: str, instead: bytes) -> tuple[str, tuple[Change, ...]]:
    """Return effect and changes: the given ones, except for durable subscriptions."""
    if not _is_durable(key[1:]):
        return effect, (put(key, instead),)
    if key[:1] == keys.PREFERENCES:
        return "a durable subscription is lost", (delete(key), delete(keys.SUBSCRIPTION + key[1:]))
    return "none: it says nothing of a durable subscription", (put(key, instead),)


def _missing(key: bytes, kind: str, part: str, effect: str, instead: bytes) -> MetadataDamage:
    topic, subscriber = keys.parse_subscription_key(key)
    where = f"subscription {subscriber} of {topic}"
    effect, changes = _mend(key, effect, instead)
    return MetadataDamage(f"missing-{kind}", where, f"{part} is not there", effect, key, None, changes)


def _bad_key(key: bytes, value: bytes, error: KeyFormatError) -> MetadataDamage:
    return MetadataDamage(
        "bad-key", f"record {key[:32].hex()}", str(error), "nothing reads it", key, value, (delete(key),)
    )
