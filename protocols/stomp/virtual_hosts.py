"""Virtual hosts: sets of destinations of their own, one of which the header `host` of CONNECT names.

The port that the broker implements (`sluiceway.virtual_hosts`), and the words in which a client of one is told of
names: without the prefix that these have for everybody else.
"""

from __future__ import annotations

import re
from typing import Protocol

from ...queues.names import HOST_SIGN
from .authorization import Identity


class Hosts(Protocol):
    """Virtual hosts of a broker."""

    def enter(self, said: str | None, identity: Identity, client_id: str) -> str:
        """Let a connection into the host that its CONNECT has `said`, until `leave` is called with the same prefix.
        Returns the prefix of its names; empty: it is the default host. Raises ProtocolError.
        """

    def leave(self, prefix: str) -> None:
        """Note the end of a connection."""

    def check(self, prefix: str, identity: Identity) -> None:
        """Raise ProtocolError if this identity may not use the host with this prefix."""


def told_in_host(text: str, prefix: str) -> str:
    """Return a text for clients of the virtual host with this prefix: names of destinations and clients in it are as
    they write them.
    """
    host = re.escape(prefix.removeprefix(HOST_SIGN))
    return re.sub(rf"(?<![^\s'\"(,:])(?:/@{host}(?=/)|@{host}[:/])", "", text)
