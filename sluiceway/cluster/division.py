"""Division of a cluster, as one hub knows it: which hub has which shard, and what moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from sluiceway.flow.graph import Steps
from sluiceway.views.destinations import figure

from .seen_as_one import hub_order

if TYPE_CHECKING:
    from sluiceway.queues.registry import DestinationRegistry

    from .host import Member
    from .links import Links

Row = dict[str, Any]


def division_of(member: Member) -> Row:
    """Return hubs and shards of the cluster, as JSON has them:

    - `cluster`, its id; `hub`, the one that says so; `words`: why what it says may be old, or nothing.
    - `hubs`: `name`, `clients` (their URL, or nothing), `version`, `weight`, `shards_count` (those that it owns),
      `state` (`serving`, `drained` or `away`).
    - `shards`: `shard`, `hub` (the owner, or nothing), `epoch`, `open`, `to` (the hub that it moves to, or nothing),
      `pinned` (the hub that an operator chose, or nothing), `words` (why it has no owner, or nothing).

    Sizes, links and hubs that give no answer are in the answers of all hubs together (`own_part_in_steps`). O(shards ×
    hubs).
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


SIZES: Final = ("depth_count", "depth_bytes")


def own_part_in_steps(links: Links, open_shards: Iterable[int], registry: DestinationRegistry) -> Steps[Row]:
    """Return what each hub tells of itself: `links` and `unlinked` (hubs with and without a link), and `shards`: of
    each open one its number, what is in its queues and topics, and how many destinations it has. O(destinations).
    """
    sizes = {shard: {**dict.fromkeys(SIZES, 0), "destinations_count": 0} for shard in sorted(open_shards)}
    for destination in list(registry.destinations.values()):
        yield
        size = sizes.get(destination.environment.shard or 0)
        if size is not None and destination.environment.shard is not None:
            size["destinations_count"] += 1
            for name in SIZES:
                size[name] += figure(name, destination)
    return {
        "links": links.facts(),
        "unlinked": links.unlinked(),
        "shards": [{"shard": shard, **size} for shard, size in sizes.items()],
    }
