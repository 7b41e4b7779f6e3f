"""Events of a traced message become spans.

    accept    from the SEND to its place in the queue: time pending, and the intake of the queue
    wait      from there to the consumer: once per delivery, from the arrival or the last requeue
    deliver   from the delivery to the ACK (NACK, loss); with ack auto until the kernel has taken it

`accept` is a child of the sender's span, `wait` and `deliver` are children of `accept`. Headers are forwarded
unchanged, so a consumer's span is a child of the sender's, too, and all are in one trace. The broker does not insert
itself between them, as that would need a separate header block for each message and each delivery (the wire form law).

Only messages with a sampled `traceparent` are followed, OPEN_MAX at a time. A message without one costs one test of a
flag of its head, which many messages share; a queue without traced messages costs one test of an empty table per batch.

A message is followed from its SEND until it has left the queue that took it. A message restored after a restart, or
sent to the dead letters, is not followed there: its last span says so.

Source: OpenTelemetry semantic conventions for messaging (`messaging.*`). Conventions for brokers are not settled, so
attributes without a standard name are called `sluiceway.*`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from sluiceway.flow.kinds import ResourceKind
from sluiceway.protocols.stomp.head import SendHead
from sluiceway.queues.message import Message
from sluiceway.queues.observer import Fate
from sluiceway.tracing.context import TraceContext, is_chosen, parse_traceparent

if TYPE_CHECKING:
    from sluiceway.flow import SourceController
    from sluiceway.queues.queue import MessageQueue

OPEN_MAX: Final = 10_000
"""Maximum number of messages followed at a time; about 1 KiB each. Beyond it the oldest is no longer followed."""

DELIVERIES_MAX: Final = 100
"""Maximum deliveries of one message at a time: a topic may have ten thousand subscribers."""

ATTRIBUTE_LENGTH_MAX: Final = 256

Attributes = Mapping[str, str | int | bool]


class SpanSink(Protocol):
    """Receiver of finished spans."""

    def span(
        self, name: str, kind: str, parent: TraceContext, start_ns: int, end_ns: int, attributes: Attributes, error: str
    ) -> TraceContext:
        """Make a span of this kind (server, internal or client), a child of `parent`; `error`: the failure, if any.
        Times are nanoseconds since the epoch. Returns the span's context. Must not block.
        """


@attrs.define(eq=False)
class _Traced:
    """A followed message."""

    context: TraceContext
    """Context of the sender; once the message is accepted, of `accept`."""
    number: int
    began_ns: int
    """Time of the SEND; once the message is accepted, the begin of its wait."""
    correlation_id: str | None
    size_bytes: int = 0
    deliveries: dict[str, int] = attrs.field(factory=dict)
    """Times of delivery, by consumer."""


class Tracing:
    """The traced messages of one broker."""

    def __init__(
        self, sink: SpanSink, *, ratio: float, now_ns: Callable[[], int], token: str, open_max: int = OPEN_MAX
    ) -> None:
        """Take `now_ns`, nanoseconds since the epoch that never go back, and `token`, the first part of the
        message-ids.
        """
        self.sink = sink
        self.now_ns = now_ns
        self.token = token
        self._ratio = ratio
        self._open_max = open_max
        self.arriving: OrderedDict[int, _Traced] = OrderedDict()
        """Messages by number that no queue has taken yet."""
        self._open: OrderedDict[tuple[QueueTracing, int], None] = OrderedDict()
        """Messages in queues, the oldest first."""
        self.unfollowed_count = 0
        """Number of messages no longer followed because there were too many."""

    def came(self, head: SendHead, number: int, count: int) -> None:
        """Follow new SENDs with this marked head, `count` of them from `number` on."""
        traceparent = head.header("traceparent")
        if traceparent is None or head.to_log:
            return  # a log's records stay where they are, and it has no observers
        context = parse_traceparent(traceparent, head.header("tracestate") or "")
        if context is None or not context.sampled or not is_chosen(context.trace_id, self._ratio):
            return
        now_ns, correlation_id = self.now_ns(), head.header("correlation-id")
        for one in range(number, number + count):
            self.arriving[one] = _Traced(context, one, now_ns, correlation_id)
        while len(self.arriving) > self._open_max:
            self.arriving.popitem(last=False)
            self.unfollowed_count += 1

    def observer_of(self, queue: MessageQueue) -> QueueTracing:
        """Return the observer of a new queue."""
        return QueueTracing(self, queue)

    def opened(self, queue: QueueTracing, sequence: int) -> None:
        """Note that a queue has taken a followed message."""
        self._open[queue, sequence] = None
        while len(self._open) > self._open_max:
            (oldest, number), _none = self._open.popitem(last=False)
            oldest.traced.pop(number, None)
            self.unfollowed_count += 1

    def ended(self, queue: QueueTracing, sequence: int) -> None:
        """Note that a followed message has left its queue."""
        self._open.pop((queue, sequence), None)


class QueueTracing:
    """Observer of the traced messages of one queue. Implements queues.observer.Observer."""

    __slots__ = ("_destination", "_elements", "_tracing", "is_topic", "origin", "traced")

    def __init__(self, tracing: Tracing, queue: MessageQueue) -> None:
        self._tracing = tracing
        self._elements = queue.elements
        self._destination = queue.destination_name
        self.is_topic = queue.kind is ResourceKind.TOPIC
        self.origin: SourceController | None = None
        self.traced: dict[int, _Traced] = {}
        """Followed messages by sequence."""

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        arriving = self._tracing.arriving
        if not arriving:
            return
        number, count = messages[0].number, len(messages)
        if end - first != count:
            return  # a block was closed in between, so the sequences are not dense: rare, so not followed
        if len(arriving) < count and messages[-1].number - number == count - 1:
            found = [other - number for other in arriving if number <= other < number + count]
        else:
            found = [place for place, message in enumerate(messages) if message.number in arriving]
        for place in found:
            self._accept(arriving.pop(messages[place].number), messages[place], first + place)

    def _accept(self, traced: _Traced, message: Message, sequence: int) -> None:
        traced.size_bytes = len(message.wire)
        if isinstance(message.head, SendHead):
            traced.size_bytes -= message.head.body_offset + 1
        if message.large is not None:
            traced.size_bytes = message.large[1]
        now_ns = self._tracing.now_ns()
        more = {} if self.origin is None else {"sluiceway.sender": self.origin.resource.name[:ATTRIBUTE_LENGTH_MAX]}
        traced.context = self._span("accept", "server", traced, traced.began_ns, now_ns, more)
        traced.began_ns = now_ns
        if self.is_topic:
            self._forget_gone()
        self.traced[sequence] = traced
        self._tracing.opened(self, sequence)

    def _forget_gone(self) -> None:
        """Drop messages that have left the topic, which does not report the last reader. O(messages that have left)."""
        first = self._elements.first_sequence
        for sequence in list(takewhile(first.__gt__, self.traced)):
            self._end(sequence)

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        if not self.traced:
            return
        now_ns = self._tracing.now_ns()
        for sequence in self._among(sequences):
            traced = self.traced[sequence]
            if len(traced.deliveries) < DELIVERIES_MAX:
                self._span("wait", "internal", traced, traced.began_ns, now_ns, {"sluiceway.consumer": to})
                traced.deliveries[to] = now_ns

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        if self.traced:
            self._delivered(by, sequences, "settled", "", done=not self.is_topic)

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        if self.traced:
            outcome = "nacked" if refused else "returned"
            error = "refused by the consumer" if refused else "not acknowledged" if attempted else ""
            self._delivered(by, sequences, outcome, error, done=False)

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        if not self.traced or fate is Fate.GIVEN_UP:
            return
        now_ns = self._tracing.now_ns()
        for sequence in self._among(sequences):
            traced = self.traced[sequence]
            outcome = fate.name.lower()
            error = "" if fate is Fate.MOVED else f"{outcome}: {detail}" if detail else outcome
            more = {"sluiceway.outcome": outcome, "sluiceway.detail": detail}
            self._span("wait", "internal", traced, traced.began_ns, now_ns, more, error)
            self._end(sequence)

    def closed(self, reason: str) -> None:
        self.left(Fate.DROPPED, list(self.traced), f"the queue was deleted: {reason}")

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        arriving = self._tracing.arriving
        if not arriving or fate is Fate.PARKED:
            return  # pending: accept takes longer
        now_ns = self._tracing.now_ns()
        for message in messages:
            traced = arriving.pop(message.number, None)
            if traced is not None:
                more = {"sluiceway.outcome": "dropped", "sluiceway.detail": detail}
                self._span("accept", "server", traced, traced.began_ns, now_ns, more, f"dropped: {detail}")

    def missed(self, by: str, first: int, end: int) -> None:
        """See Observer. A loss of one reader makes no span."""

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        """See Observer. Recorded by the trail only."""

    def paged(self, first: int, end: int, *, paged_in: bool) -> None:
        """See Observer. Recorded by the trail only."""

    def restored(self, end: int) -> None:
        """See Observer. Messages of an earlier run are not followed."""

    def _among(self, sequences: SequenceOf[int]) -> Iterable[int]:
        """Return the traced sequences among these. O(the smaller set) for a range."""
        traced = self.traced
        if isinstance(sequences, range) and len(traced) < len(sequences):
            return [sequence for sequence in traced if sequence in sequences]
        return [sequence for sequence in sequences if sequence in traced]

    def _delivered(self, by: str, sequences: SequenceOf[int], outcome: str, error: str, *, done: bool) -> None:
        now_ns = self._tracing.now_ns()
        for sequence in self._among(sequences):
            traced = self.traced[sequence]
            began_ns = traced.deliveries.pop(by, None)
            if began_ns is not None:
                more = {"sluiceway.consumer": by, "sluiceway.outcome": outcome}
                self._span("deliver", "client", traced, began_ns, now_ns, more, error)
            if not self.is_topic:
                traced.began_ns = now_ns
            if done:
                self._end(sequence)

    def _end(self, sequence: int) -> None:
        del self.traced[sequence]
        self._tracing.ended(self, sequence)

    def _span(
        self, what: str, kind: str, traced: _Traced, start_ns: int, end_ns: int, more: Attributes, error: str = ""
    ) -> TraceContext:
        operation = {"accept": "receive", "deliver": "send"}.get(what)
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "sluiceway",
            "messaging.destination.name": self._destination[:ATTRIBUTE_LENGTH_MAX],
            "messaging.operation.name": what,
            "messaging.message.id": f"{self._tracing.token}-{traced.number}",
            "messaging.message.body.size": traced.size_bytes,
            **more,
        }
        if operation is not None:
            attributes["messaging.operation.type"] = operation
        if traced.correlation_id is not None:
            attributes["messaging.message.conversation_id"] = traced.correlation_id[:ATTRIBUTE_LENGTH_MAX]
        name = f"{what} {self._destination[:ATTRIBUTE_LENGTH_MAX]}"
        return self._tracing.sink.span(name, kind, traced.context, start_ns, end_ns, attributes, error)
