"""The options of `.option(name, value)`: all are parsed and checked here, and unknown ones are refused.

Spark hands over texts, under names whose case does not count. Names are Kafka's where the meaning is Kafka's.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from pyspark_stomp.wire import Connection
from sluiceway.client.address import Address, parse_all
from sluiceway.client.errors import ClientError

EARLIEST: Final = -2
LATEST: Final = -1
LOG: Final = "/log/"
QUEUE: Final = "/queue/"
TOPIC: Final = "/topic/"

T = TypeVar("T")
Offsets = dict[str, dict[str, int]]
"""Offsets by destination and partition, as Spark's checkpoints have them."""


_MARK: Final = re.compile(r"(\d{1,18})@([0-9A-Za-z]{1,64})")


@attrs.frozen
class Mark:
    """A place in one log: an index, and which log that is, for there may be another one of that name one day."""

    index: int
    log_id: str = ""
    """The log's id; empty: it is not known."""

    @classmethod
    def of(cls, offset: int | str) -> Mark:
        """Parse a mark as it stands in offsets: 17, or "17@7f0a13c9b2d4". Raises ValueError."""
        if isinstance(offset, int):
            return cls(offset)
        found = _MARK.fullmatch(offset)
        if found is None:
            raise ValueError(f"{offset[:80]!r} can't be the place in a log: write INDEX or INDEX@LOGID")
        return cls(int(found[1]), found[2])

    @property
    def offset(self) -> int | str:
        """The mark as it stands in offsets."""
        return f"{self.index}@{self.log_id}" if self.log_id else self.index


Marks = dict[str, dict[str, Mark]]
"""Marks by log and partition."""


class OptionError(ValueError):
    """An option that is missing, unknown or wrong. The message names it, and what to write."""


@attrs.frozen
class Option:
    """One option, for checking and for the reference."""

    name: str
    where: str
    """Comma list of: read, stream, queue, write."""
    default: str
    doc: str


OPTIONS: Final = (
    Option("brokers", "read,stream,queue,write", "", "HOST:PORT of each broker, with commas. The place in the list,"
           " from 0, is the number of the partition: add new brokers at the end. Hubs of one cluster are one broker:"
           " HOST:PORT|HOST:PORT, any of which will do. With TLS:"
           " `stomp+ssl://HOST:PORT?ca=FILE`; the file is one of each machine."),
    Option("login", "read,stream,queue,write", "", "Name to log in with."),
    Option("password", "read,stream,queue,write", "", "Its passcode; `passcode` is the same."),
    Option("passcode", "read,stream,queue,write", "", "See `password`, which Spark keeps out of its logs by itself."),
    Option("loginEnv", "read,stream,queue,write", "", "Environment variable of the driver that holds the login."),
    Option("passwordEnv", "read,stream,queue,write", "", "Environment variable of the driver that holds the passcode."),
    Option("reconnectSeconds", "read,stream,queue,write", "120", "How long a broker may be away before a task gives up;"
           " a streaming query then still has the task's other attempts."),
    Option("followOwner", "read,stream,queue,write", "true", "At a cluster of several hubs: read and write at the hub"
           " that has the log or queue, and follow it. `false`: at the hub that was reached."),
    Option("subscribe", "read,stream,queue", "", "Names of logs (`/log/a,/log/b`) or of one or more queues"
           " (`/queue/a`)."),
    Option("subscribePattern", "read,stream", "", "Regular expression; logs whose whole name matches are read, new ones"
           " too."),
    Option("assign", "read,stream", "", 'JSON: which partitions of which logs, {"/log/a":[0,1]}.'),
    Option("path", "read,stream,queue,write", "", "The argument of `load(...)` and `save(...)`: as `subscribe`, or"
           " `topic` of a sink."),
    Option("startingOffsets", "read,stream", "earliest; stream: latest", '`earliest`, `latest` (streams only) or JSON,'
           ' {"/log/a":{"0":23,"1":-2}}; -2 is earliest, -1 latest. Of a stream only for its first start.'),
    Option("endingOffsets", "read", "latest", "Where to stop, exclusive: `latest` or JSON as in `startingOffsets`."),
    Option("startingTimestamp", "read,stream", "", "Milliseconds since 1970: begin with the first record that is not"
           " older. Overrides `startingOffsets`."),
    Option("endingTimestamp", "read", "", "Stop before the first record that is not older. Overrides `endingOffsets`."),
    Option("startingOffsetsByTimestamp", "read,stream", "", 'The same by partition: {"/log/a":{"0":1795292100000}}.'),
    Option("endingOffsetsByTimestamp", "read", "", "The same for each partition."),
    Option("failOnDataLoss", "read,stream,queue", "true", "Fail when records that were to be read are missing; `false`:"
           " continue behind them, with a warning in the log of the worker."),
    Option("maxOffsetsPerTrigger", "stream,queue", "", "Records of one micro-batch, shared by the records to read in"
           " each partition."),
    Option("maxBytesPerTrigger", "stream,queue", "", "The same in bytes, by the average size of records."),
    Option("minPartitions", "read,stream,queue", "", "Minimum of tasks to split the reading into, if there are enough"
           " records. Default: one per log and broker."),
    Option("groupId", "stream,queue", "", "Logs: a group of this name on the broker keeps the place where `latest` was"
           " when the query began, and shows its lag. Queues: whose claims they are; required."),
    Option("includeHeaders", "read,stream,queue", "false", "A column `headers` besides the others."),
    Option("claimGraceSeconds", "queue", "600", "How long claimed messages stay claimed when nothing is heard from the"
           " query."),
    Option("topic", "write", "", "Where all rows go: `/log/a`, `/queue/a` or `/topic/a`. Overrides column `topic`."),
    Option("deliveryGuarantee", "write", "exactly-once for streams into logs", "`exactly-once` or `at-least-once`."),
    Option("transactionId", "write", "", "Batch into logs: write under this id, once: a second write with it does"
           " nothing."),
    Option("compression", "write", "none", "Of batches in logs: `none`, `gzip`, `snappy` or `zstd`."),
    Option("partitioner", "write", "hash", "Which broker gets a row that has no `partition`: `hash` of its key, or"
           " `random`."),
    Option("persistent", "write", "true", "Header `persistent` of messages for queues and topics."),
)  # fmt: skip

SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))
"""Options of a stream that are Spark's own, and that Spark hands on to the sink nevertheless."""

_NAMES: Final = {option.name.lower(): option.name for option in OPTIONS}


@attrs.frozen
class Brokers:
    """Addresses of the brokers, and how long to wait for one."""

    addresses: tuple[Address, ...]
    reconnect_seconds: float
    follow_owner: bool = True

    def connection(self, broker: int, destination: str = "", *, patience_seconds: float | None = None) -> Connection:
        """Make a connection to one of them, as the options say. `destination`: what it is for."""
        return Connection(
            self.addresses[broker],
            patience_seconds=self.reconnect_seconds if patience_seconds is None else patience_seconds,
            destination=destination,
            follow=self.follow_owner,
        )


@attrs.frozen
class ReadOptions:
    """Options of a reader. Exactly one of `subscribe`, `pattern` and `assigned` is given."""

    brokers: Brokers
    subscribe: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] | None = None
    starting: int | Marks = EARLIEST
    """EARLIEST, LATEST or by partition, where the index may be one of these, too."""
    ending: int | Marks = LATEST
    starting_ms: int | Offsets | None = None
    """Milliseconds since 1970, for all or by partition; goes over `starting`."""
    ending_ms: int | Offsets | None = None
    fail_on_data_loss: bool = True
    offsets_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 1
    group: str = ""
    include_headers: bool = False
    claim_grace_seconds: float = 600.0

    @property
    def of_queues(self) -> bool:
        """Whether queues are read, not logs."""
        return any(name.startswith(QUEUE) for name in self.subscribe)


@attrs.frozen
class WriteOptions:
    """Options of a sink."""

    brokers: Brokers
    topic: str | None = None
    guarantee: str | None = None
    """`exactly-once`, `at-least-once`; None: what the target allows."""
    transaction_id: str | None = None
    compression: str = "none"
    partitioner: str = "hash"
    persistent: bool = True


