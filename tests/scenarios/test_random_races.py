"""Seeded races in virtual time: destinations and logs are deleted, purged, moved, paused and abandoned by their clients
while others send to them, read, browse, claim and acknowledge. The broker lives, makes no mistake, answers every
receipt or ends the connection with an ERROR, and nothing is left behind.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import trio

from sluiceway.admin.errors import ApiError
from sluiceway.admin.messages import MessageReader
from sluiceway.admin.operations import Operations
from sluiceway.queues.logs.table import LogError
from sluiceway.store.memory import MemoryEngine
from tests.faults.store.small_store import repeatable_trio
from tests.how_often import rounds
from tests.scenarios.client import Client
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.log_stage import PASSCODE, LogStage

SEEDS_AT_ONCE = 10
STEPS_COUNT = 120
QUEUES = ("/queue/shared", "/queue/small", "/queue/idle", "/exclusive-queue/one")
TOPICS = ("/topic/t", "/topic/waits")
LOGS = ("/log/a", "/log/b")
POLICIES = {
    "/queue/small": {"count_max": 3},
    "/queue/idle": {"auto_delete_seconds": 1, "redeliveries_max": 1},
    "/topic/waits": {"count_max": 5},
}


class Race:
    """One of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.stage = LogStage(POLICIES, engine=MemoryEngine())
        self.clients: list[tuple[Client, set[str], dict[str, str]]] = []
        """With the receipts each waits for, and what its subscriptions are."""
        self.number = 0

    async def run(self) -> None:
        async with self.stage as stage:
            self.reader = MessageReader(stage.broker.manager)
            self.reader.open()
            self.operations = Operations(stage.broker, self.reader)
            async with trio.open_nursery() as nursery:
                for _ in range(STEPS_COUNT):
                    if len(self.clients) < 4:
                        await self._connect()
                    work = self.random.choices((self._client_does, self._admin_does), (5, 1))[0]
                    if work is self._admin_does:
                        nursery.start_soon(work)
                    else:
                        await work()
                    await trio.sleep(self.random.choice((0, 0, 0.001, 0.3)))
                for destination in list(stage.broker.registry.destinations.values()):
                    if destination.is_paused:
                        self.operations.resume(destination)
                with trio.move_on_after(40):  # senders may wait for room until somebody reads
                    while any(owed for _client, owed, _subs in self.clients):
                        for destination in list(stage.broker.registry.destinations.values()):
                            if destination.is_paused:
                                self.operations.resume(destination)
                            stage.broker.registry.delete(destination, "the race is over")
                        await trio.sleep(1)
                        for client, owed, _subs in self.clients:
                            self._read(client, owed)
                for client, owed, _subs in self.clients:
                    assert not owed, f"{client.name} waits for {owed}"
                    client.vanish()
            await trio.sleep(5)
            self.reader.close()
            for log in list(stage.broker.logs or ()):
                self._delete_log(log.name)
            for destination in list(stage.broker.registry.destinations.values()):
                stage.broker.registry.delete(destination, "the race is over")
            await trio.sleep(40)
            assert stage.broker.faults.count == 0

    async def _connect(self) -> None:
        self.number += 1
        client = await self.stage.connect(name=f"c{self.number}", **{"client-id": f"id{self.number % 3}"})
        self.clients.append((client, set(), {}))

    def _read(self, client: Client, owed: set[str]) -> None:
        client.receive_now()
        while client.receipts:
            owed.discard(client.receipts.popleft())
        if client.error is not None:
            owed.clear()

    async def _client_does(self) -> None:
        random = self.random
        entry = random.choice(self.clients)
        client, owed, subs = entry
        if random.random() < 0.8:
            self._read(client, owed)
        if client.error is not None or client.ended or random.random() < 0.03:
            client.vanish()
            self.clients.remove(entry)
            return
        what = random.choices(
            ("send", "log", "subscribe", "unsubscribe", "ack", "claim", "commit"), (8, 3, 4, 2, 6, 1, 2)
        )[0]
        headers: dict[str, str] = {}
        body = str(self.number)
        command = "SEND"
        if what == "send":
            many = random.sample((*QUEUES, *TOPICS), random.choice((1, 1, 2)))
            headers = {"destination": ",".join(many), "persistent": random.choice(("true", "false"))}
        elif what == "log":
            headers = {"destination": random.choice(LOGS)}
        elif what == "claim":
            request = random.choice(("claim", "release", "ack"))
            facts = {"queue": "/queue/shared", "group": "g", "claim": 1, "max": 3}
            headers, body = (
                {"destination": f"/sluiceway/claim/{request}", "reply-to": "/temp-queue/r"},
                json.dumps(facts),
            )
        elif what == "subscribe":
            command, body = "SUBSCRIBE", ""
            self.number += 1
            name = random.choice((*QUEUES, *TOPICS, *LOGS, "/queue/>"))
            headers = {"destination": name, "id": str(self.number), "ack": random.choice(("auto", "client-individual"))}
            if name in LOGS and random.random() < 0.6:
                headers |= {"group": "g", "from": "earliest"}
            elif name in QUEUES and random.random() < 0.2:
                headers["browser"] = "true"
            elif name in TOPICS and random.random() < 0.5:
                headers["activemq.subscriptionName"] = "d"
            subs[headers["id"]] = name
        elif what == "unsubscribe" and subs:
            command, body = "UNSUBSCRIBE", ""
            headers = {"id": random.choice(sorted(subs))}
            del subs[headers["id"]]
        elif what == "ack" and client.messages:
            delivery = client.messages.popleft()
            if "ack" not in delivery.headers:
                return
            command, body = random.choice(("ACK", "ACK", "NACK")), ""
            headers = client.naming(delivery)
        elif what == "commit":
            name = f"t{self.number}"
            self.number += 1
            await self._write(entry, "BEGIN", {"transaction": name}, "")
            for _ in range(2):
                to = random.choice((*QUEUES, *TOPICS))
                await self._write(entry, "SEND", {"destination": to, "persistent": "true", "transaction": name}, "x")
            command, headers, body = random.choice(("COMMIT", "COMMIT", "ABORT")), {"transaction": name}, ""
        else:
            return
        if random.random() < 0.5 and what != "claim":
            headers["receipt"] = client.new_receipt_id()
            owed.add(headers["receipt"])
        await self._write(entry, command, headers, body)

    async def _write(
        self, entry: tuple[Client, set[str], dict[str, str]], command: str, headers: dict[str, str], body: str
    ) -> None:
        client, owed, _subs = entry
        if client.ended:
            return
        with trio.move_on_after(0.5) as time:
            try:
                await client.frame(command, headers, body)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                time.cancel()
                await trio.lowlevel.checkpoint()
        if time.cancelled_caught:
            self._read(client, owed)
            owed.clear()
            client.vanish()
            if entry in self.clients:
                self.clients.remove(entry)

    async def _admin_does(self) -> None:
        registry, random = self.stage.broker.registry, self.random
        what = random.choice(("delete", "purge", "move", "pause", "resume", "delete log"))
        there = list(registry.destinations.values())
        if what == "delete log":
            self._delete_log(random.choice(LOGS))
            return
        if not there:
            return
        destination = random.choice(there)
        try:
            if what == "delete":
                registry.delete(destination, "the race wants it so")
            elif what == "purge":
                await self.operations.purge(destination)
            elif what == "move":
                await self.operations.move(destination, random.choice(QUEUES), None)
            elif what == "pause":
                self.operations.pause(destination)
            else:
                self.operations.resume(destination)
        except ApiError:
            pass  # it said what can't be done

    def _delete_log(self, name: str) -> None:
        logs: Any = self.stage.broker.logs
        log = logs.logs.get(name)
        if log is not None:
            try:
                logs.delete(log, PASSCODE, lambda _error: None)
            except LogError:
                pass  # somebody deletes it already


def run_race(seed: int) -> None:
    """One race; the same seed, the same race."""
    random = Random(seed)

    async def main() -> None:
        await Race(random).run()

    with repeatable_trio(random):
        run_in_virtual_time(main)


@pytest.mark.parametrize("part", range(rounds(1)))
def test_races_leave_the_broker_whole(part: int) -> None:
    """`run_race(seed)` plays one again."""
    for seed in range(part * SEEDS_AT_ONCE, (part + 1) * SEEDS_AT_ONCE):
        try:
            run_race(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
