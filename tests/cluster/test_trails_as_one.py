"""Trails that several hubs tell of, as one list."""

from __future__ import annotations

from typing import Any

from sluiceway.cluster.trails_as_one import trails_in_steps
from sluiceway.flow.graph import at_once
from sluiceway.trails.answering import ENTRIES_MAX

HUBS = ["hub-1", "hub-2", "hub-22"]


def entry(at_ms: int, what: str, detail: str) -> dict[str, Any]:
    return {"at_ms": at_ms, "what": what, "where": "/queue/orders", "detail": detail}


def trail(message_id: str, *entries: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {
        "message_id": message_id, "correlation_id": None, "destination": "/queue/orders", "words": "It is gone.",
        "complete": True, "omitted_count": 0, "place": None, "entries": list(entries), **facts,
    }  # fmt: skip


def place(holder: str) -> dict[str, Any]:
    return {"queue": "/queue/orders", "on_disk": False, "holder": holder, "needed_by": [holder], "needed_by_count": 1}


def joined(limit: int = 20, **found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return at_once(trails_in_steps({hub.replace("_", "-"): each for hub, each in found.items()}, HUBS, limit))


def test_names_of_clients_say_their_hub() -> None:
    holder = "1 of billing (10.0.0.8:2 by hub-22)"
    (found,) = joined(
        hub_2=[
            trail(
                "m-1",
                entry(1, "accepted", "from 10.0.0.7:1 by hub-1"),
                entry(2, "sent", f"to {holder}"),
                words=f"It is in /queue/orders; not acknowledged by {holder} since 4 s.",
                place=place(holder),
            )
        ]
    )
    shown = "1 of billing (10.0.0.8:2) on hub-22"
    assert [each["detail"] for each in found["entries"]] == ["from 10.0.0.7:1 on hub-1, over its link", f"to {shown}"]
    assert found["words"] == f"It is in /queue/orders; not acknowledged by {shown} since 4 s."
    assert (found["place"]["holder"], found["place"]["needed_by"]) == (shown, [shown])


def test_a_name_that_a_client_chose_is_no_hub() -> None:
    words = "It was acknowledged by hub-1 of 10.0.0.7:1."
    (found,) = joined(hub_2=[trail("m-1", entry(1, "acked", "by hub-1 of 10.0.0.7:1"), words=words)])
    assert found["words"] == words and found["entries"][0]["detail"] == "by hub-1 of 10.0.0.7:1"


def test_what_two_hubs_know_of_a_message_is_one_trail_that_ends_where_the_message_is() -> None:
    (found,) = joined(
        hub_1=[trail("m-1", entry(1, "accepted", "a"), entry(9, "stored", "b"), correlation_id="c", omitted_count=1)],
        hub_2=[trail("m-1", entry(5, "sent", "c"), complete=False, words="It is here.", place=place("x"))],
    )
    assert [(each["at_ms"], each["hub"]) for each in found["entries"]] == [(1, "hub-1"), (5, "hub-2"), (9, "hub-1")]
    assert (found["hub"], found["words"], found["complete"], found["omitted_count"]) == (
        "hub-2",
        "It is here.",
        True,
        1,
    )
    assert found["correlation_id"] == "c"


def test_the_latest_of_all_hubs_are_told_within_the_bound() -> None:
    many = [entry(10, "sent", "x")] * (ENTRIES_MAX - 1)
    found = joined(
        2,
        hub_1=[trail("m-1", entry(1, "accepted", "a")), trail("m-4", *many)],
        hub_2=[trail("m-2", entry(2, "accepted", "b"), entry(3, "sent", "b"))],
    )
    assert [each["message_id"] for each in found] == ["m-2", "m-4"]
    assert [(len(each["entries"]), each["omitted_count"]) for each in found] == [(1, 1), (ENTRIES_MAX - 1, 0)]
