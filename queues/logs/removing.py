"""Deleting the files of a log: behind what is being made, written and synced, and answered whatever comes of it.

First they are taken away, while the log is open still: where the disk refuses that, nothing has happened to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..environment import QueueEnvironment
from .ports import Disk, DiskError


class Remover(Protocol):
    """Where the folders of logs are."""

    def take_away(self, name: str) -> None:
        """Put the files of a log where no start finds them; it stays open, and can be appended to. Blocks. Raises
        DiskError: then all is as before.
        """

    def remove(self, name: str) -> None:
        """Close the records of a log, whatever the disk says of that, and delete its files. Blocks. Raises DiskError:
        then they are there as before, but closed, or take room until the next start; the message says which.
        """


def take_files_away(
    name: str,
    cabinet: Remover,
    disk: Disk,
    environment: QueueEnvironment,
    done: Callable[[DiskError | None], None],
) -> None:
    """`done` is told what came of it, as by `remove_files`; with an error the log is as before."""
    disk.append(partial(_work, cabinet.take_away, name), partial(_tell, name, environment, done))


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

    def synced(_result: object) -> None:
        disk.append(partial(_work, cabinet.remove, name), partial(_tell, name, environment, done))

    def made(_result: object) -> None:
        disk.sync(lambda: None, synced)

    disk.make(lambda: None, made)


def _work(job: Callable[[str], None], name: str) -> Exception | None:
    try:
        job(name)
    except (DiskError, OSError, MemoryError):
        raise  # for the disk to tell
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
