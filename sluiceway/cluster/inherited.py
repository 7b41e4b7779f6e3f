"""Listening sockets that a process inherits from the supervisor that has started it.

The variable `SLUICEWAY_SOCKETS` has a JSON object: the configured address (HOST:PORT) of a listener, `admin` for the
admin port, `thrift` for the Thrift port, or `own HOST:PORT` for sockets of this process alone; and the numbers of its
file descriptors. The sockets are bound and listen already, so that clients wait in the backlog while the process
starts. An address that is not named there is bound as usual.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final

VARIABLE: Final = "SLUICEWAY_SOCKETS"
ADMIN: Final = "admin"
"""Name of the sockets of the admin port, whose address may be that of a listener: any free port."""
THRIFT: Final = "thrift"
"""Likewise, of the Thrift port."""


def own_key(address: str) -> str:
    """Return the key of the sockets that a hub has for itself, beside those of the address that it shares."""
    return f"own {address}"


class InheritedSockets:
    """Sockets by configured address; each address is taken once."""

    def __init__(self, sockets: Mapping[str, Iterable[socket.socket]]) -> None:
        self._sockets = {address: list(some) for address, some in sockets.items()}

    @classmethod
    def of(cls, environment: MutableMapping[str, str] = os.environ) -> InheritedSockets:
        """Take the sockets over that the variable names, and remove it: processes started from here have none of them.
        Raises ValueError if it is malformed, and OSError if a descriptor is no socket.
        """
        said = environment.pop(VARIABLE, "")
        numbers: dict[str, list[int]] = json.loads(said) if said else {}
        taken = {address: [socket.socket(fileno=number) for number in some] for address, some in numbers.items()}
        for some in taken.values():
            for inherited in some:
                inherited.set_inheritable(False)
                inherited.setblocking(False)
        return cls(taken)

    @staticmethod
    def told(sockets: Mapping[str, Iterable[socket.socket]]) -> str:
        """Return the value of the variable for a process that inherits `sockets`."""
        return json.dumps({address: [each.fileno() for each in some] for address, some in sockets.items()})

    def take(self, address: str) -> list[socket.socket] | None:
        """Return the sockets of a configured address, which are the caller's from now on. None: there are none."""
        return self._sockets.pop(address, None)

    def close(self) -> None:
        """Close what nobody has taken."""
        for some in self._sockets.values():
            for inherited in some:
                inherited.close()
        self._sockets.clear()
