"""A data folder and its database, opened by a tool in place of a broker.

The lock is the broker's own, so a tool never works on a folder in use by a broker or another tool.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs

from .. import keys
from ..directory import Directory, FormatError, MissingError, open_directory, told_of
from ..engine import CorruptionError, Engine
from ..states import decode_format, encode_format
from ..values import ValueLog

if TYPE_CHECKING:
    from ..repair import RepairReport


@attrs.define
class OpenStore:
    """A locked folder with its database open. A context manager that closes both."""

    directory: Directory
    engine: ValueLog
    repaired: RepairReport | None
    """Repair of LevelDB's part, if that was damaged."""

    def close(self) -> None:
        """Close both; may be called again."""
        try:
            self.engine.close()
        finally:
            self.directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def open_folder(path: Path, *, create: bool = False) -> Directory:
    """Lock the folder of a store; unlike `open_directory` refuse an empty folder, unless `create`.

    Raises DirectoryError: see `open_directory`.
    """
    path = Path(path)
    with told_of(path):
        is_strange = path.is_dir() and not (path / "format").exists() and not (path / "db").exists()
    if is_strange and not create:
        raise MissingError(
            f"{path} holds no store: it was never a broker's data folder. Name the right one (broker.data_dir, or "
            "--data)."
        )
    return open_directory(path, create=create)


def open_store(path: Path, *, create: bool = False, mend: bool = True) -> OpenStore:
    """Open a store for a tool. `create`: make it if missing. `mend`: repair what LevelDB can't open as a broker would
    (see store/repair.py); False: raise.

    Raises DirectoryError, EngineError and StoreFormatError, with nothing left open.
    """
    directory = open_folder(path, create=create)
    try:
        repaired: RepairReport | None = None
        if mend:
            engine, repaired = directory.open_engine()
        else:
            engine = directory.open_undamaged()
        try:
            check_version(directory, engine)
        except BaseException:
            engine.close()
            raise
    except BaseException:
        directory.close()
        raise
    return OpenStore(directory, engine, repaired)


def check_version(directory: Directory, engine: Engine) -> None:
    """Check that the records are of a known version, or have none (a damaged store). Raises FormatError."""
    # The survey finds damage; refuse only a record that reads as another version.
    try:
        value = engine.get(keys.META_FORMAT_KEY)
    except CorruptionError:
        return
    if value is None or len(value) != len(encode_format(keys.FORMAT_VERSION)):
        return
    version = decode_format(value)
    if not keys.FORMAT_VERSION_MIN <= version <= keys.FORMAT_VERSION:
        raise FormatError(
            f"the records in {directory.database_path} have format {version}, this version of Sluiceway knows format "
            f"{keys.FORMAT_VERSION}. Use the version of Sluiceway that wrote them."
        )
