"""JSON schemas of answers and requests, written down shortly. OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluiceway.views.destinations import HELD

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
TRUTH: Final[Schema] = {"type": "boolean"}
ANYTHING: Final[Schema] = {}
FREE: Final[Schema] = {"type": "object"}


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value, or null."""
    if isinstance(schema.get("type"), str) and len(schema) == 1:
        return {"type": [schema["type"], "null"]}
    return {"oneOf": [schema, {"type": "null"}]}


def record(fields: Mapping[str, Schema], *, optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these fields, all there but the optional ones; there may be more."""
    return {"type": "object", "required": list(fields), "properties": {**fields, **(optional or {})}}


def strict(fields: Mapping[str, Schema], *, optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of a request without further fields."""
    return {**record(fields, optional=optional), "additionalProperties": False}


def many(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def table(item: Schema) -> Schema:
    """A page of a list."""
    return record({"total": COUNT, "offset": COUNT, "items": many(item)})


def counts(*names: str) -> dict[str, Schema]:
    """Return the schemas of whole numbers with these names."""
    return dict.fromkeys(names, COUNT)


def numbers(*names: str) -> dict[str, Schema]:
    return dict.fromkeys(names, NUMBER)


def texts(*names: str) -> dict[str, Schema]:
    return dict.fromkeys(names, TEXT)


_PLACED: Final = ("items", "nodes", "bottlenecks", "stalled", "chains")
"""Lists of answers whose rows have a `hub`, where there are several."""


def of_all_hubs(answer: Schema) -> Schema:
    """Return the schema of an answer that may be that of several hubs: who is missing, and where each row is."""
    fields = dict(answer["properties"])
    for name in _PLACED:
        item = fields.get(name, {}).get("items", {})
        if "properties" in item:
            fields[name] = many({**item, "properties": {**item["properties"], "hub": TEXT}})
    fields["missing"] = {"type": "object", "additionalProperties": TEXT}
    return {**answer, "properties": fields}


LIMITER: Final = record(
    {
        "label": TEXT,
        "used": COUNT,
        "capacity": maybe(COUNT),
        "unit": {"type": "string", "enum": ["bytes", "messages"]},
        "share": maybe(NUMBER),
        "throttled": TRUTH,
        "words": TEXT,
    }
)
CAUSE: Final = maybe(
    record(
        {
            **texts("id", "kind", "name", "title"),
            **dict.fromkeys(("session", "peer", "client"), maybe(TEXT)),
            "unsettled_count": COUNT,
            "paused": TRUTH,
        }
    )
)
"""The node that a wait ends at, with the connection that it belongs to."""


def _standing(*states: str) -> dict[str, Schema]:
    return {
        "state": {"type": "string", "enum": list(states)},
        "state_words": TEXT,
        "state_seconds": maybe(NUMBER),
        "cause": CAUSE,
    }


HUB: Final = record(
    {"name": TEXT, "missing": maybe(TEXT)},
    optional={
        "gone": TRUTH,
        "missing_seconds": maybe(NUMBER),
        "shards_waiting": many(COUNT),
        "pid": COUNT,
        "now_ms": COUNT,
        "clock_seconds": NUMBER,
        "address": maybe(TEXT),
        **counts("connections_count", "destinations_count"),
        "shards": many(COUNT),
        "links": many(record({"hub": TEXT, "address": TEXT, "flows_count": COUNT})),
        "unlinked": many(record({"hub": TEXT, "seconds": NUMBER})),
        **numbers("in_per_second", "out_per_second"),
    },
)
"""A hub of a cluster. `missing`: why it has not answered; then the first three fields say more, where it is known:
`gone` (not in the cluster), for how long, and the shards that it had and no hub has now.
"""
CHAIN: Final = record({"id": TEXT, "words": TEXT, "age_seconds": NUMBER})
STORE: Final = maybe(record({"engine": TEXT, "state": TEXT, "error": maybe(TEXT)}))
OVERVIEW: Final = record(
    {
        "broker": record(
            {
                **texts("name", "version"),
                "uptime_seconds": NUMBER,
                "rss_bytes": COUNT,
                "draining": TRUTH,
                "listeners": many(TEXT),
            }
        ),
        "totals": record(
            {
                **numbers("in_per_second", "out_per_second"),
                **counts(
                    "depth_count",
                    "depth_bytes",
                    "memory_bytes",
                    "unsettled_count",
                    "connections_count",
                    "destinations_count",
                    "subscriptions_count",
                ),
            }
        ),
        "bottlenecks": many(
            record(
                {
                    **texts("id", "title", "words"),
                    "flows_count": COUNT,
                    "waits_itself": TRUTH,
                    "age_seconds": NUMBER,
                    "cause": CAUSE,
                }
            )
        ),
        "stalled": many(record({**texts("id", "title", "words"), "age_seconds": NUMBER, "cause": CAUSE})),
        "chains": many(CHAIN),
        "store": STORE,
    },
    optional={"hubs": many(HUB)},
)
HISTORY: Final = record(
    {
        "step_seconds": NUMBER,
        "age_seconds": NUMBER,
        "series": {"type": "object", "additionalProperties": many(maybe(NUMBER))},
    }
)
MAP: Final = record(
    {
        "at_seconds": NUMBER,
        "nodes": many(
            record(
                {
                    "id": TEXT,
                    "kind": {
                        "type": "string",
                        "enum": ["connection", "destination", "subscription", "store", "disk", "other"],
                    },
                    "name": TEXT,
                    "title": TEXT,
                    "label": TEXT,
                    "state": {"type": "string", "enum": ["open", "throttled", "blocked", "paused"]},
                    "words": TEXT,
                    "facts_words": TEXT,
                    "limiters": many(LIMITER),
                    "rate_per_second": NUMBER,
                    "held_bytes": COUNT,
                    "age_seconds": NUMBER,
                    "senders_count": COUNT,
                    "senders_seconds": NUMBER,
                }
            )
        ),
        "edges": many(
            record(
                {
                    "from": TEXT,
                    "to": TEXT,
                    "kind": {"type": "string", "enum": ["flow", "block", "wait"]},
                    "rate_per_second": NUMBER,
                    "age_seconds": NUMBER,
                    "words": TEXT,
                }
            )
        ),
        "omitted": record(counts("nodes_count", "edges_count")),
    }
)
CHAIN_OF_NODE: Final = record(
    {
        "id": TEXT,
        "words": TEXT,
        "steps": many(record({**texts("id", "title", "words"), "age_seconds": NUMBER})),
        "cycle": TRUTH,
        "remedy": TEXT,
        "cause": CAUSE,
    }
)
_DESTINATION_FIELDS: Final[dict[str, Schema]] = {
    **texts("id", "name", "kind"),
    **_standing("blocking", "stalled", "degraded", "paused", "unconsumed", "flowing", "idle"),
    **counts(
        "producers_count",
        "subscriptions_count",
        *HELD,
        "unsettled_count",
        "added_count",
        "settled_count",
        "returned_count",
        "dropped_count",
        "dead_lettered_count",
    ),
    **numbers("idle_seconds", "in_per_second", "out_per_second"),
    "oldest_seconds": maybe(NUMBER),
    "drain_seconds": maybe(NUMBER),
    "quota_seconds": maybe(NUMBER),
    "paused": TRUTH,
    "changed_limits": {
        "type": "object",
        "additionalProperties": record({"value": maybe(COUNT), "configured": maybe(COUNT)}),
    },
    "may_admin": TRUTH,
    "bytes_max": maybe(COUNT),
    "count_max": maybe(COUNT),
}
_OF_SUBSCRIPTION: Final = _standing("blocking", "stalled", "busy", "flowing", "idle")
DESTINATION: Final = record(_DESTINATION_FIELDS)
ONE_DESTINATION: Final = record(
    {
        **_DESTINATION_FIELDS,
        "partitions": many(record({"name": TEXT, "kind": TEXT, "priority": COUNT, "limiters": many(LIMITER)})),
        "policy": FREE,
        "subscriptions": many(
            record(
                {**texts("id", "name"), **counts("unsettled_count", "delivered_count"), "rate_per_second": NUMBER},
                optional=_OF_SUBSCRIPTION,
            )
        ),
    }
)
SUBSCRIPTION: Final = record(
    {
        **texts("id", "name", "destination", "session", "peer", "ack"),
        "client_id": maybe(TEXT),
        **_OF_SUBSCRIPTION,
        "selector": maybe(TEXT),
        "user": maybe(TEXT),
        "slow": maybe(TEXT),
        "paused": TRUTH,
        "unsettled_count": COUNT,
        **numbers("idle_seconds", "rate_per_second"),
        "window": maybe(LIMITER),
    }
)
CONNECTION: Final = record(
    {
        **texts("id", "peer", "session"),
        **_standing("blocking", "blocked", "stalled", "flowing", "idle"),
        "user": maybe(TEXT),
        "client_id": maybe(TEXT),
        "host": maybe(TEXT),
        "version": maybe(TEXT),
        **counts(
            "subscriptions_count",
            "unsettled_count",
            "parked_count",
            "stash_bytes",
            "waiting_bytes",
            "transactions_count",
            "in_bytes",
            "out_bytes",
            "in_count",
        ),
        **numbers("blocked_seconds", "in_per_second", "out_per_second"),
        "waiting_on": maybe(TEXT),
    }
)
DURABLE: Final = record(
    {
        **texts("name", "client_id", "destination"),
        "attached": TRUTH,
        "consumers_count": COUNT,
        "backlog_count": COUNT,
        **numbers("age_seconds", "away_seconds"),
    }
)
_GROUP_FIELDS: Final[dict[str, Schema]] = {
    "group": TEXT,
    **counts("front", "lag", "lag_bytes", "consumers", "unsettled", "gaps"),
    "lag_seconds": NUMBER,
}
GROUP: Final = record({"log": TEXT, **_GROUP_FIELDS})
LOG: Final = record(
    {
        **texts("id", "name", "log"),
        **counts("first", "next", "size", "bytes", "synced", "waiting", "readers", "gaps"),
        "compacts": TRUTH,
        **counts("compacted_to", "compacted_count", "compacted_bytes"),
        **numbers("in_per_second", "out_per_second"),
        "failing": maybe(TEXT),
        "groups": many(record(_GROUP_FIELDS)),
    }
)
RECORDS: Final = record(
    {
        "log": TEXT,
        **counts("first", "next"),
        "from": maybe(COUNT),
        "items": many(
            record(
                {"index": COUNT},
                optional={
                    **counts("timestamp_ms", "size_bytes", "end"),
                    "headers": {"type": "object", "additionalProperties": TEXT},
                    **texts("preview", "missing"),
                },
            )
        ),
    }
)
CONFIG: Final = record(
    {
        "file": maybe(TEXT),
        "values": many(
            record(
                {
                    "key": TEXT,
                    "value": ANYTHING,
                    "default": ANYTHING,
                    "changed": TRUTH,
                    "live": TRUTH,
                    "unit": TEXT,
                    "doc": TEXT,
                }
            )
        ),
    }
)
SESSION: Final = record(
    {
        "user": maybe(TEXT),
        "groups": many(TEXT),
        "may": record({"admin": TRUTH}),
        "csrf": TEXT,
        "users_configured": TRUTH,
    }
)
LOGGED_IN: Final = record({"user": maybe(TEXT), "groups": many(TEXT), "csrf": TEXT})
HEALTH: Final = record({"ok": TRUTH})
READINESS: Final = record({"ready": TRUTH, "reasons": many(TEXT)})
MESSAGE: Final = record(
    {
        **texts("message_id", "state", "place"),
        "size_bytes": COUNT,
        "age_seconds": maybe(NUMBER),
        "redelivered": TRUTH,
        "headers": {"type": "object", "additionalProperties": TEXT},
        "preview": TEXT,
    }
)
MESSAGES: Final = record({"items": many(MESSAGE), "next": maybe(TEXT), "looked_count": COUNT, "may_admin": TRUTH})
WHOLE_MESSAGE: Final = record(
    {
        **texts("message_id", "state", "place", "destination"),
        "size_bytes": COUNT,
        "age_seconds": maybe(NUMBER),
        "redelivered": TRUTH,
        "headers": {"type": "object", "additionalProperties": TEXT},
        "body": record(
            {"encoding": {"type": "string", "enum": ["text", "base64"]}, "bytes_total": COUNT, "truncated": TRUTH},
            optional={"text": TEXT, "data": TEXT},
        ),
    }
)
DEAD_LETTERS: Final = record(
    {
        "items": many(
            record(
                {
                    "name": TEXT,
                    **counts("depth_count", "depth_bytes", "counted_count"),
                    "may_admin": TRUTH,
                    "reasons": many(record({"reason": TEXT, "count": COUNT})),
                    "origins": many(record({"origin": TEXT, "count": COUNT})),
                }
            )
        )
    }
)
CLUSTER: Final = record(
    {
        **texts("cluster", "hub", "words"),
        "hubs": many(
            record(
                {
                    **texts("name", "clients", "version"),
                    "weight": NUMBER,
                    "shards_count": COUNT,
                    "state": {"type": "string", "enum": ["serving", "drained", "away"]},
                },
                optional={
                    name: HUB["properties"][name]
                    for name in ("missing", "gone", "missing_seconds", "shards_waiting", "links", "unlinked")
                },
            )
        ),
        "shards": many(
            record(
                {**counts("shard", "epoch"), "open": TRUTH, **texts("hub", "to", "pinned", "words")},
                optional=dict.fromkeys(("depth_count", "depth_bytes", "destinations_count"), maybe(COUNT)),
            )
        ),
    }
)
TRAILS: Final = record({"items": many(FREE)})
DONE: Final = record({"done": FREE, "words": TEXT})
ERROR: Final = record({"error": record(texts("code", "message", "remedy"))})
