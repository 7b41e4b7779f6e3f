"""Placement of destinations by the owners of their shards: what sessions ask, answered by `Ownership`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluiceway.protocols.stomp.placement import HERE, Home
from sluiceway.queues.shard_hash import shard_of

from .ownership import Ownership


class OwnedPlacement:
    """Placement over the ownership of a hub. `ShardHost.owner_changed` is to call `moved`."""

    def __init__(
        self,
        ownership: Ownership,
        shards_count: int,
        is_open_at: Callable[[str, int], bool] = lambda _hub, _shard: True,
    ) -> None:
        """`is_open_at`: whether another hub has said that it has a shard open."""
        self._ownership = ownership
        self._shards_count = shards_count
        self._is_open_at = is_open_at
        self.generation = 0
        """See Placement."""

    def moved(self) -> None:
        """Note that an answer may have become another."""
        self.generation += 1

    def home_of(self, name: str) -> Home:
        """Do `Placement.home_of`."""
        shard = shard_of(name, self._shards_count)
        where = self._ownership.where(shard)
        if where.is_here:
            return HERE
        if where.hub and not self._is_open_at(where.hub, shard):
            return Home("", where.epoch, f"shard {shard} is being opened at {where.hub}")
        return Home(where.hub, where.epoch, where.words)

    def others(self) -> Sequence[str]:
        """Do `Placement.others`. O(shards)."""
        places = (self._ownership.where(shard) for shard in range(self._shards_count))
        return sorted({where.hub for where in places if where.hub and not where.is_here})
