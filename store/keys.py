"""Keys of the store: the place of each record, in an order that recovery can seek in.

The first byte of a key is its family. Numbers follow, big-endian, so that keys sort as the numbers do: all records of a
queue are neighbours, in the order of their sequences, and a block of them is one range.

Invariants: bytewise order of two keys of one family is the order of their numbers; `parse_*` undoes the constructor and
accepts nothing else; what a family is called never changes (FORMAT.md).

Deliberately not here: the values (chunks.py, states.py, spool_records.py), and the readers of each range.

Source: DESIGN section 7 ("keys are order-preserving and versioned"). Normative: FORMAT.md.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

FORMAT_VERSION: Final = 2
"""Version of the format of the whole store, kept under META_FORMAT_KEY. A store with a later version is not opened."""

FORMAT_VERSION_MIN: Final = 1
"""Format without segments of values (values.py). A store begins with this one, so that earlier versions read it as long
as it has none; one with an earlier version than this is not opened.
"""

BLOCK_BITS: Final = 10
"""A block is `1 << BLOCK_BITS` aligned sequences. Part of the format: it does not follow what queues do in memory."""

BLOCK_SIZE: Final = 1 << BLOCK_BITS

META: Final = b"\x00"
QUEUE: Final = b"q"
HEAD: Final = b"h"
CHUNK: Final = b"m"
PAGED: Final = b"p"
SUMMARY: Final = b"i"
STATE: Final = b"s"
DURABLE: Final = b"d"
CURSOR: Final = b"f"
TRANSACTION: Final = b"x"
SPOOL: Final = b"t"
VALUE: Final = b"l"
OWNER: Final = b"o"
PAGE_RANGES: Final = b"r"
PREFERENCES: Final = b"u"
SUBSCRIPTION: Final = b"v"
LOG: Final = b"j"
EXTENT: Final = b"b"
BODY: Final = b"y"
PIECE: Final = b"w"
PRODUCER: Final = b"k"
LOG_PRODUCERS: Final = b"n"

FAMILIES: Final = frozenset(
    {META, QUEUE, HEAD, CHUNK, PAGED, SUMMARY, STATE, DURABLE, CURSOR, TRANSACTION, SPOOL, VALUE}
    | {OWNER, PAGE_RANGES, PREFERENCES, SUBSCRIPTION}
    | {LOG, EXTENT, BODY, PIECE, PRODUCER, LOG_PRODUCERS}
)

META_FORMAT_KEY: Final = META + b"format"
META_TOKEN_KEY: Final = META + b"token"
META_NUMBERS_KEY: Final = META + b"numbers"
META_CLEAN_KEY: Final = META + b"clean"

Range = tuple[bytes, bytes]
"""Start and stop of keys, for `Engine.iterate`: start inclusive, stop exclusive."""

_U32_MAX: Final = 2**32 - 1
_U64_MAX: Final = 2**64 - 1

_ONE: Final = Struct(">cI")
_PLACED: Final = Struct(">cIQ")
_PAIR: Final = Struct(">cII")
_TRANSACTION: Final = Struct(">cQI")
_NUMBERED: Final = Struct(">cQ")
_NAMED: Final = Struct(">cH")
_EXTENT: Final = Struct(">c6sQIQQI")

LOG_ID_BYTES: Final = 6
"""Length of a log's id in the keys of its extents."""

_TOPIC_FAMILIES: Final = frozenset({OWNER, PAGE_RANGES})
_SUBSCRIPTION_FAMILIES: Final = frozenset({PREFERENCES, SUBSCRIPTION})

_TEXT_END: Final = b"\xff"
"""Above every UTF-8 text."""

_PLACED_FAMILIES: Final = frozenset({CHUNK, PAGED, SUMMARY, STATE, VALUE})
_QUEUE_FAMILIES: Final = _PLACED_FAMILIES | {QUEUE, HEAD, CURSOR, PRODUCER}


class StoreFormatError(Exception):
    """Bytes that are not what FORMAT.md says, or numbers that do not fit. The message names record and fault."""


class KeyFormatError(StoreFormatError):
    """A key that is none of ours, or an id that does not fit into one."""


def queue_key(queue_id: int) -> bytes:
    """Return the key of the record that describes a queue. Raises KeyFormatError unless `queue_id` is a u32, as all
    functions here do.
    """
    return _pack(_ONE, QUEUE, queue_id)


def head_key(queue_id: int) -> bytes:
    """Return the key of the record with the next sequence of a queue."""
    return _pack(_ONE, HEAD, queue_id)


