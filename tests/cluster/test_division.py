"""The division of a cluster, put together from what its hubs tell."""

from __future__ import annotations

from typing import Any

import jsonschema

from sluiceway.admin.merging import Gathered, cluster
from sluiceway.admin.schema import CLUSTER, of_all_hubs
from sluiceway.flow.graph import at_once


def hub(name: str, state: str = "serving") -> dict[str, Any]:
    return {"name": name, "clients": "", "version": "1", "weight": 1.0, "shards_count": 1, "state": state}


def shard(number: int, owner: str, words: str = "") -> dict[str, Any]:
    return {"shard": number, "hub": owner, "epoch": 3, "open": bool(owner), "to": "", "pinned": "", "words": words}


def test_sizes_and_links_are_those_that_each_hub_tells_of_itself() -> None:
    division = {
        "cluster": "c", "hub": "hub-1", "words": "",
        "hubs": [hub("hub-1"), hub("hub-2"), hub("hub-3", "away")],
        "shards": [shard(0, "hub-1"), shard(1, "hub-2"), shard(2, "", "shard 2 was on hub-3")],
    }  # fmt: skip
    size = {"depth_count": 2, "depth_bytes": 9, "destinations_count": 1}
    link = {"hub": "hub-2", "address": "x", "flows_count": 1}
    own = {"links": [link], "unlinked": [], "shards": [{"shard": 0, **size}]}
    behind = {"links": [], "unlinked": [], "shards": [{"shard": 0, **size, "depth_count": 7}, {"shard": 1, **size}]}
    absence = {"gone": True, "missing_seconds": 12.0, "shards_waiting": [2]}
    found = at_once(
        cluster(
            Gathered(
                "hub-1",
                {"hub-1": {**division, "own": own}, "hub-2": {**division, "own": behind}},
                {"hub-3": "it is gone for 12 s; shard 2 waits"},
                {},
                {"hub-3": absence},
            )
        )
    )
    jsonschema.Draft202012Validator(of_all_hubs(CLUSTER)).validate(found)
    assert [row["depth_count"] for row in found["shards"]] == [2, 2, None], "of the owner alone"
    assert [row["links"] for row in found["hubs"]] == [[link], [], []]
    assert found["hubs"][2]["missing"] == "it is gone for 12 s; shard 2 waits" and found["hubs"][2]["gone"]
    assert found["missing"] == {"hub-3": "it is gone for 12 s; shard 2 waits"} and "own" not in found
