"""Shards that move between hubs, as their clients meet it: in order, after a crash, after the end of a session."""

from __future__ import annotations

import json
from typing import Any

import attrs
import jsonschema
import pytest
import trio

from sluiceway.admin.schema import CLUSTER
from sluiceway.cli.answers import wrong_clocks
from sluiceway.cluster.division import division_of
from sluiceway.cluster.ownership import NotMovableError
from sluiceway.store.engine import FencedError
from tests.cluster.links.test_stat_of_all import stat
from tests.cluster.moves.moving_hubs import SHARDS, MovingHubs, names
from tests.scenarios.client import Client
from tests.scenarios.scrape import scrape
from tests.store.faulty import FaultyEngine

QUEUES = names("/queue/s")
TOPICS = names("/topic/t")


async def take(client: Client, count: int) -> list[str]:
    """Acknowledge so many messages; returns their texts."""
    texts = []
    for _ in range(count):
        delivery = await client.next_message()
        texts.append(delivery.text)
        await client.ack(delivery)
    return texts


async def test_hubs_divide_the_shards_and_clients_use_all_from_anywhere() -> None:
    async with MovingHubs() as hubs:
        assert set(hubs.owners()) == {"a", "b"}
        assert hubs.stores.epochs == [[1]] * SHARDS, "nobody has had what it was not to have"
        for hub, other in (("a", "b"), ("b", "a")):
            sender, receiver = await hubs.connect(hub), await hubs.connect(other)
            for queue in QUEUES:
                await receiver.subscribe(queue, id=queue)
                await sender.sent(queue, f"to {queue}", persistent="true")
            assert sorted(await receiver.next_texts(SHARDS)) == sorted(f"to {queue}" for queue in QUEUES)
            await receiver.disconnect()


async def test_a_killed_owner_costs_clients_of_others_a_pause_and_marked_redeliveries() -> None:
    async with MovingHubs() as hubs:
        sender, receiver = await hubs.connect("a"), await hubs.connect("a")
        for queue in QUEUES:
            await receiver.subscribe(queue, id=queue, ack="client-individual")
            await sender.sent(queue, f"first to {queue}", persistent="true")
        first = [await receiver.next_message() for _ in QUEUES]
        lost = [shard for shard, owner in enumerate(hubs.owners()) if owner == "b"]
        await hubs.crash("b")
        began_seconds = trio.current_time()
        for queue in QUEUES:
            await sender.send(queue, f"second to {queue}", persistent="true", receipt=f"second to {queue}")
        for queue in QUEUES:
            await sender.expect_receipt(f"second to {queue}")
        assert trio.current_time() - began_seconds < 2.0, "nobody waits for the session of a process that is gone"
        for delivery in first:
            await receiver.frame("ACK", receiver.naming(delivery))  # those of the lost hub name nothing any more
        again = [await receiver.next_message() for _ in range(SHARDS + len(lost))]
        assert sorted(each.text for each in again if not each.redelivered) == sorted(f"second to {q}" for q in QUEUES)
        assert sorted(each.text for each in again if each.redelivered) == sorted(
            f"first to {QUEUES[shard]}" for shard in lost
        )
        assert set(hubs.owners()) == {"a"}
        assert {hubs.member("a").ownership.epoch(shard) for shard in lost} == {2}
        await receiver.silence()


async def test_a_hub_that_is_gone_is_missing_until_it_is_back() -> None:
    async with MovingHubs() as hubs:
        client = await hubs.connect("a")
        await client.subscribe("/temp-queue/stat", id="stat")
        lost = [shard for shard, owner in enumerate(hubs.owners()) if owner == "b"]
        hubs.stores.refuses.update(lost)
        await hubs.crash("b")
        await trio.sleep(3)
        broker = hubs.running["a"].broker
        report = await stat(client)
        here, there = report["hubs"]
        assert here["missing"] is None and here["unlinked"] == []
        assert there["missing"] == "it is gone for 3 s"
        assert (there["gone"], there["shards_waiting"]) == (True, []), "this hub is opening what it had"
        assert there["missing_seconds"] == pytest.approx(3, abs=0.1)
        page = scrape(broker)
        assert [page("sluiceway_hub_up", hub=hub) for hub in "ab"] == [1.0, 0.0]
        assert page("sluiceway_shards_without_owner") == len(lost)
        assert page("sluiceway_shards_open") == SHARDS - len(lost)
        hubs.stores.refuses.clear()
        await hubs.until(lambda: set(hubs.owners()) == {"a"})
        await hubs.start("b")
        await hubs.balanced()
        assert [hub["missing"] for hub in (await stat(client))["hubs"]] == [None, None]
        assert scrape(broker)("sluiceway_link_up", peer="b") == 1.0


