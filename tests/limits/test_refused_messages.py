"""What the subscriber of a topic refuses by the thousands: it waits, is given up, comes again, and is skipped."""

from __future__ import annotations

import pytest
import trio

from tests.limits.law import LawStage, frame

T = "/topic/t"
SENT = 40_000
POLICIES: dict[str, dict[str, object]] = {
    "later": {"redelivery_delay_ms": 60_000},
    "given up without dead letters": {"redeliveries_max": 0, "dead_letter": None},
    "given up": {"redeliveries_max": 0, "dead_letter": "/queue/dead"},
}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("full", ["block", "drop_oldest"])
@pytest.mark.parametrize("kind", POLICIES)
async def test_messages_refused_by_a_subscriber(kind: str, full: str) -> None:
    """Every other one, so that none of them can be taken together."""
    policy = {"count_max": SENT, "full": full, **POLICIES[kind]}
    async with LawStage({T: policy, "/queue/dead": {"count_max": 1_000, "full": "block"}}) as stage:
        client, limit = await stage.client(), f"every other one of {SENT:,}"
        headers = {"ack": "client-individual", "credit": f"{SENT},67108864", "durable": "true"}
        await client.subscribe(T, **headers)
        await stage.filled(T, SENT)
        await client._until(lambda: len(client.messages) == SENT, "all messages")
        nacks = [frame("NACK", id=each.headers["ack"]) for each in list(client.messages)[::2]]
        with stage.law(f"NACKs of a topic's messages, {kind}, {full}", limit=limit):
            await client.send_raw(b"".join(nacks))
            await client.sync()
            await trio.sleep(3)
        with stage.law(f"messages of a topic that come again, {kind}, {full}", limit=limit):
            await trio.sleep(70)
        nacks = [frame("NACK", id=each.headers["ack"]) for each in list(client.messages)[SENT:]]
        await client.send_raw(b"".join(nacks))
        await client.sync()
        if full == "drop_oldest":
            sender = await stage.client()
            with stage.law(f"messages that drop refused ones of a topic, {kind}", limit=limit):
                await sender.send_raw(frame("SEND", b"x" * 30, destination=T) * (SENT // 2))
                await sender.sync()
                await trio.sleep(3)
        with stage.law(f"abrupt with refused messages of a topic, {kind}, {full}", limit=limit):
            client.vanish()
            await trio.sleep(3)
