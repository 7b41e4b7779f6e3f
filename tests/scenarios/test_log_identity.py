"""A log that was deleted and made anew is another log: whoever goes on with an index is told, and nobody skips what it
holds in silence.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from tests.scenarios.client import Client
from tests.scenarios.log_stage import LOG, PASSCODE, Asker, LogLives, LogStage, fill, indexes, records_of

NEW_COUNTS = [0, 4, 10, 25]
"""Of records of the new log, where the old one had ten: none, fewer, as many, more."""


async def remake(asker: Asker, producer: Client, count: int) -> str:
    """Delete the log and make it anew with so many records; its new id."""
    await asker.asked("delete", log=LOG, passcode=PASSCODE)
    await asker.asked("cursor", log=LOG, group="maker")
    await fill(producer, count, first=1000)
    return str((await asker.asked("describe", log=LOG))["log_id"])


def remove_files(folder: Path) -> None:
    """All logs are gone: by hand, or with a disk."""
    for path in folder.iterdir():
        shutil.rmtree(path)


async def id_of(asker: Asker) -> str:
    return str((await asker.asked("describe", log=LOG))["log_id"])


async def test_a_log_is_called_the_same_wherever_it_is_named() -> None:
    async with LogStage() as stage:
        producer, asker, reader = await stage.connect(), await stage.connect_asking(), await stage.connect()
        await fill(producer, 3)
        log_id = await id_of(asker)
        assert (await asker.asked("size", log=LOG))["log_id"] == log_id
        assert (await asker.asked("cursor", log=LOG, group="g"))["log_id"] == log_id
        assert (await asker.asked("list"))["logs"][0]["log_id"] == log_id
        await reader.subscribe(LOG, **{"from": "1"})
        receipt = [frame for frame in reader.received if frame.command == "RECEIPT"][-1]
        assert (receipt.headers["log-id"], receipt.headers["index"]) == (log_id, "1")
        assert (await reader.next_message()).headers["message-id"] == f"log.{log_id}-1"


async def test_an_id_outlives_the_broker_and_not_the_log(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        await fill(await stage.connect(), 3)
        log_id = await id_of(await stage.connect_asking())
    async with lives.life() as stage:
        asker, producer = await stage.connect_asking(), await stage.connect()
        assert await id_of(asker) == log_id
        assert await remake(asker, producer, 3) != log_id


@pytest.mark.parametrize("count", NEW_COUNTS)
@pytest.mark.parametrize("batch", [None, "4096"])
async def test_a_reader_that_goes_on_is_told_and_gets_all_of_the_new_log(count: int, batch: str | None) -> None:
    async with LogStage() as stage:
        producer, asker, reader = await stage.connect(), await stage.connect_asking(), await stage.connect()
        await fill(producer, 10)
        old_id = await id_of(asker)
        new_id = await remake(asker, producer, count)
        headers = {"from": "8", "log-id": old_id} | ({"batch": batch} if batch else {})
        await reader.subscribe(LOG, **headers)
        told = await reader.next_message()
        assert {name: told.headers[name] for name in ("gap", "gap-from", "gap-to", "gap-reason")} == {
            "gap": "true", "gap-from": "8", "gap-to": "0", "gap-reason": "other-log",
        }  # fmt: skip
        assert told.headers["message-id"].startswith(f"log.{new_id}-")
        assert [index for index, _value in records_of(await reader.drain())] == [*range(count)]
        assert stage.log().gap_count == 1


@pytest.mark.parametrize("count", NEW_COUNTS)
async def test_nothing_of_a_range_is_there_in_another_log(count: int) -> None:
    async with LogStage() as stage:
        producer, asker, reader = await stage.connect(), await stage.connect_asking(), await stage.connect()
        await fill(producer, 10)
        old_id = await id_of(asker)
        await remake(asker, producer, count)
        await reader.subscribe(LOG, to="9", **{"from": "2", "log-id": old_id})
        gap, end = await reader.drain()
        assert (gap.headers["gap-from"], gap.headers["gap-to"], gap.headers["gap-reason"]) == ("2", "9", "other-log")
        assert (end.headers["range-end"], end.headers["index"]) == ("true", "9")


@pytest.mark.parametrize("count", NEW_COUNTS)
@pytest.mark.parametrize("group", [None, "g"])
async def test_a_reader_that_stops_at_gaps_is_refused(count: int, group: str | None) -> None:
    async with LogStage() as stage:
        producer, asker, reader = await stage.connect(), await stage.connect_asking(), await stage.connect()
        await fill(producer, 10)
        old_id = await id_of(asker)
        await remake(asker, producer, count)
        headers = {"from": "2", "log-id": old_id, "on-gap": "error"} | ({"group": group} if group else {})
        await reader.frame("SUBSCRIBE", {"id": "s", "destination": LOG, **headers})
        error = await reader.expect_error()
        assert error.headers["code"] == "other-log"
        assert (await asker.asked("groups", log=LOG))["groups"][0]["group"] == "maker"


async def test_who_goes_on_with_a_log_that_is_gone_does_not_make_it_anew() -> None:
    async with LogStage() as stage:
        producer, asker, reader = await stage.connect(), await stage.connect_asking(), await stage.connect()
        await fill(producer, 10)
        old_id = await id_of(asker)
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        await reader.frame("SUBSCRIBE", {"id": "s", "destination": LOG, "from": "2", "log-id": old_id})
        assert (await reader.expect_error()).headers["code"] == "topic-not-exist"
        assert await asker.refused("cursor", log=LOG, group="g", log_id=old_id) == "TOPIC_NOT_EXIST"
        assert (await asker.asked("list"))["logs"] == []


@pytest.mark.parametrize(
    ("request_name", "facts"),
    [
        ("describe", {}),
        ("size", {}),
        ("closest", {"timestamp_ms": 0}),
        ("seek", {"group": "maker", "to": 3}),
        ("cursor", {"group": "new", "from": 3}),
        ("truncate", {"before": 3}),
        ("delete-group", {"group": "maker"}),
        ("delete", {"passcode": PASSCODE}),
    ],
)
async def test_a_request_that_means_another_log_is_refused(request_name: str, facts: dict[str, object]) -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 10)
        old_id = await id_of(asker)
        new_id = await remake(asker, producer, 10)
        before = await asker.asked("describe", log=LOG)
        assert await asker.refused(request_name, log=LOG, log_id=old_id, **facts) == "other-log"
        assert await asker.refused(request_name, log=LOG, log_id=7, **facts) == "INVALID_REQUEST"
        assert await asker.asked("describe", log=LOG) == before
        assert (await asker.ask(request_name, log=LOG, log_id=new_id, **facts))["ok"]


# ---------------------------------------------------------------------- groups


@pytest.mark.parametrize("count", NEW_COUNTS)
@pytest.mark.parametrize("when", ["while it runs", "while it is down"])
async def test_a_group_whose_log_was_made_anew_is_a_new_one(tmp_path: Path, count: int, when: str) -> None:
    """Its place is kept apart from the log's files: what is left of it there must not come to life."""
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, consumer, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        await fill(producer, 10)
        await consumer.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        await consumer.ack((await consumer.next_messages(8))[-1])
        if when == "while it runs":
            await remake(asker, producer, count)
            assert "g" not in stage.broker.logs.groups[LOG]
    if when == "while it is down":
        remove_files(tmp_path)
        async with lives.life() as stage:
            await fill(await stage.connect(), count, first=1000)
            await (await stage.connect_asking()).asked("cursor", log=LOG, group="maker")
    async with lives.life(end="crash") as stage:
        consumer, asker = await stage.connect(), await stage.connect_asking()
        groups = (await asker.asked("groups", log=LOG))["groups"]
        assert [group["group"] for group in groups] == ["maker"]
        await consumer.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        deliveries = await consumer.drain()
        assert [index for index, _value in records_of(deliveries)] == [*range(count)]
        told = [each.headers["gap-from"] for each in deliveries if each.headers.get("gap-reason") == "other-log"]
        assert told == (["8"] if when == "while it is down" else [])
        assert stage.log().gap_count == len(told)
        if count:
            await consumer.request("ACK", {"id": deliveries[-1].headers["ack"]})
    async with lives.life() as stage:
        assert stage.group().front == count, "it is kept, in place of the old one"
        consumer = await stage.connect()
        await consumer.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        assert await consumer.drain() == [], "and told once"


