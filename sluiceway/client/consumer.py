"""`Consumer`: reads logs, at one broker or several, as streams of records.

Source: seed 001, "The Design of the Consumer".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar, overload

import attrs

from sluiceway.client.address import Address, parse_all
from sluiceway.client.backoff import Backoff
from sluiceway.client.errors import ClosedError, Gap, GapError
from sluiceway.client.inbox import Inbox
from sluiceway.client.reader import CREDIT_COUNT, Reader, ReadingOptions
from sluiceway.client.records import Record
from sluiceway.queues.logs.codecs import codec_named

T = TypeVar("T")

_STARTS: Final = ("earliest", "latest", "next")
_POLL_SECONDS: Final = 0.01


@attrs.frozen
class ConsumerStatistics:
    """Counts of a consumer's work so far, and of waiting records."""

    records_count: int
    """Given to programs."""
    gaps_count: int
    """Gaps that streams came across."""
    reconnects_count: int
    held_bytes: int
    """Bytes of the records that wait for a stream."""


class Stream(Generic[T]):
    """Records of one log, as they come. For one thread; several streams of a log share what comes, a MESSAGE at a time.

    An iterator: it waits for records, and ends when the range has ended or the consumer is closed. It raises what its
    readers met (RefusedError, CannotConnectError, GapError, LogDeletedError, DamagedError), behind the records that
    came before. A loop can be resumed after `break`.
    """

    def __init__(
        self, log: str, inbox: Inbox, decoder: Callable[[bytes], T] | None, auto_ack: bool, gap: Callable[[Gap], None]
    ) -> None:
        """Made by `Consumer.streams`."""
        self.log = log
        self.records_count = 0
        """Given to the program."""
        self._inbox = inbox
        self._decoder = decoder
        self._auto_ack = auto_ack
        self._gap = gap
        self._left: Iterator[Record[T]] = iter(())
        self._in_hand: list[Record[T]] = []
        self._records = self._iterate()

    def __iter__(self) -> Iterator[Record[T]]:
        return self._records

    def __next__(self) -> Record[T]:
        return next(self._records)

    def poll(self, timeout_seconds: float | None = None) -> list[Record[T]]:
        """Return the records of one MESSAGE (or its rest), as soon as there are some; the quickest way. An empty list
        after that time, or at the end: see `ended`. Asking acknowledges earlier records, as `next` does.
        """
        left = list(self._left)
        return left or self._take(timeout_seconds)

    @property
    def ended(self) -> bool:
        """Whether no record will come any more."""
        return self._inbox.ended

    @property
    def idle(self) -> bool:
        """Whether the program has asked beyond all that it was given."""
        return not self._in_hand

    def ack(self, record: Record[T]) -> None:
        """Acknowledge a record, in a group with `auto_ack=False`. Its MESSAGE is settled when all its records are; so
        records of an unfinished one come again, acknowledged or not. Any order; again does nothing.
        """
        if self._auto_ack:
            raise ValueError("this consumer acknowledges by itself; for explicit ones give it auto_ack=False")
        delivery = record.delivery
        if delivery is None:
            raise ValueError(f"record {record.index} of log {record.log} did not come from a consumer")
        settled = delivery.settled
        if record.index in settled:
            return
        settled.add(record.index)
        if len(settled) == delivery.count:
            delivery.reader.acknowledge(delivery)

    def _iterate(self) -> Iterator[Record[T]]:
        while True:
            yield from self._left
            if not self._take(None):
                return
            self._left = iter(self._in_hand)

    def _take(self, timeout_seconds: float | None) -> list[Record[T]]:
        """The next records, in `_in_hand`; those before are done with."""
        done, self._in_hand = self._in_hand, []
        if done and self._auto_ack:
            delivery = done[0].delivery
            assert delivery is not None
            delivery.reader.acknowledge(delivery)
        while True:
            item = self._inbox.take(timeout_seconds)
            if item is None:
                return []
            if isinstance(item, Gap):
                self._gap(item)
                continue
            self._in_hand = item.records(self._decoder, self._gap)
            self.records_count += len(self._in_hand)
            if self._in_hand:
                return self._in_hand
            item.reader.acknowledge(item)  # all of it is damaged, and was told


