"""A disk that is full or broken: producers of persistent messages wait, all others go on, and nothing acknowledged is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import attrs
import pytest
import trio

from sluiceway.store.config import StoreConfig
from sluiceway.store.engine import Change
from sluiceway.store.storequeue import StoreQueue
from tests.faults.store.slow_disk import MortalEngine
from tests.faults.store.small_store import constants, small
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives, durability
from tests.scenarios.stage import Stage
from tests.store.faulty import Failure, FaultyEngine

Q: Final = "/queue/orders"
OTHER: Final = "/queue/others"
WRITE_FAILURES: Final = (Failure.DISK_FULL, Failure.WRITE, Failure.SYNC)
WRITES_COUNT: Final = 24
"""More than `a_busy_time` makes."""


class FailingAt(MortalEngine):
    """Its n-th write fails, and the next `times - 1`."""

    def __init__(self, engine: FaultyEngine, failure: Failure, at: int, times: int) -> None:
        super().__init__(engine)
        self._failure = failure
        self._at = at
        self._times = times
        self.writes_count = 0

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        if self.writes_count == self._at:
            self.engine.fail_next(self._failure, self._times)
        self.writes_count += 1
        super().write(changes, sync=sync)


async def a_busy_time(stage: Stage) -> list[str]:
    """Produce, consume, acknowledge, commit, each confirmed. Returns what is left in the queue, in order."""
    producer, consumer = await stage.connect(name="producer"), await stage.connect(name="consumer")
    for number in range(6):
        await producer.sent(Q, str(number), persistent="true")
    await consumer.subscribe(Q, ack="client-individual", prefetch_count="4")
    first, second, third, _fourth = await consumer.next_messages(4)
    await consumer.ack(first)
    await producer.sent(Q, "volatile")
    await consumer.ack(third)
    await consumer.frame("BEGIN", {"transaction": "t"})
    await consumer.frame("ACK", {**consumer.naming(second), "transaction": "t"})
    await consumer.frame("SEND", {"destination": Q, "persistent": "true", "transaction": "t"}, "from the transaction")
    await consumer.request("COMMIT", {"transaction": "t"})
    for number in range(6, 9):
        await producer.sent(Q, str(number), persistent="true")
    consumer.vanish()
    await producer.disconnect()
    return ["3", "4", "5", "from the transaction", "6", "7", "8"]


@pytest.mark.parametrize("failure", WRITE_FAILURES, ids=lambda failure: failure.name)
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("at", range(1, WRITES_COUNT))
async def test_any_write_may_fail(at: int, times: int, failure: Failure) -> None:
    """It is tried again until it succeeds; everybody who waits for it gets an answer; a crash finds all."""
    lives = Lives()
    engine = lives.engine
    failing = FailingAt(engine, failure, at, times)
    stage = Stage(engine=failing)
    async with crashing(stage):
        left = await a_busy_time(stage)
        report = stage.broker.report()["store"]
        assert report["state"] == "ok"
        assert report["failures_count"] in (0, times), "none only if there were fewer writes"
    lives.engine = engine.power_cut()
    async with lives.life() as stage:
        assert await texts_in(stage, Q) == left


class crashing:
    """A stage whose broker is left as a killed process leaves it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def __aenter__(self) -> Stage:
        await self._stage.broker.__aenter__()
        return self._stage

    async def __aexit__(self, *error: Any) -> None:
        self._stage.broker.shards.abandon()
        await self._stage.broker.__aexit__(None, None, None)


async def texts_in(stage: Stage, name: str) -> list[str]:
    """What is in a queue, in order; acknowledges it."""
    client = await stage.connect(name="reader")
    await client.subscribe(name)
    return [delivery.text for delivery in await client.drain()]


@pytest.mark.parametrize("failure", WRITE_FAILURES, ids=lambda failure: failure.name)
async def test_while_the_disk_fails_producers_wait_and_consumers_go_on(failure: Failure) -> None:
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        producer, volatile, consumer = await stage.connect(), await stage.connect(), await stage.connect()
        for number in range(5):
            await producer.sent(Q, str(number), persistent="true")
        lives.engine.fail_at_rate(failure, 1)
        # The first one goes in and finds out; the second one finds the gate closed.
        for text in ("waits", "waits, too"):
            await producer.frame("SEND", {"destination": Q, "persistent": "true", "receipt": text}, text)
            await trio.sleep(1)
        await producer.silence(30)
        report = stage.broker.report()["store"]
        assert report["state"] == "failing"
        assert "told to fail" in report["error"]
        assert any("store" in words for words in stage.chains()), "who waits for the disk can be seen"
        # Consumers take what is there, and what is not persistent passes.
        await volatile.sent(OTHER, "passes")
        await consumer.subscribe(Q, ack="client-individual")
        deliveries = await consumer.next_messages(5)
        for delivery in deliveries[:4]:
            await consumer.frame("ACK", {**consumer.naming(delivery), "receipt": delivery.text})
        await consumer.sync()
        assert not [receipt for receipt in consumer.receipts if receipt.isdigit()], (
            "nothing is confirmed before its time"
        )
        lives.engine.fail_at_rate(failure, 0)
        for text in ("waits", "waits, too"):
            await producer.expect_receipt(text)
        for number in range(4):
            await consumer.expect_receipt(str(number))
        assert durability(producer) == ["disk"] * 7
        assert stage.broker.report()["store"]["state"] == "ok"
    async with lives.life() as stage:
        assert await texts_in(stage, Q) == ["4", "waits", "waits, too"]


