"""The stage on which the general law is tested, and the judge.

*The law.* No single frame, request or closing connection holds the loop for more than 5 ms at the limits of the default
configuration; no client makes the broker hold memory that no limiter counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sluiceway.protocols.streams import memory_pair
from tests.limits.counting import STEP_UNITS_MAX, Counting
from tests.limits.known import KNOWN, WORSE_SHARE
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage

CROWD_COUNT: Final = 10_000
"""Others that are there: destinations, subscriptions, messages, connections, as fits the frame."""

RECORDED: Final = Path(os.environ["LAW_RECORDED"]) if "LAW_RECORDED" in os.environ else None
"""A file to which each case adds its name and what its largest step took: to make `KNOWN` anew, and for reports."""

PIPE_BYTES: Final = 8 * 1024 * 1024
"""What a client's stream holds: a kernel's buffers hold as much of a fast peer, and the broker reads it in one go."""


def frame(command: str, body: bytes = b"", /, **headers: object) -> bytes:
    """The bytes of a frame; header names are written with `_` for `-`."""
    lines = [command, *(f"{name.replace('_', '-')}:{value}" for name, value in headers.items())]
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


class LawStage(Stage):
    """A broker as it comes, and clients that can send megabytes at once."""

    async def check_all_accounted_for(self) -> None:
        """Everybody goes. That the books are in order then is what tests/scenarios are for."""
        for client in self.clients:
            client.stream.close()
        await self.settled_down()

    async def client(self, *, heart_beat: tuple[int, int] = (0, 0), **headers: str) -> Client:
        """A connected client; header names are written with `_` for `-`."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        name = f"client {len(self.clients) + 1}"
        ours, theirs = memory_pair(capacity_bytes=PIPE_BYTES, names=(name, "memory broker"))
        self.broker._begin(theirs, self.broker.config.listeners[0].limits, "memory")
        client = Client(ours, name)
        self.clients.append(client)
        await client.connect("1.2", heart_beat=heart_beat, **headers)
        return client

    async def filled(self, destination: str, count: int, **headers: object) -> Client:
        """So many messages of one byte in a destination; returns who sent them."""
        sender = await self.client()
        await sender.send_raw(frame("SEND", b"x", destination=destination, **headers) * count)
        await sender.sync()
        return sender

    async def holding(self, count: int, *, ack: str = "client-individual", queue: str = "/queue/q") -> Client:
        """A client that has so many messages of a queue in its hands, in `messages`."""
        client = await self.client()
        await client.subscribe(queue, ack=ack, credit=f"{count},67108864")
        await self.filled(queue, count)
        await client._until(lambda: len(client.messages) == count, "all messages")
        return client

    @contextmanager
    def law(self, name: str, *, limit: str, crowd: str = "nobody else") -> Iterator[Counting]:
        """What is done in here holds the loop for 5 ms at most in one go, counted.

        :param name: the frame or request; unique, the key of `KNOWN`.
        :param limit: what of the default configuration bounds it.
        :param crowd: who else is there.
        """
        with Counting() as counting:
            yield counting
        largest = counting.largest[0]
        if RECORDED is not None:
            with RECORDED.open("a") as file:
                file.write(f"{name}\t{largest.units}\t{largest.label}\n")
        case = f"{name}, at its limit ({limit}), with {crowd}"
        known = KNOWN.get(name)
        if known is None:
            assert largest.units <= STEP_UNITS_MAX, f"{case}: held the loop too long.\n{largest}"
        else:
            assert largest.units > STEP_UNITS_MAX, f"{case} keeps the law now: remove its row from KNOWN.\n{largest}"
            assert largest.units <= known * (1 + WORSE_SHARE), (
                f"{case} has become worse than the {known:,} units that are known.\n{largest}"
            )
