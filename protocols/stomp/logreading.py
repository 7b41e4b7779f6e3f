"""SUBSCRIBE to a log: its headers, and the wire form of records and batches.

    group:NAME                   share the place that the broker keeps for this group
    from: earliest | latest | next | INDEX | time:MS      where to begin (a group: only when it is made); next if absent
    log-id:ID                    the log that is meant: another one under its name is told as a gap, or ends it
    x-stream-offset: ...         the same in RabbitMQ's dialect
    to:INDEX                     end before this index, with an empty MESSAGE that says range-end:true
    on-gap: marker | error       of records that are gone an empty MESSAGE tells (gap:true), or the connection ends
    exclusive:true               of a group: one consumer at a time gets all, in order; all of the group say so
    order:by-key                 of a group: records of one key go to one consumer at a time, in order
    batch:BYTES                  MESSAGEs whose body is a run of batches of about so many bytes
    compression:gzip,snappy,zstd how batches may be compressed; others are expanded here

A MESSAGE of one record says its `index` and `timestamp` (milliseconds); then come the headers of its SEND. Its
message-id is that of the log and the index, the same each time it is read (but for repeats.py). A batch MESSAGE says
`index`, `count` and a content-type of its own; an ACK of it settles all of its records. MESSAGEs about gaps and ends
need no ACK.

Batches are handed to the kernel from the mapped file: nothing is copied here.

Source: DESIGN section 8, anchors e5, e8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from ...queues.logs.codecs import Codec, CodecError, codec_named
from ...queues.logs.group import Group
from ...queues.logs.ordering import ANY, BY_KEY, EXCLUSIVE, IN_WORDS
from ...queues.logs.positions import (
    Position,
    PositionError,
    PositionKind,
    parse_index,
    parse_position,
    parse_stream_offset,
)
from ...queues.logs.runs import BatchRun
from ...queues.logs.table import PREFIX
from ...queues.message import Message
from ...queues.names import DestinationName
from ...queues.slices import Slice
from ...queues.subscription import Subscription
from ..outbound import Outbound
from .delivery import SessionTotals, StompSubscription
from .errors import ProtocolError
from .head import whole_number
from .hub import Hub
from .message_renderer import RecordRenderer
from .subscribe_headers import SubscriptionSpec

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest batch MESSAGE that can be asked for; a single batch that is larger comes all the same."""
BATCH_BYTES_MIN: Final = 1024
_MISPLACED: Final = ("browser", "durable", "activemq.subscriptionName")
_EXCLUSIVE: Final = ("exclusive", "activemq.exclusive")


@attrs.frozen
class LogWishes:
    """Wishes of a SUBSCRIBE to a log."""

    group: str | None
    place: Position
    stop: int | None
    stops_at_gaps: bool
    batch_bytes: int | None
    codecs: frozenset[Codec]
    log_id: str
    """Id of the log that is meant; empty: the current one of that name."""
    order: str
    """Order of the group: ANY, EXCLUSIVE, BY_KEY."""


def log_wishes(headers: Mapping[str, str]) -> LogWishes:
    """Read them. Raises ProtocolError."""
    for name in _MISPLACED:
        if headers.get(name, "false") != "false":
            raise ProtocolError(
                "not-for-logs",
                f"{name} is not for logs",
                "A log is read with group (the broker keeps the place) or from (you do); reading takes nothing away.",
            )
    group = headers.get("group")
    try:
        place = _place_wished(headers)
        stop = parse_index(headers["to"], "to") if "to" in headers else None
        codecs = frozenset(codec_named(name.strip()) for name in headers.get("compression", "none").split(","))
    except (PositionError, CodecError) as error:
        raise ProtocolError("bad-place", str(error)) from None
    if group is not None and stop is not None:
        raise ProtocolError(
            "bad-place", "a group has no end", "Read a range (to) without group; its place is yours to keep."
        )
    on_gap = headers.get("on-gap", "marker")
    if on_gap not in ("marker", "error"):
        raise ProtocolError("bad-place", f"on-gap {on_gap[:40]!r} is not known", "Write on-gap:marker or on-gap:error.")
    batch_bytes = None
    if "batch" in headers:
        if headers.get("selector", "").strip():
            raise ProtocolError(
                "not-for-batches",
                "batches are delivered whole: a selector can't take records out of them",
                "SUBSCRIBE without batch, or without selector.",
            )
        batch_bytes = min(BATCH_BYTES_MAX, max(BATCH_BYTES_MIN, whole_number(headers, "batch", 1 << 40)))
    order = _order_wished(headers)
    codecs |= {Codec.NONE}
    return LogWishes(group, place, stop, on_gap == "error", batch_bytes, codecs, headers.get("log-id", ""), order)


