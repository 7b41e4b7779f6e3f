"""`kind = "relay"`: a queue that hands on to consumers that are there, and keeps nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from sluiceway.admin.messages import MessageReader
from sluiceway.admin.operations import Operations
from sluiceway.config import DestinationPolicy
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.spool import StoreSpool
from tests.scenarios.lives import Lives, durability
from tests.scenarios.scrape import scrape
from tests.scenarios.spooled import SMALL, commit, numbers_of, send_transaction, spooled_keys
from tests.scenarios.stage import Stage
from tests.scenarios.test_browsing import texts_in

R = "/queue/relay"
RELAY = {R: {"kind": "relay"}}


async def test_a_sender_waits_until_a_consumer_is_there(version: Version) -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        await producer.frame("SEND", {"destination": R, "receipt": "r"}, "m")
        await producer.silence()
        assert stage.depth_count(R) == 0
        await consumer.subscribe(R)
        assert await consumer.next_texts(1) == ["m"]
        await producer.expect_receipt("r")


async def test_a_sender_waits_while_its_consumer_has_no_credit(version: Version) -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        await consumer.subscribe(R, ack="client-individual" if version != "1.0" else "client", prefetch_count="2")
        for number in range(6):
            await producer.frame("SEND", {"destination": R, "receipt": str(number)}, str(number))
        await stage.settled_down()
        assert stage.depth_count(R) == 2, "what the consumer holds"
        got = []
        for _ in range(6):
            delivery = await consumer.next_message()
            got.append(delivery.text)
            assert stage.depth_count(R) <= 2
            await consumer.ack(delivery)
        assert got == [str(number) for number in range(6)]
        for number in range(6):
            await producer.expect_receipt(str(number))


async def test_a_sender_waits_for_no_destination_but_the_relay() -> None:
    async with Stage(RELAY) as stage:
        client = await stage.connect()
        await client.frame("SEND", {"destination": R, "receipt": "r"}, "m")
        await client.subscribe("/queue/other")
        await client.send("/queue/other", "passes")
        assert await client.next_texts(1) == ["passes"]
        await client.subscribe(R, id="relay")
        assert await client.next_texts(1) == ["m"]
        await client.expect_receipt("r")


async def test_many_senders_and_consumers_lose_nothing_and_keep_order() -> None:
    async with Stage(RELAY) as stage:
        producers = [await stage.connect() for _ in range(4)]
        consumers = [await stage.connect() for _ in range(3)]
        for consumer in consumers:
            await consumer.subscribe(R, ack="client-individual", prefetch_count="2")
        for place, producer in enumerate(producers):
            await producer.send_all(R, [f"{place}.{number}" for number in range(25)])
        got: list[list[str]] = [[] for _ in consumers]
        while sum(map(len, got)) < 100:
            for mine, consumer in zip(got, consumers, strict=True):
                for delivery in await consumer.drain(0.01):
                    mine.append(delivery.text)
                    await consumer.ack(delivery)
        assert len({text for mine in got for text in mine}) == 100
        for mine in got:
            for place in range(4):
                numbers = [int(text[2:]) for text in mine if text.startswith(f"{place}.")]
                assert numbers == sorted(numbers)


async def test_persistent_messages_are_not_stored_and_the_receipt_says_so() -> None:
    lives = Lives(RELAY)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(R, ack="client")
        await producer.sent(R, "m", persistent="true")
        assert durability(producer) == ["memory"]
        assert await consumer.next_texts(1) == ["m"]
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(R)
        await consumer.silence()


async def test_what_an_earlier_configuration_stored_is_delivered() -> None:
    """The destination stays a queue until it is empty; then it is forgotten, and comes back as a relay."""
    lives = Lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.sent(R, "kept", persistent="true")
    lives._policies = RELAY
    async with lives.life() as stage:
        assert stage.depth_count(R) == 1
        consumer = await stage.connect()
        await consumer.subscribe(R)
        assert await consumer.next_texts(1) == ["kept"]
        await consumer.disconnect()
        await trio.sleep(60)
        producer = await stage.connect()
        await producer.frame("SEND", {"destination": R, "receipt": "r"}, "m")
        await producer.silence()
        consumer = await stage.connect()
        await consumer.subscribe(R)
        assert await consumer.next_texts(1) == ["m"]
        await producer.expect_receipt("r")


async def test_what_a_lost_consumer_held_goes_to_the_next() -> None:
    async with Stage(RELAY, engine=MemoryEngine()) as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await first.subscribe(R, ack="client")
        await producer.sent(R, "m")
        await first.next_message()
        first.vanish()
        await stage.settled_down()
        await second.subscribe(R)
        delivery = await second.next_message()
        assert (delivery.text, delivery.redelivered) == ("m", True)


async def test_what_is_refused_too_often_goes_to_the_dead_letters() -> None:
    async with Stage({R: {"kind": "relay", "redeliveries_max": 1}}, engine=MemoryEngine()) as stage:
        client = await stage.connect()
        await client.subscribe(R, ack="client-individual")
        await client.sent(R, "bad")
        for _ in range(2):
            await client.nack(await client.next_message())
        await client.subscribe("/queue/dead-letters", id="dead")
        assert (await client.next_message()).headers["dead-letter-destination"] == R


async def test_a_commit_waits_for_a_consumer(version: Version) -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(version), await stage.connect(version)
        await producer.frame("BEGIN", {"transaction": "t"})
        await producer.send(R, "a", transaction="t")
        await producer.send("/queue/free", "b", transaction="t")
        await producer.frame("COMMIT", {"transaction": "t", "receipt": "r"})
        await producer.silence()
        assert stage.depth_count("/queue/free") == 0
        await consumer.subscribe(R)
        assert await consumer.next_texts(1) == ["a"]
        await producer.expect_receipt("r")


async def test_a_consumer_with_a_selector_takes_what_it_selects() -> None:
    async with Stage(RELAY) as stage:
        producer, picky, other = [await stage.connect() for _ in range(3)]
        await picky.subscribe(R, selector="color = 'red'")
        await producer.send(R, "1", color="red")
        await producer.send(R, "2", color="blue")
        assert await picky.next_texts(1) == ["1"]
        await other.subscribe(R)
        assert await other.next_texts(1) == ["2"]


async def test_a_wildcard_takes_from_relays_too() -> None:
    async with Stage({"/queue/relays.>": {"kind": "relay"}}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe("/queue/relays.*", ack="client", prefetch_count="1")
        for name in "abc":
            await producer.send(f"/queue/relays.{name}", name)
        got = set()
        for _ in range(3):
            delivery = await consumer.next_message()
            got.add(delivery.text)
            await consumer.ack(delivery)
        assert got == set("abc")


async def test_people_see_who_waits_and_for_what() -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(name="feeder"), await stage.connect(name="eater")
        await producer.send(R, "1")
        await trio.sleep(1)
        assert any("feeder" in chain and f"waits on relay {R}" in chain for chain in stage.chains()), stage.chains()
        assert any("subscribe one" in chain for chain in stage.chains()), stage.chains()
        assert stage.reported(R)["producers_count"] == 1
        assert scrape(stage.broker)("sluiceway_destination_blocked_senders", destination=R) == 1
        await consumer.subscribe(R, ack="client", prefetch_count="1")
        await producer.send(R, "2")
        await trio.sleep(1)
        assert any(f"waits on relay {R}" in chain and "eater" in chain for chain in stage.chains()), stage.chains()
        report = stage.reported(R)
        assert (report["kind"], report["depth_count"], report["unsettled_count"]) == ("queue", 1, 1)
        await consumer.ack(await consumer.next_message())
        await consumer.ack(await consumer.next_message())


async def test_a_relay_is_browsed_and_purged_like_a_queue() -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(R, ack="client", prefetch_count="1")
        await producer.send(R, "held")
        await consumer.next_message()
        assert await texts_in(producer, destination=R) == ["held"]
        consumer.vanish()
        await stage.settled_down()
        assert stage.depth_count(R) == 1, "it came back"
        reader = MessageReader(stage.broker.manager)
        reader.open()
        try:
            await Operations(stage.broker, reader).purge(stage.destination(R))
        finally:
            reader.close()
        assert stage.depth_count(R) == 0


@pytest.mark.parametrize("paused", [True, False])
async def test_senders_wait_while_it_is_paused(paused: bool) -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(R)
        await consumer.sync()
        if paused:
            stage.destination(R).pause()
        await producer.send(R, "m")
        await producer.sync()
        if paused:
            await consumer.silence()
            assert stage.depth_count(R) == 0
            stage.destination(R).unpause()
        assert await consumer.next_texts(1) == ["m"]


async def test_what_a_lost_sender_left_behind_goes_on() -> None:
    async with Stage(RELAY) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all(R, range(3))
        await stage.settled_down()
        producer.vanish()
        await consumer.subscribe(R)
        assert await consumer.next_texts(3) == ["0", "1", "2"]


async def test_what_nobody_selects_keeps_nothing_else_out() -> None:
    async with Stage(RELAY) as stage:
        producer, picky = await stage.connect(), await stage.connect()
        await picky.subscribe(R, selector="color = 'red'", ack="client", prefetch_count="1")
        for number in range(3):
            await producer.sent(R, "blue", color="blue")
            await producer.sent(R, str(number), color="red")
            delivery = await picky.next_message()
            assert delivery.text == str(number)
            await picky.ack(delivery)
        assert stage.depth_count(R) == 3
        reader = MessageReader(stage.broker.manager)
        reader.open()
        try:
            await Operations(stage.broker, reader).purge(stage.destination(R))
        finally:
            reader.close()
        assert stage.depth_count(R) == 0


# ---------------------------------------------------------------------- spooled transactions


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("end", ["crash", "power cut"])
@pytest.mark.parametrize("acked_count", [0, 1, 4, 7, 12, 23])
async def test_what_is_spooled_for_a_relay_comes_once_at_most(acked_count: int, end: str) -> None:
    """The RECEIPT of its COMMIT comes when the disk has it. What is on the disk still comes with the next start."""
    lives = Lives(RELAY, **SMALL)
    async with lives.life(end=end) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 30, R)
        await commit(producer)
        await consumer.subscribe(R, ack="client-individual", prefetch_count="3")
        acked = []
        for _ in range(acked_count):
            acked.append(await consumer.next_message())
            await consumer.ack(acked[-1])
        seen = numbers_of([*acked, *await consumer.drain()])
        assert seen == list(range(len(seen)))
        at_most = seen[-1] + 1 + stage.depth_count(R)
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(R)
        again = await consumer.drain()
        numbers = numbers_of(again)
        assert not [delivery for delivery in again if delivery.redelivered]
        assert numbers == list(range(30 - len(numbers), 30)), "the rest of it, in order"
        assert len(seen) <= 30 - len(numbers) <= at_most, "but what the relay held"
        await trio.sleep(5)
        assert not spooled_keys(lives.engine)


async def test_a_spooled_commit_to_a_relay_that_is_deleted_meanwhile_is_dropped() -> None:
    lives = Lives(RELAY, **SMALL)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_transaction(producer, 30, R)
        await commit(producer)
        await consumer.subscribe(R, ack="client-individual", prefetch_count="3")
        await consumer.next_messages(3)
        stage.broker.registry.delete(stage.destination(R), "a test")
        await trio.sleep(5)
        assert not spooled_keys(lives.engine)
        await producer.sync()


@pytest.mark.usefixtures("small_pieces")
async def test_a_relay_that_is_deleted_before_the_disk_has_let_go_of_a_piece_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was charged ahead is released (the stage looks), and the rest is dropped with it."""
    lives = Lives(RELAY, **SMALL)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        moved, registry = StoreSpool.moved, stage.broker.registry

        def moved_and_deleted(*arguments: Any, **options: Any) -> None:
            moved(*arguments, **options)
            if R in registry.destinations:
                registry.delete(registry.destinations[R], "a test")

        monkeypatch.setattr(StoreSpool, "moved", moved_and_deleted)
        await send_transaction(producer, 30, R)
        await commit(producer)
        await consumer.subscribe(R, ack="client-individual", prefetch_count="3")
        await trio.sleep(5)
        assert stage.broker.registry.unheard_count == 30
        assert not stage.depth_count(R) and not spooled_keys(lives.engine)
        await stage.check_all_accounted_for()


