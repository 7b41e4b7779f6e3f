"""Metadata over records by compare-and-set, such as those that the hubs of a cluster share: one record for each owner,
location or subscription.

    /owners/TOPIC, /locations/TOPIC, /subscriptions/TOPIC/SUBSCRIBER

Names are percent-encoded. A subscription is one record of both parts, so an update of one part reads and writes the
whole. Changes are always durable: records are on disk when they are answered. Operations run one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from struct import Struct
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from ..compare_and_set import (
    BadVersionError,
    MetadataError,
    MetadataFailedError,
    NoRecordError,
    OnDone,
    OnRead,
    OnWritten,
    Records,
    Version,
    Versioned,
    checked_value,
)
from ..keys import StoreFormatError
from .port import (
    MetadataClosedError,
    MetadataStatistics,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    OnSubscriptions,
    SubscriptionStateExistsError,
    checked_name,
)
from .records import (
    HubInfo,
    PageRanges,
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

_LENGTH: Final = Struct("<I")

Step = Callable[[Callable[[Any], None]], None]
"""Request to the records, waiting for its `done`."""
Steps = Generator[Step, Any, T]
"""Operation: yields requests, is sent their answers, returns its own or raises a MetadataError."""


class _Line:
    """Operations, one after the other."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self._waiting: deque[tuple[Steps[Any], Callable[[Any], None]]] = deque()
        self._operations_count = 0
        self._failures_count = 0
        self._closed = False

    def give(self, steps: Steps[T], done: Callable[[T | MetadataError], None]) -> None:
        """Carry out an operation behind earlier ones. Raises MetadataClosedError."""
        if self._closed:
            raise MetadataClosedError("the metadata managers are closed: nothing can be read or written any more")
        self._operations_count += 1
        self._waiting.append((steps, done))
        if len(self._waiting) == 1:
            self._go_on(steps, None)

    def flush(self) -> Steps[None]:
        """Ask for something that changes nothing: its answer comes behind the others."""
        yield partial(self.records.children, "/owners")

    def close(self) -> None:
        self._closed = True

    def statistics(self) -> MetadataStatistics:
        return MetadataStatistics(
            operations_count=self._operations_count,
            waiting_count=len(self._waiting),
            failures_count=self._failures_count,
        )

    def _go_on(self, steps: Steps[Any], answer: Any) -> None:
        """Send the answer of a request into its operation, and make the next request."""
        result: Any
        try:
            request = steps.send(answer)
        except StopIteration as ended:
            result = ended.value
        except MetadataError as error:
            result = error
        except (StoreFormatError, ValueError) as error:
            result = MetadataFailedError(f"the record can't be read or written: {error}")
        else:
            request(partial(self._go_on, steps))
            return
        _steps, done = self._waiting[0]
        if isinstance(result, MetadataFailedError):
            self._failures_count += 1
        self._waiting.popleft()
        if self._waiting:
            self._go_on(self._waiting[0][0], None)
        done(result)

    # Parts of operations.

    def read(self, path: str, decode: Callable[[bytes], T]) -> Steps[Versioned[T] | None]:
        """Read a value."""
        found: Versioned[bytes] | MetadataError | None = yield partial(self.records.read, path)
        if isinstance(found, MetadataError):
            raise found
        return None if found is None else Versioned(decode(found.value), found.version)

    def write(
        self, path: str, value: bytes, version: Version, what: str, none_error: type[MetadataError]
    ) -> Steps[Version]:
        """Write a value."""
        result: Version | MetadataError = yield partial(self.records.write, path, checked_value(value), version)
        if isinstance(result, MetadataError):
            raise _named(result, what, none_error)
        return result

    def delete(self, path: str, version: Version, what: str, none_error: type[MetadataError]) -> Steps[None]:
        """Delete a value."""
        error: MetadataError | None = yield partial(self.records.delete, path, version)
        if error is not None:
            raise _named(error, what, none_error)


def _named(error: MetadataError, what: str, none_error: type[MetadataError]) -> MetadataError:
    """Return the error of a change as its manager says it."""
    if isinstance(error, BadVersionError):
        return BadVersionError(what, given=error.given, current=error.current)
    return none_error(f"there is no {what}") if isinstance(error, NoRecordError) else error


def _part(what: str, name: str) -> str:
    """Return a name as part of a path."""
    quoted = quote(checked_name(what, name), safe=" @:,;=+()")
    return quoted.replace(".", "%2E") if name in (".", "..") else quoted


