"""Header blocks: bytes of header lines to a dictionary, and the parsed head that many SENDs share.

A producer sends the same headers again and again, so a `SendHead` is made once per distinct header block and shared by
every message that has it: it must be treated as immutable. It keeps the block as it was received (validated, not
rebuilt) because subscribers get it, beside the few values that the broker itself needs.

The headers themselves are not kept as strings: a message with a header block of its own (a correlation-id, say) would
take five times its size. They are parsed from the block again when needed.

Invariants: `block` holds no header of `BROKER_OWNED_HEADERS`, and of `STAMPED_HEADERS` only what the broker wrote. It
has LF line ends (a CR is data), does not begin or end with a line end, and is never empty (a SEND has a destination).
Under the version it came from it reads as `headers` minus the owned ones.

Structurally a `SendHead` is the envelope that `queues` asks for (destination, priority, persistent, expires_at_ms,
ttl_ms, group, delay_ms, reply_to), without an import of it.

Deliberately not here: where a header block begins and ends, and its total size (`parser`).

Source: STOMP 1.2 "Frames", "SEND", "MESSAGE"; checklist b1-b3, b8-b13, b28; header dialects of DESIGN section 9.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Final, Protocol

from .dialects import (
    RETAIN_NAMES,
    TRANSFORMATION,
    is_foreign,
    known_as,
    refuse_date_of_delivery,
    refuse_transformation,
    retain_of,
    typed,
)
from .errors import ProtocolError
from .escaping import Version, escape_name, escape_value, unescape
from .limits import StompLimits

#: Headers of a MESSAGE that only the broker may write, and those of a SEND that are between its sender and the
#: broker. Neither is forwarded, or a producer could forge deliveries and its receipts would show up at consumers.
BROKER_OWNED_HEADERS: Final = frozenset(
    {
        "message-id",
        "subscription",
        "ack",
        "redelivered",
        "delivery-count",
        "dropped-count",
        "browser",
        "receipt",
        "transaction",
    }
)

ORIGIN_HEADER: Final = "origin-region"
"""Header with the region that a message came from (sluiceway.regions)."""

#: Besides those, headers that the broker puts into blocks itself: what a SEND says under these names is dropped, too,
#: but blocks that the broker has written keep them (dead letters, stamped users, what is told of logs).
STAMPED_HEADERS: Final = frozenset(
    {
        "user",
        ORIGIN_HEADER,
        "dead-letter-reason",
        "dead-letter-destination",
        "dead-letter-count",
        "dead-letter-index",
        "dead-letter-time",
        "dead-letter-subscription",
        "dead-letter-client-id",
        "gap",
        "gap-from",
        "gap-to",
        "gap-reason",
        "range-end",
        "log-deleted",
        "sluiceway-commit",
        "sluiceway-producer",
    }
)

FORGEABLE_HEADERS: Final = BROKER_OWNED_HEADERS | STAMPED_HEADERS
"""Headers that no SEND and no batch of a log may set."""

#: Milliseconds beyond this (about 292 million years) are a mistake, and would not fit eight bytes in a store.
_MS_MAX: Final = 2**63 - 1

# Octets as numbers: looking for a one-byte string in bytes costs ten times as much, because it is tried as a number
# first.
_TAB: Final = 9
_CR: Final = 13
_SPACE: Final = 32
_BACKSLASH: Final = 92

_UNLIMITED: Final = StompLimits(header_count_max=2**31, header_line_bytes_max=2**31, header_block_bytes_max=2**31)
"""Limits for blocks that have passed the limits of their listener already."""

_GROUP_NAMES: Final = ("group", "JMSXGroupID")
_DELAY_NAMES: Final = ("delay", "AMQ_SCHEDULED_DELAY", "x-delay")
_CRON: Final = "AMQ_SCHEDULED_CRON"
_PERIOD: Final = "AMQ_SCHEDULED_PERIOD"
_REPEAT: Final = "AMQ_SCHEDULED_REPEAT"

REPEATS_MAX: Final = 99
"""Deliveries after the first one: each is a message of its own from the beginning, as each leg of a composite is."""
_PRODUCER_ID: Final = "producer-id"
_PRODUCER_SEQUENCE: Final = "producer-sequence"
_DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
_ORIGIN_NAMES: Final = (_PRODUCER_ID, _PRODUCER_SEQUENCE, _DUPLICATE_ID)
_SPECIAL_NAMES: Final = frozenset(
    {"persistent", "priority", "expires", "expiration", *_GROUP_NAMES, *_DELAY_NAMES, _CRON, _REPEAT, *RETAIN_NAMES}
    | {*_ORIGIN_NAMES}
)
NAME_BYTES_MAX: Final = 200
"""Longest name of a producer, and longest id of a message, in bytes."""
NO_SEQUENCE: Final = -1  # as in queues/producers.py, which the machine does not know
Origin = tuple[str, int]
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")

_LOOKED_AT_NAMES: Final = frozenset({TRANSFORMATION, "AMQ_SCHEDULED_TIME", "destination-type", *_ORIGIN_NAMES})
"""Headers of a SEND that are checked, or change its destination, when it comes; stored ones are read as they are."""


def _lines_named(names: frozenset[str]) -> re.Pattern[bytes]:
    alternatives = b"|".join(re.escape(name.encode()) for name in sorted(names))
    return re.compile(rb"^[ \t\r]*(?:" + alternatives + rb")[ \t\r]*:", re.MULTILINE)


_ALL_OWNED: Final = _lines_named(BROKER_OWNED_HEADERS)
_ALL_FORGEABLE: Final = _lines_named(FORGEABLE_HEADERS)
_PADDED: Final = re.compile(rb"^[ \t]|[ \t]$|[ \t]:|:[ \t]", re.MULTILINE)


def parse_headers(
    block: bytes, limits: StompLimits, *, unescape_as: Version | None, trim: bool = False
) -> dict[str, str]:
    """Take header lines apart (without the command line and the blank line).

    `unescape_as` is the version whose escapes apply, None for frames that are never escaped (b10). `trim` strips
    blanks around names and values, as the samples of 1.0 have them (b12). Line ends are LF: a CR is data
    (`octets.split_head`). The first of repeated headers wins (b13). Raises `ProtocolError` for what is malformed or
    over a limit.
    """
    headers: dict[str, str] = {}
    if not block:
        return headers
    try:
        text = block.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            "not-utf-8",
            "a header is not UTF-8",
            f"Byte {error.start} of the header block is wrong. STOMP headers are UTF-8.",
        ) from None
    lines = text.split("\n")
    if len(lines) > limits.header_count_max:
        raise ProtocolError(
            "too-many-headers",
            f"more than {limits.header_count_max} headers in one frame",
            f"This frame has {len(lines)}. Put structured data into the body, or raise header_count_max"
            " of the listener.",
        )
    if len(block) > limits.header_line_bytes_max:
        _check_line_lengths(block, limits)
    if "\\" not in text:
        unescape_as = None
    for line in lines:
        name, colon, value = line.partition(":")
        if trim:
            name = name.strip(" \t")
            value = value.strip(" \t")
        if unescape_as is not None:
            name = unescape(name, unescape_as)
            value = unescape(value, unescape_as)
        if not colon:
            raise ProtocolError(
                "header-without-colon",
                "a header line has no colon",
                f"The line is {line[:80]!r}. Headers are name:value lines; a blank line ends them.",
            )
        if not name:
            raise ProtocolError(
                "empty-header-name",
                "a header has an empty name",
                f"The line is {line[:80]!r}. Headers are name:value lines with a name of at least one character.",
            )
        if name not in headers:
            headers[name] = value
    return headers


def _check_line_lengths(block: bytes, limits: StompLimits) -> None:
    longest = max(map(len, block.split(b"\n")))
    if longest > limits.header_line_bytes_max:
        raise ProtocolError(
            "header-line-too-long",
            f"a header line is longer than {limits.header_line_bytes_max} bytes",
            f"It has {longest} bytes. Put long data into the body, or raise header_line_bytes_max of the listener.",
        )


def salvage_headers(block: bytes, version: Version | None) -> dict[str, str]:
    """Read whatever can be read of a block that is known to be bad, for the ERROR frame. Never raises."""
    headers: dict[str, str] = {}
    for raw in block.split(b"\n"):
        name, colon, value = raw.decode("utf-8", "replace").partition(":")
        if not colon:
            continue
        if version == "1.0":
            name, value = name.strip(" \t"), value.strip(" \t")
        elif version is not None:
            try:
                name, value = unescape(name, version), unescape(value, version)
            except ProtocolError:
                # This may be the very fault that is being reported; the other headers still identify the frame.
                continue
        headers.setdefault(name, value)
    return headers


def whole_number(
    headers: Mapping[str, str], name: str, ceiling: int, *, absent: int = 0, below: int | None = None
) -> int:
    """The value of a header that must be a number from 0 to `ceiling`; blanks around it are tolerated. `below`: what a
    negative one counts as; None: it is wrong. Raises `ProtocolError`."""
    value = headers.get(name)
    if value is None:
        return absent
    digits = value.strip()
    if below is not None and digits.startswith("-") and digits[1:].isascii() and digits[1:].isdigit():
        return below
    # The length check also keeps int() away from its own limit on huge digit strings.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19) or int(digits) > ceiling:
        raise ProtocolError(
            f"bad-{name}",
            f"header {name} is not a whole number from 0 to {ceiling}",
            f"Its value is {value[:40]!r}. Send plain decimal digits, or leave the header out.",
        )
    return int(digits)


HEAD_BYTES: Final = 320
"""Memory of a head beside the bytes of its block and its texts: the object (192), the heads of bytes and strings."""
TEXT_BYTES: Final = 56
ORIGIN_BYTES: Final = 144
"""Memory of a pair of a text and a number, beside the characters."""
BLOCKS_BYTES: Final = 300
"""Additional memory of a head with a block for another version."""


class HeadAccount(Protocol):
    """Counter of the memory of heads. `sluiceway.flow.UpkeepAccount` fits."""

    def add(self, size_bytes: int) -> None:
        """Count `size_bytes` more."""

    def gone(self, size_bytes: int) -> None:
        """Count `size_bytes` less. May be called from any thread, and in the midst of anything."""


class SendHead:
    """The head of a SEND: immutable, shared by all messages with the same header block.

    Compared and hashed by identity, so it can be the key of a routing cache.
    """

    __slots__ = (
        "_account",
        "_blocks",
        "_counted_bytes",
        "block",
        "body_offset",
        "content_length",
        "content_type",
        "delay_ms",
        "destination",
        "expires_at_ms",
        "group",
        "marked",
        "neutral",
        "origin",
        "persistent",
        "priority",
        "reply_to",
        "retain",
        "to_log",
        "transaction",
        "ttl_ms",
        "version",
    )

    def __init__(self, headers: dict[str, str], block: bytes, version: Version) -> None:
        """`headers` as parsed; `block` the lines to forward, as `version` writes them.

        Raises `ProtocolError` without a destination and for a number that is none.
        """
        self._account: HeadAccount | None = None
        self._counted_bytes = 0
        get = headers.get
        destination = get("destination")
        if not destination:
            raise ProtocolError(
                "missing-header",
                "SEND without destination",
                "Give every SEND a destination header, such as /queue/orders.",
            )
        self.version: Version = version
        #: Header lines to forward, joined by LF.
        self.block = block
        #: Where the body starts in a wire of this head.
        self.body_offset = len(block) + 2
        self.destination = destination
        #: Logs take their batches whole, however large.
        self.to_log: bool = destination.startswith("/log/")
        self.transaction: str | None = get("transaction")
        self.reply_to: str | None = get("reply-to")
        #: Octets of the body, -1 if it ends at the first NUL.
        self.content_length: int = whole_number(headers, "content-length", _MS_MAX, absent=-1)
        #: What the body is; only logs look at it.
        self.content_type: str | None = get("content-type")
        #: Whether it has a correlation-id, or belongs to a trace: an observer may follow it.
        self.marked: bool = "correlation-id" in headers or "traceparent" in headers
        self.persistent: bool = False
        #: 0 to 9, 4 if not given.
        self.priority: int = 4  # as PRIORITY_DEFAULT of queues, which the machine does not know
        #: Milliseconds since the epoch, 0 for never.
        self.expires_at_ms: int = 0
        #: Milliseconds from arrival, 0 for never.
        self.ttl_ms: int = 0
        #: Messages of one group go to one consumer at a time.
        self.group: str | None = None
        #: Milliseconds to hold the message back.
        self.delay_ms: int = 0
        #: `set` or `remove`: what becomes of the topic's retained message. None: nothing.
        self.retain: str | None = None
        #: Its producer, and its number among what that one sent; or its own id, and NO_SEQUENCE. None: not told.
        self.origin: Origin | None = None
        if not _SPECIAL_NAMES.isdisjoint(headers):
            self._read_special(headers)
        #: True if the block reads the same under every version, so that it can go to any subscriber as it is.
        self.neutral: bool = _is_neutral(block)
        self._blocks: dict[Version, bytes] | None = None

    def _read_special(self, headers: dict[str, str]) -> None:
        self.persistent = headers.get("persistent", "").strip().lower() == "true"
        # As with the peers: a priority beyond their ends counts as the end, and a date before 1970 as none.
        self.priority = min(9, whole_number(headers, "priority", _MS_MAX, absent=4, below=0))
        self.expires_at_ms = whole_number(headers, "expires", _MS_MAX, below=0)
        self.ttl_ms = whole_number(headers, "expiration", _MS_MAX)
        self.group = next((headers[name] for name in _GROUP_NAMES if name in headers), None)
        self.delay_ms = next((whole_number(headers, name, _MS_MAX) for name in _DELAY_NAMES if name in headers), 0)
        self.retain = retain_of(headers)
        with suppress(ProtocolError):  # of a stored message: an earlier version took any
            self.origin = _origin_of(headers)
        if headers.get(_CRON, "").strip():
            raise ProtocolError(
                "not-supported",
                f"delivery by a calendar ({_CRON}) is not available in this version",
                f"Send it again each time, or give {_REPEAT} (up to {REPEATS_MAX}) and {_PERIOD}.",
            )
        if _REPEAT in headers and _repeats_of(headers)[0] and not self.delay_ms:
            self.delay_ms = 1  # it is not for the short way of plain messages; `repeated` tells the delays

    def repeated(self) -> list[SendHead]:
        """The heads of all deliveries of a message that is sent once and delivered several times, each with its delay;
        this very head alone for any other.
        """
        if not self.delay_ms or self.header(_REPEAT) is None:
            return [self]
        headers = self.headers
        count, period_ms = _repeats_of(headers)
        if not count:
            return [self]
        delay_ms = next((whole_number(headers, name, _MS_MAX) for name in _DELAY_NAMES if name in headers), 0)
        changes: dict[str, str | None] = dict.fromkeys((*_DELAY_NAMES, _REPEAT, _PERIOD))
        heads = []
        for number in range(count + 1):
            due_ms = delay_ms + number * period_ms
            heads.append(self.with_headers({**changes, "AMQ_SCHEDULED_DELAY": str(due_ms) if due_ms else None}))
        return heads

    @property
    def repeats_count(self) -> int:
        """Deliveries after the first one."""
        return _repeats_of(self.headers)[0] if self.delay_ms and self.header(_REPEAT) is not None else 0

    @classmethod
    def parse(
        cls, block: bytes, version: Version, limits: StompLimits, *, stamp: bytes = b""
    ) -> tuple[SendHead, str | None]:
        """Make a head of header lines as received under `version`, and return it with the receipt that they ask for.
        Headers that a sender must not set (FORGEABLE_HEADERS) are left out; `stamp` is a line that the broker adds.
        Raises `ProtocolError`.
        """
        headers = parse_headers(block, limits, unescape_as=version, trim=version == "1.0")
        destination = headers.get("destination", "")
        if not _LOOKED_AT_NAMES.isdisjoint(headers) or is_foreign(destination):
            _origin_of(headers)
            if TRANSFORMATION in headers:
                refuse_transformation(headers[TRANSFORMATION])
            if "AMQ_SCHEDULED_TIME" in headers:
                refuse_date_of_delivery()
            headers["destination"] = known_as(typed(destination, headers, "destination-type"))
            if headers["destination"] != destination:
                block = _write_block(headers, version)
        block = _cleaned(block, headers, FORGEABLE_HEADERS, _ALL_FORGEABLE)
        if stamp:
            block += b"\n" + stamp
        return cls(headers, block, version), headers.get("receipt")

    @classmethod
    def restore(cls, block: bytes, version: Version, limits: StompLimits) -> SendHead:
        """Make the head of a block that the broker has written itself: its own headers stay. Raises `ProtocolError`."""
        headers = parse_headers(block, limits, unescape_as=version, trim=version == "1.0")
        return cls(headers, _cleaned(block, headers, BROKER_OWNED_HEADERS, _ALL_OWNED), version)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that are forwarded, decoded, in order; read from the block anew each time."""
        return parse_headers(self.block, _UNLIMITED, unescape_as=self.version, trim=self.version == "1.0")

    def header(self, name: str) -> str | None:
        """Return the value of one header, None without one. Does not parse a block of plain lines."""
        if not self.neutral or "\n" in name:
            return self.headers.get(name)
        block = self.block
        start = name.encode("utf-8", "surrogatepass") + b":"
        if block.startswith(start):
            place = len(start)
        else:
            place = block.find(b"\n" + start)
            if place < 0:
                return None
            place += len(start) + 1
        end = block.find(b"\n", place)
        return (block[place:] if end < 0 else block[place:end]).decode()

    def block_for(self, version: Version) -> bytes:
        """The header lines as a subscriber that speaks `version` must get them; O(1) after the first call per version.

        A wire for that subscriber is ``head.block_for(version) + wire[len(head.block):]``.
        """
        if self.neutral or version == self.version:
            return self.block
        blocks = self._blocks
        if blocks is None:
            blocks = self._blocks = {}
        block = blocks.get(version)
        if block is None:
            block = blocks[version] = _write_block(self.headers, version)
            if self._account is not None:
                self._counted_bytes += len(block) + BLOCKS_BYTES
                self._account.add(len(block) + BLOCKS_BYTES)
        return block

    def for_answer(self, reply_to: str, size_bytes: int) -> SendHead:
        """Return the head of the answer to this request: JSON of `size_bytes`."""
        headers: dict[str, str | None] = dict.fromkeys(self.headers)
        headers |= {
            "destination": reply_to,
            "content-type": "application/json",
            "content-length": str(size_bytes),
            "correlation-id": self.headers.get("correlation-id"),
        }
        return self.with_headers(headers)

    def lines_without(self, names: Container[str]) -> bytes:
        """The header lines that are forwarded but for these, as 1.2 writes them."""
        return _write_block({name: value for name, value in self.headers.items() if name not in names}, "1.2")

    def with_length(self, content_length: int, block: bytes) -> SendHead:
        """The same head for a body of another length; `block` is this block with the other number in it.

        Costs a fraction of parsing. Only for a head whose headers hold a content-length.
        """
        head = SendHead.__new__(SendHead)
        head._account = None
        head._counted_bytes = 0
        head.version = self.version
        head.block = block
        head.body_offset = len(block) + 2
        head.destination = self.destination
        head.to_log = self.to_log
        head.transaction = self.transaction
        head.reply_to = self.reply_to
        head.content_length = content_length
        head.content_type = self.content_type
        head.marked = self.marked
        head.persistent = self.persistent
        head.priority = self.priority
        head.expires_at_ms = self.expires_at_ms
        head.ttl_ms = self.ttl_ms
        head.group = self.group
        head.delay_ms = self.delay_ms
        head.retain = self.retain
        head.origin = self.origin
        head.neutral = self.neutral
        head._blocks = None
        head.count(self._account)
        return head

    def with_jms_headers(self, now_ms: int, expires_max_ms: int | None) -> SendHead:
        """The same head with what JMS expects of a message that arrives now, but for what its sender has said.
        `expires_max_ms`: longest life of messages of its destination.
        """
        lines = b""
        if self.header("timestamp") is None:
            lines = b"\ntimestamp:%d" % now_ms
        if self.header("priority") is None:
            lines += b"\npriority:%d" % self.priority
        if self.header("expires") is None:
            lives = [ms for ms in (self.ttl_ms, expires_max_ms) if ms]
            lines += b"\nexpires:%d" % (min(now_ms + min(lives), _MS_MAX) if lives else 0)
        return self.with_length(self.content_length, self.block + lines) if lines else self

    def with_headers(self, changes: Mapping[str, str | None]) -> SendHead:
        """A new head with some headers set (a string) or removed (None), for instance one destination of a composite.

        Costs about as much as parsing: the caller keeps the result. Raises `ProtocolError` as the constructor does.
        """
        headers = dict(self.headers)
        for name, value in changes.items():
            if value is None:
                headers.pop(name, None)
            else:
                headers[name] = value
        head = SendHead(headers, _write_block(headers, self.version), self.version)
        head.count(self._account)
        return head

    def count(self, account: HeadAccount | None) -> None:
        """Count the memory of the head in this account for its lifetime; call once. None: it is not counted."""
        if account is not None:
            size_bytes = HEAD_BYTES + len(self.block) + len(self.destination)
            for text in (self.group, self.reply_to, self.transaction, self.content_type):
                if text is not None:
                    size_bytes += TEXT_BYTES + len(text)
            if self.origin is not None:
                size_bytes += ORIGIN_BYTES + len(self.origin[0])
            self._account = account
            self._counted_bytes = size_bytes
            account.add(size_bytes)

    def __del__(self) -> None:
        if self._account is not None:
            self._account.gone(self._counted_bytes)

    def __repr__(self) -> str:
        return f"<SendHead {self.destination!r} {len(self.block)} bytes, {self.version}>"


