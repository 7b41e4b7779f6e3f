"""Durable subscriptions without a client id, as RabbitMQ has them: known by topic and id, shared by their consumers."""

from __future__ import annotations

from random import Random

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from tests.how_often import rounds
from tests.scenarios.client import Client, Delivery
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage

T, OTHER = "/topic/prices", "/topic/weather"
GRAVE = "/queue/dead-letters"
ENDS = ("in order", "crash", "power cut")
DURABLE = {"durable": "true", "auto-delete": "false"}


async def _reader(stage: Stage, *, ack: str = "client-individual", topic: str = T, **headers: str) -> Client:
    client = await stage.connect()
    await client.subscribe(topic, id="audit", ack=ack, **DURABLE, **headers)
    return client


async def _remove(stage: Stage, topic: str = T) -> None:
    client = await stage.connect()
    await client.request("UNSUBSCRIBE", {"id": "audit", "destination": topic, "durable": "true"})


async def _ack_all(client: Client) -> list[str]:
    """What has come to this client, and comes when that is acknowledged."""
    texts = []
    for delivery in await client.drain():
        await client.ack(delivery)
        texts.append(delivery.text)
    return texts


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("header", ["durable", "persistent"])
@pytest.mark.parametrize("true", ["true", "True"])
async def test_frames_of_rabbitmqs_python_client(stage: Stage, header: str, true: str) -> None:
    """Its own test of durable subscriptions, with the bytes that stomp.py sends."""
    client = await stage.connect("1.0")
    subscribe = (
        f"SUBSCRIBE\nack:auto\nauto-delete:False\ndestination:/topic/durable\n{header}:{true}\nid:TestDurableSubscription"
        "\nreceipt:1\n\n\0"
    )
    await client.send_raw(subscribe.encode())
    await client.expect_receipt("1")
    await client.send_raw(b"SEND\ncontent-length:5\ndestination:/topic/durable\n\nfirst\0")
    assert await client.next_texts(1) == ["first"]
    await client.send_raw(b"UNSUBSCRIBE\ndestination:/topic/durable\nid:TestDurableSubscription\n\n\0")
    await client.send_raw(b"SEND\ncontent-length:6\ndestination:/topic/durable\n\nsecond\0")
    await client.send_raw(subscribe.encode())
    await client.expect_receipt("1")
    assert await client.next_texts(1) == ["second"]
    await client.send_raw(
        f"UNSUBSCRIBE\ndestination:/topic/durable\n{header}:{true}\nid:TestDurableSubscription\n\n\0".encode()
    )
    await client.send_raw(b"SEND\ncontent-length:5\ndestination:/topic/durable\n\nthird\0")
    await client.send_raw(subscribe.encode())
    await client.expect_receipt("1")
    await client.silence()
    await client.send_raw(b"UNSUBSCRIBE\ndurable:true\nid:TestDurableSubscription\nreceipt:2\n\n\0")
    await client.expect_receipt("2")


async def test_frames_of_rabbitmqs_java_client(stage: Stage) -> None:
    """Headers in its order, two connections on one subscription."""
    subscribe = (
        b"SUBSCRIBE\nid:1234\ndestination:/topic/my-durable\ndurable:true\nauto-delete:false\nack:client-individual\n"
        b"receipt:r\n\n\0"
    )
    clients = [await stage.connect("1.2") for _ in range(2)]
    for client in clients:
        await client.send_raw(subscribe)
        await client.expect_receipt("r")
    await clients[0].send_all("/topic/my-durable", range(100))
    texts = [text for client in clients for text in await _ack_all(client)]
    assert sorted(texts, key=int) == [str(number) for number in range(100)]
    await clients[0].send_raw(b"UNSUBSCRIBE\nid:1234\nreceipt:u\n\n\0")
    await clients[0].expect_receipt("u")
    await clients[1].send_raw(b"UNSUBSCRIBE\nid:1234\ndurable:true\nreceipt:u\n\n\0")
    await clients[1].expect_receipt("u")
    assert not list(stage.broker.registry.durables)


async def test_each_topic_has_the_name(stage: Stage) -> None:
    """On one connection and on several."""
    readers = [await _reader(stage, topic=topic) for topic in (T, OTHER)]
    for topic in (T, OTHER):
        await readers[0].sent(topic, topic)
    for reader, topic in zip(readers, (T, OTHER), strict=True):
        delivery = await reader.next_message()
        assert delivery.text == topic
        await reader.ack(delivery)
        await reader.disconnect()
    client = await stage.connect()
    await client.frame("UNSUBSCRIBE", {"id": "audit", "durable": "true"})
    await client.expect_error("2 topics have a durable subscription 'audit'")
    await _remove(stage)
    assert [durable.destination for durable in stage.broker.registry.durables] == [OTHER]
    client = await stage.connect()
    await client.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})  # the only one of this name
    assert not list(stage.broker.registry.durables)


