"""Deletion of a log's files: after pending making, writing and syncing, and always answered.

First the files are moved away while the log is still open: if the disk refuses that, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..environment import QueueEnvironment
from .ports import Disk, DiskError


class Remover(Protocol):
    """Port to the folders of logs."""

    def take_away(self, name: str) -> None:
        """Move the files of a log where no start finds them; the log stays open and can be appended to. Blocks. Raises
        DiskError: then nothing has changed.
        """

    def remove(self, name: str) -> None:
        """Close the records of a log, whatever the disk says, and delete its files. Blocks. Raises DiskError: then the
        files exist as before, but closed, or take room until the next start; the message says which.
        """


def take_files_away(
    name: str,
    cabinet: Remover,
    disk: Disk,
    environment: QueueEnvironment,
    done: Callable[[DiskError | None], None],
) -> None:
    """Call `done` with the result, as `remove_files` does; with an error the log is unchanged."""
    disk.append(partial(_work, cabinet.take_away, name), partial(_tell, name, environment, done))


def remove_files(
    name: str,
    cabinet: Remover,
    disk: Disk,
    environment: QueueEnvironment,
    done: Callable[[DiskError | None], None],
) -> None:
    """Call `done` with the result. A fault of the broker itself is contained and reported as a DiskError: waiters for
    the name or the answer must not wait for ever.
    """

    def synced(_result: object) -> None:
        disk.append(partial(_work, cabinet.remove, name), partial(_tell, name, environment, done))

    def made(_result: object) -> None:
        disk.sync(lambda: None, synced)

    disk.make(lambda: None, made)


def _work(job: Callable[[str], None], name: str) -> Exception | None:
    try:
        job(name)
    except (DiskError, OSError, MemoryError):
        raise  # for the disk to report
    except Exception as error:  # noqa: BLE001 - raised again on the loop
        return error
    return None


def _tell(
    name: str, environment: QueueEnvironment, done: Callable[[DiskError | None], None], result: Exception | None
) -> None:
    if result is None or isinstance(result, DiskError):
        done(result)
        return
    try:
        environment.carefully(lambda: _raise(result))
    finally:
        done(DiskError(f"the broker made a mistake while it removed {name}: its log has the details"))


def _raise(error: Exception) -> None:
    raise error
