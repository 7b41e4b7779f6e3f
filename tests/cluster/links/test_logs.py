"""Logs that are used from several hubs at once: groups and their order, fetching, transactions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.cluster.links.two_hubs import TwoHubs
from tests.scenarios.client import Client
from tests.scenarios.log_stage import Asker

LOG = "/log/b.orders"
GROUP = {"group": "g", "ack": "client-individual", "from": "earliest"}


async def asking(hubs: TwoHubs, hub: str = "a") -> Asker:
    """A client that asks for things."""
    client = await hubs.connect(hub)
    await client.subscribe("/temp-queue/replies", id="replies")
    return Asker(client)


@pytest.mark.parametrize("lost", ["client", "link"])
async def test_a_consumer_at_another_hub_takes_an_exclusive_group_over(lost: str) -> None:
    """In the order of the log, whether the client or the link between the hubs is gone."""
    async with TwoHubs() as hubs:
        producer, first, second = await hubs.connect(), await hubs.connect("a"), await hubs.connect("b")
        await producer.send_all(LOG, range(6))
        await first.subscribe(LOG, exclusive="true", prefetch_count="4", **GROUP)
        got = await first.next_messages(4)
        await second.subscribe(LOG, exclusive="true", **GROUP)
        await first.ack(got[1])
        await second.silence()
        assert [each.text for each in await first.next_messages(1)] == ["4"]
        if lost == "client":
            first.vanish()
        else:
            hubs.network.cut()
        again = await second.next_messages(5)
        assert [(each.text, each.redelivered) for each in again] == [
            ("0", True),
            ("2", True),
            ("3", True),
            ("4", True),
            ("5", False),
        ]
        for each in again:
            await second.ack(each)
        if lost == "link":
            await hubs.linked()
            await first.sync()
            await first.silence()  # what it was given comes to nobody a second time
            second.vanish()
            await producer.sent(LOG, "6")
            assert [each.text for each in await first.next_messages(1)] == ["6"]


async def test_a_key_is_in_one_pair_of_hands_at_whichever_hub() -> None:
    """Also where the link is lost in between: the records of a key come in their order."""
    async with TwoHubs() as hubs:
        producer = await hubs.connect()
        for number in range(40):
            await producer.send(LOG, str(number), key=f"k{number % 4}")
        await producer.sync()
        clients = [await hubs.connect(hub) for hub in "aabb"]
        for client in clients:
            await client.subscribe(LOG, order="by-key", prefetch_count="2", **GROUP)
        done: dict[str, list[int]] = {}

        async def take(*, is_acknowledged: bool) -> None:
            for client in clients:
                for delivery in await client.drain(0.01):
                    key, number = delivery.headers["key"], int(delivery.text)
                    if number in done.setdefault(key, []):
                        assert delivery.redelivered
                    else:
                        assert number == len(done[key]) * 4 + int(key[1:]), "the next of its key, and no other one"
                        done[key].append(number)
                    if is_acknowledged:  # one of a lost link is forgotten
                        await client.frame("ACK", client.naming(delivery))

        for _ in range(2):
            await take(is_acknowledged=True)
        await take(is_acknowledged=False)
        hubs.network.cut()
        await hubs.linked()
        for client in clients[2:]:
            client.vanish()
        del clients[2:]
        while sum(map(len, done.values())) < 40:
            await take(is_acknowledged=True)
        assert {key: len(numbers) for key, numbers in done.items()} == {f"k{number}": 10 for number in range(4)}


async def test_records_are_fetched_and_committed_at_any_hub() -> None:
    """One that waits at the end of the log is answered, though the link is lost meanwhile."""
    async with TwoHubs() as hubs:
        producer, here, there = await hubs.connect("b"), await asking(hubs), await asking(hubs, "b")
        await producer.send_all(LOG, range(5))
        await here.asked("cursor", log=LOG, group="g", **{"from": "earliest"})
        reply = await here.asked("fetch", log=LOG, group="g", max_count=3)
        assert [row["index"] for row in reply["records"]] == [0, 1, 2]
        assert await here.asked("commit", log=LOG, group="g", to=3) == {"front": 3}
        reply = await there.asked("fetch", log=LOG, group="g")
        assert [row["index"] for row in reply["records"]] == [3, 4]
        assert await there.asked("commit", log=LOG, group="g", to=5) == {"front": 5}
        assert await here.asked("commit", log=LOG, group="g", to=4) == {"front": 5}, "never back"
        request = {"log": LOG, "group": "g", "max_wait_seconds": 15}
        await here.client.send("/sluiceway/log/fetch", json.dumps(request), reply_to="/temp-queue/replies")
        await trio.sleep(0.1)
        hubs.network.cut()
        await hubs.linked()
        await producer.sent(LOG, "5")
        [answer] = await here.client.next_messages(1)
        assert [row["index"] for row in json.loads(answer.body)["records"]] == [5]
        reader = await hubs.connect("b")
        await reader.subscribe(LOG, **GROUP)
        assert await here.refused("fetch", log=LOG, group="g") == "GROUP_IN_USE"


async def test_a_transaction_reads_a_group_and_sends_to_logs_of_another_hub(tmp_path: Path) -> None:
    """All of it or nothing: what was acknowledged in one that was lost is delivered again."""
    async with TwoHubs(stored_at=tmp_path) as hubs:
        producer, worker = await hubs.connect("b"), await hubs.connect()
        await producer.send_all(LOG, range(4))
        await worker.subscribe(LOG, id="in", **GROUP)
        got = await worker.next_messages(4)
        await worker.frame("BEGIN", {"transaction": "t"})
        for each in got[:2]:
            await worker.ack(each, transaction="t")
            await worker.send("/log/b.out,/queue/b.out", each.text, transaction="t")
        await worker.request("COMMIT", {"transaction": "t"})
        await worker.frame("BEGIN", {"transaction": "u"})
        await worker.ack(got[2], transaction="u")
        await worker.send("/log/b.out", "never", transaction="u")
        await worker.sync()
        hubs.network.cut()
        await hubs.linked()
        again = await worker.next_messages(2)
        assert [(each.text, each.redelivered) for each in again] == [("2", True), ("3", True)]
        await producer.subscribe("/log/b.out", id="log", **{"from": "earliest"})
        await producer.subscribe("/queue/b.out", id="queue")
        assert sorted([each.text for each in await producer.drain()]) == ["0", "0", "1", "1"]
        await worker.frame("COMMIT", {"transaction": "u"})
        assert (await worker.expect_error("transaction")).headers["code"] == "transaction-lost"


@pytest.mark.parametrize("ack_first", [False, True])
async def test_a_transaction_over_logs_of_two_hubs_is_refused_with_the_remedy(tmp_path: Path, ack_first: bool) -> None:
    """Whichever of both frames comes second is refused."""
    async with TwoHubs(stored_at=tmp_path) as hubs:
        client = await hubs.connect()
        await client.sent(LOG, "record")
        await client.subscribe(LOG, **GROUP)
        [delivery] = await client.next_messages(1)
        await client.frame("BEGIN", {"transaction": "t"})
        if ack_first:
            await client.ack(delivery, transaction="t")
            await client.send("/log/a.out", "x", transaction="t")
        else:
            await client.send("/log/a.out", "x", transaction="t")
            await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
        error = await client.expect_error("would span several hubs")
        assert (error.headers["code"], error.headers["command"]) == (
            "transaction-spans-shards",
            "SEND" if ack_first else "ACK",
        )
        assert b"the same part in braces" in error.body
        other: Client = await hubs.connect("b")
        await other.subscribe(LOG, **GROUP)
        assert (await other.next_message()).text == "record"
