"""Much at once that is stored, and much that comes again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio

from sluiceway.store.engine import Change, EngineError
from sluiceway.store.memory import MemoryEngine
from tests.how_often import crowd_of
from tests.limits.law import LawStage, frame
from tests.limits.test_frames import MANY, Q
from tests.limits.test_transactions import SPREAD

READ = crowd_of(8_000, 4_000)
"""Queues of one reader."""
BESIDE = crowd_of(10_000, 5_000)
"""Queues of others."""


@pytest.fixture
async def stored() -> AsyncIterator[LawStage]:
    """A broker with a store."""
    async with LawStage(engine=MemoryEngine()) as stage:
        yield stage


@pytest.mark.slow
async def test_a_batch_of_small_messages(stored: LawStage) -> None:
    sender = await stored.client()
    data = frame("SEND", b"x" * 20, destination=Q, persistent="true") * (2 * MANY)
    with stored.law("storing small messages", limit="20,000 messages, BATCH_BYTES"):
        await sender.send_raw(data)
        await sender.sync()
        await trio.sleep(2)


@pytest.mark.slow
async def test_a_batch_beside_many_queues(stored: LawStage) -> None:
    """What is not due yet costs nothing, however often somebody waits for the disk; what is due goes in steps."""
    for first in range(0, BESIDE, 1_000):
        client = await stored.client()
        names = range(first, first + 1_000)
        await client.send_raw(b"".join(frame("SUBSCRIBE", destination=f"/queue/{n}", id=n) for n in names))
        await client.sync()
    store = stored.broker.store
    assert store is not None
    for kind in ("have time", "are urgent"):
        for queue in [queue for n in range(BESIDE) for queue in stored.partitions(f"/queue/{n}")]:
            store.touch(store.storage_of(queue, topic=False), urgent=kind == "are urgent")
        assert len(store._dirty) >= BESIDE
        with stored.law(f"receipts beside many queues that {kind}", limit="a message", crowd=f"{BESIDE:,} queues"):
            for _ in range(3):
                await client.sent("/queue/other", "x", persistent="true")


class FailingDisk(MemoryEngine):
    """Writes nothing while it `fails`."""

    fails = False

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        if self.fails:
            raise EngineError("a test: the disk fails")
        super().write(changes, sync=sync)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_disk_that_fails_beside_many_queues_with_readers_and_senders() -> None:
    """All readers go on without it, all senders wait; when it works again all go on."""
    disk = FailingDisk()
    names = [f"/queue/q{n}" for n in range(READ)]
    async with LawStage(engine=disk) as stage:
        sender = await stage.client()
        for first in range(0, READ, 1_000):
            some = names[first : first + 1_000]
            await sender.send_raw(b"".join(frame("SEND", b"x", destination=name, persistent="true") for name in some))
            await sender.sync()
        await trio.sleep(5)
        reader = await stage.client()
        await reader.send_raw(
            frame("SUBSCRIBE", destination="/queue/>", id="all", ack="client", credit="100000,9999999")
        )
        disk.fails = True
        with stage.law("a disk that begins to fail", limit=f"{READ:,} queues that are read"):
            await reader._until(lambda: len(reader.messages) == READ, "what was stored before")
        heads = ({"destination": name, "persistent": "true"} for name in names[:SPREAD])
        await sender.send_raw(b"".join(frame("SEND", b"y", **head) for head in heads))
        await trio.sleep(10)
        assert len(reader.messages) == READ
        disk.fails = False
        with stage.law("a disk that works again", limit=f"2,000 queues with senders, {READ:,} with readers"):
            await reader._until(lambda: len(reader.messages) == READ + SPREAD, "what was held back")


@pytest.mark.slow
async def test_what_an_ended_connection_left_behind_goes_on_when_the_disk_works_again() -> None:
    """One run to each of many queues, all in the same moment."""
    disk = FailingDisk()
    async with LawStage(engine=disk) as stage:
        sender = await stage.client()
        await sender.sent("/queue/first", "x", persistent="true")
        disk.fails = True
        heads = ({"destination": f"/queue/q{n}", "persistent": "true"} for n in range(SPREAD))
        await sender.send_raw(b"".join(frame("SEND", b"y", **head) for head in heads))
        await trio.sleep(5)
        sender.vanish()
        await trio.sleep(5)
        disk.fails = False
        with stage.law("what an ended connection left behind goes on", limit="2,000 queues"):
            await trio.sleep(10)
        assert all(stage.partitions(f"/queue/q{n}")[0].elements.live_count == 1 for n in range(SPREAD))


COMES_AGAIN = {
    "one head": lambda n: {},
    "groups": lambda n: {"group": n % 5000},
    "priorities": lambda n: {"priority": n % 10},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMES_AGAIN)
async def test_what_a_cumulative_nack_gave_back_comes_again(stage: LawStage, kind: str) -> None:
    client = await stage.client()
    await client.subscribe(Q, ack="client", credit="100000,67108864")
    sender = await stage.client()
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=Q, **COMES_AGAIN[kind](n)) for n in range(MANY)))
    await client._until(lambda: len(client.messages) == MANY, "all messages")
    last = client.messages[-1]
    other = await stage.client()
    for number in range(100):
        await other.subscribe(Q, id=str(number), ack="client", credit="100000,67108864")
    with stage.law(f"redelivery of {kind}", limit="10,000 deliveries", crowd="101 subscriptions"):
        await client.nack(last)
        await trio.sleep(5)
