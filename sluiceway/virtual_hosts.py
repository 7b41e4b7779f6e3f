"""Virtual hosts of a broker: which of them a CONNECT means, who may use it, and how many connections it has.

Bound: a counter for each configured host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluiceway.config.virtual_hosts import DEFAULT_HOST, VirtualHost
from sluiceway.protocols.stomp.authorization import Identity
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.queues.durables import HOST_OF_CLIENT
from sluiceway.queues.names import host_prefix

_SHOWN: Final = 80


class VirtualHosts:
    """Satisfies `sluiceway.protocols.stomp.virtual_hosts.Hosts`."""

    __slots__ = ("_by_prefix", "_by_said", "_counts")

    def __init__(self, configured: Iterable[VirtualHost]) -> None:
        default = VirtualHost(name=DEFAULT_HOST)
        self._by_said = {DEFAULT_HOST: default}
        self._by_prefix = {"": default}
        for host in configured:
            self._by_prefix[host_prefix(host.path)] = host
            self._by_said.update(dict.fromkeys((host.name, *host.aliases), host))
        self._counts = dict.fromkeys(self._by_prefix, 0)

    def enter(self, said: str | None, identity: Identity, client_id: str) -> str:
        """Do `Hosts.enter`. O(1)."""
        host = self._by_said.get(said or DEFAULT_HOST)
        if host is None:
            raise ProtocolError(
                "unknown-host",
                f"there is no virtual host {(said or '')[:_SHOWN]!r}",
                "Send host:/ or no host for the default one, or have the operator add this one to name or aliases of "
                "[[virtual_hosts]].",
            )
        prefix = host_prefix(host.path)
        self.check(prefix, identity)
        if not prefix and identity.user is None and client_id.startswith(HOST_OF_CLIENT):
            raise ProtocolError(
                "bad-client-id",
                f"the client-id {client_id[:_SHOWN]!r} begins with {HOST_OF_CLIENT}",
                "So do those of virtual hosts: choose another one.",
            )
        if host.connections_max is not None and self._counts[prefix] >= host.connections_max:
            raise ProtocolError(
                "too-many-connections",
                f"the virtual host {host.name} has {host.connections_max} connections already",
                "Share connections, or raise connections_max of [[virtual_hosts]].",
            )
        self._counts[prefix] += 1
        return prefix

    def leave(self, prefix: str) -> None:
        """Do `Hosts.leave`."""
        self._counts[prefix] -= 1

    def check(self, prefix: str, identity: Identity) -> None:
        """Do `Hosts.check`. O(groups of the user)."""
        host = self._by_prefix[prefix]
        if not host.users and not host.groups:
            return
        if identity.user not in host.users and identity.groups.isdisjoint(host.groups):
            raise ProtocolError(
                "forbidden",
                f"no permission to use the virtual host {host.name}",
                "The user of this connection must be among users or groups of the host in [[virtual_hosts]].",
            )
