"""`partition_by = "header:NAME"`: a queue in parts, each with limits and a consumer of its own."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import pytest
import trio

from sluiceway.admin.messages import MessageReader, Messages
from sluiceway.admin.operations import Operations
from sluiceway.config import DestinationPolicy
from sluiceway.flow import SourceController
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.intake import Intake
from sluiceway.queues.message import Message
from sluiceway.queues.parts import priority_and_part
from sluiceway.steps import StepPace
from sluiceway.store.memory import MemoryEngine
from tests.log_lines import LogLines
from tests.scenarios.client import Client, Delivery
from tests.scenarios.lives import Lives, durability
from tests.scenarios.scrape import scrape
from tests.scenarios.stage import Stage
from tests.scenarios.test_browsing import texts_in

Q = "/queue/orders"
PARTS = 4
POLICY: dict[str, Any] = {"partition_by": "header:customer", "partitions_count": PARTS}
CUSTOMERS = [f"c{number}" for number in range(10)]


async def send_all(client: Client, count: int, *, start: int = 0, destination: str = Q, **headers: str) -> None:
    """So many messages of each customer, in turns."""
    for number in range(start, start + count):
        for customer in CUSTOMERS:
            await client.send(destination, f"{customer}.{number}", customer=customer, **headers)
    await client.sync()


def by_customer(deliveries: list[Delivery]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for delivery in deliveries:
        customer, _dot, number = delivery.text.partition(".")
        assert delivery.headers["customer"] == customer
        found[customer].append(int(number))
    return found


async def test_every_customer_is_served_in_order_by_one_of_several_consumers(version: Version) -> None:
    async with Stage({Q: POLICY}) as stage:
        producer = await stage.connect(version)
        consumers = [await stage.connect(version) for _ in range(3)]
        for consumer in consumers:
            await consumer.subscribe(Q)
        await send_all(producer, 10)
        got = [by_customer(await consumer.drain()) for consumer in consumers]
        assert all(got), "each has a part of the work"
        assert sorted(customer for each in got for customer in each) == sorted(CUSTOMERS)
        assert all(numbers == list(range(10)) for each in got for numbers in each.values())


async def test_a_consumer_that_comes_later_gets_its_share() -> None:
    async with Stage({Q: POLICY}) as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await first.subscribe(Q, ack="client-individual")
        await send_all(producer, 2)
        held = await first.next_messages(2 * len(CUSTOMERS))
        await second.subscribe(Q, ack="client-individual")
        await send_all(producer, 2, start=2)
        await second.silence()
        for delivery in held:
            await first.ack(delivery)
        late = await second.drain()
        mine = by_customer(late)
        others = by_customer(await first.drain())
        assert mine and others and not mine.keys() & others.keys()
        assert all(numbers == [2, 3] for numbers in [*mine.values(), *others.values()])


async def test_what_a_lost_consumer_held_comes_first_and_in_order() -> None:
    async with Stage({Q: POLICY}) as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await first.subscribe(Q, ack="client")
        await second.subscribe(Q, ack="client")
        await send_all(producer, 3)
        lost = by_customer(await first.drain())
        kept = by_customer(await second.drain())
        first.vanish()
        again = by_customer(await second.drain())
        assert again == lost
        assert not lost.keys() & kept.keys()


async def test_a_full_part_holds_back_only_its_own_senders() -> None:
    async with Stage({Q: {**POLICY, "count_max": 3, "full": "block"}}) as stage:
        client, consumer = await stage.connect(), await stage.connect()
        for number in range(5):
            await client.send(Q, f"c0.{number}", customer="c0")
        await client.sync()
        other = next(name for name in CUSTOMERS if part_of(stage, name) != part_of(stage, "c0"))
        await client.sent(Q, f"{other}.0", customer=other)
        assert stage.depth_count(Q) == 4
        assert any(f"waits on queue {Q} (part" in chain for chain in stage.chains()), stage.chains()
        await consumer.subscribe(Q)
        assert by_customer(await consumer.drain()) == {"c0": [0, 1, 2, 3, 4], other: [0]}


def part_of(stage: Stage, customer: str) -> int:
    partitioning = stage.destination(Q).partitioning
    assert partitioning is not None

    class Head:
        def header(self, _name: str) -> str:
            return customer

    return partitioning.part_of(Head())  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_all_parts_outlive_the_broker(end: str) -> None:
    lives = Lives({Q: POLICY})
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        for number in range(3):
            for customer in CUSTOMERS:
                await producer.sent(Q, f"{customer}.{number}", customer=customer, persistent="true")
        assert set(durability(producer)) == {"disk"}
    async with lives.life() as stage:
        assert stage.depth_count(Q) == 3 * len(CUSTOMERS)
        assert list(stage.broker.registry.destinations) == [Q]
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        assert by_customer(await consumer.drain()) == {customer: [0, 1, 2] for customer in CUSTOMERS}


@pytest.mark.parametrize("policy", [{}, {"partition_by": "header:customer", "partitions_count": 2}])
async def test_what_lies_in_parts_that_are_no_more_is_delivered(policy: dict[str, Any]) -> None:
    lives = Lives({Q: {**POLICY, "partitions_count": 16}})
    async with lives.life() as stage:
        producer = await stage.connect()
        for customer in CUSTOMERS:
            await producer.sent(Q, f"{customer}.0", customer=customer, persistent="true")
    lives._policies = {Q: policy} if policy else None
    async with lives.life() as stage:
        first, second = await stage.connect(), await stage.connect()
        await first.subscribe(Q)
        await second.subscribe(Q)
        got = by_customer(await first.drain() + await second.drain())
        assert got == {customer: [0] for customer in CUSTOMERS}
        await send_all(first, 1, start=1)
        assert by_customer(await first.drain() + await second.drain()) == {customer: [1] for customer in CUSTOMERS}


async def test_a_queue_that_is_divided_later_keeps_what_it_had() -> None:
    lives = Lives()
    async with lives.life() as stage:
        producer = await stage.connect()
        await producer.sent(Q, "c0.0", customer="c0", persistent="true")
    lives._policies = {Q: POLICY}
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        assert await consumer.next_texts(1) == ["c0.0"]


async def test_transactions_reach_their_parts_also_when_spooled() -> None:
    lives = Lives({Q: POLICY}, transaction_bytes_max=20_000, transaction_spool_bytes_max=10_000_000)
    async with lives.life() as stage:
        producer = await stage.connect()
        for place in range(2):
            await producer.frame("BEGIN", {"transaction": f"t{place}"})
            body = "x" * (2_000 if place else 10)
            for customer in CUSTOMERS:
                headers = {"transaction": f"t{place}", "customer": customer, "persistent": "true", "body": body[:1]}
                await producer.frame("SEND", {"destination": Q, **headers}, f"{customer}.{place}." + body)
            await producer.request("COMMIT", {"transaction": f"t{place}"})
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(Q)
        deliveries = await consumer.drain()
        found: dict[str, list[str]] = defaultdict(list)
        for delivery in deliveries:
            customer, number, _body = delivery.text.split(".")
            found[customer].append(number)
        assert found == {customer: ["0", "1"] for customer in CUSTOMERS}
        assert len(stage.partitions(Q)) > 1


async def test_parts_page_each_for_itself() -> None:
    async with Stage({Q: {**POLICY, "memory_bytes": 30_000}}, engine=MemoryEngine()) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for start in range(0, 100, 10):
            await send_all(producer, 10, start=start, filler="x" * 200)
        await trio.sleep(5)
        assert sum(queue.statistics().outside_count > 0 for queue in stage.partitions(Q)) > 1
        await consumer.subscribe(Q)
        assert by_customer(await consumer.drain()) == {customer: list(range(100)) for customer in CUSTOMERS}


async def test_people_see_one_queue_and_its_parts() -> None:
    async with Stage({Q: POLICY}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_all(producer, 2)
        report = stage.reported(Q)
        assert (report["depth_count"], report["added_count"]) == (20, 20)
        assert scrape(stage.broker)("sluiceway_destination_messages", destination=Q) == 20
        names = [queue.name for queue in stage.partitions(Q)]
        assert Q in names and f"{Q} (part 3)" in names
        assert len(await texts_in(producer, destination=Q)) == 20
        await consumer.subscribe(Q, ack="client")
        assert stage.reported(Q)["subscriptions_count"] == 1
        assert len(await consumer.drain()) == 20
        assert stage.reported(Q)["unsettled_count"] == 20


async def test_operators_page_through_it_move_from_it_and_purge_it() -> None:
    async with Stage({Q: POLICY, "/queue/other": POLICY}) as stage:
        producer = await stage.connect()
        await send_all(producer, 2)
        reader = MessageReader(stage.broker.manager)
        reader.open()
        try:
            broker = stage.broker
            messages = Messages(
                broker.shards,
                broker.pulse,
                reader,
                StepPace(lambda: 0),
                dead_letter_queues=lambda: (),
                clock=broker.clock,
            )
            seen, start = [], ""
            while start is not None:
                answer = await messages.messages(stage.destination(Q), start, 3)
                seen += [item["message_id"] for item in answer["items"]]
                start = answer["next"]
            assert len(seen) == len(set(seen)) == 20
            operations = Operations(stage.broker, reader)
            await operations.move(stage.destination(Q), "/queue/other", None)
            assert (stage.depth_count(Q), stage.depth_count("/queue/other")) == (0, 20)
            assert len({queue.part for queue in stage.partitions("/queue/other") if not queue.is_empty}) > 1
            await operations.purge(stage.destination("/queue/other"))
            assert stage.depth_count("/queue/other") == 0
        finally:
            reader.close()


async def test_dead_letters_of_a_divided_queue_come_from_it_by_name() -> None:
    policies = {Q: {**POLICY, "redeliveries_max": 0}, "/queue/dead-letters": POLICY}
    async with Stage(policies, engine=MemoryEngine()) as stage:
        client = await stage.connect()
        await client.subscribe(Q, ack="client-individual")
        for customer in CUSTOMERS:
            await client.send(Q, f"{customer}.0", customer=customer)
        for _ in CUSTOMERS:
            await client.nack(await client.next_message())
        await client.subscribe("/queue/dead-letters", id="dead")
        letters = await client.next_messages(len(CUSTOMERS))
        assert {letter.headers["dead-letter-destination"] for letter in letters} == {Q}
        assert len({queue.part for queue in stage.partitions("/queue/dead-letters")}) > 1


async def test_wildcards_and_priorities_go_with_parts() -> None:
    async with Stage({"/queue/>": {"partition_by": "header:customer"}}) as stage:
        producer, one, two = [await stage.connect() for _ in range(3)]
        await one.subscribe("/queue/*")
        await two.subscribe(Q)
        await send_all(producer, 2)
        await send_all(producer, 2, start=2, priority="9")
        await send_all(producer, 1, destination="/queue/else")
        mine = [delivery for delivery in await one.drain() if delivery.headers["destination"] == Q]
        got = [by_customer(mine), by_customer(await two.drain())]
        assert all(got) and not got[0].keys() & got[1].keys()
        assert all(sorted(numbers) == [0, 1, 2, 3] for each in got for numbers in each.values())


async def test_what_one_read_brings_goes_in_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the values are mixed, and once the way to each part is known."""
    offers: list[int] = []
    offer = Intake.offer

    def counted(intake: Intake, messages: list[Message], wire_bytes: int, source: SourceController) -> bool:
        offers.append(len(messages))
        return offer(intake, messages, wire_bytes, source)

    async with Stage({Q: POLICY}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_all(producer, 1)
        monkeypatch.setattr(Intake, "offer", counted)
        frames = [
            producer.encode("SEND", {"destination": Q, "customer": customer}, f"{customer}.{number}")
            for number in range(1, 11)
            for customer in CUSTOMERS
        ]
        await producer.send_raw(b"".join(frames))
        await producer.sync()
        assert sum(offers) == 100 and len(offers) <= 2 * PARTS, offers
        await consumer.subscribe(Q)
        got = by_customer(await consumer.drain())
        assert all(got[customer] == list(range(11)) for customer in CUSTOMERS)


async def test_the_way_to_parts_is_found_anew_when_there_are_other_parts() -> None:
    """The destination was forgotten meanwhile, and came back with another number of parts."""
    async with Stage({Q: {**POLICY, "auto_delete_seconds": 5}}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await send_all(producer, 1)
        await consumer.subscribe(Q)
        await consumer.drain()
        await consumer.unsubscribe()
        entries = (DestinationPolicy(Q, {"partition_by": "header:customer", "partitions_count": 16}),)
        stage.broker.reload(attrs.evolve(stage.broker.config, destinations=entries))
        stage.broker.registry.delete(stage.destination(Q), "a test")
        for number in (1, 2):
            await send_all(producer, 1, start=number)
        partitioning = stage.destination(Q).partitioning
        assert partitioning is not None and partitioning.count == 16
        assert len(stage.partitions(Q)) > PARTS
        await consumer.subscribe(Q)
        assert by_customer(await consumer.drain()) == {customer: [1, 2] for customer in CUSTOMERS}


async def test_each_part_fills_for_itself_in_forecasts() -> None:
    async with Stage({Q: {**POLICY, "count_max": 1000}}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await consumer.subscribe(Q, ack="client-individual")
        await send_all(producer, 100)
        mine = {customer for customer in CUSTOMERS if crc32(customer.encode()) % PARTS == crc32(b"c1") % PARTS}
        held = [delivery for delivery in await consumer.drain() if delivery.headers["customer"] not in mine]
        for _ in range(20):  # one part grows by two a second, and all others shrink by more together
            await producer.send_all(Q, ["c1.1", "c1.1"], customer="c1")
            for delivery in held[:4]:
                await consumer.ack(delivery)
            del held[:4]
            await trio.sleep(1)
            page = scrape(stage.broker)
        (grown,) = [q.elements.live_count for q in stage.partitions(Q) if q.part == crc32(b"c1") % PARTS]
        expected = (1000 - grown) / 2
        assert page("sluiceway_destination_quota_seconds", destination=Q) == pytest.approx(expected, rel=0.5)
        assert page("sluiceway_destination_drain_seconds", destination=Q) < math.inf


async def test_a_relay_may_be_divided() -> None:
    async with Stage({Q: {**POLICY, "kind": "relay"}}) as stage:
        producer, first, second = [await stage.connect() for _ in range(3)]
        await producer.send(Q, "c0.0", customer="c0")
        await producer.sync()
        assert stage.depth_count(Q) == 0
        await first.subscribe(Q)
        await second.subscribe(Q)
        await send_all(producer, 2, start=1)
        got = [by_customer(await first.drain()), by_customer(await second.drain())]
        assert all(got)
        for customer in CUSTOMERS:
            numbers = got[0][customer] + got[1][customer]
            assert numbers == ([0, 1, 2] if customer == "c0" else [1, 2]), "c0 may have changed hands in between"


async def test_it_is_forgotten_when_it_is_empty_and_idle() -> None:
    async with Stage({Q: POLICY}) as stage:
        client = await stage.connect()
        await client.subscribe(Q)
        await send_all(client, 1)
        await client.drain()
        await client.disconnect()
        await trio.sleep(60)
        assert Q not in stage.broker.registry.destinations


async def test_a_function_divides_by_what_it_makes_of_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: LogLines
) -> None:
    """It is given headers alone; a message for which it raises is in part 0, and the log says so once."""
    (tmp_path / "shop_parts.py").write_text(
        "def by_region(header):\n    customer = header('customer')\n    return customer.split('-')[0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    policy = {**POLICY, "partition_by": "function:shop_parts:by_region"}
    expected: Counter[int] = Counter()
    async with Stage({Q: policy}) as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        for region in ("eu", "us", "asia"):
            for number in range(3):
                await producer.send(Q, "", customer=f"{region}-{number}")
            expected[crc32(region.encode()) % PARTS] += 3
        for other in ("a", "b"):
            await producer.send(Q, "", other=other)
            expected[0] += 1
        await producer.sync()
        there: Counter[int] = Counter()
        for key, queue in stage.broker.registry.destinations[Q].queue.partitions.items():
            there[priority_and_part(key)[1]] += queue.statistics().depth_count
        assert there == expected
        await consumer.subscribe(Q)
        assert len(await consumer.drain()) == 11
    (line,) = log_lines.of("a function that divides a queue failed")
    assert line["function"] == "shop_parts:by_region"