@pytest.mark.parametrize("end", ENDS)
async def test_each_topic_has_the_name_in_the_next_life(end: str) -> None:
    lives = Lives()
    async with lives.life(end=end) as stage:
        for topic in (T, OTHER):
            await (await _reader(stage, topic=topic)).sent(topic, topic, persistent="true")
    async with lives.life() as stage:
        for topic in (T, OTHER):
            assert await (await _reader(stage, topic=topic)).next_texts(1) == [topic]


async def test_client_ids_have_one_consumer_as_ever(stage: Stage) -> None:
    first, second = [await stage.connect(**{"client-id": "shop"}) for _ in range(2)]
    await first.subscribe(T, id="audit", durable="true")
    await second.frame("SUBSCRIBE", {"id": "audit", "destination": T, "durable": "true"})
    await second.expect_error("has its consumer already")
    await first.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})


# ---------------------------------------------------------------------- sharing


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_consumers_share_what_comes(version: Version, stage: Stage, ack: str) -> None:
    """Each message goes to one of them; a subscriber beside them gets all."""
    readers = [await stage.connect(version) for _ in range(3)]
    for reader in readers:
        await reader.subscribe(T, id="audit", ack=ack, **DURABLE)
    listener = await stage.connect()
    await listener.subscribe(T)
    await listener.send_all(T, range(300))
    assert await listener.next_texts(300) == [str(number) for number in range(300)]
    shares = [[delivery.text for delivery in await reader.drain()] for reader in readers]
    assert sorted([int(text) for share in shares for text in share]) == list(range(300))
    assert all(share == sorted(share, key=int) for share in shares)
    for reader in readers:
        await reader.disconnect()
    await _remove(stage)


async def test_a_backlog_is_shared_evenly(stage: Stage) -> None:
    """Who is ready when it arrives gets as much as the others."""
    await (await _reader(stage)).disconnect()
    producer = await stage.connect()
    stage.destination(T).queue.partition(4).pause()
    await producer.send_all(T, range(90))
    await producer.sync()
    readers = [await _reader(stage) for _ in range(3)]
    stage.destination(T).queue.partition(4).unpause()
    assert [len(await reader.drain()) for reader in readers] == [30, 30, 30]
    for reader in readers:
        await reader.disconnect()
    await _remove(stage)


async def test_credit_says_who_gets_what(stage: Stage) -> None:
    """One whose window is full holds nobody back."""
    slow = await _reader(stage, **{"prefetch-count": "2"})
    quick = await _reader(stage, **{"prefetch-count": "5"})
    await quick.send_all(T, range(50))
    got = await _ack_all(quick)
    while more := await _ack_all(quick):
        got += more
    held = await slow.drain()
    assert len(held) == 2
    assert sorted([int(text) for text in got] + [int(delivery.text) for delivery in held]) == list(range(50))
    await slow.disconnect()
    await quick.disconnect()
    await _remove(stage)


async def test_what_one_gives_back_wakes_the_others(stage: Stage) -> None:
    """At UNSUBSCRIBE, at DISCONNECT and when its connection breaks."""
    other = await _reader(stage)
    for how in ("unsubscribe", "disconnect", "vanish"):
        leaver = await _reader(stage, **{"prefetch-count": "1"})
        await other.send_all(T, range(2))
        held = await leaver.next_message()
        kept = await other.next_message()
        await other.ack(kept)
        if how == "unsubscribe":
            await leaver.request("UNSUBSCRIBE", {"id": "audit"})
        elif how == "disconnect":
            await leaver.disconnect()
        else:
            leaver.vanish()
        again = await other.next_message()
        assert (again.text, again.redelivered) == (held.text, True)
        await other.ack(again)
        await other.silence()
        if how == "unsubscribe":
            await leaver.disconnect()
    await other.disconnect()
    await _remove(stage)


async def test_what_others_hold_stays_with_them(stage: Stage) -> None:
    """One leaves: only what it held comes again."""
    stays, leaves = await _reader(stage), await _reader(stage)
    await stays.send_all(T, range(20))
    held = await stays.drain()
    lost = await leaves.drain()
    assert held and lost
    leaves.vanish()
    again = await stays.drain()
    assert [delivery.text for delivery in again] == [delivery.text for delivery in lost]
    for delivery in held + again:
        await stays.ack(delivery)
    await stays.silence()
    assert stage.depth_count(T) == 0
    await stays.disconnect()
    await _remove(stage)


