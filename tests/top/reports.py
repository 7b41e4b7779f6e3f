"""Answers of a broker, as `/sluiceway/stat` gives them, with what a test wants in them."""

from __future__ import annotations

from typing import Any, Final


def destination(name: str, *, added: int = 0, settled: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "added_count": added,
        "settled_count": settled,
        "depth_count": added - settled,
        "depth_bytes": (added - settled) * 100,
        "unsettled_count": 0,
        "subscriptions_count": 1,
        **values,
    }


def edge(source: str, sink: str, source_id: int, sink_id: int, age_seconds: float) -> dict[str, Any]:
    return {
        "kind": "block", "source_id": source_id, "source": source, "sink_id": sink_id, "sink": sink,
        "age_seconds": age_seconds, "details": "memory full",
    }  # fmt: skip


def chain(*edges: dict[str, Any], cyclic: bool = False) -> dict[str, Any]:
    return {"edges": list(edges), "cyclic": cyclic}


def report(at_seconds: float, *, uptime_seconds: float | None = None, **parts: Any) -> dict[str, Any]:
    """`at_seconds`: by the broker's clock, which begins at 0 with it unless `uptime_seconds` says otherwise."""
    return {
        "taken_at": at_seconds,
        "broker": {
            "name": "b",
            "version": "1",
            "uptime_seconds": at_seconds if uptime_seconds is None else uptime_seconds,
            "rss_bytes": 50 * 1024 * 1024,
        },
        **parts,
    }


_PRODUCER_WAITS: Final = edge("connection peer-a", "queue /queue/orders", 1, 2, 30.0)
_QUEUE_WAITS: Final = edge("queue /queue/orders", "subscription 1 of peer-c", 2, 3, 41.0)
HELD_UP: Final[dict[str, Any]] = {
    "resources": [
        {
            "resource_id": 3, "kind": "subscription", "name": "1 of peer-c", "facts": {"unacked": 500},
            "facts_words": "500 unacked, idle 41 s",
            "controllers": [{"limiter": {"words": "window full, 500 of 500 messages"}}],
        },
    ],
    "edges": [_PRODUCER_WAITS, _QUEUE_WAITS],
    "chains": [chain(_QUEUE_WAITS), chain(_PRODUCER_WAITS, _QUEUE_WAITS)],
    "bottlenecks": [
        {
            "sink": "subscription 1 of peer-c",
            "oldest_seconds": 41.0,
            "words": "subscription 1 of peer-c blocks 2 flows",
        }
    ],
    "destinations": [destination("/queue/orders", added=1000)],
    "connections": [{"peer": "peer-a", "session": "s1", "version": "1.2", "in_count": 7, "blocked_seconds": 30.0}],
}  # fmt: skip
"""A producer waits on a queue, which waits on a consumer that does not acknowledge."""
