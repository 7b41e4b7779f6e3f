"""What a destination may hold, and what happens when it is full.

One frozen object per pattern of destinations, merged top to bottom by the configuration. Nothing here acts: queues read
it.
"""

from __future__ import annotations

from typing import Final

import attrs

KIB: Final = 1024
MIB: Final = 1024 * KIB

FULL_ACTIONS: Final = ("block", "drop_oldest", "drop_newest", "reject")
PAGING_MODES: Final = ("throttle", "offload", "page")


def _positive(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value <= 0:
        raise ValueError(f"{attribute.name} must be above 0, got {value}")


def _positive_or_none(instance: object, attribute: attrs.Attribute[int], value: int | None) -> None:
    if value is not None:
        _positive(instance, attribute, value)


def _not_negative_or_none(_instance: object, attribute: attrs.Attribute[float], value: float | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"{attribute.name} must not be negative, got {value}")


def _full_action(_instance: object, _attribute: attrs.Attribute[str], value: str | None) -> None:
    if value is not None and value not in FULL_ACTIONS:
        raise ValueError(f"full must be one of {', '.join(FULL_ACTIONS)}, got {value!r}")


def _paging_mode(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if value not in PAGING_MODES:
        raise ValueError(f"paging must be one of {', '.join(PAGING_MODES)}, got {value!r}")


@attrs.frozen
class QueuePolicy:
    """Limits and habits of one destination. Sizes count the message on the wire plus a fixed overhead for its
    bookkeeping.
    """

    memory_bytes: int = attrs.field(
        default=64 * MIB,
        validator=_positive,
        metadata={
            "unit": "bytes",
            "doc": "Memory that the messages of one destination may use, unsettled ones included; producers wait (or "
            "the `full` action is taken) at this size and go on at half of it. The default takes a burst of some "
            "300,000 small messages; more rides out longer bursts, at the price of memory. Holds for each priority "
            "level in use: a destination that carries high-priority messages keeps room for them apart from the "
            "backlog.",
        },
    )
    count_max: int | None = attrs.field(
        default=None,
        validator=_positive_or_none,
        metadata={
            "unit": "count",
            "doc": "Messages that one destination may hold, unsettled ones included. None by default: memory is the "
            "limit that matters.",
        },
    )
    bytes_max: int | None = attrs.field(
        default=None,
        validator=_positive_or_none,
        metadata={
            "unit": "bytes",
            "doc": "Total size of the messages that one destination may hold. None by default: `memory_bytes` already "
            "bounds it.",
        },
    )
    full: str | None = attrs.field(
        default=None,
        validator=_full_action,
        metadata={
            "unit": "",
            "doc": "What happens at the limit: `block` (senders to this destination wait, nothing is lost), "
            "`drop_oldest` (the oldest message that no consumer holds goes), `drop_newest` (the incoming message "
            "goes), `reject` (its sender gets an ERROR). What is dropped is counted, and a topic subscriber finds the "
            "number in the `dropped-count` header of the next MESSAGE. Default: `block` for queues. For topics the "
            "sender is paced by the *fastest* subscriber, and one that lags by more than `memory_bytes` behind it "
            "loses the oldest (`drop_oldest`): a slow reader hurts only itself.",
        },
    )
    paging: str = attrs.field(
        default="page",
        validator=_paging_mode,
        metadata={
            "unit": "",
            "doc": "What happens when messages take more than half of `memory_bytes`, if the broker has a store: "
            "`page` (they go to disk, persistent or not, in blocks of about a thousand; producers go on until "
            "`count_max`, "
            "`bytes_max` or the disk is used up), `offload` (like `page`, but facts about each message stay in memory, "
            "which makes expiry, groups and browsing quicker and costs some 40 bytes a message) or `throttle` (all "
            "stays in memory, and producers wait at `memory_bytes`; what is persistent is stored all the same). "
            "Without a store it is always `throttle`.",
        },
    )
    lead_bytes: int = attrs.field(
        default=8 * MIB,
        validator=_positive,
        metadata={
            "unit": "bytes",
            "doc": "Topics: how far senders may run ahead of the fastest subscriber before they wait. The default "
            "covers a hiccup of some milliseconds at full speed; more only adds latency.",
        },
    )
    prefetch_count: int = attrs.field(
        default=1000,
        validator=_positive,
        metadata={
            "unit": "count",
            "doc": "Messages that a subscription with ack `client` or `client-individual` may hold unacknowledged, if "
            "it asks for no other number (`prefetch-count`, `activemq.prefetchSize`, `credit`). Enough to hide a "
            "round trip; lower it for slow work that should be shared out evenly.",
        },
    )
    prefetch_bytes: int = attrs.field(
        default=MIB,
        validator=_positive,
        metadata={
            "unit": "bytes",
            "doc": "The same limit in bytes; one message always fits. Keeps a thousand large messages from being "
            "pushed at once.",
        },
    )
    durable_expires_seconds: float | None = attrs.field(
        default=30 * 24 * 3600.0,
        validator=_not_negative_or_none,
        metadata={
            "unit": "seconds",
            "doc": "Topics: a durable subscription to which nobody has come back for this long is removed, with what "
            "only it has yet to read. The default is 30 days: longer than any holiday, short enough that a forgotten "
            "one does not fill the disk for ever. None: never.",
        },
    )
    expires_max_ms: int | None = attrs.field(
        default=None,
        validator=_positive_or_none,
        metadata={
            "unit": "ms",
            "doc": "Longest life of a message here: a later `expires` is brought forward, a missing one is set. None: "
            "as the sender says.",
        },
    )
    auto_delete_seconds: float | None = attrs.field(
        default=30.0,
        validator=_not_negative_or_none,
        metadata={
            "unit": "seconds",
            "doc": "An empty destination without consumers and senders is forgotten after this time (it comes back "
            "with the next SEND or SUBSCRIBE). Long enough for a client to reconnect, short enough that thousands of "
            "one-off names cost nothing.",
        },
    )

    @property
    def limit_bytes(self) -> int:
        """The tighter of the two byte limits."""
        return self.memory_bytes if self.bytes_max is None else min(self.memory_bytes, self.bytes_max)
