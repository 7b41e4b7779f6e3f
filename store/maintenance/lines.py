"""The export format: one JSON object a line, for people, `jq` and other programs.

    header         first: format version, prefix of message-ids, next message number
    subscription   a durable subscription
    message        one message, with its queue
    body           a piece of the body of the message before, if that is large
    cursor         position of a durable subscription in one topic
    topic-owner, page-ranges, subscription-data
                   metadata of topics: owner, location of the records, position of a group of readers
    producer, duplicate-id, log-producers
                   what a queue or a log remembers of those that send to it
    end            last: the counts; an export without it was cut off

Invariants: a line that was read and written again is the same; a reader refuses every line it does not understand,
naming the line and the field, and ignores nothing silently.

Not here: source and destination of the lines (export.py, importing.py).

Normative: docs/store-tools.md, "The export format".
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

EXPORT_FORMAT: Final = 1

LINE_BYTES_MAX: Final = 1 << 30
"""Limit of a line, far above every message of a broker: a longer one is no export."""

_U64_END: Final = 2**64
_KINDS: Final = ("queue", "topic")
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class ExportFormatError(Exception):
    """Invalid line of an export. The message names the line and the fault, and perhaps the remedy."""


@attrs.frozen
class Header:
    """The first line."""

    token: str | None = None
    """Prefix of the store's message-ids."""
    next_number: int = 0
    """Number above all message numbers."""


@attrs.frozen
class SubscriptionLine:
    """A durable subscription."""

    client_id: str
    name: str
    destination: str
    selector: str
    created_ms: int
    last_seen_ms: int


@attrs.frozen
class MessageLine:
    """One message."""

    destination: str
    topic: bool
    priority: int
    sequence: int | None
    """Sequence in the queue. None: behind the message before."""
    number: int | None
    """Message number. None: any."""
    dialect: int
    block: bytes
    """Header lines, joined by LF, as that dialect writes them."""
    body: bytes
    body_bytes: int | None = None
    """Length of a large body, which follows in pieces."""
    expires_ms: int = 0
    due_ms: int = 0
    attempts: int | None = None
    """Number of failed deliveries; 0: a consumer may have seen it, but it was not counted; None: neither."""


@attrs.frozen
class BodyLine:
    """The next piece of a large body."""

    data: bytes


@attrs.frozen
class CursorLine:
    """Position of a durable subscription in one topic."""

    client_id: str
    name: str
    destination: str
    topic: bool
    priority: int
    front: int
    handed_to: int
    settled: tuple[tuple[int, int], ...]
    """First and last of each settled run from the front on."""
    attempts: tuple[tuple[int, int], ...]
    """Sequence and count of each."""
    wildcard: str = ""
    """The wildcard of the subscription; empty: it is to this topic."""


@attrs.frozen
class OwnerLine:
    """Broker that serves a topic."""

    topic: str
    host: str
    port: int
    started_at_ms: int


@attrs.frozen
class PageRangesLine:
    """Location of the records of a topic."""

    topic: str
    ranges: tuple[tuple[int, int | None, str], ...]
    """First index, end (None: open) and place of each."""


@attrs.frozen
class SubscriptionDataLine:
    """Preferences and position of a group of readers of a topic."""

    topic: str
    subscriber: str
    preferences: Mapping[str, str]
    front: int
    settled: tuple[tuple[int, int], ...]
    """First and last of each settled run beyond the front."""


@attrs.frozen
class ProducerLine:
    """Last sequence that a queue remembers of a producer."""

    destination: str
    topic: bool
    priority: int
    producer: str
    sequence: int
    used_ms: int = 0
    """Time at which it was sent, in milliseconds since the epoch."""


@attrs.frozen
class DuplicateIdLine:
    """Id of a message that a queue remembers."""

    destination: str
    topic: bool
    priority: int
    id: str
    used_ms: int = 0
    """Time at which it was sent, in milliseconds since the epoch."""


