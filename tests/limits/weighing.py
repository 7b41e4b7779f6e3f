"""A balance: what clients make the broker hold by the allocator, against what limiters count of it.

*How.* One act is played `count` times, then as often again with different content. What the allocator (tracemalloc)
says has grown in the second round must be counted, but for a factor and a constant. So what is made once, and caches
that are full after the first round, do not show; what is kept of each act does, whatever it is.

*Counted* is the memory in use that the flow map says (`FlowManager.used_bytes`), and what trails have, whose limiter
is a setting of their own.

*Clients* keep nothing (`Plain`). Their ends of memory streams stand for the kernel's and for trio's sockets.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio

from sluiceway.protocols.streams import MemoryStream, memory_pair
from sluiceway.queues import names
from sluiceway.store.memory import MemoryEngine
from tests.limits.known import UNCOUNTED, UNCOUNTED_WORSE_SHARE
from tests.limits.law import PIPE_BYTES, frame
from tests.scenarios.client import PATIENCE_SECONDS
from tests.scenarios.stage import Stage

FACTOR: Final = 1.3
"""What the allocator takes for what is counted as 1: docs/flow-control.md says so of the process."""

CONSTANT_BYTES: Final = 40 * 1024
"""What may grow beside that in a round, whatever was played: tables that double, the allocator's own."""


class Plain:
    """A client that writes bytes and forgets what comes back."""

    __slots__ = ("_receipts_count", "stream")

    def __init__(self, stage: Stage) -> None:
        """Connect the stream only: nothing is said yet."""
        self.stream: MemoryStream
        self.stream, theirs = memory_pair(capacity_bytes=PIPE_BYTES, names=("client", "memory broker"))
        stage.broker._begin(theirs, stage.broker.config.listeners[0].limits, "memory")
        self._receipts_count = 0

    async def connected(self, **headers: object) -> Plain:
        """Say CONNECT, and wait for the answer."""
        await self.stream.send_all(frame("CONNECT", accept_version="1.2", host="test", **headers))
        await self._read_until(b"CONNECTED\n")
        return self

    async def do(self, data: bytes) -> bytes:
        """Send these frames, and wait until all of them have taken effect; returns what came back."""
        self._receipts_count += 1
        name = f"sync-{self._receipts_count}"
        await self.stream.send_all(
            data + frame("BEGIN", transaction=name) + frame("ABORT", transaction=name, receipt=name)
        )
        return await self._read_until(f"receipt-id:{name}\n".encode())

    def take(self) -> bytes:
        """What has come by now."""
        pieces = []
        while piece := self.stream.read(1 << 20):
            pieces.append(piece)
        return b"".join(pieces)

    async def _read_until(self, wanted: bytes) -> bytes:
        seen = b""
        with trio.move_on_after(PATIENCE_SECONDS):
            while wanted not in seen:
                piece = await self.stream.receive_some()
                seen += piece
                assert piece, f"the broker closed: {seen[-600:]!r}"
            return seen
        raise AssertionError(f"waited in vain for {wanted!r}, the last that came was {seen[-600:]!r}")


@attrs.frozen
class Weighed:
    """What one round made the broker hold."""

    count: int
    grown_bytes: int
    """By the allocator."""
    counted_bytes: int
    """By limiters."""

    @property
    def uncounted_bytes(self) -> int:
        """Of each act that which no limiter counts."""
        return max(0, round((self.grown_bytes - FACTOR * max(0, self.counted_bytes) - CONSTANT_BYTES) / self.count))

    def __str__(self) -> str:
        return (
            f"{self.grown_bytes:,} bytes more of which {self.counted_bytes:,} are counted, "
            f"{self.uncounted_bytes:,} uncounted by each of {self.count:,}"
        )


class Balance:
    """Weighs one case. `tracemalloc` is on while it is entered."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> Balance:
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *_error: object) -> None:
        tracemalloc.stop()

    async def weigh(self, play: Callable[[range], Awaitable[Any]], count: int) -> Weighed:
        """Play it twice; what the second time added."""
        await play(range(count))
        grown, counted = await self._now()
        await play(range(count, 2 * count))
        grown_then, counted_then = await self._now()
        return Weighed(count, grown_then - grown, counted_then - counted)

    async def _now(self) -> tuple[int, int]:
        await self._stage.settled_down()
        gc.collect()
        names._parse.cache_clear()  # the process's: 4,096 names
        names.meant_by.cache_clear()  # as many
        broker = self._stage.broker
        broker.memory.upkeep.settle()
        trails = broker.trails
        counted = broker.manager.used_bytes + (0 if trails is None else trails.used_bytes)
        if isinstance(engine := broker._location.engine, MemoryEngine):
            counted += engine.size_bytes() + len(engine._keys) * 170  # stands for the disk
        return tracemalloc.get_traced_memory()[0], counted

    def where(self) -> str:
        """Who holds the most now, by line."""
        found = tracemalloc.take_snapshot().statistics("lineno")[:16]
        return "\n".join(f"    {each.size:>11,}  {each.count:>7,}  {each.traceback}" for each in found)


def judge(name: str, weighed: Weighed, balance: Balance) -> None:
    """Raise AssertionError unless what has grown is counted, or known not to be."""
    known = UNCOUNTED.get(name)
    if known is None:
        assert not weighed.uncounted_bytes, f"{name}: {weighed}. Held, the most first:\n{balance.where()}"
        return
    assert weighed.uncounted_bytes, f"{name} is counted now ({weighed}): remove its row from UNCOUNTED"
    assert weighed.uncounted_bytes <= known * (1 + UNCOUNTED_WORSE_SHARE), (
        f"{name} has become worse than the {known:,} bytes that are known: {weighed}\n{balance.where()}"
    )
