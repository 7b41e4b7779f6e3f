"""A broker with four shards: everything works as with one, and transactions stay within one shard."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.shard_hash import shard_of
from sluiceway.shards import Shards
from sluiceway.store.engine import Engine
from tests.scenarios.client import Client
from tests.scenarios.stage import Stage
from tests.store.faulty import FaultyEngine

SHARDS_COUNT = 4


def names(prefix: str) -> list[str]:
    """A destination in each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SHARDS_COUNT:
        name = f"{prefix}{number}"
        found.setdefault(shard_of(name, SHARDS_COUNT), name)
        number += 1
    return [found[shard] for shard in range(SHARDS_COUNT)]


QUEUES = names("/queue/s")
TOPICS = names("/topic/t")
LOGS = names("/log/l")


class ShardLives:
    """The stores of four shards between lives; see tests/scenarios/lives.py."""

    def __init__(self, policies: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any) -> None:
        self.engines: list[Engine] = [FaultyEngine(Random(shard)) for shard in range(SHARDS_COUNT)]
        self._policies = policies
        self._settings = settings

    def reopen(self, shards: Shards, number: int) -> None:
        """Give a closed shard its store back, as it was written."""
        engine = self.engines[number]
        assert isinstance(engine, FaultyEngine)
        self.engines[number] = engine.crash()
        shards._locations[number] = attrs.evolve(shards._locations[number], engine=self.engines[number])

    @asynccontextmanager
    async def life(self, *, end: str = "in order") -> AsyncIterator[Stage]:
        """A broker on what the one before left."""
        stage = Stage(self._policies, engine=self.engines, **self._settings)
        broker = await stage.broker.__aenter__()
        try:
            yield stage
            if end == "in order":
                await broker.stop()
            engines, self.engines = self.engines, []
            for engine in engines:
                assert isinstance(engine, FaultyEngine)
                self.engines.append(engine.power_cut() if end == "power cut" else engine.crash())
        finally:
            if end != "in order":
                broker.shards.abandon()
            await broker.__aexit__(None, None, None)


@asynccontextmanager
async def four_shards(policies: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any) -> AsyncIterator[Stage]:
    async with Stage(policies, engine=[FaultyEngine(Random(0)) for _ in range(SHARDS_COUNT)], **settings) as stage:
        yield stage


async def ask(client: Client, name: str, **request: object) -> dict[str, Any]:
    """Make a request to the broker, and return the answer."""
    await client.subscribe("/temp-queue/answers", id="answers")
    await client.send(f"/sluiceway/{name}", json.dumps(request), reply_to="/temp-queue/answers")
    answer = json.loads((await client.next_message()).text)
    await client.unsubscribe("answers")
    assert isinstance(answer, dict)
    return answer


# ---------------------------------------------------------------------- destinations


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_what_was_confirmed_is_there_again_in_every_shard(end: str) -> None:
    lives = ShardLives()
    ids: list[str] = []
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        for shard, name in enumerate(QUEUES):
            await client.sent(name, name, persistent="true")
            environment = stage.destination(name).environment
            assert (environment.shard, environment.store) == (shard, stage.broker.shards.open_shards[shard].store)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe("/queue/>")
        deliveries = await client.next_messages(SHARDS_COUNT)
        assert sorted(delivery.text for delivery in deliveries) == sorted(QUEUES)
        ids = [delivery.headers["message-id"] for delivery in deliveries]
        await client.sent(QUEUES[3], "later", persistent="true")
        ids.append((await client.next_message()).headers["message-id"])
    assert len(set(ids)) == SHARDS_COUNT + 1
    assert len({message_id.partition("-")[0] for message_id in ids}) == 1, "all begin with the same token"


async def test_a_wildcard_and_a_composite_take_from_all_shards(version: Version) -> None:
    async with four_shards() as stage:
        client = await stage.connect(version)
        await client.subscribe("/queue/>", id="all", ack="client-individual" if version != "1.0" else "client")
        await client.send(",".join(QUEUES), "to all", persistent="true")
        deliveries = await client.next_messages(SHARDS_COUNT)
        assert sorted(delivery.headers["destination"] for delivery in deliveries) == sorted(QUEUES)
        for delivery in deliveries:
            await client.ack(delivery)
        assert [stage.depth_count(name) for name in QUEUES] == [0] * SHARDS_COUNT
        await client.disconnect()


async def test_selectors_groups_and_delays_work_in_every_shard() -> None:
    async with four_shards() as stage:
        one, other = await stage.connect(), await stage.connect()
        for number, name in enumerate(QUEUES):
            await one.subscribe(name, id=f"odd {number}", selector="odd = 'yes'")
            await one.send(name, "odd", odd="yes", group="g")
            assert await one.next_texts(1) == ["odd"]
            await one.send(name, "later", odd="yes", delay="2000")
        await one.silence(1.0)
        assert sorted(await one.next_texts(SHARDS_COUNT)) == ["later"] * SHARDS_COUNT
        await other.disconnect()
        await one.disconnect()