@pytest.mark.parametrize("ending", ["COMMIT", "ABORT"])
async def test_what_a_transaction_holds_outlives_the_subscription(stage: Stage, ending: str) -> None:
    leaves, stays = await _reader(stage), await _reader(stage, **{"prefetch-count": "1"})
    await leaves.send_all(T, range(2))
    delivery = await leaves.next_message()
    (kept,) = await stays.drain()
    await leaves.frame("BEGIN", {"transaction": "t"})
    await leaves.ack(delivery, transaction="t")
    await leaves.request("UNSUBSCRIBE", {"id": "audit"})
    await stays.ack(kept)
    await stays.silence()
    await leaves.request(ending, {"transaction": "t"})
    again = await stays.drain()
    assert [each.text for each in again] == ([] if ending == "COMMIT" else [delivery.text])
    for each in again:
        await stays.ack(each)
    await stays.sync()
    assert stage.depth_count(T) == 0
    await leaves.disconnect()
    await stays.disconnect()
    await _remove(stage)


@pytest.mark.parametrize("ending", ["COMMIT", "ABORT", "vanish"])
async def test_removed_while_a_transaction_holds_something_of_it(stage: Stage, ending: str) -> None:
    leaves = await _reader(stage)
    await leaves.sent(T, "m")
    delivery = await leaves.next_message()
    await leaves.frame("BEGIN", {"transaction": "t"})
    await leaves.ack(delivery, transaction="t")
    await leaves.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})
    assert stage.depth_count(T) == 0
    anew = await _reader(stage)
    await anew.sent(T, "n")
    fresh = await anew.next_message()
    if ending == "vanish":
        leaves.vanish()
    else:
        await leaves.request(ending, {"transaction": "t"})
    assert fresh.text == "n"
    await anew.silence()
    await anew.ack(fresh)
    await anew.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})


async def test_another_selector_is_refused(stage: Stage) -> None:
    """Also while others consume; with the same one they share what it takes."""
    readers = [await _reader(stage, selector="kind = 'gold'") for _ in range(2)]
    odd = await stage.connect()
    await odd.frame("SUBSCRIBE", {"id": "audit", "destination": T, "durable": "true", "selector": "kind = 'tin'"})
    error = await odd.expect_error("kind = 'gold'")
    assert error.headers["code"] == "other-selector"
    producer = await stage.connect()
    for number in range(40):
        await producer.send(T, str(number), kind="gold" if number % 2 else "tin")
    await producer.sync()
    texts = [text for reader in readers for text in await _ack_all(reader)]
    assert sorted(texts, key=int) == [str(number) for number in range(1, 40, 2)]
    for reader in readers:
        await reader.disconnect()
    await _remove(stage)


async def test_in_use_it_is_not_removed(stage: Stage) -> None:
    """What others consume nobody takes away from them."""
    stays, leaves = await _reader(stage), await _reader(stage)
    await leaves.frame("UNSUBSCRIBE", {"id": "audit", "durable": "true"})
    error = await leaves.expect_error("has a consumer")
    assert error.headers["code"] == "durable-in-use"
    await stays.sent(T, "m")
    delivery = await stays.next_message()
    await stays.ack(delivery)
    await stays.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})


async def test_failures_add_up_whoever_had_them() -> None:
    async with Stage({T: {"redeliveries_max": 3, "dead_letter": GRAVE}}) as stage:
        readers = [await _reader(stage, **{"prefetch-count": "1"}) for _ in range(2)]
        await readers[0].sent(T, "poison")
        for turn in range(4):
            await trio.sleep(1)
            for reader in readers:
                reader.receive_now()
            (reader,) = [reader for reader in readers if reader.messages]
            delivery = await reader.next_message()
            assert delivery.delivery_count == turn + 1
            await reader.nack(delivery)
        grave = await stage.connect()
        await grave.subscribe(GRAVE, id="grave")
        letter = await grave.next_message()
        assert (letter.text, letter.headers["dead-letter-subscription"]) == ("poison", "audit")
        for reader in readers:
            await reader.silence()
            await reader.disconnect()
        await _remove(stage)


# ---------------------------------------------------------------------- restarts, and what people see


