"""Division of a cluster, as one hub knows it: which hub has which shard, and what moves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .seen_as_one import hub_order

if TYPE_CHECKING:
    from .host import Member

Row = dict[str, Any]


def division_of(member: Member) -> Row:
    """Return hubs and shards of the cluster, as JSON has them:

    - `cluster`, its id; `hub`, the one that says so; `words`: why what it says may be old, or nothing.
    - `hubs`: `name`, `clients` (their URL, or nothing), `version`, `weight`, `shards_count` (those that it owns),
      `state` (`serving`, `drained` or `away`).
    - `shards`: `shard`, `hub` (the owner, or nothing), `epoch`, `open`, `to` (the hub that it moves to, or nothing),
      `pinned` (the hub that an operator chose, or nothing), `words` (why it has no owner, or nothing).

    O(shards × hubs).
    """
    ownership = member.ownership
    shards = []
    owned: Counter[str] = Counter()
    for shard in range(member.seat.shards_count):
        where = ownership.where(shard)
        wanted = ownership.wanted_at(shard)
        is_open = bool(where.hub) and (where.is_here or member.is_open_at(where.hub, shard))
        owned[where.hub] += 1
        shards.append(
            {
                "shard": shard,
                "hub": where.hub,
                "epoch": where.epoch,
                "open": is_open,
                "to": wanted if wanted != where.hub else "",
                "pinned": ownership.pinned_to(shard),
                "words": where.words,
            }
        )
    hubs = [
        {
            "name": hub.name,
            "clients": hub.clients,
            "version": hub.version,
            "weight": hub.weight,
            "shards_count": owned[hub.name],
            "state": "serving" if hub.weight > 0 else "drained",
        }
        for hub in ownership.hubs.values()
    ]
    hubs += [
        {"name": name, "clients": "", "version": "", "weight": 0.0, "shards_count": 0, "state": "away"}
        for name in member.gone()
    ]
    return {
        "cluster": member.seat.cluster,
        "hub": member.seat.hub,
        "words": member.coordination.words if member.host.is_held or member.coordination.session is None else "",
        "hubs": sorted(hubs, key=lambda hub: hub_order(str(hub["name"]))),
        "shards": shards,
    }