def chunk_key(queue_id: int, first_sequence: int) -> bytes:
    """Return the key of a chunk of persistent messages that begins with the element `first_sequence` (u64)."""
    return _pack(_PLACED, CHUNK, queue_id, first_sequence)


def paged_key(queue_id: int, first_sequence: int) -> bytes:
    """Return the key of a chunk of messages that were only paged out."""
    return _pack(_PLACED, PAGED, queue_id, first_sequence)


def value_key(queue_id: int, first_sequence: int) -> bytes:
    """Return the key of the place of the chunk at `chunk_key` with the same arguments, where that lies in a segment
    (values.py).
    """
    return _pack(_PLACED, VALUE, queue_id, first_sequence)


def summary_key(queue_id: int, first_sequence: int) -> bytes:
    """Return the key of the summary of the chunk at `chunk_key` with the same arguments."""
    return _pack(_PLACED, SUMMARY, queue_id, first_sequence)


def state_key(queue_id: int, block_index: int) -> bytes:
    """Return the key of the state of a block; `block_index` is `sequence >> BLOCK_BITS`."""
    return _pack(_PLACED, STATE, queue_id, block_index)


def durable_key(durable_id: int) -> bytes:
    """Return the key of a durable subscription (`durable_id`: u32)."""
    return _pack(_ONE, DURABLE, durable_id)


def cursor_key(queue_id: int, durable_id: int) -> bytes:
    """Return the key of the cursor of a durable subscription in one queue. The cursors of a queue are neighbours: they
    hold its elements.
    """
    return _pack(_PAIR, CURSOR, queue_id, durable_id)


def producer_key(queue_id: int, name: str) -> bytes:
    """Return the key of what a queue remembers of a producer, or of the id of a message (`name`: at least one
    character, as `Origin.name_on_disk` has it).
    """
    if not name:
        raise KeyFormatError(f"a producer of queue {queue_id} without a name has no key")
    return _pack(_ONE, PRODUCER, queue_id) + _encoded(name)


def transaction_key(transaction_id: int, place: int) -> bytes:
    """Return the key of one piece (`place`: u32) of a spooled transaction (`transaction_id`: u64). See
    spool_records.py.
    """
    return _pack(_TRANSACTION, TRANSACTION, transaction_id, place)


def spool_key(transaction_id: int) -> bytes:
    """Return the key of the commit record of a spooled transaction."""
    return _pack(_NUMBERED, SPOOL, transaction_id)


def topic_key(family: bytes, topic: str) -> bytes:
    """Return the key of the owner (o) or the page ranges (r) of a topic: 1 to 65,535 bytes of UTF-8."""
    if family not in _TOPIC_FAMILIES:
        raise KeyFormatError(f"keys of family {_shown(family)} are not those of a topic")
    return _named(family, topic)


def subscription_key(family: bytes, topic: str, subscriber: str) -> bytes:
    """Return the key of the preferences (u) or the state (v) of a subscription. Subscriptions of a topic are
    neighbours.
    """
    if family not in _SUBSCRIPTION_FAMILIES:
        raise KeyFormatError(f"keys of family {_shown(family)} are not those of a subscription")
    if not subscriber:
        raise KeyFormatError(f"a subscriber of {topic} without a name has no key")
    return _named(family, topic) + _encoded(subscriber)


def log_key(name: str) -> bytes:
    """Return the key of the head of a log: 1 to 65,535 bytes of UTF-8."""
    return _named(LOG, name)


def log_producers_key(name: str) -> bytes:
    """Return the key of the producers that a log knows: 1 to 65,535 bytes of UTF-8."""
    return _named(LOG_PRODUCERS, name)


def extent_key(
    log_id: bytes, first_index: int, count: int = 0, first_ms: int = 0, last_ms: int = 0, size_bytes: int = 0
) -> bytes:
    """Return the key of an extent of a log: its records, their times, and the length of the value. With the index
    alone: the lowest key for it.
    """
    if len(log_id) != LOG_ID_BYTES:
        raise KeyFormatError(f"the id of a log has {LOG_ID_BYTES} bytes, not {len(log_id)}")
    return _pack(_EXTENT, EXTENT, log_id, first_index, count, first_ms, last_ms, size_bytes)


def body_key(file_id: int) -> bytes:
    """Return the key of the length of a complete large body (`file_id`: u64)."""
    return _pack(_NUMBERED, BODY, file_id)


def piece_key(file_id: int, place: int) -> bytes:
    """Return the key of one piece (`place`: u32) of a large body (`file_id`: u64)."""
    return _pack(_TRANSACTION, PIECE, file_id, place)


