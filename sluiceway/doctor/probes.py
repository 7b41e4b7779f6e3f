"""Collection of facts about this machine: files, limits, clocks. Facts that the system does not provide stay None.

Linux provides most; elsewhere memory, the kind of file system and the owner of a port are unknown.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import resource
import shutil
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sluiceway.config import Config
from sluiceway.config.model import ADMIN_NAME
from sluiceway.doctor.facts import AccessFacts, Certificate, Clock, Folder, Machine, Port, SecretFile, TracingFacts
from sluiceway.doctor.ports import look_at_port
from sluiceway.extras import missing_packages
from sluiceway.protocols.tls import CertificateError, TlsServer
from sluiceway.security.sources import try_sources
from sluiceway.security.users import SecurityError, Users
from sluiceway.store.directory import PAGED, VALUES, DirectoryError, lock_state, look_at
from sluiceway.store.pages import measure
from sluiceway.store.shard_folders import look_for_shards
from sluiceway.store.values import SUFFIX as VALUES_SUFFIX

SYNC_COUNT: Final = 5
SYNC_BYTES: Final = 4096
COLLECTOR_SECONDS: Final = 2.0
KEPT_RIGHT: Final = Path("/run/systemd/timesync/synchronized")
"""Exists when systemd-timesyncd has set the clock. Other time services leave nothing that any user may read."""


# ---------------------------------------------------------------------- data folder


def look_at_folder(path: Path) -> Folder:
    """Return what a broker would find in the folder. Makes no lasting change."""
    path = Path(path).absolute()
    parent, is_hidden = _nearest(path)
    if parent == path:
        return _existing(path)
    is_folder = parent.is_dir()
    fault = "" if is_folder else f"{parent} is a file, so {path} can't be made in it. Choose another folder (--data)"
    if is_hidden:
        fault = f"{parent} can't be entered by this user, so {path} can't be seen. Run the doctor as the broker's user"
    return Folder(
        path=path,
        exists=False,
        parent=parent,
        parent_is_writable=is_folder and os.access(parent, os.W_OK | os.X_OK),
        fault=fault,
        file_system=file_system_of(parent),
        free_bytes=_free_bytes(parent),
        free_files=_free_files(parent),
    )


def _nearest(path: Path) -> tuple[Path, bool]:
    """Return the path or its nearest existing ancestor, and whether permissions hide the rest."""
    is_hidden = False
    for it in (path, *path.parents):
        try:
            it.stat()
        except PermissionError:
            is_hidden = True
        except OSError:
            continue
        else:
            return it, is_hidden
    return Path("/"), is_hidden


def _existing(path: Path) -> Folder:
    fault = ""
    lock_is_held, lock_pid, lock_host = False, None, None
    is_writable = os.access(path, os.R_OK | os.W_OK | os.X_OK)
    try:
        if is_writable or not path.is_dir():
            for each in look_for_shards(path) or (path,):
                look_at(each)
                lock = lock_state(each)
                if lock.is_held or not lock_is_held:
                    lock_is_held, lock_pid, lock_host = lock.is_held, lock.pid, lock.host
    except DirectoryError as error:
        fault = str(error)
    seconds, sync_fault = (None, "") if fault or not is_writable else try_sync(path)
    paged_bytes, paged_path = _look_at_pages(path)
    return Folder(
        path=path,
        exists=True,
        parent=path,
        parent_is_writable=is_writable,
        mode=path.stat().st_mode & 0o777,
        fault=fault,
        lock_is_held=lock_is_held,
        lock_pid=lock_pid,
        lock_host=lock_host,
        file_system=file_system_of(path),
        free_bytes=_free_bytes(path),
        free_files=_free_files(path),
        sync_seconds=seconds,
        sync_fault=sync_fault,
        attic_count=len(_written(path / "attic")),
        values_bytes=_bytes_of_values(path),
        paged_bytes=paged_bytes,
        paged_path=paged_path,
        paged_free_bytes=None if paged_path is None else _free_bytes(paged_path),
        newest_seconds=max(_written(path), default=None),
    )


def _bytes_of_values(path: Path) -> int:
    try:
        return sum(measure(path / VALUES, VALUES_SUFFIX))
    except OSError:
        return 0  # missing, or without permission


def _look_at_pages(path: Path) -> tuple[int, Path | None]:
    """Return the size of paged-out files, and their folder if on another disk."""
    folder = path / PAGED
    try:
        return sum(measure(folder)), folder.resolve() if folder.stat().st_dev != path.stat().st_dev else None
    except OSError:
        return 0, None  # missing, or without permission


def _written(folder: Path) -> list[float]:
    """Return the times of the last write of each entry, in seconds since the epoch. Skips entries that vanish
    meanwhile.
    """
    found = []
    try:
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(entry.stat().st_mtime)
    except OSError:
        return []  # missing, or without permission
    return found


def try_sync(folder: Path) -> tuple[float | None, str]:
    """Write, sync and map an unnamed file; return the seconds of the median sync, or the reason of a failure."""
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _number in range(SYNC_COUNT):
                file.write(b"\0" * SYNC_BYTES)
                file.flush()
                began_seconds = time.monotonic()
                os.fsync(file.fileno())
                took.append(time.monotonic() - began_seconds)
            with mmap.mmap(file.fileno(), SYNC_BYTES, access=mmap.ACCESS_READ) as mapped:
                if mapped[:1] != b"\0":
                    return None, "mapped bytes differ from written ones"
    except (OSError, ValueError) as error:
        return None, getattr(error, "strerror", None) or str(error)
    return statistics.median(took), ""


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the kind of the file system of this path; None: unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = -1, None
    for line in lines:
        before, _dash, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or not rest:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of several mounts at one point the last one is on top
            best, kind = len(point), rest[0]
    return kind


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _free_files(path: Path) -> int | None:
    try:
        told = os.statvfs(path)
    except OSError:
        return None
    return told.f_favail if told.f_files else None  # 0 in all: the file system makes them on demand


# ---------------------------------------------------------------------- machine


def look_at_machine() -> Machine:
    """Return the limits of this process, and the memory of the machine or the container."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = _memory_info(Path("/proc/meminfo"))
    total, limit = told.get("MemTotal"), _container_limit(Path("/sys/fs/cgroup"))
    known = [size for size in (total, limit) if size is not None]
    return Machine(
        open_files_max=None if soft == resource.RLIM_INFINITY else soft,
        open_files_hard_max=None if hard == resource.RLIM_INFINITY else hard,
        memory_bytes=min(known, default=None),
        memory_available_bytes=told.get("MemAvailable"),
    )


