"""A database that sends neither answers nor errors: stopped, or behind a proxy that has forgotten a connection."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluiceway.store import postgresql_silence
from sluiceway.store.engine import EngineFailedError, put
from sluiceway.store.postgresql import PostgresqlEngine
from tests.postgresql_server import Server, server

SOCKET = ".s.PGSQL.5432"


@pytest.fixture
def database() -> Server:
    return server()


@pytest.fixture
def url(database: Server) -> str:
    return database.new_schema()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask after a moment, in place of seconds."""
    monkeypatch.setattr(postgresql_silence, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(postgresql_silence, "LOOK_SECONDS_MAX", 0.2)
    monkeypatch.setattr(postgresql_silence, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(postgresql_silence, "QUESTION_SECONDS", 2)  # libpq takes no less


class ForgetfulProxy:
    """Passes connections on to a server's socket, until it forgets those that are open: they stay, and are silent."""

    def __init__(self, target: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="proxy-"))
        self._target = target
        self._forgotten = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.folder / SOCKET))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        self._forgotten.set()
        self._forgotten = threading.Event()

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                dialled = socket.socket(socket.AF_UNIX)
                dialled.connect(str(self._target))
                self._sockets += [accepted, dialled]
                for one, other in ((accepted, dialled), (dialled, accepted)):
                    threading.Thread(target=self._pump, args=(one, other, self._forgotten), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, forgotten: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not forgotten.is_set():
                    sink.sendall(data)
            if not forgotten.is_set():
                sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(database: Server) -> Iterator[ForgetfulProxy]:
    with closing(ForgetfulProxy(database.folder / SOCKET)) as made:
        yield made


def test_a_database_that_is_stopped_fails_within_seconds_and_is_used_again(database: Server, url: str) -> None:
    with closing(PostgresqlEngine(url)) as engine:
        engine.write([put(b"a", b"1")], sync=True)
        engine.get(b"a")
        with database.frozen():
            for is_writing in (True, False):
                began_seconds = time.monotonic()
                with pytest.raises(EngineFailedError, match=r"has not answered for .* no new connection.*tried again"):
                    if is_writing:
                        engine.write([put(b"a", b"2")], sync=True)
                    else:
                        engine.get(b"a")
                assert time.monotonic() - began_seconds < 10.0
        engine.write([put(b"b", b"3")], sync=True)
        assert engine.get(b"b") == b"3"


def test_a_statement_that_takes_long_is_not_cut(url: str) -> None:
    """A lock, a large batch, a standby that is slow: the server says that it works."""
    with closing(PostgresqlEngine(url)) as engine, psycopg.connect(url) as other:
        other.execute("LOCK TABLE sluiceway_records IN EXCLUSIVE MODE")
        freeing = threading.Timer(1.0, other.commit)
        freeing.start()
        began_seconds = time.monotonic()
        engine.write([put(b"a", b"1")], sync=True)
        assert time.monotonic() - began_seconds > 0.5
        assert engine.kept_numbers == [] and engine.get(b"a") == b"1"
        freeing.join()


def test_a_connection_that_a_proxy_has_forgotten_is_made_again(
    proxy: ForgetfulProxy, url: str, database: Server
) -> None:
    """The server waits for a batch that never comes: nothing fails but this connection."""
    with closing(PostgresqlEngine(url.replace(str(database.folder), str(proxy.folder)))) as engine:
        engine.write([put(b"a", b"1")], sync=True)
        proxy.forget()
        engine.write([put(b"a", b"2")], sync=True)
        assert engine.get(b"a") == b"2"


def test_a_connection_whose_session_has_ended_is_made_again(proxy: ForgetfulProxy, url: str, database: Server) -> None:
    with closing(PostgresqlEngine(url.replace(str(database.folder), str(proxy.folder)))) as engine:
        engine.write([put(b"a", b"1")], sync=True)
        proxy.forget()
        database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%writes'")
        engine.write([put(b"a", b"2")], sync=True)
        assert engine.get(b"a") == b"2"


def test_a_statement_that_fails_is_named_though_the_abort_of_others_is_raised_over_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg does so when the answer comes at the end of the pipeline, seen on a busy machine in 2 of 100 batches: the
    abort has no reason in it, and a fence that refuses would not be noticed.
    """
    end = psycopg.Pipeline._exit_gen

    def end_late(pipeline: psycopg.Pipeline) -> Generator[Any, Any, None]:
        try:
            yield from end(pipeline)
        except psycopg.Error:
            raise psycopg.errors.PipelineAborted("pipeline aborted")  # noqa: B904  as psycopg does it

    monkeypatch.setattr(psycopg.Pipeline, "_exit_gen", end_late)
    with (
        closing(postgresql_silence.WatchedConnection.connect(url, autocommit=True)) as connection,
        pytest.raises(psycopg.errors.DivisionByZero),
        connection.pipeline(),
    ):
        connection.execute("SELECT 1 / (1 - count(pg_sleep(0.02)))")
