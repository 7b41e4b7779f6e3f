"""Shard of a destination: a stable hash of its canonical name, or of the part of the name in braces.

`/queue/{orders}.new` and `/queue/{orders}.failed` are in one shard, so that a transaction over them is one batch. The
hash is BLAKE2b with a digest of 8 bytes, big-endian; the shard is its remainder by the number of shards. It never
changes: stored messages lie where the hash said when they came. Parts and priorities of a destination have its name,
and thus its shard.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

SHARDS_MAX: Final = 1024
"""Largest number of shards of a broker: message numbers of each have a range of their own (`first_number`)."""

NUMBER_BITS: Final = 49
"""Bits of the message numbers of one shard: 178 years at 100,000 messages a second. A store that has lost its numbers
continues in the middle.
"""


def hashed_part(name: str) -> str:
    """Return the part of a canonical name that decides about its shard: between the first `{` and the `}` behind it,
    if there is anything between them; else all of it.
    """
    start = name.find("{")
    if start >= 0:
        end = name.find("}", start)
        if end > start + 1:
            return name[start + 1 : end]
    return name


def shard_of(name: str, shards_count: int) -> int:
    """Return the shard, from 0 on, of the destination with this canonical name. O(length)."""
    digest = blake2b(hashed_part(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards_count


def first_number(shard: int) -> int:
    """Return the first message number of a shard. Numbers of different shards differ, so message-ids do, too."""
    return (shard << NUMBER_BITS) + 1


def shard_of_number(number: int) -> int:
    """Return the shard that a message number belongs to; SHARDS_MAX or more: none, it is of one process."""
    return max(number - 1, 0) >> NUMBER_BITS


def tag_for(shard: int, shards_count: int) -> str:
    """Return the shortest number in braces that leads a name into this shard, for names that the broker makes."""
    number = 0
    while shard_of(f"{{{number}}}", shards_count) != shard:
        number += 1
    return f"{{{number}}}"


def is_shards_count(count: int) -> bool:
    """Return whether a broker can have this number of shards: a power of two."""
    return 0 < count <= SHARDS_MAX and count & (count - 1) == 0
