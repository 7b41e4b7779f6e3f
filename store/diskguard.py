"""The disk guard: checks once a second whether the disk has room left.

A part of its own, beside the store's queue: when a check fails, the next one is a second away, and the last result
still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ..dispatcher import Periodic
from ..queues.environment import Scheduling
from .config import StoreConfig
from .directory import DirectoryError
from .engine import EngineError, FencedError
from .io_threads import Worker

GUARD_SECONDS: Final = 1.0
"""Seconds between two checks of the free space."""


class FreeSpace(Protocol):
    """The folder, as the guard sees it."""

    def free_bytes(self) -> int: ...


class Tell(Protocol):
    """Function through which the guard logs."""

    def __call__(self, event: str, **facts: object) -> object: ...


class DiskGuard:
    """The disk guard of one store with a folder."""

    def __init__(
        self,
        config: StoreConfig,
        folder: FreeSpace,
        worker: Worker,
        *,
        scheduling: Scheduling,
        beside_bytes: Callable[[], int] = lambda: 0,
        elsewhere_bytes: Callable[[], int] = lambda: 0,
        changed: Callable[[bool, int], None],
        sized: Callable[[int], None],
        fenced: Callable[[FencedError], None],
        trouble: Tell,
    ) -> None:
        """`changed`: called when the disk has become low or has room again, with the free bytes; `sized`: called with
        the size of the engine's files and of those beside it, which `beside_bytes` returns; `elsewhere_bytes`: what
        else counts against the limit; `fenced`: called when the engine has lost its shard, which an idle store would
        not notice.
        """
        self._config = config
        self._folder = folder
        self._worker = worker
        self._beside_bytes = beside_bytes
        self._elsewhere_bytes = elsewhere_bytes
        self._changed = changed
        self._sized = sized
        self._fenced = fenced
        self._trouble = trouble
        self._size_bytes = 0
        self._is_low = False
        self._looks = Periodic(scheduling.call_later, GUARD_SECONDS, self._look)

    def start(self) -> None:
        """Check at once, and from then on."""
        self._looks.start(0.0)

    def stop(self) -> None:
        """Look no more."""
        self._looks.stop()

    def _look(self) -> None:
        try:
            free_bytes = self._folder.free_bytes()
        except DirectoryError as error:
            self._trouble("cannot see the free space of the disk", error=str(error))
            free_bytes = self._config.disk_free_min_bytes
        bytes_max = self._config.bytes_max
        is_low = free_bytes < self._config.disk_free_min_bytes or (
            bytes_max is not None and self._size_bytes + self._elsewhere_bytes() > bytes_max
        )
        if is_low is not self._is_low:
            self._is_low = is_low
            self._changed(is_low, free_bytes)
        self._worker.read(lambda engine: engine.size_bytes(), self._seen)

    def _seen(self, result: int | EngineError) -> None:
        if not isinstance(result, EngineError):
            self._size_bytes = result + self._beside_bytes()
            self._sized(self._size_bytes)
        elif isinstance(result, FencedError):
            self._fenced(result)
