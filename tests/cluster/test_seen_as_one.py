"""Reports of hubs as one: rows have their hub, clients are one row, chains go on from hub to hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sluiceway.cluster.lines import facts_in_steps, lines_in_steps
from sluiceway.cluster.seen_as_one import hub_order, merged_in_steps
from sluiceway.flow.graph import at_once

Report = dict[str, Any]


def edge(source: str, sink: str, details: str = "memory full, 41 s", **facts: Any) -> Report:
    return {
        "kind": "block", "source_id": 1, "source": source, "sink_id": 2, "sink": sink, "flow": "", "age_seconds": 41.0,
        "details": details, **facts,
    }  # fmt: skip


def chain(*edges: Report, end: str) -> Report:
    waits = ", ".join(f"waits on {each['sink']} ({each['details']})" for each in edges)
    return {
        "source_id": 1, "source": edges[0]["source"], "flow": "", "edges": list(edges), "other_count": 0,
        "cyclic": False, "truncated": False, "words": f"{edges[0]['source']} {waits}{end}",
    }  # fmt: skip


def report(**lists: Any) -> Report:
    return {
        "broker": {"name": "shop", "version": "1", "uptime_seconds": 5.0, "rss_bytes": 10, "listeners": ["stomp://a:1"]},
        "hub": {"name": "?", "pid": 1, "connections_count": 1},
        "memory": {"used_bytes": 1, "capacity_bytes": 4, "short": False, "largest": []},
        "store": None,
        "chains": [], "bottlenecks": [], "stalled": [], "edges": [], "resources": [], "omitted": {},
        **lists,
    }  # fmt: skip


def merged(reports: Mapping[str, Report], missing: Mapping[str, str] | None = None, **options: Any) -> Report:
    options = {"asked": min(reports), "rows_max": 1000, **options}
    return at_once(merged_in_steps(reports, missing or {}, **options))


def words(rows: list[Report]) -> list[str]:
    return [row["words"] for row in rows]


LINK = edge("connection web-3 (10.0.0.7:1)", "link to other hubs from web-3 (10.0.0.7:1)")
AT_OWNER = (
    edge("connection web-3 (10.0.0.7:1 by hub-1)", "queue /queue/orders"),
    edge("queue /queue/orders", "subscription 1 of billing-2 (10.0.0.8:2 by hub-1)", "window full, 41 s"),
)


def test_a_chain_goes_on_at_the_hub_of_the_destination_and_back_at_that_of_the_consumer() -> None:
    itself = edge("connection web-3 (10.0.0.7:1 by hub-1)", "connection web-3 (10.0.0.7:1 by hub-1)", age_seconds=99.0)
    seen = merged(
        {
            "hub-1": report(chains=[chain(LINK, end="")]),
            "hub-2": report(chains=[chain(itself, end=""), chain(*AT_OWNER, end=": 3 unacked, idle 41 s")]),
        }
    )
    assert words(seen["chains"])[0] == (
        "connection web-3 (10.0.0.7:1) on hub-1 waits on queue /queue/orders on hub-2 (memory full, 41 s), "
        "waits on subscription 1 of billing-2 (10.0.0.8:2) on hub-1 (window full, 41 s): 3 unacked, idle 41 s"
    )
    assert len(seen["chains"]) == 1
    assert [each["sink"] for each in seen["chains"][0]["edges"]] == [
        "queue /queue/orders on hub-2",
        "subscription 1 of billing-2 (10.0.0.8:2) on hub-1",
    ]


def test_a_client_that_waits_for_a_hub_that_is_missing_is_told_of_it() -> None:
    seen = merged({"hub-1": report(chains=[chain(LINK, end="")])}, {"hub-2": "it has not answered within 1 s"})
    assert words(seen["chains"]) == [
        "connection web-3 (10.0.0.7:1) on hub-1 waits on link to other hubs from web-3 (10.0.0.7:1) on hub-1 "
        "(memory full, 41 s); hub-2 is missing: it has not answered within 1 s"
    ]
    assert [(hub["name"], hub["missing"]) for hub in seen["hubs"]] == [
        ("hub-1", None),
        ("hub-2", "it has not answered within 1 s"),
    ]


def test_a_client_whose_destinations_nobody_blocks_at_the_owner_yet_waits_for_its_link() -> None:
    seen = merged({"hub-1": report(chains=[chain(LINK, end="")]), "hub-2": report()})
    assert words(seen["chains"]) == [
        "connection web-3 (10.0.0.7:1) on hub-1 waits on link to other hubs from web-3 (10.0.0.7:1) on hub-1 "
        "(memory full, 41 s)"
    ]


def test_a_chain_that_ends_at_the_output_of_a_proxy_session_says_what_its_client_has() -> None:
    wait = edge("topic /topic/prices", "outbound desk (10.0.0.9:3 by hub-1)")
    outbound = {"kind": "outbound", "name": "desk (10.0.0.9:3)", "resource_id": 7, "facts_words": "1.0 MiB waiting"}
    seen = merged({"hub-1": report(resources=[outbound]), "hub-2": report(chains=[chain(wait, end="")])})
    assert words(seen["chains"]) == [
        "topic /topic/prices on hub-2 waits on outbound desk (10.0.0.9:3) on hub-1 (memory full, 41 s), "
        "and its client on hub-1 has 1.0 MiB waiting"
    ]


def test_the_root_cause_is_behind_the_link_and_not_the_link() -> None:
    at_link = {
        "sink_id": 2, "sink": LINK["sink"], "waiting_count": 1, "oldest_seconds": 41.0, "waits_itself": False,
        "words": f"{LINK['sink']} blocks 1 sender, for 41 s",
    }  # fmt: skip
    at_owner = {
        **at_link,
        "sink": AT_OWNER[1]["sink"],
        "waiting_count": 2,
        "words": f"{AT_OWNER[1]['sink']} blocks 1 sender, for 41 s: 3 unacked",
    }
    seen = merged(
        {
            "hub-1": report(chains=[chain(LINK, end="")], bottlenecks=[at_link]),
            "hub-2": report(chains=[chain(*AT_OWNER, end="")], bottlenecks=[at_owner]),
        }
    )
    assert [row["words"] for row in seen["bottlenecks"] if not row["waits_itself"]] == [
        "subscription 1 of billing-2 (10.0.0.8:2) on hub-1 blocks 1 sender, for 41 s: 3 unacked"
    ]


def test_a_client_is_one_row_with_what_its_proxy_sessions_hold() -> None:
    own = {"peer": "10.0.0.7:1", "session": "hub-1~a", "unsettled_count": 1, "in_bytes": 9, "waiting_on": None}
    proxy = {"peer": "10.0.0.7:1 by hub-1", "session": "hub-2~b", "unsettled_count": 2, "waiting_on": "its output"}
    stranger = {"peer": "10.0.0.9:1 by hub-1", "session": "hub-2~c", "unsettled_count": 4}
    rows = merged({"hub-1": report(connections=[own]), "hub-2": report(connections=[proxy, stranger])})["connections"]
    by_peer = {row["peer"]: row for row in rows}
    assert by_peer["10.0.0.7:1"]["unsettled_count"] == 3
    assert by_peer["10.0.0.7:1"]["session"] == "hub-1~a"
    assert by_peer["10.0.0.7:1"]["waiting_on"] == "its output on hub-2"
    assert by_peer["10.0.0.9:1"]["hub"] == "hub-1"  # where it is, though its own row is in another part
    assert len(rows) == 2


def test_a_queue_named_like_a_client_of_another_hub_stays_where_it_is() -> None:
    wait = edge("queue /queue/x by hub-1", "store")
    seen = merged({"hub-1": report(), "hub-2": report(chains=[chain(wait, end="")])})
    assert words(seen["chains"]) == ["queue /queue/x by hub-1 on hub-2 waits on store on hub-2 (memory full, 41 s)"]


def test_rows_are_the_busiest_of_all_hubs_and_the_rest_is_counted() -> None:
    rows = {hub: [{"name": f"/queue/{hub}.{n}", "depth_count": n} for n in range(3)] for hub in ("hub-1", "hub-2")}
    seen = merged(
        {hub: report(destinations=some, omitted={"destinations": 5}) for hub, some in rows.items()}, rows_max=3
    )
    assert [(row["hub"], row["depth_count"]) for row in seen["destinations"]] == [
        ("hub-1", 2), ("hub-2", 2), ("hub-1", 1),
    ]  # fmt: skip
    assert seen["omitted"]["destinations"] == 13


def test_a_page_keeps_the_order_of_hubs() -> None:
    rows = {hub: [{"name": f"/queue/{n}", "depth_count": n} for n in range(2)] for hub in ("hub-1", "hub-2")}
    page = {hub: {"destinations": some, "omitted": {}} for hub, some in rows.items()}
    seen = merged(page, is_page=True)
    assert [(row["hub"], row["depth_count"]) for row in seen["destinations"]] == [
        ("hub-1", 0), ("hub-1", 1), ("hub-2", 0), ("hub-2", 1),
    ]  # fmt: skip
    assert "hubs" not in seen


def test_what_is_no_list_is_added_up_and_the_worst_store_is_told() -> None:
    full = {"name": "queue /queue/a", "used_bytes": 7}
    seen = merged(
        {
            "hub-1": report(
                memory={"used_bytes": 3, "capacity_bytes": 10, "short": False, "largest": []},
                store={"state": "ok", "error": None, "written_count": 3, "longest_write_seconds": 0.5},
                shards=[{"shard": 0, "state": "ok"}, {"shard": 1, "state": "away", "why": "it is on hub-2"}],
                dispatcher={"dispatches_count": 2, "longest_dispatch_seconds": 0.1, "ready_count": [1, 0]},
            ),
            "hub-2": report(
                memory={"used_bytes": 4, "capacity_bytes": 10, "short": True, "largest": [full]},
                store={"state": "failing", "error": "no space", "written_count": 4, "longest_write_seconds": 0.2},
                shards=[{"shard": 0, "state": "away", "why": "it is on hub-1"}, {"shard": 1, "state": "ok"}],
                dispatcher={"dispatches_count": 5, "longest_dispatch_seconds": 0.3, "ready_count": [1, 2]},
            ),
        }
    )
    assert seen["memory"]["used_bytes"] == 7 and seen["memory"]["short"]
    assert seen["memory"]["largest"] == [{"name": "queue /queue/a on hub-2", "used_bytes": 7}]
    assert seen["store"] == {"state": "failing", "error": "no space", "written_count": 7, "longest_write_seconds": 0.5}
    assert seen["shards"] == [{"shard": 0, "state": "ok", "hub": "hub-1"}, {"shard": 1, "state": "ok", "hub": "hub-2"}]
    assert seen["dispatcher"] == {"dispatches_count": 7, "longest_dispatch_seconds": 0.3, "ready_count": [2, 2]}
    assert seen["broker"]["connections_count"] == 2 and seen["broker"]["rss_bytes"] == 20


def test_a_shard_of_a_missing_hub_is_told_as_the_asked_hub_knows_it() -> None:
    away = {"shard": 1, "state": "away", "why": "it is on hub-2"}
    seen = merged({"hub-1": report(shards=[{"shard": 0, "state": "ok"}, away])}, {"hub-2": "there is no link to it"})
    assert seen["shards"][1] == {**away, "hub": None}


def test_ids_of_resources_are_of_one_hub_only() -> None:
    one = {"kind": "queue", "name": "/queue/a", "resource_id": 5}
    seen = merged({"hub-1": report(resources=[one]), "hub-2": report(resources=[one])})
    assert len({row["resource_id"] for row in seen["resources"]}) == 2


def test_hubs_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["hub-10", "hub-2", "eu"], key=hub_order) == ["eu", "hub-2", "hub-10"]


@pytest.mark.parametrize("facts", [{}, {"a": 1, "b": [], "c": [1, {"d": [2]}], "e": {"f": [3]}, "g": ["\n", "é"]}])
def test_lines_come_back_as_they_were(facts: Report) -> None:
    assert at_once(facts_in_steps(at_once(lines_in_steps(facts)))) == facts


def test_lines_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="no object"):
        at_once(facts_in_steps(b"[1]"))