class Consumer:
    """Reads logs. A context manager that ends with `close`.

    In a group each record goes to one of its consumers, and the broker keeps the place: a record that was not
    acknowledged comes again (at least once). Without a group each consumer gets all records, and keeps the place
    itself: also over lost connections, but not over its own end.
    """

    def __init__(
        self,
        brokers: str | Address | Iterable[str | Address],
        *,
        group: str | None = None,
        from_: int | str | None = None,
        to: int | None = None,
        auto_ack: bool = True,
        on_gap: Literal["report", "error"] = "report",
        gap_callback: Callable[[Gap], None] | None = None,
        batch_bytes: int = 256 * 1024,
        buffer_bytes: int = 8 * 1024 * 1024,
        compression: Iterable[str] = ("gzip", "snappy", "zstd"),
        give_up_seconds: float = 60.0,
        follow: bool = True,
        login: str | None = None,
        passcode: str | None = None,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """Configure a consumer. Connections are opened by `streams`.

        `brokers`: HOST:PORT or stomp://LOGIN:PASSCODE@HOST:PORT, one or several; each is read. Hubs of one cluster are
        one broker: HUB|HUB|HUB, any of them.
        `group`: the group to belong to.
        `from_`: first record: `earliest`, `latest` (the last record there is), `next` (what is appended from now on,
        the default), an index, `INDEX@LOGID` (as `Record.next_place` says it: of that very log, and not of another one
        that was made under its name), or `time:MS`. In a group it counts only when the group is new.
        `to`: the index to end before.
        `auto_ack`: in a group, acknowledge records when the next ones are asked for; otherwise by `Stream.ack`.
        `on_gap`: handling of missing or damaged records: `report` counts them and continues, `error` raises GapError in
        the streams.
        `gap_callback`: called with each gap that is reported, in the thread of the stream.
        `batch_bytes`: approximate size of one MESSAGE.
        `buffer_bytes`: limit of records in memory, for each log; then the broker waits. A single batch may be larger:
        it comes whole.
        `compression`: codecs in which batches may come as they are; others are expanded by the broker.
        `give_up_seconds`: the streams raise CannotConnectError after this time without a connection.
        `follow`: at a cluster, connect to the hub that has a log, and follow it to another one, with a connection for
        each log as always. False: stay at the hub that was found first.
        `login`: where an address names none; `passcode` likewise.
        `backoff`: makes the waits between attempts to connect.
        Raises ValueError for invalid arguments.
        """
        self._addresses = parse_all(brokers, login, passcode)
        self.brokers = tuple(map(str, self._addresses))
        """HOST:PORT of each, in the order given."""
        if not auto_ack and group is None:
            raise ValueError("auto_ack=False without a group: nothing can be acknowledged; give a group")
        if to is not None and group is not None:
            raise ValueError("a range (to) and a group exclude each other: a group has no end")
        if on_gap not in ("report", "error"):
            raise ValueError(f"on_gap {on_gap!r} is not known: use 'report' or 'error'")
        if buffer_bytes < 1 or batch_bytes < 1:
            raise ValueError("batch_bytes and buffer_bytes must be at least 1")
        start, log_id = _start(from_)
        self._options = ReadingOptions(
            group=group,
            start=start,
            log_id=log_id,
            end=to,
            batch_bytes=min(batch_bytes, buffer_bytes),
            buffer_bytes=buffer_bytes,
            compression=",".join(codec_named(name).label for name in compression if name != "none"),
            gap_is_error=on_gap == "error",
            give_up_seconds=give_up_seconds,
            follow=follow,
        )
        self._auto_ack = auto_ack
        self._gap_callback = gap_callback
        self._gaps_count = 0
        self._backoff = backoff
        self._closed = False
        self._is_paused = False
        self._prefetch_count: int | None = None
        self._readers: list[Reader] = []
        self._inboxes: dict[str, Inbox] = {}
        self._streams: list[Stream[Any]] = []

    @overload
    def streams(self, counts: Mapping[str, int]) -> dict[str, list[Stream[bytes]]]: ...

    @overload
    def streams(self, counts: Mapping[str, int], decoder: Callable[[bytes], T]) -> dict[str, list[Stream[T]]]: ...

    def streams(
        self, counts: Mapping[str, int], decoder: Callable[[bytes], Any] | None = None
    ) -> dict[str, list[Stream[Any]]]:
        """Begin to read logs: for each name, a number of streams that share the records.

        `decoder`: from the bytes of a record to its value; default the bytes themselves. What it raises, the stream
        raises.
        Raises ValueError for a log that is read already, or less than one stream.
        Raises ClosedError: the consumer is closed.
        """
        if self._closed:
            raise ClosedError("the consumer is closed: make a new one")
        names = {name: name.removeprefix("/log/") for name in counts}
        for name, log in names.items():
            if counts[name] < 1:
                raise ValueError(f"{counts[name]} streams for log {log}: at least one is needed")
            if log in self._inboxes or list(names.values()).count(log) > 1:
                raise ValueError(f"log {log} is read already: ask for all its streams at once")
        made: dict[str, list[Stream[Any]]] = {}
        for name, log in names.items():
            inbox = self._inboxes[log] = Inbox(self._options.buffer_bytes, len(self._addresses))
            made[name] = [Stream(log, inbox, decoder, self._auto_ack, self._gap) for _ in range(counts[name])]
            self._streams += made[name]
            readers = [Reader(address, log, self._options, inbox, self._backoff) for address in self._addresses]
            self._readers += readers
            for reader in readers:
                reader.set_credit(paused=self._is_paused, prefetch_count=self._prefetch_count)
                reader.start()
        return made

    @overload
    def stream(self, log: str) -> Stream[bytes]: ...

    @overload
    def stream(self, log: str, decoder: Callable[[bytes], T]) -> Stream[T]: ...

    def stream(self, log: str, decoder: Callable[[bytes], Any] | None = None) -> Stream[Any]:
        """One stream of one log; as `streams`."""
        made: dict[str, list[Stream[Any]]] = self.streams({log: 1}, decoder) if decoder else self.streams({log: 1})
        return made[log][0]

    def pause(self) -> None:
        """Have the brokers send nothing for now. What they have sent already still comes, and may be acknowledged. A
        group gives what is appended meanwhile to its other consumers. Holds over lost connections; again: does nothing.
        """
        self._is_paused = True
        for reader in self._readers:
            reader.set_credit(paused=True)

    def resume(self) -> None:
        """Have the brokers send again, behind what came last."""
        self._is_paused = False
        for reader in self._readers:
            reader.set_credit(paused=False)

    def set_prefetch(self, count: int) -> None:
        """Set how many MESSAGEs of about `batch_bytes` each log may have sent without acknowledgement, in place of as
        many as `buffer_bytes` holds. What has come already stays. Raises ValueError for less than one, and without a
        group: there nothing is acknowledged, and `buffer_bytes` is the limit.
        """
        if self._options.group is None:
            raise ValueError("set_prefetch without a group: nothing is acknowledged; buffer_bytes is the limit")
        if not 1 <= count <= CREDIT_COUNT:
            raise ValueError(f"set_prefetch({count}): 1 to {CREDIT_COUNT} messages; use pause() for none")
        self._prefetch_count = count
        for reader in self._readers:
            reader.set_credit(prefetch_count=count)

    def close(self, drain_seconds: float = 0.0) -> None:
        """Stop reading, and end the connections and the streams. Again: does nothing.

        `drain_seconds`: time for the streams, in other threads, to take and process all records in memory. Then, and
        without it at once, the rest is requeued to its group; without a group it is dropped: resume behind the last
        `Record.index`.
        """
        if self._closed:
            return
        self._closed = True
        for inbox in self._inboxes.values():
            inbox.close(keep=drain_seconds > 0)
        deadline = time.monotonic() + drain_seconds
        while time.monotonic() < deadline and not self._drained():
            time.sleep(_POLL_SECONDS)
        for inbox in self._inboxes.values():
            inbox.close(keep=False)
        for reader in self._readers:
            reader.stop()

    def statistics(self) -> ConsumerStatistics:
        """Return the counts up to now."""
        return ConsumerStatistics(
            records_count=sum(stream.records_count for stream in self._streams),
            gaps_count=self._gaps_count,
            reconnects_count=sum(reader.reconnects_count for reader in self._readers),
            held_bytes=sum(inbox.held_bytes for inbox in self._inboxes.values()),
        )

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _drained(self) -> bool:
        return all(inbox.ended for inbox in self._inboxes.values()) and all(stream.idle for stream in self._streams)

    def _gap(self, gap: Gap) -> None:
        if self._options.gap_is_error:  # the reader has reported the others: this one was found only now
            raise GapError(gap)
        self._gaps_count += 1
        if self._gap_callback is not None:
            self._gap_callback(gap)


def _start(from_: int | str | None) -> tuple[str, str]:
    """Return the values of the headers `from` and `log-id`. Raises ValueError."""
    if from_ is None:
        return "next", ""
    if isinstance(from_, int):
        if from_ < 0:
            raise ValueError(f"from_ is {from_}: indexes count from 0")
        return str(from_), ""
    index, _at, log_id = from_.partition("@")
    if index.isascii() and index.isdecimal() and log_id.isascii() and log_id.isalnum():
        return index, log_id
    time_ms = from_.removeprefix("time:")
    if from_ in _STARTS or (time_ms != from_ and time_ms.isdecimal()):
        return from_, ""
    raise ValueError(f"from_ {from_!r} is not known: use {', '.join(_STARTS)}, an index, INDEX@LOGID or 'time:MS'")