async def test_clocks_an_hour_apart_lose_nothing_and_are_told() -> None:
    async with MovingHubs(ahead_ms={"b": 3_600_000}) as hubs:
        client, receiver = await hubs.connect("a"), await hubs.connect("a")
        await client.subscribe("/temp-queue/stat", id="stat")
        report = await stat(client)
        assert [hub["clock_seconds"] for hub in report["hubs"]] == [0, 3600]
        (words,) = wrong_clocks(report)
        assert words.startswith("the clock of b is 60 min ahead of that of the hub that was asked: messages expire")
        before = hubs.owners()
        for text in "12345":
            for queue in QUEUES:
                await client.sent(queue, text, persistent="true")
            for shard, hub in enumerate(before):  # there and back: epochs order what happens, no clock does
                other = hub if text in "24" else "b" if hub == "a" else "a"
                await hubs.member("a").move(shard, other)
            await hubs.balanced()
        for queue in QUEUES:
            await receiver.subscribe(queue, id=queue)
            assert await receiver.next_texts(5) == list("12345")
        await receiver.silence()


async def test_a_trail_goes_from_hub_to_hub() -> None:
    async with MovingHubs() as hubs:
        shard = hubs.owners().index("b")
        queue = QUEUES[shard]
        sender, asking = await hubs.connect("a", **{"client-id": "web-3"}), await hubs.connect("a")
        await asking.subscribe("/temp-queue/answers", id="answers")

        async def trail(**facts: str) -> Any:
            await asking.send("/sluiceway/trail", json.dumps(facts), reply_to="/temp-queue/answers")
            return json.loads((await asking.next_message()).body)

        await sender.sent(queue, "x", persistent="true", **{"correlation-id": "order-77"})
        (found,) = (await trail(correlation_id="order-77"))["trails"]
        assert (found["hub"], found["complete"]) == ("b", True)
        assert found["words"].startswith(f"It is in {queue}, in memory; it waits for a consumer")
        accepted = found["entries"][0]
        assert (accepted["what"], accepted["where"], accepted["hub"]) == ("accepted", queue, "b")
        assert accepted["detail"] == "from web-3 (client 1) on a, over its link"
        await hubs.member("a").move(shard, "a")
        await hubs.until(lambda: hubs.owners()[shard] == "a")
        receiver = await hubs.connect("b", **{"client-id": "billing"})
        await receiver.subscribe(queue, id="s", ack="client-individual")
        await receiver.ack(await receiver.next_message())
        await receiver.sync()
        (found,) = (await trail(message_id=found["message_id"]))["trails"]
        assert found["words"] == "It was acknowledged by s of billing (client 3) on b."
        assert [entry["hub"] for entry in found["entries"] if entry["what"] in ("accepted", "acked")] == ["b", "a"]
        assert found["entries"][0] == accepted and found["complete"]
        refused = await trail(message_id="another-1")
        assert refused["error"] == "INVALID_REQUEST"
        await hubs.crash("b")
        told = await trail(correlation_id="order-77")
        assert told["missing"]["b"].startswith("it is gone for ")


