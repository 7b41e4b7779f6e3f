"""The last line of defence: an exception out of one destination, connection or request costs that one. Others go on,
what was confirmed comes back with the next start, and nothing is left charged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.log_readers import LogReaders
from sluiceway.store import log_storage
from sluiceway.store.storequeue import StoreQueue
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.log_stage import LOG, PASSCODE, LogLives, LogStage, fill
from tests.scenarios.stage import Stage

BAD = "/queue/bad"
GOOD = "/queue/good"


class Injected(Exception):
    """What nobody expected."""


def fail_once(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, only: Callable[[Any], bool] | None = None
) -> list[int]:
    """The next call of this method raises; returns where it says that it has."""
    real = getattr(owner, name)
    failed: list[int] = []

    def broken(self: Any, *arguments: Any, **named: Any) -> Any:
        if not failed and (only is None or only(self)):
            failed.append(1)
            raise Injected(name)
        return real(self, *arguments, **named)

    monkeypatch.setattr(owner, name, broken)
    return failed


def is_bad(queue: Any) -> bool:
    return bool(queue.name.startswith(BAD))


async def ended_with(client: Client, code: str) -> None:
    assert (await client.expect_error()).headers["code"] == code


async def check_good(stage: Stage, client: Client) -> None:
    """Somebody else, who was there before, is served as if nothing had happened."""
    await client.sent(GOOD, "still here", persistent="true")
    await client.subscribe(GOOD, id="good", ack="client-individual")
    delivery = await client.next_message()
    assert delivery.text == "still here"
    await client.ack(delivery)
    await client.unsubscribe("good")


@pytest.mark.parametrize("method", ["dispatch", "settled", "requeued", "came_in_time"])
async def test_a_destination_that_breaks_is_closed_and_comes_back_with_the_next_start(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives()
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        bystander = await stage.connect(name="bystander")
        for number in range(5):
            await producer.sent(BAD, str(number), persistent="true")
        await consumer.subscribe(BAD, ack="client-individual", prefetch_count="2")
        first, second = await consumer.next_messages(2)
        await consumer.ack(first)
        await consumer.next_message()
        queue = stage.partitions(BAD)[0]
        assert isinstance(queue, ConsumedQueue)
        if method in ("dispatch", "came_in_time"):
            failed = fail_once(type(queue.distribution), "dispatch", monkeypatch)
            queue.dispatch = queue.distribution.dispatch  # the broken one
        else:
            failed = fail_once(type(queue), method, monkeypatch, only=is_bad)
        if method == "requeued":
            await consumer.frame("NACK", consumer.naming(second))
        elif method == "came_in_time":
            stage.broker.dispatcher.call_later(0.0, lambda: stage.partitions(BAD)[0].dispatch(1))
        else:
            await consumer.frame("ACK", consumer.naming(second))
        await trio.sleep(0.1)
        assert failed
        assert stage.broker.faults.count == 1
        assert stage.broker.faults.destinations_count == 1
        for client in (producer, consumer):
            error = await client.expect_error()
            assert error.headers["code"] in ("destination-failed", "internal-error"), error
        await check_good(stage, bystander)
        late = await stage.connect()
        await late.frame("SEND", {"destination": BAD, "receipt": "r"}, "x")
        await ended_with(late, "destination-failed")
    async with lives.life() as stage:
        consumer = await stage.connect()
        await consumer.subscribe(BAD)
        left = [delivery.text for delivery in await consumer.drain(2)]
        assert left in (["1", "2", "3", "4"], ["2", "3", "4"]), "what was confirmed, and not the one acknowledged"


async def test_what_a_broken_queue_was_bound_to_in_a_transaction_is_not_written_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent(BAD, "in", persistent="true")
        await client.subscribe(BAD, ack="client-individual")
        delivery = await client.next_message()
        failed: list[int] = []
        real = StoreQueue.bind

        def bind_and_break(self: StoreQueue, shelves: Any) -> None:
            real(self, shelves)
            if not failed:
                failed.append(1)
                queue = stage.partitions(BAD)[0]
                monkeypatch.setattr(queue, "dispatch", _raising)
                queue.context.request_dispatch()

        monkeypatch.setattr(StoreQueue, "bind", bind_and_break)
        await client.frame("BEGIN", {"transaction": "t"})
        await client.frame("ACK", {**client.naming(delivery), "transaction": "t"})
        await client.frame("SEND", {"destination": GOOD, "persistent": "true", "transaction": "t"}, "out")
        await client.frame("COMMIT", {"transaction": "t"})
        await trio.sleep(3)
        assert failed
        assert stage.broker.faults.destinations_count >= 1
    monkeypatch.undo()
    async with lives.life() as stage:
        client = await stage.connect()
        there = {}
        for name in (BAD, GOOD):
            await client.subscribe(name, id=name)
            there[name] = [delivery.text for delivery in await client.drain(2)]
        assert there in ({BAD: ["in"], GOOD: []}, {BAD: [], GOOD: ["out"]})


def _raising(_budget: int) -> bool:
    raise Injected("dispatch")


async def test_a_connection_that_breaks_is_closed_and_gives_back_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await producer.send_all(GOOD, range(3))
        await producer.sync()
        await consumer.subscribe(GOOD, ack="client-individual")
        await consumer.next_messages(3)
        sessions = [connection.session for connection in stage.broker.connections]
        session = next(session for session in sessions if session.unsettled_count)
        failed = fail_once(type(session.subscriptions), "ack_run", monkeypatch)
        await consumer.frame("ACK", {"id": "1-0"})
        await ended_with(consumer, "internal-error")
        assert failed
        assert stage.broker.faults.connections_count == 1
        assert stage.broker.faults.destinations_count == 0
        await producer.subscribe(GOOD)
        assert await producer.next_texts(3) == ["0", "1", "2"]
        await producer.unsubscribe()
        await check_good(stage, producer)


async def test_a_destination_that_breaks_while_it_is_made_costs_who_wanted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had ended the broker: what is abandoned then is half of a destination."""
    async with Stage() as stage:
        producer, other = await stage.connect(), await stage.connect()
        failed = fail_once(type(stage.broker.dispatcher), "register", monkeypatch)
        await producer.send(BAD, "1")
        await ended_with(producer, "internal-error")
        assert failed
        assert (stage.broker.faults.connections_count, stage.broker.faults.destinations_count) == (1, 0)
        await other.sent(BAD, "2")
        await check_good(stage, other)