def _order_wished(headers: Mapping[str, str]) -> str:
    """Return the order that a SUBSCRIBE asks of its group. Raises ProtocolError."""
    order = headers.get("order", ANY)
    if order not in (ANY, BY_KEY):
        raise ProtocolError("bad-order", f"order {order[:40]!r} is not known", "Write order:by-key, or exclusive:true.")
    if any(headers.get(name, "false").lower() == "true" for name in _EXCLUSIVE):
        if order:
            raise ProtocolError(
                "bad-order",
                "exclusive:true and order:by-key exclude each other",
                "An exclusive consumer gets the records of all keys.",
            )
        order = EXCLUSIVE
    if order and "group" not in headers:
        raise ProtocolError(
            "not-for-logs",
            f"{IN_WORDS[order]} is for a group of a log",
            "A reader with a place of its own gets all records in order anyway: leave it out, or SUBSCRIBE with group.",
        )
    if order == BY_KEY and "batch" in headers:
        raise ProtocolError(
            "not-for-batches",
            "batches have records of several keys: order:by-key is for single records",
            "SUBSCRIBE without batch, or with exclusive:true.",
        )
    return order


def _place_wished(headers: Mapping[str, str]) -> Position:
    """Return where to begin. Raises PositionError."""
    if "from" in headers:
        return parse_position(headers["from"])
    if "x-stream-offset" in headers:
        return parse_stream_offset(headers["x-stream-offset"])
    return Position(PositionKind.NEXT)


def time_wished(headers: Mapping[str, str]) -> Position | None:
    """Return where to begin in a log, if that is a time: it has to be found first. None: it is not."""
    if not headers.get("destination", "").startswith(PREFIX):
        return None
    try:
        place = _place_wished(headers)
    except PositionError:
        return None  # `log_wishes` reports it
    return place if place.kind is PositionKind.TIME else None


