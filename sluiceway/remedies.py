"""What to do about whoever holds others up, by what kind of thing it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BY_KIND: Final = {
    "subscription": "Look at the client {client}: it got these messages and does not acknowledge them. Mend it, or "
    "close its connection, and they go to others.",
    "outbound": "Look at the client {client}: it does not read what is sent to it. Mend it, or close its connection.",
    "connection": "Look at the client {client}: it does not read what is sent to it. Mend it, or close its connection.",
    "store": "The disk takes no more now, or not so fast: look at the store page, and free some space if it is nearly "
    "full.",
    "disk": "The disk takes no more now: free some space.",
    "relay": "A relay keeps nothing, so its senders wait until a consumer has room: start a consumer, or add some, or "
    "raise their prefetch.",
    "stash": "What ended connections left behind waits for its destinations: look at what those wait for.",
    "memory": "The memory for messages is used up: consume from the largest destinations, let them page out, or raise "
    "memory_bytes of [broker] if the machine has more.",
    "log": "The disk of the log takes no more now, or not so fast: look at the store page.",
}

_PAUSED: Final = "It is paused: resume it when its messages may be delivered again."
_NO_CONSUMERS: Final = (
    "Nobody consumes it: start a consumer, or give it a full policy other than block, a longer quota or paging."
)
_SLOW: Final = (
    "More comes in than its consumers take: add consumers, raise their prefetch, or give it more memory (memory_bytes) "
    "and quota."
)


def remedy_for(kind: str, name: str, facts: Mapping[str, object]) -> str:
    """One or two sentences; empty where its facts say it all. `kind`, `name`, `facts` as a resource tells them."""
    if facts.get("paused_seconds") is not None:
        return _PAUSED
    known = _BY_KIND.get(kind)
    if known is not None:
        return known.format(client=name.rpartition(" of ")[2])
    if "consumers" in facts:
        return _NO_CONSUMERS if isinstance(facts["consumers"], str) else _SLOW
    return ""
