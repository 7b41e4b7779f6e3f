"""Shards of names: the hash is a format on disk, and never changes."""

from __future__ import annotations

import pytest

from sluiceway.queues.names import name_of_part, parse, split_part
from sluiceway.queues.shard_hash import (
    SHARDS_MAX,
    first_number,
    hashed_part,
    is_shards_count,
    shard_of,
    tag_for,
)

VECTORS = [
    ("/queue/orders", 0x6C3F717F883472C8),
    ("/queue/{orders}.new", 0xD5ACEBE867B47F4D),
    ("/queue/{orders}.failed", 0xD5ACEBE867B47F4D),
    ("orders", 0xD5ACEBE867B47F4D),
    ("/topic/prices.eu", 0x1557C917614A0ED4),
    ("/log/events", 0x9EA0DE19D096C997),
    ("/queue/{}.a", 0x4BE72D516D499C53),
    ("/queue/{a", 0x51D593099628C519),
    ("/queue/grün", 0x1969DE258FAC126A),
]


@pytest.mark.parametrize(("name", "digest"), VECTORS)
@pytest.mark.parametrize("count", [1, 2, 32, 1024])
def test_a_name_stays_in_its_shard_for_ever(name: str, digest: int, count: int) -> None:
    assert shard_of(name, count) == digest % count


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("/queue/{a}.{b}", "a"),
        ("/queue/}{a}", "a"),
        ("/queue/{{a}}", "{a"),
        ("/queue/{}{a}", "/queue/{}{a}"),
        ("/queue/a}", "/queue/a}"),
    ],
)
def test_the_first_braces_with_something_in_them_count(name: str, part: str) -> None:
    assert hashed_part(name) == part


def test_names_spread_over_all_shards() -> None:
    counts = [0] * 32
    for number in range(32_000):
        counts[shard_of(f"/queue/orders.{number}", 32)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_a_bare_name_and_the_parts_of_a_queue_are_in_the_shard_of_its_full_name() -> None:
    """The hash is of the canonical name, which both have."""
    assert parse("orders").canonical == "/queue/orders"
    name, part = split_part(name_of_part("/queue/orders", 7))
    assert (name, part) == ("/queue/orders", 7)


def test_message_numbers_of_shards_never_meet_and_fit_into_an_ack() -> None:
    """An ACK takes numbers of 18 digits."""
    assert first_number(0) == 1
    assert first_number(1) - first_number(0) == 1 << 49
    assert len(str(first_number(SHARDS_MAX))) <= 18


def test_a_tag_leads_a_name_into_each_shard() -> None:
    assert [shard_of(f"/log/sluiceway.claims.{tag_for(shard, 32)}.a", 32) for shard in range(32)] == list(range(32))


def test_the_number_of_shards_is_a_power_of_two() -> None:
    assert [count for count in range(-1, 70) if is_shards_count(count)] == [1, 2, 4, 8, 16, 32, 64]
    assert not is_shards_count(2 * SHARDS_MAX)
