"""Whether an address can be bound, and which process listens there if not."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluiceway.config.fields import split_address
from sluiceway.doctor.facts import Port

LISTENS: Final = "0A"
"""State of a listening socket in Linux's tables."""
COMMAND_LENGTH_MAX: Final = 60


def look_at_port(label: str, address: str) -> Port:
    """Try to bind the address as a broker does, and release it at once: no client can connect meanwhile."""
    host, number = split_address(address)
    try:
        found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return Port(label=label, address=address, fault=f"the host is not known ({error.strerror})", number=number)
    for family, kind, protocol, _name, place in found:
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(place)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            pid, command = holder_of(number) if in_use else (None, "")
            return Port(
                label=label,
                address=address,
                fault=error.strerror or str(error),
                in_use=in_use,
                number=number,
                holder_pid=pid,
                holder=command,
            )
    return Port(label=label, address=address, fault="", number=number)


def holder_of(number: int, proc: Path = Path("/proc")) -> tuple[int | None, str]:
    """Return the process that listens on the port, and its command; None: another user's process, or not Linux."""
    sockets = {f"socket:[{inode}]" for inode in _listening(number, proc)}
    if not sockets:
        return None, ""
    for folder in proc.glob("[0-9]*"):
        if any(target in sockets for target in _open_files(folder)):
            return int(folder.name), _command_of(folder)
    return None, ""


def _listening(number: int, proc: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on the port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except (OSError, UnicodeDecodeError):
            continue  # not Linux, or not allowed
        for line in lines:
            parts = line.split()
            if len(parts) > 9 and parts[3] == LISTENS and int(parts[1].rpartition(":")[2], 16) == number:
                yield parts[9]


def _open_files(folder: Path) -> Iterator[str]:
    try:
        for link in (folder / "fd").iterdir():
            yield os.readlink(link)
    except OSError:
        return  # another user's process, or it ended


def _command_of(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    visible = re.sub(r"[^ -~]", "?", words)
    return visible if len(visible) <= COMMAND_LENGTH_MAX else f"{visible[: COMMAND_LENGTH_MAX - 1]}…"
