"""Cluster that a database belongs to: the table `sluiceway_cluster`, one row, made by `sluiceway cluster init`.

A broker without a cluster does not use such a database, and a hub uses no other one.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .postgresql_schema import SchemaError, cluster_name, open_schema
from .postgresql_sessions import Connection, Database

_TABLE = """CREATE TABLE IF NOT EXISTS sluiceway_cluster (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), id text NOT NULL, name text NOT NULL, path text NOT NULL,
    shards_count integer NOT NULL
)"""
_SESSION = "sluiceway cluster"


@attrs.frozen
class ClusterRow:
    """Cluster to which a database belongs."""

    id: str
    name: str
    path: str
    """Path of the cluster in the coordination service."""
    shards_count: int


@attrs.frozen
class ClusterData:
    """Cluster of a database, as it says itself."""

    row: ClusterRow | None
    """None: it belongs to none."""
    epochs: Mapping[int, int]
    """Highest epoch of each shard that had an owner."""
    words: str
    """Name of the database, without secrets."""


def look(url: str) -> ClusterData:
    """Return the cluster to which a database belongs. Changes nothing. Blocks. Raises EngineError."""
    database = Database(url)
    connection = database.connect(_SESSION)
    with connection, database.telling("looking for the cluster"):
        return found_in(connection, database)


def make(url: str, row: ClusterRow) -> ClusterData:
    """Make the tables, and have the database belong to a cluster; returns what is there then. One that belongs to
    another cluster already is left as it is. Blocks. Raises SchemaError if it has messages of a broker without a
    cluster, and other EngineErrors.
    """
    database = Database(url)
    connection = database.connect(_SESSION)
    with connection, database.telling("making the tables"):
        open_schema(connection, database.words)
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('sluiceway schema'))")
            if cluster_name(connection) is None:
                found = connection.execute("SELECT count(*) FROM sluiceway_shards").fetchone()
                if found != (0,):
                    raise SchemaError(
                        f"{database.words}: it has the messages of a broker without a cluster, which can't be divided "
                        "into shards. Name another database or schema in store.url; consume the old one empty with a "
                        "broker of its own."
                    )
                connection.execute(_TABLE.encode())
                connection.execute(
                    "INSERT INTO sluiceway_cluster (id, name, path, shards_count) VALUES (%s, %s, %s, %s) "
                    "ON CONFLICT DO NOTHING",
                    (row.id, row.name, row.path, row.shards_count),
                )
        return found_in(connection, database)


def found_in(connection: Connection, database: Database) -> ClusterData:
    """Do `look` over an open connection. Raises errors of psycopg."""
    if cluster_name(connection) is None:
        return ClusterData(None, {}, database.words)
    there = connection.execute("SELECT id, name, path, shards_count FROM sluiceway_cluster").fetchone()
    epochs = connection.execute("SELECT shard, epoch FROM sluiceway_shards").fetchall()
    row = None if there is None else ClusterRow(str(there[0]), str(there[1]), str(there[2]), int(str(there[3])))
    return ClusterData(row, {int(str(shard)): int(str(epoch)) for shard, epoch in epochs}, database.words)
