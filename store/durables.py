"""Durable subscriptions as subscriptions of the metadata: their preferences.

The SubscriptionDataManager keeps them (topic: its destination; subscriber: client id and name), apart from their
places, which are written with the messages of their topics (cursors, family f) and never here. Earlier versions had a
record of its own for each (family d): the next start moves it over, in one batch.

Code that reads a store without a broker (recovery, check, export, import) finds them through this module.

Source: issue 4 item 3; seed 003 (SubscriptionPreferences). Normative: FORMAT.md, "Metadata".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ..queues.durables import subscriber_of
from . import keys
from .engine import Change, Engine, delete, put
from .keys import StoreFormatError
from .metadata.records import (
    SubscriptionPreferences,
    SubscriptionState,
    decode_preferences,
    encode_preferences,
    encode_subscription_state,
)
from .states import DurableRecord, StateError

KIND: Final = "durable subscription"
"""The preference `kind` of one."""

OnBad = Callable[[bytes, bytes, StoreFormatError], None]
"""Callback with key, value and error."""

_U32_END: Final = 2**32
_U64_END: Final = 2**64


def is_durable(preferences: SubscriptionPreferences) -> bool:
    """Return whether the preferences are those of a durable subscription."""
    return preferences.values.get("kind") == KIND


def preferences_of(durable_id: int, record: DurableRecord) -> SubscriptionPreferences:
    """Return the preferences of a durable subscription. They leave out the destination: that is the topic."""
    values = {
        "kind": KIND,
        "durable_id": str(durable_id),
        "client_id": record.client_id,
        "name": record.name,
        "created_ms": str(record.created_ms),
        "last_seen_ms": str(record.last_seen_ms),
    }
    if record.selector:
        values["selector"] = record.selector
    return SubscriptionPreferences(values)


def durable_of(destination: str, preferences: SubscriptionPreferences) -> tuple[int, DurableRecord]:
    """Return the id and the record that `preferences_of` was given. Raises StateError for anything else."""
    values = preferences.values
    if not is_durable(preferences) or "client_id" not in values or "name" not in values:
        raise StateError(f"durable subscription of {destination}: its preferences do not say whose it is")
    return _number(destination, values.get("durable_id", ""), _U32_END), DurableRecord(
        client_id=values["client_id"],
        name=values["name"],
        destination=destination,
        selector=values.get("selector", ""),
        created_ms=_number(destination, values.get("created_ms", ""), _U64_END),
        last_seen_ms=_number(destination, values.get("last_seen_ms", ""), _U64_END),
    )


def _number(destination: str, digits: str, end: int) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and int(digits) < end):
        raise StateError(f"durable subscription of {destination}: {digits[:40]!r} in its preferences is no such number")
    return int(digits)


def durable_changes(durable_id: int, record: DurableRecord) -> list[Change]:
    """Return the changes that write a new durable subscription. Raises StateError for names that can't be in a key."""
    try:
        subscriber = subscriber_of(record.client_id, record.name)
        preferences = encode_preferences(preferences_of(durable_id, record))
    except ValueError as error:
        raise StateError(str(error)) from error
    return [
        put(keys.subscription_key(keys.PREFERENCES, record.destination, subscriber), preferences),
        put(
            keys.subscription_key(keys.SUBSCRIPTION, record.destination, subscriber),
            encode_subscription_state(SubscriptionState(), 0),
        ),
    ]


def removal(preferences_key: bytes) -> tuple[Change, ...]:
    """Return the changes that delete both records of a subscription, given the key of its preferences."""
    return delete(preferences_key), delete(keys.SUBSCRIPTION + preferences_key[1:])


def kept_durables(engine: Engine, on_bad: OnBad) -> Iterator[tuple[int, DurableRecord]]:
    """Yield the durable subscriptions in the metadata. `on_bad` is called for records with missing or wrong fields;
    `DamageSearch` finds records that can't be decoded at all. Raises EngineError.
    """
    for key, value in engine.iterate(*keys.family_range(keys.PREFERENCES)):
        try:
            topic, _subscriber = keys.parse_subscription_key(key)
            preferences = decode_preferences(value)
        except StoreFormatError:
            continue
        if not is_durable(preferences):
            continue
        try:
            yield durable_of(topic, preferences)
        except StateError as error:
            on_bad(key, value, error)
