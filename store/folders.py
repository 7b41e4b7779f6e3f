"""Folders of a broker's data: made durably, and accessible to its user only; and their free space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o700
"""Mode of folders and files: only the user of the broker may read messages."""

OPENING_FREE_BYTES: Final = 24 << 20
"""Free space without which a database is not opened: LevelDB then writes its log into a table, and the log may hold as
much as the write buffer and the largest batch after it.
"""


def make_private_folder(folder: Path) -> None:
    """Make a folder and those of its parents that are missing, each for this user alone and synced into its parent.

    An existing folder keeps its mode, which may be an operator's decision; `sluiceway doctor` warns of it. Blocks.
    Raises OSError; folders made so far stay.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE_MODE, exist_ok=True)  # not `parents=True`: that gives parents the mode of the umask
        sync_folder(path.parent)
    if not missing:
        folder.mkdir(exist_ok=True)  # raises if a file is in the way


def sync_folder(folder: Path) -> None:
    """Sync a folder: entries created, renamed or removed in it are on the disk then. Blocks. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