def _origin_of(headers: Mapping[str, str]) -> Origin | None:
    """Return who sent a SEND, by its headers; None: they do not say. Raises `ProtocolError`."""
    duplicate_id, producer_id = headers.get(_DUPLICATE_ID), headers.get(_PRODUCER_ID)
    if producer_id is not None or _PRODUCER_SEQUENCE in headers:
        if producer_id is None or _PRODUCER_SEQUENCE not in headers:
            there, missing = (
                (_PRODUCER_ID, _PRODUCER_SEQUENCE) if producer_id is not None else (_PRODUCER_SEQUENCE, _PRODUCER_ID)
            )
            raise ProtocolError(
                "bad-producer",
                f"header {there} without {missing}",
                "A producer that wants each message taken once gives both: its name, and the number of the message.",
            )
        _check_origin(_PRODUCER_ID, producer_id)
        return producer_id, whole_number(headers, _PRODUCER_SEQUENCE, _MS_MAX)
    if duplicate_id is None:
        return None
    _check_origin(_DUPLICATE_ID, duplicate_id)
    return duplicate_id, NO_SEQUENCE


def _check_origin(header: str, name: str) -> None:
    """Raise `ProtocolError` for a name of a producer, or an id of a message, that can't be kept."""
    size_bytes = len(name.encode())
    if not 0 < size_bytes <= NAME_BYTES_MAX or _CONTROLS.search(name) is not None:
        raise ProtocolError(
            "bad-producer",
            f"header {header} has {size_bytes} bytes, or characters that do not print: {name[:40]!r}",
            f"Give a name of 1 to {NAME_BYTES_MAX} bytes that is the same whenever the message is sent again.",
        )


