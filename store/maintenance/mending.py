"""Repair of a store: LevelDB's part if that can't be read, then record by record as the survey says.

Nothing of possible interest is thrown away: unreadable records go to the attic, synced, before they are deleted. The
bounds of the attic do not hold for a repair: better a full attic than a lost finding. A repair may be repeated or
interrupted: each change is idempotent.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ...flow.bounds import UNBOUNDED
from ..chunks import HeadCodec
from ..directory import Directory
from ..engine import CorruptionError
from ..quarantine import Quarantine
from ..values import ValueLog
from .bodies import FolderBodies
from .check import CheckReport, check, database_fault, values_notes
from .faults import StoreFault
from .opening import check_version
from .records import Progress

if TYPE_CHECKING:
    from ..repair import RepairReport


@attrs.define
class Mended:
    """Result of a repair."""

    found: CheckReport
    """Report before the repair; after a dry run of a database that does not open, that fault only."""
    database: RepairReport | None = None
    """Repair of LevelDB's files."""
    done_count: int = 0
    """Number of faults repaired."""
    aside_count: int = 0
    """Number of records moved to quarantine."""
    left: CheckReport | None = None
    """Report after the repair; None after a dry run."""


def repair(
    directory: Directory, heads: HeadCodec, *, dry_run: bool = False, on_progress: Progress | None = None
) -> Mended:
    """Repair a store. `directory` is locked, its database closed. `dry_run`: only report the repairs.

    Raises EngineError, FormatError, and DirectoryError if the attic can't be written; repairs made before stay.
    """
    database: RepairReport | None = None
    unopened: StoreFault | None = None
    try:
        engine = directory.open_undamaged()
    except CorruptionError as error:
        unopened = database_fault(error)
        if dry_run:
            return Mended(_only(unopened))
        database = directory.repair()
        engine = directory.open_undamaged(keeps_all=True)
    try:
        check_version(directory, engine)
        mended = _mend(directory, engine, heads, dry_run, on_progress)
        if unopened is not None:
            mended.found.add_first(_only(unopened))
        elif not mended.found.complete and not dry_run:
            engine.close()
            database = directory.repair()
            engine = directory.open_undamaged(keeps_all=True)
            # Faults found before LevelDB stopped reading were repaired; the rest shows now.
            first, mended = mended, _mend(directory, engine, heads, dry_run, on_progress)
            mended.found.add_first(first.found)
            mended.done_count += first.done_count
            mended.aside_count += first.aside_count
        mended.database = database
        return mended
    finally:
        engine.close()


def _only(fault: StoreFault) -> CheckReport:
    report = CheckReport(complete=False)
    report.add(fault)
    return report


def _mend(
    directory: Directory,
    engine: ValueLog,
    heads: HeadCodec,
    dry_run: bool,
    on_progress: Progress | None,
) -> Mended:
    directory.attic = Quarantine(directory.attic.path, bytes_max=UNBOUNDED, count_max=UNBOUNDED)
    done_count = aside_count = 0

    def mend(fault: StoreFault) -> None:
        nonlocal done_count, aside_count
        if dry_run or not fault.changes:
            return
        for name, value in fault.aside:
            directory.attic_put(name, value)
            aside_count += 1
        engine.write(fault.changes, sync=False)
        done_count += 1

    bodies = FolderBodies(directory.large_path)
    found = check(engine, heads, bodies=bodies, on_progress=on_progress, on_fault=mend)
    found.notes += values_notes(engine)
    mended = Mended(found, done_count=done_count, aside_count=aside_count)
    if not dry_run:
        engine.write([], sync=True)
        if not done_count:
            # A copy: earlier faults are added to `found` itself later.
            mended.left = attrs.evolve(found, faults=list(found.faults), fault_counts=Counter(found.fault_counts))
        else:
            mended.left = check(engine, heads, bodies=bodies, on_progress=on_progress)
    return mended