async def test_a_hub_that_comes_back_has_its_share_again_and_nobody_is_disconnected() -> None:
    async with MovingHubs() as hubs:
        before = hubs.owners()
        await hubs.crash("b")
        await hubs.until(lambda: set(hubs.owners()) == {"a"})
        sender, receiver, everywhere = await hubs.connect("a"), await hubs.connect("a"), await hubs.connect("a")
        await everywhere.subscribe("/topic/>", id="all")
        for queue, topic in zip(QUEUES, TOPICS, strict=True):
            await receiver.subscribe(queue, id=queue, ack="client-individual")
            await sender.sent(queue, f"1 {queue}", persistent="true")
            await sender.sent(queue, f"2 {queue}", persistent="true")
            await sender.sent(topic, topic)
        await everywhere.next_messages(SHARDS)
        taken = [await receiver.next_message() for _ in range(2 * SHARDS)]
        firsts = [delivery for delivery in taken if delivery.text.startswith("1")]
        for delivery in firsts:
            await receiver.ack(delivery)
        await receiver.sync()
        await hubs.start("b")
        await hubs.balanced()
        assert hubs.owners() == before
        moved = [QUEUES[shard] for shard, owner in enumerate(before) if owner == "b"]
        again = [await receiver.next_message() for _ in moved]
        assert sorted(each.text for each in again) == sorted(f"2 {queue}" for queue in moved)
        assert all(each.redelivered for each in again)
        for delivery in (*(each for each in taken if each not in firsts), *again):
            await receiver.frame("ACK", receiver.naming(delivery))
        await receiver.sync()
        for queue, topic in zip(QUEUES, TOPICS, strict=True):
            await sender.sent(queue, f"3 {queue}", persistent="true")
            await sender.sent(topic, topic)
        assert sorted(await take(receiver, SHARDS)) == sorted(f"3 {queue}" for queue in QUEUES)
        assert len(await everywhere.next_messages(SHARDS)) == SHARDS
        await receiver.silence()


async def test_a_hub_that_stops_in_order_hands_everything_over() -> None:
    async with MovingHubs(3) as hubs:
        sender = await hubs.connect("a")
        for number in range(5):
            for queue in QUEUES:
                await sender.sent(queue, f"{number}", persistent="true")
        with trio.fail_after(30):
            await hubs.leave("b")
            await hubs.leave("c")
        await hubs.until(lambda: set(hubs.owners()) == {"a"}, seconds=2.0)
        receiver = await hubs.connect("a")
        for queue in QUEUES:
            await receiver.subscribe(queue, id=queue, ack="client-individual")
        found = [await receiver.next_message() for _ in range(5 * SHARDS)]
        assert not any(delivery.redelivered for delivery in found)
        await receiver.silence()


async def test_operators_move_a_shard_and_drain_a_hub_under_load() -> None:
    async with MovingHubs() as hubs:
        sender, receiver = await hubs.connect("a"), await hubs.connect("b")
        for queue in QUEUES:
            await receiver.subscribe(queue, id=queue, ack="client-individual")
        shard = hubs.owners().index("a")
        member = hubs.member("a")
        await member.move(shard, "b")
        for number in range(3):
            await sender.send(QUEUES[shard], f"{number}", persistent="true", receipt=f"{number}")
        await hubs.until(lambda: hubs.owners()[shard] == "b")
        for number in range(3):
            await sender.expect_receipt(f"{number}")
        assert await take(receiver, 3) == ["0", "1", "2"]
        row = division_of(member)["shards"][shard]
        assert (row["hub"], row["pinned"], row["to"], row["epoch"]) == ("b", "b", "", 2)

        hubs.member("b").drain()
        await hubs.until(lambda: hubs.owners() == ["a"] * SHARDS)
        division = division_of(member)
        jsonschema.Draft202012Validator(CLUSTER).validate(division)
        assert [(hub["name"], hub["state"], hub["shards_count"]) for hub in division["hubs"]] == [
            ("a", "serving", SHARDS),
            ("b", "drained", 0),
        ]
        for queue in QUEUES:
            await sender.sent(queue, f"to {queue}", persistent="true")
        assert sorted(await take(receiver, SHARDS)) == sorted(f"to {queue}" for queue in QUEUES)

        hubs.member("b").resume()
        await member.move(shard, "")
        await hubs.balanced()
        assert set(hubs.owners()) == {"a", "b"}
        assert division_of(member)["shards"][shard]["pinned"] == ""
        with pytest.raises(NotMovableError, match="the hub is not in the cluster now"):
            await member.move(shard, "c")