# ---------------------------------------------------------------------- dead letters


GRAVE = "/queue/grave"


def reloaded(stage: Stage, policies: dict[str, dict[str, object]]) -> None:
    entries = tuple(DestinationPolicy(match, settings) for match, settings in policies.items())
    stage.broker.reload(attrs.evolve(stage.broker.config, destinations=entries))


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_a_relay_that_is_to_take_dead_letters_takes_none_until_it_is_a_queue(end: str) -> None:
    lives = Lives({GRAVE: {"kind": "relay"}})
    after: dict[str, dict[str, object]] = {"/queue/work": {"dead_letter": GRAVE, "redeliveries_max": 0}}
    async with lives.life(end=end) as stage:
        client, other = await stage.connect(), await stage.connect()
        await other.subscribe(GRAVE, ack="client")
        await other.sync()
        reloaded(stage, after)
        await client.subscribe("/queue/work", ack="client-individual")
        await client.sent("/queue/work", "bad", persistent="true")
        await client.nack(await client.next_message())
        await other.silence()
        facts = next(iter(stage.destination("/queue/work").queue.partitions.values())).facts()
        assert "is a relay" in str(facts["because"])
    lives._policies = after
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(GRAVE)
        delivery = await client.next_message()
        assert (delivery.text, delivery.headers["dead-letter-destination"]) == ("bad", "/queue/work")


async def test_a_relay_that_is_to_take_dead_letters_becomes_a_queue_when_it_is_unused() -> None:
    lives = Lives({GRAVE: {"kind": "relay", "auto_delete_seconds": 5}})
    async with lives.life() as stage:
        client, other = await stage.connect(), await stage.connect()
        await other.subscribe(GRAVE, ack="client")
        await other.sync()
        work = {"dead_letter": GRAVE, "redeliveries_max": 0}
        reloaded(stage, {GRAVE: {"auto_delete_seconds": 5}, "/queue/work": work})
        await client.subscribe("/queue/work", ack="client-individual")
        await client.sent("/queue/work", "bad", persistent="true")
        await client.nack(await client.next_message())
        await other.disconnect()
        await trio.sleep(20)
        assert stage.depth_count("/queue/work") == 0 and stage.depth_count(GRAVE) == 1
        await client.subscribe(GRAVE, id="dead")
        assert (await client.next_message()).text == "bad"
