"""Logs in an engine that several threads may call, such as a database: their names, identities and ends.

A log is a record under its name (`LogHead`) and its extents (engine_log.py). It is deleted in two steps: its record
gets a name that no log can have, and in the same batch its own is gone; then its extents go, some at a time. A start
goes on with the second step.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs

from ..queues.logs.pending_records import PendingRecords
from ..queues.logs.ports import DiskError
from ..queues.logs.table import LogError, Opened, check_name
from ..queues.storage import SHARED
from .engine import Engine, delete, delete_range, put
from .engine_log import DOOMED, REMOVED_COUNT, EngineLog, Hole, LogFormatError, LogHead, telling
from .extents import ExtentCache
from .keys import LOG, extents_range, family_range, log_key, parse_log_key

BATCH_BYTES_MAX: Final = 64 << 20
"""Size of the largest batch of records: it is one value of the database, which is in memory there several times."""


@attrs.frozen
class LogReport:
    """Result of opening a log."""

    holes: tuple[Hole, ...]

    @property
    def needs_telling(self) -> bool:
        """Whether records are missing."""
        return bool(self.holes)

    def __str__(self) -> str:
        return ", ".join(
            f"no records at {each.from_index} to {each.to_index - 1} ({each.reason})" for each in self.holes
        )


class EngineLogs:
    """All logs of one shard. Satisfies `sluiceway.queues.logs.table.Cabinet`. Nothing here blocks but where it says
    so.
    """

    def __init__(
        self,
        engine: Engine,
        cache: ExtentCache,
        *,
        now_ms: Callable[[], int],
        batch_bytes_max: int = BATCH_BYTES_MAX,
        extent_bytes: int | None = None,
    ) -> None:
        """Take an open engine, which the caller closes after this. `extent_bytes`: for tests."""
        self._engine = engine
        self._cache = cache
        self._now_ms = now_ms
        self._batch_bytes_max = min(batch_bytes_max, BATCH_BYTES_MAX)
        self._extent_bytes = extent_bytes
        self._logs: dict[str, EngineLog] = {}
        self._stored: set[str] = set()
        """Names of logs that are stored, open or not."""
        self._doomed: dict[str, str] = {}
        """Identities of logs that are being deleted, by their names."""

    keeps: Final = True
    """The engine may have logs of an earlier run."""

    def names(self) -> list[str]:
        """Return the names of the stored logs, and end deletions of an earlier run. Blocks. Raises DiskError."""
        names: list[str] = []
        doomed: list[str] = []
        with telling():
            for key in self._engine.iterate_keys(*family_range(LOG)):
                name = parse_log_key(key)
                if name.startswith(DOOMED):
                    doomed.append(name)
                    continue
                with suppress(LogError):
                    check_name(name)
                    names.append(name)
        for name in doomed:
            self._remove_extents(name.removeprefix(DOOMED))
        self._stored.update(names)
        return names

    def open(self, name: str) -> Opened:
        """Open a log, or make it. Blocks. Raises DiskError."""
        return self._open(name, "")

    def begin(self, name: str) -> Opened:
        """Return a log that is yet to be made, by its `make`. Raises DiskError for one that is stored, and could not be
        opened at the start.
        """
        if name in self._stored:
            raise DiskError(f"{name} is stored, and could not be opened when the broker started: start it again")
        log_id = secrets.token_hex(6)
        return Opened(
            PendingRecords(self._batch_bytes_max), log_id, lambda: self._open(name, log_id).records, durability=SHARED
        )

    def _open(self, name: str, log_id: str) -> Opened:
        """`log_id`: identity of a log that is to be made; empty: open the stored one, or make one."""
        with telling():
            value = self._engine.get(log_key(name))
            if value is not None:
                head = LogHead.decoded(name, value)
                if log_id not in ("", head.log_id):
                    raise DiskError(f"{name} is stored already: start the broker again to read it")
            else:
                head = LogHead(log_id or secrets.token_hex(6))
                self._engine.write([put(log_key(name), head.encoded())], sync=True)
        log = EngineLog(
            self._engine,
            self._cache,
            name,
            head,
            now_ms=self._now_ms,
            batch_bytes_max=self._batch_bytes_max,
            extent_bytes=self._extent_bytes,
        )
        self._logs[name] = log
        self._stored.add(name)
        return Opened(log, head.log_id, durability=SHARED)

    def take_away(self, name: str) -> None:
        """Store the record of a log under a name that no start finds. Blocks. Raises DiskError: then nothing has
        changed for those who have the log open.
        """
        log = self._logs.get(name)
        if name in self._doomed or (log is None and name not in self._stored):
            return
        try:
            with telling():
                value = self._engine.get(log_key(name))
                head = LogHead.decoded(name, value) if value is not None else None
                log_id = log.log_id if log is not None else "" if head is None else head.log_id
                if not log_id:
                    return
                doomed = put(log_key(DOOMED + log_id), (head or LogHead(log_id)).encoded())
                self._engine.write([delete(log_key(name)), doomed], sync=True)
        except DiskError as error:
            if log is not None:
                log.head_in_doubt()
            raise DiskError(f"{name} can't be deleted, and stays as it is: {error}. Delete the log again.") from error
        self._doomed[name] = log_id
        self._stored.discard(name)

    def remove(self, name: str) -> None:
        """Close a log and delete its records; `take_away` first, if that was not done. Blocks. Raises DiskError."""
        log = self._logs.get(name)
        if log is not None:
            log.close()
        self.take_away(name)
        self._logs.pop(name, None)
        log_id = self._doomed.pop(name, "")
        if log_id:
            try:
                self._remove_extents(log_id)
            except DiskError as error:
                raise DiskError(
                    f"{name} is deleted, but its records still take room: {error}. The broker tries it again when it "
                    "starts."
                ) from error

    def _remove_extents(self, log_id: str) -> None:
        try:
            start, end = extents_range(bytes.fromhex(log_id))
        except ValueError:
            raise LogFormatError(f"the record of a deleted log is damaged: {log_id[:40]!r}") from None
        with telling():
            while True:
                stop = end
                for count, key in enumerate(self._engine.iterate_keys(start, end)):
                    if count == REMOVED_COUNT:
                        stop = key
                        break
                changes = [delete_range(start, stop)]
                if stop == end:
                    changes.append(delete(log_key(DOOMED + log_id)))
                self._engine.write(changes, sync=False)
                if stop == end:
                    return

    def mark(self) -> None:
        """Do nothing: a database is known by what is in it."""

    def reports(self) -> Mapping[str, LogReport]:
        """Reports of opening, by log."""
        return {name: LogReport(tuple(log.gaps)) for name, log in self._logs.items()}

    def close(self) -> list[str]:
        """Close all logs; returns no errors: all that was appended is stored."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        return []
