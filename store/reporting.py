"""Reports of a store on its own state; in steps where they read all queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..flow.graph import Steps

if TYPE_CHECKING:
    from .storequeue import StoreQueue


def facts_of(store: StoreQueue, failing: str | None) -> dict[str, object]:
    """Return the facts of the store on the flow map. `failing`: the disk's error for the last batch, if that could not
    be written.
    """
    facts: dict[str, object] = {"written": store.counters.written_count, "syncs": store.counters.syncs_count}
    for name, fault in (("failing", failing), ("not paging", store.paged.fault)):
        if fault is not None:
            facts[name] = fault
    if store.disk_is_low:
        facts["disk"] = "nearly full: free some space, or let consumers drain their queues"
    return facts


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
