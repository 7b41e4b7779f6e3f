"""Parts of all shards of a process as one: each call goes to the shard of the name that it is about.

Brokers with one shard use that shard's parts themselves, and nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sluiceway.claims import SINK_TOPIC
from sluiceway.flow import SourceController
from sluiceway.flow.latch import Latch
from sluiceway.protocols.stomp.staging import BodyStaging
from sluiceway.queues.large import BodyError, BodyReference
from sluiceway.queues.logs.ports import GroupPlace, GroupState
from sluiceway.queues.logs.producers import LogKeeper, ProducerSnapshot
from sluiceway.queues.logs.table import Cabinet, Opened
from sluiceway.store.compare_and_set import OnDone, OnRead, OnWritten
from sluiceway.store.large import BodyFiles
from sluiceway.store.metadata import (
    MetadataError,
    MetadataManagers,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    Version,
    Versioned,
)
from sluiceway.store.metadata.port import OnSubscriptions, SubscriptionDataManager
from sluiceway.store.storequeue import StoreQueue

ManagersOf = Callable[[str], MetadataManagers]
"""The managers of the shard of a name."""


class Together:
    """All stores. Satisfies `sluiceway.queues.storage.StoredWork`."""

    def __init__(self, stores: Callable[[], Iterable[StoreQueue]]) -> None:
        """`stores` returns those that are open now."""
        self._stores = stores

    @property
    def accepting(self) -> bool:
        return all(store.accepting for store in self._stores())

    def when_all_saved(self, callback: Callable[[], None]) -> None:
        stores = list(self._stores())
        one_done = Latch(len(stores) + 1, callback)
        for store in stores:
            store.when_all_saved(one_done)
        one_done()


class ManyBodies:
    """Large bodies of all shards, for readers. Satisfies `sluiceway.protocols.stomp.staging.Bodies`."""

    def __init__(self, files: Callable[[], Iterable[BodyFiles]]) -> None:
        """`files` returns those that are open now."""
        self._files = files

    @property
    def references_count(self) -> int:
        return sum([files.references_count for files in self._files()])

    def begin(
        self, length_bytes: int, *, durable: bool, source: SourceController, failed: Callable[[BodyError], None]
    ) -> BodyStaging:
        raise AssertionError("a body is begun in its shard")

    def read(
        self, body: BodyReference, offset: int, size_bytes: int, done: Callable[[bytes | Exception], None]
    ) -> None:
        assert isinstance(body.keeper, BodyFiles), "it keeps the file of the body"
        body.keeper.read(body, offset, size_bytes, done)


class Cabinets:
    """Folders of logs. Satisfies `sluiceway.queues.logs.table.Cabinet`."""

    def __init__(self, cabinet_of: Callable[[str], Cabinet]) -> None:
        self._cabinet_of = cabinet_of

    def names(self) -> list[str]:
        raise AssertionError("each shard is asked for its own")

    def open(self, name: str) -> Opened:
        return self._cabinet_of(name).open(name)

    def begin(self, name: str) -> Opened:
        return self._cabinet_of(name).begin(name)

    def take_away(self, name: str) -> None:
        self._cabinet_of(name).take_away(name)

    def remove(self, name: str) -> None:
        self._cabinet_of(name).remove(name)


class Places:
    """Groups and producers of logs. Satisfies `sluiceway.queues.logs.producers.LogKeeper`."""

    def __init__(self, keeper_of: Callable[[str], LogKeeper]) -> None:
        self._keeper_of = keeper_of

    def place(self, log: str, group: str, state: Callable[[], GroupState]) -> GroupPlace:
        return self._keeper_of(log).place(log, group, state)

    def create(self, log: str, group: str, place: GroupPlace, done: Callable[[Exception | None], None]) -> None:
        self._keeper_of(log).create(log, group, place, done)

    def delete(self, log: str, group: str, done: Callable[[Exception | None], None]) -> None:
        self._keeper_of(log).delete(log, group, done)

    def save_producers(self, log: str, snapshot: ProducerSnapshot, done: Callable[[], None]) -> None:
        self._keeper_of(log).save_producers(log, snapshot, done)

    def forget_producers(self, log: str) -> None:
        self._keeper_of(log).forget_producers(log)


class Metadata:
    """Metadata of subscriptions. A topic is in the shard of its name; of sinks each query is in that of its own."""

    def __init__(self, managers_of: ManagersOf, everyone: Callable[[], Iterable[MetadataManagers]]) -> None:
        """`everyone` returns the managers of all open shards."""
        self.subscriptions: SubscriptionDataManager = _Subscriptions(managers_of, everyone)


class _Subscriptions:
    """Satisfies `sluiceway.store.metadata.SubscriptionDataManager`."""

    is_partial_update_supported = True

    def __init__(self, managers_of: ManagersOf, everyone: Callable[[], Iterable[MetadataManagers]]) -> None:
        self._managers_of = managers_of
        self._everyone = everyone

    def _at(self, topic: str, subscriber: str) -> SubscriptionDataManager:
        return self._managers_of(subscriber if topic == SINK_TOPIC else topic).subscriptions

    def create(
        self, topic: str, subscriber: str, data: SubscriptionData, done: OnWritten, *, durable: bool = True
    ) -> None:
        self._at(topic, subscriber).create(topic, subscriber, data, done, durable=durable)

    def read(self, topic: str, subscriber: str, done: OnRead[SubscriptionData]) -> None:
        self._at(topic, subscriber).read(topic, subscriber, done)

    def read_subscriptions(self, topic: str, done: OnSubscriptions) -> None:
        if topic != SINK_TOPIC:
            self._managers_of(topic).subscriptions.read_subscriptions(topic, done)
            return
        managers = list(self._everyone())
        if not managers:
            done({})
            return
        found: dict[str, Versioned[SubscriptionData]] = {}
        errors: list[MetadataError] = []
        one_done = Latch(len(managers), lambda: done(errors[0] if errors else found))

        def read(result: Mapping[str, Versioned[SubscriptionData]] | MetadataError) -> None:
            if isinstance(result, MetadataError):
                errors.append(result)
            else:
                found.update(result)
            one_done()

        for each in managers:
            each.subscriptions.read_subscriptions(topic, read)

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
        self._at(topic, subscriber).replace(topic, subscriber, data, version, done, durable=durable)

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
        self._at(topic, subscriber).update_state(topic, subscriber, state, version, done, durable=durable)

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
        self._at(topic, subscriber).update_preferences(topic, subscriber, preferences, version, done, durable=durable)

    def delete(self, topic: str, subscriber: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        self._at(topic, subscriber).delete(topic, subscriber, version, done, durable=durable)
