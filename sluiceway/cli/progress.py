"""Display of progress while a command works: on standard error, and only on a terminal.

A display appears when the work has taken a moment and vanishes when it is done, so that quick commands stay quiet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS: Final = 0.3
"""Time without a display."""

UPDATES_PER_SECOND: Final = 10


class Display:
    """One line that shows progress. A context manager; inside, `tell` updates it. One thread at a time."""

    def __init__(self, label: str, unit: str = "messages", *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take `label`, the name of the work, and `unit`, what is counted; "bytes" are shown as sizes."""
        self._label = label
        self._unit = unit
        self._clock = clock
        self._quiet_until_seconds = clock() + QUIET_SECONDS
        self._next_seconds = self._quiet_until_seconds
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def tell(self, done: int, total: int | None = None) -> None:
        """Show how much of `total` is done; None: the total is unknown."""
        now_seconds = self._clock()
        if now_seconds < self._next_seconds:
            return
        self._next_seconds = now_seconds + 1 / UPDATES_PER_SECOND
        if self._progress is None:
            self._progress = self._begun(total)
            self._task = self._progress.add_task(self._label, total=total)
        assert self._task is not None, "made with it"
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Remove the display. May be called again; `tell` does nothing from now on."""
        self._next_seconds = float("inf")
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.stop()

    def _begun(self, total: int | None) -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            ProgressColumn,
            SpinnerColumn,
            Task,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.text import Text

        class _Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{speed:,.0f}/s")

        columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
        if total is not None:
            columns.append(BarColumn())
        if self._unit == "bytes":
            columns += [DownloadColumn(), TransferSpeedColumn()]
        else:
            columns.append(TextColumn(f"{{task.completed:,}} {self._unit}"))
            columns.append(_Rate())
        columns.append(TimeElapsedColumn() if total is None else TimeRemainingColumn())
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        return progress


@contextmanager
def shown(label: str, unit: str = "messages") -> Iterator[Callable[[int, int | None], None] | None]:
    """Yield a function that shows progress, or None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with Display(label, unit) as display:
        yield display.tell
