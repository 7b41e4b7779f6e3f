"""Seeded races of lives that are lived at the same time, in the smallest steps: each client works on while walks of
others are under way. Durable subscriptions come and go, destinations are deleted, purged and moved from in the midst of
being attached to, dead letters go to a queue that is full, and connections end in the midst of each of these. In some
of them transactions are spooled, and in some the broker's memory is full nearly all the time.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any, Final

import pytest
import trio

from sluiceway.admin.errors import ApiError
from sluiceway.admin.messages import MessageReader
from sluiceway.admin.operations import Operations
from sluiceway.protocols.stomp import spooling
from sluiceway.store.memory import MemoryEngine
from tests.faults.store.small_store import repeatable_trio
from tests.how_often import rounds
from tests.scenarios.client import Client
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.stage import Stage
from tests.scenarios.tiny_steps import tiny_steps

LIVES_COUNT: Final = 5
ACTS_COUNT: Final = 40
QUEUES: Final = ("/queue/a.1", "/queue/a.2", "/queue/a.3", "/queue/full")
TOPICS: Final = ("/topic/t.1", "/topic/t.2")
WILDCARDS: Final = ("/queue/>", "/queue/a.*", "/topic/>")
POLICIES: Final = {
    "/queue/a.*": {"redeliveries_max": 0, "dead_letter": "/queue/full"},
    "/queue/full": {"count_max": 2, "full": "block", "redeliveries_max": 1},
    "/topic/t.1": {"redeliveries_max": 0, "dead_letter": "/queue/full", "count_max": 5, "full": "block"},
}


class Lives:
    """The clients of one race, and an operator."""

    def __init__(self, random: Random) -> None:
        self._random = random
        limits = random.choice(({}, {"transaction_bytes_max": 500}))  # the second: most transactions are spooled
        self._memory_bytes = random.choice((None, None, 32_768, 250_000))
        self._stage = Stage(POLICIES, engine=MemoryEngine(), linger_seconds=0.2, **limits)
        self.number = 0

    async def run(self) -> None:
        async with self._stage as stage:
            reader = MessageReader(stage.broker.manager)
            reader.open()
            operations = Operations(stage.broker, reader)
            if self._memory_bytes is not None:
                stage.broker.memory.budget.resize(self._memory_bytes)
            with trio.fail_after(5000):
                async with trio.open_nursery() as nursery:
                    for _ in range(LIVES_COUNT):
                        nursery.start_soon(self._live)
                    nursery.start_soon(self._operate, operations)
                await trio.sleep(5)
                reader.close()
                while stage.broker.registry.destinations:  # senders that had to wait come after the first are gone
                    for destination in list(stage.broker.registry.destinations.values()):
                        stage.broker.registry.delete(destination, "the race is over")
                    await trio.sleep(5)
            assert stage.broker.faults.count == 0

    async def _live(self) -> None:
        """One connection after the other, each cut off in the midst of something, or ended in order."""
        random = self._random
        for _ in range(3):
            self.number += 1
            named = random.choice(({}, {"client-id": "one of a few"}))  # the next one of that name ends it
            client = await self._stage.connect(name=f"c{self.number}", **named)
            subscriptions: list[str] = []
            for _ in range(ACTS_COUNT // 3):
                # It may be read no more for now, or have ended.
                with trio.move_on_after(0.5), suppress(OSError, trio.BrokenResourceError):
                    await self._act(client, subscriptions)
                client.receive_now()
                if client.error is not None or client.ended:
                    break
                await trio.sleep(random.choice((0, 0, 0, 0.001, 0.3)))
            client.vanish()

    async def _act(self, client: Client, subscriptions: list[str]) -> None:
        random = self._random
        chance = random.random()
        self.number += 1
        if chance < 0.35:
            to = ",".join(random.sample((*QUEUES, *TOPICS), random.choice((1, 1, 3))))
            await client.frame("SEND", {"destination": to, "persistent": random.choice(("true", "false"))}, "x")
        elif chance < 0.55:
            headers = {"id": str(self.number), "ack": random.choice(("auto", "client", "client-individual"))}
            headers["destination"] = random.choice((*QUEUES, *TOPICS, *WILDCARDS))
            if headers["destination"] in TOPICS and random.random() < 0.7:
                # Durable, and shared by those who name them alike: by topic and id.
                headers |= {"durable": "true", "auto-delete": "false", "id": random.choice(("d", "e"))}
            if headers["id"] not in subscriptions:
                subscriptions.append(headers["id"])
                await client.frame("SUBSCRIBE", headers)
        elif chance < 0.65 and subscriptions:
            await client.frame("UNSUBSCRIBE", {"id": subscriptions.pop(random.randrange(len(subscriptions)))})
        elif chance < 0.9 and client.messages:
            delivery = client.messages.popleft()
            if "ack" in delivery.headers:
                await client.frame(random.choice(("ACK", "NACK", "NACK")), client.naming(delivery))
        else:
            name = {"transaction": f"t{self.number}"}
            await client.frame("BEGIN", name)
            for _ in range(random.choice((3, 3, 9))):
                to = ",".join(random.sample(QUEUES, random.choice((1, 1, 2))))
                await client.frame("SEND", {"destination": to, "persistent": "true", **name}, "y")
            await client.frame(random.choice(("COMMIT", "COMMIT", "ABORT")), name)

    async def _operate(self, operations: Operations) -> None:
        random = self._random
        async with trio.open_nursery() as nursery:
            for _ in range(ACTS_COUNT):
                there = list(self._stage.broker.registry.destinations.values())
                if there:
                    nursery.start_soon(self._interfere, operations, random.choice(there))
                await trio.sleep(random.choice((0, 0.001, 0.3)))

    async def _interfere(self, operations: Operations, destination: Any) -> None:
        what = self._random.choice(("delete", "purge", "move", "move"))
        try:
            if what == "delete":
                self._stage.broker.registry.delete(destination, "the race wants it so")
            elif what == "purge":
                await operations.purge(destination)
            else:
                await operations.move(destination, self._random.choice(QUEUES), None)
        except ApiError:
            pass  # it said what can't be done


def run_lives(seed: int) -> None:
    """One race; the same seed, the same race."""
    random = Random(seed)

    async def main() -> None:
        await Lives(random).run()

    with tiny_steps(), repeatable_trio(random), pytest.MonkeyPatch.context() as patch:
        patch.setattr(spooling, "PIECE_BYTES", 400)
        run_in_virtual_time(main)


@pytest.mark.parametrize("part", range(rounds(1)))
def test_lives_at_the_same_time_leave_the_broker_whole(part: int) -> None:
    """`run_lives(seed)` plays one again."""
    for seed in range(part * 6, (part + 1) * 6):
        try:
            run_lives(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
