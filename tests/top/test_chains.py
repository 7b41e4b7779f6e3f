"""«Waits on …», step by step."""

from __future__ import annotations

import pytest

from sluiceway.flow.kinds import ResourceKind, Role
from sluiceway.top.chains import FlowMap, troubles
from tests.top.reports import HELD_UP, chain, edge


def titles(flow_map: FlowMap, title: str) -> list[str]:
    return [step.title for step in flow_map.chain(title).steps]


def test_a_chain_leads_from_a_producer_to_whoever_holds_it_up() -> None:
    steps = FlowMap(HELD_UP).chain("connection peer-a").steps
    assert [step.title for step in steps] == [
        "connection peer-a",
        "queue /queue/orders",
        "subscription 1 of peer-c",
    ]
    assert steps[0].words == "waits on queue /queue/orders (memory full)"
    last = steps[-1]
    assert (last.age_seconds, last.words) == (None, "500 unacked, idle 41 s")
    assert "window full, 500 of 500 messages" in last.details
    assert last.details[-1].startswith("what to do: Client peer-c holds these messages")


def test_who_waits_on_several_is_followed_along_the_longest_wait() -> None:
    """The broker tells the longest first."""
    edges = [edge("connection a", "queue old", 1, 3, 9.0), edge("connection a", "queue new", 1, 2, 1.0)]
    report = {"edges": edges, "chains": [chain(edge) for edge in edges]}
    assert titles(FlowMap(report), "connection a") == ["connection a", "queue old"]


def test_a_ring_is_told_and_not_walked_for_ever() -> None:
    edges = [edge("queue a", "queue b", 1, 2, 1.0), edge("queue b", "queue a", 2, 1, 1.0)]
    ring = FlowMap({"edges": edges, "chains": [chain(*edges, cyclic=True)]}).chain("queue a")
    assert ring.cyclic
    assert [step.title for step in ring.steps] == ["queue a", "queue b"]


def test_who_neither_waits_nor_is_waited_for_has_a_chain_of_one() -> None:
    [step] = FlowMap(HELD_UP).chain("queue /queue/idle").steps
    assert step.words == "waits on nothing, and nothing waits on it"


def test_a_destination_stands_for_its_queue_of_high_priority() -> None:
    edges = [edge("connection a", "queue /queue/x (priority 7)", 1, 2, 3.0)]
    flow_map = FlowMap({"edges": edges})
    assert flow_map.title("/queue/x") == "queue /queue/x (priority 7)"
    assert flow_map.title("/queue/xy") is None


@pytest.mark.parametrize("kind", [kind for kind in ResourceKind if kind.role is Role.DESTINATION])
def test_destinations_of_every_kind_are_found_by_their_names(kind: ResourceKind) -> None:
    flow_map = FlowMap({"edges": [edge("connection a", f"{kind} /queue/x", 1, 2, 3.0)]})
    assert flow_map.title("/queue/x") == f"{kind} /queue/x"


def test_troubles_begin_with_rings() -> None:
    told = troubles({"cycles": [{"words": "a, b"}], "bottlenecks": [{"words": "c blocks", "oldest_seconds": 3}]})
    assert told == [(None, "never resolves by itself: a, b"), (3, "c blocks")]
