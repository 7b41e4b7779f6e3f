"""Metadata records for the tools: faults, and export and import as lines.

Versions are not exported: an import begins anew. Existing records are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .. import keys
from ..durables import is_durable
from ..engine import Change, Engine, put
from ..keys import StoreFormatError
from ..metadata.damage import TOPICS, DamageSearch, MetadataDamage
from ..metadata.port import checked_name
from ..metadata.records import (
    HubInfo,
    PageRange,
    PageRanges,
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
from .faults import StoreFault
from .lines import ExportFormatError, OwnerLine, PageRangesLine, SubscriptionDataLine

MetadataLine = OwnerLine | PageRangesLine | SubscriptionDataLine


def metadata_faults(search: DamageSearch) -> Iterator[StoreFault]:
    """Yield the faults, each with its repair. Raises EngineError."""
    for damage in search.found():
        yield _fault(damage)


def _fault(damage: MetadataDamage) -> StoreFault:
    aside = () if damage.value is None else ((f"{damage.kind}-{damage.key.hex()}", damage.value),)
    mend = f"made again: {damage.effect}" if damage.value is None else f"moved to quarantine: {damage.effect}"
    return StoreFault(damage.kind, damage.where, damage.what, mend, changes=damage.changes, aside=aside)


# ---------------------------------------------------------------------- out


def metadata_lines(
    engine: Engine, wanted: Callable[[str], bool], left_out: Callable[[str], None]
) -> Iterator[MetadataLine]:
    """Yield all records of wanted topics, except durable subscriptions, which have lines of their own; `left_out` gets
    those that can't be read. Raises EngineError.
    """
    for family in (keys.OWNER, keys.PAGE_RANGES):
        for key, value in engine.iterate(*keys.family_range(family)):
            try:
                topic = keys.parse_topic_key(key)
                line = _topic_line(topic, family, value)
            except StoreFormatError as error:
                left_out(f"record {key.hex()}: {error}")
                continue
            if wanted(topic):
                yield line
    for key, value in engine.iterate(*keys.family_range(keys.SUBSCRIPTION)):
        try:
            topic, subscriber = keys.parse_subscription_key(key)
            if not wanted(topic):
                continue
            state, _version = decode_subscription_state(value)
        except StoreFormatError as error:
            left_out(f"record {key.hex()}: {error}")
            continue
        preferences = SubscriptionPreferences()
        stored = engine.get(keys.subscription_key(keys.PREFERENCES, topic, subscriber))
        try:
            if stored is None:
                raise StoreFormatError("they are missing")
            preferences = decode_preferences(stored)
        except StoreFormatError as error:
            left_out(f"the preferences of subscription {subscriber} of {topic}: {error}")
            if topic.encode().startswith(TOPICS):
                continue  # a durable subscription is lost without them
        if is_durable(preferences):
            continue
        settled = tuple((start, end - 1) for start, end in state.settled)
        yield SubscriptionDataLine(topic, subscriber, dict(preferences.values), state.front, settled)


def _topic_line(topic: str, family: bytes, value: bytes) -> MetadataLine:
    if family == keys.OWNER:
        owner, _version = decode_owner(value)
        return OwnerLine(topic, owner.host, owner.port, owner.started_at_ms)
    ranges, _version = decode_page_ranges(value)
    return PageRangesLine(topic, tuple((one.first_index, one.end_index, one.location) for one in ranges))


# ---------------------------------------------------------------------- in


class MetadataImport:
    """Import of metadata lines, with counts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._taken: set[bytes] = set()
        self.added_count = self.there_count = 0

    def take(self, number: int, line: MetadataLine) -> list[Change]:
        """Return the changes for the `number`th line; none if the record exists.

        Raises ExportFormatError for values that can't be stored, or a second line for one record, and EngineError.
        """
        try:
            changes = self._changes(line)
        except (ValueError, StoreFormatError) as error:
            raise ExportFormatError(f"line {number}: {error}") from error
        key = changes[-1][1]
        if key in self._taken:
            raise ExportFormatError(f"line {number}: a second line for the same metadata of {line.topic}")
        self._taken.add(key)
        if self._engine.get(key) is not None:
            self.there_count += 1
            return []
        self.added_count += 1
        return changes

    def _changes(self, line: MetadataLine) -> list[Change]:
        """Return the changes; the record that decides whether the entry exists comes last."""
        topic = checked_name("the topic", line.topic)
        match line:
            case OwnerLine():
                owner = HubInfo(line.host, line.port, line.started_at_ms)
                return [put(keys.topic_key(keys.OWNER, topic), encode_owner(owner, 0))]
            case PageRangesLine():
                ranges = PageRanges(PageRange(*one) for one in line.ranges)
                return [put(keys.topic_key(keys.PAGE_RANGES, topic), encode_page_ranges(ranges, 0))]
            case SubscriptionDataLine():
                subscriber = checked_name("the subscriber", line.subscriber)
                state = SubscriptionState(line.front, ((first, last + 1) for first, last in line.settled))
                preferences = encode_preferences(SubscriptionPreferences(line.preferences))
                return [
                    put(keys.subscription_key(keys.PREFERENCES, topic, subscriber), preferences),
                    put(
                        keys.subscription_key(keys.SUBSCRIPTION, topic, subscriber),
                        encode_subscription_state(state, 0),
                    ),
                ]