LogProducer = tuple[str, int, int, tuple[tuple[int, int, int], ...]]
"""Name, last sequence, when it was sent; of its last SENDs sequence, first index and number of records."""


@attrs.frozen
class LogProducersLine:
    """Producers that a log knows from its records below `end_index`."""

    log: str
    log_id: str
    end_index: int
    producers: tuple[LogProducer, ...]


@attrs.frozen
class End:
    """The last line."""

    messages_count: int
    subscriptions_count: int
    metadata_count: int = 0
    producers_count: int = 0


Line = (
    Header
    | SubscriptionLine
    | MessageLine
    | BodyLine
    | CursorLine
    | OwnerLine
    | PageRangesLine
    | SubscriptionDataLine
    | ProducerLine
    | DuplicateIdLine
    | LogProducersLine
    | End
)


# ---------------------------------------------------------------------- writing


def write_line(line: Line) -> bytes:
    """Return one line, with its line end."""
    match line:
        case MessageLine():
            fields = _message_fields(line)
        case Header():
            fields = {"line": "header", "export": "sluiceway", "format": EXPORT_FORMAT}
            if line.token is not None:
                fields["token"] = line.token
            fields["next_number"] = line.next_number
        case SubscriptionLine():
            fields = {"line": "subscription", **attrs.asdict(line)}
        case BodyLine():
            fields = {"line": "body", "base64": base64.b64encode(line.data).decode("ascii")}
        case CursorLine():
            fields = {
                "line": "cursor",
                "client_id": line.client_id,
                "name": line.name,
                "destination": line.destination,
                "kind": _KINDS[line.topic],
                "priority": line.priority,
                "front": line.front,
                "handed_to": line.handed_to,
                "settled": line.settled,
                "attempts": line.attempts,
                **({"wildcard": line.wildcard} if line.wildcard else {}),
            }
        case OwnerLine():
            fields = {"line": "topic-owner", **attrs.asdict(line)}
        case PageRangesLine():
            fields = {"line": "page-ranges", "topic": line.topic, "ranges": line.ranges}
        case SubscriptionDataLine():
            fields = {"line": "subscription-data", **attrs.asdict(line)}
        case ProducerLine():
            fields = {**_of_queue("producer", line), "producer": line.producer, "sequence": line.sequence}
            fields["used_ms"] = line.used_ms
        case DuplicateIdLine():
            fields = {**_of_queue("duplicate-id", line), "id": line.id, "used_ms": line.used_ms}
        case LogProducersLine():
            fields = {"line": "log-producers", **attrs.asdict(line)}
        case End():
            fields = {"line": "end", "messages": line.messages_count, "subscriptions": line.subscriptions_count}
            if line.metadata_count:
                fields["metadata"] = line.metadata_count
            if line.producers_count:
                fields["producers"] = line.producers_count
    return _encode(fields).encode() + b"\n"


def _of_queue(name: str, line: ProducerLine | DuplicateIdLine) -> dict[str, Any]:
    place = {"destination": line.destination, "kind": _KINDS[line.topic], "priority": line.priority}
    return {"line": name, **place}


def _message_fields(line: MessageLine) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "line": "message",
        "destination": line.destination,
        "kind": _KINDS[line.topic],
        "priority": line.priority,
    }
    if line.sequence is not None:
        fields["sequence"] = line.sequence
    if line.number is not None:
        fields["number"] = line.number
    fields["dialect"] = line.dialect
    _put_bytes(fields, "headers", line.block)
    if line.expires_ms:
        fields["expires_ms"] = line.expires_ms
    if line.due_ms:
        fields["due_ms"] = line.due_ms
    if line.attempts is not None:
        fields["attempts"] = line.attempts
    if line.body_bytes is not None:
        fields["body_bytes"] = line.body_bytes
    else:
        _put_bytes(fields, "body", line.body)
    return fields


def _put_bytes(fields: dict[str, Any], name: str, data: bytes) -> None:
    """Put bytes as text if they are UTF-8, else in base64 under a name that says so."""
    try:
        fields[name] = data.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data).decode("ascii")


