"""One consumer's credit, wanted by several destinations or priorities: each gets its turns. DESIGN sections 5 and 6."""

from __future__ import annotations

from collections import Counter

from tests.scenarios.stage import Stage


async def test_wildcard_subscription_takes_from_all_its_queues(stage: Stage) -> None:
    consumer, producer = await stage.connect(), await stage.connect()
    for name in "abc":
        await producer.send_all(f"/queue/w.{name}", range(200))
    await consumer.subscribe("/queue/w.*", ack="client-individual", prefetch_count="10")
    got: Counter[str] = Counter()
    for _ in range(300):
        delivery = await consumer.next_message()
        got[delivery.headers["destination"]] += 1
        await consumer.ack(delivery)
    assert len(got) == 3 and max(got.values()) - min(got.values()) <= 20, got


async def test_backlog_moves_beside_a_stream_of_raised_priority(stage: Stage) -> None:
    """Though that may use the express lane, so that the ordinary window is never free."""
    consumer, producer = await stage.connect(), await stage.connect()
    await producer.send_all("/queue/work", range(100))
    frames = [
        producer.encode("SEND", {"destination": "/queue/work", "priority": "9"}, f"urgent {n}") for n in range(1000)
    ]
    await producer.send_raw(b"".join(frames))
    await consumer.subscribe("/queue/work", ack="client-individual", prefetch_count="20")
    ordinary_count = 0
    for _ in range(600):
        delivery = await consumer.next_message()
        ordinary_count += not delivery.text.startswith("urgent")
        await consumer.ack(delivery)
    assert 20 <= ordinary_count <= 60
