"""Remedies for a blocking resource, by its kind and circumstances."""

from __future__ import annotations

from typing import Final

from sluiceway.flow.kinds import ResourceKind
from sluiceway.flow.snapshot import Circumstances

_UNREAD: Final = "Look at the client {client}: it does not read what is sent to it. Mend it, or close its connection."
_BY_KIND: Final[dict[str, str]] = {
    ResourceKind.SUBSCRIPTION: "Look at the client {client}: it got these messages and does not acknowledge them. Mend "
    "it, or close its connection, and they go to others.",
    ResourceKind.OUTBOUND: _UNREAD,
    ResourceKind.CONNECTION: _UNREAD,
    ResourceKind.STORE: "The disk takes no more now, or not so fast: look at the store page, and free some space if it "
    "is nearly full.",
    ResourceKind.DISK: "The disk takes no more now: free some space.",
    ResourceKind.RELAY: "A relay keeps nothing, so its senders wait until a consumer has room: start a consumer, or "
    "add some, or raise their prefetch.",
    ResourceKind.STASH: "What ended connections left behind waits for its destinations: look at what those wait for.",
    ResourceKind.MEMORY: "The memory for messages is used up: consume from the largest destinations, let them page "
    "out, or raise memory_bytes of [broker] if the machine has more.",
    ResourceKind.LOG: "The disk of the log takes no more now, or not so fast: look at the store page.",
}

_PAUSED: Final = "It is paused: resume it when its messages may be delivered again."
_NO_CONSUMERS: Final = (
    "Nobody consumes it: start a consumer, or give it a full policy other than block, a longer quota or paging."
)
_SLOW: Final = (
    "More comes in than its consumers take: add consumers, raise their prefetch, or give it more memory (memory_bytes) "
    "and quota."
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
