"""Results of runs, and their JSON: measurements, with the machine and the versions.

A file whose name ends in `.xz` is compressed. The files behind docs/performance.md, in perf/measured, are compressed.
"""

from __future__ import annotations

import json
import lzma
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from attrs import asdict, field, frozen

FORMAT = 1
COMPRESSED = ".xz"


@frozen(slots=True)
class Measurement:
    """One run of one scenario against one broker. `figures` are keyed by `perf.reports.figures.FIGURES`; a run with
    `faults` broke a promise (lost, doubled or disordered messages, a closed connection) and its figures count for
    nothing."""

    scenario: str
    peer: str
    run: int
    figures: dict[str, float] = field(factory=dict)
    faults: tuple[str, ...] = ()


@frozen(slots=True)
class Results:
    """All measurements of one call, with all that is needed to judge them later."""

    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    measurements: tuple[Measurement, ...]

    def peers(self) -> list[str]:
        """The brokers measured, in the order in which they first appear."""
        return list(dict.fromkeys(measurement.peer for measurement in self.measurements))

    def scenarios(self) -> list[str]:
        """The scenarios measured, in the order in which they first appear."""
        return list(dict.fromkeys(measurement.scenario for measurement in self.measurements))

    def runs(self, scenario: str, peer: str) -> list[Measurement]:
        """Return the runs of one broker in one scenario, faulty ones included."""
        return [one for one in self.measurements if one.scenario == scenario and one.peer == peer]

    def medians(self, scenario: str, peer: str) -> dict[str, float]:
        """The median of every figure over the runs without faults; empty where there is none."""
        sound = [run.figures for run in self.runs(scenario, peer) if not run.faults]
        names = dict.fromkeys(name for figures in sound for name in figures)
        return {name: median(figures[name] for figures in sound if name in figures) for name in names}


def describe_machine() -> dict[str, str]:
    """Return what this machine is, as far as it bears on speed."""
    cpu = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open() as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        cpu = names[0] if names else cpu
    except FileNotFoundError:
        cpu += " (no /proc/cpuinfo on this system)"
    return {
        "cpu": cpu,
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def save(results: Results, path: Path) -> None:
    """Write the results as JSON, making the folder where it is missing. The file is replaced in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, **asdict(results)}
    data = (json.dumps(document, indent=1) + "\n").encode()
    beside = path.with_suffix(path.suffix + ".part")
    beside.write_bytes(lzma.compress(data) if path.suffix == COMPRESSED else data)
    beside.replace(path)


def load(path: Path) -> Results:
    """Read what `save` wrote.

    Raises ValueError: the file is of another format, or is no result file.
    """
    try:
        data = path.read_bytes()
        document: dict[str, Any] = json.loads(lzma.decompress(data) if path.suffix == COMPRESSED else data)
    except (lzma.LZMAError, EOFError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} can't be read as results: {error}") from None
    if document.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is not a result file of format {FORMAT}: measure again with this version")
    measurements = tuple(Measurement(**{**one, "faults": tuple(one["faults"])}) for one in document.pop("measurements"))
    return Results(measurements=measurements, **document)


def merge(parts: list[Results]) -> Results:
    """Join the results of several calls. Of a scenario that was measured in several, the last call counts, with all of
    its brokers: ratios are never made of figures from different calls.
    """
    chosen: dict[str, tuple[Measurement, ...]] = {}
    versions: dict[str, str] = {}
    for part in parts:
        versions |= part.versions
        for scenario in part.scenarios():
            chosen[scenario] = tuple(one for one in part.measurements if one.scenario == scenario)
    last = parts[-1]
    return Results(last.machine, versions, last.settings, tuple(one for runs in chosen.values() for one in runs))


def keep(path: Path, folder: Path) -> Path:
    """Copy a result file into `folder`, compressed, under the time of its measurement; returns the copy.

    Raises ValueError: it is no result file, or of another format.
    """
    results = load(path)
    when = results.machine["measured_at"].removesuffix(" UTC").replace(" ", "T").replace(":", "")
    kept = folder / f"{when}-{path.name.partition('.')[0]}.json{COMPRESSED}"
    save(results, kept)
    return kept


def kept_in(folder: Path) -> list[Path]:
    """The result files kept in `folder`, oldest first."""
    return sorted(folder.glob(f"*.json{COMPRESSED}"))


def drop_superseded(folder: Path) -> list[Path]:
    """Remove the files in `folder` all of whose scenarios are in later ones; returns their paths."""
    dropped = []
    later: set[str] = set()
    for path in reversed(kept_in(folder)):
        scenarios = set(load(path).scenarios())
        if scenarios <= later:
            path.unlink()
            dropped.append(path)
        later |= scenarios
    return dropped
