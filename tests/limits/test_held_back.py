"""Thousands of connections that are held back by one destination, which goes."""

from __future__ import annotations

import pytest
import trio

from sluiceway.flow import Account
from tests.limits.law import LawStage, frame

WAITING_COUNT = 2_000
"""Each is a connection of its own. Ten thousand take minutes, and show nothing more."""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_the_end_of_a_destination_that_holds_thousands_back(kind: str) -> None:
    """Their messages go with it, and they go on."""
    name = f"/{kind}/t"
    async with LawStage({name: {"count_max": 1, "full": "block"}}) as stage:
        reader = await stage.client()
        await reader.subscribe(name, ack="client", credit="1")
        await stage.filled(name, 2)
        senders = [await stage.client() for _ in range(WAITING_COUNT)]
        for sender in senders:
            await sender.send_raw(frame("SEND", b"x", destination=name) * 2)
        await trio.sleep(1)
        destination = stage.broker.registry.destinations[name]
        controllers = [each for queue in destination.queues for each in queue.controllers]
        gates = [each for each in controllers if isinstance(each, Account) and each.blocks_somebody]
        assert sum(len(gate.blocked_sources()) for gate in gates) >= WAITING_COUNT
        others = f"{WAITING_COUNT:,} connections that it holds back"
        with stage.law(f"the end of a full {kind}", limit="one destination", crowd=others) as counting:
            with counting.called("deletion"):
                stage.broker.registry.delete(destination, "a test")
            await trio.sleep(3)
        assert not any(gate.blocks_somebody for gate in gates)
        await stage.filled("/queue/other", 1)
        for sender in senders[::100]:
            await sender.send("/queue/other", b"x")
        await trio.sleep(1)
        assert stage.depth_count("/queue/other") == 1 + WAITING_COUNT // 100
