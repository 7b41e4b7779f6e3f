"""OpenTelemetry traces of messages that carry a sampled `traceparent`. An extra: `pip install 'sluiceway[tracing]'`.

    config      [tracing]
    context     the W3C header
    spans       what happens to a traced message becomes spans: accept, wait, deliver
    exporting   the SDK and its exporter (OTLP over HTTP), in a thread of their own

Nothing is imported here, so that the configuration may import `config` alone.
"""
