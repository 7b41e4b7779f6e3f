"""The broker's memory is full of what waits for destinations: whoever can consume empties it, to the last message."""

from __future__ import annotations

import pytest
import trio

from sluiceway.store.memory import MemoryEngine
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

CAPACITY_BYTES = 1 << 20
SENDERS_COUNT = 10
SENT_BYTES = 300_000
"""By each sender: what stashes or transactions hold is far beyond the capacity."""


async def write(client: Client, data: bytes) -> None:
    """As fast as the broker reads."""
    while data:
        taken_bytes = client.stream.write([data])
        data = data[taken_bytes:]
        if not taken_bytes:
            await trio.sleep(0.05)


def frames(client: Client, destination: str, count: int, body: str, *, transaction: bool) -> bytes:
    head = {"destination": destination, **({"transaction": "t"} if transaction else {})}
    data = b"".join([client.encode("SEND", head, body)] * count)
    if transaction:
        return client.encode("BEGIN", {"transaction": "t"}) + data + client.encode("COMMIT", {"transaction": "t"})
    return data


@pytest.mark.parametrize("body_bytes", [100, 10_000])
@pytest.mark.parametrize(
    ("destination", "transaction", "paging"),
    [
        *(("/queue/a", False, False), ("/queue/a", True, True)),
        *(("/queue/a,/queue/b,/queue/c", False, True), ("/queue/a,/queue/b,/queue/c", True, False)),
    ],
)
async def test_what_waits_beyond_the_memory_comes_to_its_consumers(
    destination: str, transaction: bool, body_bytes: int, paging: bool
) -> None:
    """Stashes and COMMITs that hold the memory wait for queues that are empty and get none of it."""
    names = destination.split(",")
    count = SENT_BYTES // body_bytes // len(names)
    async with Stage(engine=MemoryEngine() if paging else None) as stage, trio.open_nursery() as nursery:
        budget = stage.broker.memory.budget
        budget.resize(CAPACITY_BYTES)
        for _ in range(SENDERS_COUNT):
            sender = await stage.connect()
            data = frames(sender, destination, count, "x" * body_bytes, transaction=transaction)
            nursery.start_soon(write, sender, data)
        await trio.sleep(5)
        consumer = await stage.connect()
        for name in names:
            await consumer.subscribe(name, id=name)
        wanted_count = SENDERS_COUNT * count * len(names)
        got_count = 0
        with trio.fail_after(300):
            while got_count < wanted_count:
                got_count += len(await consumer.drain(1))
        assert got_count == wanted_count
        assert not await consumer.drain(1)
        assert not budget.short and not budget.waiting_count


async def test_a_connection_is_read_for_its_acks_when_others_hold_the_memory() -> None:
    """Its own SENDs wait, and what it holds unacknowledged is what is in the way."""
    async with Stage() as stage, trio.open_nursery() as nursery:
        budget = stage.broker.memory.budget
        budget.resize(CAPACITY_BYTES)
        worker = await stage.connect()
        await worker.subscribe("/queue/a", id="a", ack="client-individual", prefetch_count="10")
        for _ in range(SENDERS_COUNT):
            sender = await stage.connect()
            nursery.start_soon(write, sender, frames(sender, "/queue/a", 300, "x" * 1_000, transaction=False))
        reader = await stage.connect()
        await reader.subscribe("/queue/answers", id="answers")
        await trio.sleep(5)
        got_count = 0
        with trio.fail_after(2_000):
            while got_count < 3_000:
                deliveries = await worker.drain(0.01)
                got_count += len(deliveries)
                answers = [
                    worker.encode("SEND", {"destination": "/queue/answers"}, "y" * 100)
                    + worker.encode("ACK", {"id": each.headers["ack"]})
                    for each in deliveries
                ]
                nursery.start_soon(write, worker, b"".join(answers))
                await trio.sleep(0.01)
        await trio.sleep(1)
        answered_count = len(await reader.drain(1))
        assert answered_count == 3_000
        assert not budget.short