@pytest.mark.parametrize("end", ["in order", "power cut"])
async def test_durable_subscriptions_of_all_shards_stay(end: str) -> None:
    lives = ShardLives()
    async with lives.life(end=end) as stage:
        client = await stage.connect(client_id="ann")
        for name in TOPICS:
            await client.subscribe(name, id=name, durable="true", ack="client-individual")
        ids = [durable.durable_id for durable in stage.broker.registry.durables]
        assert len(set(ids)) == SHARDS_COUNT
        await client.disconnect()
        producer = await stage.connect()
        for name in TOPICS:
            await producer.sent(name, name, persistent="true")
    async with lives.life() as stage:
        client = await stage.connect(client_id="ann")
        assert len(stage.broker.report()["durables"]) == SHARDS_COUNT
        for name in TOPICS:
            await client.subscribe(name, id=name, durable="true", ack="client-individual")
            delivery = await client.next_message()
            assert delivery.text == name
            await client.ack(delivery)
        await client.subscribe(names("/topic/u")[2], id="new", durable="true")
        assert len({durable.durable_id for durable in stage.broker.registry.durables}) == SHARDS_COUNT + 1


async def test_temporary_destinations_are_in_no_shard() -> None:
    async with four_shards() as stage:
        client = await stage.connect()
        await client.subscribe("/temp-queue/mine", ack="client-individual")
        await client.send("/temp-queue/mine", "hello", persistent="true")
        delivery = await client.next_message()
        (name,) = [name for name in stage.broker.registry.destinations if "temp" in name]
        assert stage.destination(name).environment.shard is None
        await client.ack(delivery)
        await client.disconnect()


async def test_the_state_is_that_of_all_shards() -> None:
    async with four_shards() as stage:
        client = await stage.connect()
        for name in QUEUES:
            await client.sent(name, "x", persistent="true")
        answer = await ask(client, "stat")
        assert answer["store"]["queues_count"] == SHARDS_COUNT
        assert answer["store"]["state"] == "ok"
        assert {row["name"] for row in answer["destinations"]} >= set(QUEUES)
        page = (await stage.broker.metrics_page()).decode()
        assert "sluiceway_store_queues 4" in page or "sluiceway_store" in page
        await client.subscribe("/queue/>")
        await client.next_messages(SHARDS_COUNT)
        await client.disconnect()


# ---------------------------------------------------------------------- logs and claims


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
async def test_logs_with_partitions_are_refused(command: str) -> None:
    """Partitions of one log would be in different shards."""
    async with ShardLives({LOGS[0]: {"log_partitions": 4}}).life() as stage:
        for name in (LOGS[0], f"{LOGS[0]}/1"):
            client = await stage.connect()
            await client.frame(command, {"destination": name, "id": "1", "ack": "auto"})
            error = await client.expect_error("several shards")
            assert name.startswith(error.headers["message"].split()[0])
        client = await stage.connect()
        await client.sent(LOGS[1], "a")


@pytest.mark.parametrize("end", ["in order", "power cut"])
async def test_logs_and_their_groups_are_in_every_shard(tmp_path: Path, end: str) -> None:
    lives = ShardLives()
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        for name in LOGS:
            await client.sent(name, name)
            await client.subscribe(name, id=name, ack="client-individual", group="g", **{"from": "earliest"})
            delivery = await client.next_message()
            assert delivery.text == name
            await client.ack(delivery)
        answer = await ask(client, "log/list")
        assert sorted(row["log"] for row in answer["logs"]) == sorted(LOGS)


async def test_claims_are_in_the_shard_of_their_queue() -> None:
    async with four_shards() as stage:
        client = await stage.connect()
        for shard, name in enumerate(QUEUES):
            await client.sent(name, "to be claimed", persistent="true")
            asked = {"queue": name, "group": "spark", "planner": "p"}
            await ask(client, "claim/open", **asked)
            answer = await ask(client, "claim/claim", **asked, claim=1, max=10)
            assert shard_of(answer["log"], SHARDS_COUNT) == shard, answer
            assert answer["to"] - answer["from"] == 1, answer
            await ask(client, "claim/ack", **asked, claim=1)
        await client.disconnect()


# ---------------------------------------------------------------------- transactions


