"""Report of a store on its own state, in steps."""

from __future__ import annotations

from typing import Any

import attrs

from ..flow.graph import Steps
from .storequeue import StoreQueue


def report_in_steps(store: StoreQueue) -> Steps[dict[str, Any]]:
    """Return the report of the store in `sluiceway stat`."""
    queues_count = cancelled_count = 0
    for shelf in list(store.shelves.values()):
        queues_count += shelf.queue_id > 0
        cancelled_count += shelf.cancelled_count
        yield
    counters = attrs.asdict(store.counters)
    cancelled_count += counters.pop("forgotten_cancelled_count")
    return {
        "engine": store.engine_name,
        "state": store.state,
        "error": store.trouble,
        "size_bytes": store.size_bytes,
        "queues_count": queues_count,
        "cancelled_count": cancelled_count,
        "loaded_count": store.loaded_count,
        "under_way_bytes": store.under_way_bytes,
        **counters,
    }
