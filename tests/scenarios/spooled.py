"""Transactions that are larger than memory, for the tests of them.

«Larger than memory» is more than a few thousand bytes here, and pieces are small (`small_pieces`), so that there are
many of them.
"""

from __future__ import annotations

from typing import Any

from sluiceway.store import keys
from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client, Delivery
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

IN = "/queue/in"
OUT = "/queue/out"
OTHER = "/queue/other"
ENDS = ("in order", "crash", "power cut")
SMALL: dict[str, Any] = {"transaction_bytes_max": 10_000}
BODY_BYTES = 1_000
TIGHT: dict[str, dict[str, Any]] = {OUT: {"full": "block", "count_max": 10}}


def body(number: int) -> str:
    return str(number).ljust(BODY_BYTES)


def spooled_keys(engine: FaultyEngine | MemoryEngine) -> list[bytes]:
    """Records of spooled transactions."""
    families = (keys.TRANSACTION, keys.SPOOL)
    return [key for family in families for key in engine.iterate_keys(*keys.family_range(family))]


async def send_transaction(
    client: Client, count: int, *destinations: str, name: str = "t", persistent: bool = True, start: int = 0
) -> None:
    """BEGIN, and so many SENDs in turn."""
    await client.frame("BEGIN", {"transaction": name})
    for number in range(start, start + count):
        headers = {"destination": destinations[number % len(destinations)], "transaction": name}
        if persistent:
            headers["persistent"] = "true"
        await client.frame("SEND", headers, body(number))


async def commit(client: Client, name: str = "t") -> None:
    await client.request("COMMIT", {"transaction": name})


def numbers_of(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.text) for delivery in deliveries]


async def all_numbers(stage: Stage) -> list[int]:
    """What is in all queues."""
    return [int(text) for text in await stage.drain_queues()]
