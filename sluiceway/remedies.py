"""Remedies for a blocking resource, by its kind and circumstances."""

from __future__ import annotations

from typing import Final

from sluiceway.flow.kinds import ResourceKind
from sluiceway.flow.snapshot import Circumstances

_UNREAD: Final = "Client {client} does not read its messages. Fix or restart it, or close its connection."
_BY_KIND: Final[dict[str, str]] = {
    ResourceKind.SUBSCRIPTION: "Client {client} holds these messages unacknowledged. Fix or restart it, or close its "
    "connection to requeue them.",
    ResourceKind.OUTBOUND: _UNREAD,
    ResourceKind.CONNECTION: _UNREAD,
    ResourceKind.STORE: "The disk is full or too slow, or the store is at its limit: look at the store page, free some "
    "space, or raise `bytes_max` of [store] where that is the limit.",
    ResourceKind.DISK: "The disk is full: free some space.",
    ResourceKind.RELAY: "A relay stores nothing, so its senders wait until a consumer has room: start a consumer, "
    "add more, or raise their prefetch.",
    ResourceKind.STASH: "Messages of ended connections wait for their destinations: find out what blocks these.",
    ResourceKind.MEMORY: "The memory for messages is used up: consume from the largest destinations, let them page "
    "out, or raise memory_bytes of [broker] if the machine has more.",
    ResourceKind.LOG: "The disk of the log is full, or too slow: look at the store page.",
}

_PAUSED: Final = "Paused: resume it when its messages may be delivered again."
_NO_CONSUMERS: Final = (
    "No consumer: start one, raise `bytes_max` or `count_max`, set `paging` to `page`, or choose another `full` policy."
)
_SLOW: Final = (
    "The input exceeds the rate of its consumers: add consumers, raise their prefetch, or raise `memory_bytes` and its "
    "quota."
)


def remedy_for(kind: str, circumstances: Circumstances) -> str:
    """Return one or two sentences; empty where what a resource says of itself says it all."""
    if circumstances.paused:
        return _PAUSED
    known = _BY_KIND.get(kind)
    if known is not None:
        return known.format(client=circumstances.owner)
    if circumstances.has_consumers is None:
        return ""
    return _SLOW if circumstances.has_consumers else _NO_CONSUMERS
