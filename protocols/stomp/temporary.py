"""Temporary destinations of one connection, and the names under which others reach them.

A client says `/temp-queue/reply`; for everybody else that is `/remote-temp-queue/SESSION.reply`. The name is translated
where the client writes it (destination, reply-to), and the destination lives as long as the connection. Only its owner
may subscribe.

All names of a client of a virtual host have the prefix of that for everybody else. It is set and taken off here, and
nowhere else: what others read of such names is written without it, as the client wrote it.

Bound: as many names as a connection may have subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final

from ...queues.destination import Destination
from ...queues.names import (
    HOST_SIGN,
    DestinationName,
    DestinationNameError,
    Kind,
    in_host,
    parse_composite,
)
from ...queues.registry import DestinationRegistry
from .head import SendHead

LOCAL_TEMPORARY: Final = {"/temp-queue/": "/remote-temp-queue/", "/temp-topic/": "/remote-temp-topic/"}

DELETE_STEPS: Final = 4
"""Steps of deleting a queue: a destination has one queue for each priority in use."""

LOCAL_PREFIXES: Final = tuple(LOCAL_TEMPORARY)
REPLY_QUEUES: Final = "/temp-queue/"
"""Beginning of temporary destinations in which a reply waits for its consumer."""


class TemporaryDestinations:
    """Temporary destinations of one connection, by global name."""

    __slots__ = (
        "_names_max",
        "_registry",
        "_session_id",
        "_temporary",
        "has_hosts",
        "host_prefix",
        "on_reply_to",
        "unread_count",
    )

    def __init__(self, registry: DestinationRegistry, session_id: str, *, names_max: int) -> None:
        self._registry = registry
        self._session_id = session_id
        self._names_max = names_max
        self._temporary: dict[str, Destination] = {}
        self.has_hosts = False
        """Whether the broker has virtual hosts, so that names with the prefix of one are not for clients."""
        self.host_prefix = ""
        """Prefix of the names of the client's virtual host, such as `/@shop`; empty: it uses the default host."""
        self.on_reply_to: Callable[[str], None] | None = None
        """Called with each temporary destination that a SEND names in its reply-to, as the client writes it."""
        self.unread_count = 0
        """Messages that came to some of them of which nothing was ever received, and that were deleted with these."""

    def in_host(self, address: DestinationName) -> DestinationName:
        """Return the address that the client means in its virtual host. Raises DestinationNameError."""
        if not self.has_hosts:
            return address
        if address.canonical.startswith(HOST_SIGN):
            raise DestinationNameError(
                f"{address.canonical!r}: names that begin with {HOST_SIGN} are those of virtual hosts: say the host in "
                "the header host of CONNECT, and the name without it"
            )
        if self.host_prefix and address.kind is Kind.LOG:
            raise DestinationNameError(
                f"{address.canonical} is a log, and logs are for clients of the default host: CONNECT with host:/"
            )
        return in_host(self.host_prefix, address)

    def in_host_of_all(self, destination: str) -> list[DestinationName]:
        """Return the addresses of a header, which may be a composite, as `in_host`. Local temporary ones stay local.
        Raises DestinationNameError.
        """
        return [self.in_host(address) for address in parse_composite(destination)]

    def said(self, address: DestinationName) -> str:
        """Return the name of an address of the client's virtual host as its clients write it."""
        return address.canonical[len(self.host_prefix) :]

    def owns(self, address: DestinationName) -> bool:
        """Return whether a (global) address belongs to the connection."""
        return address.canonical in self._temporary

    def to_global(self, address: DestinationName) -> DestinationName:
        """Return the address that the client means in its virtual host. A local temporary name is made global, and it
        is seen to it that the destination is there. Raises DestinationNameError.
        """
        if not address.temporary_local:
            return self.in_host(address)
        for local, remote in LOCAL_TEMPORARY.items():
            if address.canonical.startswith(local):
                name = f"{remote}{self._session_id}.{address.canonical.removeprefix(local)}"
                shared = in_host(self.host_prefix, parse_composite(name)[0])
                canonical = shared.canonical
                if canonical not in self._temporary:
                    if len(self._temporary) >= self._names_max:
                        raise DestinationNameError(
                            f"this connection has {len(self._temporary)} temporary destinations already: reuse them"
                        )
                    destination = self._temporary[canonical] = self._registry.get(shared)
                    destination.producers_count += 1  # its owner: never idle as long as this connection lives
                return shared
        raise DestinationNameError(
            f"{address.canonical!r}: a temporary destination belongs to its connection, and has no virtual host in its "
            "name: write /temp-queue/NAME or /temp-topic/NAME"
        )

    def with_global_reply_to(self, head: SendHead) -> SendHead:
        """A reply-to that names a temporary destination of this connection, as others can use it. Raises
        DestinationNameError.
        """
        reply_to = head.reply_to
        if reply_to is None or not reply_to.startswith(LOCAL_PREFIXES):
            return head
        address = parse_composite(reply_to)[0]
        shared = self.said(self.to_global(address))
        if self.on_reply_to is not None:
            self.on_reply_to(address.canonical)
        return head.with_headers({"reply-to": shared})

    def has_consumer(self, name: str) -> bool:
        """Return whether a temporary destination of the connection, as the client writes it, has a consumer."""
        canonical = self.to_global(parse_composite(name)[0]).canonical
        return any(queue.subscriptions for queue in self._temporary[canonical].queues)

    def closing(self, reason: str) -> Iterator[None]:
        """Delete the destinations, in steps: the connection is gone, or reads no more."""
        while self._temporary:
            _name, destination = self._temporary.popitem()
            statistics = [queue.statistics() for queue in destination.queues]
            if not any(each.delivered_count for each in statistics):
                self.unread_count += sum(each.depth_count for each in statistics)
            queues_count = len(destination.queues)
            self._registry.delete(destination, reason)
            yield from repeat(None, DELETE_STEPS * queues_count)


def names_temporary(head: SendHead) -> bool:
    """Whether the head names a temporary destination of its sender, to send to or to reply to."""
    names = head.destination if head.reply_to is None else f"{head.destination},{head.reply_to}"
    return any(prefix in names for prefix in LOCAL_PREFIXES)
