"""The flow map of 200 connections and 60 queues: it stands still, nothing lies over anything, paths are whole, groups
open, and what is searched is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.conftest import Open, Picture

pytestmark = pytest.mark.browser

CONNECTIONS_COUNT: Final = 200
QUEUES_COUNT: Final = 60
POLLS: Final = 3
BOXES: Final = """() => [...document.querySelectorAll(".node")].map(node => {
  const [x, y] = node.getAttribute("transform").match(/[-0-9.]+/g).map(Number);
  const [width, height] = ["width", "height"].map(name => Number(node.querySelector(".box").getAttribute(name)));
  return { id: node.dataset.id, x, y, width, height };
})"""


def node(id: str, kind: str, name: str, rate: float, **more: Any) -> dict[str, Any]:
    calm = {"state": "open", "words": "", "facts_words": "1 producer", "limiters": [], "held_bytes": 0}
    calm |= {"age_seconds": 0.0, "senders_count": 0, "senders_seconds": 0.0}
    return {"id": id, "kind": kind, "name": name, "title": name, "label": name, "rate_per_second": rate, **calm, **more}


def picture_of(round_: int) -> dict[str, Any]:
    """An answer of the broker in which each poll another queue is the busiest; one of them is blocked."""
    nodes, edges = [], []

    def flow(source: str, sink: str, rate: float, kind: str = "flow") -> None:
        edges.append(
            {"from": source, "to": sink, "kind": kind, "rate_per_second": rate, "age_seconds": 40.0, "words": ""}
        )

    def rate_of(number: int) -> float:
        return float((number * 37 + round_ * 101) % 400)

    for number in range(QUEUES_COUNT):
        blocked = {"state": "blocked", "senders_count": 1, "senders_seconds": 40.0} if number == 7 else {}
        name = f"/queue/team{number % 6}.jobs{number}"
        nodes.append(node(f"q{number}", "destination", name, rate_of(number), **blocked))
        state = {"state": "throttled", "senders_count": 1, "senders_seconds": 40.0} if number == 7 else {}
        nodes.append(node(f"s{number}", "subscription", f"1 of worker-{number}", rate_of(number), **state))
        flow(f"q{number}", f"s{number}", rate_of(number))
    flow("q7", "s7", 0.0, "wait")
    for number in range(CONNECTIONS_COUNT):
        nodes.append(node(f"c{number}", "connection", f"web-{number}", rate_of(number)))
        flow(f"c{number}", f"q{number % QUEUES_COUNT}", rate_of(number))
    nodes.sort(key=lambda one: (one["senders_seconds"] == 0, -one["rate_per_second"]))
    return {"at_seconds": 1.0, "nodes": nodes, "edges": edges, "omitted": {"nodes_count": 0, "edges_count": 0}}


@pytest.fixture
def large(open_page: Open) -> Iterator[Page]:
    page = open_page("logs", moving=True)
    rounds = count()
    page.route("**/api/v1/map*", lambda route: answer(route, next(rounds)))
    page.evaluate("() => { location.hash = '#/map' }")
    expect(page.locator(".node").first).to_be_visible()
    yield page
    page.unroute_all(behavior="wait")


def answer(route: Route, round_: int) -> None:
    route.fulfill(status=200, content_type="application/json", body=json.dumps(picture_of(round_)))


def next_poll(page: Page) -> list[dict[str, Any]]:
    """The boxes after another answer of the broker, which is asked at once, as when the page comes into sight."""
    for _ in range(2):  # with the second one, the one before is drawn
        with page.expect_response("**/api/v1/map*"):
            page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    found: list[dict[str, Any]] = page.evaluate(BOXES)
    return found


def over_each_other(boxes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (a["id"], b["id"])
        for at, a in enumerate(boxes)
        for b in boxes[at + 1 :]
        if a["x"] < b["x"] + b["width"]
        and b["x"] < a["x"] + a["width"]
        and a["y"] < b["y"] + b["height"]
        and b["y"] < a["y"] + a["height"]
    ]


def test_it_stands_still_and_nothing_lies_over_anything(large: Page, picture: Picture) -> None:
    """Though each second others are the busiest."""
    first = {box["id"]: box for box in next_poll(large)}
    assert 10 <= len(first) <= 75
    assert {"q7", "s7"} <= set(first), "what is blocked is always there"
    picture(large, "large-map")
    for _ in range(POLLS):
        boxes = next_poll(large)
        assert over_each_other(boxes) == []
        assert {box["id"]: box for box in boxes} == first
    ends = large.evaluate("() => document.querySelectorAll('.edges .edge').length")
    assert ends >= len(first) / 2, "most of what is shown belongs to a path"


def test_a_group_opens_and_closes(large: Page) -> None:
    group = large.locator(".node", has_text="team3.* (10)")
    expect(group).to_have_count(1)
    group.click()
    expect(group).to_have_count(0)
    expect(large.locator(".node", has_text="team3.jobs3")).not_to_have_count(0)
    assert over_each_other(large.evaluate(BOXES)) == []
    large.get_by_role("button", name="Close groups").click()
    expect(group).to_have_count(1)


def test_a_search_shows_a_thing_with_its_whole_path(large: Page) -> None:
    """The queue, its senders and its consumer, and no others."""
    large.get_by_role("searchbox", name="Find in the map").fill("team5.jobs11")
    expect(large.locator(".node")).to_have_count(6)
    names = {box["id"] for box in large.evaluate(BOXES)}
    assert names == {"q11", "s11", "c11", "c71", "c131", "c191"}
    large.get_by_role("searchbox", name="Find in the map").fill("nothing like it")
    expect(large.get_by_text("Nothing on the map has")).to_be_visible()
