"""Answers become rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.top.course import Age
from sluiceway.top.picture import Painter, View
from tests.top.reports import HELD_UP, destination, report


def rows(painter: Painter, answer: dict[str, Any], view: View = View.DESTINATIONS) -> dict[str, Any]:
    return {str(row["key"]): row for row in painter.paint(answer).views[view]}


def test_the_head_adds_up_destinations_and_logs() -> None:
    painter = Painter()
    logs = [{"log": "/log/l", "next": 0, "groups": [{"group": "g", "front": 0}]}]
    painter.paint(report(1.0, destinations=[destination("/queue/a")], logs=logs))
    logs = [{"log": "/log/l", "next": 10, "groups": [{"group": "g", "front": 6}]}]
    head = painter.paint(report(3.0, destinations=[destination("/queue/a", added=30, settled=10)], logs=logs)).head
    assert (head.in_per_second, head.out_per_second) == (20.0, 8.0)
    assert (head.name, head.version, head.state) == ("b", "1", "ok")


def test_a_broker_that_was_started_anew_has_no_rates_until_the_second_answer() -> None:
    """Otherwise counters of two lives would be compared."""
    painter = Painter()
    painter.paint(report(100.0, destinations=[destination("/queue/a", added=10)]))
    painter.paint(report(101.0, destinations=[destination("/queue/a", added=20)]))
    again = report(300.0, uptime_seconds=2.0, destinations=[destination("/queue/a", added=1000)])
    picture = painter.paint(again)
    assert picture.head.in_per_second is None
    assert picture.views[View.DESTINATIONS][0]["in_per_second"] is None


def test_our_own_reply_queue_is_not_shown_and_not_counted() -> None:
    painter = Painter()
    ours = "/remote-temp-queue/89713a7b5d61b6b0.sluiceway-top"
    painter.paint(report(1.0, destinations=[destination(ours)]))
    picture = painter.paint(report(2.0, destinations=[destination(ours, added=1, settled=1)]))
    assert picture.views[View.DESTINATIONS] == ()
    assert picture.head.in_per_second == 0.0


def test_the_age_that_the_broker_tells_goes_over_a_guess() -> None:
    painter = Painter()
    painter.paint(report(1.0, destinations=[destination("/queue/a", added=5)]))
    told = destination("/queue/a", added=5, oldest_seconds=77.0)
    assert rows(painter, report(2.0, destinations=[told]))["/queue/a"]["oldest"] == Age(77.0)


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        (destination("/queue/a"), destination("/queue/a"), "idle"),
        (destination("/queue/a"), destination("/queue/a", added=9, settled=9), "flows"),
        (destination("/queue/a"), destination("/queue/a", added=9, settled=3), "grows"),
        (destination("/queue/a", added=99), destination("/queue/a", added=99, settled=9), "drains"),
        (destination("/queue/a"), destination("/queue/a", added=9, subscriptions_count=0), "no reader"),
        (destination("/queue/a"), destination("/queue/a", added=9, paused=True), "paused"),
    ],
)
def test_a_destination_says_its_state_in_a_word(first: Any, second: Any, state: str) -> None:
    painter = Painter()
    painter.paint(report(1.0, destinations=[first]))
    assert rows(painter, report(2.0, destinations=[second]))["/queue/a"]["state"] == state


def test_who_holds_others_up_is_full_and_who_waits_is_blocked() -> None:
    picture = Painter().paint(report(50.0, **HELD_UP))
    assert picture.views[View.DESTINATIONS][0]["state"] == "full"
    connection = picture.views[View.CONNECTIONS][0]
    assert (connection["state"], connection["waiting_on"]) == ("blocked", "queue /queue/orders")
    subscription = picture.views[View.SUBSCRIPTIONS][0]
    assert (subscription["state"], subscription["peer"], subscription["unacked"]) == ("full", "peer-c", 500)
    assert subscription["sources"] == "queue /queue/orders"
    assert picture.head.state == "blocked"


def test_short_waits_are_no_trouble() -> None:
    short = {**HELD_UP, "edges": [], "bottlenecks": [{"words": "x blocks 1 flow", "oldest_seconds": 0.01}]}
    assert Painter().paint(report(50.0, **short)).head.state == "ok"


def test_a_store_that_fails_is_the_state_of_the_broker() -> None:
    picture = Painter().paint(report(5.0, store={"state": "disk low", "written_count": 3}))
    assert picture.head.state == "store disk low"
    assert {row["key"]: row["value"] for row in picture.views[View.STORE]} == {"state": "disk low", "written_count": 3}


def test_counters_of_the_store_have_rates() -> None:
    painter = Painter()
    painter.paint(report(1.0, store={"syncs_count": 10, "size_bytes": 5}))
    found = rows(painter, report(3.0, store={"syncs_count": 30, "size_bytes": 9}), View.STORE)
    assert (found["syncs_count"]["per_second"], found["size_bytes"]["per_second"]) == (10.0, None)


def test_a_group_says_how_far_it_is_behind_and_when_it_has_caught_up() -> None:
    painter = Painter()

    def logs(next_index: int, front: int) -> list[dict[str, Any]]:
        lag = next_index - front
        group = {"group": "g", "front": front, "lag": lag, "lag_seconds": 12.0, "consumers": 1}
        return [{"log": "/log/l", "next": next_index, "size": next_index, "groups": [group]}]

    painter.paint(report(1.0, logs=logs(100, 0)))
    row = rows(painter, report(2.0, logs=logs(110, 30)), View.GROUPS)["/log/l group g"]
    assert (row["state"], row["oldest"], row["drain_seconds"]) == ("catches up", Age(12.0), 4.0)


plain = st.none() | st.booleans() | st.integers(-10, 10**9) | st.floats(allow_nan=False) | st.text(max_size=8)
KEYS = """taken_at broker destinations connections logs groups store resources edges chains cyclic bottlenecks cycles
name peer log next front lag facts controllers limiter kind source_id sink_id age_seconds added_count depth_count
uptime_seconds"""
keys = st.sampled_from(KEYS.split())


small = st.dictionaries(keys, plain, max_size=2)
row = st.dictionaries(keys, plain | small | st.lists(st.dictionaries(keys, plain | small, max_size=2)), max_size=5)


@given(st.lists(st.dictionaries(keys, plain | row | st.lists(row, max_size=3), max_size=8), max_size=3))
@settings(max_examples=40, deadline=None)
def test_no_answer_is_so_strange_that_it_breaks_the_picture(answers: list[dict[str, Any]]) -> None:
    """Brokers may be of another version, or something else that answers with JSON."""
    painter = Painter()
    for answer in answers:
        picture = painter.paint(answer)
        for view in View:
            for row in picture.views[view]:
                assert picture.chain(row).steps
