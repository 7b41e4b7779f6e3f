"""Random transactions of several clients, with queues that are full, purged or deleted and connections that end between
their steps: each is carried out whole or not at all, nothing is lost or comes twice, and limits are kept. So it is with
what is not persistent, with a store and without one, where nothing else is kept of connections that break.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import attrs
import pytest
import trio

import sluiceway.protocols.stomp.committing
import sluiceway.protocols.stomp.spooling
from sluiceway.config import BrokerConfig
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.store.memory import MemoryEngine
from tests.faults.logs.whole import IN_QUEUE, Books
from tests.faults.logs.whole import OUT_QUEUES as OUT
from tests.how_often import rounds
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.journal_engine import JournalEngine

VICTIM = "/queue/victim"
"""Purged and deleted; what is sent there counts for nothing."""
COUNT_MAX = 12
SENDS_MAX = 12
"""Of one transaction to one queue."""


class Play:
    """Clients, and what they did."""

    def __init__(
        self, stage: Stage, chance: random.Random, *, persistent: bool = True, break_share: float = 0.05
    ) -> None:
        self.stage = stage
        self.persistent = "true" if persistent else "false"
        self.break_share = break_share
        """Of what happens, that a connection breaks."""
        self.chance = chance
        self.books = Books(chance, {"q": set()}, out=OUT)
        self.workers: list[Client] = []
        self.outputs: list[str] = []
        self.receipts: list[str] = []
        self.made_count = 0
        self.output_bytes = [1, 200]
        self.others: list[str] = []
        """Half of the transactions send to all of these as well. It counts for nothing."""

    async def hire(self) -> None:
        self.made_count += 1
        worker = await self.stage.connect(name=f"worker {self.made_count}")
        await worker.subscribe(IN_QUEUE, ack="client-individual", prefetch_count="6")
        self.workers.append(worker)

    def look(self, worker: Client) -> None:
        worker.receive_now()
        self.receipts += [receipt for receipt in worker.receipts if receipt.startswith("commit")]
        worker.receipts.clear()
        self.books.receipts(self.receipts)
        assert worker.error is None, worker.error

    async def transact(self, worker: Client) -> None:
        self.look(worker)
        count = self.chance.randint(0, len(worker.messages))
        held = [worker.messages.popleft() for _ in range(count)]
        if not held:
            return
        taken = [("q", delivery.text) for delivery in held]
        is_aborted = self.chance.random() < 0.1
        attempt = self.books.begin(
            taken, output_bytes=self.chance.choice(self.output_bytes), with_receipt=True, refuse_share=0.2
        )
        name = f"t{attempt.number}"
        frames = [worker.encode("BEGIN", {"transaction": name})]
        for delivery in held:
            command = "NACK" if ("q", delivery.text) in attempt.refused else "ACK"
            frames.append(worker.encode(command, {**worker.naming(delivery), "transaction": name}))
        for place, (destination, body) in enumerate(attempt.outputs):
            headers = {"transaction": name, "persistent": self.persistent, "k": str(place)}
            frames.append(worker.encode("SEND", {"destination": destination, **headers}, body))
            if self.chance.random() < 0.5:
                frames.append(worker.encode("SEND", {"destination": VICTIM, **headers}, "x"))
        if self.others and self.chance.random() < 0.5:
            headers = {"transaction": name, "persistent": "true"}
            frames += [worker.encode("SEND", {"destination": each, **headers}, "x") for each in self.others]
        if is_aborted:
            self.books.attempts.pop()
            frames.append(worker.encode("ABORT", {"transaction": name}))
            frames += [worker.encode("NACK", worker.naming(delivery)) for delivery in held]
        else:
            frames.append(worker.encode("COMMIT", {"transaction": name, "receipt": attempt.receipt_id or ""}))
        await worker.send_raw(b"".join(frames))

    async def act(self) -> None:
        worker = self.chance.choice(self.workers)
        what = self.chance.random()
        registry = self.stage.broker.registry
        if what < self.break_share:
            self.look(worker)
            worker.vanish()
            self.workers.remove(worker)
            await self.hire()
        elif what < self.break_share + 0.15:
            if VICTIM in registry.destinations:
                victim = registry.destinations[VICTIM]
                if self.chance.random() < 0.5:
                    registry.delete(victim, "a test")
                else:
                    for queue in self.stage.partitions(VICTIM):
                        assert isinstance(queue, ConsumedQueue)
                        queue.removal.purge(0, queue.elements.next_sequence)
        elif what < self.break_share + 0.35:
            await self.acquire_at()
        else:
            await self.transact(worker)
        for _ in range(self.chance.randrange(8)):
            await trio.lowlevel.checkpoint()
            for name in OUT:
                assert self.stage.depth_count(name) < COUNT_MAX + 2 * SENDS_MAX

    async def acquire_at(self) -> None:
        """Some of what came out."""
        reader = await self.stage.connect()
        await reader.subscribe(self.chance.choice(OUT))
        for _ in range(self.chance.randrange(30)):
            await trio.lowlevel.checkpoint()
        await reader.unsubscribe()
        await reader.sync()
        reader.receive_now()
        self.outputs += [delivery.text for delivery in reader.messages]
        await reader.disconnect()

    async def finish(self) -> None:
        left: dict[str, list[str]] = {"q": []}
        for worker in self.workers:
            self.look(worker)
            worker.vanish()
        for _ in range(3):
            await trio.sleep(1)
            reader = await self.stage.connect()
            for name in OUT:
                await reader.subscribe(name, id=name)
            self.outputs += [delivery.text for delivery in await reader.drain()]
            await reader.disconnect()
        reader = await self.stage.connect()
        await reader.subscribe(IN_QUEUE)
        left["q"] = [delivery.text for delivery in await reader.drain()]
        await reader.disconnect()
        self.books.check(left, self.outputs)


@pytest.mark.parametrize("kind", ["in memory", "spooled", "not persistent", "no store"])
@pytest.mark.parametrize("seed", range(rounds(2)))
async def test_each_is_carried_out_whole_or_not_at_all(seed: int, kind: str) -> None:
    chance = random.Random(seed)
    limits = {"transaction_bytes_max": 1_500} if kind == "spooled" else {}
    persistent = kind in ("in memory", "spooled")
    policies = {name: {"count_max": COUNT_MAX, "full": "block"} for name in OUT}
    with ExitStack() as stack:
        if seed % 4:
            stack.enter_context(tiny_steps())
        stage = Stage(policies, engine=None if kind == "no store" else MemoryEngine(), **limits)
        if not persistent:
            stage.broker.config = attrs.evolve(stage.broker.config, broker=BrokerConfig(left_behind_bytes_max=1))
        async with stage:
            play = Play(stage, chance, persistent=persistent, break_share=0.05 if persistent else 0.2)
            sender = await stage.connect()
            for _ in range(4):
                await play.hire()
            for round_number in range(60):
                bodies = [f"{round_number}.{number}" for number in range(chance.randrange(6))]
                play.books.inputs["q"].update(bodies)
                if bodies:
                    await sender.send_all(IN_QUEUE, bodies, persistent="true")
                await play.act()
            await play.finish()
            assert play.books.carried_out_count > 5


class Crashes:
    """What clients knew behind each batch, and whether a broker that begins there keeps it."""

    def __init__(self, engine: JournalEngine, play: Play) -> None:
        self.engine = engine
        self.play = play
        self.promised: dict[int, int] = {}
        """Transactions whose receipts came, and how many batches there were by then."""

    def look(self) -> None:
        for worker in self.play.workers:
            self.play.look(worker)
        for attempt in self.play.books.attempts:
            if attempt.receipted:
                self.promised.setdefault(attempt.number, len(self.engine.batches))

    async def check(self, count: int, **limits: int) -> int:
        """Begin behind so many batches; returns how many transactions are carried out there."""
        async with Stage(engine=self.engine.after(count), **limits) as stage:
            await trio.sleep(2)
            reader = await stage.connect()
            came = {}
            for name in (IN_QUEUE, *OUT, VICTIM):
                await reader.subscribe(name, id=name)
                came[name] = [delivery.text for delivery in await reader.drain()]
        attempts = [
            attrs.evolve(attempt, receipted=self.promised.get(attempt.number, count + 1) <= count)
            for attempt in self.play.books.attempts
        ]
        books = Books(self.play.chance, self.play.books.inputs, attempts)
        books.check({"q": came[IN_QUEUE]}, [text for name in OUT for text in came[name]])
        return books.carried_out_count


@pytest.mark.parametrize("effect", ["at once", "in steps"])
@pytest.mark.parametrize("seed", range(rounds(1)))
async def test_a_crash_behind_any_batch_finds_each_whole_or_not_at_all(seed: int, effect: str) -> None:
    """All batches are gathered in steps. Small transactions of others, some of them spooled, take effect in between."""
    chance = random.Random(seed)
    limits = {"transaction_bytes_max": 20_000}
    engine = JournalEngine()
    modules = (sluiceway.protocols.stomp.committing, sluiceway.protocols.stomp.spooling)
    at_once_counts = [module.AT_ONCE_COUNT for module in modules]
    with tiny_steps(), pytest.MonkeyPatch.context() as patch:
        if effect == "at once":
            for module, at_once_count in zip(modules, at_once_counts, strict=True):
                patch.setattr(module, "AT_ONCE_COUNT", at_once_count)
        async with Stage(engine=engine, **limits) as stage:
            play = Play(stage, chance)
            crashes = Crashes(engine, play)
            sender = await stage.connect()
            play.output_bytes = [1, 10_000]
            for number in range(12):  # gathered before the others, for their shelves have lower numbers
                play.others.append(f"/queue/other.{number}")
                await sender.sent(play.others[-1], "x", persistent="true")
            bodies = [str(number) for number in range(100)]
            play.books.inputs["q"].update(bodies)
            await sender.send_all(IN_QUEUE, bodies, persistent="true")
            await sender.sync()
            await trio.sleep(5)
            saved_count = len(engine.batches)
            for _ in range(4):
                await play.hire()
            for _ in range(8):
                for worker in chance.sample(play.workers, 4):
                    await play.transact(worker)
                    for _ in range(chance.choice([0, 0, 0, 1, 5])):
                        await trio.lowlevel.checkpoint()
                if VICTIM in stage.broker.registry.destinations and chance.random() < 0.3:
                    stage.broker.registry.delete(stage.broker.registry.destinations[VICTIM], "a test")
                crashes.look()
                for _ in range(chance.randrange(8)):
                    await trio.lowlevel.checkpoint()
            await trio.sleep(2)
            crashes.look()
            for worker in play.workers:
                worker.vanish()
            reader = await stage.connect()
            for name in (IN_QUEUE, *OUT, VICTIM):
                await reader.subscribe(name, id=name)
            begun_count = len(engine.batches)
            await reader.drain()
        carried_out = [await crashes.check(count, **limits) for count in range(saved_count, begun_count + 1)]
    assert carried_out[-1] > 5
