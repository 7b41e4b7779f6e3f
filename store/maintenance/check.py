"""The survey of a store as a report: contents and faults. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from ...flow.words import count_in_words, size_in_words
from ..chunks import HeadCodec
from ..directory import Directory, told_of
from ..engine import CorruptionError, Engine
from ..keys import FORMAT_VERSION_MIN
from ..pages import measure
from ..values import ValueLog
from .bodies import Bodies, FolderBodies
from .faults import QueueCount, StoreFault
from .opening import open_store
from .records import Progress, of_total
from .survey import StoreSurvey

FAULTS_KEPT_MAX: Final = 1_000
"""Number of faults that a report lists one by one; the others are only counted."""

BY_LEVELDB: Final = (
    "LevelDB repairs its files; their unreadable parts are moved to quarantine. Faults behind this show afterwards"
)


@attrs.define
class CheckReport:
    """Result of a check."""

    format_version: int = FORMAT_VERSION_MIN
    """Version of the folder."""
    queues: list[QueueCount] = attrs.field(factory=list)
    durables_count: int = 0
    subscriptions_count: int = 0
    """Number of subscriptions in the metadata: groups of logs."""
    faults: list[StoreFault] = attrs.field(factory=list)
    """Faults, at most FAULTS_KEPT_MAX."""
    fault_counts: Counter[str] = attrs.field(factory=Counter)
    """Number of all faults, by kind."""
    lost_count: int = 0
    """Number of messages lost, as far as known."""
    notes: list[str] = attrs.field(factory=list)
    clean: bool = True
    """Whether the last broker stopped in order."""
    complete: bool = True
    """Whether everything was read: False if LevelDB could not read on."""
    size_bytes: int = 0
    """Size on disk, about; without `paged_bytes`."""
    paged_bytes: int = 0
    """Bytes of page-out files left by a broker that was killed; no later broker reads them."""

    @property
    def messages_count(self) -> int:
        """Number of unsettled messages."""
        return sum(queue.messages_count for queue in self.queues)

    def add(self, fault: StoreFault) -> None:
        """Add a fault, without its values."""
        self.fault_counts[fault.kind] += 1
        self.lost_count += fault.lost_count
        if len(self.faults) < FAULTS_KEPT_MAX:
            self.faults.append(attrs.evolve(fault, changes=(), aside=()))

    def add_first(self, earlier: CheckReport) -> None:
        """Put the faults of an earlier report before these."""
        self.faults = [*earlier.faults, *self.faults][:FAULTS_KEPT_MAX]
        self.fault_counts += earlier.fault_counts
        self.lost_count += earlier.lost_count

    def to_dict(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "format": self.format_version,
            "clean": self.clean,
            "complete": self.complete,
            "size_bytes": self.size_bytes,
            "paged_bytes": self.paged_bytes,
            "messages_count": self.messages_count,
            "durables_count": self.durables_count,
            "subscriptions_count": self.subscriptions_count,
            "queues": [
                {"name": queue.name, "kind": queue.kind}
                | attrs.asdict(queue, filter=lambda field, _value: field.name not in ("name", "topic"))
                for queue in self.queues
            ],
            "faults_count": self.fault_counts.total(),
            "fault_counts": dict(self.fault_counts),
            "lost_count": self.lost_count,
            "faults": [
                attrs.asdict(fault, filter=lambda field, _value: field.name not in ("changes", "aside"))
                for fault in self.faults
            ],
            "notes": self.notes,
        }


def database_fault(error: CorruptionError) -> StoreFault:
    """Return the fault for damage that LevelDB can't read."""
    return StoreFault("database", "LevelDB", str(error), BY_LEVELDB)


def check_folder(path: Path, heads: HeadCodec, *, on_progress: Progress | None = None) -> CheckReport:
    """Check the store in this folder. A database too damaged to open is in the report.

    Raises DirectoryError, FormatError, and EngineError as `check` does.
    """
    try:
        with open_store(path, mend=False) as store:
            bodies = FolderBodies(store.directory.large_path)
            report = check(store.engine, heads, bodies=bodies, on_progress=on_progress)
            report.notes += values_notes(store.engine)
            _look_at_pages(report, store.directory)
            report.format_version = store.directory.format_version
            if useless_bytes := store.engine.useless_bytes:
                store.engine.find_useless()
                because = store.engine.kept_because
                then = "the next start gives them back" if because is None else f"kept, for {because}"
                report.notes.append(f"{size_in_words(useless_bytes)} in values/ that no message has: {then}")
            return report
    except CorruptionError as error:
        report = CheckReport(complete=False)
        report.add(database_fault(error))
        return report


def values_notes(engine: ValueLog) -> list[str]:
    """Return why large values could not be read in a survey: missing files and bad sectors."""
    missing = "mount or restore it, and nothing is lost; a repair gives up what lay there"
    unreadable = "a repair moves its readable part to quarantine"
    return [
        *[f"{found}: {missing}" for found in engine.missing],
        *[f"{found} Copy the data folder to another disk first; {unreadable}" for found in engine.unreadable],
    ]


def _look_at_pages(report: CheckReport, directory: Directory) -> None:
    with told_of(directory.paged_path):
        sizes = measure(directory.paged_path)
    report.paged_bytes = sum(sizes)
    if sizes:
        report.notes.append(
            f"{count_in_words(len(sizes), 'file')} of {size_in_words(report.paged_bytes)} in {directory.paged_path}: "
            "messages that were not persistent, left by a broker that was killed. The next start removes them"
        )


def check(
    engine: Engine,
    heads: HeadCodec,
    *,
    bodies: Bodies | None = None,
    on_progress: Progress | None = None,
    on_fault: Callable[[StoreFault], None] | None = None,
) -> CheckReport:
    """Read a whole store. `on_fault` gets each fault with its changes, as it is found; the other arguments are those of
    `StoreSurvey`.

    Damage that LevelDB finds ends the check and is in the report. Raises EngineError if reading fails otherwise.
    O(bytes).
    """
    report = CheckReport()
    survey = StoreSurvey(engine, heads, bodies=bodies)
    try:
        survey.on_progress = of_total(on_progress, engine)
        for fault in survey.faults():
            report.add(fault)
            if on_fault is not None:
                on_fault(fault)
    except CorruptionError as error:
        report.complete = False
        report.add(database_fault(error))
    report.queues = sorted(survey.queues.values(), key=lambda queue: (queue.topic, queue.name, queue.priority))
    report.durables_count = len(survey.durables)
    report.subscriptions_count = survey.metadata.subscriptions_count
    report.notes = survey.notes
    report.clean = survey.clean
    report.size_bytes = engine.size_bytes()
    return report
