"""The table of cases of the law about memory, and what they are made of. `weighed.py` has all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.limits.weighing import Plain
from tests.scenarios.stage import Stage

COUNT = 200
"""Acts of one round."""

DEAD_QUEUES_COUNT = 80
"""Queues with a dead-letter queue of their own."""

Play = Callable[[range], Awaitable[Any]]
Made = Callable[[Stage], Awaitable[Play]]

CASES: dict[str, tuple[Made, int]] = {}
"""By name: what makes a case ready and returns how it is played, and how many acts are a round."""


def case(name: str, count: int = COUNT) -> Callable[[Made], Made]:
    """Enters a case into the table."""

    def enter(made: Made) -> Made:
        assert name not in CASES, name
        CASES[name] = (made, count)
        return made

    return enter


def frames(name: str, make: Callable[[int], bytes], *, first: bytes = b"", count: int = COUNT) -> None:
    """A case of one client: a frame (or some) for each act, behind `first`."""

    async def made(stage: Stage) -> Play:
        client = await Plain(stage).connected(client_id="me")
        await client.do(first)

        async def play(numbers: range) -> None:
            await client.do(b"".join(map(make, numbers)))

        return play

    CASES[name] = (made, count)


def long(number: int, length: int = 900) -> str:
    """A name that nothing else has, as long as names of destinations may be."""
    return f"{number:0{length}d}"


def acks_of(read: bytes) -> list[str]:
    return [line[4:].decode() for line in read.split(b"\n") if line.startswith(b"ack:")]


Q, T = "/queue/q", "/topic/t"

POLICIES: dict[str, dict[str, Any]] = {
    "/queue/full": {"memory_bytes": 1_000, "paging": "throttle"},
    "/log/slow": {"redelivery_delay_ms": 3_600_000},
    **{
        f"/queue/dead.{n}": {"redeliveries_max": 0, "dead_letter": f"/queue/letters.{n}"}
        for n in range(DEAD_QUEUES_COUNT)
    },
}
