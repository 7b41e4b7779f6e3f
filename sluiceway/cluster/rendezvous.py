"""Choice of a hub for each shard by weighted rendezvous with bounded loads: every hub computes the same, from the live
hubs and the owners of all shards.

Each hub has a share of all shards by its weight, and takes that share rounded down or up: 32 shards on three hubs are
11, 11 and 10. What is pinned counts; a hub with more pinned shards than its share has those and no others, and the
rest is shared by the rest.

A shard stays with its owner as long as that is within its share. An owner with more keeps those for which it draws the
highest scores. A shard without an owner, and one that its owner has beyond its share, goes to the hub with the highest
score that has room. So a hub that joins takes its share and moves nothing else; the shards of one that leaves go to
the others, and nothing else moves. While moves are under way the choice stays what it is: a shard that has arrived
takes room where the choice had put it.

Considered: a choice from the names of the hubs alone, with bounds or without. Without, 32 shards on two hubs were 21
and 11; with them, a hub that died moved shards between others, whose clients had no part in it.

Sources: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998, weights by -w / ln(hash);
Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from .coordination.port import Hub

_HASH_END: Final = float(2**64)

DRAWS_KEPT_MAX: Final = 16_384
"""Scores that are kept: of 64 hubs for 256 shards."""


def placed(hubs: Iterable[Hub], owners: Sequence[str], pinned: Sequence[str]) -> tuple[str, ...]:
    """Return the name of the hub that is to have each shard; all empty: no hub takes any. `owners`: the hub that has or
    had each shard, empty: none; `pinned`: the hub that an operator has chosen, empty: none. Names of hubs that are not
    among `hubs`, or have no weight, count as none. O(shards x hubs) at most.
    """
    takers = sorted((hub for hub in hubs if hub.weight > 0), key=lambda hub: hub.name)
    if not takers:
        return ("",) * len(owners)
    names = {hub.name for hub in takers}
    places = [hub if hub in names else "" for hub in pinned]
    held: dict[str, list[int]] = {hub.name: [] for hub in takers}
    for shard, owner in enumerate(owners):
        if not places[shard] and owner in names:
            held[owner].append(shard)
    rooms = _rooms(takers, len(owners), Counter(filter(None, places)), held)
    for hub in takers:
        shards = held[hub.name]
        if len(shards) > rooms[hub.name]:
            shards = sorted(shards, key=lambda shard: (-_drawn(hub.name, shard), shard))[: rooms[hub.name]]
        rooms[hub.name] -= len(shards)
        for shard in shards:
            places[shard] = hub.name
    preferred_of = tuple((hub.name, hub.weight) for hub in takers)
    for shard, place in enumerate(places):
        if not place:
            places[shard] = next(name for name in _preferred(preferred_of, shard) if rooms[name] > 0)
            rooms[places[shard]] -= 1
    return tuple(places)


def _rooms(takers: Sequence[Hub], shards_count: int, pins: Counter[str], held: dict[str, list[int]]) -> dict[str, int]:
    """Return how many shards each hub is to have beside its pinned ones."""
    rooms: dict[str, int] = {}
    sharing, rest = list(takers), shards_count
    while True:
        total = sum(Fraction(hub.weight) for hub in sharing)
        shares = {hub.name: rest * Fraction(hub.weight) / total for hub in sharing}
        beyond = [hub for hub in sharing if pins[hub.name] > shares[hub.name]]
        if not beyond:
            break
        for hub in beyond:
            rooms[hub.name] = 0
            rest -= pins[hub.name]
        sharing = [hub for hub in sharing if hub.name not in rooms]
    least = {name: math.floor(share) for name, share in shares.items()}

    def claim(name: str) -> tuple[bool, Fraction, str]:
        """Order hubs for the shards that are left over: first those that have one more already."""
        return pins[name] + len(held[name]) <= least[name], -(shares[name] % 1), name

    for name in sorted((name for name in shares if shares[name] % 1), key=claim)[: rest - sum(least.values())]:
        least[name] += 1
    return rooms | {name: count - pins[name] for name, count in least.items()}


@lru_cache(maxsize=1024)
def _preferred(hubs: tuple[tuple[str, float], ...], shard: int) -> tuple[str, ...]:
    """Return the names of hubs with weights, the highest score for a shard first."""
    return tuple(
        name for _score, name in sorted(((weight * _drawn(name, shard), name) for name, weight in hubs), reverse=True)
    )


@lru_cache(maxsize=DRAWS_KEPT_MAX)
def _drawn(name: str, shard: int) -> float:
    number = int.from_bytes(blake2b(f"{name}/{shard}".encode(), digest_size=8).digest(), "big")
    return -1 / math.log((number + 0.5) / _HASH_END)
