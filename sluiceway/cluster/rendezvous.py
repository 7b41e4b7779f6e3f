"""Choice of a hub for each shard by weighted rendezvous: every hub computes the same, from the names alone.

A hub draws a score for each shard from a hash of both names; the highest has the shard. A hub that joins takes shards
from the others by the share of its weight and moves nothing else; the shards of one that leaves go to the others, and
nothing else moves.

Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998; weights by -w / ln(hash).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from .coordination.port import Hub

_HASH_END: Final = float(2**64)

DRAWS_KEPT_MAX: Final = 16_384
"""Scores that are kept: of 64 hubs for 256 shards."""


def score(hub: Hub, shard: int) -> float:
    """Return the score of a hub for a shard; negative infinity if the hub takes none."""
    if hub.weight <= 0:
        return -math.inf
    return hub.weight * _drawn(hub.name, shard)


@lru_cache(maxsize=DRAWS_KEPT_MAX)
def _drawn(name: str, shard: int) -> float:
    number = int.from_bytes(blake2b(f"{name}/{shard}".encode(), digest_size=8).digest(), "big")
    return -1 / math.log((number + 0.5) / _HASH_END)


def chosen(hubs: Iterable[Hub], shard: int) -> str | None:
    """Return the name of the hub that is to have a shard; None: no hub takes any. O(hubs)."""
    best = max(hubs, key=lambda hub: (score(hub, shard), hub.name), default=None)
    return best.name if best is not None and best.weight > 0 else None
