"""What can be asked of logs: description, size, times, groups; seek, truncate, delete. Retention and gaps."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.publishing import LogPublisher
from tests.scenarios.log_stage import (
    LOG,
    PASSCODE,
    REPLIES,
    LogLives,
    LogStage,
    fill,
    indexes,
    numbered,
    receipts_of,
    records_of,
    send_batch,
)
from tests.scenarios.stage import EPOCH_MS
from tests.scenarios.test_faults import fail_once
from tests.store.bigarray.faulty import FaultyFiles

SMALL = {"data_page_bytes": 4096, "index_page_count": 64}


async def test_description_and_list() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        assert await asker.asked("list") == {"logs": []}
        await fill(producer, 3)
        await trio.sleep(5)
        await send_batch(producer, numbered(range(4)), log="/log/more")
        await fill(producer, 1)
        await producer.subscribe(LOG, group="g", ack="client", prefetch_count="2", **{"from": "1"})
        await producer.next_messages(2)
        described = await asker.asked("describe", log="orders")
        wanted = {
            "log": LOG, "first": 0, "next": 4, "size": 4, "first_timestamp_ms": EPOCH_MS,
            "last_timestamp_ms": EPOCH_MS + 5000,
        }  # fmt: skip
        assert {name: described[name] for name in wanted} == wanted
        assert described["bytes"] > 0
        (group,) = described["groups"]
        assert (group["group"], group["front"], group["lag"], group["consumers"], group["unsettled"]) == (
            "g",
            1,
            3,
            1,
            2,
        )
        assert group["lag_seconds"] == 5.0
        assert 0 < group["lag_bytes"] <= described["bytes"]
        listed = await asker.asked("list")
        assert [each["log"] for each in listed["logs"]] == ["/log/more", LOG]
        assert (await asker.asked("groups", log=LOG))["groups"] == [group]


async def test_size_of_a_log_and_of_what_a_group_has_before_it() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 10)
        await producer.subscribe(LOG, group="g", ack="client-individual", **{"from": "4"})
        deliveries = await producer.next_messages(6)
        await producer.ack(deliveries[0])
        await producer.ack(deliveries[3])
        assert await asker.asked("size", log=LOG) == {
            "size": 10,
            "next": 10,
            "waiting": 0,
            "log_id": stage.log().log_id,
        }
        assert await asker.asked("size", log=LOG, group="g") == {"size": 4}


async def test_closest_index_of_a_time() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 5)
        await trio.sleep(10)
        await fill(producer, 5)
        for milliseconds, index, found in ((0, 0, 0), (1, 5, 10_000), (10_000, 5, 10_000), (99_999, 9, 10_000)):
            reply = await asker.asked("closest", log=LOG, timestamp_ms=EPOCH_MS + milliseconds)
            assert reply == {"index": index, "timestamp_ms": EPOCH_MS + found}


@pytest.mark.parametrize(
    ("request_name", "facts", "code"),
    [
        ("describe", {"log": "none"}, "TOPIC_NOT_EXIST"),
        ("size", {"log": "none"}, "TOPIC_NOT_EXIST"),
        ("size", {"log": LOG, "group": "none"}, "GROUP_NOT_EXIST"),
        ("closest", {"log": "none", "timestamp_ms": 0}, "TOPIC_NOT_EXIST"),
        ("closest", {"log": "/log/empty", "timestamp_ms": 0}, "TOPIC_IS_EMPTY"),
        ("groups", {"log": "a b"}, "INVALID_TOPIC"),
        ("seek", {"log": LOG, "group": "none", "to": 0}, "GROUP_NOT_EXIST"),
        ("seek", {"log": LOG, "group": "g", "to": 99}, "INDEX_OUT_OF_BOUNDS"),
        ("delete-group", {"log": LOG, "group": "none"}, "GROUP_NOT_EXIST"),
        ("delete-group", {"log": LOG, "group": "g"}, "GROUP_IN_USE"),
        ("truncate", {"log": LOG, "before": 99}, "INDEX_OUT_OF_BOUNDS"),
        ("truncate", {"log": "none", "before": 0}, "TOPIC_NOT_EXIST"),
        ("delete", {"log": LOG, "passcode": "wrong"}, "AUTHENTICATION_FAILURE"),
        ("delete", {"log": LOG}, "AUTHENTICATION_FAILURE"),
        ("delete", {"log": "none", "passcode": PASSCODE}, "TOPIC_NOT_EXIST"),
        ("delete", {"log": LOG, "passcode": "пароль"}, "AUTHENTICATION_FAILURE"),
    ],
)
async def test_what_can_not_be_done_is_said_so(request_name: str, facts: dict[str, Any], code: str) -> None:
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 3)
        await client.subscribe(LOG, id="1", group="g", ack="client")
        await client.subscribe("/log/empty", id="2")
        assert await asker.refused(request_name, **facts) == code
        assert (await asker.asked("describe", log=LOG))["next"] == 3


async def test_without_a_passcode_nothing_can_be_deleted() -> None:
    async with LogStage(journal={"delete_passcode": ""}) as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 3)
        assert await asker.refused("delete", log=LOG, passcode="") == "AUTHENTICATION_FAILURE"


# ---------------------------------------------------------------------- seek


@pytest.mark.parametrize(
    ("to", "front"),
    [(0, 0), ("3", 3), ("earliest", 0), ("latest", 9), ("next", 10), (f"time:{EPOCH_MS + 1}", 10), (10, 10)],
)
async def test_a_group_goes_on_from_where_it_was_moved(tmp_path: Path, to: object, front: int) -> None:
    """Also after a crash."""
    lives = LogLives(tmp_path)
    async with lives.life(end="crash") as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 10)
        await client.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        deliveries = await client.next_messages(10)
        await client.ack(deliveries[4])
        await client.ack(deliveries[5])
        await client.unsubscribe()
        assert await asker.asked("seek", log=LOG, group="g", to=to) == {"front": front}
        assert (await asker.asked("size", log=LOG, group="g"))["size"] == 10 - front
        client.vanish()
    async with lives.life() as stage:
        client = await stage.connect()
        await client.subscribe(LOG, group="g", ack="client")
        await fill(await stage.connect(), 1, first=10)
        assert indexes(await client.next_messages(11 - front)) == list(range(front, 11))


@pytest.mark.parametrize("batch", [None, "1024"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("command", ["ACK", "NACK", "COMMIT", "ABORT", "leave"])
async def test_what_is_out_at_a_seek_counts_for_nothing(command: str, version: Version, batch: str | None) -> None:
    """All comes again once, to the same consumer or to another one, whatever becomes of what it held before; and that
    opens its credit.
    """
    if version == "1.0" and command == "NACK":
        return
    more = {} if batch is None else {"batch": batch}
    mode = "client" if version == "1.0" else "client-individual"
    async with LogStage({"/log/**": {"redeliveries_max": 0}}) as stage:
        producer, second, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        first = await stage.connect(version)
        await send_batch(producer, numbered(range(10)))
        credit = {"prefetch-count": "2" if batch else "20"}
        await first.subscribe(LOG, group="g", ack=mode, **credit, **more, **{"from": "earliest"})
        held = await first.drain()
        await send_batch(producer, numbered(range(10)))
        held += await first.drain()
        assert [index for index, _ in records_of(held)] == list(range(20))
        in_transaction = {"transaction": "t"} if command in ("COMMIT", "ABORT") else {}
        if in_transaction:
            await first.frame("BEGIN", in_transaction)
            for delivery in held:
                await first.frame("ACK", {**first.naming(delivery), **in_transaction})
            await first.sync()
        await asker.asked("seek", log=LOG, group="g", to=0)
        if in_transaction:
            again = await first.drain()  # they had opened its credit
            await first.request(command, in_transaction)
        elif command == "leave":
            await first.disconnect()
            again = []
        else:
            again = []
            for delivery in held:
                await first.request(command, first.naming(delivery))
                again += await first.drain()
        assert stage.group().front == 0
        if command != "leave":
            assert [index for index, _ in records_of(again)] == list(range(20))
            assert not any(delivery.redelivered for delivery in again)
            await first.silence()
            if command == "ABORT":  # what it holds from before is unsettled again
                for delivery in held:
                    await first.ack(delivery)
            for delivery in again[:1]:
                await first.ack(delivery)
            assert stage.group().front == len(records_of(again[:1]))
            await first.disconnect()
        front = stage.group().front
        await second.subscribe(LOG, group="g", ack="client-individual", **more)
        rest = await second.drain()
        assert [index for index, _ in records_of(rest)] == list(range(front, 20))
        for delivery in rest:
            await second.ack(delivery)
        assert (stage.group().front, stage.group().lag_count) == (20, 0)
        await second.silence()


async def test_consumers_of_a_log_that_is_deleted_after_a_seek_hold_nothing() -> None:
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 10)
        await client.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        await client.next_messages(10)
        await asker.asked("seek", log=LOG, group="g", to=5)
        await client.next_messages(5)
        (session,) = [each.session for each in stage.broker.connections if each.session.unsettled_count]
        assert session.unsettled_count == 15
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        assert session.unsettled_count == 0


async def test_seek_forward_passes_over_what_was_out() -> None:
    async with LogStage() as stage:
        client, other, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        await fill(client, 10)
        await client.subscribe(LOG, group="g", ack="client", prefetch_count="4", **{"from": "earliest"})
        deliveries = await client.next_messages(4)
        await asker.asked("seek", log=LOG, group="g", to=8)
        await other.subscribe(LOG, group="g", ack="client")
        assert indexes(await other.next_messages(2)) == [8, 9]
        await client.nack(deliveries[3])
        await client.silence()
        client.vanish()
        await other.silence()
        assert stage.group().front == 8


# ---------------------------------------------------------------------- groups that go


async def test_a_deleted_group_begins_anew() -> None:
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 5)
        await client.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        deliveries = await client.next_messages(5)
        await client.ack(deliveries[4])
        assert await asker.refused("delete-group", log=LOG, group="g") == "GROUP_IN_USE"
        await client.unsubscribe()
        await asker.asked("delete-group", log=LOG, group="g")
        assert (await asker.asked("groups", log=LOG)) == {"groups": []}
        await client.subscribe(LOG, group="g", ack="client", **{"from": "2"})
        assert indexes(await client.next_messages(3)) == [2, 3, 4]


async def test_late_acks_for_a_deleted_group_are_passed_over() -> None:
    """They settle nothing, and the connection goes on."""
    async with LogStage() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 5)
        await client.subscribe(LOG, group="g", ack="client-individual", **{"from": "earliest"})
        deliveries = await client.next_messages(5)
        await client.unsubscribe()
        await asker.asked("delete-group", log=LOG, group="g")
        await client.frame("ACK", client.naming(deliveries[0]))
        await client.frame("NACK", client.naming(deliveries[1]))
        await client.disconnect()


async def test_groups_stay_deleted_after_a_restart(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        client, asker = await stage.connect(), await stage.connect_asking()
        await fill(client, 5)
        await client.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        await client.ack((await client.next_messages(5))[2])
        await client.unsubscribe()
        await asker.asked("delete-group", log=LOG, group="g")
    async with lives.life() as stage:
        asker = await stage.connect_asking()
        assert (await asker.asked("groups", log=LOG)) == {"groups": []}


# ---------------------------------------------------------------------- truncation, retention, gaps


async def test_truncated_records_are_told_as_a_gap_to_a_reader_behind() -> None:
    async with LogStage(journal=SMALL) as stage:
        producer, reader, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        await fill(producer, 100)
        await reader.subscribe(LOG, ack="client", prefetch_count="10", **{"from": "earliest"})
        deliveries = await reader.next_messages(10)
        assert (await asker.asked("truncate", log=LOG, before=40)) == {"first": 40}
        await reader.ack(deliveries[-1])
        gap, *rest = await reader.next_messages(11)
        assert gap.headers["gap"] == "true"
        assert (gap.headers["gap-from"], gap.headers["gap-to"]) == ("10", "40")
        assert gap.headers["gap-reason"] == "retention"
        assert "ack" not in gap.headers
        assert not gap.body
        assert indexes(rest) == list(range(40, 50))
        assert (await asker.asked("describe", log=LOG))["first"] == 40


async def test_a_reader_that_wants_it_so_gets_an_error_at_a_gap() -> None:
    async with LogStage(journal=SMALL) as stage:
        producer, reader, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        await fill(producer, 100)
        await reader.subscribe(LOG, ack="client", on_gap="error", prefetch_count="10", **{"from": "earliest"})
        deliveries = await reader.next_messages(10)
        await asker.asked("truncate", log=LOG, before=40)
        await reader.frame("ACK", reader.naming(deliveries[-1]))
        await reader.expect_error("no records from 10 to 39")
        late = await stage.connect()
        await late.frame("SUBSCRIBE", {"destination": LOG, "id": "1", "from": "10", "on-gap": "error"})
        await late.expect_error("begins with index 40")
        other = await stage.connect()
        await other.subscribe(LOG, **{"from": "10", "to": "30"})
        gap, end = await other.next_messages(2)
        assert (gap.headers["gap-from"], gap.headers["gap-to"]) == ("10", "30")
        assert end.headers["range-end"] == "true"


async def test_a_gap_counts_as_settled_for_a_group() -> None:
    async with LogStage(journal=SMALL) as stage:
        producer, consumer, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        await fill(producer, 100)
        await consumer.subscribe(LOG, group="g", ack="client-individual", prefetch_count="5", **{"from": "earliest"})
        held = await consumer.next_messages(5)
        await asker.asked("truncate", log=LOG, before=90)
        await consumer.ack(held[1])
        gap = await consumer.next_message()
        assert (gap.headers["gap-from"], gap.headers["gap-to"]) == ("5", "90")
        for delivery in held:
            await consumer.ack(delivery)
        rest = await consumer.next_messages(4)
        rest += [await consumer.next_message()]
        for delivery in rest:
            await consumer.ack(delivery)
        rest = await consumer.drain()
        for delivery in rest:
            await consumer.ack(delivery)
        assert stage.group().front == 100
        assert stage.group().lag_count == 0


@pytest.mark.parametrize("before", ["time", "size"])
async def test_truncation_by_time_and_size_removes_whole_files(before: str) -> None:
    async with LogStage(journal=SMALL) as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        for start in range(0, 1000, 100):
            await fill(producer, 100, first=start)
            await trio.sleep(1)
        described = await asker.asked("describe", log=LOG)
        place = f"time:{EPOCH_MS + 5000}" if before == "time" else f"size:{described['bytes'] // 2}"
        first = (await asker.asked("truncate", log=LOG, before=place))["first"]
        assert 100 < first < 900
        now = await asker.asked("describe", log=LOG)
        assert now["bytes"] < described["bytes"]
        if before == "time":
            assert first <= 500, "nothing that is younger is removed"
        reader = await stage.connect()
        await reader.subscribe(LOG, **{"from": "earliest"})
        assert indexes(await reader.next_messages(1000 - first)) == list(range(first, 1000))


@pytest.mark.parametrize("policy", [{"log_retention_seconds": 60.0}, {"log_retention_bytes": 20_000}])
async def test_retention_removes_what_is_old_or_too_much(policy: dict[str, Any]) -> None:
    """A reader behind is told; one at the tail notices nothing."""
    async with LogStage({LOG: policy}, journal=SMALL) as stage:
        producer, behind, tail = [await stage.connect() for _ in range(3)]
        await behind.subscribe(LOG, ack="client", prefetch_count="1", **{"from": "next"})
        await tail.subscribe(LOG)
        got: list[int] = []
        for start in range(0, 3000, 100):
            await fill(producer, 100, first=start)
            await trio.sleep(6)
            got += indexes(await tail.drain(0.01))
        assert got == list(range(3000))
        records = stage.log().records
        assert records.first_index > 1000
        assert records.back_file_size_bytes < 100_000
        (held,) = await behind.next_messages(1)
        await behind.ack(held)
        gap = await behind.next_message()
        assert gap.headers["gap-to"] == str(records.first_index)


# ---------------------------------------------------------------------- a log that goes


async def test_a_deleted_log_is_told_to_its_readers_and_begins_anew(tmp_path: Path) -> None:
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        producer, reader, grouped, asker = (
            await stage.connect(),
            await stage.connect(),
            await stage.connect(),
            await stage.connect_asking(),
        )
        await fill(producer, 5)
        await reader.subscribe(LOG, ack="client", **{"from": "earliest"})
        await grouped.subscribe(LOG, group="g", ack="client", **{"from": "earliest"})
        held = await reader.next_messages(5)
        held_by_group = await grouped.next_messages(5)
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        for client in (reader, grouped):
            told = await client.next_message()
            assert told.headers["log-deleted"] == "true"
            assert told.headers["subscription"] == "s"
        await reader.ack(held[0])
        await grouped.ack(held_by_group[3])
        await grouped.unsubscribe()
        assert not os.listdir(tmp_path)
        await producer.sent(LOG, "anew")
        await grouped.subscribe(LOG, group="g", id="t", ack="client", **{"from": "earliest"})
        (first,) = await grouped.next_messages(1)
        assert (first.text, first.headers["index"]) == ("anew", "0")
        assert first.headers["message-id"] != held[0].headers["message-id"]
    async with lives.life() as stage:
        assert stage.log().records.next_index == 1


async def test_who_sent_to_a_log_that_was_deleted_can_leave() -> None:
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await producer.send(LOG, "x")
        await producer.sync()
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        await producer.disconnect()


async def test_what_was_left_of_a_log_that_was_being_removed_goes_at_the_next_start(tmp_path: Path) -> None:
    """The broker ended in the middle of it: nobody sees half a log."""
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        client = await stage.connect()
        await client.sent(LOG, "x")
    (folder,) = os.listdir(tmp_path)
    (tmp_path / folder).rename(tmp_path / "log.removed-1234")
    async with lives.life() as stage:
        asker = await stage.connect_asking()
        assert (await asker.asked("list"))["logs"] == []
        assert not os.listdir(tmp_path)


async def test_deleting_a_log_leaves_no_sender_waiting() -> None:
    """Whoever has SENDs on their way is answered, or told; nobody waits for ever."""
    async with LogStage() as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 5)
        for _ in range(5):
            await producer.send(LOG, "x" * 1000, receipt="r")
            await asker.client.send(
                "/sluiceway/log/delete", json.dumps({"log": LOG, "passcode": PASSCODE}), reply_to=REPLIES
            )
            await asker.client.next_message()
            with trio.move_on_after(30) as scope:
                while "r" not in producer.receipts and producer.error is None and not producer.ended:
                    await producer._receive()
            assert not scope.cancelled_caught, "its receipt never came"
            if producer.error is not None or producer.ended:
                producer = await stage.connect()
            else:
                producer.receipts.remove("r")
        await producer.sent(LOG, "goes on")
        await producer.disconnect()


async def test_a_log_that_is_sent_to_can_be_deleted_at_any_moment() -> None:
    """The request waits for what is on its way to the file, and so ends the log in the midst of telling its senders.
    Each of them is told, and others go on.
    """
    async with LogStage() as stage:
        asker, bystander = await stage.connect_asking(), await stage.connect(name="bystander")
        delete = asker.client.encode(
            "SEND",
            {"destination": "/sluiceway/log/delete", "reply-to": REPLIES},
            json.dumps({"log": LOG, "passcode": PASSCODE}),
        )
        for turn in range(10):
            producers = [await stage.connect(name=f"producer {turn} {place}") for place in range(4)]
            for producer in producers:
                await producer.stream.send_all(
                    b"".join(
                        producer.encode("SEND", {"destination": LOG, "receipt": f"r {number}"}, str(number))
                        for number in range(turn)
                    )
                )
                await asker.client.send_raw(delete)
            for producer in producers:
                with trio.move_on_after(30) as scope:
                    while len(producer.receipts) < turn and producer.error is None and not producer.ended:
                        await producer._receive()
                assert not scope.cancelled_caught, "its receipts never came"
                producer.stream.close()
            for _ in producers:
                await asker.client.next_message()
            await bystander.sent("/log/other", "goes on")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
async def test_a_log_that_can_not_be_flushed_is_deleted_all_the_same(tmp_path: Path, error: int) -> None:
    """Its records do not come back under its name, for which there are no groups any more."""
    files = FaultyFiles(Random(1), tmp_path / "vault")
    async with LogStage({LOG: {"log_sync": "none"}}, folder=tmp_path / "logs", files=files) as stage:
        producer, asker = await stage.connect(), await stage.connect_asking()
        await fill(producer, 3)
        files.fail(1, error, times=1_000_000)
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        files.fail(0, 0)
        assert [path.name for path in (tmp_path / "logs").iterdir()] == []
        await producer.sent(LOG, "new")
        assert receipts_of(producer)[-1] == (0, 1)
        await producer.subscribe(LOG, **{"from": "earliest"})
        assert [delivery.text for delivery in await producer.drain(1)] == ["new"]


async def test_an_answer_that_breaks_does_not_keep_its_log_from_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles(Random(1), tmp_path / "vault")
    async with LogStage(folder=tmp_path / "logs", files=files) as stage:
        one, two, asker = await stage.connect(), await stage.connect(), await stage.connect_asking()
        await fill(one, 3)
        files.fail(1, errno.ENOSPC, times=1_000_000)
        failed = fail_once(LogPublisher, "_appended", monkeypatch)
        for client in (one, two):
            await client.send(LOG, "waits", receipt="r")
        await trio.sleep(0.1)
        files.fail(0, 0)
        await asker.asked("delete", log=LOG, passcode=PASSCODE)
        assert failed
        codes = [(await client.expect_error()).headers["code"] for client in (one, two)]
        assert sorted(codes) == ["internal-error", "topic-not-exist"]
        other = await stage.connect()
        await other.sent(LOG, "new")
        assert receipts_of(other) == [(0, 1)]


async def test_a_log_whose_folder_can_not_be_renamed_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says why and what to do; the log, its groups and all who use it go on, also after a restart."""
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        asker, producer, reader = await stage.connect_asking(), await stage.connect(), await stage.connect()
        await fill(producer, 2)
        await reader.subscribe(LOG, ack="client", group="g", prefetch_count="1", **{"from": "earliest"})
        first = await reader.next_message()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", lambda *_paths: _no_space())
            reply = await asker.ask("delete", log="orders", passcode=PASSCODE)
        assert (reply["ok"], reply["error"]) == (False, "INTERNAL_ERROR")
        assert "stays as it is" in reply["message"]
        assert "may rename" in reply["message"]
        await reader.ack(first)
        assert (await reader.next_message()).text == "1"
        await fill(producer, 1, first=2)
        assert (await asker.asked("describe", log="orders"))["next"] == 3
    async with lives.life() as stage:
        asker, reader = await stage.connect_asking(), await stage.connect()
        await reader.subscribe(LOG, ack="client", group="g")
        assert await reader.next_texts(2) == ["1", "2"]
        await reader.disconnect()
        await asker.asked("delete", log="orders", passcode=PASSCODE)
        assert await asker.refused("describe", log="orders") == "TOPIC_NOT_EXIST"
        assert await asker.asked("list") == {"logs": []}


def _no_space() -> None:
    raise PermissionError(13, "Permission denied")
