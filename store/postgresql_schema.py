"""Tables of the PostgreSQL engine, and the row of a shard, which says who may write it.

    sluiceway_schema    one row: the version of these tables
    sluiceway_shards    a row for each shard: its epoch, and the number of the last batch
    sluiceway_records   shard, key, value
    sluiceway_cluster   one row, only where several hubs use the database (postgresql_cluster.py)

A shard is claimed by raising its epoch. Each batch changes the row of its shard first, which locks the row, and only
where epoch and number are as expected (`FENCE`): else a column that must have a value gets none, and PostgreSQL refuses
the batch. So a claim waits for the batch under way, and no batch of an earlier owner comes after it.

Numbers of batches fence an owner against its own past: a batch whose connection was lost is written again with a higher
number, so the lost attempt can't take effect later, behind others. And a database that has a lower number than it has
confirmed was put back, or failed over to a standby that lagged.

A session that holds a shard has an advisory lock, so that a second broker is refused while the first one is connected.
"""

from __future__ import annotations

import time
from typing import Any, Final

from .engine import EngineError, FencedError
from .postgresql_sessions import Connection, Database

VERSION: Final = 1
CLAIM_SECONDS: Final = 5.0
"""Time that a claim waits for the session of an earlier owner to end: that of a killed process ends at once, that of a
machine that is gone takes the server's keepalives.
"""
_PAUSE_SECONDS: Final = 0.1

FENCE: Final = """
    UPDATE sluiceway_shards
    SET batch = CASE WHEN epoch = %(epoch)s::bigint AND batch < %(number)s::bigint THEN %(number)s::bigint END
    WHERE shard = %(shard)s
"""
NOT_NULL_VIOLATION: Final = "23502"

_TABLES: Final = (
    "CREATE TABLE sluiceway_schema (version integer NOT NULL)",
    """CREATE TABLE sluiceway_shards (
        shard integer PRIMARY KEY, epoch bigint NOT NULL, batch bigint NOT NULL,
        owner text NOT NULL, claimed_at timestamptz NOT NULL DEFAULT now()
    ) WITH (fillfactor = 10)""",
    # Rows come and go all day: the usual fifth of dead ones would be a table full of them.
    """CREATE TABLE sluiceway_records (
        shard integer NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (shard, key)
    ) WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05)""",
    # No compression: it costs the server more processor time than it saves for bodies that are written and read once.
    "ALTER TABLE sluiceway_records ALTER COLUMN value SET STORAGE EXTERNAL",
    f"INSERT INTO sluiceway_schema (version) VALUES ({VERSION})",
)


class SchemaError(EngineError):
    """The tables are of another version of Sluiceway, or incomplete. Nothing was changed."""


class NoTablesError(SchemaError):
    """No broker has used the database: it has no tables. Nothing was changed."""


class ShardInUseError(EngineError):
    """Another broker is connected to the database and has this shard. Nothing was changed."""


def open_schema(connection: Connection, place: str) -> None:
    """Make the tables on the first start. Raises SchemaError, or errors of psycopg."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('sluiceway schema'))")
        if _one(connection, "SELECT to_regclass('sluiceway_schema') IS NULL"):
            for statement in _TABLES:
                connection.execute(statement.encode())
        version = _one(connection, "SELECT max(version) FROM sluiceway_schema")
    _check_version(version, place)


def check_version(connection: Connection, place: str) -> None:
    """Check that there are tables of this version. Changes nothing. Raises SchemaError, or errors of psycopg."""
    if _one(connection, "SELECT to_regclass('sluiceway_schema') IS NULL"):
        raise NoTablesError(
            f"{place}: it has no tables of Sluiceway: no broker has used it yet. Name the right database and schema in "
            "store.url."
        )
    _check_version(_one(connection, "SELECT max(version) FROM sluiceway_schema"), place)


def _check_version(version: object, place: str) -> None:
    if version != VERSION:
        age = "a later" if isinstance(version, int) and version > VERSION else "another"
        raise SchemaError(
            f"{place}: its tables have version {version}, this version of Sluiceway knows version {VERSION}: they were "
            f"made by {age} version. Run that version with them, or name another database or schema in store.url."
        )


def cluster_name(connection: Connection) -> str | None:
    """Return the name of the cluster to which the database belongs; None: none. Raises errors of psycopg."""
    if _one(connection, "SELECT to_regclass('sluiceway_cluster') IS NULL"):
        return None
    name = _one(connection, "SELECT name FROM sluiceway_cluster")
    return None if name is None else str(name)


def refuse_cluster(connection: Connection, place: str) -> None:
    """Refuse to use a cluster's database without the others. Raises SchemaError, or errors of psycopg."""
    name = cluster_name(connection)
    if name is not None:
        raise SchemaError(
            f"{place}: it belongs to the cluster {name}, and this broker is no hub of it: set hub and coordination in "
            "[cluster], as the other hubs do, or name another database or schema in store.url."
        )


