"""What is known before anything is judged: plain data, made by `looking` or by a test.

None says that it could not be found out, unless a field says otherwise. Sizes are bytes.
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
    """A library that we declare."""

    name: str
    version: str | None
    """None: it is not installed."""
    least: str
    """The oldest version that we declare; empty: any."""
    extra: str = ""
    """The extra that needs it; empty: all do."""


@attrs.frozen(kw_only=True)
class Software:
    """Python and what is installed in it."""

    python: tuple[int, int, int]
    python_least: tuple[int, ...]
    executable: str
    packages: tuple[Package, ...]
    """Empty: we are not installed, only found on the path."""
    binding_fault: str
    """Why LevelDB can't be loaded; empty: it can."""


@attrs.frozen(kw_only=True)
class SecretFile:
    """A file with something in it that is nobody else's business."""

    path: Path
    what: str
    """For people: `the configuration file, which has passcodes`."""
    mode: int
    """Permission bits."""


@attrs.frozen(kw_only=True)
class Folder:
    """The data folder, or the nearest folder above it that is there."""

    path: Path
    exists: bool
    parent: Path
    """`path`, or what is there of it."""
    parent_is_writable: bool
    mode: int | None = None
    """Permission bits; None: it is not there."""
    fault: str = ""
    """Why a broker could not open it, with the remedy; empty: it could, or it is not there."""
    lock_is_held: bool = False
    lock_pid: int | None = None
    """Who holds it, or who ended without closing it."""
    lock_host: str | None = None
    file_system: str | None = None
    """Kind, in Linux's words: `ext4`, `nfs4`."""
    free_bytes: int | None = None
    free_files: int | None = None
    """Files that can still be made; None also where there is no such limit."""
    sync_seconds: float | None = None
    """How long a small write takes until it is on the disk."""
    sync_fault: str = ""
    """Why nothing could be written, synced and mapped; empty: it could, or nobody tried."""
    attic_count: int = 0
    """Damaged things that were moved aside."""
    values_bytes: int = 0
    """What is in files of persistent messages that wait."""
    paged_bytes: int = 0
    """What is in files that only make room in memory."""
    paged_path: Path | None = None
    """Where they really lie, if that is another disk than that of `path`."""
    paged_free_bytes: int | None = None
    """There."""
    newest_seconds: float | None = None
    """When something in it was last written, in seconds since the epoch."""


@attrs.frozen(kw_only=True)
class Machine:
    """What it gives a process."""

    open_files_max: int | None
    """The soft limit, which counts; None: no limit, or not known."""
    open_files_hard_max: int | None
    memory_bytes: int | None
    """What there is, or what the container may have."""
    memory_available_bytes: int | None


@attrs.frozen(kw_only=True)
class Clock:
    """The time of this machine."""

    now_seconds: float
    """Since the epoch."""
    monotonic_went_back: bool
    is_synchronized: bool | None
    """Whether something keeps it right."""


@attrs.frozen(kw_only=True)
class Port:
    """An address that would be listened on."""

    label: str
    address: str
    fault: str
    """Why it can't be; empty: it can."""
    in_use: bool = False
    number: int = 0
    holder_pid: int | None = None
    holder: str = ""
    """The command that listens there."""


@attrs.frozen(kw_only=True)
class Certificate:
    """The TLS of one listener."""

    label: str
    path: Path
    fault: str
    """Why it can't be used, with the remedy; empty: it can."""
    ends_seconds: float | None = None
    """When it expires, in seconds since the epoch."""


@attrs.frozen(kw_only=True)
class Access:
    """Who may do what, as far as it concerns the whole broker."""

    has_users: bool
    plain_users: tuple[str, ...]
    """Whose passcode stands in plain text."""
    has_permissions: bool
    fault: str = ""
    """Why the users make no sense; empty: they do."""


@attrs.frozen(kw_only=True)
class Tracing:
    """Where traces go."""

    endpoint: str
    fault: str
    """Why it can't be reached; empty: it can."""
    packages_missing: str = ""
    """Names, if the extra is not installed."""


@attrs.frozen(kw_only=True)
class Running:
    """A broker at an address, or that there is none."""

    url: str
    asked_for: bool
    """The user named this address, and expects one there."""
    fault: str = ""
    """Why it did not answer; empty: it did."""
    refused: bool = False
    """It is there, but wants another login."""
    report: Mapping[str, Any] = attrs.field(factory=dict)
    """Its answer."""
    connect_seconds: float = 0.0
    answer_seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Facts:
    """All of it. What depends on a configuration is None or empty if that can't be read."""

    software: Software
    machine: Machine
    clock: Clock
    config: Config | None
    config_fault: str = ""
    config_file: Path | None = None
    former_names: tuple[FormerName, ...] = ()
    folder: Folder | None = None
    """None: the broker keeps nothing."""
    ports: tuple[Port, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    secret_files: tuple[SecretFile, ...] = ()
    access: Access | None = None
    tracing: Tracing | None = None
    """None: there is none."""
    running: Running | None = None
