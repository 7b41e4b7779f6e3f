"""Values of the operating system: of this process, and of the disk. Read in a thread: the calls read files, a directory
with an entry for each socket, and a disk that may hang.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs

from sluiceway.extras import needs


@attrs.frozen
class SystemValues:
    """Values that were found."""

    process: dict[str, float]
    """Values of the process by metric; empty where the system does not tell (no /proc)."""
    disk_free_bytes: int | None
    """None: no folder, or it can't be seen."""


def look(folder: Path | None) -> SystemValues:
    """Blocks. `folder`: of the data; None: nothing is kept. Raises MissingExtraError."""
    with needs("console", "a page of metrics"):
        from prometheus_client.process_collector import ProcessCollector

    process = {
        sample.name: sample.value for metric in ProcessCollector(registry=None).collect() for sample in metric.samples
    }
    free_bytes = None
    if folder is not None:
        try:
            free_bytes = shutil.disk_usage(folder).free
        except OSError:
            free_bytes = None  # the store's own look at it says in the log what is wrong
    return SystemValues(process, free_bytes)
