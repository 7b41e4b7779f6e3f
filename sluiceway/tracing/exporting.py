"""The OpenTelemetry SDK, and its connection to a collector: the only module here that imports it.

Finished spans wait in a bounded queue of the SDK, whose thread posts them (OTLP over HTTP). When the collector does not
answer they are dropped, which is logged once, and once more when it is back: nothing waits for the collector.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from sluiceway.protocols.log import get_logger
from sluiceway.tracing.config import TracingConfig
from sluiceway.tracing.context import TraceContext
from sluiceway.tracing.spans import Attributes

log = get_logger("sluiceway.tracing")

POST_SECONDS: Final = 5.0
"""Time limit of one post, and of the wait for the last post when the broker stops."""

BATCH_COUNT: Final = 512

_KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


class SdkSpans:
    """Spans of the SDK. Implements sluiceway.tracing.spans.SpanSink."""

    def __init__(self, provider: TracerProvider, *, version: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("sluiceway", version)

    def span(
        self, name: str, kind: str, parent: TraceContext, start_ns: int, end_ns: int, attributes: Attributes, error: str
    ) -> TraceContext:
        state = TraceState.from_header([parent.tracestate]) if parent.tracestate else TraceState()
        remote = SpanContext(
            parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(1), trace_state=state
        )
        span = self._tracer.start_span(
            name,
            context=set_span_in_context(NonRecordingSpan(remote)),
            kind=_KINDS[kind],
            attributes=attributes,
            start_time=start_ns,
        )
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns)
        made = span.get_span_context()
        return TraceContext(made.trace_id, made.span_id, True, parent.tracestate)

    def close(self) -> None:
        """Post the remaining spans; blocks for POST_SECONDS or a little more."""
        self._provider.shutdown()


class TellingExporter(SpanExporter):
    """Exporter that logs when spans begin to be lost, and when they are delivered again. Called in the SDK's thread."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._failing = False
        self.lost_count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self.lost_count += len(spans)
        if failed and not self._failing:
            log.warning("spans are lost: the collector does not take them", endpoint=self._endpoint)
        elif self._failing and not failed:
            log.info("the collector takes spans again", endpoint=self._endpoint, lost=self.lost_count)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def otlp_spans(config: TracingConfig, *, name: str, version: str) -> SdkSpans:
    """Return spans that are posted to the configured collector; `name` of the broker."""
    # Silences the SDK's message about each failed post; the exporter here logs one line.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    provider = TracerProvider(
        sampler=ALWAYS_ON,  # every span made here is sampled: its sender said so
        resource=Resource.create({"service.name": name, "service.version": version}),
        shutdown_on_exit=False,
    )
    exporter = TellingExporter(OTLPSpanExporter(endpoint=config.endpoint, timeout=POST_SECONDS), config.endpoint)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=config.spans_max,
            schedule_delay_millis=1000,
            max_export_batch_size=min(BATCH_COUNT, config.spans_max),
            export_timeout_millis=POST_SECONDS * 1000,
        )
    )
    return SdkSpans(provider, version=version)
