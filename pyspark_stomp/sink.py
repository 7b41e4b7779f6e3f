"""Writers: rows to logs, queues and topics; of batches, and of streams.

    target            streams                                    batches
    logs              exactly once: staged, then published       at least once; with `transactionId` once for ever;
                      once per (query, batch) and broker         with `deliveryGuarantee` exactly-once all or nothing
    queues, topics    at least once                              at least once

*At least once*: a task sends its rows and waits for the receipts; a task that is run again sends them again.

*Exactly once*: a task appends to a *stage*, a log of its own at the broker, and hands its name to `commit`, which has
the brokers publish all stages of the batch at once. A stage of a task that failed is in no commit. Each broker knows
which batch of a query it has published last, and takes a repetition for done. Several brokers are told one after the
other: after a crash between them Spark runs the batch again, and the router sends each row to the same broker then.

A broker with several shards publishes shard by shard. What belongs to one shard bears its *tag*, a number in braces
that leads a name there: the stages of its logs, and the query by whose name it knows what is published. So each commit
is one of one hub, whichever has the shard. Then the query is committed without a tag and without stages: all is done.
A second writing under the same id finds that first.

Who runs where: `write` in workers, `commit` and `abort` in another process, on another copy of the writer. `abort`
comes also after a `commit` that failed, whose outcome is not known: the broker keeps stages of what has begun.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_stomp.options import LOG, OptionError, WriteOptions
from pyspark_stomp.outgoing import Router, RowError, batches, check_schema, frames
from pyspark_stomp.wire import Connection, Sender
from sluiceway.client.errors import ClientError, RequestError
from sluiceway.queues.logs.batches import CONTENT_TYPE
from sluiceway.queues.logs.codecs import Codec
from sluiceway.queues.shard_hash import tag_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

STAGE: Final = "/log/sluiceway.stage."
STAGES_MAX: Final = 100
"""Logs that one task writes exactly once: each is a stage with a connection of its own."""
SENDERS_MAX: Final = 16
"""Destinations that one task writes at least once with a connection of its own to the hub that has it; the others go
over the first one's.
"""
QUERY_LENGTH_MAX: Final = 200
"""Limit of the broker."""
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
EXACTLY_ONCE: Final = "exactly-once"
_CODECS: Final = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "zstd": Codec.ZSTD}

_log = logging.getLogger("pyspark_stomp")


@attrs.frozen
class Staged:
    """Rows that one task has staged for one log at one broker."""

    broker: int
    stage: str
    target: str
    count: int
    """Rows."""
    whole: bool = True
    """Whether the stage has nothing but these rows; False: it begins with them."""
    tag: str = ""
    """Number in braces that leads names into the shard of the target; empty: the broker has one shard."""


@attrs.frozen
class Written(WriterCommitMessage):
    """Message of one task to `commit`."""

    query: str
    staged: tuple[Staged, ...]
    rows_count: int


class _Task:
    """The writing of one task: connections as they are needed."""

    def __init__(self, options: WriteOptions, staging: str) -> None:
        """`staging`: how its stages are called; empty: there are none."""
        self._options = options
        self._staging = staging
        self._connections: list[Connection] = []
        self._stages: dict[tuple[int, str], Sender] = {}
        self._tags: dict[tuple[int, str], str] = {}
        self._numbers = count()
        self._senders: dict[int, dict[str, Sender]] = {}
        self._codec = _CODECS[options.compression]
        self._router = Router(
            options.topic,
            len(options.brokers.addresses),
            at_random=options.partitioner == "random",
            repeatable=bool(staging),
        )
        self.rows_count = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Raises RowError, ClientError."""
        if not rows.num_rows:
            return
        self.rows_count += rows.num_rows
        for share in self._router.shares(rows):
            if not share.destination.startswith(LOG):
                if self._options.guarantee == EXACTLY_ONCE:
                    raise RowError(
                        f"{share.destination[:80]!r} in column topic can't be written exactly once, only logs can: "
                        "leave deliveryGuarantee out"
                    )
                sender = self._sender(share.broker, share.destination)
                for making, rows_count in frames(share.rows, share.destination, persistent=self._options.persistent):
                    sender.send_frames(making, rows_count)
            elif self._staging:
                sender = self._stage(share.broker, share.destination)
                for data, rows_count in batches(share.rows, self._codec):
                    sender.send_batches(data, rows_count)
            else:
                sender = self._sender(share.broker, share.destination)
                for data, rows_count in batches(share.rows, self._codec):
                    sender.send_frames(_appending(share.destination, data), rows_count)

    def finish(self) -> tuple[Staged, ...]:
        """All receipts are there; what is staged."""
        for senders in self._senders.values():
            for sender in senders.values():
                sender.finish()
        for sender in self._stages.values():
            sender.finish()
        return tuple(
            Staged(broker, stage.name, target, stage.count, stage.whole, self._tags[broker, target])
            for (broker, target), sender in self._stages.items()
            for stage in sender.stages
        )

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _connection(self, broker: int, destination: str) -> Connection:
        connection = self._options.brokers.connection(broker, destination)
        self._connections.append(connection)
        return connection

    def _sender(self, broker: int, destination: str) -> Sender:
        senders = self._senders.setdefault(broker, {})
        sender = senders.get(destination)
        if sender is None:
            first = next(iter(senders.values()), None)
            if first is not None and (not first.hub or len(senders) >= SENDERS_MAX):
                return first
            sender = senders[destination] = self._connection(broker, destination).sender("")
        return sender

    def _stage(self, broker: int, target: str) -> Sender:
        sender = self._stages.get((broker, target))
        if sender is None:
            if len(self._stages) >= STAGES_MAX:
                raise RowError(
                    f"one task writes to more than {STAGES_MAX} logs: repartition by topic, or set deliveryGuarantee "
                    "to at-least-once"
                )
            connection = self._connection(broker, target)
            place = connection.place_of(target)
            tag = self._tags[broker, target] = "" if place.shards_count == 1 else _tag_for(*attrs.astuple(place))
            sender = connection.stages(lambda: f"{STAGE}{tag}{self._staging}.{next(self._numbers)}")
            self._stages[broker, target] = sender
        return sender


