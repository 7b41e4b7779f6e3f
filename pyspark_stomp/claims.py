"""Queues as a source: of streams, by claims; of batches, by browsing.

Acknowledgements of STOMP belong to the connection that received a message, and in Spark the processes that read are not
the one that knows of commits. So the broker keeps *claims* (queues/logs/claims.py): claim n of a group is a number of
messages of the queue, kept as a range of a log, which can be read any number of times until the claim is acknowledged.

Offsets are numbers of claims, {"/queue/a":{"0":17}}, by queue and broker. `latestOffset(start)` acknowledges `start`,
which Spark has committed when it asks, and claims the next. A micro-batch that is run again after a crash reads the
same claims; one that was released meanwhile reads as nothing, and its messages come in a later one. So each message is
in the output at least once, and if the sink knows batches that it has seen already, exactly once (but after a release).

Claims live while the planner is heard of: a thread of it tells the brokers, whatever the micro-batch does meanwhile.
A group has one planner: with its first request it takes the group over, and the query that had it fails with the next
one of its own. So a driver that was taken for dead and wakes up acknowledges nothing of its successor's.

A batch browses a queue and takes nothing: Spark has no moment at which it would allow that.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_stomp.logs import Brokers, DataLossError, Range, default_limit, split
from pyspark_stomp.options import Offsets, ReadOptions
from pyspark_stomp.schema import BYTES_MAX, INTERNAL_HEADERS, ROWS_MAX, Rows, arrow_schema
from pyspark_stomp.wire import AwayError
from sluiceway.client.errors import (
    CannotConnectError,
    ClientError,
    ConnectionLostError,
    Gap,
    RequestError,
)
from sluiceway.client.records import key_of
from sluiceway.protocols.stomp.frames import Frame

if TYPE_CHECKING:
    import pyarrow as pa

COUNT_MAX: Final = 1_000_000
BYTES_OF_CLAIM: Final = 256 << 20
"""Size of one claim, unless an option says less."""
WAIT_SECONDS: Final = 0.2
"""Time that a broker waits for a first message, if it is the only one to be asked: a message is seen at once, and an
idle query costs little."""
AWAY_SECONDS: Final = 2.0
TRANSPORT_HEADERS: Final = INTERNAL_HEADERS | {
    "destination", "message-id", "subscription", "content-length", "ack", "redelivered", "delivery-count", "persistent",
}  # fmt: skip

_log = logging.getLogger("pyspark_stomp")
Pair = tuple[str, int]
"""A queue, and the place of a broker."""


@attrs.define
class ClaimRange(Range):
    """Range of the claim log of a queue."""

    queue: str = attrs.field(kw_only=True)


@attrs.define
class BrowsedQueue(InputPartition):
    """All messages of one queue at one broker."""

    queue: str
    partition: int


def _sorted(offsets: Offsets) -> Offsets:
    return {
        queue: {number: offsets[queue][number] for number in sorted(offsets[queue], key=int)}
        for queue in sorted(offsets)
    }


class _HeartBeats:
    """Tells the brokers that the query is alive, from a thread with connections of its own."""

    def __init__(self, options: ReadOptions, planner: str, opened: set[Pair]) -> None:
        """`opened`: those of which the planner has taken over the group; it grows."""
        self._brokers = Brokers(options)
        self._options = options
        self._planner = planner
        self._opened = opened
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sluiceway claims", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        grace_seconds = self._options.claim_grace_seconds
        while not self._over.wait(grace_seconds / 5):
            for queue, partition in tuple(self._opened):
                try:
                    self._brokers.ask(
                        partition,
                        "claim/touch",
                        patient=False,
                        queue=queue,
                        group=self._options.group,
                        planner=self._planner,
                        grace_seconds=grace_seconds,
                    )
                except ClientError as error:
                    _log.info("the broker can't be notified that the query is alive: %s", error)

    def stop(self) -> None:
        self._over.set()


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("stomp").load("/queue/a")`."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._brokers = Brokers(options)
        self._pairs: list[Pair] = [
            (queue, partition) for queue in options.subscribe for partition in range(len(options.brokers.addresses))
        ]
        self._beats: _HeartBeats | None = None
        self._planner = secrets.token_hex(8)
        self._opened: set[Pair] = set()
        """Queues and brokers whose group this planner has taken over."""
        self._acknowledged: dict[Pair, int] = {}
        self._away_until: dict[Pair, float] = {}
        self._turn = 0
        self._left: dict[Pair, int] | None = None
        """Messages that a run with the trigger AvailableNow still takes."""

    def __getstate__(self) -> tuple[ReadOptions, tuple[str, ...]]:
        return self._options, self._columns

    def __setstate__(self, state: tuple[ReadOptions, tuple[str, ...]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _ask(self, pair: Pair, request: str, *, patient: bool, **facts: Any) -> dict[str, Any]:
        queue, partition = pair
        facts = {
            **facts,
            "queue": queue,
            "group": self._options.group,
            "planner": self._planner,
            "grace_seconds": self._options.claim_grace_seconds,
        }
        if pair not in self._opened:
            opening = {name: facts[name] for name in ("queue", "group", "planner", "grace_seconds")}
            self._brokers.ask(partition, "claim/open", patient=patient, **opening)
            self._opened.add(pair)
        return self._brokers.ask(partition, f"claim/{request}", patient=patient, **facts)

    def _live(self) -> None:
        """Begin to send signs of life: this process plans."""
        if self._beats is None:
            self._beats = _HeartBeats(self._options, self._planner, self._opened)

    # ------------------------------------------------------------------ how far to go

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Return the offsets behind the group's acknowledged claims. Spark asks before its first commit."""
        self._live()
        offsets: Offsets = {}
        for pair in self._pairs:
            offsets.setdefault(pair[0], {})[str(pair[1])] = int(self._ask(pair, "state", patient=True)["acked"])
        return _sorted(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of one micro-batch, as Spark asks for it."""
        return default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to as many messages as there are now; called by Spark."""
        self._live()
        self._left = {}
        for pair in self._pairs:
            state = self._ask(pair, "state", patient=True)
            claimed = sum(claim["to"] - claim["from"] for claim in state["claims"])
            self._left[pair] = claimed + state["again"] + state["waiting"]

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Acknowledge the claims up to `start`, which Spark has committed, and claim the next, at each trigger."""
        self._live()
        ends: Offsets = {queue: dict(numbers) for queue, numbers in start.items()}
        rows, size_bytes = self._limits(limit)
        self._turn += 1
        turn = self._turn % len(self._pairs)
        for pair in self._pairs[turn:] + self._pairs[:turn]:  # so that none is always last, when there is no room left
            queue, partition = pair
            number = ends.get(queue, {}).get(str(partition))
            if number is None:  # a queue or a broker that the checkpoint does not know
                number = self._first(pair)
                if number is None:
                    continue
                ends.setdefault(queue, {})[str(partition)] = number
            most = rows if self._left is None else min(rows, self._left[pair])
            claimed = self._claim(pair, number, most, size_bytes)
            if claimed is None:
                continue
            ends[queue][str(partition)] = claimed["claim"]
            count = claimed["to"] - claimed["from"]
            rows -= count
            if self._left is not None:
                self._left[pair] -= count
        return _sorted(ends)

    def _limits(self, limit: ReadLimit) -> tuple[int, int]:
        """Messages and bytes of a micro-batch."""
        options = self._options
        rows = COUNT_MAX * len(self._pairs)
        size_bytes = BYTES_OF_CLAIM
        if not isinstance(limit, ReadAllAvailable):
            rows = min(rows, options.offsets_max or rows)
            size_bytes = min(size_bytes, (options.bytes_max or size_bytes) // len(self._pairs) or 1)
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            size_bytes = min(size_bytes, limit.max_bytes // len(self._pairs) or 1)
        return rows, size_bytes

    def _first(self, pair: Pair) -> int | None:
        try:
            return int(self._ask(pair, "state", patient=False)["acked"])
        except (CannotConnectError, ConnectionLostError) as error:
            self._is_away(pair, error)
            return None

    def _claim(self, pair: Pair, number: int, rows: int, size_bytes: int) -> dict[str, Any] | None:
        """Acknowledge up to `number`, then claim the next messages; None: there are none, or the broker is away."""
        if time.monotonic() < self._away_until.get(pair, 0.0):
            return None
        try:
            if self._acknowledged.get(pair) != number:
                self._ask(pair, "ack", patient=False, claim=number)
                self._acknowledged[pair] = number
            found: dict[str, Any] | None = None
            if rows <= 0:
                return None
            while True:
                claimed = self._ask(
                    pair,
                    "claim",
                    patient=False,
                    claim=number + 1,
                    max=min(rows, COUNT_MAX),
                    max_bytes=size_bytes,
                    wait_seconds=WAIT_SECONDS if len(self._pairs) == 1 and self._left is None else 0.0,
                )
                if claimed["claim"] is None:
                    return found
                if claimed["to"] > claimed["from"]:
                    return claimed
                found = claimed  # released: it reads as nothing, the next one may have more
                number += 1
        except (CannotConnectError, ConnectionLostError) as error:
            self._is_away(pair, error)
        except RequestError as error:
            if error.code != "INTERNAL_ERROR":
                raise
            self._is_away(pair, error)  # its disk does not work: it is asked again
        return None

    def _is_away(self, pair: Pair, error: ClientError) -> None:
        _log.warning("%s of broker %d waits: %s", pair[0], pair[1], error)
        is_alone = isinstance(error, AwayError)  # other queues of the broker are at hubs that live
        for each in self._pairs:
            if each == pair or (each[1] == pair[1] and not is_alone):
                self._away_until[each] = time.monotonic() + AWAY_SECONDS

    # ------------------------------------------------------------------ what to read

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> Sequence[InputPartition]:
        """Return the ranges that the claims of a micro-batch hold now; called by Spark."""
        self._live()
        ranges: list[ClaimRange] = []
        for queue, numbers in sorted(end.items()):
            for partition_text, last in sorted(numbers.items()):
                partition = int(partition_text)
                first = start.get(queue, {}).get(partition_text, 0)
                if last <= first:
                    continue
                if (queue, partition) not in self._pairs:
                    raise DataLossError(
                        f"the checkpoint has claims of {queue} at broker {partition}, which the options do not name: "
                        "keep queues and the order of brokers until all is read"
                    )
                # Not asked for by number: a claim that the broker does not know must not be made anew.
                state = self._ask((queue, partition), "state", patient=True)
                ranges += [
                    ClaimRange(
                        state["log"],
                        partition,
                        claim["from"],
                        claim["to"],
                        log_id=state.get("log_id", ""),
                        queue=queue,
                    )
                    for claim in state["claims"]
                    if first < claim["claim"] <= last and claim["to"] > claim["from"]
                ]
        return split(ranges, self._options.partitions_min)

    # ------------------------------------------------------------------ reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. In a worker."""
        if not isinstance(partition, ClaimRange):
            return  # Spark's stand-in for no partitions at all
        rows = Rows(self._columns, partition.queue, partition.partition)
        with self._options.brokers.connection(partition.partition, partition.log) as connection:
            for part in connection.read_batches(partition.log, partition.start, partition.end, log_id=partition.log_id):
                if isinstance(part, Gap):
                    self._missing(partition, part)
                else:
                    yield from rows.add(part, connection.log_id)
            yield from rows.rest()

    def _missing(self, partition: ClaimRange, gap: Gap) -> None:
        if gap.reason == "retention":
            _log.warning("messages of %s were acknowledged by another query of this group", partition.queue)
            return
        self._lost(f"messages of {partition.queue} at {gap.broker} are gone, with their claims: {gap.reason}")

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. To continue without them set failOnDataLoss to false")
        _log.warning("%s; continuing without them", text)

    # ------------------------------------------------------------------ the end

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        """Do nothing: Spark calls `latestOffset` afterwards, which says more."""

    def stop(self) -> None:
        """End; called by Spark in most cases. Claims stay: the query may be started again."""
        if self._beats is not None:
            self._beats.stop()
        self._brokers.close()


class QueueReader(DataSourceReader):
    """`spark.read.format("stomp").load("/queue/a")`: the messages in the queue when it is read."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """One for each queue at each broker."""
        return [
            BrowsedQueue(queue, partition)
            for queue in self._options.subscribe
            for partition in range(len(self._options.brokers.addresses))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a queue. A lost connection fails the task, which begins anew: a second look would show
        other messages.
        """
        if not isinstance(partition, BrowsedQueue):
            return
        with self._options.brokers.connection(partition.partition, partition.queue) as connection:
            connection.patiently(connection.connect)
            connection.subscribe(partition.queue, {"browser": "true"})
            rows = _Browsed(self._columns, partition)
            while True:
                frame = connection.next_frame()
                if frame.command != "MESSAGE":
                    continue
                if frame.headers.get("browser") == "end":
                    break
                rows.add(frame)
                if rows.is_full:
                    yield rows.taken()
            if rows.count:
                yield rows.taken()


class _Browsed:
    """Messages, until they make a record batch."""

    def __init__(self, columns: Sequence[str], partition: BrowsedQueue) -> None:
        self._columns = columns
        self._partition = partition
        self._frames: list[Frame] = []
        self._first = 0
        self._size_bytes = 0

    @property
    def count(self) -> int:
        return len(self._frames)

    @property
    def is_full(self) -> bool:
        return self.count >= ROWS_MAX or self._size_bytes >= BYTES_MAX

    def add(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._size_bytes += len(frame.body)

    def taken(self) -> pa.RecordBatch:
        """Return all browsed messages; offsets count the messages seen."""
        import pyarrow as pa

        frames, self._frames = self._frames, []
        first, self._first = self._first, self._first + len(frames)
        self._size_bytes = 0
        made: dict[str, list[Any]] = {
            "key": [key_of(frame.headers) for frame in frames],
            "value": [bytes(frame.body) for frame in frames],
            "topic": [self._partition.queue] * len(frames),
            "partition": [self._partition.partition] * len(frames),
            "offset": list(range(first, first + len(frames))),
            "timestamp": [_timestamp_us(frame) for frame in frames],
            "message_id": [frame.headers.get("message-id") for frame in frames],
            "headers": [
                [(name, text) for name, text in frame.headers.items() if name not in TRANSPORT_HEADERS]
                for frame in frames
            ],
        }
        schema = arrow_schema(self._columns)
        arrays = [pa.array(made[name], schema.field(name).type) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _timestamp_us(frame: Frame) -> int | None:
    """Return the time of sending, if the producer gave it."""
    text = frame.headers.get("timestamp", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 15 else None
