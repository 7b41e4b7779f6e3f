"""The engine on PostgreSQL, through psycopg: what is confirmed survives this machine.

*Round trips.* A batch is one transaction in libpq's pipeline mode: one round trip, and the commit of the server (with
a synchronous standby that of the standby, too). A look-up is one; a range is two, and one more for each MIB of it.

*Without `sync`* a commit does not wait for the server's disk, nor for a standby. The server may crash while the broker
lives on, which then relies on records that are gone. So the changes of batches that are not synced are kept here, a few
mebibytes of them, and are written again when the server has come back without them; nothing is read before. What a
server loses in a crash are the last batches, never others.

*When the connection is lost* it is not known whether the batch is there. It is written again, once at once, then as
callers like; with a higher number, which keeps the lost attempt from taking effect later (postgresql_schema.py).

*A wait for a synchronous standby* may be cancelled by an administrator. The server then answers with a warning, and as
if all was well. So a batch with a warning counts as failed.

*Epochs.* A batch is written only while the shard is this engine's. If not, FencedError is raised, by every call from
then on: the caller abandons the shard.

*Iterations* are server-side cursors in one transaction at READ COMMITTED, where each has the snapshot of its own
beginning. Rows come in portions of about a mebibyte. A lost connection cuts them.

Two threads at once, one that writes and one that reads: each has a session of its own. The thread that writes may read,
too; what it wrote is committed.

Bound: one portion of rows for each open iteration, a batch twice, as a message of the protocol, and KEPT_BYTES_MAX.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import psycopg

from .engine import DELETE, PUT, Change, EngineClosedError, EngineError, EngineFailedError, FencedError
from .postgresql_schema import (
    FENCE,
    NOT_NULL_VIOLATION,
    check_row,
    claim,
    end_ghosts,
    hold,
    open_schema,
    refuse_cluster,
)
from .postgresql_sessions import Connection, Database, Session, is_lost

T = TypeVar("T")

MIB: Final = 1 << 20
PORTION_BYTES: Final = MIB
"""About the size of what one round trip of an iteration brings."""
ROWS_FIRST: Final = 8
"""Rows of the first round trip of an iteration: chunks are up to 768 KiB each, and mostly there are few."""
ROWS_MAX: Final = 4096
GROWTH: Final = 8
"""Factor by which the rows of a round trip grow at most, as long as they are small."""
STATEMENT_BYTES: Final = 4 * MIB
"""Size at which the records of a batch go into another statement of its transaction."""

KEPT_BYTES_MAX: Final = 8 * MIB
"""Changes that are not synced, and kept to be written again. A batch with which they would be more is synced."""

CHANGE_BYTES: Final = 200
"""Memory for a change that is kept, beside its value."""

_UPSERT: Final = (
    b"INSERT INTO sluiceway_records (shard, key, value) "
    b"SELECT %s, given.key, given.value FROM unnest(%b::bytea[], %b::bytea[]) AS given(key, value) "
    b"ON CONFLICT (shard, key) DO UPDATE SET value = EXCLUDED.value"
)
_DELETE: Final = b"DELETE FROM sluiceway_records WHERE shard = %s AND key = ANY(%b::bytea[])"
_DELETE_RANGE: Final = b"DELETE FROM sluiceway_records WHERE shard = %s AND key >= %b AND key < %b"
_GET: Final = b"SELECT value FROM sluiceway_records WHERE shard = %s AND key = %b"
_SIZE: Final = "pg_total_relation_size('sluiceway_records')"


class PostgresqlEngine:
    """Engine for one shard in a database. Several shards, and their processes, may use one database."""

    __slots__ = (
        "_closed",
        "_confirmed",
        "_database",
        "_dropped",
        "_epoch",
        "_fenced",
        "_kept",
        "_kept_bytes",
        "_name",
        "_notices",
        "_number",
        "_reader",
        "_reading",
        "_shard",
        "_synced",
        "_walks",
        "_walks_count",
        "_writer",
        "_writing",
        "warnings",
    )

    def __init__(
        self, url: str, *, shard: int = 0, epoch: int | None = None, name: str = "sluiceway", is_tool: bool = False
    ) -> None:
        """Connect, make the tables if need be, and claim the shard. `epoch`: see `claim`. `name`: that of the broker,
        for people who look at the server's sessions. `is_tool`: it may claim a shard of a cluster that no hub has.

        Raises UnusableUrlError, SchemaError, ShardInUseError, FencedError and other EngineErrors.
        """
        self._database = database = Database(url)
        self._shard = shard
        self._closed = False
        self._fenced: str | None = None
        self._name = f"{_in_ascii(name)[:24]} shard {shard} {secrets.token_hex(4)}"
        self._notices: list[str] = []
        """Warnings of the server about the batch under way."""
        self._writing = threading.Lock()
        """Held while something is written."""
        self._reading = threading.RLock()
        """Held for each round trip of the session that reads. Reentrant: an iteration may be collected anywhere."""
        self._writer = Session(database, f"{self._name} writes", self._begin_writing)
        self._reader = Session(database, f"{self._name} reads", self._begin_reading)
        self._dropped: deque[str] = deque()
        """Cursors that are no longer wanted, and not closed yet."""
        self._walks: set[str] = set()
        """Open cursors of the session that reads."""
        self._walks_count = 0  # made so far
        self._epoch = self._number = self._confirmed = self._synced = 0
        self._kept: list[tuple[int, list[Change]]] = []
        """Batches since the last one that was synced, by their numbers."""
        self._kept_bytes = 0
        self.warnings: list[str] = []
        """Settings of the server with which a confirmed message may be lost, in words."""
        self._epoch, self._number = self._open(epoch, is_tool=is_tool)
        self._confirmed = self._synced = self._number

    def _open(self, epoch: int | None, *, is_tool: bool) -> tuple[int, int]:
        database = self._database
        owner = f"{self._name}, process {os.getpid()} on {socket.gethostname()}"
        with database.telling("opening"):
            connection = self._writer.connection()
            try:
                open_schema(connection, database.words)
                if epoch is None and not is_tool:
                    refuse_cluster(connection, database.words)
                claimed = claim(database, connection, self._shard, epoch, owner)
                (fsync,) = connection.execute("SHOW fsync").fetchone() or ("",)
            except BaseException:
                self._writer.give_up()
                raise
        if fsync == "off":
            self.warnings.append(f"{database.words} has fsync off: a crash of its machine loses confirmed messages")
        return claimed

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._notices.append(notice.message_primary or "")

    def _begin_writing(self, connection: Connection) -> None:
        connection.add_notice_handler(self._noticed)
        if self._epoch:
            end_ghosts(connection, f"{self._name} writes")
            hold(connection, self._shard)
            there, _ = self._check_row(connection)
            lost = [change for number, changes in self._kept if number > there for change in changes]
            if lost:  # as one batch: half of them, and then a crash, would be another order than that of the batches
                self._commit(connection, lost, sync=True)

    def _begin_reading(self, connection: Connection) -> None:
        self._dropped.clear()
        self._walks.clear()
        confirmed = self._confirmed  # before the look: the other thread writes on
        there, _ = self._check_row(connection)
        if there < confirmed:
            raise EngineFailedError(
                f"{self._database.words}: it has come back without the last batches, which were not synced. They are "
                "written again before anything is read."
            )

    def _check_row(self, connection: Connection, also: str = "NULL") -> tuple[int, object]:
        try:
            return check_row(connection, self._database.words, self._shard, self._epoch, self._synced, also=also)
        except FencedError as error:
            self._fenced = str(error)
            raise

    @property
    def epoch(self) -> int:
        """Epoch of this owner."""
        return self._epoch

    @property
    def kept_numbers(self) -> list[int]:
        """Numbers of the batches that are kept, because they are not synced."""
        return [number for number, _changes in self._kept]

    @property
    def place(self) -> str:
        """Name of the database, without secrets."""
        return self._database.words

    # ------------------------------------------------------------------ reading

    def get(self, key: bytes) -> bytes | None:
        def read(connection: Connection) -> bytes | None:
            row = connection.cursor(binary=True).execute(_GET, (self._shard, key)).fetchone()
            return None if row is None else _bytes(row[0])

        return self._read(f"reading the key {key.hex()}", read)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return _Walk(self, "key, value", start, stop, "DESC" if reverse else "ASC", _both)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return _Walk(self, "key", start, stop, "ASC", _first)

    def size_bytes(self) -> int:
        """Return the size of the tables, of all shards. Raises FencedError if the shard has another owner."""
        _, size_bytes = self._read("reading its size", lambda connection: self._check_row(connection, _SIZE))
        assert isinstance(size_bytes, int), "a number"
        return size_bytes

    def _read(self, doing: str, read: Callable[[Connection], T]) -> T:
        """Read with the session for it; with a new connection if the one that was open is lost."""
        with self._reading:
            was_open = self._reader.is_open
            try:
                return self._read_once(doing, read)
            except EngineError as error:
                if not was_open or not is_lost(error.__cause__):
                    raise
            return self._read_once(doing, read)

    def _read_once(self, doing: str, read: Callable[[Connection], T]) -> T:
        self.check_open()
        with self._reader.using(doing) as connection:
            self._close_dropped(connection)
            return read(connection)

    def _close_dropped(self, connection: Connection) -> None:
        while self._dropped:
            name = self._dropped.popleft()
            if name in self._walks:
                self._walks.remove(name)
                connection.execute(f"CLOSE {name}".encode() if self._walks else b"COMMIT")

    # ------------------------------------------------------------------ writing

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        with self._writing:
            was_open = self._writer.is_open
            try:
                self._write_once(changes, sync=sync)
            except EngineError as error:
                if not was_open or not is_lost(error.__cause__):
                    raise
                self._write_once(changes, sync=sync)

    def _write_once(self, changes: Sequence[Change], *, sync: bool) -> None:
        self.check_open()
        with self._writer.using("writing") as connection:
            try:
                self._commit(connection, changes, sync=sync)
            except psycopg.errors.NotNullViolation as error:
                raise self._why_refused(error) from error

    def _commit(self, connection: Connection, changes: Sequence[Change], *, sync: bool) -> None:
        """Write one batch; with the next number, whether it is there already or not."""
        shard = self._shard
        puts, gone, ranges = net_changes(changes)
        size_bytes = CHANGE_BYTES * len(changes) + sum([len(value) for _kind, _key, value in changes])
        is_synced = sync or self._kept_bytes + size_bytes > KEPT_BYTES_MAX
        number = self._number = self._number + 1
        self._notices.clear()
        with connection.pipeline():
            connection.execute(b"BEGIN")
            if not is_synced:
                connection.execute(b"SET LOCAL synchronous_commit = off")
            fence = connection.execute(FENCE, {"shard": shard, "epoch": self._epoch, "number": number})
            for start, stop in ranges:
                connection.execute(_DELETE_RANGE, (shard, start, stop))
            if gone:
                connection.execute(_DELETE, (shard, gone))
            for keys, values in _portions(puts):
                connection.execute(_UPSERT, (shard, keys, values))
            commit = connection.execute(b"COMMIT")
        assert commit.statusmessage == "COMMIT", "an error before it would have been raised"
        if fence.rowcount != 1:
            self._check_row(connection)
        if self._notices:  # the wait for a standby was cancelled, and yet the server says COMMIT
            raise EngineFailedError(
                f"{self._database.words}: the batch is perhaps not on the standby: {'; '.join(self._notices)}. "
                "Look at the standby, or at synchronous_standby_names; the batch is written again."
            )
        self._confirmed = number
        if is_synced:
            self._synced = number
            self._kept.clear()
            self._kept_bytes = 0
        else:
            self._kept.append((number, list(changes)))
            self._kept_bytes += size_bytes

    def _why_refused(self, error: psycopg.Error) -> EngineError:
        """Return why the row of the shard did not let a batch in."""
        assert error.sqlstate == NOT_NULL_VIOLATION, "what the fence raises"
        self._writer.give_up()
        with self._writer.using("writing") as connection:
            self._check_row(connection)
        self._fenced = (
            f"{self._database.words}: shard {self._shard} has a later batch than this broker wrote, with its epoch: "
            "another process writes it, or the table was changed by hand. Look who else uses it."
        )
        return FencedError(self._fenced)

    def compact(self, start: bytes, stop: bytes) -> None:
        """Vacuum the table, which autovacuum does anyway."""
        with self._writing:
            self.check_open()
            with self._writer.using("compacting") as connection:
                connection.execute("SET statement_timeout = 0")
                connection.execute("VACUUM sluiceway_records")
                connection.execute("RESET statement_timeout")

    def close(self) -> None:
        self._closed = True
        with self._writing, self._reading:
            self._writer.give_up()
            self._reader.give_up()

    # ------------------------------------------------------------------ of iterations

    def check_open(self) -> None:
        """Raise EngineClosedError after `close`, FencedError once another owner was seen."""
        if self._closed:
            raise EngineClosedError(f"{self._database.words}: the store is closed; nothing can be read or written")
        if self._fenced is not None:
            raise FencedError(self._fenced)

    def begin_walk(self, columns: str, start: bytes, stop: bytes, order: str) -> tuple[str, int, list[Any]]:
        """Begin an iteration: returns the name of its cursor, the generation of the connection, and first rows."""
        self._walks_count += 1
        name = f"walk_{self._walks_count}"
        query = (
            f"DECLARE {name} NO SCROLL CURSOR FOR SELECT {columns} FROM sluiceway_records "
            f"WHERE shard = %s AND key >= %b AND key < %b ORDER BY key {order}"
        ).encode()

        def begin(connection: Connection) -> list[Any]:
            with connection.pipeline():
                if not self._walks:
                    connection.execute(b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
                connection.execute(query, (self._shard, start, stop))
                rows = connection.cursor(binary=True).execute(f"FETCH {ROWS_FIRST} FROM {name}".encode())
            self._walks.add(name)
            return rows.fetchall()

        with self._reading:
            rows = self._read(f"reading from the key {start.hex()}", begin)
            return name, self._reader.generation, rows

    def go_on(self, name: str, generation: int, count: int) -> list[Any]:
        """Return the next rows of an iteration."""
        with self._reading:
            self.check_open()
            if generation != self._reader.generation or not self._reader.is_open:
                raise EngineFailedError(
                    f"{self._database.words}: the connection was lost, which cut an iteration. Begin it again."
                )
            query = f"FETCH {count} FROM {name}".encode()
            return self._read_once(
                "reading on", lambda connection: connection.cursor(binary=True).execute(query).fetchall()
            )

    def end_walk(self, name: str, generation: int) -> None:
        """Close an iteration that came to its end."""
        with self._reading:
            if not self._closed and generation == self._reader.generation and self._reader.is_open:
                self._dropped.append(name)
                with self._reader.using("reading") as connection:
                    self._close_dropped(connection)

    def drop_walk(self, name: str, generation: int) -> None:
        """Close an iteration with the next use of the session: from any thread, at any time."""
        if generation == self._reader.generation:
            self._dropped.append(name)


class _Walk(Generic[T]):
    """One iteration."""

    __slots__ = ("__weakref__", "_engine", "_generation", "_made", "_name", "_rows", "_rows_max")

    def __init__(
        self, engine: PostgresqlEngine, columns: str, start: bytes, stop: bytes, order: str, made: Callable[[Any], T]
    ) -> None:
        """`made` makes an item of a row."""
        self._engine = engine
        self._made = made
        self._rows: deque[Any] = deque()
        self._rows_max = ROWS_FIRST
        self._name: str | None = None
        """Name of the cursor. None: all rows are fetched."""
        self._name, self._generation, rows = engine.begin_walk(columns, start, stop, order)
        self._take(rows)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        self._engine.check_open()
        if not self._rows and self._name is not None:
            self._take(self._engine.go_on(self._name, self._generation, self._rows_max))
        if not self._rows:
            raise StopIteration
        return self._made(self._rows.popleft())

    def _take(self, rows: list[Any]) -> None:
        self._rows.extend(rows)
        if len(rows) < self._rows_max:
            name, self._name = self._name, None
            assert name is not None, "rows were fetched from it"
            self._engine.end_walk(name, self._generation)
            return
        row_bytes = sum(len(column) for row in rows for column in row) // len(rows) + 1
        self._rows_max = max(1, min(self._rows_max * GROWTH, PORTION_BYTES // row_bytes, ROWS_MAX))

    def __del__(self) -> None:
        name = getattr(self, "_name", None)
        if name is not None:
            self._engine.drop_walk(name, self._generation)


def net_changes(changes: Sequence[Change]) -> tuple[dict[bytes, bytes], list[bytes], list[tuple[bytes, bytes]]]:
    """Return what a batch comes to if ranges are deleted first, then keys, and values are put last: values to put, keys
    to delete, ranges to delete.
    """
    puts: dict[bytes, bytes] = {}
    gone: dict[bytes, None] = {}
    ranges: list[tuple[bytes, bytes]] = []
    for kind, key, value in changes:
        if kind == PUT:
            puts[key] = value
            gone.pop(key, None)
        elif kind == DELETE:
            puts.pop(key, None)
            gone[key] = None
        elif key < value:
            ranges.append((key, value))
            for put_before in [each for each in puts if key <= each < value]:
                del puts[put_before]
    return puts, list(gone), ranges


def _portions(puts: dict[bytes, bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Cut the values of a batch into those of its statements."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size_bytes = 0
    for key, value in puts.items():
        keys.append(key)
        values.append(value)
        size_bytes += len(key) + len(value)
        if size_bytes >= STATEMENT_BYTES:
            yield keys, values
            keys, values, size_bytes = [], [], 0
    if keys:
        yield keys, values


def _in_ascii(name: str) -> str:
    """Return a name as the server shows it: in other characters it would not be found again."""
    return "".join(each if " " <= each <= "~" else "?" for each in name)


def _first(row: tuple[bytes]) -> bytes:
    return row[0]


def _both(row: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    return row


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes), "the column is bytea, in binary"
    return value