# ---------------------------------------------------------------------- reading


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, Line]]:
    """Yield number and content of each line, the header first, the end last. Empty lines are skipped.

    Raises ExportFormatError for anything but an export of this version, and whatever `lines` raises. Checks each line
    by itself: the caller checks that sequences ascend and that pieces complete a body.
    """
    number = 0
    messages_count = subscriptions_count = metadata_count = producers_count = 0
    begun = ended = False
    for number, text in enumerate(lines, 1):
        if text in (b"\n", b"\r\n"):
            continue
        line = _read(number, text)
        if not begun and not isinstance(line, Header):
            raise ExportFormatError(f"line {number}: an export begins with its header, here is a {_name_of(line)} line")
        if begun and isinstance(line, Header):
            raise ExportFormatError(f"line {number}: a second header: this is several exports, import one by one")
        if ended:
            raise ExportFormatError(f"line {number}: something follows the end line")
        begun = True
        if isinstance(line, MessageLine):
            messages_count += 1
        elif isinstance(line, SubscriptionLine):
            subscriptions_count += 1
        elif isinstance(line, (OwnerLine, PageRangesLine, SubscriptionDataLine)):
            metadata_count += 1
        elif isinstance(line, (ProducerLine, DuplicateIdLine, LogProducersLine)):
            producers_count += 1
        elif isinstance(line, End):
            ended = True
            if (line.messages_count, line.subscriptions_count) != (messages_count, subscriptions_count):
                raise ExportFormatError(
                    f"line {number}: the end counts {line.messages_count} messages and {line.subscriptions_count} "
                    f"subscriptions, there are {messages_count} and {subscriptions_count}: lines are missing, or were "
                    "added without counting them"
                )
            if line.metadata_count != metadata_count:
                raise ExportFormatError(
                    f"line {number}: the end counts {line.metadata_count} lines of metadata, there are "
                    f"{metadata_count}: lines are missing, or were added without counting them"
                )
            if line.producers_count != producers_count:
                raise ExportFormatError(
                    f"line {number}: the end counts {line.producers_count} lines of producers, there are "
                    f"{producers_count}: lines are missing, or were added without counting them"
                )
        yield number, line
    if not ended:
        end = End(messages_count, subscriptions_count, metadata_count, producers_count)
        raise ExportFormatError(
            f"it ends after line {number} without an end line: it was cut off. Export again, or (if that is all there "
            f"is) add {write_line(end).decode().rstrip()}"
        )


def _name_of(line: Line) -> str:
    return type(line).__name__.removesuffix("Line").lower()


def _read(number: int, text: bytes) -> Line:
    if len(text) > LINE_BYTES_MAX:
        raise ExportFormatError(f"line {number}: it is longer than {LINE_BYTES_MAX} bytes: this is no export")
    try:
        values = json.loads(text)
    except ValueError as error:  # also for invalid UTF-8
        raise ExportFormatError(f"line {number}: it is no JSON: {error}") from error
    except RecursionError as error:
        raise ExportFormatError(f"line {number}: it is nested too deep: this is no export") from error
    if not isinstance(values, dict):
        raise ExportFormatError(f"line {number}: it is no JSON object")
    fields = _Fields(number, values)
    name = fields.text("line")
    reader = _READERS.get(name)
    if reader is None:
        raise ExportFormatError(f"line {number}: there are no {name!r} lines, only {', '.join(_READERS)}")
    line = reader(fields)
    fields.check_all_taken()
    return line