def _memory_info(path: Path) -> dict[str, int]:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return {}
    return {match[1]: int(match[2]) * 1024 for match in re.finditer(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _container_limit(root: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit():  # not "max"
            return int(text)
    return None


def look_at_clock() -> Clock:
    """Return the readings of both clocks."""
    first = time.monotonic()
    readings = [time.monotonic() for _number in range(100)]
    return Clock(
        now_seconds=time.time(),
        monotonic_went_back=[first, *readings] != sorted([first, *readings]),
        is_synchronized=True if KEPT_RIGHT.exists() else None,
    )


# ---------------------------------------------------------------------- configuration


def look_at_ports(config: Config) -> tuple[Port, ...]:
    """Probe the ports of all listeners and the admin port, except those that take any free port."""
    wanted = [(f"listener {it.name}".rstrip(), it.address) for it in config.listeners if it.port]
    if config.admin.address and not config.admin.address.endswith(":0"):
        wanted.append(("admin port", config.admin.address))
    return tuple(look_at_port(label, address) for label, address in wanted)


def look_at_certificates(config: Config) -> tuple[Certificate, ...]:
    """Probe the certificates of all listeners and the admin port, reading the files as the broker does."""
    found = []
    for label, tls in [
        *((listener.label, listener.tls) for listener in config.listeners),
        (ADMIN_NAME, config.admin.tls),
    ]:
        path = tls.certificate
        if path is None:
            continue
        try:
            ends_seconds = TlsServer(tls).not_after
        except CertificateError as error:
            found.append(Certificate(label=label, path=path, fault=str(error)))
        else:
            found.append(Certificate(label=label, path=path, fault="", ends_seconds=ends_seconds))
    return tuple(found)


def look_at_access(config: Config) -> AccessFacts:
    """Return users and permissions. Reads the users file, if there is one."""
    try:
        users = Users.of(config.security)
    except SecurityError as error:
        return AccessFacts(has_users=True, plain_users=(), has_permissions=True, fault=str(error))
    return AccessFacts(
        has_users=users.are_configured,
        plain_users=tuple(users.in_plain_text),
        has_permissions=bool(config.security.permissions),
        sources=try_sources(users.outside),
        sources_in_clear=tuple(it.label for it, _passcode in users.outside.directories if it.is_in_clear),
    )


def look_at_tracing(config: Config) -> TracingFacts | None:
    """Connect to the collector for a moment. None: tracing is off."""
    if not config.tracing.enabled:
        return None
    endpoint = config.tracing.endpoint
    fault = ""
    try:
        parts = urlsplit(endpoint)
        place = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        with socket.create_connection(place, COLLECTOR_SECONDS):
            pass
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
    return TracingFacts(endpoint=endpoint, fault=fault, packages_missing=", ".join(missing_packages("tracing")))


def look_at_secret_files(file: Path | None, config: Config) -> tuple[SecretFile, ...]:
    """Return the existing files that only the broker's user should read."""
    wanted: list[tuple[Path, str]] = []
    if file is not None and config.security.users:
        wanted.append((file, "the configuration, which has passcodes"))
    if config.security.users_file is not None:
        wanted.append((config.security.users_file, "the file of users"))
    for listener in config.listeners:
        if listener.tls.is_on:
            key = listener.tls.key or listener.tls.certificate
            assert key is not None
            wanted.append((key, "a private key"))
    found = []
    for path, what in dict(wanted).items():
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue  # a missing file is reported where it is read
        found.append(SecretFile(path=path, what=what, mode=mode))
    return tuple(found)
