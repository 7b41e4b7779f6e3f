"""The stores of all shards as one: figures are added up, and what is wrong with any of them is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sluiceway.flow.graph import Steps
from sluiceway.store.reporting import report_in_steps
from sluiceway.store.storequeue import StoreQueue

_STATES: Final = ("failing", "disk low", "not paging", "damaged")
"""States of a store that is not well, the worst first."""


def stores_in_steps(stores: Sequence[StoreQueue]) -> Steps[dict[str, Any] | None]:
    """Return the report of the only store (`report_in_steps`), or of all together; None: there is none."""
    if not stores:
        return None
    whole = yield from report_in_steps(stores[0])
    for store in stores[1:]:
        report = yield from report_in_steps(store)
        for name, value in report.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                whole[name] += value
    worst = worst_of(stores)
    whole["state"], whole["error"] = worst.state, worst.trouble
    return whole


def worst_of(stores: Sequence[StoreQueue]) -> StoreQueue:
    """Return the store in the worst state; at least one is there."""
    return min(stores, key=lambda store: _STATES.index(store.state) if store.state in _STATES else len(_STATES))
