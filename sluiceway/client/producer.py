"""`Producer`: sends records to a log, at one broker or spread over several.

Source: seed 001, "The Design of the Producer".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

import attrs

from sluiceway.client.address import Address, parse_all
from sluiceway.client.backoff import Backoff
from sluiceway.client.errors import ClientError
from sluiceway.client.outbox import Outbox, SendingOptions
from sluiceway.client.packs import Sent
from sluiceway.client.partitioning import Partitioner, key_bytes, partitioner_named
from sluiceway.protocols.stomp.encoder import encode_frame
from sluiceway.queues.logs.batches import COUNT_MAX
from sluiceway.queues.logs.codecs import codec_named
from sluiceway.queues.logs.partitions import partition_of

R = TypeVar("R", Sent, int)
"""Result of `send`: a handle, or in the mode `sync` the index."""

Compression = Literal["none", "gzip", "snappy", "zstd"]
NUMBERED_WINDOW_MAX: Final = 16
"""Batches under way of a producer with an id: the broker remembers the places of as many (`RECENT_COUNT`)."""
PRODUCER_ID_BYTES_MAX: Final = 200
_NOT_HEADERS: Final = frozenset({"destination", "content-length", "content-type", "receipt", "transaction"})


def bytes_of(value: Any) -> bytes:
    """Encode by default: bytes as they are, text in UTF-8. Raises TypeError for anything else."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a record is bytes or str, not {type(value).__name__}: give the producer an encoder for it")


@attrs.frozen
class ProducerStatistics:
    """Counts of a producer's work so far, at all its brokers."""

    records_count: int
    """Records that are in the log: receipted."""
    batches_count: int
    """Batches that they were sent in."""
    resent_count: int
    """Batches that were sent again after a connection was lost."""
    failed_count: int
    """Records that could not be sent."""
    held_bytes: int
    """Bytes of the records that wait for their receipt."""


