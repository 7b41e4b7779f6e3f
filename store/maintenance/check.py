"""The survey of a store as a report: what is in it, and what is wrong with it. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from store.chunks import HeadCodec
from store.engine import CorruptionError, Engine
from store.keys import FORMAT_VERSION
from store.maintenance.faults import Fault, QueueCount
from store.maintenance.opening import open_store
from store.maintenance.records import Progress, of_total
from store.maintenance.survey import Survey

FAULTS_KEPT_MAX: Final = 1_000
"""Faults that a report lists one by one; the others are counted. A disk full of damage is no longer news."""

BY_LEVELDB: Final = (
    "LevelDB repairs its files; what can't be read of them is moved to the attic. What is wrong behind this shows then"
)


@attrs.define
class CheckReport:
    """What a check found."""

    queues: list[QueueCount] = attrs.field(factory=list)
    durables_count: int = 0
    subscriptions_count: int = 0
    """Those of the metadata: groups of logs."""
    faults: list[Fault] = attrs.field(factory=list)
    """At most FAULTS_KEPT_MAX."""
    fault_counts: Counter[str] = attrs.field(factory=Counter)
    """All of them, by kind."""
    lost_count: int = 0
    """Messages that are lost by them, as far as one can know."""
    notes: list[str] = attrs.field(factory=list)
    clean: bool = True
    """The last broker stopped in order."""
    complete: bool = True
    """All was read: False if LevelDB could not read on."""
    size_bytes: int = 0
    """On disk, about."""

    @property
    def messages_count(self) -> int:
        """Alive."""
        return sum(queue.messages_count for queue in self.queues)

    def add(self, fault: Fault) -> None:
        """One more fault; the values that go with it are not kept."""
        self.fault_counts[fault.kind] += 1
        self.lost_count += fault.lost_count
        if len(self.faults) < FAULTS_KEPT_MAX:
            self.faults.append(attrs.evolve(fault, changes=(), aside=()))

    def add_first(self, earlier: CheckReport) -> None:
        """What was found before that counts as found with this."""
        self.faults = [*earlier.faults, *self.faults][:FAULTS_KEPT_MAX]
        self.fault_counts += earlier.fault_counts
        self.lost_count += earlier.lost_count

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "format": FORMAT_VERSION,
            "clean": self.clean,
            "complete": self.complete,
            "size_bytes": self.size_bytes,
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


def database_fault(error: CorruptionError) -> Fault:
    """What LevelDB itself can't read."""
    return Fault("database", "LevelDB", str(error), BY_LEVELDB)


def check_folder(path: Path, heads: HeadCodec, *, on_progress: Progress | None = None) -> CheckReport:
    """Check the store in this folder. That it does not open because it is damaged is in the report.

    Raises DirectoryError, FormatError, and EngineError as `check` does.
    """
    try:
        with open_store(path, mend=False) as store:
            return check(store.engine, heads, large_folder=store.directory.large_path, on_progress=on_progress)
    except CorruptionError as error:
        report = CheckReport(complete=False)
        report.add(database_fault(error))
        return report


def check(
    engine: Engine,
    heads: HeadCodec,
    *,
    large_folder: Path | None = None,
    on_progress: Progress | None = None,
    on_fault: Callable[[Fault], None] | None = None,
) -> CheckReport:
    """Read all of a store. `on_fault` gets each fault with its changes, as it is found; the other arguments are those
    of `Survey`.

    Damage that LevelDB finds ends it and is in the report. Raises EngineError for whatever else keeps it from reading.
    O(bytes).
    """
    report = CheckReport()
    survey = Survey(engine, heads, large_folder=large_folder)
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
