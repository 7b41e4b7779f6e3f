"""Place of one process among the hubs of `sluiceway serve --hubs N`.

All hubs use the same data folder. Who has which shard open is agreed upon at the coordination service of the supervisor
(`Ownership`); the lock of a shard's folder makes sure of it. Links are Unix sockets in a folder that only the user may
enter. A hub ends when the supervisor is gone, whatever ended it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from sluiceway.cluster.coordination.client import ServiceClient
from sluiceway.cluster.coordination.port import Coordination
from sluiceway.cluster.coordination.supervised import SupervisedChannel
from sluiceway.cluster.inherited import InheritedSockets
from sluiceway.cluster.links import UNIX_PREFIX, Seat
from sluiceway.cluster.membership import Loop, Membership, Spawn

VARIABLE: Final = "SLUICEWAY_HUB"
HAS_RUN_VARIABLE: Final = "SLUICEWAY_HUB_HAS_RUN"
"""Set for a hub that was ready before: others answer at the admin port while it starts."""
SESSION_SECONDS: Final = 10.0
"""Time of silence behind which a hub counts as gone. One whose process ends is gone at once."""


def coordination_socket(folder: Path) -> Path:
    """Return the path of the supervisor's coordination service. `folder`: that of the sockets."""
    return folder / "coordination.socket"


def hub_name(number: int) -> str:
    """Return the name of a hub of one host, from 1 on."""
    return f"hub-{number}"


@attrs.frozen
class HubPlace:
    """Place of one hub, as the supervisor says it in the variable `SLUICEWAY_HUB`."""

    number: int
    """Number of the hub, from 1 on."""
    hubs_count: int
    shards_count: int
    cluster: str
    """Id of the cluster."""
    folder: str
    """Folder of the sockets."""
    lifeline: int
    """Descriptor of a pipe that the supervisor holds open: its end of file is the end of the supervisor."""
    admin_secret: str
    """Secret of the hubs for tokens of their one admin port, in hexadecimal."""
    has_run: bool = False
    """Whether the hub was ready before, under this supervisor."""

    @classmethod
    def of(cls, environment: MutableMapping[str, str] = os.environ) -> HubPlace | None:
        """Take the place from the variable, and remove it. None: this process is no hub of a supervisor."""
        said = environment.pop(VARIABLE, "")
        has_run = bool(environment.pop(HAS_RUN_VARIABLE, ""))
        return cls(**{**json.loads(said), "has_run": has_run}) if said else None

    def told(self) -> str:
        """Return the value of the variable."""
        return json.dumps(attrs.asdict(self))

    @property
    def name(self) -> str:
        """Name of the hub."""
        return hub_name(self.number)

    def seat(self, sockets: InheritedSockets) -> Seat:
        """Return the place of a broker in the cluster. `sockets`: of its listeners."""
        return Seat(
            cluster=self.cluster,
            hub=self.name,
            shards_count=self.shards_count,
            listen=self._link(self.name),
            membership=Membership(
                coordination=self._coordination,
                expected=[hub_name(number) for number in range(1, self.hubs_count + 1)],
            ),
            sockets=sockets,
            shares_addresses=True,
            admin_secret=bytes.fromhex(self.admin_secret),
            has_run=self.has_run,
        )

    def _coordination(self, loop: Loop, clock: Callable[[], float], spawn: Spawn) -> Coordination:
        channel = SupervisedChannel(coordination_socket(Path(self.folder)))
        client = ServiceClient(channel, loop, clock, session_seconds=SESSION_SECONDS)
        spawn(partial(channel.run, client))
        return client

    def _link(self, hub: str) -> str:
        return f"{UNIX_PREFIX}{Path(self.folder) / hub}.link"
