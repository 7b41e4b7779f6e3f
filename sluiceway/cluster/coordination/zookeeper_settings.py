"""Place of a cluster on ZooKeeper. Pure: nothing of kazoo is needed to check a configuration."""

from __future__ import annotations

import attrs

from sluiceway.store.compare_and_set import checked_path


class ZooKeeperSettingsError(ValueError):
    """The address of the ensemble or the path of the cluster is wrong. The message says how they look."""


@attrs.frozen
class ZooKeeperSettings:
    """Place of a cluster. Raises ZooKeeperSettingsError."""

    hosts: str
    """Servers of the ensemble with ports, and the path of the cluster: `zk-1:2181,zk-2:2181/sluiceway/orders`."""
    user: str = ""
    """User for ZooKeeper's digest scheme; empty: no credentials."""
    password: str = attrs.field(default="", repr=False)
    session_seconds: float = 10.0
    """Session time that is asked for. The ensemble bounds it, by default to 2 to 20 ticks of two seconds."""
    makes_root: bool = False
    """Whether the path of the cluster is made if it is missing: for `sluiceway cluster init`."""

    def __attrs_post_init__(self) -> None:
        servers, slash, _path = self.hosts.partition("/")
        try:
            checked_path(self.root)
        except ValueError as error:
            slash, servers = "", str(error)
        if not slash or not all(_is_server(server) for server in servers.split(",")):
            raise ZooKeeperSettingsError(
                f"{self.hosts[:200]!r} names no cluster on ZooKeeper: servers with commas between, then a path of the "
                "cluster's own, as in zk-1:2181,zk-2:2181/sluiceway/orders"
            )

    @property
    def servers(self) -> str:
        """Servers of the ensemble."""
        return self.hosts.partition("/")[0]

    @property
    def root(self) -> str:
        """Path of the cluster."""
        return "/" + self.hosts.partition("/")[2]


def _is_server(text: str) -> bool:
    host, colon, port = text.strip().rpartition(":")
    return bool(host) and bool(colon) and port.isdecimal() and 0 < int(port) < 65_536