class LogSubscription(StompSubscription):
    """A reader of one log, under one subscription id of one connection."""

    repeats = True
    """A group may be moved."""

    def __init__(
        self,
        hub: Hub,
        outbound: Outbound,
        spec: SubscriptionSpec,
        totals: SessionTotals,
    ) -> None:
        super().__init__(hub, outbound, spec, totals)
        self._spec = spec
        self._records: RecordRenderer
        """The renderer, from `read` on."""
        self.batch_bytes: int | None = None
        self.order = ANY
        self.codecs: frozenset[Codec] = frozenset((Codec.NONE,))
        self.stops_at_gaps = False
        self._fail: Callable[[ProtocolError], None] | None = None

    def read(
        self,
        address: DestinationName,
        wishes: LogWishes,
        *,
        fail: Callable[[ProtocolError], None],
        told: dict[str, str],
        done: Any,
    ) -> None:
        """Begin to read. `fail`: end the connection with this error; `told` gets headers for the RECEIPT; `done` is
        called (with None or an error) when the group is on disk. Raises LogError.
        """
        logs = self._hub.logs
        assert logs is not None, "asked for before"
        self.batch_bytes = wishes.batch_bytes
        self.order = wishes.order
        self.codecs = wishes.codecs
        self.stops_at_gaps = wishes.stops_at_gaps
        self._fail = fail
        # Resuming a log that was read before does not make it anew.
        log = logs.existing(address.canonical) if wishes.log_id else logs.get(address.canonical)
        told["log-id"] = log.log_id
        token = self.token = b"log." + log.log_id.encode()
        self._renderer = self._records = RecordRenderer(
            self._spec, token, self._outbound.framing, self.ledger, self._hub.ack_prefix, partition=log.partition
        )
        if wishes.group is not None:
            _group, subscription = logs.join(log, wishes.group, self, wishes.place, done, log_id=wishes.log_id)
        else:
            label = f"{log.name} for {self.name}"
            outlet, subscription = logs.read(log, self, wishes.place, wishes.stop, label=label, log_id=wishes.log_id)
            told["index"] = str(outlet.position)
            done(None)
        self.attachments.append(subscription)

    def detaching(self) -> Iterator[None]:
        yield from super().detaching()
        if self.ledger is not None:
            # A place of its own has gone with it: none of its records can be acknowledged or requeued.
            for _forgotten in self.ledger.forgetting(lambda subscription: not isinstance(subscription.queue, Group)):
                yield

    def _number_of(self, subscription: Subscription, sequence: int) -> int:
        return sequence  # the index

    # ------------------------------------------------------------------ runs

    def deliver_run(self, subscription: Subscription, run: BatchRun, failures: int | None) -> None:
        """Deliver one MESSAGE for a run of batches. Called by the outlet."""
        outbound = self._outbound
        first = run.first_index
        size_bytes = len(run.data)
        self._totals.messages_out_count += 1
        if self.given_back:
            self.given_back.delivered(self.subscription_id, self.token, (first,))
        ledger, window = self.ledger, self.window
        sequences = (first,)
        ordinal = 0
        if ledger is not None:
            stand_in = Message(_BATCHES, run.data, first)  # type: ignore[arg-type]
            ordinal = ledger.add(subscription, Slice([stand_in], sequences, size_bytes))
        parts = self._records.run(run, ordinal, failures)
        parts_bytes = sum(map(len, parts))
        start_bytes = outbound.appended_bytes
        if ledger is None or window is None:

            def settle(taken: bool) -> None:
                if taken:
                    subscription.settle(sequences, size_bytes)
                else:
                    subscription.requeue(sequences, attempted=outbound.seen_bytes > start_bytes)

            outbound.send_messages(parts, parts_bytes, subscription.source, settle)
            return
        window.charge(1, size_bytes, subscription.source)

        def handed_over(taken: bool) -> None:
            if taken or outbound.seen_bytes > start_bytes:
                ledger.flushed_ordinal = max(ledger.flushed_ordinal, ordinal + 1)

        outbound.send_messages(parts, parts_bytes, subscription.source, handed_over)

    # ------------------------------------------------------------------ what is told

    def tell_gap(self, subscription: Subscription, start: int, end: int, reason: str) -> None:
        """Tell the client of a gap. Called by the outlet."""
        if self.stops_at_gaps and self._fail is not None:
            self._fail(
                ProtocolError(
                    "INDEX_OUT_OF_BOUNDS",
                    f"{self.destination} has no records from {start} to {end - 1} ({reason})",
                    "SUBSCRIBE from a later index, or with on-gap:marker.",
                )
            )
            return
        self._tell(start, [("gap", "true"), ("gap-from", str(start)), ("gap-to", str(end)), ("gap-reason", reason)])

    def tell_end(self, subscription: Subscription, index: int) -> None:
        """Tell the client of the end of its range. Called by the outlet."""
        self._tell(index, [("range-end", "true"), ("index", str(index))])

    def tell_deleted(self, subscription: Subscription) -> None:
        """Tell the client that the log was deleted. Called by the outlet."""
        self._tell(0, [("log-deleted", "true")])

    def _tell(self, index: int, facts: list[tuple[str, str]]) -> None:
        self._outbound.send_control(self._renderer.notice(index, facts))


class _BatchesHead:
    """Stand-in head for the ledger, which looks at messages."""

    neutral = True


_BATCHES: Any = _BatchesHead()
