"""Place of one process among the hubs of `sluiceway serve --hubs N`.

The shards of the data folder are dealt out by their number: hub 1 of 4 has shards 0, 4, 8, … The division holds for one
start; the next one may have another number of hubs, since all of them use the same folder. Links are Unix sockets in a
folder that only the user may enter. A hub ends when the supervisor is gone, whatever ended it.
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

import attrs

from sluiceway.cluster.inherited import InheritedSockets
from sluiceway.cluster.links import UNIX_PREFIX, Seat
from sluiceway.cluster.placement import TablePlacement
from sluiceway.queues.shard_hash import shard_of

VARIABLE: Final = "SLUICEWAY_HUB"
HAS_RUN_VARIABLE: Final = "SLUICEWAY_HUB_HAS_RUN"
"""Set for a hub that was ready before: others answer at the admin port while it starts."""


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

    @property
    def shards(self) -> frozenset[int]:
        """Shards that this hub opens."""
        return frozenset(range(self.number - 1, self.shards_count, self.hubs_count))

    def seat(self, sockets: InheritedSockets) -> Seat:
        """Return the place of a broker in the cluster. `sockets`: of its listeners."""
        hubs = [hub_name(number) for number in range(1, self.hubs_count + 1)]

        def hub_of(name: str) -> str:
            return hubs[shard_of(name, self.shards_count) % self.hubs_count]

        peers = {hub: self._link(hub) for hub in hubs if hub != self.name}
        return Seat(
            cluster=self.cluster,
            hub=self.name,
            shards_count=self.shards_count,
            placement=TablePlacement(self.name, hub_of, hubs),
            peers=lambda: peers,
            listen=self._link(self.name),
            shards=self.shards,
            sockets=sockets,
            admin_secret=bytes.fromhex(self.admin_secret),
            has_run=self.has_run,
        )

    def _link(self, hub: str) -> str:
        return f"{UNIX_PREFIX}{Path(self.folder) / hub}.link"
