"""Marks in folders that may be disks of their own: whether a folder is still the same one.

    large/sluiceway.mark    a name, made once at random; so in logs/, too
    marks                   of the data folder: "large NAME", a line each

A folder is marked before the first thing is written there that must outlive the broker. From then on a start without
the mark is refused: the disk is not mounted, or the folder was not wholly restored, and a broker that continued would
miss its contents, and write to the folder beneath. A copy or a backup of the data folder has both files, so that it is
the same at any place; device and inode, which differ then, count within one run only.

An empty mark is an operator's statement that the contents are lost: it gets a name like a new one. A mark that the data
folder does not know (a crash came between the two files) is adopted. Folders of earlier versions have no mark: until
they are marked their contents are not checked.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from pathlib import Path
from typing import Final

from .folders import sync_folder

MARK: Final = "sluiceway.mark"
"""Name of the mark file in a marked folder. No body and no log has a name with a dot."""
KNOWN: Final = "marks"
"""Name of the list of marks in the data folder."""
_NAME_BYTES: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{16}")
_LENGTH_MAX: Final = 4096


class OtherFolderError(Exception):
    """Another folder is where the broker's folder was. The message says what to do."""


class Marks:
    """The marks of one data folder, which exists and is locked. All methods block, and raise OSError."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._changing = threading.Lock()

    def known(self) -> dict[str, str]:
        """Return the names that folders must have."""
        pairs = [line.split() for line in _text(self._data / KNOWN).splitlines()]
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def check(self, folder: str, holds: str) -> None:
        """Check that `folder` is the one that was marked, if it was marked. `holds`: its contents, for the error.

        Raises OtherFolderError if another folder, or none, is in its place.
        """
        name = self.known().get(folder)
        path = self._data / folder
        if name is None or self._found(folder) in (name, ""):
            return
        what = "has the mark of another one" if (path / MARK).exists() else "has no mark"
        if not path.exists():
            what = "is missing"
        raise OtherFolderError(
            f"{path}, which has {holds}, {what}: it is not the folder that the broker has written to. Mount the disk "
            f"that has it, or bring it back from a backup; or, if all that was in it may be lost, make an empty file "
            f"{path / MARK}: then the folder is used as it is."
        )

    def mark(self, folder: str) -> None:
        """Mark `folder`, durably when this returns; `check` accepts no other one from now on. Does nothing if it is
        marked.
        """
        with self._changing:
            known = self.known()
            found = self._found(folder)
            if found and known.get(folder) == found:
                return
            if found is None or not _NAME.fullmatch(found):
                found = secrets.token_hex(_NAME_BYTES)
            # One that is there, too: a crash may have come before its folder was synced.
            _replace(self._data / folder / MARK, f"{found}\n")
            known[folder] = found
            _replace(self._data / KNOWN, "".join(f"{each} {name}\n" for each, name in sorted(known.items())))

    def is_there(self, folder: str) -> bool:
        """Return whether `folder` has a mark, even an empty one."""
        return self._found(folder) is not None

    def _found(self, folder: str) -> str | None:
        """Return the mark of a folder: a name, empty, or "?" for a foreign one; None: there is no such file."""
        try:
            text = _text(self._data / folder / MARK, must_exist=True).strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return text if not text or _NAME.fullmatch(text) else "?"


class MarkedFolder:
    """One marked folder, for the time of one run."""

    def __init__(self, marks: Marks, path: Path) -> None:
        self._marks = marks
        self._identity: tuple[int, int] | None = None
        """Device and inode, as found first."""
        self._is_marked = False
        self.path = path

    @property
    def has_mark(self) -> bool:
        return self._marks.is_there(self.path.name)

    def check(self) -> None:
        """Check that the folder is the one that was found first: in another one, new files would be out of sight, and
        existing ones missing. Raises OSError if not.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            if self._identity is None:
                return  # the folder is yet to be made
            raise
        if self._identity is None:
            self._identity = (found.st_dev, found.st_ino)
        if self._identity != (found.st_dev, found.st_ino):
            raise OSError(
                errno.ESTALE,
                "it is another folder than at the start. If a disk belongs there, mount it, or start the broker again",
                str(self.path),
            )

    def before_writing(self) -> None:
        """Check the folder and mark it; to be called before each write to it. The folder exists. Raises OSError."""
        self.check()
        if not self._is_marked:
            self._marks.mark(self.path.name)
            self._is_marked = True


def _text(path: Path, *, must_exist: bool = False) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LENGTH_MAX).decode("latin-1")
    except FileNotFoundError:
        if must_exist:
            raise
        return ""


def _replace(path: Path, text: str) -> None:
    """Write a file atomically and durably: a reader never finds a part of it."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_folder(path.parent)