class _Fields:
    """Values of one line, each taken once; errors name line and field."""

    __slots__ = ("_number", "_values")

    def __init__(self, number: int, values: dict[str, Any]) -> None:
        self._number = number
        self._values = values

    def error(self, fault: str) -> ExportFormatError:
        return ExportFormatError(f"line {self._number}: {fault}")

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.pop(name, default)
        if type(value) is not str:
            raise self.error(f"{name!r} should be text" + (", and is missing" if value is None else ""))
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"{name!r} is no Unicode text: {error}") from error
        return value

    def whole(self, name: str, default: int | None = None, *, end: int = _U64_END) -> int:
        value = self._values.pop(name, default)
        if type(value) is not int or not 0 <= value < end:
            raise self.error(f"{name!r} should be a whole number from 0 to {end - 1}, it is {value!r}")
        return value

    def maybe_whole(self, name: str) -> int | None:
        return self.whole(name) if name in self._values else None

    def data(self, name: str) -> bytes:
        """Take bytes, as text or in base64."""
        coded = f"{name}_base64"
        if coded not in self._values:
            return self.text(name).encode()
        if name in self._values:
            raise self.error(f"it has both {name!r} and {coded!r}")
        return self.base64(coded)

    def base64(self, name: str) -> bytes:
        try:
            return base64.b64decode(self.text(name), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(f"{name!r} is no base64: {error}") from error

    def kind(self) -> bool:
        """Take the kind; True for a topic."""
        kind = self.text("kind", "queue")
        if kind not in _KINDS:
            raise self.error(f"'kind' should be queue or topic, it is {kind!r}")
        return kind == "topic"

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        value = self._values.pop(name, [])
        if type(value) is not list:
            raise self.error(f"{name!r} should be a list of pairs of numbers")
        for pair in value:
            if type(pair) is not list or len(pair) != 2 or not all(type(n) is int and 0 <= n < _U64_END for n in pair):
                raise self.error(f"{name!r} should be a list of pairs of numbers, there is {pair!r}")
        return tuple((first, second) for first, second in value)

    def texts(self, name: str) -> dict[str, str]:
        """Take names and values, all text."""
        value = self._values.pop(name, {})
        if type(value) is not dict or not all(type(text) is str for text in value.values()):
            raise self.error(f"{name!r} should be an object with text values")
        return value

    def page_ranges(self, name: str) -> tuple[tuple[int, int | None, str], ...]:
        value = self._values.pop(name, [])
        if type(value) is not list:
            raise self.error(f"{name!r} should be a list of ranges")
        for one in value:
            if (
                type(one) is not list
                or len(one) != 3
                or type(one[0]) is not int
                or (one[1] is not None and type(one[1]) is not int)
                or type(one[2]) is not str
            ):
                raise self.error(f"{name!r} should have first index, end (or null) and place of each, there is {one!r}")
        return tuple((first, end, place) for first, end, place in value)

    def log_producers(self, name: str) -> tuple[LogProducer, ...]:
        value = self._values.pop(name, [])
        found: list[LogProducer] = []
        try:
            for producer, sequence, used_ms, places in value:
                numbers = [sequence, used_ms, *[number for place in places for number in place]]
                if type(producer) is not str or not all(type(n) is int and 0 <= n < _U64_END for n in numbers):
                    raise ValueError
                found.append((producer, sequence, used_ms, tuple((first, index, n) for first, index, n in places)))
        except (TypeError, ValueError):
            raise self.error(
                f"{name!r} should have name, sequence, used_ms and places (sequence, index and count) of each"
            ) from None
        return tuple(found)

    def check_all_taken(self) -> None:
        if self._values:
            unknown = ", ".join(map(repr, sorted(self._values)))
            raise self.error(f"unknown: {unknown}; was it written by a later version?")


def _header(fields: _Fields) -> Header:
    if fields.text("export", "") != "sluiceway":
        raise fields.error("this is no export of Sluiceway")
    version = fields.whole("format")
    if version != EXPORT_FORMAT:
        raise fields.error(
            f"the export has format {version}, this version of Sluiceway knows format {EXPORT_FORMAT}: use the version "
            "that wrote it"
        )
    token = fields.text("token") if fields.has("token") else None
    return Header(token, fields.whole("next_number", 0))


def _subscription(fields: _Fields) -> SubscriptionLine:
    return SubscriptionLine(
        client_id=fields.text("client_id"),
        name=fields.text("name"),
        destination=fields.text("destination"),
        selector=fields.text("selector", ""),
        created_ms=fields.whole("created_ms", 0),
        last_seen_ms=fields.whole("last_seen_ms", 0),
    )


def _message(fields: _Fields) -> MessageLine:
    large = fields.has("body_bytes")
    return MessageLine(
        destination=fields.text("destination"),
        topic=fields.kind(),
        priority=fields.whole("priority", 4, end=10),
        sequence=fields.maybe_whole("sequence"),
        number=fields.maybe_whole("number"),
        dialect=fields.whole("dialect", end=256),
        block=fields.data("headers"),
        body=b"" if large else fields.data("body"),
        body_bytes=fields.whole("body_bytes") if large else None,
        expires_ms=fields.whole("expires_ms", 0),
        due_ms=fields.whole("due_ms", 0),
        attempts=fields.maybe_whole("attempts"),
    )


def _body(fields: _Fields) -> BodyLine:
    return BodyLine(fields.base64("base64"))


def _cursor(fields: _Fields) -> CursorLine:
    return CursorLine(
        client_id=fields.text("client_id"),
        name=fields.text("name"),
        destination=fields.text("destination"),
        topic=fields.kind(),
        priority=fields.whole("priority", 4, end=10),
        front=fields.whole("front"),
        handed_to=fields.whole("handed_to", 0),
        settled=fields.pairs("settled"),
        attempts=fields.pairs("attempts"),
        wildcard=fields.text("wildcard", ""),
    )


def _owner(fields: _Fields) -> OwnerLine:
    return OwnerLine(
        topic=fields.text("topic"),
        host=fields.text("host"),
        port=fields.whole("port", end=2**16),
        started_at_ms=fields.whole("started_at_ms", 0),
    )


def _page_ranges(fields: _Fields) -> PageRangesLine:
    return PageRangesLine(topic=fields.text("topic"), ranges=fields.page_ranges("ranges"))


def _subscription_data(fields: _Fields) -> SubscriptionDataLine:
    return SubscriptionDataLine(
        topic=fields.text("topic"),
        subscriber=fields.text("subscriber"),
        preferences=fields.texts("preferences"),
        front=fields.whole("front"),
        settled=fields.pairs("settled"),
    )


def _producer(fields: _Fields) -> ProducerLine:
    return ProducerLine(
        destination=fields.text("destination"),
        topic=fields.kind(),
        priority=fields.whole("priority", 4, end=10),
        producer=fields.text("producer"),
        sequence=fields.whole("sequence", end=2**63),
        used_ms=fields.whole("used_ms", 0),
    )


def _duplicate_id(fields: _Fields) -> DuplicateIdLine:
    return DuplicateIdLine(
        destination=fields.text("destination"),
        topic=fields.kind(),
        priority=fields.whole("priority", 4, end=10),
        id=fields.text("id"),
        used_ms=fields.whole("used_ms", 0),
    )


def _log_producers(fields: _Fields) -> LogProducersLine:
    return LogProducersLine(
        log=fields.text("log"),
        log_id=fields.text("log_id"),
        end_index=fields.whole("end_index"),
        producers=fields.log_producers("producers"),
    )


def _end(fields: _Fields) -> End:
    return End(
        fields.whole("messages"),
        fields.whole("subscriptions", 0),
        fields.whole("metadata", 0),
        fields.whole("producers", 0),
    )


_READERS: Final[Mapping[str, Callable[[_Fields], Line]]] = {
    "header": _header,
    "subscription": _subscription,
    "message": _message,
    "body": _body,
    "cursor": _cursor,
    "topic-owner": _owner,
    "page-ranges": _page_ranges,
    "subscription-data": _subscription_data,
    "producer": _producer,
    "duplicate-id": _duplicate_id,
    "log-producers": _log_producers,
    "end": _end,
}
