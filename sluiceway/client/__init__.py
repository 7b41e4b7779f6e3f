"""Producers and consumers of logs, for programs with threads.

    with Producer("127.0.0.1:61613", log="orders") as producer:
        producer.send("42 ducks")

    with Consumer("127.0.0.1:61613", group="billing", from_="earliest") as consumer:
        for record in consumer.stream("orders"):
            print(record.index, record.value)

A client does not load the broker: neither trio nor the store. docs/clients.md states the guarantees.

    producer    -> outbox (one for each broker) -> reading_link     packs: batches in the making, handles
    consumer    <- inbox (one for each log) <- reader (one for each log and broker) <- reading_link     records, streams
    requests    -> link: questions about logs
    link        one connection: frames, receipts, requests; blocks. reading_link: the same with a thread that reads
    way         the choice of the hub that has a log, and of another one when it is lost
    opening     from an address to a stream     stream, secure: bytes over a socket, without and with TLS
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from sluiceway.client.backoff import Backoff
    from sluiceway.client.consumer import Consumer, ConsumerStatistics, Stream
    from sluiceway.client.errors import (
        BufferFullError,
        CannotConnectError,
        ClientError,
        ClosedError,
        ConnectionLostError,
        DamagedError,
        Gap,
        GapError,
        LogDeletedError,
        RefusedError,
        RequestError,
    )
    from sluiceway.client.packs import Sent
    from sluiceway.client.partitioning import by_hash
    from sluiceway.client.producer import Producer, ProducerStatistics
    from sluiceway.client.records import Record
    from sluiceway.client.requests import Fetched, GroupInfo, LogClient, LogInfo

__all__ = [
    "Backoff",
    "BufferFullError",
    "CannotConnectError",
    "ClientError",
    "ClosedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerStatistics",
    "DamagedError",
    "Fetched",
    "Gap",
    "GapError",
    "GroupInfo",
    "LogClient",
    "LogDeletedError",
    "LogInfo",
    "Producer",
    "ProducerStatistics",
    "Record",
    "RefusedError",
    "RequestError",
    "Sent",
    "Stream",
    "by_hash",
]

_HOMES = {
    "Backoff": "sluiceway.client.backoff",
    "BufferFullError": "sluiceway.client.errors",
    "CannotConnectError": "sluiceway.client.errors",
    "ClientError": "sluiceway.client.errors",
    "ClosedError": "sluiceway.client.errors",
    "ConnectionLostError": "sluiceway.client.errors",
    "Consumer": "sluiceway.client.consumer",
    "ConsumerStatistics": "sluiceway.client.consumer",
    "DamagedError": "sluiceway.client.errors",
    "Gap": "sluiceway.client.errors",
    "GapError": "sluiceway.client.errors",
    "Fetched": "sluiceway.client.requests",
    "GroupInfo": "sluiceway.client.requests",
    "LogClient": "sluiceway.client.requests",
    "LogDeletedError": "sluiceway.client.errors",
    "LogInfo": "sluiceway.client.requests",
    "Producer": "sluiceway.client.producer",
    "ProducerStatistics": "sluiceway.client.producer",
    "Record": "sluiceway.client.records",
    "RefusedError": "sluiceway.client.errors",
    "RequestError": "sluiceway.client.errors",
    "Sent": "sluiceway.client.packs",
    "Stream": "sluiceway.client.consumer",
    "by_hash": "sluiceway.client.partitioning",
}
"""Look names up on first use: Spark starts processes for each micro-batch, which need a few of these modules only."""

__getattr__, __dir__ = _lazy_names(__name__, globals(), _HOMES)