@pytest.mark.parametrize("owner", [Log, LogReaders])
async def test_a_log_that_breaks_is_closed_and_comes_back_with_the_next_start(
    tmp_path: Path, owner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        bystander = await stage.connect(name="bystander")
        await fill(producer, 3)
        await consumer.subscribe(LOG, group="g", ack="client-individual", **{"from": "earliest"})
        first, _second, _third = await consumer.next_messages(3)
        await consumer.ack(first)
        failed = fail_once(owner, "_write" if owner is Log else "_serve", monkeypatch)
        await producer.send(LOG, "lost, or not: nobody was told")
        await trio.sleep(0.1)
        assert failed
        for client in (producer, consumer):
            await ended_with(client, "destination-failed")
        await check_good(stage, bystander)
        await bystander.frame("SEND", {"destination": LOG}, "x")
        await ended_with(bystander, "destination-failed")
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(LOG, group="g", ack="client-individual", **{"from": "earliest"})
        left = [delivery.text for delivery in await client.drain(2)]
        assert left[:2] == ["1", "2"]


async def test_an_answer_of_a_log_that_breaks_costs_its_connection_and_not_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LogStage() as stage:
        bad, good = await stage.connect(), await stage.connect()
        session = next(iter(stage.broker.connections)).session
        replies = session._replies
        failed = fail_once(type(replies), "appended", monkeypatch, only=lambda each: each is replies)
        await bad.send(LOG, "a", receipt="a")
        await good.sent(LOG, "b")
        await ended_with(bad, "internal-error")
        assert failed
        assert stage.broker.faults.destinations_count == 0
        await good.sent(LOG, "c")
        await good.subscribe(LOG, **{"from": "earliest"})
        assert sorted(await good.next_texts(3)) == ["a", "b", "c"]


async def test_a_request_that_breaks_is_answered_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LogStage() as stage:
        asker, good = await stage.connect_asking(), await stage.connect()
        await fill(good, 1)
        assert stage.broker.logs is not None
        failed = fail_once(type(stage.broker.logs), "existing", monkeypatch)
        assert await asker.refused("size", log=LOG) == "INTERNAL_ERROR"
        assert failed
        assert stage.broker.faults.count == 1
        assert (await asker.asked("size", log=LOG))["size"] == 1
        await good.sent(LOG, "goes on")
        await check_good(stage, good)


async def test_a_log_whose_removal_breaks_is_answered_and_its_name_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for its name for ever, and where it breaks before anything is removed the log goes on."""

    def broken(_folder: Path) -> None:
        monkeypatch.undo()
        raise Injected

    async with LogStage(folder=tmp_path) as stage:
        asker, client = await stage.connect_asking(), await stage.connect()
        await fill(client, 3)
        monkeypatch.setattr(log_storage, "sync_folder", broken)
        assert await asker.refused("delete", log=LOG, passcode=PASSCODE) == "INTERNAL_ERROR"
        assert stage.broker.faults.counts["other"] == 1
        await client.sent(LOG, "one more")
        assert (await asker.asked("size", log=LOG))["size"] == 4
        await asker.asked("delete", log=LOG, passcode=PASSCODE)


async def test_a_timer_of_nobody_that_breaks_is_logged_and_all_go_on() -> None:
    async with Stage() as stage:
        client = await stage.connect()

        def broken() -> None:
            raise Injected("timer")

        stage.broker.dispatcher.call_later(0.1, broken)
        stage.broker.dispatcher.submit(broken)
        stage.broker.dispatcher.at_turn_end(broken)
        await trio.sleep(1)
        assert stage.broker.faults.count == 3
        await check_good(stage, client)


async def test_a_broken_answer_of_the_store_does_not_reach_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives()
    async with lives.life() as stage:
        bad, good = await stage.connect(), await stage.connect()
        session = next(iter(stage.broker.connections)).session
        replies = session._replies
        failed = fail_once(type(replies), "leg_done", monkeypatch, only=lambda each: each is replies)
        await bad.send(BAD, "a", receipt="a", persistent="true")
        await good.sent(GOOD, "b", persistent="true")
        await ended_with(bad, "internal-error")
        assert failed
        await check_good_twice(good)


async def check_good_twice(client: Client) -> None:
    await client.sent(GOOD, "c", persistent="true")
    await client.subscribe(GOOD)
    assert await client.next_texts(2) == ["b", "c"]


async def test_a_broken_store_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives()
    with pytest.raises(BaseException) as caught:
        async with lives.life() as stage:
            client = await stage.connect()
            fail_once(StoreQueue, "collect_one", monkeypatch)
            await client.send(GOOD, "a", receipt="a", persistent="true")
            await trio.sleep(5)
    assert caught.group_contains(Injected)