@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("failure", WRITE_FAILURES, ids=lambda failure: failure.name)
async def test_writes_that_fail_now_and_then_cost_time_only(failure: Failure, rate: float) -> None:
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        lives.engine.fail_at_rate(failure, rate)
        left = await a_busy_time(stage)
    async with lives.life() as stage:
        assert await texts_in(stage, Q) == left


async def test_reads_that_fail_hold_up_who_needs_them_only() -> None:
    """Paged messages come when the disk answers again; nothing is passed over meanwhile."""
    with constants(small(3)):
        lives = Lives({"/queue/>": {"memory_bytes": 8_000}})
        async with lives.life() as stage:
            producer, consumer = await stage.connect(), await stage.connect()
            bodies = [f"{number:04} {'x' * 200}" for number in range(200)]
            for body in bodies:
                await producer.sent(Q, body, persistent="true")
            assert stage.reported(Q)["outside_count"] > 10, "most of it is on disk only"
            lives.engine.fail_at_rate(Failure.READ, 1)
            await consumer.subscribe(Q)
            came = await consumer.drain()
            assert len(came) < 100
            await producer.sent(OTHER, "not held up", persistent="true")
            other = await stage.connect()
            await other.subscribe(OTHER)
            assert await other.next_texts(1) == ["not held up"]
            lives.engine.fail_at_rate(Failure.READ, 0)
            came += await consumer.next_messages(200 - len(came))
            assert [delivery.text for delivery in came] == bodies
            assert stage.broker.report()["store"]["lost_count"] == 0


# ---------------------------------------------------------------------------------------- the guards


@attrs.define
class Disk:
    """The folder of a store, as far as the guard looks at it."""

    free: int = 10 << 30

    def free_bytes(self) -> int:
        return self.free

    def attic_put(self, name: str, data: bytes) -> str:
        raise AssertionError(f"nothing is corrupt: {name} of {len(data)} bytes")


def with_disk(disk: Disk, config: StoreConfig) -> Callable[..., StoreQueue]:
    """Makes stores that believe to be on this disk."""

    def make(_config: StoreConfig, **options: Any) -> StoreQueue:
        return StoreQueue(config, **{**options, "folder": disk})

    return make


async def waits(client: Client, destination: str, text: str) -> str:
    """Send a persistent message that has to wait; returns its receipt id."""
    await client.frame("SEND", {"destination": destination, "persistent": "true", "receipt": text}, text)
    await client.silence(5)
    return text


async def test_with_little_free_space_producers_wait_until_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr("sluiceway.shard.StoreQueue", with_disk(disk, StoreConfig(disk_free_min_bytes=1 << 20)))
    lives = Lives()
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.sent(Q, "first", persistent="true")
        disk.free = 1000
        await trio.sleep(3)
        assert stage.broker.report()["store"]["state"] == "disk low"
        receipt = await waits(producer, Q, "second")
        await consumer.sent(OTHER, "volatile")
        await consumer.subscribe(Q, ack="client-individual")
        first = await consumer.next_message()
        await consumer.ack(first)
        disk.free = 10 << 20
        await producer.expect_receipt(receipt)
        assert stage.broker.report()["store"]["state"] == "ok"
        assert (await consumer.next_message()).text == "second"


async def test_a_store_that_is_as_large_as_it_may_be_lets_producers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway.shard.StoreQueue", with_disk(Disk(), StoreConfig(bytes_max=50_000)))
    lives = Lives()
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for number in range(60):
            await producer.sent(Q, f"{number:03}" + "x" * 1000, persistent="true")
        await trio.sleep(3)
        assert stage.broker.report()["store"]["state"] == "disk low"
        receipt = await waits(producer, Q, "last")
        await consumer.subscribe(Q)
        assert len(await consumer.next_messages(61)) == 61
        await producer.expect_receipt(receipt)


@pytest.mark.parametrize("failure", WRITE_FAILURES, ids=lambda failure: failure.name)
async def test_a_broker_that_stops_while_the_disk_fails_loses_nothing_that_was_receipted(failure: Failure) -> None:
    """The last batch fails: that is said, loudly, and the next start takes it for a crash."""
    engine = FaultyEngine(Random(0))
    stage = Stage(engine=engine)
    await stage.broker.__aenter__()
    producer, consumer = await stage.connect(), await stage.connect()
    for number in range(5):
        await producer.sent(Q, str(number), persistent="true")
    await consumer.subscribe(Q, ack="client-individual")
    await consumer.ack((await consumer.next_messages(5))[0])
    engine.fail_at_rate(failure, 1)
    with pytest.raises(BaseException, match="told to fail") as raised:
        await stage.broker.__aexit__(None, None, None)
    assert raised
    lives = Lives()
    lives.engine = engine.crash()
    async with lives.life() as stage:
        reader = await stage.connect()
        await reader.subscribe(Q)
        left = await reader.next_messages(4)
        assert [delivery.text for delivery in left] == ["1", "2", "3", "4"]
        assert all(delivery.redelivered for delivery in left)
