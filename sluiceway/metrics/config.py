"""Settings of the metrics."""

from __future__ import annotations

import attrs

from sluiceway.queues.settings import at_least, field


@attrs.frozen
class MetricsConfig:
    """Settings of `/metrics` of the admin port."""

    destinations_max: int = field(
        1000,
        "count",
        "Destinations that have series of their own, and as many durable subscriptions, logs and groups of logs: those "
        'that came first. All others are added up under the name "(others)", so that sums are right. Each destination '
        "is some 25 series; the default is what a small Prometheus takes without notice. Temporary destinations are "
        "always added up.",
        at_least(0),
    )