def family_of(key: bytes) -> bytes:
    """The family of a key, one byte. Raises KeyFormatError if there is no such family."""
    family = key[:1]
    if family not in FAMILIES:
        raise KeyFormatError(f"key {_shown(key)} is of no known family: it was not written by this version")
    return family


def parse_queue_key(key: bytes) -> int:
    """queue_id of a key of the queue or the head family. Raises KeyFormatError for any other key."""
    return int(_unpack(_ONE, key, "a queue or head key", (QUEUE, HEAD))[1])


def parse_placed_key(key: bytes) -> tuple[int, int]:
    """Return (queue_id, first_sequence) of a chunk, paged or summary key, (queue_id, block_index) of a state key.

    Raises KeyFormatError for any other key.
    """
    _family, queue_id, place = _unpack(_PLACED, key, "a chunk, paged, summary or state key", _PLACED_FAMILIES)
    return queue_id, place


def parse_durable_key(key: bytes) -> int:
    """durable_id of a key of a durable subscription. Raises KeyFormatError for any other key."""
    return int(_unpack(_ONE, key, "a key of a durable subscription", (DURABLE,))[1])


def parse_cursor_key(key: bytes) -> tuple[int, int]:
    """Return (queue_id, durable_id) of a cursor key. Raises KeyFormatError for any other key."""
    _family, queue_id, durable_id = _unpack(_PAIR, key, "a cursor key", (CURSOR,))
    return queue_id, durable_id


def parse_producer_key(key: bytes) -> tuple[int, str]:
    """Return (queue_id, name) of the key of a producer. Raises KeyFormatError for any other key."""
    queue_id = int(_unpack(_ONE, key[: _ONE.size], "the key of a producer", (PRODUCER,))[1])
    name = _decoded(key, _ONE.size, len(key))
    if not name:
        raise KeyFormatError(f"key {_shown(key)} names no producer")
    return queue_id, name


def parse_transaction_key(key: bytes) -> tuple[int, int]:
    """Return (transaction_id, place) of a key of a spooled transaction. Raises KeyFormatError for any other key."""
    _family, transaction_id, place = _unpack(_TRANSACTION, key, "a transaction key", (TRANSACTION,))
    return transaction_id, place


def parse_spool_key(key: bytes) -> int:
    """transaction_id of a key of a committed transaction. Raises KeyFormatError for any other key."""
    return int(_unpack(_NUMBERED, key, "a key of a committed transaction", (SPOOL,))[1])


def parse_topic_key(key: bytes) -> str:
    """The topic of a key of the owner or the page ranges family. Raises KeyFormatError for any other key."""
    topic, end = _topic_of(key, "the key of a topic", _TOPIC_FAMILIES)
    if end != len(key):
        raise KeyFormatError(f"key {_shown(key)} of topic {topic} has {len(key) - end} bytes too many")
    return topic


def parse_subscription_key(key: bytes) -> tuple[str, str]:
    """Return (topic, subscriber) of a key of the preferences or the subscription family. Raises KeyFormatError for any
    other key.
    """
    topic, end = _topic_of(key, "the key of a subscription", _SUBSCRIPTION_FAMILIES)
    subscriber = _decoded(key, end, len(key))
    if not subscriber:
        raise KeyFormatError(f"key {_shown(key)} of topic {topic} names no subscriber")
    return topic, subscriber


def parse_log_key(key: bytes) -> str:
    """Return the name in the key of a log's head. Raises KeyFormatError for any other key."""
    name, end = _topic_of(key, "the key of a log", frozenset({LOG}))
    if end != len(key):
        raise KeyFormatError(f"key {_shown(key)} of log {name} has {len(key) - end} bytes too many")
    return name


def parse_log_producers_key(key: bytes) -> str:
    """Return the log in the key of the producers that it knows. Raises KeyFormatError for any other key."""
    name, end = _topic_of(key, "the key of the producers of a log", frozenset({LOG_PRODUCERS}))
    if end != len(key):
        raise KeyFormatError(f"key {_shown(key)} of log {name} has {len(key) - end} bytes too many")
    return name


def parse_extent_key(key: bytes) -> tuple[bytes, int, int, int, int, int]:
    """Return (log_id, first_index, count, first_ms, last_ms, size_bytes) of an extent's key. Raises KeyFormatError for
    any other key.
    """
    _family, log_id, *numbers = _unpack(_EXTENT, key, "the key of an extent of a log", (EXTENT,))
    first_index, count, first_ms, last_ms, size_bytes = numbers
    return log_id, first_index, count, first_ms, last_ms, size_bytes  # type: ignore[return-value]