class _Given:
    """The options that a user gave."""

    def __init__(self, options: Mapping[str, str], where: frozenset[str]) -> None:
        self._values: dict[str, str] = {}
        for given in options:
            if given.lower() in SPARKS_OWN:
                continue
            name = _NAMES.get(given.lower())
            if name is None:
                raise OptionError(f"option {given!r} is not known{_nearest(given)}")
            self._values[name] = options[given].strip()
        self._where = where

    def check_places(self) -> None:
        for option in OPTIONS:
            if option.name in self._values and not self._where & set(option.where.split(",")):
                raise OptionError(f"option {option.name} is not for {_WORDS[min(self._where)]}: leave it out")

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def number(self, name: str, *, least: int = 0) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
            raise OptionError(f"option {name} must be a whole number of {least} or more, not {text[:40]!r}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        text = self._values.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
            raise OptionError(f"option {name} must be a number of seconds, not {text[:40]!r}")
        return float(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self._values.get(name, "true" if default else "false").lower()
        if text not in ("true", "false"):
            raise OptionError(f"option {name} must be true or false, not {text[:40]!r}")
        return text == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: T) -> str | T:
        text = self._values.get(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise OptionError(f"option {name} must be {' or '.join(choices)}, not {text[:40]!r}")
        return text.lower()

    def json(self, name: str, read: Callable[[Any], T], example: str) -> T | None:
        text = self._values.get(name)
        if text is None:
            return None
        try:
            return read(json.loads(text))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise OptionError(f"option {name} must be JSON such as {example}: {error}") from None

    def secret(self, name: str, aliases: tuple[str, ...] = ()) -> str | None:
        for each in (name, *aliases):
            if each in self._values:
                return self._values[each]
        variable = self._values.get(f"{name}Env")
        if variable is None:
            return None
        if variable not in os.environ:
            raise OptionError(f"option {name}Env names the environment variable {variable}, which the driver has not")
        return os.environ[variable]


_WORDS: Final = {
    "queue": "queues",
    "read": "reading a batch of a log",
    "stream": "streams of logs",
    "write": "writing",
}


def _nearest(given: str) -> str:
    near = difflib.get_close_matches(given.lower(), _NAMES, n=1, cutoff=0.5)
    return f": did you mean {_NAMES[near[0]]}?" if near else f"; there are {', '.join(sorted(_NAMES.values()))}"


def _brokers(given: _Given) -> Brokers:
    texts = [text.strip() for text in given.text("brokers").split(",") if text.strip()]
    if not texts:
        raise OptionError("option brokers is missing: write HOST:PORT of your broker, or of several with commas")
    try:
        addresses = parse_all(texts, given.secret("login"), given.secret("password", ("passcode",)))
    except (ValueError, ClientError) as error:
        raise OptionError(f"option brokers: {error}") from None
    return Brokers(addresses, given.seconds("reconnectSeconds", 120.0), given.flag("followOwner", True))


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of `spark.read` or `spark.readStream`. Raises OptionError."""
    given = _Given(options, frozenset(("stream" if streaming else "read",)))
    chosen = [name for name in ("subscribe", "subscribePattern", "assign", "path") if given.text(name)]
    if len(chosen) != 1:
        raise OptionError(
            "say what to read in one of the options subscribe, subscribePattern and assign"
            + (f"; there are {' and '.join(chosen)}" if chosen else ", for instance subscribe = /log/orders")
        )
    names = tuple(
        dict.fromkeys(
            name.strip() for name in (given.text("subscribe") or given.text("path")).split(",") if name.strip()
        )
    )
    pattern = given.text("subscribePattern")
    assigned = given.json("assign", _assigned, '{"/log/a":[0,1]}')
    of_queues = any(name.startswith(QUEUE) for name in names)
    for name in (*names, *(assigned or ())):
        if not name.startswith(QUEUE if of_queues else LOG):
            raise OptionError(
                f"{name[:80]!r} can't be read: write /log/NAME or /queue/NAME, and not both kinds in one source"
            )
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"option subscribePattern is no regular expression: {error}") from None
    if of_queues:
        given = _Given(options, frozenset(("queue",)))
    given.check_places()
    brokers = _brokers(given)
    for name, numbers in (assigned or {}).items():
        for number in numbers:
            if number >= len(brokers.addresses):
                raise OptionError(
                    f"option assign wants partition {number} of {name}: there are {len(brokers.addresses)}"
                )
    if of_queues and streaming and not given.text("groupId"):
        raise OptionError(
            "option groupId is missing: a name for whose claims of the queue these are, the same each start"
        )
    default = LATEST if streaming else EARLIEST
    starting = _place(given, "startingOffsets", default)
    ending = _place(given, "endingOffsets", LATEST)
    if not streaming and (starting == LATEST or (isinstance(starting, dict) and _holds(starting, LATEST))):
        raise OptionError("option startingOffsets can't be latest in a batch, which would be empty")
    if ending == EARLIEST or (isinstance(ending, dict) and _holds(ending, EARLIEST)):
        raise OptionError("option endingOffsets can't be earliest")
    starting_ms = _time(given, "startingOffsetsByTimestamp", "startingTimestamp")
    ending_ms = _time(given, "endingOffsetsByTimestamp", "endingTimestamp")
    for offsets in (starting, ending, starting_ms, ending_ms):
        if isinstance(offsets, dict) and not pattern:
            _check_named(offsets, names or tuple(assigned or ()), len(brokers.addresses))
    return ReadOptions(
        brokers,
        subscribe=names,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        starting_ms=starting_ms,
        ending_ms=ending_ms,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        offsets_max=given.number("maxOffsetsPerTrigger", least=1),
        bytes_max=given.number("maxBytesPerTrigger", least=1),
        partitions_min=given.number("minPartitions", least=1) or 1,
        group=given.text("groupId"),
        include_headers=given.flag("includeHeaders", False),
        claim_grace_seconds=given.seconds("claimGraceSeconds", 600.0),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write` or `df.writeStream`. Raises OptionError."""
    given = _Given(options, frozenset(("write",)))
    given.check_places()
    topic = given.text("topic") or given.text("path") or None
    if topic is not None and not topic.startswith((LOG, QUEUE, TOPIC)):
        raise OptionError(f"{topic[:80]!r} can't be written: write /log/NAME, /queue/NAME or /topic/NAME")
    return WriteOptions(
        _brokers(given),
        topic=topic,
        guarantee=given.choice("deliveryGuarantee", ("exactly-once", "at-least-once"), None),
        transaction_id=given.text("transactionId") or None,
        compression=given.choice("compression", ("none", "gzip", "snappy", "zstd"), "none"),
        partitioner=given.choice("partitioner", ("hash", "random"), "hash"),
        persistent=given.flag("persistent", True),
    )


def _place(given: _Given, name: str, default: int) -> int | Marks:
    words = {"": default, "earliest": EARLIEST, "latest": LATEST}
    word = words.get(given.text(name).lower())
    if word is not None:
        return word
    found = given.json(name, _marks, 'earliest, latest or {"/log/a":{"0":23}}')
    assert found is not None
    return found


def _time(given: _Given, by_partition: str, for_all: str) -> int | Offsets | None:
    times = given.json(by_partition, lambda value: _offsets(value, 0), '{"/log/a":{"0":1795292100000}}')
    return given.number(for_all) if times is None else times


def _offsets(value: Any, least: int) -> Offsets:
    for log, partitions in value.items():
        if not log.startswith(LOG):
            raise ValueError(f"{log!r} is no /log/NAME")
        for number, offset in partitions.items():
            if not re.fullmatch(r"\d{1,4}", number):
                raise ValueError(f"{number!r} is no number of a partition")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < least:
                raise ValueError(f"{offset!r} can't be the place in partition {number} of {log}")
    return {log: dict(partitions) for log, partitions in value.items()}


def _marks(value: Any) -> Marks:
    """Parse as `_offsets` does; the id of its log may stand behind an index."""
    marks = {
        log: {number: Mark.of(offset) if isinstance(offset, str) else offset for number, offset in partitions.items()}
        for log, partitions in value.items()
    }
    plain = {
        log: {number: offset.index if isinstance(offset, Mark) else offset for number, offset in partitions.items()}
        for log, partitions in marks.items()
    }
    checked = _offsets(plain, EARLIEST)
    return {
        log: {number: mark if isinstance(mark, Mark) else Mark(checked[log][number]) for number, mark in by.items()}
        for log, by in marks.items()
    }


def _check_named(offsets: Offsets | Marks, names: Sequence[str], brokers_count: int) -> None:
    for log, partitions in offsets.items():
        if log not in names:
            raise OptionError(f"offsets are given for {log!r}, which is not read: {', '.join(names)} is")
        for number in partitions:
            if int(number) >= brokers_count:
                raise OptionError(
                    f"offsets are given for partition {number} of {log}: there are {brokers_count} brokers"
                )


def _assigned(value: Any) -> dict[str, tuple[int, ...]]:
    for log, numbers in value.items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"the partitions of {log!r} must be a list of numbers")
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise ValueError(f"{number!r} is no number of a partition")
    return {log: tuple(sorted(set(numbers))) for log, numbers in value.items()}


def _holds(marks: Marks, index: int) -> bool:
    return any(mark.index == index for partitions in marks.values() for mark in partitions.values())
