"""Hundreds of durable subscriptions of one topic: their places are made, written and told of in steps, and no message
is on disk before all of them have a place there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import pytest

from sluiceway.store import keys
from sluiceway.store.engine import Change, Engine
from sluiceway.store.together import HEAVY_COUNT, STEP_PLACES
from tests.limits.law import frame
from tests.scenarios.client import Client, Delivery
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

T = "/topic/prices"
COUNT = 2 * HEAVY_COUNT * STEP_PLACES
"""Beyond what is done at once."""


class WatchedEngine(FaultyEngine):
    """Counts, behind each write, the places of those queues that have messages."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.places_counts: list[int] = []

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        super().write(changes, sync=sync)
        for queue_id in _queues_with_messages(self):
            self.places_counts.append(sum(1 for _ in self.iterate_keys(*keys.queue_range(keys.CURSOR, queue_id))))


def _queues_with_messages(engine: Engine) -> set[int]:
    return {keys.parse_placed_key(key)[0] for key in engine.iterate_keys(*keys.family_range(keys.CHUNK))}


async def _attached(stage: Stage, **headers: object) -> Client:
    """A client that reads as all of them."""
    client = await stage.connect(**{"client-id": "shop"})
    subscribe = {"destination": T, "durable": "true", **headers}
    await client.send_raw(b"".join(frame("SUBSCRIBE", id=n, receipt=n, **subscribe) for n in range(COUNT)))
    await client._until(lambda: sum(f.command == "RECEIPT" for f in client.received) == COUNT, "all RECEIPTs")
    return client


def _by_subscription(deliveries: Iterable[Delivery]) -> dict[str, list[tuple[str, bool]]]:
    got: dict[str, list[tuple[str, bool]]] = {}
    for delivery in deliveries:
        got.setdefault(delivery.headers["subscription"], []).append((delivery.text, delivery.redelivered))
    return got


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_each_gets_the_first_message_of_a_new_priority_after_a_restart(end: str) -> None:
    lives = Lives()
    lives.engine = engine = WatchedEngine()
    async with lives.life(end=end) as stage:
        await (await _attached(stage)).disconnect()
        producer = await stage.connect()
        await producer.sent(T, "m", persistent="true", priority="9")
        assert durability(producer) == ["disk"]
        assert engine.places_counts and set(engine.places_counts) == {COUNT}
    async with lives.life() as stage:
        reader = await _attached(stage)
        assert _by_subscription(await reader.next_messages(COUNT)) == {str(n): [("m", False)] for n in range(COUNT)}
        await reader.silence()


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_what_all_of_them_had_in_their_hands_comes_again_marked(end: str) -> None:
    """They were handed it before it was stored: that it may have been seen is on disk as soon as it is."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        reader = await _attached(stage, ack="client")
        producer = await stage.connect()
        for text in ("a", "b"):
            await producer.sent(T, text, persistent="true", priority="9")
        deliveries = await reader.next_messages(2 * COUNT)
        assert durability(producer) == ["disk"] * 2
        acks = [frame("ACK", id=one.headers["ack"], receipt="r") for one in deliveries if one.text == "a"]
        await reader.send_raw(b"".join(acks))
        await reader._until(lambda: sum(f.headers.get("receipt-id") == "r" for f in reader.received) == COUNT, "all")
    async with lives.life() as stage:
        reader = await _attached(stage)
        assert _by_subscription(await reader.next_messages(COUNT)) == {str(n): [("b", True)] for n in range(COUNT)}
        await reader.silence()
