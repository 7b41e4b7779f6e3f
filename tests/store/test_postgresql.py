"""The engine on a real PostgreSQL: owners and epochs, lost attempts, and faults of the database in words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import psycopg
import pytest

from sluiceway.store import postgresql, postgresql_schema, postgresql_sessions
from sluiceway.store.engine import (
    DiskFullError,
    EngineError,
    EngineFailedError,
    FencedError,
    delete,
    delete_range,
    put,
)
from sluiceway.store.postgresql import PostgresqlEngine, net_changes
from sluiceway.store.postgresql_schema import SchemaError, ShardInUseError
from sluiceway.store.postgresql_sessions import UnusableUrlError
from tests.postgresql_server import PASSWORD_USER, Server, server

LAST = b"\xff" * 8


class Opens(Protocol):
    """Opens engines that are closed after the test."""

    def __call__(self, url: str = "", *, shard: int = 0, epoch: int | None = None) -> PostgresqlEngine: ...


@pytest.fixture
def database() -> Server:
    return server()


@pytest.fixture
def url(database: Server) -> str:
    return database.new_schema()


@pytest.fixture
def opened(url: str) -> Iterator[Opens]:
    with ExitStack() as open_ones:

        def start(url: str = url, *, shard: int = 0, epoch: int | None = None) -> PostgresqlEngine:
            engine = PostgresqlEngine(url, shard=shard, epoch=epoch)
            open_ones.callback(engine.close)
            return engine

        yield start


@pytest.fixture
def sql(url: str) -> Iterator[Callable[[str], list[tuple[object, ...]]]]:
    """A session of an administrator, in the schema of the test."""
    with psycopg.connect(url, autocommit=True) as connection:

        def run(statement: str) -> list[tuple[object, ...]]:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield run


Sql = Callable[[str], list[tuple[object, ...]]]


def contents(engine: PostgresqlEngine) -> dict[bytes, bytes]:
    return dict(engine.iterate(b"", LAST))


def test_a_batch_comes_to_ranges_then_keys_then_values() -> None:
    changes = [put(b"b", b"1"), put(b"x", b"1"), delete_range(b"a", b"c"), put(b"b2", b"2"), delete(b"x"), delete(b"z")]
    puts, gone, ranges = net_changes([*changes, put(b"z", b"3")])
    assert puts == {b"b2": b"2", b"z": b"3"}
    assert (gone, ranges) == ([b"x"], [(b"a", b"c")])


# ---------------------------------------------------------------------- owners


def test_shards_of_one_database_do_not_see_each_other(opened: Opens) -> None:
    one, other = opened(shard=1), opened(shard=2)
    one.write([put(b"a", b"1")], sync=True)
    other.write([put(b"a", b"2"), delete_range(b"b", LAST)], sync=True)
    assert (contents(one), contents(other)) == ({b"a": b"1"}, {b"a": b"2"})


def test_an_owner_of_the_past_writes_nothing_more(opened: Opens) -> None:
    """It was stopped for longer than its session, say, and wakes up."""
    old = opened(epoch=1)
    old.write([put(b"a", b"old")], sync=True)
    new = opened(epoch=2)
    new.write([put(b"a", b"new")], sync=True)
    with pytest.raises(FencedError, match="another owner"):
        old.write([put(b"a", b"too late"), put(b"b", b"too late")], sync=True)
    assert contents(new) == {b"a": b"new"}
    with pytest.raises(FencedError):
        old.get(b"a")
    with pytest.raises(FencedError):
        old.write([], sync=True)


def test_an_idle_owner_of_the_past_finds_out_when_its_size_is_read(opened: Opens) -> None:
    old = opened(epoch=1)
    opened(epoch=2)
    with pytest.raises(FencedError, match="another owner"):
        old.size_bytes()


def test_an_epoch_that_is_not_later_gets_no_shard(opened: Opens) -> None:
    opened(epoch=3)
    for epoch in (2, 3):
        with pytest.raises(FencedError, match="another hub"):
            opened(epoch=epoch)


def test_a_claim_waits_for_the_batch_under_way(opened: Opens, url: str) -> None:
    """So it is either before the claim, as a whole, or refused."""
    opened(epoch=1)
    with psycopg.connect(url) as old:
        old.execute(postgresql_schema.FENCE, {"shard": 0, "epoch": 1, "number": 7})
        with psycopg.connect(url, autocommit=True) as new:
            new.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                new.execute("UPDATE sluiceway_shards SET epoch = 2")


def test_a_second_broker_is_refused_while_the_first_is_connected(
    opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_schema, "CLAIM_SECONDS", 0.1)
    first = opened()
    with pytest.raises(ShardInUseError, match=r"shard 0 is in use by 'sluiceway shard 0 \w+ writes' at .*Stop that"):
        opened()
    first.write([put(b"a", b"1")], sync=True)
    first.close()
    second = opened()
    assert second.epoch == first.epoch + 1
    assert contents(second) == {b"a": b"1"}


# ---------------------------------------------------------------------- lost connections


def test_a_connection_that_was_ended_is_made_again(opened: Opens, sql: Sql) -> None:
    engine = opened()
    engine.write([put(b"a", b"1")], sync=True)
    assert engine.get(b"a") == b"1"
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'sluiceway shard 0%'")
    engine.write([put(b"b", b"2")], sync=True)
    assert contents(engine) == {b"a": b"1", b"b": b"2"}


def test_an_attempt_whose_connection_was_lost_takes_no_effect_later(opened: Opens, sql: Sql) -> None:
    """Its bytes may lie in a proxy, or in the queue of the server, while the batch is written again."""
    engine = opened()
    engine.write([put(b"a", b"1")], sync=True)
    ((lost,),) = sql("SELECT batch FROM sluiceway_shards")
    engine.write([put(b"a", b"1")], sync=True)
    with pytest.raises(psycopg.errors.NotNullViolation):
        sql(
            f"BEGIN; UPDATE sluiceway_shards SET batch = CASE WHEN epoch = {engine.epoch} AND batch < {lost} THEN "
            f"{lost} END; DELETE FROM sluiceway_records; COMMIT"
        )
    sql("ROLLBACK")
    assert contents(engine) == {b"a": b"1"}


def test_an_iteration_is_cut_by_a_lost_connection_and_never_just_ends(opened: Opens, sql: Sql) -> None:
    engine = opened()
    engine.write([put(b"%03d" % place, b"value") for place in range(100)], sync=True)
    steps = engine.iterate(b"", LAST)
    next(steps)
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%reads'")
    with pytest.raises(EngineFailedError):
        list(steps)
    assert len(contents(engine)) == 100


def test_the_engine_goes_on_after_a_crash_of_the_database(opened: Opens, database: Server) -> None:
    engine = opened()
    engine.write([put(b"a", b"1")], sync=False)
    database.stop("immediate")
    try:
        for attempt in (lambda: engine.write([put(b"b", b"2")], sync=True), lambda: engine.get(b"a")):
            with pytest.raises(EngineFailedError, match="Look whether the server runs"):
                attempt()
    finally:
        database.start()
    engine.write([put(b"b", b"2")], sync=True)
    assert contents(engine) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("reads_first", [True, False])
def test_batches_that_were_not_synced_are_written_again_after_a_crash_of_the_database(
    opened: Opens, database: Server, reads_first: bool
) -> None:
    """The broker relies on them: it has let go of what it wrote."""
    engine = opened()
    engine.write([put(b"synced", b"1"), put(b"gone", b"1")], sync=True)
    database.configure(wal_writer_delay="10s")
    try:
        for place in range(5):
            engine.write([put(b"%d" % place, bytes(10)), delete(b"gone")], sync=False)
        database.stop("immediate")
        database.start()
        expected = {b"synced": b"1", **{b"%d" % place: bytes(10) for place in range(5)}}
        if reads_first:
            with pytest.raises(EngineFailedError, match="come back without the last batches"):
                engine.get(b"0")
        engine.write([], sync=True)
        assert contents(engine) == expected
    finally:
        database.configure(wal_writer_delay="")


def test_changes_that_are_not_synced_are_kept_up_to_a_limit(opened: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "KEPT_BYTES_MAX", 30_000)
    engine = opened()
    kept = []
    for place in range(6):
        engine.write([put(b"%d" % place, bytes(10_000))], sync=False)
        kept.append(len(engine.kept_numbers))
    assert kept == [1, 2, 0, 1, 2, 0]


def test_a_database_that_has_lost_confirmed_batches_is_noticed(opened: Opens, sql: Sql) -> None:
    """It was restored from a backup, or failed over to a standby that lagged."""
    engine = opened()
    engine.write([put(b"a", b"1")], sync=True)
    sql("UPDATE sluiceway_shards SET batch = batch - 1")
    with pytest.raises(FencedError, match="has lost confirmed messages"):
        engine.size_bytes()
    with pytest.raises(FencedError):
        engine.write([put(b"b", b"2")], sync=True)


def test_a_shard_whose_row_is_gone_is_abandoned(opened: Opens, sql: Sql) -> None:
    engine = opened()
    sql("DELETE FROM sluiceway_shards")
    with pytest.raises(FencedError, match="is gone from the database"):
        engine.write([put(b"a", b"1")], sync=True)


# ---------------------------------------------------------------------- faults in words


def raising(sqlstate: str) -> str:
    """A trigger with which every write of records fails like this."""
    return (
        f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN RAISE EXCEPTION 'it failed' USING ERRCODE = '{sqlstate}'; END$$;"
        "CREATE TRIGGER fails BEFORE INSERT ON sluiceway_records EXECUTE FUNCTION fail()"
    )


@pytest.mark.parametrize(
    ("sqlstate", "kind", "words"),
    [
        ("53100", DiskFullError, "disk of the database is full"),
        ("53200", EngineFailedError, "short of memory"),
        ("25006", EngineFailedError, "name the primary"),
        ("57014", EngineFailedError, "took too long"),
        ("40001", EngineFailedError, "it failed"),
    ],
)
def test_a_write_that_fails_says_why_and_can_be_repeated(
    opened: Opens, sql: Sql, sqlstate: str, kind: type[EngineError], words: str
) -> None:
    engine = opened()
    sql(raising(sqlstate))
    with pytest.raises(kind, match=rf"{words}.*") as caught:
        engine.write([put(b"a", b"1")], sync=True)
    assert f"(SQLSTATE {sqlstate})" in str(caught.value)
    assert contents(engine) == {}
    sql("DROP TRIGGER fails ON sluiceway_records")
    engine.write([put(b"a", b"1")], sync=True)
    assert contents(engine) == {b"a": b"1"}


def test_a_lock_of_another_session_is_waited_for_so_long_and_no_longer(
    opened: Opens, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**postgresql_sessions.SERVER_SETTINGS, "lock_timeout": "50ms"}
    monkeypatch.setattr(postgresql_sessions, "SERVER_SETTINGS", settings)
    engine = opened()
    sql("BEGIN")
    sql("LOCK TABLE sluiceway_records IN EXCLUSIVE MODE")
    with pytest.raises(EngineFailedError, match="holds a lock"):
        engine.write([put(b"a", b"1")], sync=True)
    sql("COMMIT")
    engine.write([put(b"a", b"1")], sync=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("/postgres?", "/nowhere?"), "Create the database"),
        (("postgres@", "nobody@"), "pg_hba.conf"),
        (("postgres@", f"{PASSWORD_USER}:wrong-word@"), "Give the right password"),
        (("postgres@", f"{PASSWORD_USER}@"), "Give the right password"),
        (("-csearch_path", "-cdefault_transaction_read_only%3Don%20-csearch_path"), "name the primary"),
        (("host=/", "host=/nowhere/"), "Look whether the server runs"),
    ],
)
def test_a_database_that_lets_nobody_in_says_what_to_do(url: str, change: tuple[str, str], words: str) -> None:
    assert change[0] in url
    with pytest.raises(EngineFailedError, match=words) as caught:
        PostgresqlEngine(url.replace(*change))
    assert "wrong-word" not in str(caught.value)


def test_a_batch_whose_wait_for_a_standby_was_cancelled_is_not_confirmed(
    opened: Opens, database: Server, sql: Sql
) -> None:
    """The server says COMMIT all the same, with a warning."""
    engine = opened()
    database.configure(synchronous_standby_names="nobody")
    stop = threading.Event()

    def cancel() -> None:
        while not stop.wait(0.02):
            sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(EngineFailedError, match="perhaps not on the standby: cancel"):
            while True:  # until the setting is in force
                engine.write([put(b"a", b"1")], sync=True)
    finally:
        stop.set()
        canceller.join()
        database.configure(synchronous_standby_names="")
    engine.write([put(b"a", b"2")], sync=True)
    assert contents(engine) == {b"a": b"2"}


def test_too_many_connections_say_so(database: Server, url: str) -> None:
    database.execute("CREATE ROLE sluiceway_few LOGIN CONNECTION LIMIT 0")
    with pytest.raises(EngineFailedError, match="raise max_connections"):
        PostgresqlEngine(url.replace("postgres@", "sluiceway_few@"))
    database.execute("DROP ROLE sluiceway_few")


def test_a_user_without_the_right_to_make_tables_is_told(database: Server, url: str) -> None:
    schema = url.rpartition("%3D")[2]
    database.execute(f"CREATE ROLE sluiceway_poor LOGIN; GRANT USAGE ON SCHEMA {schema} TO sluiceway_poor")
    with pytest.raises(EngineFailedError, match="Let the user create tables"):
        PostgresqlEngine(url.replace("postgres@", "sluiceway_poor@"))
    database.execute("DROP OWNED BY sluiceway_poor; DROP ROLE sluiceway_poor")


def test_tables_of_another_version_are_left_alone(opened: Opens, sql: Sql) -> None:
    opened().close()
    sql("UPDATE sluiceway_schema SET version = 99")
    with pytest.raises(SchemaError, match=r"have version 99, .* knows version 1.*a later version"):
        opened()
    assert sql("SELECT max(version) FROM sluiceway_schema") == [(99,)]


@pytest.mark.parametrize(
    "url", ["postgresql://user:sec@ret@host/db", "postgresql://user:secret@host/db?no=such", "secret", "http://secret/"]
)
def test_a_url_that_can_not_be_read_is_not_quoted(url: str) -> None:
    with pytest.raises(UnusableUrlError, match="characters with a meaning") as caught:
        PostgresqlEngine(url)
    assert "ret" not in str(caught.value).replace("interpreted", "")


def test_a_place_has_no_password() -> None:
    place = postgresql_sessions.Database("postgresql://user:secret@db1,db2/orders").words
    assert place == "PostgreSQL at db1,db2, database orders, user user"


# ---------------------------------------------------------------------- promises of the session


def test_a_server_that_commits_later_is_told_to_commit_now(opened: Opens, url: str) -> None:
    """A RECEIPT would not be true."""
    connection = postgresql_sessions.Database(f"{url}%20-csynchronous_commit%3Doff").connect("test")
    with connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_an_iteration_over_large_values_holds_few_of_them(opened: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened()
    for place in range(24):
        engine.write([put(b"%03d" % place, bytes(300_000))], sync=False)
    counts: list[int] = []
    go_on = PostgresqlEngine.go_on

    def counted(self: PostgresqlEngine, name: str, generation: int, count: int) -> list[object]:
        counts.append(count)
        return go_on(self, name, generation, count)

    monkeypatch.setattr(PostgresqlEngine, "go_on", counted)
    assert len(contents(engine)) == 24
    assert counts == [3] * 6, "three of them are about a mebibyte"
