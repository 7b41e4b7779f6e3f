"""Quarantine: damaged records and files that were moved aside, for analysis.

Files have a running number before their name, which shows their order and keeps names unique. Bounded in bytes and in
count: when it is full the oldest are removed. A file larger than the whole quarantine is not kept.

Not here: finding and logging damage.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

ATTIC_BYTES_MAX: Final = 64 * 1024 * 1024
"""Some hundred damaged chunks, or the log and the lists of tables of several repairs; nothing that fills a disk."""

ATTIC_COUNT_MAX: Final = 1000

_NUMBERED: Final = re.compile(r"(\d{6,})-(.+)", re.DOTALL)
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._=+@-]")
_NAME_LENGTH_MAX: Final = 100


class Quarantine:
    """Folder of files moved aside. All calls block; one thread at a time. `path`: the folder, which exists."""

    __slots__ = ("_bytes_max", "_count_max", "path")

    def __init__(self, path: Path, *, bytes_max: int = ATTIC_BYTES_MAX, count_max: int = ATTIC_COUNT_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._count_max = count_max

    def put(self, name: str, data: bytes) -> Path | None:
        """Keep `data`, synced, under `name`; characters that don't fit into file names become "_".

        Returns its path, or None if it is larger than the whole quarantine. Raises OSError if it can't be written;
        nothing of it is left then.
        """
        path = self._place(name, len(data))
        if path is None:
            return None
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def adopt(self, file: Path) -> Path | None:
        """Move a file of the same file system here, under its own name.

        Returns its path, or None if it is larger than the whole quarantine; it stays where it was then. Raises OSError
        if it can't be moved; it stays where it was then, too.
        """
        path = self._place(file.name, file.stat().st_size)
        return None if path is None else file.rename(path)

    def files(self) -> list[Path]:
        """Files in quarantine, the oldest first."""
        return [path for _number, path in self._numbered()]

    def _place(self, name: str, size_bytes: int) -> Path | None:
        """Return a free path for a file of this size, after removing the oldest files if need be."""
        if size_bytes > self._bytes_max:
            return None
        there = [(number, path, path.stat().st_size) for number, path in self._numbered()]
        held_bytes = sum(size for _number, _path, size in there)
        held_count = len(there)
        for _number, path, size in there:
            if held_bytes + size_bytes <= self._bytes_max and held_count < self._count_max:
                break
            path.unlink()
            held_bytes -= size
            held_count -= 1
        number = there[-1][0] + 1 if there else 1
        return self.path / f"{number:06d}-{_UNFIT.sub('_', name)[:_NAME_LENGTH_MAX] or 'unnamed'}"

    def _numbered(self) -> list[tuple[int, Path]]:
        """Files that have a number, in order of it; other files are left alone."""
        found = [(_NUMBERED.fullmatch(path.name), path) for path in self.path.iterdir()]
        return sorted((int(match[1]), path) for match, path in found if match is not None)
