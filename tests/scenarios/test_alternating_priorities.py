"""SENDs of alternating priorities in one read are collected by priority: what each of them has promised holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

REJECT: dict[str, dict[str, Any]] = {"/queue/small": {"full": "reject", "count_max": 3}}
PRIORITIES = ("4", "9", "4", "0", "9")


async def send_alternating(client: Client, destination: str, count: int, **headers: str) -> None:
    frames = [
        client.encode(
            "SEND",
            {"destination": destination, "priority": PRIORITIES[n % len(PRIORITIES)], "content-length": "4", **headers},
            f"{n:04}",
        )
        for n in range(count)
    ]
    await client.send_raw(b"".join(frames))


@pytest.mark.parametrize("destination", ["/queue/a", "/topic/a"])
@pytest.mark.parametrize("persistent", ["true", "false"])
async def test_each_priority_keeps_its_order_and_nothing_is_lost(destination: str, persistent: str) -> None:
    async with Stage() as stage:
        reader, writer = await stage.connect(name="reader"), await stage.connect(name="writer")
        await reader.subscribe(destination)
        await reader.sync()
        await send_alternating(writer, destination, 500, persistent=persistent)
        await writer.sync()
        came = [await reader.next_message() for _ in range(500)]
        for priority in set(PRIORITIES):
            bodies = [
                int(message.body) for message in came if PRIORITIES[int(message.body) % len(PRIORITIES)] == priority
            ]
            assert bodies == sorted(bodies)
            assert len(bodies) == 100 * PRIORITIES.count(priority)


async def test_sends_to_another_destination_are_published_behind_those_before() -> None:
    """Who reads both destinations sees the order in which one client sent to them."""
    async with Stage() as stage:
        reader, writer = await stage.connect(name="reader"), await stage.connect(name="writer")
        for destination in ("/queue/a", "/queue/b"):
            await reader.subscribe(destination, id=destination)
        await reader.sync()
        frames = [
            writer.encode("SEND", {"destination": destination, "priority": priority}, f"{n}")
            for n, (destination, priority) in enumerate(
                [("/queue/a", "4"), ("/queue/a", "5"), ("/queue/b", "4"), ("/queue/a", "4"), ("/queue/b", "4")]
            )
        ]
        await writer.send_raw(b"".join(frames))
        came = [await reader.next_message() for _ in frames]
        assert {message.body for message in came} == {b"0", b"1", b"2", b"3", b"4"}
        of_b = [message.body for message in came if message.headers["destination"] == "/queue/b"]
        assert of_b == [b"2", b"4"]


async def test_nothing_behind_a_refused_send_is_accepted() -> None:
    """Three of priority 4 fill their room; the fourth is refused, and the one of priority 9 behind it never counts."""
    async with Stage(REJECT) as stage:
        writer = await stage.connect(name="writer")
        frames = [
            writer.encode("SEND", {"destination": "/queue/small", "priority": priority}, body)
            for priority, body in [("4", "a"), ("9", "b"), ("4", "c"), ("4", "d"), ("4", "refused"), ("9", "behind")]
        ]
        await writer.send_raw(b"".join(frames))
        await writer.expect_error("is full")
        assert stage.depth_count("/queue/small") == 4