def claim(database: Database, connection: Connection, shard: int, epoch: int | None, owner: str) -> tuple[int, int]:
    """Make this process the owner of a shard. Returns its epoch, and the number of its last batch.

    `epoch`: as agreed with other hubs, higher than all before; None: there are none, so the next one, unless a broker
    is connected that has the shard. Raises ShardInUseError, FencedError, or errors of psycopg.
    """
    until_seconds = time.monotonic() + CLAIM_SECONDS
    while not hold(connection, shard) and epoch is None:
        if time.monotonic() > until_seconds:
            raise ShardInUseError(
                f"{database.words}: shard {shard} is in use by {_holder(connection, shard)}. Stop that broker, or name "
                "another database or schema in store.url."
            )
        time.sleep(_PAUSE_SECONDS)
    row = connection.execute(
        """
        INSERT INTO sluiceway_shards AS there (shard, epoch, batch, owner) VALUES (%(shard)s, %(first)s, 0, %(owner)s)
        ON CONFLICT (shard) DO UPDATE
            SET epoch = coalesce(%(epoch)s::bigint, there.epoch + 1), owner = EXCLUDED.owner, claimed_at = now()
            WHERE %(epoch)s::bigint IS NULL OR there.epoch < %(epoch)s::bigint
        RETURNING epoch, batch
        """,
        {"shard": shard, "first": 1 if epoch is None else epoch, "epoch": epoch, "owner": owner},
    ).fetchone()
    if row is None:
        raise FencedError(
            f"{database.words}: shard {shard} has an epoch of {epoch} or later: another hub became its owner"
        )
    return _number(row[0]), _number(row[1])


def hold(connection: Connection, shard: int) -> bool:
    """Try to get the lock that tells other brokers of this one."""
    return bool(_one(connection, "SELECT pg_try_advisory_lock('sluiceway_shards'::regclass::oid::int4, %s)", shard))


def end_ghosts(connection: Connection, name: str) -> None:
    """End earlier sessions of this engine that the server has not found dead yet: they may hold the row and lock."""
    with_name = "application_name = %s AND pid <> pg_backend_pid() AND usename = current_user"
    connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {with_name}".encode(), (name,))


def check_row(
    connection: Connection, place: str, shard: int, epoch: int, synced: int, *, also: str = "NULL"
) -> tuple[int, object]:
    """Check that the shard is still this owner's, and that the batch with the number `synced` is not lost. Returns the
    number of the last batch that is there, and the value of the expression `also`. Raises FencedError, or errors of
    psycopg.
    """
    query = f"SELECT epoch, batch, owner, claimed_at::text, {also} FROM sluiceway_shards WHERE shard = %s"
    row = connection.execute(query.encode(), (shard,)).fetchone()
    if row is None:
        raise FencedError(f"{place}: shard {shard} is gone from the database. Look who emptied it, and start again.")
    there, batch, owner, claimed_at, result = row
    if there != epoch:
        raise FencedError(
            f"{place}: shard {shard} has another owner: {owner}, since {claimed_at}. This broker writes nothing more; "
            "only one may use a shard."
        )
    if _number(batch) < synced:
        raise FencedError(
            f"{place}: shard {shard} is at batch {batch}, though batch {synced} was confirmed: the database was "
            "restored from a backup, or failed over to a standby that lagged, and has lost confirmed messages. Start "
            "the broker again to continue with what is there; a synchronous standby loses nothing."
        )
    return _number(batch), result


def _holder(connection: Connection, shard: int) -> str:
    row = connection.execute(
        """
        SELECT coalesce(application_name, '?'), coalesce(client_addr::text, 'this host'), backend_start::text
        FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE locktype = 'advisory' AND classid = 'sluiceway_shards'::regclass::oid AND objid::int4 = %s AND granted
        """,
        (shard,),
    ).fetchone()
    return "another session" if row is None else f"{row[0]!r} at {row[1]}, connected since {row[2]}"


def _one(connection: Connection, query: str, *values: object) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    return None if row is None else row[0]


def _number(value: object) -> int:
    assert isinstance(value, int), "the column is a number"
    return value
