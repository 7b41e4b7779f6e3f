"""Sessions of the PostgreSQL engine: connections that are made when needed, and errors of the database in words.

Errors of psycopg and of PostgreSQL become EngineErrors here, by SQLSTATE; a failed connection has none, so its text is
looked at. No message has more of the URL than host, port, database and user.

A session is given up with its first error: the next use connects again. A server that is silent is found by asking it
over a second connection (postgresql_silence.py). libpq notices a host that is gone by its keepalives (some 11 s) and by
`tcp_user_timeout`, too; the server ends the sessions of a host that is gone likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .engine import CorruptionError, DiskFullError, EngineError, EngineFailedError
from .postgresql_silence import SILENT_SECONDS, SilentError, WatchedConnection, activity

Connection = psycopg.Connection[tuple[object, ...]]

STATEMENT_SECONDS: Final = 30
"""Longest time of one statement, with the wait for a lock or a synchronous standby. A batch is some megabytes."""

LOCK_SECONDS: Final = 10
IDLE_IN_TRANSACTION_SECONDS: Final = 15
"""Time after which the server ends a session that stopped in the middle of a batch, and frees the row of its shard."""

_CLIENT_SETTINGS: Final[Mapping[str, str | int]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "target_session_attrs": "read-write",  # of several hosts the primary; a standby is told of when connecting
}
"""Settings of libpq that a URL may change."""

SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS}s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    # All access is by primary key. Without statistics, as on a fresh table, the planner may think otherwise.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_BY_STATE: Final[Mapping[str, tuple[type[EngineError], str]]] = {
    "53100": (DiskFullError, "The disk of the database is full: free space on it, or let the queues drain"),
    "53200": (EngineFailedError, "The database server is short of memory: give it more, or less to do"),
    "53300": (EngineFailedError, "It has too many connections: raise max_connections, or end idle ones"),
    "25006": (
        EngineFailedError,
        "It is read-only, as a standby is: name the primary in store.url, or all hosts (host1,host2)",
    ),
    "28P01": (EngineFailedError, "Give the right password: in store.url, PGPASSWORD or a password file"),
    "28000": (EngineFailedError, "Let this user in from this host: pg_hba.conf and the role decide"),
    "3D000": (EngineFailedError, "Create the database, or name another one in store.url"),
    "3F000": (EngineFailedError, "Create the schema that search_path names, and let the user create tables in it"),
    "42501": (EngineFailedError, "Let the user create tables in the schema once, and own them"),
    "42P01": (EngineFailedError, "The tables are gone, or search_path is another: look at the schema"),
    "42P07": (EngineFailedError, "Tables of these names exist already: use another schema (search_path in store.url)"),
    "57014": (EngineFailedError, "It took too long, or an administrator cancelled it: look at the load and at locks"),
    "55P03": (EngineFailedError, "Another session holds a lock: pg_stat_activity and pg_locks tell which"),
    "25P03": (EngineFailedError, "The session was idle in a transaction for too long"),
    "57P01": (EngineFailedError, "The server stops, or an administrator ended the session"),
    "57P02": (EngineFailedError, "The server crashed, and starts again"),
    "57P03": (EngineFailedError, "The server starts or stops: it is tried again"),
    "XX001": (CorruptionError, "The database found damage: look at its log, restore a backup or fail over"),
    "XX002": (CorruptionError, "An index is damaged: REINDEX TABLE sluiceway_records, and look at the disk"),
}
"""Errors by SQLSTATE: kind and remedy."""

_BY_TEXT: Final = (
    (re.compile(r"password authentication failed|no password supplied"), "28P01"),
    (re.compile(r"no pg_hba\.conf entry|role .* does not exist|not permitted to log in"), "28000"),
    (re.compile(r"database .* does not exist"), "3D000"),
    (re.compile(r"too many (clients|connections)|remaining connection slots"), "53300"),
    (re.compile(r"session is read-only|hot standby mode"), "25006"),
    (re.compile(r"starting up|shutting down|in recovery mode|not yet accepting connections"), "57P03"),
)
"""Failed connections, by their text."""

_ANSWERS: Final = ("53300", "57P03")
"""States of failed connections by which a server shows that it lives."""

_LOST: Final = "Look whether the server runs and can be reached from here; it is tried again"


class UnusableUrlError(EngineError):
    """The URL of the database can't be read. The message does not quote it: a password may be in it."""


