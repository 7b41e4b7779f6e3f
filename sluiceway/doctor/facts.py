"""Facts for the checks: plain data, made by `probes` or by a test.

None means unknown, unless a field says otherwise. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from sluiceway.config import Config
from sluiceway.config.former import FormerName


@attrs.frozen(kw_only=True)
class Package:
    """A declared dependency."""

    name: str
    version: str | None
    """Installed version; None: not installed."""
    least: str
    """Oldest declared version; empty: any."""
    extra: str = ""
    """Extra that needs the package; empty: always needed."""


@attrs.frozen(kw_only=True)
class Software:
    """Python and its packages."""

    python: tuple[int, int, int]
    python_least: tuple[int, ...]
    executable: str
    packages: tuple[Package, ...]
    """Declared dependencies; empty: sluiceway is not installed, only on the path."""
    binding_fault: str
    """Reason why LevelDB can't be loaded; empty: it can."""


@attrs.frozen(kw_only=True)
class SecretFile:
    """A file with secrets."""

    path: Path
    what: str
    """Description: `the configuration file, which has passcodes`."""
    mode: int
    """Permission bits."""


@attrs.frozen(kw_only=True)
class Folder:
    """The data folder, or the nearest existing folder above it."""

    path: Path
    exists: bool
    parent: Path
    """`path`, or its nearest existing ancestor."""
    parent_is_writable: bool
    mode: int | None = None
    """Permission bits; None: the folder does not exist."""
    fault: str = ""
    """Reason why a broker could not open the folder, with the remedy; empty: it could, or the folder does not exist."""
    lock_is_held: bool = False
    lock_pid: int | None = None
    """Process that holds the lock, or that ended without closing the folder."""
    lock_host: str | None = None
    file_system: str | None = None
    """Kind, as Linux names it: `ext4`, `nfs4`."""
    free_bytes: int | None = None
    free_files: int | None = None
    """Number of files that can still be made; None also without such a limit."""
    sync_seconds: float | None = None
    """Duration of a small synced write."""
    sync_fault: str = ""
    """Reason why writing, syncing and mapping failed; empty: it worked, or was not tried."""
    attic_count: int = 0
    """Number of damaged items in quarantine."""
    values_bytes: int = 0
    """Size of the files of waiting persistent messages."""
    paged_bytes: int = 0
    """Size of the files of paged-out messages."""
    paged_path: Path | None = None
    """Folder of the paged-out files, if on another disk than `path`."""
    paged_free_bytes: int | None = None
    """Free bytes on the disk of `paged_path`."""
    newest_seconds: float | None = None
    """Time of the last write in the folder, in seconds since the epoch."""


@attrs.frozen(kw_only=True)
class Machine:
    """Resources for a process."""

    open_files_max: int | None
    """Soft limit, which applies; None: no limit, or not known."""
    open_files_hard_max: int | None
    memory_bytes: int | None
    """Memory of the machine, or of the container."""
    memory_available_bytes: int | None


@attrs.frozen(kw_only=True)
class Clock:
    """Clocks of this machine."""

    now_seconds: float
    """Wall clock, since the epoch."""
    monotonic_went_back: bool
    is_synchronized: bool | None
    """Whether a time service keeps the clock right."""


@attrs.frozen(kw_only=True)
class Port:
    """A configured address."""

    label: str
    address: str
    fault: str
    """Reason why the address can't be bound; empty: it can."""
    in_use: bool = False
    number: int = 0
    holder_pid: int | None = None
    holder: str = ""
    """Command of the process that listens there."""


@attrs.frozen(kw_only=True)
class Certificate:
    """TLS certificate of one listener."""

    label: str
    path: Path
    fault: str
    """Reason why the certificate can't be used, with the remedy; empty: it can."""
    ends_seconds: float | None = None
    """Time of expiry, in seconds since the epoch."""


@attrs.frozen(kw_only=True)
class AccessFacts:
    """Users and permissions of the whole broker."""

    has_users: bool
    plain_users: tuple[str, ...]
    """Users with a passcode in plain text."""
    has_permissions: bool
    fault: str = ""
    """Reason why users or permissions are invalid; empty: they are valid."""
    sources: Mapping[str, str] = {}
    """Sources of other logins, each with the reason why it can't be reached; empty: it can."""
    sources_in_clear: tuple[str, ...] = ()
    """Sources that get passcodes unencrypted."""


@attrs.frozen(kw_only=True)
class TracingFacts:
    """Destination of traces."""

    endpoint: str
    fault: str
    """Reason why the collector can't be reached; empty: it can."""
    packages_missing: str = ""
    """Names of missing packages of the extra."""


@attrs.frozen(kw_only=True)
class Running:
    """Result of the request to a broker."""

    url: str
    asked_for: bool
    """Whether the user named this address and expects a broker there."""
    fault: str = ""
    """Reason why the broker did not answer; empty: it answered."""
    refused: bool = False
    """Whether a broker is there but refuses the login."""
    other: bool = False
    """Whether the broker there is not Sluiceway."""
    report: Mapping[str, Any] = attrs.field(factory=dict)
    """Answer of the broker."""
    connect_seconds: float = 0.0
    answer_seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Facts:
    """All facts. Facts that depend on an unreadable configuration are None or empty."""

    software: Software
    machine: Machine
    clock: Clock
    config: Config | None
    config_fault: str = ""
    config_file: Path | None = None
    former_names: tuple[FormerName, ...] = ()
    oversights: tuple[str, ...] = ()
    """Settings that have no effect."""
    folder: Folder | None = None
    """Data folder; None: the broker stores nothing."""
    ports: tuple[Port, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    secret_files: tuple[SecretFile, ...] = ()
    access: AccessFacts | None = None
    tracing: TracingFacts | None = None
    """Tracing; None: off."""
    running: Running | None = None