async def test_a_consumer_of_a_group_that_comes_back_is_told_that_its_log_is_another() -> None:
    """Its connection was lost when the log was deleted."""
    async with LogStage() as stage:
        producer, asker, consumer = await stage.connect(), await stage.connect_asking(), await stage.connect()
        await fill(producer, 10)
        old_id = await id_of(asker)
        await remake(asker, producer, 3)
        for wanted in ([0, 1, 2], []):
            await consumer.subscribe(
                LOG, id=f"s{len(wanted)}", group="g", ack="client", **{"from": "7", "log-id": old_id}
            )
            gap, *others = await consumer.drain()
            assert (gap.headers["gap-reason"], gap.headers["gap-to"]) == ("other-log", "0")
            assert indexes(others) == wanted


async def test_groups_of_an_earlier_version_go_on_and_belong_to_their_log_from_then_on(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, consumer = await stage.connect(), await stage.connect()
        await fill(producer, 10)
        await consumer.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        await consumer.ack((await consumer.next_messages(4))[-1])
        await trio.sleep(5)
        stage.log().log_id = ""  # as it was kept then
        keeper, group = stage.broker.logs._keeper, stage.group()
        keeper.create(LOG, "g", group.place, lambda _error: None)
    async with lives.life() as stage:
        assert stage.group().front == 4
    remove_files(tmp_path)
    async with lives.life() as stage:
        await fill(await stage.connect(), 10)
    async with lives.life() as stage:
        assert stage.broker.logs.groups.get(LOG, {}) == {}
