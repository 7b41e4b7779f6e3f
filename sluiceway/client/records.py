"""Records as programs get them, and how a MESSAGE becomes a list of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

import attrs

from sluiceway.client.errors import DamagedError, Gap
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.escaping import unescape
from sluiceway.queues.logs.batches import CONTENT_TYPE, Batch, BatchError, Damage, sound

if TYPE_CHECKING:
    from sluiceway.client.reading_link import ReadingLink

T = TypeVar("T")

_OF_THE_MESSAGE: Final = frozenset(
    {
        "destination", "subscription", "message-id", "ack", "content-length", "index", "timestamp", "count",
        "redelivered", "delivery-count",
    }
)  # fmt: skip
"""Headers that a MESSAGE has, not its record."""


@attrs.define(slots=True)
class Record(Generic[T]):
    """One record of a log."""

    log: str
    index: int
    timestamp_ms: int
    """Time of the append by the broker, in milliseconds since 1970."""
    key: bytes | None
    value: T
    headers: Mapping[str, str]
    """Headers of the record; records of one batch share the mapping, so don't change it."""
    broker: str
    """HOST:PORT. Records of several brokers may have the same index."""
    delivery: Delivery | None = attrs.field(default=None, repr=False, eq=False)
    """Delivery that the record belongs to; for `Stream.ack`."""

    @property
    def next_place(self) -> str:
        """Place behind this record, for `from_`: the index, and the id of the log."""
        message_id = "" if self.delivery is None else self.delivery.headers.get("message-id", "")
        log_id = message_id.removeprefix("log.").partition("-")[0]
        return f"{self.index + 1}@{log_id}" if log_id else str(self.index + 1)


class DeliversRecords(Protocol):
    """Reader of a log at a broker, which made a delivery."""

    log: str
    broker: str

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle the delivery at its broker."""


@attrs.define(slots=True, eq=False)
class Delivery:
    """Content of one MESSAGE: a run of records, acknowledged together."""

    reader: DeliversRecords
    link: ReadingLink
    token: str | None
    """Header `ack` of the MESSAGE."""
    first: int
    count: int
    headers: Mapping[str, str]
    body: bytes
    settled: set[int] = attrs.field(factory=set)
    """Indexes that were acknowledged one by one."""

    @property
    def size_bytes(self) -> int:
        """Size that counts in a buffer."""
        return len(self.body) + 256

    def records(self, decoder: Callable[[bytes], T] | None, damaged: Callable[[Gap], None]) -> list[Record[T]]:
        """Return the decoded records. `damaged` is called with the damaged ones, which count as acknowledged. Raises
        DamagedError for an invalid MESSAGE, and the exceptions of `damaged` and the decoder.
        """
        if self.headers.get("content-type") == CONTENT_TYPE:
            return self._of_batches(decoder, damaged)
        own = {name: value for name, value in self.headers.items() if name not in _OF_THE_MESSAGE}
        return [
            Record(
                log=self.reader.log,
                index=self.first,
                timestamp_ms=int(self.headers.get("timestamp", 0)),
                key=key_of(own),
                value=cast(T, self.body) if decoder is None else decoder(self.body),
                headers=own,
                broker=self.reader.broker,
                delivery=self,
            )
        ]

    def _of_batches(self, decoder: Callable[[bytes], T] | None, damaged: Callable[[Gap], None]) -> list[Record[T]]:
        records: list[Record[T]] = []
        log, broker = self.reader.log, self.reader.broker
        missing_count = 0
        for part in sound(self.body, self.first, self.first + self.count):
            if isinstance(part, Damage):
                missing_count += part.end_index - part.first_index
                self.settled.update(range(part.first_index, part.end_index))
                damaged(Gap(log, broker, part.first_index, part.end_index, "damaged"))
                continue
            try:
                records += self._of_batch(part, decoder)
            except BatchError as error:
                raise DamagedError(
                    f"records from {self.first} of log {log} at {broker} are damaged: {error}"
                ) from error
        if len(records) + missing_count != self.count:
            raise DamagedError(
                f"{broker} announced {self.count} records from {self.first} of log {log}, and sent {len(records)}"
            )
        return records

    def _of_batch(self, batch: Batch, decoder: Callable[[bytes], T] | None) -> list[Record[T]]:
        """Return the records of a batch that are in this delivery. Raises BatchError, and the exceptions of the
        decoder.
        """
        # A reader that begins in the middle of a batch gets all of it.
        start = max(0, self.first - batch.first_index)
        stop = min(batch.count, self.first + self.count - batch.first_index)
        if start >= stop:
            return []
        log, broker = self.reader.log, self.reader.broker
        values: list[Any] = [bytes(value) for value in batch.values(start, stop)]
        if decoder is not None:
            values = list(map(decoder, values))
        stored_keys = batch.keys(start, stop)
        head = headers_of(batch.head)
        time_ms = batch.timestamp_ms
        index = batch.first_index + start
        if stored_keys is None:
            key_of_all = key_of(head)  # of a record that was sent by itself
            return [
                Record(log, place, time_ms, key_of_all, value, head, broker, self)
                for place, value in enumerate(values, index)
            ]
        return [
            Record(log, place, time_ms, bytes(key) or None, value, head, broker, self)
            for place, (key, value) in enumerate(zip(stored_keys, values, strict=True), index)
        ]


def key_of(headers: Mapping[str, str]) -> bytes | None:
    """The key of a record or message as its headers say: `key`, or `key-base64` where the key is no text that every
    version of STOMP reads the same. None: there is none, or none that can be read.
    """
    key = headers.get("key")
    if key:
        return key.encode()
    try:
        return base64.b64decode(headers.get("key-base64", ""), validate=True) or None
    except (binascii.Error, ValueError):
        return None


@lru_cache(maxsize=256)
def headers_of(head: bytes) -> Mapping[str, str]:
    """Return the header lines of a batch. Of repeated ones the first counts. Raises BatchError."""
    headers: dict[str, str] = {}
    try:
        for line in head.decode().splitlines():
            name, _colon, value = line.partition(":")
            headers.setdefault(unescape(name, "1.2"), unescape(value, "1.2"))
    except (ProtocolError, UnicodeDecodeError) as error:
        raise BatchError(f"its headers can't be read: {error}") from None
    return headers
