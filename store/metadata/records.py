"""Values of the metadata managers, and their bytes in a store.

Values are checked when they are made, never when they are written: every value can be written. All of them are
immutable, so they may go to another thread as they are.

Invariants: every `decode_*` returns the argument of its `encode_*`, or raises MetadataFormatError. Bytes behind the
known ones are of a later version and ignored.

Deliberately not here: keys (store/keys.py), versions and write permission (port.py).

Source: seed 003 (HubInfo, LedgerRanges, SubscriptionPreferences, SubscriptionState). Normative: FORMAT.md.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import chain, islice
from operator import le, lt
from struct import Struct
from struct import error as StructError
from types import MappingProxyType
from typing import Final, TypeVar, cast

import attrs

from ..keys import StoreFormatError

T = TypeVar("T")

PREFERENCES_COUNT_MAX: Final = 1_000
PREFERENCES_BYTES_MAX: Final = 64 << 10
"""Bytes of names and values together, in UTF-8. They are one record, and held in memory for each subscription."""

SETTLED_COUNT_MAX: Final = 65_536
"""Number of ranges beyond the front: a record of 1 MiB. Outstanding messages need one each at most, so consumers'
windows bound them long before.
"""

PAGE_RANGES_COUNT_MAX: Final = 65_536

TEXT_BYTES_MAX: Final = 4096
"""Bytes of a host, or of a page's location."""

OWNER_LAYOUT: Final = 1
PAGE_RANGES_LAYOUT: Final = 1
PREFERENCES_LAYOUT: Final = 1
STATE_LAYOUT: Final = 1
STATE_WITH_FAILURES_LAYOUT: Final = 2
"""Layout written only after failures: earlier versions can read all others."""

_U64_END: Final = 2**64
_OPEN: Final = _U64_END - 1
"""Marker in place of the end of an open range."""

_BIG_ENDIAN: Final = sys.byteorder == "big"

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_COUNTED: Final = Struct("<BI")
_OWNER: Final = Struct("<BQQI")
_PAGE_RANGES: Final = Struct("<BQI")
_PAGE_RANGE: Final = Struct("<QQ")
_STATE: Final = Struct("<BQQI")


class MetadataFormatError(StoreFormatError):
    """A metadata record that can't be read. The message names the record."""


