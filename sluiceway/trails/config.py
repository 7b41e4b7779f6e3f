"""Configuration of trails: [trails]."""

from __future__ import annotations

import attrs

from sluiceway.queues.settings import at_least, field


@attrs.frozen
class TrailsConfig:
    """Recorded history of each message, to answer where it is."""

    enabled: bool = field(
        True,
        "",
        "Remember what becomes of messages. Costs 0 to 6 % of the highest rates, for it is noted per batch, and up to "
        "a tenth where one request waits for one reply; without it `sluiceway trail` knows nothing. Takes effect at "
        "the next start.",
    )
    bytes_max: int = field(
        16 * 1024 * 1024,
        "bytes",
        "Memory for it, at most; then the oldest is forgotten. An event of a batch takes about 40 bytes, so the "
        "default holds some 400,000 events: of messages that come one by one the last hundred thousand or more, of a "
        "fast stream the last minutes. May change while the broker runs.",
        at_least(64 * 1024),
    )
    keep_seconds: float = field(
        86_400.0,
        "seconds",
        "Older events are evicted, too. The default is a day: the question usually comes the next morning. May "
        "change while the broker runs.",
        at_least(1),
    )
