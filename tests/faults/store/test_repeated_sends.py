"""What a producer sends again while the disk fails is not confirmed before the first one is safe."""

from __future__ import annotations

import pytest

from tests.scenarios.lives import Lives, durability
from tests.store.faulty import Failure

Q = "/queue/orders"
SEND = {"destination": Q, "persistent": "true", "producer-id": "p", "producer-sequence": "1"}


@pytest.mark.parametrize("failure", [Failure.WRITE, Failure.SYNC])
async def test_a_resend_waits_for_the_disk_as_the_first_one_does(failure: Failure) -> None:
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        first, second, consumer = await stage.connect(), await stage.connect(), await stage.connect()
        await consumer.subscribe(Q)
        await stage.settled_down()
        lives.engine.fail_at_rate(failure, 1)
        await first.frame("SEND", {**SEND, "receipt": "first"}, "m")
        await first.silence()
        first.vanish()
        await second.frame("SEND", {**SEND, "receipt": "again"}, "m")
        await second.silence()
        assert "again" not in second.receipts, "a power cut would lose it"
        await consumer.silence()
        lives.engine.fail_at_rate(failure, 0)
        await second.expect_receipt("again")
        assert durability(second) == ["disk"]
        assert await consumer.next_texts(1) == ["m"]
        await consumer.silence()
    async with lives.life() as stage:
        again = await stage.connect()
        await again.request("SEND", SEND, "m")
        assert durability(again) == ["disk"]
