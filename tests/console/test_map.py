"""The flow map leads from who stands still to who is the cause: by mouse, by keyboard, without colours."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Open, Picture

pytestmark = pytest.mark.browser


def node(page: Page, name: str) -> object:
    return page.locator(".node", has=page.locator(".title", has_text=re.compile(f"^{re.escape(name)}$")))


def test_a_click_follows_the_chain_to_the_culprit_in_words(open_page: Open, picture: Picture) -> None:
    """web-3 waits on /queue/orders, which waits on billing: since when, why, and what to do."""
    page = open_page("map")
    node(page, "web-3").click()  # type: ignore[attr-defined]
    steps = page.locator(".panel .chain li")
    expect(steps).to_have_count(3)
    expect(steps.nth(0)).to_contain_text("connection web-3")
    expect(steps.nth(1)).to_contain_text(re.compile(r"queue /queue/orders.*blocking for \d+ (ms|s|min).*memory full"))
    expect(steps.nth(2)).to_contain_text(re.compile(r"subscription billing of billing-2.*50 unacked, idle \d+"))
    expect(steps.nth(2)).to_contain_text("root cause")
    expect(page.locator(".panel .remedy")).to_contain_text("unacknowledged")
    expect(page.locator(".node.on-chain")).to_have_count(3)
    expect(page.locator(".node.is-culprit .title")).to_have_text("billing of billing-2")
    picture(page, "flow-map")


def test_the_keyboard_alone_gets_to_the_culprit_and_back(open_page: Open) -> None:
    """Tab comes to the worst node, arrows go along edges, Enter opens and then follows, Escape closes."""
    page = open_page("map")
    expect(page.locator(".node.is-culprit")).to_have_count(1)
    focused = page.locator(".node:focus")
    for _ in range(25):
        page.keyboard.press("Tab")
        if focused.count():
            break
    expect(focused).to_have_class(re.compile("is-blocked"))
    node(page, "web-1").focus()  # type: ignore[attr-defined]
    page.keyboard.press("ArrowRight")
    expect(focused).to_contain_text("/queue/orders")
    page.keyboard.press("ArrowLeft")
    expect(focused).to_contain_text("web-")
    page.keyboard.press("Enter")
    expect(page.locator(".panel .chain li")).to_have_count(3)
    page.keyboard.press("Enter")
    expect(focused).to_contain_text("/queue/orders")
    page.keyboard.press("Enter")
    expect(focused).to_contain_text("billing of billing-2")
    outline = focused.locator(".box").evaluate("box => getComputedStyle(box).strokeWidth")
    assert float(outline.removesuffix("px")) > 1, "where the focus is can be seen"
    page.keyboard.press("Escape")
    expect(page.locator(".panel")).to_have_count(0)
    expect(focused).to_have_count(1)


def test_the_skip_link_comes_first_and_leads_to_the_content(open_page: Open) -> None:
    page = open_page("destinations")
    expect(page.get_by_text("/queue/orders")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("main:focus")).to_have_count(1)


def test_states_differ_by_shape_and_line_not_by_colour_alone(open_page: Open) -> None:
    page = open_page("map")
    expect(page.locator(".node.is-culprit")).to_have_count(1)
    shapes = page.locator(".map-foot .sample .mark").evaluate_all("marks => marks.map(mark => mark.innerHTML)")
    assert len(set(shapes)) == len(shapes) == 4
    dashes = "path => getComputedStyle(path).strokeDasharray"
    block = page.locator(".edges .edge.block").first.evaluate(dashes)
    flow = page.locator(".edges .edge.flow:not(.is-throttled)").first.evaluate(dashes)
    assert block != "none" and flow == "none"
    # Against the flow: the arrow's head is at the one who waits, left of whom it waits for.
    assert page.locator(".edge-head.block").count() == page.locator(".edges .edge.block").count() >= 3
    expect(page.locator(".edge-age.block").first).to_have_text(re.compile(r"^\d+ (ms|s|min)$"))


def test_who_wants_no_movement_gets_none(open_page: Open) -> None:
    """prefers-reduced-motion."""
    for moving, name in ((False, "none"), (True, "against")):
        page = open_page("map", moving=moving)
        expect(page.locator(".edges .edge.block").first).to_be_attached()
        moves = page.locator(".edges .edge.block").first.evaluate("path => getComputedStyle(path).animationName")
        assert moves == name


def test_the_overview_says_what_is_wrong_before_anything_else(open_page: Open, picture: Picture) -> None:
    page = open_page("overview")
    first = page.locator("main > *").first
    expect(first.locator(".said").first).to_have_text(
        re.compile(r"^subscription billing of billing-2 blocks \d+ senders?, for \d+ (s|min)$")
    )
    expect(first).to_contain_text("What to do: Client")
    expect(page.locator("#alarm[aria-live=polite]")).to_contain_text("Bottleneck: subscription billing")
    expect(page.locator(".node.is-culprit")).to_have_count(1)
    picture(page, "overview")
    first.get_by_role("button", name=re.compile("Show")).first.click()
    expect(page.locator(".panel")).to_contain_text("billing of billing-2")


MANY = """async () => {
  const { laidOut } = await import("/static/js/map_layout.js");
  const { crossings } = await import("/static/js/map_order.js");
  const node = (id, kind) => ({ id, kind, name: id, title: id, state: "open", limiters: [] });
  const nodes = [], edges = [];
  // Given in an order that crosses as much as it can.
  for (let i = 0; i < 50; i++) {
    nodes.push(node(`c${i}`, "connection"), node(`q${49 - i}`, "destination"), node(`s${i}`, "subscription"));
    edges.push({ from: `c${i}`, to: `q${i}`, kind: "flow" }, { from: `q${i}`, to: `s${i}`, kind: "flow" });
  }
  const links = edges.map((edge) => [edge.from, edge.to]);
  const first = laidOut({ nodes, edges, omitted: {} }, 1100, null);
  // The next answer: other numbers, in another order, one less and one more.
  const turned = [...nodes].reverse().filter((one) => one.id !== "s7");
  const left = edges.filter((edge) => edge.to !== "s7").reverse();
  const second = laidOut({ nodes: turned, edges: left, omitted: {} }, 1100, first);
  const third = laidOut({ nodes: [...turned, node("s50", "subscription")], edges: left, omitted: {} }, 1100, second);
  const rest = first.stacks[2].filter((id) => id !== "s7");
  const places = [...first.nodes.values()];
  const touching = places.filter((a) => places.some((b) => a !== b && a.x === b.x && Math.abs(a.y - b.y) < a.height));
  return {
    crossings: crossings(first.stacks, links),
    same: JSON.stringify(rest) === JSON.stringify(second.stacks[2]),
    kept: JSON.stringify(third.stacks[2].filter((id) => id !== "s50")) === JSON.stringify(rest),
    touching: touching.length,
  };
}"""


def test_the_layout_crosses_little_and_stands_still(open_page: Open) -> None:
    """The same nodes stay in their order, whatever order they come in; who goes or comes moves nobody else."""
    found = open_page("logs").evaluate(MANY)
    assert found == {"crossings": 0, "same": True, "kept": True, "touching": 0}


def test_the_map_zooms_and_moves_by_button_key_and_drag(open_page: Open) -> None:
    """The node that has the focus is always in the window; a drag is no click."""
    page = open_page("map")
    canvas = page.locator("svg.canvas")
    expect(canvas).to_be_visible()

    def part() -> list[float]:
        return [float(number) for number in (canvas.get_attribute("viewBox") or "").split()]

    whole = part()
    for _ in range(2):
        page.get_by_role("button", name="Zoom in").click()
    expect(canvas).to_have_class(re.compile("zoomed"))
    near = part()
    assert near[2] < whole[2] / 1.9 and near[0] > 0
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 320, box["y"] + 140, steps=4)
    page.mouse.up()
    assert part()[0] < near[0], "what was seen moved to the right"
    expect(page.locator(".panel")).to_have_count(0)
    page.locator(".node[tabindex='0']").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        inside = page.evaluate(
            """() => {
              const [node, canvas] = [document.activeElement, document.querySelector("svg.canvas")];
              const [a, b] = [node.querySelector(".box").getBoundingClientRect(), canvas.getBoundingClientRect()];
              return a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
            }"""
        )
        assert inside, key
    before = part()
    page.keyboard.press("Shift+ArrowLeft")
    assert part()[0] <= before[0]
    page.keyboard.press("0")
    expect(canvas).not_to_have_class(re.compile("zoomed"))
    assert part() == whole
    page.get_by_role("button", name="Show all of the map").click()
    expect(canvas).to_have_class(re.compile("zoomed"))
    assert part()[3] >= whole[3] - 1
