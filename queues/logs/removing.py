"""Deleting the files of a log: behind what is being made, written and synced, and answered whatever comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..environment import QueueEnvironment
from .ports import Disk, DiskError


class Remover(Protocol):
    """Where the folders of logs are."""

    def remove(self, name: str) -> None:
        """Close the records of a log, whatever the disk says of that, and delete its files. Blocks. Raises DiskError:
        then they are there as before, but closed, or take room until the next start; the message says which.
        """


def remove_files(
    name: str,
    cabinet: Remover,
    disk: Disk,
    environment: QueueEnvironment,
    done: Callable[[DiskError | None], None],
) -> None:
    """`done` is told what came of it. A mistake of the broker's own is contained and told as a DiskError: who waits for
    the name, or for the answer, must not do so for ever.
    """

    def work() -> Exception | None:
        try:
            cabinet.remove(name)
        except (DiskError, OSError, MemoryError):
            raise  # for the disk to tell
        except Exception as error:  # noqa: BLE001 - raised again on the loop
            return error
        return None

    def removed(result: Exception | None) -> None:
        if result is None or isinstance(result, DiskError):
            done(result)
            return
        try:
            environment.carefully(lambda: _raise(result))
        finally:
            done(DiskError(f"the broker made a mistake while it removed {name}: its log has the details"))

    def synced(_result: object) -> None:
        disk.append(work, removed)

    def made(_result: object) -> None:
        disk.sync(lambda: None, synced)

    disk.make(lambda: None, made)


def _raise(error: Exception) -> None:
    raise error
