"""Whole hubs keep what they promise to durable subscriptions, transactions, topics and logs while shards move."""

from __future__ import annotations

import pytest

from sluiceway.embedded_messages import Message
from sluiceway.simulation import run_seeds
from tests.cluster.mixed import Records, laws_hold
from tests.cluster.shared_engine import LawBrokenError

SEEDS = (4, 5, 14)
"""Short ones, with most kinds of faults."""


@pytest.mark.timeout(300)
def test_promises_are_kept_to_all_kinds_of_clients_wherever_shards_move() -> None:
    """More seeds: python -m tests.cluster.play --mixed --seeds 1000."""
    run_seeds(laws_hold, seeds=SEEDS)


def record(index: int, number: int, **headers: str) -> Message:
    return Message(b"", {"index": str(index), "producer": "p", "number": str(number), **headers})


def test_the_laws_of_logs_notice_another_record_at_an_index_and_a_second_one_without_a_mark() -> None:
    records = Records("log")
    records.read(record(0, 0))
    with pytest.raises(LawBrokenError, match="index: log has"):
        records.read(record(0, 1))
    records.in_order(record(0, 0), 0)
    records.in_order(record(1, 0, **{"possible-duplicate": "true"}), 1)
    with pytest.raises(LawBrokenError, match="without a mark"):
        records.in_order(record(2, 0), 2)
