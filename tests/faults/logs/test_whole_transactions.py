"""A transaction that acknowledges records, messages of queues and of durable subscriptions, and sends: all or nothing
of it is there after a crash or a power cut at any moment, in memory or spooled.

`SLUICEWAY_TEST_TIMES=50 scripts/test tests/faults/logs/test_whole_transactions.py` plays fifty times as many seeds.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from tests.faults.logs.lives import LogLives, LogStage
from tests.faults.logs.whole import IN_LOG, IN_QUEUE, IN_TOPIC, OTHER_LOG, OUT, OUTPUTS, SOURCES, Books
from tests.how_often import rounds
from tests.scenarios.client import Client, Delivery, UnexpectedError
from tests.scenarios.tiny_steps import tiny_steps

ROUNDS_COUNT = rounds(9)
INPUTS_COUNT = 12
SPOOL_BYTES = 6_000


class Round:
    """One seed: lives that end anyhow, and the audit."""

    def __init__(self, folder: Path, seed: int, *, large: bool = False) -> None:
        """`large`: its transactions have hundreds of ACKs and SENDs, and lives end between two steps of them."""
        self.random = Random(seed)
        self.large = large
        self.inputs_count = 150 if large else INPUTS_COUNT
        spool_bytes = self.random.choice((SPOOL_BYTES, 100_000, 64 << 20)) if large else SPOOL_BYTES
        self.lives = LogLives(folder, limits={"transaction_bytes_max": spool_bytes})
        self.books = Books(self.random)
        self.ends = [self.random.choice(("crash", "crash", "power cut")) for _ in range(3)]
        self.output_bytes = self.random.choice((20, 20, 1_500))
        self.sources = self.random.sample(sorted(SOURCES), self.random.randint(1, len(SOURCES)))
        self.refuse_share = self.random.choice((0.0, 0.2))

    async def run(self) -> None:
        async with self.lives.life() as stage:
            await self._put_in(stage)
        for end in self.ends:
            async with self.lives.life(end=end) as stage:
                with trio.move_on_after(self.random.choice((0.001, 0.05, 0.5, 3.0)) * self.random.random()) as life:
                    await self._work(stage, life)
        async with self.lives.life() as stage:
            await self._audit(stage)

    async def _put_in(self, stage: LogStage) -> None:
        client = await stage.connect(client_id="worker")
        for source in self.sources:
            await client.subscribe(id=source, ack="client-individual", **SOURCES[source])
        await client.disconnect()
        client = await stage.connect()
        for name, at in (("g", IN_LOG), ("o", OTHER_LOG), ("q", IN_QUEUE), ("d", IN_TOPIC)):
            bodies = [f"{name} {number}" for number in range(self.inputs_count)]
            await client.send_all(at, bodies, persistent="true")
            for source in {"g": ("g", "h")}.get(name, (name,)):
                if source in self.sources:
                    self.books.inputs[source] = set(bodies)
        await client.disconnect()

    async def _work(self, stage: LogStage, life: trio.CancelScope) -> None:
        """Until the life is over; if transactions are large, some steps after a COMMIT."""
        commits_left = self.random.randint(1, 4)
        if self.large:
            life.deadline = trio.current_time() + 60
        client = await stage.connect(client_id="worker")
        try:
            for source in self.sources:
                await client.subscribe(id=source, ack="client-individual", **SOURCES[source])
            while True:
                with trio.move_on_after(self.random.choice((0.0, 0.01, 1.2))):
                    await client._receive()
                if client.error is not None or client.ended:
                    raise UnexpectedError(f"{client.error}")
                count = min(len(client.messages), self.random.randint(1, 300 if self.large else 6))
                chosen = [client.messages.popleft() for _ in range(count)]
                if chosen:
                    await self._transact(client, chosen)
                    commits_left -= 1
                if self.large and not commits_left:
                    for _ in range(self.random.choice((10, 100, 1_000)) * self.random.randint(0, 3)):
                        await trio.lowlevel.checkpoint()
                    return
                if self.large and not chosen and self.random.random() < 0.1:
                    return  # perhaps there is nothing left
        finally:
            client.receive_now()
            self.books.receipts(client.receipts)
            client.stream.close()

    async def _transact(self, client: Client, chosen: list[Delivery]) -> None:
        by_input = {(each.headers["subscription"], each.text): each for each in chosen}
        aborted = self.random.random() < 0.15
        attempt = self.books.begin(
            list(by_input),
            output_bytes=self.output_bytes,
            with_receipt=self.random.random() < 0.6,
            refuse_share=self.refuse_share,
        )
        name = f"t{attempt.number}"
        frames = [client.encode("BEGIN", {"transaction": name})]
        frames += [
            client.encode(
                "NACK" if each in attempt.refused else "ACK", {**client.naming(delivery), "transaction": name}
            )
            for each, delivery in by_input.items()
        ]
        frames += [
            client.encode("SEND", {"destination": to, "persistent": "true", "transaction": name}, body)
            for to, body in attempt.outputs
        ]
        await client.send_raw(b"".join(frames))
        if aborted:
            await client.frame("ABORT", {"transaction": name})
            client.messages.extendleft(reversed(chosen))
            return
        receipt = {} if attempt.receipt_id is None else {"receipt": attempt.receipt_id}
        await client.frame("COMMIT", {"transaction": name, **receipt})

    async def _audit(self, stage: LogStage) -> None:
        client = await stage.connect(client_id="worker")
        left: dict[str, list[str]] = {}
        for source in self.sources:
            await client.subscribe(id=source, ack="client-individual", **SOURCES[source])
            left[source] = [delivery.text for delivery in await client.drain(3) if delivery.text]
        outputs: list[str] = []
        for number, out in enumerate(OUTPUTS):
            await client.subscribe(id=f"out {number}", **out)
            outputs += [delivery.text for delivery in await client.drain(3) if "gap-from" not in delivery.headers]
        self.books.check(left, outputs)
        await client.disconnect()


@pytest.mark.parametrize("seed", range(ROUNDS_COUNT))
async def test_each_transaction_is_whole_whatever_ends_the_broker(tmp_path: Path, seed: int) -> None:
    await Round(tmp_path, seed).run()


@pytest.mark.parametrize("seed", range(1000, 1000 + ROUNDS_COUNT))
async def test_each_transaction_is_whole_though_it_takes_effect_in_steps(tmp_path: Path, seed: int) -> None:
    with tiny_steps():
        await Round(tmp_path, seed).run()


@pytest.mark.parametrize("seed", range(2000, 2000 + ROUNDS_COUNT // 3))
async def test_each_large_transaction_is_whole_though_its_broker_ends_between_two_steps(
    tmp_path: Path, seed: int
) -> None:
    await Round(tmp_path, seed, large=True).run()


async def test_rounds_carry_transactions_out(tmp_path: Path) -> None:
    """Or the test above would say nothing."""
    count = 0
    for seed in range(6):
        played = Round(tmp_path / str(seed), seed)
        await played.run()
        count += played.books.carried_out_count
    assert count > 6
    large = Round(tmp_path / "large", 2001, large=True)
    await large.run()
    assert large.books.carried_out_count
    assert any(len(attempt.outputs) > 100 for attempt in large.books.attempts)


@pytest.mark.parametrize("end", ["crash", "power cut"])
@pytest.mark.parametrize("deleted", ["group", "log"])
@pytest.mark.parametrize("spooled", [False, True])
async def test_a_group_that_is_deleted_between_ack_and_commit_harms_nothing_else(
    tmp_path: Path, end: str, deleted: str, spooled: bool
) -> None:
    lives = LogLives(tmp_path, limits={"transaction_bytes_max": SPOOL_BYTES})
    lives.journal = type(lives.journal)(delete_passcode="let me")
    body = "x" * (2_000 if spooled else 10)
    async with lives.life(end=end) as stage:
        client, other = await stage.connect(client_id="worker"), await stage.connect()
        for source in ("g", "q"):
            await client.subscribe(id=source, ack="client-individual", **SOURCES[source])
            await other.sent(SOURCES[source]["destination"], source, persistent="true")
        deliveries = await client.next_messages(2)
        await client.frame("BEGIN", {"transaction": "t"})
        for delivery in deliveries:
            await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
        for _ in range(5):
            await client.frame("SEND", {"destination": OUT[0], "persistent": "true", "transaction": "t"}, body)
        await client.unsubscribe("g")
        what = {"group": "g"} if deleted == "group" else {"passcode": "let me"}
        reply = await stage.ask(other, "delete-group" if deleted == "group" else "delete", log=IN_LOG, **what)
        assert reply["ok"], reply
        await client.request("COMMIT", {"transaction": "t"})
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(OUT[0])
        assert [delivery.text for delivery in await client.drain(3)] == [body] * 5
        await client.subscribe(IN_QUEUE, id="q")
        assert await client.drain(3) == []
