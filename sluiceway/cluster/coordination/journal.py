"""File of the records and sessions of the coordination service of one host: a JSON object on each line, synced before
an answer goes out.

The file is written anew at the start and when it has grown to a multiple of its contents. A last line without its end
is what a crash left, and ignored: no answer went out for it. The lock on the file lets one service at a time use it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .messages import MessageError, decoded
from .service import Change

REWRITE_BYTES_MIN: Final = 1 << 20


class JournalError(Exception):
    """The file can't be used. The message says why, and what helps."""


class Journal:
    """Changes in a file. Not thread-safe; `append` blocks for a sync."""

    def __init__(self, path: Path) -> None:
        """Open the file, and lock it. Raises JournalError."""
        self._path = path
        self._rewrite_at_bytes = REWRITE_BYTES_MIN
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"the records of the cluster can't be opened: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise JournalError(
                f"{path} is used by another supervisor: stop that one, or give this one another folder"
            ) from error
        self._file = -1
        self._size_bytes = 0

    def read(self) -> list[Change]:
        """Return all changes. Raises JournalError."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"the records of the cluster can't be read: {error}") from error
        *lines, _torn = data.split(b"\n")
        found: list[Change] = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(decoded(line))
            except MessageError as error:
                raise JournalError(
                    f"line {number} of {self._path} is damaged ({error}). Epochs of shards may not go back: "
                    "restore the file from a copy"
                ) from error
        return found

    def rewrite(self, changes: Iterable[Change]) -> None:
        """Replace the contents. Raises JournalError."""
        data = _lines(changes)
        new = self._path.with_name(self._path.name + ".new")
        try:
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._write(file, data)
            os.replace(new, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise JournalError(f"the records of the cluster can't be written: {error}") from error
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._size_bytes = len(data)
        self._rewrite_at_bytes = max(REWRITE_BYTES_MIN, 4 * len(data))

    @property
    def wants_rewrite(self) -> bool:
        """Whether most of the file is about the past."""
        return self._size_bytes > self._rewrite_at_bytes

    def append(self, changes: Iterable[Change]) -> None:
        """Add changes, and sync. Raises JournalError."""
        data = _lines(changes)
        try:
            self._write(self._file, data)
        except OSError as error:
            raise JournalError(f"the records of the cluster can't be written: {error}") from error
        self._size_bytes += len(data)

    def close(self) -> None:
        """Close the file, and let go of the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @staticmethod
    def _write(file: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)


def _lines(changes: Iterable[Change]) -> bytes:
    return b"".join(json.dumps(change, separators=(",", ":")).encode() + b"\n" for change in changes)
