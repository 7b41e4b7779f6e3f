"""A connection to a database that does not wait for ever: a server that is stopped, a proxy that is silent, or a host
that is gone sends no error.

When nothing has come from the server for SILENT_SECONDS, a second connection asks it what it does for the first one:

    no answer           SilentError: it is away, as if it had refused the connection
    it works            the wait continues: a large batch, a lock, or a standby that is slow. Its own deadlines hold
    it waits for us     and has for IDLE_SECONDS: what was sent, or its answer, is lost. An OperationalError, as of a
                        lost connection: another one may serve at once
    it knows of none    likewise: the database has failed over, or has ended the session

Considered: a plain deadline for each statement. It would cut a slow batch over and over, which then never gets through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg

T = TypeVar("T")

SILENT_SECONDS: Final = 3.0
"""Time without a byte from the server, or to it, before it is asked."""
LOOK_SECONDS_MAX: Final = 30.0
"""Longest time between two questions, while the server works: it doubles with each."""
IDLE_SECONDS: Final = 10.0
"""Time that a server waits for what this end has sent, before the connection counts as lost."""
QUESTION_SECONDS: Final = 3
"""Time for the connection that asks."""

_ACTIVITY: Final = (
    b"SELECT state, state_change::text FROM pg_stat_activity WHERE application_name = %s AND usename = current_user "
    b"ORDER BY backend_start DESC LIMIT 1"
)


class SilentError(psycopg.OperationalError):
    """The server answers neither a statement nor a new connection."""


class WatchedConnection(psycopg.Connection[tuple[object, ...]]):
    """A connection whose waits ask another one. Without `ask`, silence is an error."""

    ask: Callable[[], str | None] | None = None
    """Function that returns what `activity` does. Raises SilentError."""
    _fault: psycopg.OperationalError | None = None
    """Reason why nothing is waited for any more."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Do `psycopg.Connection.wait`, which all calls end in. Raises SilentError, too."""
        if self._fault is not None:
            gen.close()
            raise self._fault
        return super().wait(self._watched(gen), *args, **kwargs)

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Do `psycopg.Connection.pipeline`; its end has another error behind one of these, or behind its cause."""
        try:
            with super().pipeline() as pipeline:
                yield pipeline
        except psycopg.Error as error:
            if self._fault is not None and error is not self._fault:
                raise self._fault from error
            first = _first_of(error)
            if first is error:
                raise
            raise first from None

    def _watched(self, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass readiness of the socket on, which is 0 where none came for a while."""
        try:
            wanted = next(waiting)
            since_seconds = time.monotonic()
            look_seconds = SILENT_SECONDS
            idle_words, idle_since_seconds = "", 0.0
            while True:
                ready = yield wanted
                now_seconds = time.monotonic()
                if ready:
                    since_seconds, look_seconds = now_seconds, SILENT_SECONDS
                    idle_words = ""
                elif now_seconds - since_seconds >= look_seconds:
                    words = self._asked()
                    if words is None:
                        raise psycopg.OperationalError("the server knows no such session")
                    since_seconds = time.monotonic()
                    look_seconds = SILENT_SECONDS if words else min(2 * look_seconds, LOOK_SECONDS_MAX)
                    if words != idle_words:
                        idle_words, idle_since_seconds = words, now_seconds
                    elif words and now_seconds - idle_since_seconds >= IDLE_SECONDS:
                        raise psycopg.OperationalError(
                            f"what was sent, or its answer, is lost: the server waits {words}"
                        )
                wanted = waiting.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                self._fault = error
            raise

    def _asked(self) -> str | None:
        if self.ask is None:
            raise SilentError(f"the server has not answered for {SILENT_SECONDS:g} s")
        return self.ask()


def _first_of(error: psycopg.Error) -> psycopg.Error:
    """Return why a pipeline was aborted, where psycopg's last words are only that it was.

    The statements behind a failed one are aborted without a reason. When the answer to the failed one comes at the end
    of the pipeline, psycopg raises its error, and then the abort of the others over it.
    """
    first = error.__context__
    if isinstance(error, psycopg.errors.PipelineAborted) and isinstance(first, psycopg.Error):
        return first
    return error


def activity(conninfo: str, name: str) -> str | None:
    """Return since when a server waits for the client of the session of this name; empty: it works, or does not say;
    None: it knows no such session. Raises errors of psycopg.
    """
    with WatchedConnection.connect(
        conninfo, autocommit=True, application_name=f"{name} asks"[:63], connect_timeout=QUESTION_SECONDS
    ) as asking:
        row = asking.execute(_ACTIVITY, (name,)).fetchone()
    if row is None:
        return None
    state, since = row
    return f"since {since}" if str(state).startswith("idle") else ""
