"""Several lives of one broker on one store: what one leaves, the next one finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from tests.scenarios.client import Client
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine


class Lives:
    """The store between lives. `async with lives.life() as stage:` is one of them."""

    def __init__(self, policies: Mapping[str, Mapping[str, Any]] | None = None, **limits: Any) -> None:
        self.engine = FaultyEngine(Random(0))
        self._policies = policies
        self._limits = limits

    @asynccontextmanager
    async def life(self, *, end: str = "in order") -> AsyncIterator[Stage]:
        """A broker on what the one before left. `end`: "in order", "crash" (all that was written is there), or "power
        cut" (what was synced is).
        """
        stage = Stage(self._policies, engine=self.engine, **self._limits)
        broker = await stage.broker.__aenter__()
        engine = self.engine
        try:
            yield stage
            if end == "in order":
                await broker.stop()
                self.engine = engine.crash()  # the same content, open again
            else:
                self.engine = engine.crash() if end == "crash" else engine.power_cut()
        finally:
            if end != "in order":
                broker.shards.abandon()
            await broker.__aexit__(None, None, None)


def durability(client: Client) -> list[str]:
    """What the RECEIPTs that this client got promised, in order."""
    return [frame.headers["durability"] for frame in client.received if "durability" in frame.headers]
