"""What happens to a traced message becomes spans.

    accept    from the SEND to its place in the queue: parked time, and the queue's gate
    wait      from there to the consumer: once for each delivery, from the arrival or the last return
    deliver   from the hand-over to the ACK (NACK, loss); with ack auto until the kernel has taken it

`accept` is a child of the sender's span, `wait` and `deliver` are children of `accept`. The headers go on as they came:
so a consumer's span is a child of the sender's, too, and all of them stand in one trace. The broker does not put itself
between them, because that would be a header block of its own for each message, and each delivery (the wire form law).

Only messages with a sampled `traceparent` are followed, OPEN_MAX at a time. A message without one costs one look at a
flag of its head, which many share; a queue without any traced message costs one look at an empty table per batch.

A message is followed from its SEND until it has left the queue that took it. What comes back after a restart, or goes
on to the dead letters, is not followed there: its last span says so.

Source: OpenTelemetry semantic conventions for messaging (`messaging.*`); those of brokers themselves are not settled,
so what has no name there is called `sluiceway.*`.
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
"""Traced messages that are followed at a time; about 1 KiB each. Beyond it the oldest is followed no further."""

DELIVERIES_MAX: Final = 100
"""Of one message at a time: a topic may have ten thousand subscribers."""

ATTRIBUTE_LENGTH_MAX: Final = 256

Attributes = Mapping[str, str | int | bool]


class SpanSink(Protocol):
    """Takes finished spans."""

    def span(
        self, name: str, kind: str, parent: TraceContext, start_ns: int, end_ns: int, attributes: Attributes, error: str
    ) -> TraceContext:
        """A span of this kind (server, internal or client), child of `parent`; `error`: what went wrong, if it did.
        Times are nanoseconds since the epoch. Returns where it stands. Must not block.
        """


@attrs.define(eq=False)
class _Traced:
    """A message that is followed."""

    context: TraceContext
    """The sender's; once it is accepted, that of `accept`."""
    number: int
    began_ns: int
    """Its SEND; once it is accepted, since when it waits."""
    correlation_id: str | None
    size_bytes: int = 0
    deliveries: dict[str, int] = attrs.field(factory=dict)
    """To whom it was handed, and when."""


class Tracing:
    """The traced messages of one broker."""

    def __init__(
        self, sink: SpanSink, *, ratio: float, now_ns: Callable[[], int], token: str, open_max: int = OPEN_MAX
    ) -> None:
        """`now_ns`: since the epoch, never going back; `token`: first part of the message-ids."""
        self.sink = sink
        self.now_ns = now_ns
        self.token = token
        self._ratio = ratio
        self._open_max = open_max
        self.arriving: OrderedDict[int, _Traced] = OrderedDict()
        """By number: those that no queue has taken yet."""
        self._open: OrderedDict[tuple[QueueTracing, int], None] = OrderedDict()
        """All that are in queues, the oldest first."""
        self.unfollowed_count = 0
        """Messages that were followed no further, because there were too many."""

    def came(self, head: SendHead, number: int, count: int) -> None:
        """So many SENDs with this marked head got these numbers."""
        traceparent = head.header("traceparent")
        if traceparent is None or head.to_log:
            return  # a log's records stay where they are, and it tells nobody of them
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
        """The observer of a new queue."""
        return QueueTracing(self, queue)

    def opened(self, queue: QueueTracing, sequence: int) -> None:
        """This is in a queue now."""
        self._open[queue, sequence] = None
        while len(self._open) > self._open_max:
            (oldest, number), _none = self._open.popitem(last=False)
            oldest.traced.pop(number, None)
            self.unfollowed_count += 1

    def ended(self, queue: QueueTracing, sequence: int) -> None:
        """This has left its queue."""
        self._open.pop((queue, sequence), None)


class QueueTracing:
    """Follows the traced messages of one queue. Satisfies queues.observer.Observer."""

    __slots__ = ("_destination", "_elements", "_tracing", "is_topic", "origin", "traced")

    def __init__(self, tracing: Tracing, queue: MessageQueue) -> None:
        self._tracing = tracing
        self._elements = queue.elements
        self._destination = queue.name_on_disk
        self.is_topic = queue.kind is ResourceKind.TOPIC
        self.origin: SourceController | None = None
        self.traced: dict[int, _Traced] = {}
        """By sequence."""

    def accepted(self, messages: list[Message], first: int, end: int) -> None:
        """See Observer."""
        arriving = self._tracing.arriving
        if not arriving:
            return
        number, count = messages[0].number, len(messages)
        if end - first != count:
            return  # a block was closed in between, so the sequences are not dense: rare enough to be let go
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
        """A topic does not say when the last one has it. O(those that have gone)."""
        first = self._elements.first_sequence
        for sequence in list(takewhile(first.__gt__, self.traced)):
            self._end(sequence)

    def sent(self, to: str, sequences: SequenceOf[int], *, auto: bool) -> None:
        """See Observer."""
        if not self.traced:
            return
        now_ns = self._tracing.now_ns()
        for sequence in self._among(sequences):
            traced = self.traced[sequence]
            if len(traced.deliveries) < DELIVERIES_MAX:
                self._span("wait", "internal", traced, traced.began_ns, now_ns, {"sluiceway.consumer": to})
                traced.deliveries[to] = now_ns

    def settled(self, by: str, sequences: SequenceOf[int]) -> None:
        """See Observer."""
        if self.traced:
            self._delivered(by, sequences, "settled", "", done=not self.is_topic)

    def returned(self, by: str, sequences: SequenceOf[int], *, attempted: bool, refused: bool) -> None:
        """See Observer."""
        if self.traced:
            outcome = "nacked" if refused else "returned"
            error = "refused by the consumer" if refused else "not acknowledged" if attempted else ""
            self._delivered(by, sequences, outcome, error, done=False)

    def left(self, fate: Fate, sequences: SequenceOf[int], detail: str) -> None:
        """See Observer."""
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
        """See Observer."""
        self.left(Fate.DROPPED, list(self.traced), f"the queue was deleted: {reason}")

    def outside(self, fate: Fate, messages: SequenceOf[Message], detail: str) -> None:
        """See Observer."""
        arriving = self._tracing.arriving
        if not arriving or fate is Fate.PARKED:
            return  # what is parked is on its way: accept takes longer
        now_ns = self._tracing.now_ns()
        for message in messages:
            traced = arriving.pop(message.number, None)
            if traced is not None:
                more = {"sluiceway.outcome": "dropped", "sluiceway.detail": detail}
                self._span("accept", "server", traced, traced.began_ns, now_ns, more, f"dropped: {detail}")

    def missed(self, by: str, first: int, end: int) -> None:
        """See Observer. Of no consequence to others: no span."""

    def stored(self, sequences: SequenceOf[int], *, synced: bool) -> None:
        """See Observer. The trail tells it."""

    def paged(self, first: int, end: int, *, came_in: bool) -> None:
        """See Observer. The trail tells it."""

    def restored(self, end: int) -> None:
        """See Observer. What an earlier run left is not followed."""

    def _among(self, sequences: SequenceOf[int]) -> Iterable[int]:
        """The traced ones of these. O(the fewer of both) for a range."""
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