class Producer(Generic[R]):
    """Sends records. For any number of threads; a context manager that ends with `close`.

    Records without a receipt are sent again after a lost connection: with a `producer_id` each comes into the log once,
    without it a record may come twice. Records for one broker keep the order of the calls, also then.
    """

    @overload
    def __init__(
        self: Producer[Sent],
        brokers: str | Address | Iterable[str | Address],
        log: str,
        *,
        mode: Literal["async"] = "async",
        encoder: Callable[[Any], bytes] = bytes_of,
        partitioner: Literal["random", "hash"] | Partitioner = "random",
        partitions: int | None = None,
        compression: Compression = "none",
        headers: Mapping[str, str] | None = None,
        producer_id: str | None = None,
        first_sequence: int | None = None,
        batch_count: int = ...,
        batch_bytes: int = ...,
        linger_seconds: float = ...,
        buffer_bytes: int = ...,
        window_count: int = ...,
        give_up_seconds: float = ...,
        follow: bool = True,
        login: str | None = None,
        passcode: str | None = None,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[int],
        brokers: str | Address | Iterable[str | Address],
        log: str,
        *,
        mode: Literal["sync"],
        encoder: Callable[[Any], bytes] = bytes_of,
        partitioner: Literal["random", "hash"] | Partitioner = "random",
        partitions: int | None = None,
        compression: Compression = "none",
        headers: Mapping[str, str] | None = None,
        producer_id: str | None = None,
        first_sequence: int | None = None,
        batch_count: int = ...,
        batch_bytes: int = ...,
        linger_seconds: float = ...,
        buffer_bytes: int = ...,
        window_count: int = ...,
        give_up_seconds: float = ...,
        follow: bool = True,
        login: str | None = None,
        passcode: str | None = None,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None: ...

    def __init__(
        self,
        brokers: str | Address | Iterable[str | Address],
        log: str,
        *,
        mode: str = "async",
        encoder: Callable[[Any], bytes] = bytes_of,
        partitioner: Literal["random", "hash"] | Partitioner = "random",
        partitions: int | None = None,
        compression: Compression = "none",
        headers: Mapping[str, str] | None = None,
        producer_id: str | None = None,
        first_sequence: int | None = None,
        batch_count: int = 10_000,
        batch_bytes: int = 512 * 1024,
        linger_seconds: float = 0.01,
        buffer_bytes: int = 32 * 1024 * 1024,
        window_count: int = 8,
        give_up_seconds: float = 60.0,
        follow: bool = True,
        login: str | None = None,
        passcode: str | None = None,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """Configure a producer. The first record opens the connections.

        `brokers`: HOST:PORT or stomp://LOGIN:PASSCODE@HOST:PORT, one or several. Hubs of one cluster are one broker:
        HUB|HUB|HUB, any of them.
        `log`: the log's name, with or without `/log/`.
        `mode`: `async`: `send` returns a handle at once. `sync`: it returns the index when the broker has the record on
        its disk; records of several threads still share batches.
        `encoder`: from what `send` is given to bytes; default for bytes and str.
        `partitioner`: choice of the broker for a record: `random`, `hash` of the key, or a function (key, brokers) ->
        place among them.
        `partitions`: number of partitions of the log (`log_partitions` of the broker), each with a connection of its
        own: a record goes to the one of its key, CRC-32 of its bytes modulo this number, without a key to one after the
        other.
        With another number than the broker has all records fail. None: the log has none, or `log` names one of them.
        `compression`: of batches. CPU of producers and consumers against network and disk.
        `headers`: of every record.
        `producer_id`: name of this producer, which no other one has that sends at the same time. With it a batch that
        is sent again after a lost connection comes into the log once.
        `first_sequence`: number of its first batch, above those of an earlier producer of this name. By default the
        clock, in microseconds since 1970.
        `batch_count`: a batch is sent when it has this many records,
        `batch_bytes`: or this many bytes,
        `linger_seconds`: or when its first record has waited this long. More means larger batches and later records; in
        the mode `sync` nothing lingers.
        `buffer_bytes`: of records without receipt, for each broker. Then `send` waits.
        `window_count`: batches that may be under way without receipt, for each broker.
        `give_up_seconds`: waiting records fail after this time without a broker. A slow broker is waited for.
        `follow`: at a cluster, connect to the hub that has the log, and follow it to another one. False: stay at the
        hub that was found first.
        `login`: where an address names none; `passcode` likewise.
        `backoff`: makes the waits between attempts to connect.
        Raises ValueError for invalid arguments.
        """
        if mode not in ("async", "sync"):
            raise ValueError(f"mode {mode!r} is not known: use 'async' or 'sync'")
        for name, value in (
            ("batch_count", batch_count),
            ("batch_bytes", batch_bytes),
            ("buffer_bytes", buffer_bytes),
            ("window_count", window_count),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        if producer_id is not None and window_count > NUMBERED_WINDOW_MAX:
            raise ValueError(f"window_count is {window_count}: with a producer_id it is {NUMBERED_WINDOW_MAX} at most")
        if first_sequence is not None and (producer_id is None or first_sequence < 0):
            raise ValueError(f"first_sequence is {first_sequence}: it is 0 or more, and goes with a producer_id")
        if producer_id is not None and not 0 < len(producer_id.encode()) <= PRODUCER_ID_BYTES_MAX:
            raise ValueError(f"producer_id has {len(producer_id)} characters: 1 to {PRODUCER_ID_BYTES_MAX} bytes")
        if partitions is not None and partitions < 2:
            raise ValueError(f"partitions is {partitions}: it is 2 or more, or None")
        if batch_count > COUNT_MAX:
            raise ValueError(f"batch_count is {batch_count}: a batch holds at most {COUNT_MAX} records")
        addresses = parse_all(brokers, login, passcode)
        self.log = log.removeprefix("/log/")
        self.brokers = tuple(map(str, addresses))
        """HOST:PORT of each, in the order given."""
        self._sync = mode == "sync"
        self._encoder = encoder
        self._partitioner = partitioner_named(partitioner)
        options = SendingOptions(
            destination=f"/log/{self.log}",
            head=_head(headers or {}),
            codec=codec_named(compression),
            batch_count=batch_count,
            batch_bytes=batch_bytes,
            linger_seconds=0.0 if self._sync else linger_seconds,
            buffer_bytes=buffer_bytes,
            window_count=window_count,
            give_up_seconds=give_up_seconds,
            follow=follow,
            producer_id=producer_id,
            first_sequence=time.time_ns() // 1000 if first_sequence is None else first_sequence,
            partitions=partitions,
        )
        self._partitions_count = partitions or 1
        self._turns = count()
        destinations = [options.destination]
        if partitions is not None:
            destinations = [f"{options.destination}/{number}" for number in range(partitions)]
        self._outboxes = tuple(
            Outbox(address, attrs.evolve(options, destination=destination), backoff())
            for address in addresses
            for destination in destinations
        )
        """Outboxes of each broker, by partition."""
        self._only = self._outboxes[0] if len(self._outboxes) == 1 else None

    def send(self, value: Any, *, key: bytes | str | None = None, timeout_seconds: float | None = None) -> R:
        """Send one record.

        `key`: stored with it, and given to the partitioner.
        `timeout_seconds`: how long to wait for room in the buffer (and in the mode `sync` for the receipt); without it,
        as long as it takes.
        Returns a handle, or in the mode `sync` the record's index.
        Raises BufferFullError: no room within that time; the record was not kept.
        Raises TimeoutError: in the mode `sync`, no receipt within that time; it may come yet.
        Raises ClientError: the record (`sync`) or one before it, whose error was not reported yet, could not be sent.
        In the latter case this one was not kept.
        """
        outbox = self._only or self._outbox(key)
        if outbox.has_failed:
            self._raise_failure()
        stored_key = None if key is None else key_bytes(key)
        pack, place = outbox.put(self._encoder(value), stored_key, timeout_seconds)
        sent = Sent(pack, place)
        return cast(R, sent.result(timeout_seconds) if self._sync else sent)

    def send_many(
        self, values: Iterable[Any], *, key: bytes | str | None = None, timeout_seconds: float | None = None
    ) -> R:
        """Send records to one broker, in order; much cheaper than one by one. `key` is the key of all of them.

        Returns and raises as `send`, for all of them together: the handle gives the index of the first. They may lie
        in several batches, with records of others between. After BufferFullError some of them are sent nevertheless.
        ValueError if there are none.
        """
        encoded = [self._encoder(value) for value in values]
        if not encoded:
            raise ValueError("send_many without a record: there is nothing to send")
        outbox = self._only or self._outbox(key)
        if outbox.has_failed:
            self._raise_failure()
        packs, place = outbox.put_many(encoded, None if key is None else key_bytes(key), timeout_seconds)
        sent = Sent(packs[0], place, tuple(packs[1:]))
        return cast(R, sent.result(timeout_seconds) if self._sync else sent)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Send what waits, and wait until the fate of all records is known.

        Raises TimeoutError, and the error of a record that was not reported yet.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for outbox in self._outboxes:
            outbox.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._raise_failure()

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, and end the connections; `send` raises ClosedError from now on. Again: does nothing.

        Raises as `flush`. After TimeoutError the records that were left have failed with ClosedError, though some may
        have come into the log.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        late: TimeoutError | None = None
        for outbox in self._outboxes:
            try:
                outbox.close(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                late = late or error
        if late is not None:
            raise late
        self._raise_failure()

    def statistics(self) -> ProducerStatistics:
        """Return the counts up to now."""
        tallies = [outbox.tally for outbox in self._outboxes]
        return ProducerStatistics(
            records_count=sum(tally.records_count for tally in tallies),
            batches_count=sum(tally.batches_count for tally in tallies),
            resent_count=sum(tally.resent_count for tally in tallies),
            failed_count=sum(tally.failed_count for tally in tallies),
            held_bytes=sum(outbox.held_bytes for outbox in self._outboxes),
        )

    def __enter__(self) -> Producer[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except (ClientError, TimeoutError) as failure:
            error.add_note(f"moreover, closing the producer failed: {failure}")

    def _outbox(self, key: bytes | str | None) -> Outbox:
        brokers_count, partitions_count = len(self.brokers), self._partitions_count
        place = self._partitioner(key, self.brokers) if brokers_count > 1 else 0
        if not 0 <= place < brokers_count:
            raise ValueError(f"the partitioner chose broker {place} of {brokers_count}: they count from 0")
        if partitions_count == 1:
            return self._outboxes[place]
        if key is None:
            number = next(self._turns) % partitions_count
        else:
            number = partition_of(key_bytes(key), partitions_count)
        return self._outboxes[place * partitions_count + number]

    def _raise_failure(self) -> None:
        failures = [failure for outbox in self._outboxes if (failure := outbox.take_failure()) is not None]
        if failures:
            raise failures[0]


def _head(headers: Mapping[str, str]) -> bytes:
    """Encode headers as header lines of STOMP 1.2. Raises ValueError."""
    for name in headers:
        if not name or name in _NOT_HEADERS:
            raise ValueError(f"header {name!r} can't be one of a record: choose another name")
    frame = encode_frame("SEND", headers.items(), version="1.2")
    return frame[len(b"SEND\n") : frame.index(b"\n\n") + 1] if headers else b""