@pytest.mark.parametrize("second", ["SEND", "composite", "ACK", "NACK"])
async def test_a_transaction_that_would_span_shards_is_refused(version: Version, second: str) -> None:
    """At the first frame that makes it span, with the remedy; nothing of it is done."""
    if second == "NACK" and version == "1.0":
        second = "SEND"
    async with four_shards() as stage:
        client = await stage.connect(version)
        await client.sent(QUEUES[1], "to be acknowledged", persistent="true")
        await client.subscribe(QUEUES[1], id="s", ack="client")
        delivery = await client.next_message()
        await client.request("BEGIN", {"transaction": "t"})
        await client.sent(QUEUES[0], "never", transaction="t", persistent="true")
        if second in ("ACK", "NACK"):
            await client.frame(second, {**client.naming(delivery), "transaction": "t"})
        else:
            await client.send(QUEUES[1] if second == "SEND" else f"{QUEUES[0]},{QUEUES[1]}", "no", transaction="t")
        error = await client.expect_error("another shard")
        assert error.headers["code"] == "transaction-spans-shards"
        assert "braces" in error.body.decode()
        assert QUEUES[0] in error.headers["message"]
        other = await stage.connect()
        await other.subscribe("/queue/>")
        assert await other.next_texts(1) == ["to be acknowledged"]
        await other.silence()
        await other.disconnect()


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_a_transaction_within_a_shard_is_whole_after_a_crash(end: str) -> None:
    lives = ShardLives()
    tagged = ["/queue/{orders}.new", "/queue/{orders}.done", "/topic/{orders}.told"]
    async with lives.life(end=end) as stage:
        client = await stage.connect(client_id="ann")
        await client.subscribe(tagged[2], id="told", durable="true")
        await client.sent(tagged[0], "order", persistent="true")
        await client.subscribe(tagged[0], id="new", ack="client-individual")
        order = await client.next_message()
        await client.request("BEGIN", {"transaction": "t"})
        await client.ack(order, transaction="t")
        await client.send(tagged[1], "done", transaction="t", persistent="true")
        await client.send(tagged[2], "told", transaction="t", persistent="true")
        await client.send("/temp-queue/answer", "temporary ones are in any shard", transaction="t")
        await client.request("COMMIT", {"transaction": "t"})
    async with lives.life() as stage:
        assert [stage.depth_count(name) for name in tagged] == [0, 1, 1]


async def test_a_transaction_goes_by_way_of_the_disk_in_its_shard() -> None:
    lives = ShardLives(transaction_bytes_max=2000)
    async with lives.life(end="power cut") as stage:
        client = await stage.connect()
        for name in QUEUES:
            await client.request("BEGIN", {"transaction": name})
            for number in range(20):
                await client.sent(name, f"{number}" * 200, transaction=name, persistent="true")
        for name in QUEUES:
            await client.request("COMMIT", {"transaction": name})
    async with lives.life() as stage:
        assert [stage.depth_count(name) for name in QUEUES] == [20] * SHARDS_COUNT


async def test_disconnect_waits_for_all_shards() -> None:
    lives = ShardLives()
    async with lives.life(end="power cut") as stage:
        client = await stage.connect()
        for name in QUEUES:
            await client.send(name, "without a receipt", persistent="true")
        await client.disconnect()
    async with lives.life() as stage:
        assert [stage.depth_count(name) for name in QUEUES] == [1] * SHARDS_COUNT


# ---------------------------------------------------------------------- dead letters, and moves


@pytest.mark.parametrize("end", ["in order", "power cut"])
async def test_a_dead_letter_reaches_a_queue_of_another_shard(end: str) -> None:
    """It is written there first: a power cut at any moment leaves it in one of the queues, or in both."""
    policies = {QUEUES[0]: {"redeliveries_max": 0, "dead_letter": QUEUES[1]}}
    lives = ShardLives(policies)
    async with lives.life(end=end) as stage:
        client = await stage.connect()
        for number in range(50):
            await client.send(QUEUES[0], f"{number}", persistent="true", message="x")
        await client.subscribe(QUEUES[0], ack="client-individual")
        for _ in range(50):
            await client.frame("NACK", client.naming(await client.next_message()))
        await client.sync()
        if end == "in order":
            await trio.sleep(1)
            assert [stage.depth_count(name) for name in QUEUES[:2]] == [0, 50]
            assert stage.reported(QUEUES[0])["dead_lettered_count"] == 50
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(f"{QUEUES[0]},{QUEUES[1]}", ack="client-individual")
        found = {delivery.text for delivery in await client.drain()}
        if end == "in order":
            assert found == {str(number) for number in range(50)}


async def test_a_power_cut_loses_no_dead_letter_between_shards() -> None:
    policies = {QUEUES[0]: {"redeliveries_max": 0, "dead_letter": QUEUES[1]}}
    lives = ShardLives(policies)
    async with lives.life() as stage:
        client = await stage.connect()
        for number in range(20):
            await client.sent(QUEUES[0], f"{number}", persistent="true")
    async with lives.life(end="power cut") as stage:
        client = await stage.connect()
        await client.subscribe(QUEUES[0], ack="client-individual")
        for _ in range(20):
            await client.frame("NACK", client.naming(await client.next_message()))
        await client.sync()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(QUEUES[1])
        await client.subscribe(QUEUES[0], id="other")
        assert {delivery.text for delivery in await client.drain()} == {str(number) for number in range(20)}


