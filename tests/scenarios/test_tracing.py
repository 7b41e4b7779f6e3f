"""Spans of traced messages, as the SDK of OpenTelemetry has them; and that others cost and show nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sluiceway.protocols.stomp.head import SendHead
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.observer import CompositeObserver
from sluiceway.tracing.exporting import SdkSpans
from sluiceway.tracing.spans import QueueTracing, Tracing
from tests.scenarios.stage import EPOCH_MS, Stage

Q = "/queue/orders"
T = "/topic/news"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SENDER = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SENDER}-01"


class TracedStage(Stage):
    """A stage whose spans come to memory."""

    def __init__(self, *args: Any, ratio: float = 1.0, trails: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        broker = self.broker
        broker._spans = SdkSpans(provider, version="1")
        tracing = attrs.evolve(broker.config.tracing, sample_ratio=ratio)
        broker.config = attrs.evolve(
            broker.config, tracing=tracing, trails=attrs.evolve(broker.config.trails, enabled=trails)
        )

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def told(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each span, in seconds of virtual time."""
        return [
            (
                span.name,
                round(span.start_time / 1e9 - EPOCH_MS / 1e3, 3),
                round(span.end_time / 1e9 - EPOCH_MS / 1e3, 3),
            )
            for span in self.spans()
            if span.start_time is not None and span.end_time is not None
        ]

    @property
    def tracing(self) -> Tracing:
        tracing = self.broker.tracking.tracing
        assert tracing is not None
        return tracing


@pytest.fixture
async def traced() -> AsyncIterator[TracedStage]:
    async with TracedStage() as stage:
        yield stage
        assert not stage.tracing.arriving and not stage.tracing._open, "nothing is followed that is gone"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("trails", [True, False])
async def test_accept_wait_and_deliver_of_one_message(trails: bool) -> None:
    async with TracedStage(trails=trails) as traced:
        producer, consumer = await traced.connect(name="producer"), await traced.connect(name="consumer")
        await trio.sleep(1)
        await producer.sent(Q, "hello", traceparent=SAMPLED, tracestate="congo=t61", correlation_id="c")
        await trio.sleep(2)
        await consumer.subscribe(Q, id="billing", ack="client")
        delivery = await consumer.next_message()
        await trio.sleep(3)
        await consumer.ack(delivery)
        assert traced.told() == [(f"accept {Q}", 1, 1), (f"wait {Q}", 1, 3), (f"deliver {Q}", 3, 6)]
        accept, wait, deliver = traced.spans()
        assert (accept.kind, wait.kind, deliver.kind) == (SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.CLIENT)
        assert {span.context.trace_id for span in traced.spans() if span.context} == {int(TRACE, 16)}
        assert accept.parent is not None and accept.parent.span_id == int(SENDER, 16)
        assert accept.context is not None and accept.context.trace_state.get("congo") == "t61"
        assert {span.parent.span_id for span in (wait, deliver) if span.parent} == {accept.context.span_id}
        assert attributes(accept) == {
            "messaging.system": "sluiceway",
            "messaging.destination.name": Q,
            "messaging.operation.name": "accept",
            "messaging.operation.type": "receive",
            "messaging.message.id": delivery.headers["message-id"],
            "messaging.message.body.size": 5,
            "messaging.message.conversation_id": "c",
            "sluiceway.sender": "producer",
        }
        assert attributes(deliver)["sluiceway.consumer"] == "billing of consumer"
        assert attributes(deliver)["sluiceway.outcome"] == "settled"


async def test_the_headers_go_on_as_they_came(traced: TracedStage) -> None:
    """The consumer's span is a child of the sender's, too: the broker does not write header blocks of its own."""
    producer, consumer = await traced.connect(), await traced.connect()
    await consumer.subscribe(Q)
    await producer.sent(Q, "m", traceparent=SAMPLED, tracestate="a=b,c=d")
    headers = (await consumer.next_message()).headers
    assert (headers["traceparent"], headers["tracestate"]) == (SAMPLED, "a=b,c=d")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"correlation-id": "c"},
        {"traceparent": f"00-{TRACE}-{SENDER}-00"},
        {"traceparent": "nonsense"},
        {"traceparent": f"00-{'0' * 32}-{SENDER}-01"},
        {"tracestate": "congo=t61"},
    ],
)
async def test_what_is_not_sampled_makes_no_spans_and_is_not_followed(
    traced: TracedStage, headers: dict[str, str]
) -> None:
    producer, consumer = await traced.connect(), await traced.connect()
    await consumer.subscribe(Q, ack="client")
    await producer.request("SEND", {"destination": Q, **headers}, "m")
    await consumer.ack(await consumer.next_message())
    assert traced.spans() == []


async def test_traced_messages_among_many_others(traced: TracedStage) -> None:
    """Of a batch just those that are sampled, each with its own time and number."""
    producer, consumer = await traced.connect(), await traced.connect()
    frames = [
        producer.encode(
            "SEND", {"destination": Q, **({"traceparent": SAMPLED} if number % 100 == 7 else {})}, str(number)
        )
        for number in range(500)
    ]
    await producer.send_raw(b"".join(frames))
    await consumer.subscribe(Q, ack="client", prefetch_count="1000")
    deliveries = await consumer.next_messages(500)
    await consumer.ack(deliveries[-1])
    ids = [deliveries[number].headers["message-id"] for number in range(7, 500, 100)]
    for what in ("accept", "wait", "deliver"):
        of_kind = [span for span in traced.spans() if span.name.startswith(what)]
        assert [attributes(span)["messaging.message.id"] for span in of_kind] == ids


