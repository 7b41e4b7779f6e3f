"""OpenTelemetry traces of messages that carry a sampled `traceparent`. An extra: `pip install 'sluiceway[tracing]'`.

    config      [tracing]
    context     the W3C header
    spans       events of a traced message become spans: accept, wait, deliver
    exporting   the SDK and its exporter (OTLP over HTTP), in a thread of their own

This package imports nothing, so that the configuration may import `config` alone.
"""