async def test_senders_that_wait_at_a_full_queue_keep_their_order_over_a_move() -> None:
    async with MovingHubs() as hubs:
        before = hubs.owners()
        shard = before.index("b")
        await hubs.crash("b")
        await hubs.until(lambda: set(hubs.owners()) == {"a"})
        sender = await hubs.connect("a")
        queue = QUEUES[shard]
        there = hubs.running["a"].broker
        await sender.sent(queue, "0", persistent="true")
        for part in there.registry.destinations[queue].queues:
            part.follow(attrs.evolve(part.policy, count_max=1))
        for number in range(1, 20):
            await sender.send(queue, f"{number}", persistent="true", receipt=f"{number}")
        await sender.silence()
        assert not set(sender.receipts) & {f"{number}" for number in range(2, 20)}
        await hubs.start("b")
        await hubs.balanced()
        for number in range(20, 25):
            await sender.send(queue, f"{number}", persistent="true", receipt=f"{number}")
        receiver = await hubs.connect("b")
        await receiver.subscribe(queue, ack="client-individual")
        assert await take(receiver, 25) == [f"{number}" for number in range(25)]
        for number in range(1, 25):
            await sender.expect_receipt(f"{number}")


async def test_what_cannot_move_with_its_shard_ends_with_words() -> None:
    async with MovingHubs() as hubs:
        before = hubs.owners()
        queue = QUEUES[before.index("b")]
        await hubs.crash("b")
        await hubs.until(lambda: set(hubs.owners()) == {"a"})
        user = await hubs.connect("a")
        await user.frame("BEGIN", {"transaction": "t"})
        await user.send(queue, "in a transaction", transaction="t")
        await user.sync()
        await hubs.start("b")
        error = await user.expect_error("it moves to another hub")
        assert error.headers["code"] == "shard-away"


async def test_a_transaction_with_an_old_delivery_is_lost_when_the_shard_has_moved() -> None:
    """It names one shard, of which two hubs have been the owner: begun again it can be carried out."""
    async with MovingHubs() as hubs:
        shard = hubs.owners().index("a")
        queue = QUEUES[shard]
        user = await hubs.connect("a")
        await user.subscribe(queue, ack="client-individual")
        await user.sent(queue, "old", persistent="true")
        held = await user.next_message()
        await hubs.member("a").move(shard, "b")
        await hubs.balanced()
        assert (await user.next_message()).redelivered
        await user.frame("BEGIN", {"transaction": "t"})
        await user.send(queue, "answer", transaction="t")
        await user.sync()
        await user.frame("ACK", {**user.naming(held), "transaction": "t"})
        error = await user.expect_error("its destinations have moved")
        assert error.headers["code"] == "transaction-lost"


async def test_a_hub_without_a_session_gives_everything_up_and_gets_its_share_again() -> None:
    async with MovingHubs() as hubs:
        before = hubs.owners()
        user = await hubs.connect("b")
        for queue in QUEUES:
            await user.subscribe(queue, id=queue, ack="client-individual")
            await user.sent(queue, f"to {queue}", persistent="true")
        held = [await user.next_message() for _ in QUEUES]
        assert hubs.service.expire("b")
        ownership = hubs.member("b").ownership
        mine = [QUEUES[shard] for shard, owner in enumerate(before) if owner == "b"]
        await hubs.until(lambda: any(ownership.epoch(shard) == 2 for shard in range(SHARDS)))
        await hubs.balanced()
        assert hubs.owners() == before
        again = [await user.next_message() for _ in mine]
        assert sorted(each.text for each in again) == sorted(f"to {queue}" for queue in mine)
        assert all(each.redelivered for each in again)
        for delivery in (*held, *again):
            await user.frame("ACK", user.naming(delivery))
        await user.sync()
        await user.silence()


async def test_a_shard_that_cannot_be_opened_is_tried_again_and_its_clients_wait() -> None:
    async with MovingHubs() as hubs:
        shard = hubs.owners().index("b")
        hubs.stores.refuses.add(shard)
        await hubs.crash("b")
        sender = await hubs.connect("a")
        await sender.send(QUEUES[shard], "waits", persistent="true", receipt="waits")
        await sender.silence(3.0)
        assert "the disk is away" in hubs.member("a").ownership.where(shard).words
        hubs.stores.refuses.clear()
        await sender.expect_receipt("waits")