# ---------------------------------------------------------------------- large bodies


async def test_large_bodies_are_in_the_shard_of_their_destination(tmp_path: Path) -> None:
    body = b"x" * 200_000
    settings = {"large_folder": tmp_path, "large_body_bytes": 10_000}
    lives = ShardLives(**settings)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent(QUEUES[2], body, persistent="true")
        await client.subscribe("/temp-queue/mine", id="mine")
        await client.send("/temp-queue/mine", body)
        assert (await client.next_message()).body == body
        assert len(list((tmp_path / "0002").iterdir())) == 1
        await client.send(f"{QUEUES[0]},{QUEUES[1]}", body)
        error = await client.expect_error("several shards")
        assert error.headers["code"] == "not-supported"
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(QUEUES[2])
        assert (await client.next_message()).body == body
        await client.disconnect()


# ---------------------------------------------------------------------- one shard, while others serve


async def test_a_shard_is_closed_and_opened_again_while_others_serve() -> None:
    """What it had is there again: messages, their order, durable subscriptions and logs; and others notice nothing."""
    lives = ShardLives()
    async with lives.life() as stage:
        broker = stage.broker
        user, other, everywhere = await stage.connect(), await stage.connect(), await stage.connect(client_id="ann")
        await everywhere.subscribe(TOPICS[1], id="durable", durable="true")
        await everywhere.unsubscribe("durable")
        for number in range(20):
            await user.sent(QUEUES[1], f"{number}", persistent="true")
        await user.sent(TOPICS[1], "kept for ann", persistent="true")
        await user.sent(LOGS[1], "a record")
        await user.subscribe(QUEUES[1], ack="client-individual")
        for number in range(20):
            delivery = await user.next_message()
            if number < 5:
                await user.ack(delivery)
        await other.subscribe("/queue/>", id="all", ack="client-individual")
        await broker.shard_moves.close(1, "it moves")
        error = await user.expect_error("shard 1 is not open here: it moves")
        assert error.headers["code"] == "shard-away"
        assert QUEUES[1] not in broker.registry.destinations
        assert broker.report()["shards"][1]["state"] == "away"
        await other.sent(QUEUES[2], "still served", persistent="true")
        await other.ack(await other.next_message())
        for name, command in ((QUEUES[1], "SEND"), (QUEUES[1], "SUBSCRIBE"), (LOGS[1], "SEND"), (LOGS[1], "SUBSCRIBE")):
            late = await stage.connect()
            subscription = {"id": "late"} if command == "SUBSCRIBE" else {}
            await late.frame(command, {"destination": name, **subscription})
            assert (await late.expect_error("it moves")).headers["code"] == "shard-away"
        lives.reopen(broker.shards, 1)
        await broker.shard_moves.open(1)
        assert broker.report()["shards"][1]["state"] == "ok"
        again = [await other.next_message() for _ in range(15)]
        assert [delivery.text for delivery in again] == [str(number) for number in range(5, 20)]
        assert all(delivery.redelivered for delivery in again)
        for delivery in again:
            await other.ack(delivery)
        await everywhere.subscribe(TOPICS[1], id="durable", durable="true")
        assert (await everywhere.next_message()).text == "kept for ann"
        await everywhere.subscribe(LOGS[1], id="log", **{"from": "earliest"})
        await other.sent(QUEUES[1], "new", persistent="true")
        assert (await other.next_message()).text == "new"


async def test_a_shard_closes_and_opens_under_load() -> None:
    """Every message with a RECEIPT is there at the end; twice only if it is marked."""
    lives = ShardLives()
    async with lives.life() as stage:
        moves = stage.broker.shard_moves
        confirmed: list[str] = []

        async def produce() -> None:
            number = 0
            while len(confirmed) < 300:
                client = await stage.connect()
                while client.error is None and not client.ended and len(confirmed) < 300:
                    name = QUEUES[number % 2]
                    receipt = f"{number}"
                    await client.send(name, f"{number}", persistent="true", receipt=receipt)
                    number += 1
                    with trio.move_on_after(1):
                        while receipt not in client.receipts and client.error is None and not client.ended:
                            await client._receive()
                    if receipt in client.receipts:
                        confirmed.append(receipt)
                client.vanish()
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            for _ in range(5):
                await trio.sleep(0.05)
                await moves.close(0, "it moves")
                await trio.sleep(0.02)
                lives.reopen(stage.broker.shards, 0)
                await moves.open(0)
        client = await stage.connect()
        await client.subscribe("/queue/>")
        found = [delivery.text for delivery in await client.drain()]
        assert set(confirmed) <= set(found)
        assert len(found) == len(set(found))
