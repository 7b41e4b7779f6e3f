"""Repairs a store: LevelDB's part if that can't be read, then record by record what the survey says.

Nothing is thrown away that somebody might want to look at: what can't be read goes to the attic, synced, before its
record is deleted. The bounds of the attic do not hold for a repair: better a full attic than the first finding gone.

Running it again does no harm, and neither does its end in the middle: each change makes a record what it should be.
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
from .check import CheckReport, check, database_fault, values_notes
from .faults import Fault
from .opening import check_version
from .records import Progress

if TYPE_CHECKING:
    from ..repair import RepairReport


@attrs.define
class Mended:
    """What a repair found and did."""

    found: CheckReport
    """As it was; with a dry run of a database that does not open, that and nothing else."""
    database: RepairReport | None = None
    """What was done to LevelDB's files."""
    done_count: int = 0
    """Faults that were mended."""
    aside_count: int = 0
    """Records that were moved to the attic."""
    left: CheckReport | None = None
    """How it is now; None after a dry run."""


def repair(
    directory: Directory, heads: HeadCodec, *, dry_run: bool = False, on_progress: Progress | None = None
) -> Mended:
    """Make a store whole again. `directory` is locked, its database closed. `dry_run`: only say what would be done.

    Raises EngineError, FormatError, and DirectoryError if the attic can't be written; what was done till then stays.
    """
    database: RepairReport | None = None
    unopened: Fault | None = None
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
            # What was found before LevelDB could not read on has been mended; the rest shows now.
            first, mended = mended, _mend(directory, engine, heads, dry_run, on_progress)
            mended.found.add_first(first.found)
            mended.done_count += first.done_count
            mended.aside_count += first.aside_count
        mended.database = database
        return mended
    finally:
        engine.close()


def _only(fault: Fault) -> CheckReport:
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

    def mend(fault: Fault) -> None:
        nonlocal done_count, aside_count
        if dry_run or not fault.changes:
            return
        for name, value in fault.aside:
            directory.attic_put(name, value)
            aside_count += 1
        engine.write(fault.changes, sync=False)
        done_count += 1

    large_folder = directory.large_path
    found = check(engine, heads, large_folder=large_folder, on_progress=on_progress, on_fault=mend)
    found.notes += values_notes(engine)
    mended = Mended(found, done_count=done_count, aside_count=aside_count)
    if not dry_run:
        engine.write([], sync=True)
        if not done_count:
            # As found; `found` itself gets what was found before added to it.
            mended.left = attrs.evolve(found, faults=list(found.faults), fault_counts=Counter(found.fault_counts))
        else:
            mended.left = check(engine, heads, large_folder=large_folder, on_progress=on_progress)
    return mended
