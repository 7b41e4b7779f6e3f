"""What is delivered behind deliveries that are settled and forgotten has names of its own."""

from __future__ import annotations

import pytest

from sluiceway.protocols.stomp.escaping import Version
from tests.scenarios.stage import Stage

Q = "/queue/a"
OTHER = "/queue/b"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
async def test_one_that_stays_unsettled_while_all_behind_it_are(version: Version) -> None:
    """They come from two queues by turns, so that each is a chunk; all but the first are acknowledged at once."""
    async with Stage() as stage:
        sender, client = await stage.connect(), await stage.connect(version)
        await client.subscribe(f"{Q},{OTHER}", ack="client-individual", prefetch_count="1000")
        await sender.send(Q, "first")
        kept = [await client.next_message()]
        for number in range(100):
            await sender.send((OTHER, Q)[number % 2], str(number))
            delivery = await client.next_message()
            assert delivery.text == str(number)
            await client.ack(delivery)
            await stage.settled_down()
        # From the queue of the first, and so of its chunk, if the last chunk were the latest.
        for number in range(5):
            await sender.send(Q, f"late {number}")
            kept.append(await client.next_message())
        names = [str(client.naming(delivery)) for delivery in kept]
        assert len(set(names)) == 6
        for delivery in kept:
            await client.ack(delivery)
        await client.sync()
        await stage.settled_down()
        assert stage.depth_count(Q) == stage.depth_count(OTHER) == 0
