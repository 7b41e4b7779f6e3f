"""Records of durable subscriptions of topics: with the metadata managers, as the groups of logs are.

The definition of a subscription (store/durables.py) is kept here; the places of its readers are kept with the messages.
Only the broker writes the records, so it does not compare versions.
"""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.log_service import HasSubscriptions
from sluiceway.queues.durables import Done, Durable, subscriber_of
from sluiceway.store.durables import preferences_of
from sluiceway.store.metadata import (
    NoSubscriptionStateError,
    SubscriptionData,
    SubscriptionPreferences,
    Version,
)
from sluiceway.store.states import DurableRecord


class DurableRecords:
    """Satisfies `sluiceway.queues.durables.DurableKeeper`."""

    def __init__(self, managers: HasSubscriptions) -> None:
        self._subscriptions = managers.subscriptions
        self._closed = False

    def keep(self, durable: Durable, done: Done, *, again: bool) -> None:
        if self._closed:
            return
        topic, subscriber = _place(durable)
        preferences = _preferences(durable)
        if again:  # behind a failure it may be there or not: whatever it is, it is what is said now
            self._subscriptions.create(topic, subscriber, SubscriptionData(preferences), lambda _result: None)
            self._subscriptions.update_preferences(topic, subscriber, preferences, Version.ANY, _answer(done))
        else:
            self._subscriptions.create(topic, subscriber, SubscriptionData(preferences), _answer(done))

    def seen(self, durable: Durable, done: Done) -> None:
        if not self._closed:
            self._subscriptions.update_preferences(
                *_place(durable), _preferences(durable), Version.ANY, _answer_if_there(done), durable=False
            )

    def forget(self, durable: Durable, done: Done) -> None:
        if not self._closed:
            self._subscriptions.delete(*_place(durable), Version.ANY, _answer_if_there(done))

    def close(self) -> None:
        """Stop with the broker: nothing more is written, and no callback is called. Before the managers are closed."""
        self._closed = True


def _answer(done: Done) -> Callable[[object], None]:
    return lambda result: done(result if isinstance(result, Exception) else None)


def _answer_if_there(done: Done) -> Callable[[object], None]:
    """Call back also where there was nothing to forget."""
    return lambda result: _answer(done)(None if isinstance(result, NoSubscriptionStateError) else result)


def _place(durable: Durable) -> tuple[str, str]:
    return durable.destination, subscriber_of(durable.client_id, durable.name)


def _preferences(durable: Durable) -> SubscriptionPreferences:
    record = DurableRecord(
        client_id=durable.client_id,
        name=durable.name,
        destination=durable.destination,
        selector=durable.selector,
        created_ms=durable.created_ms,
        last_seen_ms=durable.last_seen_ms,
    )
    return preferences_of(durable.durable_id, record)
