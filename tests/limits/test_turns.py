"""Turns of thousands of subscriptions that begin and end together: of one topic or queue, on few or many connections."""

from __future__ import annotations

import pytest
import trio

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
    assert not queue._in_turn
