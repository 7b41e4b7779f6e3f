"""Choice of the broker for each record.

The brokers do not know of each other: a log of several brokers is as many logs, each strictly ordered, and the
producer's choice decides which records keep their order among themselves.

Source: seed 001 ("Partitioning").
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

Partitioner = Callable[[Any, Sequence[str]], int]
"""Function from (key, brokers as HOST:PORT in the order given) to the place of a broker among them."""


def at_random(key: Any, brokers: Sequence[str]) -> int:
    """Any broker, whatever the key: an even load, and no order between records."""
    return random.randrange(len(brokers))


def by_hash(key: Any, brokers: Sequence[str]) -> int:
    """Return the same broker for the same key: CRC-32 of the key, in UTF-8 if it is text, modulo the number of brokers.

    Stable over programs, versions and machines, as long as the list of brokers stays the same. Without a key: any.
    Raises TypeError for a key that is neither bytes nor str.
    """
    if key is None:
        return at_random(key, brokers)
    return zlib.crc32(key_bytes(key)) % len(brokers)


def key_bytes(key: Any) -> bytes:
    """Return the key as it is stored with the record. Raises TypeError."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    raise TypeError(f"a key is bytes or str, not {type(key).__name__}")


def partitioner_named(choice: str | Partitioner) -> Partitioner:
    """`random`, `hash`, or a function of one's own. Raises ValueError."""
    if callable(choice):
        return choice
    if choice == "random":
        return at_random
    if choice == "hash":
        return by_hash
    raise ValueError(f"partitioner {choice!r} is not known: use 'random', 'hash' or a function (key, brokers) -> place")
