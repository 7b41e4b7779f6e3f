"""Logs, groups, claims, staged commits and large bodies over an engine that keeps all of them, as a database does: a
chosen part of what is played with files. All of it: `ALL_IN_ENGINE=1 scripts/test tests/scenarios/test_log*.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sluiceway.queues.logs.ports import AwayError
from sluiceway.store import engine_log, keys
from sluiceway.store.engine import Engine
from tests.scenarios.lives import Lives, durability
from tests.scenarios.log_stage import LOG, LogLives, records_of
from tests.scenarios.stage import Stage
from tests.scenarios.test_claims import (
    test_claims_outlive_the_broker,
    test_consumers_and_claims_share_a_queue,
    test_retention_does_not_touch_claims,
    test_staged_records_are_published_once_over_restarts,
)
from tests.scenarios.test_large_messages_stored import BODY, Q, bodies, files_count, send_large, settled
from tests.scenarios.test_log_groups import (
    test_a_committed_acknowledgement_outlives_the_broker,
    test_a_run_that_comes_back_is_served_to_plain_consumers,
    test_consumers_of_a_group_share_its_records,
    test_what_was_settled_does_not_come_again_after_a_restart,
)
from tests.scenarios.test_log_transactions import (
    test_consume_transform_produce_is_exactly_once_over_a_restart,
    test_whatever_of_the_store_a_crash_leaves_the_log_has_each_record_once,
)
from tests.scenarios.test_logs import (
    test_a_batch_message_is_as_large_as_asked_for_or_one_batch,
    test_a_bounded_range_ends_with_a_message_that_says_so,
    test_a_reader_begins_where_it_says,
    test_bodies_are_bytes_of_any_kind_and_size,
    test_pipelined_sends_each_get_the_index_of_their_record,
)

__all__ = [
    "test_a_batch_message_is_as_large_as_asked_for_or_one_batch",
    "test_a_bounded_range_ends_with_a_message_that_says_so",
    "test_a_committed_acknowledgement_outlives_the_broker",
    "test_a_reader_begins_where_it_says",
    "test_a_run_that_comes_back_is_served_to_plain_consumers",
    "test_bodies_are_bytes_of_any_kind_and_size",
    "test_claims_outlive_the_broker",
    "test_consume_transform_produce_is_exactly_once_over_a_restart",
    "test_consumers_and_claims_share_a_queue",
    "test_consumers_of_a_group_share_its_records",
    "test_pipelined_sends_each_get_the_index_of_their_record",
    "test_retention_does_not_touch_claims",
    "test_staged_records_are_published_once_over_restarts",
    "test_what_was_settled_does_not_come_again_after_a_restart",
    "test_whatever_of_the_store_a_crash_leaves_the_log_has_each_record_once",
]


@pytest.fixture(autouse=True)
def in_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "in_engine", True)


async def test_places_by_time_are_found_in_records_that_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an extent that was joined the time has to be looked for, after a restart in the database; frames behind the
    SUBSCRIBE wait.
    """
    monkeypatch.setattr(engine_log, "JOINED_COUNT", 4)
    lives = LogLives(tmp_path)
    async with lives.life() as stage:
        client = await stage.connect()
        for number in range(6):
            await client.sent(LOG, str(number))
            await trio.sleep(1)
        times = [stage.log().records.batch_of(index).timestamp_ms for index in range(6)]
    async with lives.life() as stage:
        with pytest.raises(AwayError):
            stage.log().records.find_closest_index(times[2])
        reader = await stage.connect()
        await reader.subscribe(LOG, **{"from": f"time:{times[2]}"})
        await reader.sent("/queue/behind", "it")
        assert [index for index, _value in records_of(await reader.drain())] == [2, 3, 4, 5]
    async with lives.life() as stage:
        asker = await stage.connect_asking()
        assert await asker.asked("closest", log=LOG, timestamp_ms=times[1] + 1) == {
            "index": 2, "timestamp_ms": times[2],
        }  # fmt: skip
    async with lives.life() as stage:
        asker = await stage.connect_asking()
        await asker.asked("cursor", log=LOG, group="g", **{"from": f"time:{times[3]}"})
        assert stage.group().front == 3
        assert (await asker.asked("seek", log=LOG, group="g", to=f"time:{times[1]}"))["front"] == 1


def bodies_count(engine: Engine) -> int:
    return len(list(engine.iterate_keys(*keys.family_range(keys.BODY))))


@pytest.mark.parametrize("end", ["in order", "crash", "power cut"])
async def test_a_large_body_outlives_the_broker_in_the_engine(tmp_path: Path, end: str) -> None:
    """Until it is consumed. One that is not persistent is in a file, and goes with the broker."""
    lives = Lives(None, large_folder=tmp_path, large_body_bytes=1000)
    async with lives.life(end=end) as stage:
        producer = await stage.connect()
        await send_large(producer, Q, 1, persistent="true")
        await send_large(producer, Q, 2)
        await send_large(producer, Q, 3, persistent="true")
        assert durability(producer) == ["disk", "memory", "disk"]
        assert (bodies_count(lives.engine), files_count(tmp_path)) == (2, 1)
    async with lives.life() as stage:
        assert files_count(tmp_path) == 0
        assert await bodies(stage, 2) == [b"1 " + BODY, b"3 " + BODY]
        await settled(stage)
        assert bodies_count(lives.engine) == 0
        assert list(lives.engine.iterate_keys(*keys.family_range(keys.PIECE))) == []