class Database:
    """A database, as a URL names it."""

    def __init__(self, url: str) -> None:
        """`url`: a URL or a connection string of libpq; what it leaves out is taken from libpq's environment variables.
        Raises UnusableUrlError.
        """
        try:
            given: dict[str, str | int | None] = dict(conninfo_to_dict(url))
        except psycopg.ProgrammingError:
            given = {"host": "@"}
        host = str(given.get("host", ""))
        if "@" in host:
            raise UnusableUrlError(
                "store.url is no URL of PostgreSQL, such as postgresql://user:password@host:5432/database. Write "
                "characters with a meaning in URLs as %XX in a password: %40 for @, %2F for /."
            )
        self._conninfo = make_conninfo("", **{**_CLIENT_SETTINGS, **given})
        hosts = host.split(",")
        ports = str(given.get("port", "")).split(",") * (1 if "," in str(given.get("port", "")) else len(hosts))
        place = ",".join(f"{name}:{port}" if port else name for name, port in zip(hosts, ports, strict=False))
        self.words = "PostgreSQL" + (f" at {place}" if place else "")
        for name, said in (("dbname", "database"), ("user", "user")):
            if name in given:
                self.words += f", {said} {given[name]}"

    def connect(self, name: str) -> Connection:
        """Return a new connection, in autocommit; `name` is what the server's views show. Raises EngineError."""
        with self.telling("connecting"):
            connection = WatchedConnection.connect(self._conninfo, autocommit=True, application_name=name)
            connection.ask = partial(self._activity, name)
            try:
                calls = ", ".join(f"set_config('{key}', '{value}', false)" for key, value in SERVER_SETTINGS.items())
                connection.execute(f"SELECT {calls}".encode())
                (setting,) = connection.execute("SHOW synchronous_commit").fetchone() or ("",)
                if setting == "off":  # a RECEIPT would not be true
                    connection.execute("SET synchronous_commit = on")
            except BaseException:
                connection.close()
                raise
            return connection

    def _activity(self, name: str) -> str | None:
        """Do `activity`; a server that lives and says no more is taken to work. Raises SilentError."""
        try:
            return activity(self._conninfo, name)
        except psycopg.Error as error:
            if error.sqlstate is not None or (_state_of(error) in _ANSWERS and "timeout" not in str(error)):
                return ""
            silent = f"the server has not answered for {SILENT_SECONDS:g} s"
            raise SilentError(f"{silent}, and answers no new connection: {_text_of(error)}") from error

    @contextmanager
    def telling(self, doing: str) -> Iterator[None]:
        """Map errors of the database in this block. `doing`: what fails, such as "writing"."""
        try:
            yield
        except psycopg.Error as error:
            raise self._mapped(error, doing) from error
        except MemoryError as error:
            raise EngineFailedError(f"{self.words}: there is not enough memory for {doing} now") from error

    def _mapped(self, error: psycopg.Error, doing: str) -> EngineError:
        text, state = _text_of(error), _state_of(error)
        kind, remedy = _BY_STATE.get(state or "", (EngineFailedError, _LOST if state is None else ""))
        code = "" if error.sqlstate is None else f" (SQLSTATE {error.sqlstate})"
        return kind(f"{self.words}: {doing} failed: {text}{code}. {remedy}".rstrip(". ") + ".")


def _text_of(error: psycopg.Error) -> str:
    return error.diag.message_primary or "; ".join(str(error).strip().split("\n"))


def _state_of(error: psycopg.Error) -> str | None:
    text = _text_of(error)
    return error.sqlstate or next((state for pattern, state in _BY_TEXT if pattern.search(text)), None)


def is_lost(error: BaseException | None) -> bool:
    """Return whether this error of psycopg ended the connection, so that another one may serve at once."""
    if isinstance(error, SilentError):
        return False
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate in ("57P01", "57P02", "57P03", "25P03", "08006", "08003")
    )


class Session:
    """One connection to a database, made when it is needed, and given up after an error. For one thread at a time."""

    __slots__ = ("_begin", "_connection", "_database", "_name", "generation")

    def __init__(self, database: Database, name: str, begin: Callable[[Connection], None]) -> None:
        """`begin` looks at each new connection before it is used; raises EngineError or errors of psycopg."""
        self._database = database
        self._name = name
        self._begin = begin
        self._connection: Connection | None = None
        self.generation = 0
        """Number of connections so far."""

    def connection(self) -> Connection:
        """Return the connection, made if there is none. Raises EngineError."""
        connection = self._connection
        if connection is None:
            connection = self._database.connect(self._name)
            try:
                with self._database.telling("connecting"):
                    self._begin(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self.generation += 1
        return connection

    @contextmanager
    def using(self, doing: str) -> Iterator[Connection]:
        """Return the connection for the block; map errors, and give the connection up after one."""
        connection = self.connection()
        try:
            with self._database.telling(doing):
                yield connection
        except BaseException:
            self.give_up()
            raise

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def give_up(self) -> None:
        """Close the connection; the next use makes another one. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