async def test_the_ratio_leaves_whole_traces_out() -> None:
    async with TracedStage(ratio=0.0) as traced:
        producer = await traced.connect()
        await producer.sent(Q, "m", traceparent=SAMPLED)
        assert traced.spans() == [] and not traced.tracing.arriving


async def test_parking_is_part_of_accept() -> None:
    async with TracedStage({Q: {"count_max": 1}}) as traced:
        producer, consumer = await traced.connect(), await traced.connect()
        await producer.send(Q, "in the way")
        await producer.send(Q, "m", traceparent=SAMPLED)
        await trio.sleep(4)
        await consumer.subscribe(Q)
        await consumer.next_messages(2)
        assert traced.told()[0] == (f"accept {Q}", 0, 4)


async def test_a_nack_is_an_error_and_the_next_delivery_has_spans_of_its_own(traced: TracedStage) -> None:
    producer, consumer = await traced.connect(), await traced.connect()
    await consumer.subscribe(Q, ack="client-individual")
    await producer.sent(Q, "m", traceparent=SAMPLED)
    first = await consumer.next_message()
    await trio.sleep(1)
    await consumer.nack(first)
    await consumer.ack(await consumer.next_message())
    assert [name.split()[0] for name, _begin, _end in traced.told()] == ["accept", "wait", "deliver", "wait", "deliver"]
    refused, settled = traced.spans()[2], traced.spans()[4]
    assert refused.status.status_code is StatusCode.ERROR and refused.status.description == "refused by the consumer"
    assert settled.status.status_code is StatusCode.UNSET
    assert traced.told()[3][1:] == (1, 1), "it waits again from its return on"


@pytest.mark.parametrize(
    ("headers", "policy", "error"),
    [({"expiration": "2000"}, {}, "expired"), ({}, {"count_max": 1, "full": "drop_oldest"}, "dropped")],
)
async def test_what_is_lost_ends_with_an_error(headers: dict[str, str], policy: dict[str, Any], error: str) -> None:
    async with TracedStage({Q: policy}) as traced:
        producer = await traced.connect()
        await producer.sent(Q, "m", traceparent=SAMPLED, **headers)
        await producer.sent(Q, "another")
        await trio.sleep(5)
        last = traced.spans()[-1]
        assert last.name == f"wait {Q}" and last.status.status_code is StatusCode.ERROR
        assert (last.status.description or "").startswith(error)


async def test_each_subscriber_of_a_topic_has_its_delivery(traced: TracedStage) -> None:
    producer, one, other = [await traced.connect(name=name) for name in ("producer", "one", "other")]
    await one.subscribe(T, ack="client")
    await other.subscribe(T, ack="client")
    await producer.sent(T, "m", traceparent=SAMPLED)
    await one.ack(await one.next_message())
    await trio.sleep(1)
    await other.ack(await other.next_message())
    delivered = [attributes(span)["sluiceway.consumer"] for span in traced.spans() if span.name == f"deliver {T}"]
    assert delivered == ["s of one", "s of other"]
    assert len(traced.tracing._open) == 1, "a topic does not say when the last has it"
    await producer.sent(T, "another")
    await producer.sent(T, "one more", traceparent=SAMPLED)
    assert len(traced.tracing._open) == 1, "it is forgotten when the next one comes"
    await one.ack((await one.next_messages(2))[-1])
    await other.ack((await other.next_messages(2))[-1])
    traced.tracing._open.clear()


@pytest.mark.parametrize(("destination", "followed_count"), [("/log/orders", 0), (Q, 3)])
async def test_what_goes_to_a_log_is_not_followed(traced: TracedStage, destination: str, followed_count: int) -> None:
    """No log would say what becomes of it, and it would take the place of others."""
    block = f"destination:{destination}\ntraceparent:{SAMPLED}".encode()
    head = SendHead.parse(block, "1.2", StompLimits())[0]
    traced.tracing.came(head, 1, 3)
    assert len(traced.tracing.arriving) == followed_count
    traced.tracing.arriving.clear()


async def test_unheard_in_a_topic(traced: TracedStage) -> None:
    producer = await traced.connect()
    await producer.sent(T, "m", traceparent=SAMPLED)
    (accept,) = traced.spans()
    assert accept.status.description == "dropped: no subscribers"


async def test_too_many_are_followed_no_further() -> None:
    async with TracedStage() as traced:
        traced.tracing._open_max = 10
        producer = await traced.connect()
        for _ in range(30):
            await producer.send(Q, "m", traceparent=SAMPLED)
        await producer.sync()
        assert len(traced.tracing._open) == 10
        assert traced.tracing.unfollowed_count == 20
        followed = [
            observer._second
            for queue in traced.partitions(Q)
            if isinstance(observer := queue.observer, CompositeObserver)
        ]
        assert [len(each.traced) for each in followed if isinstance(each, QueueTracing)] == [10]


async def test_without_tracing_nobody_looks_for_traces(stage: Stage) -> None:
    assert stage.broker.tracking.tracing is None
    producer = await stage.connect()
    await producer.sent(Q, "m", traceparent=SAMPLED)
