"""`/sluiceway/cluster` of a broker without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.guarded import GuardedLogStage, deny
from tests.scenarios.test_request_permissions import ask, asker


async def test_a_broker_of_its_own_says_that_all_is_here_to_everybody() -> None:
    """One hub with its addresses, one shard. It needs no permission: nothing is said about what exists."""
    async with GuardedLogStage(deny("eve", "*")) as stage:
        answered = await ask(await asker(stage, "eve"), "cluster", names=["orders", "/log/a", "/temp-queue/r"])
        name = stage.broker.config.broker.name
        assert answered == {
            "ok": True, "cluster": "", "hub": name, "words": "", "hash": "blake2b-64", "shards_count": 1,
            "hubs": [{"name": name, "clients": stage.broker.urls, "state": "serving"}],
            "homes": [
                {"name": "/queue/orders", "shard": 0, "hub": name, "epoch": 0, "words": ""},
                {"name": "/log/a", "shard": 0, "hub": name, "epoch": 0, "words": ""},
                {"name": "/temp-queue/r", "shard": None, "hub": name, "epoch": 0, "words": ""},
            ],
            "shards": [{"shard": 0, "hub": name, "epoch": 0}],
        }  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"names": "a"}, "must be a list of 100 destinations"),
        ({"names": [1]}, "must be a list of 100 destinations"),
        ({"names": ["a"] * 101}, "must be a list of 100 destinations"),
        ({"names": ["/topic/a.>"]}, "is not one destination"),
        ({"names": ["/queue/a,/queue/b"]}, "is not one destination"),
        ({"names": [""]}, "names"),
        ({"shards": 1}, "must be true or false"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(facts: dict[str, Any], words: str) -> None:
    async with GuardedLogStage() as stage:
        answered = await ask(await asker(stage, "ann"), "cluster", **facts)
        assert (answered["ok"], answered["error"]) == (False, "INVALID_REQUEST")
        assert words in answered["message"]