def parse_body_key(key: bytes) -> int:
    """file_id of the key of a body's length. Raises KeyFormatError for any other key."""
    _family, file_id = _unpack(_NUMBERED, key, "the key of a large body", (BODY,))
    return file_id


def parse_piece_key(key: bytes) -> tuple[int, int]:
    """Return (file_id, place) of the key of a piece of a large body. Raises KeyFormatError for any other key."""
    _family, file_id, place = _unpack(_TRANSACTION, key, "the key of a piece of a large body", (PIECE,))
    return file_id, place


def extents_range(log_id: bytes, first_index: int = 0) -> Range:
    """All extents of a log from an index on."""
    number = int.from_bytes(log_id, "big") + 1
    stop = family_range(EXTENT)[1] if number >> 8 * LOG_ID_BYTES else EXTENT + number.to_bytes(LOG_ID_BYTES, "big")
    return extent_key(log_id, first_index), stop


def subscriptions_range(family: bytes, topic: str) -> Range:
    """All keys of the subscriptions of a topic in one of their families."""
    if family not in _SUBSCRIPTION_FAMILIES:
        raise KeyFormatError(f"keys of family {_shown(family)} are not those of a subscription")
    start = _named(family, topic)
    return start, start + _TEXT_END


def family_range(family: bytes) -> Range:
    """All keys of a family."""
    if family not in FAMILIES:
        raise KeyFormatError(f"{_shown(family)} is no family of keys")
    return family, bytes((family[0] + 1,))


def queue_range(family: bytes, queue_id: int) -> Range:
    """All keys of one queue in a family that begins with the queue_id: q, h, m, p, i, s, f, k. Else KeyFormatError."""
    if family not in _QUEUE_FAMILIES:
        raise KeyFormatError(f"keys of family {_shown(family)} do not begin with a queue")
    start = _pack(_ONE, family, queue_id)
    return start, _pack(_ONE, family, queue_id + 1) if queue_id < _U32_MAX else family_range(family)[1]


def transaction_range(transaction_id: int) -> Range:
    """All pieces of a spooled transaction."""
    start = _pack(_TRANSACTION, TRANSACTION, transaction_id, 0)
    if transaction_id == _U64_MAX:
        return start, family_range(TRANSACTION)[1]
    return start, _pack(_TRANSACTION, TRANSACTION, transaction_id + 1, 0)


def _pack(layout: Struct, family: bytes, *numbers: int | bytes) -> bytes:
    try:
        return layout.pack(family, *numbers)
    except StructError as error:
        raise KeyFormatError(f"a key of family {_shown(family)} can't hold {numbers}: {error}") from error


def _named(family: bytes, topic: str) -> bytes:
    data = _encoded(topic)
    if not data:
        raise KeyFormatError(f"a topic without a name has no key of family {_shown(family)}")
    return _pack(_NAMED, family, len(data)) + data


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise KeyFormatError(f"no key can hold the name {text!r}: {error}") from error


def _topic_of(key: bytes, what: str, families: frozenset[bytes]) -> tuple[str, int]:
    """The topic, and where it ends in the key."""
    if len(key) <= _NAMED.size or key[:1] not in families:
        raise KeyFormatError(f"key {_shown(key)} is not {what}")
    end = _NAMED.size + int.from_bytes(key[1 : _NAMED.size], "big")
    if not _NAMED.size < end <= len(key):
        raise KeyFormatError(f"key {_shown(key)} is not {what}: its topic does not end in it")
    return _decoded(key, _NAMED.size, end), end


def _decoded(key: bytes, start: int, end: int) -> str:
    try:
        return key[start:end].decode()
    except UnicodeDecodeError as error:
        raise KeyFormatError(f"key {_shown(key)} has a name that is no UTF-8: {error}") from error


def _unpack(layout: Struct, key: bytes, what: str, families: tuple[bytes, ...] | frozenset[bytes]) -> tuple[int, ...]:
    """Return the family and the numbers. Typed as numbers throughout: no caller uses the family."""
    if len(key) != layout.size or key[:1] not in families:
        raise KeyFormatError(f"key {_shown(key)} is not {what} ({layout.size} bytes)")
    numbers: tuple[int, ...] = layout.unpack(key)
    return numbers


def _shown(key: bytes) -> str:
    return key[:24].hex(" ", 1) + (" …" if len(key) > 24 else "") if key else "(empty)"
