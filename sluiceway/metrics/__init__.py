"""Metrics for Prometheus: what `/metrics` of the admin port answers, and `Broker.metrics_page` in a program.

    catalogue     all metrics: names, types, labels, help
    gather        one page, in steps
    destinations  its larger part: counts, contents and trends of each
    series        the choice of names, and sums of the rest that never decrease
    outside       values of the operating system
    exposition    samples as text, by prometheus_client
    config        the [metrics] section
    reference     the tables of docs/metrics.md

Ages come from `sluiceway.ages`, forecasts from `sluiceway.rates`, the loop's lag from `sluiceway.loop_monitor`.
"""

from __future__ import annotations

from typing import Final

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content types of the two formats."""


def wants_openmetrics(accept: str) -> bool:
    """Whether a client with this Accept header is to get OpenMetrics; if in doubt it gets the older format, which all
    can read.
    """
    for offer in accept.split(","):
        kind, *parameters = [part.strip().lower() for part in offer.split(";")]
        if kind == "application/openmetrics-text":
            version = next((p.removeprefix("version=") for p in parameters if p.startswith("version=")), "1.0.0")
            if version == "1.0.0" and "q=0" not in parameters:
                return True
    return False
