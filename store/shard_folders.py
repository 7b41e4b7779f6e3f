"""The data folder of a broker with several shards: a data folder for each, and how many there are.

    format         "sluiceway-cluster 1", the number of shards, and the first part of all message-ids
    shards/0007/   data folder of shard 7 (directory.py)

A folder of one shard has none of this: it is the data folder itself. Earlier versions refuse a folder of several, since
its `format` is not that of a store. The file is written last, when the folders of all shards are there, and never
again: names would lead to other shards.

Normative: FORMAT.md, "Several shards".
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from ..queues.shard_hash import SHARDS_MAX, is_shards_count
from .directory import DirectoryError, FormatError, check_owner, open_directory, told_of
from .folders import make_private_folder, sync_folder

SHARDS: Final = "shards"
"""Name of the folder with the shards."""
_BEGINNING: Final = b"sluiceway-cluster "
_LAYOUT: Final = re.compile(r"sluiceway-cluster 1\nshards (\d{1,4})\ntoken ([0-9a-f]{8})\n")
_LENGTH_MAX: Final = 256


class HasDataError(DirectoryError):
    """The folder has data already, so it can't be divided into shards any more."""


@attrs.frozen
class ShardFolders:
    """Data folder of a broker with several shards."""

    path: Path
    shards_count: int
    token: bytes
    """First part of every message-id, in all shards."""

    def folder(self, shard: int) -> Path:
        """Return the data folder of a shard."""
        return self.path / SHARDS / f"{shard:04}"

    def __iter__(self) -> Iterator[Path]:
        return map(self.folder, range(self.shards_count))


def look_for_shards(path: Path) -> ShardFolders | None:
    """Return the shards of a data folder; None: it is the folder of one shard, or is still to be made. Blocks. Raises
    DirectoryError if that can't be read, and FormatError for a number of shards that can't be.
    """
    path = Path(path)
    with told_of(path):
        try:
            with (path / "format").open("rb") as file:
                text = file.read(_LENGTH_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return None
    if not text.startswith(_BEGINNING):
        return None
    match = _LAYOUT.fullmatch(text.decode(errors="replace"))
    if match is None or not is_shards_count(int(match[1])) or match[1] == "1":
        raise FormatError(
            f"{path / 'format'} says {text.decode(errors='replace')!r}, which this version of Sluiceway can't read: it "
            f"knows folders of 2 to {SHARDS_MAX} shards, a power of two. Run the version that made the folder, or "
            "restore that file from a backup; a wrong number would lead names to other shards."
        )
    return ShardFolders(path, int(match[1]), match[2].encode())


def make_shards(path: Path, shards_count: int) -> ShardFolders | None:
    """Make the data folder of a broker with so many shards; for 1 the ordinary one (None), which may have data. Blocks.

    Raises ValueError for a number that is no power of two, HasDataError if there is a folder with data or with another
    number of shards, and other DirectoryErrors. What was made until then is finished by the next call.
    """
    if not is_shards_count(shards_count):
        raise ValueError(f"{shards_count} shards are not possible: choose a power of two, 1 to {SHARDS_MAX}")
    path = Path(path)
    there = look_for_shards(path)
    if there is not None:
        if there.shards_count == shards_count:
            return there
        raise HasDataError(
            f"{path} has {there.shards_count} shards already, and their number can't change. Choose another folder; "
            "messages get there by a client that receives them here and sends them there."
        )
    if shards_count == 1:
        open_directory(path).close()
        return None
    with told_of(path):
        if (path / "format").exists() or (path / "db").exists():
            raise HasDataError(
                f"{path} is the data folder of a broker with one shard, and can't be divided. Choose another folder; "
                "messages get there by a client that receives them here and sends them there."
            )
        if path.is_dir():
            check_owner(path)
        folders = ShardFolders(path, shards_count, secrets.token_hex(4).encode())
        make_private_folder(path / SHARDS)
    for folder in folders:
        open_directory(folder).close()
    with told_of(path):
        new = path / "format.new"
        with new.open("wb") as file:
            file.write(f"sluiceway-cluster 1\nshards {shards_count}\ntoken {folders.token.decode()}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        new.rename(path / "format")
        sync_folder(path)
    return folders
