"""A cluster on several machines: made once, and checked by each hub before it joins.

The cluster is a record in the coordination service and a row in the database, both with its id. The row is written
first: whoever finds the record finds the row, and an attempt that was interrupted in between is completed by the next
one. If the coordination service has lost everything, the record is made again from the row, with the epochs that the
database knows.

Everything here blocks, for some seconds at most.
"""

from __future__ import annotations

import secrets

import attrs

from sluiceway.cluster.coordination.zookeeper_settings import ZooKeeperSettings
from sluiceway.cluster.link_identity import LinkIdentity, link_identity, read_secret
from sluiceway.cluster.owner_records import (
    CLUSTER_PATH,
    ClusterMismatchError,
    ClusterRecord,
    OwnerRecord,
    check_cluster,
    shard_path,
)
from sluiceway.config import Config
from sluiceway.config.cluster import ClusterConfig
from sluiceway.extras import needs

ID_BYTES = 4
"""Random bytes of the id of a cluster, with which its message-ids begin."""


@attrs.frozen
class Founded:
    """A cluster that is there."""

    record: ClusterRecord
    is_new: bool
    """Whether the cluster was not there before."""
    where: str
    """Servers and path in the coordination service."""
    database: str
    """Name of the database, without secrets."""


@attrs.frozen
class FoundCluster:
    """Cluster on several machines, as a hub finds it before it joins."""

    record: ClusterRecord
    settings: ZooKeeperSettings
    identity: LinkIdentity


def zookeeper_settings(config: ClusterConfig, *, makes_root: bool = False) -> ZooKeeperSettings:
    """Return the place of the cluster, with the password if one is configured. Raises ConfigError."""
    password = ""
    if config.coordination_user:
        password = read_secret(
            "cluster.coordination_password", config.coordination_password_file, config.coordination_password_env
        )
    return ZooKeeperSettings(
        config.coordination,
        user=config.coordination_user,
        password=password,
        session_seconds=config.session_seconds,
        makes_root=makes_root,
    )


def found_cluster(config: Config, *, name: str, shards_count: int) -> Founded:
    """Make a cluster, or complete one that an interrupted attempt has left. `name`: for people; empty: the last part of
    the path.

    Raises ValueError for an invalid name or number (two shards at least), ClusterMismatchError if the path or the
    database belongs to another cluster, ConfigError, MetadataFailedError, EngineError and MissingExtraError.
    """
    if shards_count == 1:
        raise ValueError("a cluster on several machines has two shards at least: take more, such as 32")
    settings = zookeeper_settings(config.cluster, makes_root=True)
    where = settings.hosts
    wanted = ClusterRecord(name or settings.root.rpartition("/")[2], secrets.token_hex(ID_BYTES), shards_count)
    with needs("cluster", "a cluster on ZooKeeper"):
        from sluiceway.cluster.coordination.zookeeper_once import ZooKeeperOnce
    with needs("postgresql", 'store.engine = "postgresql"'):
        from sluiceway.store import postgresql_cluster
    with ZooKeeperOnce(settings) as zookeeper:
        found = zookeeper.read(CLUSTER_PATH)
        if found is not None:
            known = postgresql_cluster.look(config.store.url)
            record = check_cluster(found, where)
            if known.row is None or known.row.id != record.id:
                raise ClusterMismatchError(
                    f"{where} holds the cluster {record.name} with {record.shards_count} shards already, and its "
                    f"database is not {known.words}: give each cluster a path of its own in cluster.coordination"
                )
            _check_count(record, shards_count)
            return Founded(record, False, where, known.words)
        data = postgresql_cluster.make(
            config.store.url, postgresql_cluster.ClusterRow(wanted.id, wanted.name, settings.root, shards_count)
        )
        row = data.row
        assert row is not None, "it was made, or is another one"
        if row.path != settings.root:
            raise ClusterMismatchError(
                f"{data.words} belongs to the cluster {row.name}, whose path is {row.path}: name another database or "
                "schema in store.url, or that path in cluster.coordination"
            )
        record = ClusterRecord(row.name, row.id, row.shards_count)
        _check_count(record, shards_count)
        for shard, epoch in sorted(data.epochs.items()):
            zookeeper.create(shard_path(shard), OwnerRecord("", "", epoch).encoded())
        if not zookeeper.create(CLUSTER_PATH, record.encoded()):
            check_cluster(zookeeper.read(CLUSTER_PATH), where, known_id=record.id, shards_count=shards_count)
            return Founded(record, False, where, data.words)
    return Founded(record, True, where, data.words)


def _check_count(record: ClusterRecord, shards_count: int) -> None:
    if record.shards_count != shards_count:
        raise ClusterMismatchError(
            f"the cluster {record.name} is there already, with {record.shards_count} shards, not {shards_count}: the "
            "number is fixed when a cluster is made. For another one, make a cluster with a path and a database of its "
            "own"
        )


def look_for_cluster(config: Config) -> FoundCluster:
    """Look for the cluster of a hub, and check that the hub belongs to it. Changes nothing.

    Raises ClusterMismatchError, ConfigError, MetadataFailedError (ZooKeeper), EngineError (the database) and
    MissingExtraError.
    """
    identity = link_identity(config.cluster)
    settings = zookeeper_settings(config.cluster)
    with needs("cluster", "a cluster on ZooKeeper"):
        from sluiceway.cluster.coordination.zookeeper_once import ZooKeeperOnce
    with needs("postgresql", 'store.engine = "postgresql"'):
        from sluiceway.store import postgresql_cluster
    with ZooKeeperOnce(settings) as zookeeper:
        found = zookeeper.read(CLUSTER_PATH)
    record = check_cluster(found, settings.hosts)
    data = postgresql_cluster.look(config.store.url)
    if data.row is None:
        raise ClusterMismatchError(
            f"{data.words} belongs to no cluster, and {settings.hosts} holds the cluster {record.name}: name the "
            "database (and schema) of the other hubs in store.url"
        )
    if data.row.id != record.id:
        raise ClusterMismatchError(
            f"{settings.hosts} holds the cluster {record.name} ({record.id}), and {data.words} belongs to the cluster "
            f"{data.row.name} ({data.row.id}) at {data.row.path}: give each cluster a path and a database of its own"
        )
    if data.row.shards_count != record.shards_count:
        raise ClusterMismatchError(
            f"the cluster {record.name} has {record.shards_count} shards at {settings.hosts} and "
            f"{data.row.shards_count} in {data.words}: one of both was changed by hand. Bring it back as it was"
        )
    return FoundCluster(record, settings, identity)
