"""Turns of thousands of subscriptions that begin and end together: of one topic or queue, on few or many connections;
and of lanes that have waited for the disk.
"""

from __future__ import annotations

import pytest
import trio

from sluiceway.store.memory import MemoryEngine
from tests.limits.law import LawStage, frame
from tests.scenarios.client import Client


async def crowd(stage: LawStage, connections_count: int, count: int, /, **headers: object) -> list[Client]:
    """So many subscriptions, on so many connections."""
    readers = []
    for _part in range(connections_count):
        reader = await stage.client()
        frames = (frame("SUBSCRIBE", id=n, **headers) for n in range(count // connections_count))
        await reader.send_raw(b"".join(frames))
        await reader.sync()
        readers.append(reader)
    return readers


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["/topic/t", "/queue/q"])
async def test_windows_that_open_together(stage: LawStage, name: str) -> None:
    """Each has used up its credit of one, and acknowledges in the same moment as the others do."""
    readers = await crowd(stage, 50, 5_000, destination=name, ack="client", credit=1)
    sender = await stage.client()
    sends = 2 if "topic" in name else 10_000
    await sender.send_raw(frame("SEND", b"x", destination=name) * sends)
    await sender.sync()
    for reader in readers:
        await reader.sync()
    acks = [b"".join(frame("ACK", id=each.headers["ack"]) for each in reader.messages) for reader in readers]
    [queue] = stage.broker.registry.destinations[name].queues
    assert queue.delivered_count == 5_000
    with stage.law(f"ACKs that open windows of {name}", limit="a read of each of 50 connections", crowd="5,000 of it"):
        async with trio.open_nursery() as nursery:  # so that all of it is there before anything is read
            for reader, data in zip(readers, acks, strict=True):
                nursery.start_soon(reader.send_raw, data)
        await trio.sleep(3)
    assert queue.delivered_count == 10_000
    assert not queue.held_turns


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_lanes_that_waited_for_the_disk() -> None:
    """Of five connections, each with a message for each of a thousand new queues."""
    async with LawStage(engine=MemoryEngine()) as stage:
        store = stage.broker.store
        assert store is not None
        senders = [await stage.client() for _ in range(5)]
        store._disk_changed(True, 0)
        frames = (frame("SEND", b"x", destination=f"/queue/q{n}", persistent="true") for n in range(1000))
        data = b"".join(frames)
        for sender in senders:
            await sender.send_raw(data)
        await trio.sleep(2)
        limit, others = "lanes of a connection", "five connections"
        with stage.law("SENDs go on when the disk has room", limit=limit, crowd=others) as counting:
            with counting.called("the disk"):
                store._disk_changed(False, 1 << 40)
            await trio.sleep(3)
        assert all(stage.depth_count(f"/queue/q{n}") == 5 for n in range(1000))