def _appending(log: str, data: bytes) -> Any:
    from sluiceway.protocols.stomp.encoder import encode_frame

    def frame(receipt: str) -> bytes:
        return encode_frame(
            "SEND", [("destination", log), ("receipt", receipt), ("content-type", CONTENT_TYPE)], data, version="1.2"
        )

    return frame


class _Writer:
    """Base of both writers. Pickled to the workers."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        check_schema(schema, has_topic=options.topic is not None)

    def _written(self, iterator: Iterator[pa.RecordBatch], query: str, batch: int) -> Written:
        """Write all of it. `query`: empty if nothing is staged."""
        staging = ""
        if query:
            context = TaskContext.get()
            task = "0.0" if context is None else f"{context.partitionId()}.{context.taskAttemptId()}"
            # The last part makes it unlike that of a task with the same numbers, after the driver died.
            staging = f"{_short(query)}.{batch}.{task}.{secrets.token_hex(6)}"
        task_writing = _Task(self._options, staging)
        try:
            for rows in iterator:
                task_writing.write(rows)
            return Written(query, task_writing.finish(), task_writing.rows_count)
        finally:
            task_writing.close()

    def _publish(self, query: str, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Have every broker publish its part, once."""
        staged = list(_staged(messages))
        for broker in range(len(self._options.brokers.addresses)):
            self._publish_at(broker, query, batch, [each for each in staged if each.broker == broker])
        self._forget([each for each in staged if not each.count])

    def _publish_at(self, broker: int, query: str, batch: int, staged: Sequence[Staged]) -> None:
        by_tag: dict[str, list[Staged]] = {}
        for each in staged:
            if each.count:
                by_tag.setdefault(each.tag, []).append(each)
        with self._options.brokers.connection(broker) as connection:
            if by_tag.keys() - {""}:
                # Before it had a tag for each shard, or with other logs under the same id.
                state = connection.request("sink/state", query=_named(query))
                if state["batch"] >= batch:
                    _log.info("batch %d of %s was published at %s before", batch, query, connection.address)
                    self._forget(staged)
                    return
            whole = by_tag.pop("", [])
            for tag, parts in sorted(by_tag.items()):
                with self._options.brokers.connection(broker, parts[0].target) as owner:
                    _commit(owner, _named(query, tag), batch, parts)
            _commit(connection, _named(query), batch, whole)

    def _drop(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        self._forget(list(_staged(messages)))

    def _forget(self, staged: Sequence[Staged]) -> None:
        """Have the brokers drop stages. One that can't be told does it by itself after a day."""
        brokers = self._options.brokers
        for broker in sorted({each.broker for each in staged}):
            try:
                with brokers.connection(broker, patience_seconds=0.0) as connection:
                    connection.request("sink/drop", stages=[each.stage for each in staged if each.broker == broker])
            except ClientError as error:
                _log.warning("staged records at %s stay for a day: %s", brokers.addresses[broker], error)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("stomp").mode("append").save()`."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises OptionError, SchemaError."""
        super().__init__(options, schema)
        if overwrite:
            raise OptionError('a sink only appends: write .mode("append")')
        self._query = ""
        if options.transaction_id is not None:
            self._query = f"transaction {options.transaction_id}"
        elif options.guarantee == EXACTLY_ONCE:
            self._query = f"batch {secrets.token_hex(16)}"
        if self._query:
            _check_exactly_once(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition. Spark calls this in a worker."""
        return self._written(iterator, self._query, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what was staged. Spark calls when all tasks are done."""
        if self._query:
            self._publish(self._query, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged. Spark calls when a task or `commit` has failed for good."""
        self._drop(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("stomp")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises OptionError, SchemaError."""
        super().__init__(options, schema)
        if options.transaction_id is not None:
            raise OptionError("option transactionId is for batches: a stream has its query's id, leave it out")
        to_log = options.topic is None or options.topic.startswith(LOG)
        self._exactly_once = options.guarantee == EXACTLY_ONCE or (options.guarantee is None and to_log)
        if self._exactly_once:
            _check_exactly_once(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of a micro-batch. Spark calls this in a worker."""
        if not self._exactly_once:
            return self._written(iterator, "", 0)
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
        if not query or batch is None:
            raise OptionError(
                "Spark does not say which query and batch this is, so nothing can be written exactly once: set "
                "deliveryGuarantee to at-least-once"
            )
        return self._written(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what was staged. Spark calls when all tasks of the micro-batch are done."""
        query = next((each.query for each in messages if isinstance(each, Written) and each.query), "")
        if query:
            self._publish(query, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged. Spark calls when a task or `commit` has failed for good."""
        self._drop(messages)


def _check_exactly_once(options: WriteOptions) -> None:
    if options.topic is not None and not options.topic.startswith(LOG):
        raise OptionError(
            f"{options.topic} can't be written exactly once, only logs can: leave deliveryGuarantee and transactionId"
            " out"
        )
    if options.partitioner == "random" and len(options.brokers.addresses) > 1:
        raise OptionError(
            "option partitioner random can't be repeated, so it does not go with exactly-once: leave it out, or set "
            "deliveryGuarantee to at-least-once"
        )


def _staged(messages: Iterable[WriterCommitMessage | None]) -> Iterator[Staged]:
    for each in messages:
        if isinstance(each, Written):
            yield from each.staged


def _short(query: str) -> str:
    """Shorten the name of a query to a part of the names of stages."""
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def _named(query: str, tag: str = "") -> str:
    """Name the query for the broker, however long the user's name of the transaction is. `tag`: first, for braces of
    the user's name lead elsewhere.
    """
    name = f"{tag} {query}" if tag else query
    return name if len(name) <= QUERY_LENGTH_MAX else f"{name[:100]} {hashlib.sha256(query.encode()).hexdigest()}"


@lru_cache(maxsize=1024)
def _tag_for(shard: int, shards_count: int) -> str:
    return tag_for(shard, shards_count)


def _commit(connection: Connection, query: str, batch: int, staged: Sequence[Staged]) -> None:
    """Have one hub publish a batch, once. Raises as `Connection.request`."""
    parts = [
        {"stage": each.stage, "to": each.target, "count": each.count, **({} if each.whole else {"whole": False})}
        for each in staged
    ]
    try:
        reply = _committed(connection, query, batch, parts)
    except RequestError as error:
        if error.code != "INVALID_COMMIT":
            raise
        # An earlier batch was begun here, and had nothing for this shard when it was run again.
        begun = connection.request("sink/state", query=query)["publishing"]
        if begun is None or begun >= batch:
            raise
        _committed(connection, query, begun, [])
        reply = _committed(connection, query, batch, parts)
    if not reply["published"]:
        _log.info("batch %d of %s was published at %s before", batch, query, connection.address)


def _committed(connection: Connection, query: str, batch: int, parts: list[dict[str, Any]]) -> Mapping[str, Any]:
    facts: dict[str, Any] = {"query": query, "batch": batch, "parts": parts}
    try:
        return connection.request("sink/commit", **facts)
    except RequestError as error:
        if error.code != "COMMIT_VOID":
            raise
        # Stages of an earlier attempt are dropped; now for those of this one.
        return connection.request("sink/commit", **facts)
