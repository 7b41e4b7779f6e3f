"""Configuration of spans for OpenTelemetry: [tracing]."""

from __future__ import annotations

from typing import Any

import attrs

from sluiceway.queues.settings import at_least, field


def _share(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be from 0 (none) to 1 (all), got {value!r}")


def _endpoint(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value.startswith(("http://", "https://")):
        raise ValueError(
            f"{attribute.name} must be the URL to which spans are posted, such as http://127.0.0.1:4318/v1/traces, "
            f"got {value!r}"
        )


@attrs.frozen
class TracingConfig:
    """Spans of messages whose senders trace them, for OpenTelemetry."""

    enabled: bool = field(
        False,
        "",
        "Make spans (accept, wait, deliver) of messages that carry a sampled `traceparent` header, and send them to a "
        "collector. Needs the extra: `pip install 'sluiceway[tracing]'`. Off by default: without a collector its "
        "client should not be loaded.",
    )
    endpoint: str = field(
        "http://127.0.0.1:4318/v1/traces",
        "",
        "Where spans are posted (OTLP over HTTP, protobuf). The default is a collector on this machine. Headers for it "
        "come from the environment: `OTEL_EXPORTER_OTLP_HEADERS`.",
        _endpoint,
    )
    sample_ratio: float = field(
        1.0,
        "",
        "Of the traces that their senders have sampled, this share is recorded here; whole traces, chosen by their "
        "ids. Senders usually sample few enough.",
        _share,
    )
    spans_max: int = field(
        2048,
        "count",
        "Spans that wait for the collector; beyond that new ones are dropped. The default is that of the SDK, about "
        "4 MiB.",
        at_least(1),
    )