def _text(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    _check_text(attribute.name, value, bytes_max=TEXT_BYTES_MAX)


def _check_text(what: str, value: str, *, bytes_max: int) -> int:
    """Return the length in bytes. Raises ValueError."""
    try:
        length_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {value!r} is no Unicode text: {error}") from error
    if length_bytes > bytes_max:
        raise ValueError(f"{what} has {length_bytes} bytes, at most {bytes_max} are allowed")
    return length_bytes


def _u64(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 0 <= value < _U64_END:
        raise ValueError(f"{attribute.name} must be from 0 to 2**64 - 1, got {value}")


def _port(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not 0 <= value < 2**16:
        raise ValueError(f"{attribute.name} must be from 0 to 65535, got {value}")


@attrs.frozen
class HubInfo:
    """A broker, as the owner of topics. Raises ValueError for invalid values."""

    host: str = attrs.field(validator=_text)
    port: int = attrs.field(validator=_port)
    started_at_ms: int = attrs.field(validator=_u64)
    """Wall time, milliseconds since the epoch: tells one run of a broker from the next at the same address."""

    @property
    def address(self) -> str:
        """host:port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class PageRange:
    """Range of a topic's records in one location. Raises ValueError for invalid values."""

    first_index: int = attrs.field(validator=_u64)
    end_index: int | None
    """Index behind the last; None: the range is being written, and its end is open."""
    location: str = attrs.field(validator=_text)
    """Folder, page file or ledger; the writer defines its meaning."""

    def __attrs_post_init__(self) -> None:
        if self.end_index is not None and not self.first_index < self.end_index < _OPEN:
            raise ValueError(f"a range of pages ends behind its first index {self.first_index}, got {self.end_index}")

    def holds(self, index: int) -> bool:
        """Return whether the record of this index is in the range."""
        return self.first_index <= index and (self.end_index is None or index < self.end_index)


def _page_ranges(ranges: Iterable[PageRange]) -> tuple[PageRange, ...]:
    return tuple(ranges)


@attrs.frozen
class PageRanges:
    """Location of the records of a topic: ranges in ascending order, the last one perhaps open. There may be gaps,
    where records were lost or removed. Raises ValueError for ranges that overlap or are too many.
    """

    ranges: tuple[PageRange, ...] = attrs.field(default=(), converter=_page_ranges)

    def __attrs_post_init__(self) -> None:
        if len(self.ranges) > PAGE_RANGES_COUNT_MAX:
            raise ValueError(f"{len(self.ranges)} ranges of pages, at most {PAGE_RANGES_COUNT_MAX} are allowed")
        end_before: int | None = 0
        for one in self.ranges:
            if end_before is None or one.first_index < end_before:
                raise ValueError(f"the range of pages from {one.first_index} begins before the one before it has ended")
            end_before = one.end_index

    def __iter__(self) -> Iterator[PageRange]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def of(self, index: int) -> PageRange | None:
        """Return the range that has this index; None: it is in a gap, or outside. O(ranges)."""
        return next((one for one in self.ranges if one.holds(index)), None)


def _preferences(values: Mapping[str, str]) -> Mapping[str, str]:
    # A copy: the caller may change the original.
    return MappingProxyType(dict(sorted(values.items())))


@attrs.frozen
class SubscriptionPreferences:
    """Preferences of a subscriber; written when it subscribes and rarely again. Names and values are text whose meaning
    the writer defines: time of creation, start position. Raises ValueError for more than PREFERENCES_COUNT_MAX or
    PREFERENCES_BYTES_MAX.
    """

    values: Mapping[str, str] = attrs.field(factory=dict, converter=_preferences)

    def __attrs_post_init__(self) -> None:
        if len(self.values) > PREFERENCES_COUNT_MAX:
            raise ValueError(f"{len(self.values)} preferences, at most {PREFERENCES_COUNT_MAX} are allowed")
        size_bytes = 0
        for name, value in self.values.items():
            size_bytes += _check_text("the name of a preference", name, bytes_max=PREFERENCES_BYTES_MAX)
            size_bytes += _check_text(f"the preference {name[:80]!r}", value, bytes_max=PREFERENCES_BYTES_MAX)
        if size_bytes > PREFERENCES_BYTES_MAX:
            raise ValueError(f"preferences of {size_bytes} bytes, at most {PREFERENCES_BYTES_MAX} are allowed")


def _failures(ranges: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return cast("tuple[tuple[int, int, int], ...]", tuple(map(tuple, ranges)))


def _settled(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return cast("tuple[tuple[int, int], ...]", tuple(map(tuple, ranges)))


def _lie_apart(front: int, settled: SequenceOf[tuple[int, int]], failures: SequenceOf[tuple[int, int, int]]) -> bool:
    """Return whether a state may have these ranges. Without loops: a group with thousands is written each second."""
    borders = [front, *chain.from_iterable(settled), _U64_END]
    if not all(map(lt, borders, islice(borders, 1, None))):
        return False
    if not failures:
        return True
    starts, ends, counts = zip(*failures, strict=True)
    return (
        all(map(lt, starts, ends))
        and all(map(le, ends, islice(starts, 1, None)))
        and (starts[0] >= 0 and ends[-1] < _U64_END)
        and 0 < min(counts) <= max(counts) < _U64_END
    )


@attrs.frozen
class SubscriptionState:
    """Consumed records of a subscription; written again and again. Raises ValueError for ranges that are not ascending,
    apart from each other and from the front, or more than SETTLED_COUNT_MAX; likewise for failures, which may touch.
    """

    front: int = attrs.field(default=0, validator=_u64)
    """Lowest index that is not settled."""
    settled: tuple[tuple[int, int], ...] = attrs.field(default=(), converter=_settled)
    """Ranges beyond the front: first index and end (the one after the last) of each."""
    handed_to: int = attrs.field(default=0, validator=_u64)
    """Index below which unsettled records may have been seen by a consumer."""
    failures: tuple[tuple[int, int, int], ...] = attrs.field(default=(), converter=_failures)
    """First index and end of failed records, and the number of failures of each."""

    def __attrs_post_init__(self) -> None:
        if max(len(self.settled), len(self.failures)) > SETTLED_COUNT_MAX:
            raise ValueError(
                f"{len(self.settled)} settled ranges and {len(self.failures)} that failed, at most {SETTLED_COUNT_MAX} "
                "of each are allowed"
            )
        if _lie_apart(self.front, self.settled, self.failures):
            return
        failed_before = 0
        for start, end, count in self.failures:
            if not (failed_before <= start < end < _U64_END and 0 < count < _U64_END):
                raise ValueError(f"{start} to {end} can't have failed {count} times behind {failed_before}")
            failed_before = end
        end_before = self.front
        for start, end in self.settled:
            if not end_before < start < end < _U64_END:
                raise ValueError(
                    f"the settled range {start} to {end} is not beyond {end_before}, where the front or the range "
                    "before it ends"
                )
            end_before = end


@attrs.frozen
class SubscriptionData:
    """Preferences and state of a subscription."""

    preferences: SubscriptionPreferences = SubscriptionPreferences()
    state: SubscriptionState = SubscriptionState()


# ---------------------------------------------------------------------- bytes


def encode_owner(owner: HubInfo, version: int) -> bytes:
    """Encode an owner; `version` is a u64 here and below."""
    host = owner.host.encode()
    return _OWNER.pack(OWNER_LAYOUT, version, owner.started_at_ms, owner.port) + _U32.pack(len(host)) + host


def decode_owner(value: bytes) -> tuple[HubInfo, int]:
    """Return owner and version. Raises MetadataFormatError, as all here do."""
    what = "owner of a topic"
    version, started_at_ms, port = _unpacked(_OWNER, value, what, OWNER_LAYOUT)
    host, _offset = _text_at(value, _OWNER.size, what)
    return _made(what, lambda: HubInfo(host, port, started_at_ms)), version


def encode_page_ranges(ranges: PageRanges, version: int) -> bytes:
    """Encode the location of a topic."""
    out = bytearray(_PAGE_RANGES.pack(PAGE_RANGES_LAYOUT, version, len(ranges)))
    for one in ranges:
        out += _PAGE_RANGE.pack(one.first_index, _OPEN if one.end_index is None else one.end_index)
        _put_text(out, one.location)
    return bytes(out)


def decode_page_ranges(value: bytes) -> tuple[PageRanges, int]:
    """Return ranges and version."""
    what = "page ranges of a topic"
    version, count = _unpacked(_PAGE_RANGES, value, what, PAGE_RANGES_LAYOUT)
    ranges: list[tuple[int, int, str]] = []
    offset = _PAGE_RANGES.size
    for _place in range(count):
        first_index, end_index = _at(_PAGE_RANGE, value, offset, what)
        location, offset = _text_at(value, offset + _PAGE_RANGE.size, what)
        ranges.append((first_index, end_index, location))

    def make() -> PageRanges:
        return PageRanges(PageRange(first, None if end == _OPEN else end, place) for first, end, place in ranges)

    return _made(what, make), version


def encode_preferences(preferences: SubscriptionPreferences) -> bytes:
    """Encode preferences. They have no version: that of the subscription is in the state's record."""
    out = bytearray(_COUNTED.pack(PREFERENCES_LAYOUT, len(preferences.values)))
    for name, text in preferences.values.items():
        _put_text(out, name)
        _put_text(out, text)
    return bytes(out)


def decode_preferences(value: bytes) -> SubscriptionPreferences:
    """Decode preferences."""
    what = "preferences of a subscription"
    (count,) = _unpacked(_COUNTED, value, what, PREFERENCES_LAYOUT)
    values: dict[str, str] = {}
    offset = _COUNTED.size
    for _place in range(count):
        name, offset = _text_at(value, offset, what)
        if name in values:
            raise MetadataFormatError(f"{what}: {name!r} is there twice")
        values[name], offset = _text_at(value, offset, what)
    return _made(what, lambda: SubscriptionPreferences(values))


def encode_subscription_state(state: SubscriptionState, version: int) -> bytes:
    """Encode a state, with the version of the whole subscription. Each range has a fixed width, unlike a cursor's: the
    record is written far more often than read, and this is one copy.
    """
    settled = state.settled
    layout = STATE_WITH_FAILURES_LAYOUT if state.failures else STATE_LAYOUT
    head = _STATE.pack(layout, version, state.front, len(settled))
    column = array("Q", chain.from_iterable(settled))
    column.append(state.handed_to)
    if state.failures:
        column.append(len(state.failures))
        column.extend(chain.from_iterable(state.failures))
    if _BIG_ENDIAN:
        column.byteswap()
    return head + column.tobytes()


def decode_subscription_state(value: bytes) -> tuple[SubscriptionState, int]:
    """Return state, and the version of the subscription."""
    what = "state of a subscription"
    has_failures = value[:1] == bytes([STATE_WITH_FAILURES_LAYOUT])
    layout = STATE_WITH_FAILURES_LAYOUT if has_failures else STATE_LAYOUT
    version, front, count = _unpacked(_STATE, value, what, layout)
    end = _STATE.size + 16 * count + 8
    if end > len(value):
        raise MetadataFormatError(f"{what}: it has {len(value)} bytes, {end} are needed for {count} ranges")
    column = array("Q", value[_STATE.size : end])
    if _BIG_ENDIAN:
        column.byteswap()
    borders = column.tolist()
    handed_to = borders.pop()
    settled = tuple(zip(borders[::2], borders[1::2], strict=True))
    failures = _failures_at(value, end, what) if has_failures else ()
    return _made(what, lambda: SubscriptionState(front, settled, handed_to, failures)), version


def _failures_at(value: bytes, offset: int, what: str) -> tuple[tuple[int, int, int], ...]:
    """Return the failures, which follow the state in the record."""
    (count,) = _at(_U64, value, offset, what)
    start = offset + _U64.size
    end = start + 24 * count
    if end > len(value):
        raise MetadataFormatError(f"{what}: it has {len(value)} bytes, {end} are needed for {count} failures")
    column = array("Q", value[start:end])
    if _BIG_ENDIAN:
        column.byteswap()
    numbers = column.tolist()
    return tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def _unpacked(layout: Struct, value: bytes, what: str, layout_number: int) -> tuple[int, ...]:
    """Return the numbers at the beginning of a record, without the layout."""
    found = _at(layout, value, 0, what)
    if found[0] != layout_number:
        raise MetadataFormatError(f"{what}: unknown layout {found[0]}: it is damaged, or of a later version")
    return found[1:]


def _at(layout: Struct, value: bytes, offset: int, what: str) -> tuple[int, ...]:
    try:
        found: tuple[int, ...] = layout.unpack_from(value, offset)
    except StructError as error:
        raise MetadataFormatError(f"{what}: it has {len(value)} bytes, {offset + layout.size} are needed") from error
    return found


def _put_text(out: bytearray, text: str) -> None:
    data = text.encode()
    out += _U32.pack(len(data))
    out += data


def _text_at(value: bytes, offset: int, what: str) -> tuple[str, int]:
    (length_bytes,) = _at(_U32, value, offset, what)
    start = offset + _U32.size
    end = start + length_bytes
    if end > len(value):
        raise MetadataFormatError(f"{what}: it has {len(value)} bytes, {end} are needed")
    try:
        return value[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise MetadataFormatError(f"{what}: it is no UTF-8: {error}") from error


def _made(what: str, make: Callable[[], T]) -> T:
    """Make a value. Raises MetadataFormatError if it is invalid."""
    try:
        return make()
    except ValueError as error:
        raise MetadataFormatError(f"{what}: {error}") from error
