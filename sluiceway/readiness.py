"""Whether clients should be sent to this broker now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluiceway.broker import Broker


STARTING: Final = "it is starting"


def not_ready_because(broker: Broker) -> list[str]:
    """Return the reasons not to be ready, in words; empty: the broker is ready."""
    reasons = []
    if not broker.is_ready:
        reasons.append(STARTING)
    if broker.is_stopping:
        reasons.append("it is stopping")
    elif broker.is_draining:
        reasons.append("it is being drained")
    store = broker.store
    if store is not None:
        if store.state == "failing":
            reasons.append(f"its store fails: {store.trouble}")
        elif store.state == "disk low":
            reasons.append("its disk is nearly full")
    return reasons
