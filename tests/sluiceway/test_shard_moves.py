"""Shards are opened a few at once, each in the order in which it was asked for. Virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

from sluiceway.shard_moves import CLOSINGS_MAX, LEAVING_SECONDS, OPENINGS_MAX, ShardMoves

OPENING_SECONDS = 0.05
SHARDS = 16


@attrs.define
class SlowShards:
    """Shards whose opening and closing take their time."""

    open_shards: dict[int, str] = attrs.field(factory=dict)
    registry: Any = attrs.field(factory=lambda: SimpleNamespace(away=dict.fromkeys(range(SHARDS), "not opened yet")))
    logs: None = None
    told: list[str] = attrs.field(factory=list)
    at_work_count: int = 0
    at_work_count_max: int = 0
    broken: frozenset[int] = frozenset()

    def leave(self, number: int, why: str) -> None:
        self.registry.away[number] = why

    def destinations_of(self, number: int) -> list[Any]:
        held = SimpleNamespace(unsettled_count=number in self.broken, subscriptions={})
        return [SimpleNamespace(queues=[held], wildcards=None)]

    def leave_guests(self, number: int) -> bool:
        return False

    def guests_may_come(self, number: int) -> None:
        assert number in range(SHARDS)

    async def open_shard(self, number: int, epoch: int | None) -> None:
        await self._work()
        if number in self.broken:
            raise OSError("no")
        self.told.append(f"open {number}")
        self.open_shards[number] = "open"
        del self.registry.away[number]

    async def close_shard(self, number: int) -> None:
        await self._work()
        self.told.append(f"close {number}")
        del self.open_shards[number]

    async def _work(self) -> None:
        self.at_work_count += 1
        self.at_work_count_max = max(self.at_work_count_max, self.at_work_count)
        await trio.sleep(OPENING_SECONDS)
        self.at_work_count -= 1


def moves_of(shards: SlowShards) -> ShardMoves:
    return ShardMoves(shards, ())  # type: ignore[arg-type]


async def test_shards_are_opened_a_few_at_once(autojump_clock: object) -> None:
    shards = SlowShards()
    moves = moves_of(shards)
    began_seconds = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(SHARDS):
            nursery.start_soon(moves.open, number)
    assert len(moves.usable) == SHARDS and shards.at_work_count_max == OPENINGS_MAX
    assert trio.current_time() - began_seconds == pytest.approx(SHARDS / OPENINGS_MAX * OPENING_SECONDS)
    async with trio.open_nursery() as nursery:
        for number in range(SHARDS):
            nursery.start_soon(moves.close, number, "it moves")
    assert not shards.open_shards
    assert trio.current_time() - began_seconds < (SHARDS / OPENINGS_MAX + SHARDS / CLOSINGS_MAX + 1) * OPENING_SECONDS


async def test_work_on_one_shard_keeps_its_order(autojump_clock: object) -> None:
    shards = SlowShards()
    moves = moves_of(shards)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(moves.open, 5)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(moves.close, 5, "it moves")
            await trio.lowlevel.checkpoint()
    assert shards.told == ["open 5", "close 5"] * 3 and shards.at_work_count_max == 1


async def test_a_closing_that_waits_for_clients_keeps_no_opening_waiting(autojump_clock: object) -> None:
    shards = SlowShards()
    moves = moves_of(shards)
    await moves.open(0)
    shards.broken = frozenset([0])  # a consumer holds a message
    async with trio.open_nursery() as nursery:
        nursery.start_soon(moves.close, 0, "it moves")
        await trio.lowlevel.checkpoint()
        with trio.fail_after(LEAVING_SECONDS / 2):
            await moves.open(1)
    assert not moves.open_count - 1 and moves.usable == {1}


async def test_a_shard_that_can_not_be_opened_costs_the_others_nothing(autojump_clock: object) -> None:
    shards = SlowShards(broken=frozenset([2]))
    moves = moves_of(shards)
    failed: list[int] = []

    async def open_shard(number: int) -> None:
        try:
            await moves.open(number)
        except OSError:
            failed.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(SHARDS):
            nursery.start_soon(open_shard, number)
    assert failed == [2] and len(moves.usable) == SHARDS - 1


async def test_an_opening_that_is_not_wanted_any_more_is_left_out(autojump_clock: object) -> None:
    shards = SlowShards()
    moves = moves_of(shards)
    await moves.open(0, is_wanted=lambda: False)
    assert not shards.told
