"""Opening of the database of a data folder; if LevelDB finds it damaged, it is repaired first, as little as possible.

1. The plain case: it opens, and its log is replayed. A log that just stops, as after a crash, is no damage.
2. Damage in the log only (a power cut may leave garbage at its end): it is opened once leaving out what can't be read.
   Costs no more than an opening, and loses nothing but batches of the last `write_buffer_bytes`.
3. Damage elsewhere (lists of tables, missing tables): LevelDB's repair reads every table and makes a new list of those
   that are whole, of what can be read of the others. That takes the time to read everything once, and the compactions
   after it the time to write it once or twice.

Before 2 and 3 the small files that describe the database are copied to the quarantine, the log included; after 3 the
damaged tables are moved there. Each is done once; remaining damage is left alone and reported.

Not here: damage inside a table that is only found when it is read. That raises CorruptionError when it is read; `mend`
(the command `sluiceway store repair`) drops the damaged blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from .binding import plyvel
from .engine import CorruptionError, EngineFailedError
from .leveldb import LevelDbEngine, LevelDbOptions, mapped_error, open_database, plyvel_settings, words_of
from .quarantine import Quarantine

_DESCRIBING: Final = re.compile(r"CURRENT|MANIFEST-\d+|LOG|LOG\.old|\d+\.log")
"""Files that describe the database, and its log: small, and enough to find out what happened."""

_LOST: Final = "lost"
"""Folder in which LevelDB's repair puts replaced files."""


@attrs.frozen
class RepairReport:
    """Report of a repair: the damage, and what was done about it; for the log."""

    cause: str
    """Message of LevelDB."""

    log_cut: bool
    """True: only what could not be read in the log was left out. False: the whole database was repaired."""

    kept: tuple[Path, ...]
    """Copies and damaged tables, now in the attic."""

    not_kept: tuple[Path, ...]
    """Files that are too large to be moved to quarantine; they stay where they were."""

    def __str__(self) -> str:
        done = "unreadable records at the end of its log were left out" if self.log_cut else "it was repaired"
        where = f"; the quarantine is {self.kept[0].parent}" if self.kept else ""
        return f"the store was damaged ({self.cause}): {done}{where}"


def open_mended(path: Path, attic: Quarantine, options: LevelDbOptions) -> tuple[LevelDbEngine, RepairReport | None]:
    """Open the database in this folder (create it if it does not exist), repaired if need be.

    Returns the engine, and what was done if it was damaged. Raises CorruptionError if it is damaged and the repair did
    not help, other EngineErrors if it can't be opened, or a damaged file can't be moved aside.
    """
    try:
        return LevelDbEngine(path, options), None
    except CorruptionError as error:
        cause = words_of(error.__cause__ or error)
    kept, not_kept = _copy_aside(path, attic)
    if _opens_without_the_unreadable(path, options):
        engine = _opened_or_nothing(path, options)
        if engine is not None:
            return engine, RepairReport(cause, log_cut=True, kept=tuple(kept), not_kept=tuple(not_kept))
    report = _repair(path, attic, options, cause, kept, not_kept)
    engine = _opened_or_nothing(path, options)
    if engine is None:
        raise CorruptionError(
            f"{path}: damaged ({cause}), and still so after a repair. Copies are in {attic.path}. Restore the folder "
            "from a backup, or check the disk and run `sluiceway store repair`."
        )
    return engine, report


def mend(path: Path, attic: Quarantine, options: LevelDbOptions, cause: str) -> RepairReport:
    """Repair the database in this folder, which no process has open, whether or not it looks damaged: read everything,
    and drop damaged blocks inside tables, too.

    `cause`: reason for the report. Raises EngineError if that fails; CorruptionError if LevelDB gave up.
    """
    kept, not_kept = _copy_aside(path, attic)
    return _repair(path, attic, options, cause, kept, not_kept)


def _opens_without_the_unreadable(path: Path, options: LevelDbOptions) -> bool:
    """Return whether the database opens when damage in its log is accepted. If so, the readable part of the log is in
    tables now.
    """
    try:
        open_database(path, options, paranoid=False).close()
    except plyvel.CorruptionError:
        return False
    except plyvel.Error as error:
        raise mapped_error(error, path, "opening") from error
    return True


def _opened_or_nothing(path: Path, options: LevelDbOptions) -> LevelDbEngine | None:
    try:
        return LevelDbEngine(path, options)
    except CorruptionError:
        return None  # the caller tries the next repair, or reports it


def _copy_aside(path: Path, attic: Quarantine) -> tuple[list[Path], list[Path]]:
    def copy(file: Path) -> Path | None:
        return attic.put(file.name, file.read_bytes())

    return _aside(path, copy, lambda file: _DESCRIBING.fullmatch(file.name) is not None)


def _aside(
    folder: Path, take: Callable[[Path], Path | None], wanted: Callable[[Path], bool]
) -> tuple[list[Path], list[Path]]:
    """Move the `wanted` files to the quarantine; returns those it kept, by their new paths, and the others."""
    kept: list[Path] = []
    not_kept: list[Path] = []
    try:
        for file in sorted(folder.iterdir()):
            if not wanted(file):
                continue
            place = take(file)
            if place is None:
                not_kept.append(file)
            else:
                kept.append(place)
    except OSError as error:
        raise EngineFailedError(
            f"{folder}: damaged, and its unreadable records can't be moved to quarantine: {error}. Make space or "
            "fix the permissions, then start again."
        ) from error
    return kept, not_kept


def _repair(
    path: Path, attic: Quarantine, options: LevelDbOptions, cause: str, kept: list[Path], not_kept: list[Path]
) -> RepairReport:
    try:
        # Paranoid: otherwise it takes damaged blocks as they are.
        plyvel.repair_db(str(path), paranoid_checks=True, **plyvel_settings(options))
    except plyvel.Error as error:
        raise mapped_error(error, path, "repairing") from error
    lost = path / _LOST
    if lost.is_dir():
        # LevelDB puts every log and list it has read here, damaged or not; of those there are copies already.
        more, too_large = _aside(lost, attic.adopt, lambda file: _DESCRIBING.fullmatch(file.name) is None)
        kept, not_kept = kept + more, not_kept + too_large
        for file in sorted(lost.iterdir()):
            if file not in not_kept:
                file.unlink()
    return RepairReport(cause, log_cut=False, kept=tuple(kept), not_kept=tuple(not_kept))