def _repeats_of(headers: Mapping[str, str]) -> tuple[int, int]:
    """Return how often a message is delivered again, and the milliseconds between. Raises `ProtocolError`."""
    count = whole_number(headers, _REPEAT, REPEATS_MAX)
    period_ms = whole_number(headers, _PERIOD, _MS_MAX // (REPEATS_MAX + 1))
    if count and not period_ms:
        raise ProtocolError(
            f"bad-{_PERIOD}",
            f"{_REPEAT}:{count} without {_PERIOD}",
            f"Give {_PERIOD}, the milliseconds between two deliveries.",
        )
    return count, period_ms


def _is_neutral(block: bytes) -> bool:
    if _BACKSLASH in block or _CR in block or block.count(b":") != block.count(b"\n") + 1:
        return False
    return not ((_SPACE in block or _TAB in block) and _PADDED.search(block) is not None)


def _cleaned(block: bytes, headers: Mapping[str, str], names: frozenset[str], lines: re.Pattern[bytes]) -> bytes:
    """Return the block without lines of these names. Blanks around a name count as padding, whatever the version.

    A 1.0 subscriber trims, so ``" ack:x"`` from a 1.1 producer would otherwise arrive there as ``ack``.
    """
    if not names.isdisjoint(headers) or (
        (_SPACE in block or _TAB in block or _CR in block) and lines.search(block) is not None
    ):
        block = b"\n".join(line for line in block.split(b"\n") if lines.match(line) is None)
    return block


def _write_block(headers: Mapping[str, str], version: Version) -> bytes:
    lines = [
        f"{escape_name(name, version)}:{escape_value(value, version)}"
        for name, value in headers.items()
        if name.strip(" \t\r") not in BROKER_OWNED_HEADERS
    ]
    return "\n".join(lines).encode()