class RecordedOwnership:
    """TopicOwnershipManager."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    def read(self, topic: str, done: OnRead[HubInfo]) -> None:
        self._line.give(self._line.read(_owner_path(topic), _first(decode_owner)), done)

    def write(self, topic: str, owner: HubInfo, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        path, value = _owner_path(topic), encode_owner(owner, 0)
        self._line.give(self._line.write(path, value, version, f"owner of {topic}", NoTopicOwnerInfoError), done)

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        what = f"owner of {topic}"
        self._line.give(self._line.delete(_owner_path(topic), version, what, NoTopicOwnerInfoError), done)


class RecordedPersistence:
    """TopicPersistenceManager."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    def read(self, topic: str, done: OnRead[PageRanges]) -> None:
        self._line.give(self._line.read(_location_path(topic), _first(decode_page_ranges)), done)

    def write(self, topic: str, ranges: PageRanges, version: Version, done: OnWritten, *, durable: bool = True) -> None:
        path, value = _location_path(topic), encode_page_ranges(ranges, 0)
        what = f"persistence info of {topic}"
        self._line.give(self._line.write(path, value, version, what, NoTopicPersistenceInfoError), done)

    def delete(self, topic: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        what = f"persistence info of {topic}"
        self._line.give(self._line.delete(_location_path(topic), version, what, NoTopicPersistenceInfoError), done)


class RecordedSubscriptions:
    """SubscriptionDataManager."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    @property
    def is_partial_update_supported(self) -> bool:
        return False

    def create(
        self, topic: str, subscriber: str, data: SubscriptionData, done: OnWritten, *, durable: bool = True
    ) -> None:
        path = _subscription_path(topic, subscriber)

        def create() -> Steps[Version]:
            try:
                return (yield from self._write(path, data, Version.NEW, subscriber, topic))
            except BadVersionError:
                raise SubscriptionStateExistsError(f"there is a subscription {subscriber} of {topic} already") from None

        self._line.give(create(), done)

    def read(self, topic: str, subscriber: str, done: OnRead[SubscriptionData]) -> None:
        self._line.give(self._line.read(_subscription_path(topic, subscriber), _subscription_of), done)

    def read_subscriptions(self, topic: str, done: OnSubscriptions) -> None:
        folder = f"/subscriptions/{_part('the topic', topic)}"

        def read() -> Steps[Mapping[str, Versioned[SubscriptionData]]]:
            names = yield partial(self._line.records.children, folder)
            if isinstance(names, MetadataError):
                raise names
            found = {}
            for name in sorted(names, key=unquote):
                one = yield from self._line.read(f"{folder}/{name}", _subscription_of)
                if one is not None:
                    found[unquote(name)] = one
            return found

        self._line.give(read(), done)

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
        self._update(topic, subscriber, data.preferences, data.state, version, done)

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
        self._update(topic, subscriber, None, state, version, done)

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
        self._update(topic, subscriber, preferences, None, version, done)

    def delete(self, topic: str, subscriber: str, version: Version, done: OnDone, *, durable: bool = True) -> None:
        path, what = _subscription_path(topic, subscriber), f"subscription {subscriber} of {topic}"
        self._line.give(self._line.delete(path, version, what, NoSubscriptionStateError), done)

    def _update(
        self,
        topic: str,
        subscriber: str,
        preferences: SubscriptionPreferences | None,
        state: SubscriptionState | None,
        version: Version,
        done: OnWritten,
    ) -> None:
        """Change a subscription; a part that is None stays."""
        path = _subscription_path(topic, subscriber)
        what = f"subscription {subscriber} of {topic}"

        def update() -> Steps[Version]:
            while True:
                there = yield from self._line.read(path, _subscription_of)
                if there is None:
                    raise NoSubscriptionStateError(f"there is no {what}")
                if version not in (there.version, Version.ANY):
                    raise BadVersionError(what, given=version, current=there.version)
                data = SubscriptionData(
                    there.value.preferences if preferences is None else preferences,
                    there.value.state if state is None else state,
                )
                try:
                    return (yield from self._write(path, data, there.version, subscriber, topic))
                except BadVersionError:
                    if version != Version.ANY:
                        raise

        self._line.give(update(), done)

    def _write(
        self, path: str, data: SubscriptionData, version: Version, subscriber: str, topic: str
    ) -> Steps[Version]:
        what = f"subscription {subscriber} of {topic}"
        return self._line.write(path, _subscription_value(data), version, what, NoSubscriptionStateError)


class RecordedMetadata:
    """The three managers, over records."""

    def __init__(self, records: Records) -> None:
        self._line = _Line(records)
        self.ownership = RecordedOwnership(self._line)
        self.persistence = RecordedPersistence(self._line)
        self.subscriptions = RecordedSubscriptions(self._line)

    def flush(self, done: OnDone) -> None:
        """See MetadataManagers."""
        self._line.give(self._line.flush(), done)

    def statistics(self) -> MetadataStatistics:
        """Return the counts."""
        return self._line.statistics()

    def close(self) -> None:
        """Refuse further operations; earlier ones are carried out and answered."""
        self._line.close()


def _owner_path(topic: str) -> str:
    return f"/owners/{_part('the topic', topic)}"


def _location_path(topic: str) -> str:
    return f"/locations/{_part('the topic', topic)}"


def _subscription_path(topic: str, subscriber: str) -> str:
    return f"/subscriptions/{_part('the topic', topic)}/{_part('the subscriber', subscriber)}"


def _first(decode: Callable[[bytes], tuple[T, int]]) -> Callable[[bytes], T]:
    """Return a decoder without the version in the value: the record has its own."""
    return lambda value: decode(value)[0]


def _subscription_value(data: SubscriptionData) -> bytes:
    preferences = encode_preferences(data.preferences)
    return _LENGTH.pack(len(preferences)) + preferences + encode_subscription_state(data.state, 0)


def _subscription_of(value: bytes) -> SubscriptionData:
    if len(value) < _LENGTH.size:
        raise StoreFormatError(f"a subscription of {len(value)} bytes")
    end = _LENGTH.size + _LENGTH.unpack_from(value)[0]
    state, _version = decode_subscription_state(value[end:])
    return SubscriptionData(decode_preferences(value[_LENGTH.size : end]), state)
