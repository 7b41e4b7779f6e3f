"""Kinds of resources, and the role in which people see each.

Here and nowhere else: pictures, remedies and metrics tell resources apart by these members. Their values are in JSON,
in metrics and in titles (``queue orders``), so they stay as they are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Role(StrEnum):
    """Role of a resource for people: two resources of one connection are one thing to them."""

    CONNECTION = "connection"
    DESTINATION = "destination"
    SUBSCRIPTION = "subscription"
    STORE = "store"
    DISK = "disk"
    OTHER = "other"


class ResourceKind(StrEnum):
    """A kind of resource, with its role."""

    role: Role

    def __new__(cls, value: str, role: Role = Role.OTHER) -> Self:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.role = role
        return kind

    CONNECTION = "connection", Role.CONNECTION
    OUTBOUND = "outbound", Role.CONNECTION
    LINK = "link", Role.CONNECTION
    """Bytes between two hubs, of one client."""
    STASH = "stash"
    """Parked messages of connections that have ended."""

    QUEUE = "queue", Role.DESTINATION
    RELAY = "relay", Role.DESTINATION
    DELAY_QUEUE = "delay queue", Role.DESTINATION
    TOPIC = "topic", Role.DESTINATION
    LOG = "log", Role.DESTINATION

    SUBSCRIPTION = "subscription", Role.SUBSCRIPTION
    BROWSER = "browser", Role.SUBSCRIPTION
    LOG_GROUP = "log group", Role.SUBSCRIPTION
    LOG_READER = "log reader", Role.SUBSCRIPTION
    CLAIM_GROUP = "claim group"
    SUBSCRIPTIONS = "subscriptions"
    """Limits shared by all subscriptions."""

    STORE = "store", Role.STORE
    DISK = "disk", Role.DISK

    MEMORY = "memory"
    UPKEEP = "upkeep"
    CACHE = "cache"
    RATE = "rate"
    SECURITY = "security"
