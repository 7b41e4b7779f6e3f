"""What a durable subscription is, and where its readers stand, are written apart: what a crash between any two writes
leaves, and what a disk that fails does to it.

A recorder keeps what is on disk after each write of a life: all that was written (the process dies there), and what was
synced (the power fails there). Each is the beginning of another life.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import attrs
import pytest
import trio

from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.durables import Done, Durable, DurableTable
from sluiceway.store import keys
from sluiceway.store.durables import kept_durables, removal
from sluiceway.store.engine import Change, Engine, EngineFailedError, delete, put
from sluiceway.store.maintenance.check import check
from sluiceway.store.memory import MemoryEngine
from sluiceway.store.states import encode_durable
from tests.scenarios.client import Client
from tests.scenarios.lives import Lives
from tests.scenarios.stage import Stage
from tests.store.faulty import Failure, FaultyEngine

T = "/topic/prices"
NAME = {"activemq.subscriptionName": "audit"}
EVERYTHING = (b"\x00", b"\xff")


class Recorder:
    """A FaultyEngine, and what is on disk after each of its writes."""

    def __init__(self, engine: FaultyEngine) -> None:
        self.engine = engine
        self.written: list[dict[bytes, bytes]] = []
        self.synced: list[dict[bytes, bytes]] = []

    @property
    def count(self) -> int:
        return len(self.written)

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        self.engine.write(changes, sync=sync)
        self.written.append(dict(self.engine.iterate(*EVERYTHING)))
        self.synced.append(self.written[-1] if sync else (self.synced[-1] if self.synced else {}))

    def get(self, key: bytes) -> bytes | None:
        return self.engine.get(key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.engine.iterate(start, stop, reverse=reverse)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return self.engine.iterate_keys(start, stop)

    def size_bytes(self) -> int:
        return self.engine.size_bytes()

    def compact(self, start: bytes, stop: bytes) -> None:
        self.engine.compact(start, stop)

    def close(self) -> None:
        self.engine.close()


@attrs.frozen
class Remains:
    """What one way to die left, `after` so many writes."""

    after: int
    engine: MemoryEngine


def remains(recorder: Recorder, end: str, *, first: int = 1) -> Iterator[Remains]:
    for place, content in enumerate(recorder.written if end == "crash" else recorder.synced, 1):
        if place >= first:
            engine = MemoryEngine()
            engine.write([put(key, value) for key, value in content.items()], sync=True)
            yield Remains(place, engine)


async def reader_of(stage: Stage) -> Client:
    client = stage.stranger()
    await client.connect("1.2", **{"client-id": "shop"})  # type: ignore[arg-type]
    return client


async def attached(stage: Stage) -> Client:
    client = await reader_of(stage)
    await client.subscribe(T, ack="client-individual", **NAME)
    return client


def count(engine: Engine, family: bytes) -> int:
    return sum(1 for _key in engine.iterate_keys(*keys.family_range(family)))


def names(engine: Engine) -> list[str]:
    def bad(*_what: object) -> None:
        raise AssertionError("it can't be read")

    return [record.name for _durable_id, record in kept_durables(engine, bad)]


def no_faults(engine: Engine) -> None:
    assert dict(check(engine, HeaderCodec()).fault_counts) == {}


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_wherever_a_life_ends_a_receipt_of_subscribe_holds(end: str) -> None:
    """From its RECEIPT on it is there, and gets what was confirmed behind it. Before, it may not be there: then it
    begins anew.
    """
    recorder = Recorder(FaultyEngine(Random(0)))
    async with Stage(engine=recorder) as stage:
        other = await stage.connect(**{"client-id": "other"})  # the topic has a backlog already
        await other.subscribe(T, **NAME)
        await other.disconnect()
        producer = await stage.connect()
        await producer.sent(T, "before", persistent="true")
        begun = recorder.count
        reader = await attached(stage)
        is_there = recorder.count
        await producer.sent(T, "behind", persistent="true")
        is_sent = recorder.count
        await reader.disconnect()
        await stage.broker.stop()
    assert begun < is_there < is_sent
    for left in remains(recorder, end, first=begun):
        no_faults(left.engine)
        async with Stage(engine=left.engine) as stage:
            known = {(durable["client_id"], durable["name"]) for durable in stage.broker.report()["durables"]}
            if left.after >= is_there:
                assert ("shop", "audit") in known
            assert count(left.engine, keys.CURSOR) <= len(known)
            producer = await stage.connect()
            await producer.sent(T, "last", persistent="true")
            texts = [delivery.text for delivery in await (await attached(stage)).drain()]
            if ("shop", "audit") not in known:
                assert texts == [], "it was made now"
            else:
                assert texts[-1] == "last" and "before" not in texts
            if left.after >= is_sent:
                assert texts == ["behind", "last"]
            await stage.broker.stop()


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_wherever_a_life_ends_a_removal_is_whole(end: str) -> None:
    """It is there with its backlog, or it is not there and holds nothing back. From the RECEIPT on it is gone."""
    recorder = Recorder(FaultyEngine(Random(0)))
    async with Stage(engine=recorder) as stage:
        reader = await attached(stage)
        await reader.unsubscribe()
        producer = await stage.connect()
        for number in range(3):
            await producer.sent(T, str(number), persistent="true")
        begun = recorder.count
        await reader.request("UNSUBSCRIBE", {"id": "s", **NAME})
        is_gone = recorder.count
        await stage.broker.stop()
    ways = set()
    for left in remains(recorder, end, first=begun):
        way = bool(names(left.engine)), bool(count(left.engine, keys.CURSOR))
        ways.add(way)
        assert way != (True, False), "its readers go last"
        no_faults(left.engine)
        async with Stage(engine=left.engine) as stage:
            durables = stage.broker.report()["durables"]
            assert len(durables) == way[0]
            if left.after >= is_gone:
                assert not durables
            if durables:
                assert await (await attached(stage)).next_texts(3) == ["0", "1", "2"]
            else:
                assert count(left.engine, keys.CURSOR) == 0, "deleted before its number is given again"
                stranger = await stage.connect(**{"client-id": "stranger"})
                await stranger.subscribe(T, **NAME)
                await stranger.silence()
            await stage.broker.stop()
    assert (True, True) in ways and (False, False) in ways
    assert (False, True) in ways, "there is a moment between the two"


def as_earlier(engine: Engine) -> list[Change]:
    """What an earlier version would have in place of what is there now."""
    changes: list[Change] = []
    for durable_id, record in kept_durables(engine, lambda *_bad: None):
        changes.append(put(keys.durable_key(durable_id), encode_durable(record)))
    for key in engine.iterate_keys(*keys.family_range(keys.PREFERENCES)):
        changes += removal(key)
    return changes


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_a_store_of_an_earlier_version_is_taken_over(end: str) -> None:
    lives = Lives()
    async with lives.life() as stage:
        reader = await attached(stage)
        await reader.disconnect()
        await (await stage.connect()).sent(T, "m", persistent="true")
    engine = lives.engine
    engine.write(as_earlier(engine), sync=True)
    assert (count(engine, keys.DURABLE), count(engine, keys.PREFERENCES), count(engine, keys.CURSOR)) == (1, 0, 1)
    no_faults(engine)
    async with lives.life(end=end) as stage:
        engine = lives.engine
        assert (count(engine, keys.DURABLE), names(engine)) == (0, ["audit"])
        [durable] = stage.broker.report()["durables"]
        assert (durable["client_id"], durable["destination"], durable["backlog_count"]) == ("shop", T, 1)
    async with lives.life() as stage:
        assert await (await attached(stage)).next_texts(1) == ["m"]
    no_faults(lives.engine)


async def test_taking_over_is_done_at_once() -> None:
    """After any write of the next start it is in one of the two places, once."""
    lives = Lives()
    async with lives.life() as stage:
        await (await attached(stage)).disconnect()
    lives.engine.write(as_earlier(lives.engine), sync=True)
    recorder = Recorder(lives.engine)
    async with Stage(engine=recorder) as stage:
        await stage.broker.stop()
    for content in (*recorder.written, *recorder.synced):
        assert sum(key[:1] in (keys.DURABLE, keys.PREFERENCES) for key in content) == 1


FAILURES = [Failure.WRITE, Failure.DISK_FULL, Failure.SYNC]


@pytest.mark.parametrize("failure", FAILURES)
async def test_one_that_cannot_be_stored_is_an_error_and_no_receipt(failure: Failure) -> None:
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        reader = await reader_of(stage)
        await stage.settled_down()
        lives.engine.fail_at_rate(failure, 1)
        await reader.frame("SUBSCRIBE", {"id": "s", "destination": T, **NAME, "receipt": "made"})
        await reader.expect_error("durable subscription audit of client shop can't be stored")
        assert "made" not in reader.receipts
        assert not stage.broker.report()["durables"][0]["attached"]
        lives.engine.fail_at_rate(failure, 0)
        reader = await attached(stage)  # as the message says: try again
        reader.vanish()
    async with lives.life() as stage:
        assert len(stage.broker.report()["durables"]) == 1


class SlowKeeper:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, Done]] = []

    def keep(self, durable: Durable, done: Done, *, again: bool) -> None:
        self.asked.append((again, done))

    def seen(self, durable: Durable, done: Done) -> None: ...

    def forget(self, durable: Durable, done: Done) -> None: ...


def test_who_comes_while_it_is_being_stored_waits_for_an_answer_of_his_own() -> None:
    """That the first one was refused must not become a RECEIPT for the second."""
    keeper = SlowKeeper()
    table = DurableTable(durables_max=9, now_ms=lambda: 0, keeper=keeper)
    told: list[object] = []
    for _consumer in range(3):
        durable, _is_new = table.attach("shop", "audit", T)
        table.keep(durable, told.append)
        table.detached(durable)
    assert ([again for again, _done in keeper.asked], told) == ([False, True, True], [])
    failure = EngineFailedError("no")
    keeper.asked[0][1](failure)
    keeper.asked[1][1](failure)
    assert (told, durable.is_kept) == ([failure, failure], False)
    keeper.asked[2][1](None)
    table.attach("shop", "audit", T)
    table.keep(durable, told.append)
    assert (told, len(keeper.asked)) == ([failure, failure, None, None], 3)


@pytest.mark.parametrize("failure", FAILURES)
async def test_one_that_cannot_be_removed_is_there_as_before(failure: Failure) -> None:
    lives = Lives()
    async with lives.life(end="power cut") as stage:
        reader = await attached(stage)
        await reader.unsubscribe()
        await (await stage.connect()).sent(T, "m", persistent="true")
        await stage.settled_down()
        lives.engine.fail_at_rate(failure, 1)
        await reader.frame("UNSUBSCRIBE", {"id": "s", **NAME, "receipt": "gone"})
        await reader.expect_error("can't be stored")
        lives.engine.fail_at_rate(failure, 0)
        reader = await attached(stage)
        assert await reader.next_texts(1) == ["m"]
        reader.vanish()
    async with lives.life() as stage:
        reader = await attached(stage)
        assert await reader.next_texts(1) == ["m"]
        await reader.unsubscribe()
        await reader.request("UNSUBSCRIBE", {"id": "s", **NAME})
        assert (names(lives.engine), count(lives.engine, keys.CURSOR)) == ([], 0)


async def test_its_name_is_free_as_soon_as_it_is_unsubscribed() -> None:
    """One after the other without waiting for RECEIPTs: the new one has nothing of the old one."""
    lives = Lives()
    async with lives.life(end="crash") as stage:
        reader = await attached(stage)
        await reader.unsubscribe()
        producer = await stage.connect()
        await producer.sent(T, "old", persistent="true")
        await reader.frame("UNSUBSCRIBE", {"id": "s", **NAME})
        await reader.subscribe(T, **NAME)
        await producer.sent(T, "new", persistent="true")
        assert await reader.next_texts(1) == ["new"]
        assert count(lives.engine, keys.CURSOR) == 1
    async with lives.life() as stage:
        assert len(stage.broker.report()["durables"]) == 1


async def test_when_it_was_seen_is_written_when_the_disk_is_back() -> None:
    lives = Lives()
    async with lives.life() as stage:
        reader = await attached(stage)
        await trio.sleep(1000)
        lives.engine.fail_at_rate(Failure.WRITE, 1)
        await reader.disconnect()
        await trio.sleep(10)
        lives.engine.fail_at_rate(Failure.WRITE, 0)
        await trio.sleep(20)
    [(_durable_id, record)] = kept_durables(lives.engine, lambda *_bad: None)
    assert 999_000 < record.last_seen_ms - record.created_ms < 1_001_000


@pytest.mark.parametrize("end", ["crash", "power cut"])
async def test_one_that_was_in_use_when_the_broker_died_is_not_abandoned(end: str) -> None:
    """Nobody could write when it was seen last."""
    lives = Lives({"/topic/>": {"durable_expires_seconds": 60.0}})
    async with lives.life(end=end) as stage:
        await attached(stage)
        await trio.sleep(100)
    async with lives.life() as stage:
        await trio.sleep(30)
        assert len(stage.broker.report()["durables"]) == 1
    async with lives.life() as stage:  # that was written
        await trio.sleep(20)
        assert len(stage.broker.report()["durables"]) == 1
        await trio.sleep(60)
        assert (stage.broker.report()["durables"], names(lives.engine)) == ([], [])


async def test_names_that_cannot_be_kept_are_refused() -> None:
    async with Stage() as stage:
        client = await stage.connect()
        await client.frame("SUBSCRIBE", {"id": "s", "destination": T, "activemq.subscriptionName": "x" * 5000})
        await client.expect_error("have 5001 bytes together")


async def test_the_record_of_one_that_is_lost_stands_in_nobodys_way() -> None:
    lives = Lives()
    async with lives.life() as stage:
        await (await attached(stage)).disconnect()
    [key] = lives.engine.iterate_keys(*keys.family_range(keys.PREFERENCES))
    lives.engine.write([put(key, b"?")], sync=True)
    report = check(lives.engine, HeaderCodec())
    assert dict(report.fault_counts) == {"corrupt-preferences": 1}
    lives.engine.write([delete(key), delete(keys.SUBSCRIPTION + key[1:])], sync=True)  # as a repair does
    async with lives.life() as stage:
        assert stage.broker.report()["durables"] == []
        await (await attached(stage)).disconnect()
    no_faults(lives.engine)