async def test_load_while_hubs_come_and_go_loses_nothing_and_marks_what_comes_twice() -> None:
    async with MovingHubs(3) as hubs:
        sender, receiver = await hubs.connect("a"), await hubs.connect("a")
        for queue in QUEUES:
            await receiver.subscribe(queue, id=queue, ack="client-individual")
        sent: list[str] = []
        seen: dict[str, int] = {}
        is_over = False

        async def send() -> None:
            while not is_over:
                text = f"{len(sent)}"
                await sender.send(QUEUES[len(sent) % SHARDS], text, persistent="true", receipt=text)
                sent.append(text)
                await trio.sleep(0.02)

        async def receive() -> None:
            while True:
                delivery = await receiver.next_message()
                marked = delivery.redelivered or delivery.headers.get("possible-duplicate") == "true"
                assert delivery.text not in seen or marked, f"{delivery.text} came twice, without a mark"
                seen[delivery.text] = seen.get(delivery.text, 0) + 1
                await receiver.ack(delivery)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(receive)
            for round_number in range(6):
                name = "bc"[round_number % 2]
                await trio.sleep(1.0)
                await (hubs.leave(name) if round_number >= 3 else hubs.crash(name))
                await trio.sleep(1.5)
                await hubs.start(name)
                await hubs.balanced()
            is_over = True
            with trio.fail_after(60):
                while len(seen) < len(sent) or not set(sender.receipts) >= set(sent):
                    await trio.sleep(0.1)
                    sender.receive_now()
            nursery.cancel_scope.cancel()
        assert len(sent) > 300


async def test_what_waited_for_an_owner_goes_on_without_another_word_of_the_client() -> None:
    async with MovingHubs() as hubs:
        shard = hubs.owners().index("b")
        hubs.stores.refuses.add(shard)
        await hubs.crash("b")
        sender, reader = await hubs.connect("a"), await hubs.connect("a")
        await reader.frame("SUBSCRIBE", {"destination": QUEUES[shard], "id": "s"})
        for number in range(3):
            await sender.send(QUEUES[shard], f"{number}")
        await sender.silence(3.0)
        hubs.stores.refuses.clear()
        assert await reader.next_texts(3) == ["0", "1", "2"]


async def test_temporary_destinations_work_at_a_hub_without_the_first_shard() -> None:
    async with MovingHubs() as hubs:
        hub = "b" if hubs.owners()[0] == "a" else "a"
        user = await hubs.connect(hub)
        await user.subscribe("/temp-queue/answers")
        await user.send("/temp-queue/answers", "own")
        assert (await user.next_message()).text == "own"


async def test_a_send_whose_store_refuses_this_owner_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another hub has the shard, or had it: RECEIPTs that wait for the store never come. A client of that hub is told
    by the end of its connection; one of another hub gets its RECEIPT, for the message is sent again, and marked.
    """
    async with MovingHubs() as hubs:
        owners = hubs.owners()
        shard = owners.index("b")
        here, there = await hubs.connect("b"), await hubs.connect("a")
        bystander = await hubs.connect("b")
        for user in (here, there, bystander):
            await user.sent(QUEUES[shard], f"first of {user.name}", persistent="true")

        refusing, write = hubs.stores.engines[shard], FaultyEngine.write

        def refuse(engine: FaultyEngine, *batch: Any, **how: Any) -> None:
            if engine is refusing:
                raise FencedError("the shard has another owner")
            write(engine, *batch, **how)

        monkeypatch.setattr(FaultyEngine, "write", refuse)
        await here.send(QUEUES[shard], "from here", persistent="true", receipt="here")
        await there.send(QUEUES[shard], "from there", persistent="true", receipt="there")
        error = await here.expect_error("shard")
        assert error.headers["code"] == "shard-away"
        await there.expect_receipt("there")
        await hubs.balanced()
        await bystander.subscribe(QUEUES[shard], ack="client-individual")
        found = [await bystander.next_message() for _ in range(4)]
        assert [each.text for each in found if each.headers.get("possible-duplicate") == "true"] == ["from there"]
        assert "from here" not in {each.text for each in found}
