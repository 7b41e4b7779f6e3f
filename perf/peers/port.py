"""Port of the runner to a broker: install it, start it on loopback, say its address and its processes, stop it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from perf.load.plans import Endpoint


class PeerError(Exception):
    """A peer could not be installed or started; the message says what to do about it."""


class Peer(Protocol):
    """A broker under test. `install` and `start` block; `stop` may be called at any time and more than once."""

    name: str
    durable: bool
    """Whether `start` in the same folder finds persistent messages again."""

    def install(self) -> None:
        """Make sure that the software is on this machine, installing it where it is missing.

        Raises PeerError: it is missing and cannot be installed.
        """

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start with all its data, logs and configuration in `folder` (empty, or one that it
        ran in before), and return when it accepts connections.

        Raises PeerError: it ended or did not listen in time; the message carries the end of its log.
        """

    def pids(self) -> list[int]:
        """Process ids of the roots of its process tree; empty where they are not known."""

    def last_words(self) -> str:
        """Tell whether the broker runs, or how it ended, with the end of its log, for the report of a failure. Empty
        where that is not known.
        """

    def version(self) -> str:
        """Return the broker's name for itself, read at its start."""

    def store_counts(self) -> Mapping[str, float]:
        """Return the counts of the broker's store since its start: those of `written_count`, `cancelled_count`,
        `syncs_count` and `written_bytes` that it has; empty without any. The broker must be running.
        """

    def stop(self, patience_seconds: float = 5.0) -> None:
        """End all its processes, in good order if that takes no longer than the patience. The folder is the caller's to
        remove."""