@pytest.mark.parametrize("end", ENDS)
async def test_consumers_of_the_next_life_go_on(end: str) -> None:
    """What was acknowledged by any of them is done; what any held comes again, marked."""
    lives = Lives()
    async with lives.life(end=end) as stage:
        readers = [await _reader(stage, **{"prefetch-count": "10"}) for _ in range(2)]
        producer = await stage.connect()
        for number in range(30):
            await producer.send(T, str(number), persistent="true")
        await producer.sync()
        await trio.sleep(3)
        held = [await reader.drain() for reader in readers]
        assert [len(each) for each in held] == [10, 10]
        done = []
        for reader, deliveries in zip(readers, held, strict=True):
            for delivery in deliveries[::2]:
                await reader.request("ACK", reader.naming(delivery))
                done.append(delivery.text)
        await trio.sleep(3)
        seen = {delivery.text for deliveries in held for delivery in deliveries}
    async with lives.life() as stage:
        assert stage.broker.report()["durables"][0]["backlog_count"] == 20
        readers = [await _reader(stage) for _ in range(2)]
        left = [delivery for reader in readers for delivery in await reader.drain()]
        assert sorted([int(delivery.text) for delivery in left] + [int(text) for text in done]) == list(range(30))
        assert all(delivery.redelivered for delivery in left if delivery.text in seen)


async def test_reports_say_how_many_consume(stage: Stage) -> None:
    readers = [await _reader(stage) for _ in range(2)]
    for count in (2, 1, 0):
        (row,) = stage.broker.report()["durables"]
        assert (row["consumers_count"], row["attached"]) == (count, count > 0)
        if readers:
            await readers.pop().disconnect()
            await stage.settled_down()
    await _remove(stage)


@pytest.mark.parametrize("seed", range(rounds(1)))
@pytest.mark.parametrize("paged", [False, True])
async def test_nothing_is_lost_or_had_twice_whoever_comes_and_goes(seed: int, paged: bool) -> None:
    """Consumers come, settle, refuse, leave and break at random: in the end each message was acknowledged once, and
    nobody had it while another one held it.
    """
    random = Random(seed)
    policies = {T: {"memory_bytes": 200_000, "redeliveries_max": None, "full": "block"}} if paged else None
    lives = Lives(policies)
    done: list[str] = []
    sent_count = 0
    async with lives.life() as stage:
        producer = await stage.connect()
        await (await _reader(stage)).disconnect()
        held: dict[Client, list[Delivery]] = {}
        for _ in range(60):
            step = random.randrange(9)
            if step < 2:
                size = random.choice((1, 30, 700 if paged else 60))
                for number in range(sent_count, sent_count + size):
                    await producer.send(T, f"{number} ".encode() + bytes(300), persistent="true")
                sent_count += size
                await producer.sync()
            elif step < 4 and len(held) < 5:
                prefetch = str(random.choice((1, 3, 50, 0)))
                held[await _reader(stage, **{"prefetch-count": prefetch})] = []
            elif held:
                client = random.choice(list(held))
                held[client] += await client.drain(0.01)
                mine = held[client]
                if step < 7:
                    for _i in range(len(mine) if random.random() < 0.5 else len(mine) // 2):
                        delivery = mine.pop(random.randrange(len(mine)))
                        await client.ack(delivery)
                        done.append(delivery.text.split()[0])
                elif step == 7:
                    for delivery in mine[::3]:
                        await client.nack(delivery)
                    held[client] = [delivery for place, delivery in enumerate(mine) if place % 3]
                else:
                    del held[client]
                    how = random.randrange(3)
                    if how == 0:
                        await client.request("UNSUBSCRIBE", {"id": "audit"})
                    if how < 2:
                        await client.disconnect()
                    else:
                        await client.sync()
                        client.vanish()
        for client in held:
            await client.disconnect()
        last = await _reader(stage, **{"prefetch-count": "0"})
        while deliveries := await last.drain():
            for delivery in deliveries:
                await last.ack(delivery)
                done.append(delivery.text.split()[0])
        assert sorted(done, key=int) == [str(number) for number in range(sent_count)]
        assert stage.depth_count(T) == 0
        assert all(queue.unsettled_count == 0 for queue in stage.partitions(T))


async def test_removed_with_much_in_hand(stage: Stage) -> None:
    """What its consumer gives back in steps is nobody's any more; the name is free at once."""
    reader = await _reader(stage, **{"prefetch-count": "0"})
    await reader.send_all(T, range(5000))
    assert len(await reader.drain()) == 5000
    await reader.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})
    anew = await _reader(stage)
    await anew.sent(T, "new")
    delivery = await anew.next_message()
    assert delivery.text == "new"
    await anew.request("UNSUBSCRIBE", {"id": "audit", "durable": "true"})
    assert all(queue.unsettled_count == 0 for queue in stage.partitions(T))
