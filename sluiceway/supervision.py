"""Messages to a supervisor: ready, reloading, stopping, alive. The protocol is systemd's Type=notify, which others
speak too: lines in a datagram to the socket that NOTIFY_SOCKET names. Without that variable no message is sent.

A missing supervisor never hurts the broker: the first failure is logged.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from sluiceway.protocols.log import get_logger

log = get_logger("sluiceway.supervision")


def notification(**fields: object) -> bytes:
    """The datagram: one NAME=VALUE a line. A line feed in a value would begin another: it becomes a blank."""
    return "\n".join(f"{name.upper()}={str(value).replace(chr(10), ' ')}" for name, value in fields.items()).encode()


def _monotonic_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class Supervisor:
    """Supervisor of this process. All methods return at once, and raise nothing."""

    def __init__(self, address: str, *, monotonic_us: Callable[[], int] = _monotonic_us) -> None:
        """`address`: of a Unix socket, an abstract one with @ in front; empty: there is none."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._monotonic_us = monotonic_us
        self._failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Supervisor:
        """Return the supervisor that started this process."""
        return cls(environment.get("NOTIFY_SOCKET", ""))

    def ready(self, status: str = "") -> None:
        """Report that clients can connect; or that a reload is in force. `status` is for people."""
        self._tell(ready=1, status=status)

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        self._tell(reloading=1, monotonic_usec=self._monotonic_us())

    def stopping(self, status: str = "stopping") -> None:
        """Tell the supervisor that the broker takes no new work."""
        self._tell(stopping=1, status=status)

    def alive(self) -> None:
        """Report that the dispatcher is at work, once a second: without these reports a supervisor restarts the
        broker.
        """
        self._tell(watchdog=1)

    def _tell(self, **fields: object) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.setblocking(False)
                sending.sendto(notification(**fields), self._address)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning(
                    "cannot tell the supervisor",
                    socket=os.fsdecode(self._address).replace("\0", "@"),
                    reason=error.strerror or str(error),
                    remedy="with systemd: Type=notify and NotifyAccess=main; else start it without NOTIFY_SOCKET",
                )
