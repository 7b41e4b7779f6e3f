"""Place of a hub in a cluster on several machines, from its configuration and what it has found there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sluiceway.cluster.coordination.port import Coordination
from sluiceway.cluster.coordination.zookeeper_settings import ZooKeeperSettings
from sluiceway.cluster.founding import FoundCluster
from sluiceway.cluster.links import Seat
from sluiceway.cluster.membership import Loop, Membership, Spawn
from sluiceway.config.cluster import ANY_HOSTS, ClusterConfig, reachable
from sluiceway.config.fields import split_address
from sluiceway.extras import needs


def seat_of(config: ClusterConfig, found: FoundCluster) -> Seat:
    """Return the place of a hub."""
    identity = found.identity
    return Seat(
        cluster=found.record.id,
        hub=config.hub,
        shards_count=found.record.shards_count,
        listen=config.listen,
        advertised=config.advertise or _advertised(config.listen),
        clients=config.advertise_clients,
        secret=identity.secret,
        client_tls=identity.client_tls,
        server_tls=identity.server_tls,
        membership=Membership(coordination=partial(_coordination, found.settings), weight=config.weight),
    )


def _advertised(listen: str) -> str:
    """Return the address that others are told; empty: the one that is really taken."""
    host, port = split_address(listen)
    return reachable(listen, port) if host in ANY_HOSTS else ""


def _coordination(settings: ZooKeeperSettings, loop: Loop, clock: Callable[[], float], _spawn: Spawn) -> Coordination:
    with needs("cluster", "a cluster on ZooKeeper"):
        from sluiceway.cluster.coordination.zookeeper import ZooKeeperCoordination
    return ZooKeeperCoordination(settings, loop, clock, loop.submit)
