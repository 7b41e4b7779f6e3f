"""Orders for a worker process of a log scenario: plans for appenders, readers and a raw copy."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from perf.load.plans import Endpoint
from perf.scenarios import Ack


@frozen(slots=True)
class AppendPlan:
    """One connection that appends while the quota (counted in records) allows.

    `batch_count`: records of one SEND, which is a batch then; 0: plain SENDs of one record. `window_count`: how many
    SENDs with a receipt may wait for it; 0: none asks for one. `receipt_every`: every so manieth SEND asks.
    `rate_per_second`: records; 0: as fast as they are taken. `quota_slot`: which slot of the board is the quota.
    """

    endpoint: Endpoint
    destination: str
    body_bytes: int
    batch_count: int
    window_count: int
    receipt_every: int
    rate_per_second: float
    quota_slot: int
    sent_slot: int
    confirmed_slot: int


@frozen(slots=True)
class ReaderPlan:
    """One connection that reads a log.

    `headers`: lines of its SUBSCRIBE besides id, destination and ack. `group`: first part of the names of its groups,
    one for each round; empty: none. `stop`: where a round ends; the next one begins at `start` again. 0: it continues
    for ever, in one round. `rounds_count`: it stops after that many; 0: never. `batch`: its MESSAGEs are batches.
    `index_header`: which header of a MESSAGE says its index.
    """

    destination: str
    headers: str
    group: str
    start: int
    stop: int
    rounds_count: int
    batch: bool
    ack: Ack
    delivered_slot: int
    bytes_slot: int
    index_header: str = "index"


@frozen(slots=True)
class ReadPlan:
    """The readers of one process."""

    endpoint: Endpoint
    readers: tuple[ReaderPlan, ...]


@frozen(slots=True)
class RawCopyPlan:
    """Plan of a copy over the loopback without a broker: one process sends from a mapped file, round and round, another
    one (`sends` false) receives and counts in `bytes_slot`. They meet at a socket of the receiver.
    """

    sends: bool
    path: Path
    bytes_slot: int
    port_slot: int


LogPlan = AppendPlan | ReadPlan | RawCopyPlan
