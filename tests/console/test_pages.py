"""What the pages show and do, beside the map."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.console.conftest import DEADLINE_MS, Open, Picture
from tests.console.scene import BrokerProcess, Traffic, order, wait_until

pytestmark = pytest.mark.browser

PAGES = (
    ("overview", "Overview"),
    ("map", "Flow map"),
    ("destinations", "Destinations"),
    ("destination?name=/queue/orders", "/queue/orders"),
    ("messages?name=/queue/orders", "Messages"),
    ("consumers", "Consumers"),
    ("connections", "Connections"),
    ("dead-letters", "Dead letters"),
    ("logs", "Logs"),
    ("log?name=/log/audit", "/log/audit"),
    ("store", "Store"),
    ("trail", "Find a message"),
    ("config", "Configuration"),
)


def test_a_phone_shows_every_page_without_scrolling_sideways(open_page: Open, picture: Picture) -> None:
    """360 pixels wide; the map is one list with arcs."""
    page = open_page("logs", width=360, height=740)
    for address, title in PAGES:
        page.evaluate("address => { location.hash = address }", f"#/{address}")
        expect(page.locator("h1")).to_have_text(title)
        expect(page.locator("main .card").first).to_be_visible()
        if address in ("overview", "map"):
            expect(page.locator(".node.is-culprit")).to_have_count(1)
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= 360, f"{address} is {wide} wide"
        if address == "overview":
            picture(page, "phone")


def test_every_page_is_reached_from_the_bar_and_has_a_heading(open_page: Open) -> None:
    page = open_page("overview")
    for link in page.locator(".nav a").all():
        link.click()
        expect(link).to_have_attribute("aria-current", "page")
        expect(page.locator("h1")).to_have_text(link.inner_text().split("\n")[0])
        expect(page.locator("main .card").first).to_be_visible()
    expect(page.locator(".nav").get_by_text("Hubs")).to_have_count(0)  # it has none


def test_a_purge_wants_the_name_typed_in(open_page: Open, broker: BrokerProcess, traffic: Traffic) -> None:
    """A cancelled one, and one with a wrong name, leave everything."""
    name = "/queue/rubbish"
    traffic.send("web", name, ["a", "b", "c"])
    page = open_page("destinations?q=rubbish")
    page.get_by_role("button", name=f"Purge {name}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Purge")).to_be_disabled()
    dialog.get_by_role("textbox").fill("/queue/rubbis")
    expect(dialog.get_by_role("button", name="Purge")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert broker.ask("/destination", name=name)["depth_count"] == 3
    page.get_by_role("button", name=f"Purge {name}").click()
    dialog.get_by_role("textbox").fill(name)
    dialog.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("status").filter(has_text="3 messages of /queue/rubbish dropped")).to_be_visible()
    assert broker.ask("/destination", name=name)["depth_count"] == 0


def test_pause_and_resume(open_page: Open, broker: BrokerProcess, traffic: Traffic) -> None:
    name = "/queue/rest"
    traffic.send("web", name, ["a"])
    page = open_page("destinations?q=rest")
    page.get_by_role("button", name=f"Pause {name}").click()
    expect(page.locator(".tag.is-paused")).to_be_visible()
    assert broker.ask("/destination", name=name)["paused"]
    page.get_by_role("button", name=f"Resume {name}").click()
    expect(page.locator(".tag.is-paused")).to_have_count(0)
    assert not broker.ask("/destination", name=name)["paused"]


def test_limits_are_changed_and_as_configured_again(
    open_page: Open, broker: BrokerProcess, traffic: Traffic, watched: list[str]
) -> None:
    """Only what was edited is sent; a slip is explained where it happened."""
    name = "/queue/limited"
    traffic.send("web", name, ["a"])
    page = open_page(f"destination?name={name}")
    page.get_by_role("button", name=f"Change the limits of {name}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Messages", exact=False).fill("many")
    dialog.get_by_role("button", name="Change the limits").click()
    expect(dialog.get_by_role("alert")).to_contain_text("'many' is not a number of messages")
    assert "status of 400" in watched.pop()
    dialog.get_by_label("Messages", exact=False).fill("500")
    dialog.get_by_label("Bytes in memory", exact=False).last.fill("3 MiB")
    dialog.get_by_role("button", name="Change the limits").click()
    expect(page.locator(".tag", has_text="limits changed")).to_be_visible()
    assert set(broker.ask("/destination", name=name)["changed_limits"]) == {"count_max", "memory_bytes"}
    page.get_by_role("button", name=f"Change the limits of {name}").click()
    expect(dialog.get_by_label("Messages", exact=False)).to_have_value("500")
    dialog.get_by_role("combobox").select_option("configured")
    expect(dialog.get_by_role("textbox")).to_have_count(0)
    dialog.get_by_role("button", name="Change the limits").click()
    expect(page.locator(".tag", has_text="limits changed")).to_have_count(0)
    assert broker.ask("/destination", name=name)["changed_limits"] == {}


def test_dead_letters_say_why_and_one_of_them_goes_back(
    open_page: Open, broker: BrokerProcess, picture: Picture
) -> None:
    page = open_page("dead-letters", height=480)
    card = page.locator(".card", has_text="/queue/dead-letters")
    expect(card).to_contain_text("rejected or requeued too often")
    expect(card).to_contain_text("/queue/refunds")
    picture(page, "dead-letters")
    card.get_by_role("link", name="Browse").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.get_by_role("status").filter(has_text="1 message retried")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(2)
    assert broker.ask("/destination", name="/queue/refunds")["depth_count"] == 1


def test_a_message_shows_its_headers_and_its_body(open_page: Open, traffic: Traffic, picture: Picture) -> None:
    """As JSON with its structure, as text, byte by byte."""
    traffic.send("shop", "/queue/parcels", [order(number) for number in range(4)], **{"x-tenant": "north"})
    page = open_page("messages?name=/queue/parcels")
    page.locator("td.lead button").first.click()
    detail = page.get_by_label("One message")
    expect(detail.locator("dl")).to_contain_text("x-tenant")
    expect(detail.locator("pre")).to_contain_text('"customer": "Müller & Søn"')
    picture(page, "message")
    detail.get_by_role("button", name="text").click()
    expect(detail.locator("pre")).to_contain_text('{"order": 0, ')
    detail.get_by_role("button", name="hex").click()
    expect(detail.locator("pre")).to_contain_text("000000  7b 22 6f 72 64 65 72 22")


def test_a_message_is_found_by_its_id_with_where_it_has_been(
    open_page: Open, broker: BrokerProcess, traffic: Traffic, picture: Picture
) -> None:
    traffic.send("shop", "/queue/tracked", ["x"])
    taker = traffic.consume("depot", "/queue/tracked", "depot", does="keep")
    wait_until(lambda: taker.count == 1, "it is delivered")
    [row] = broker.ask("/messages", name="/queue/tracked")["items"]
    page = open_page("trail")
    page.get_by_role("searchbox").fill(row["message_id"])
    page.keyboard.press("Enter")
    expect(page.locator(".timeline")).to_contain_text("Accepted")
    expect(page.locator(".timeline")).to_contain_text("Sent to a consumer")
    picture(page, "trail")


def test_a_durable_subscription_that_nobody_comes_for_is_removed(
    open_page: Open, broker: BrokerProcess, traffic: Traffic
) -> None:
    takers = [
        traffic.consume(f"{name}-reader", "/topic/headlines", name, durable="true") for name in ("abandoned", "in-use")
    ]
    wait_until(lambda: len(broker.ask("/durables")["items"]) == 2, "both are there")
    takers[0].hang_up()
    wait_until(lambda: not all(each["attached"] for each in broker.ask("/durables")["items"]), "one has gone")
    traffic.send("press", "/topic/headlines", ["a", "b"])
    page = open_page("consumers")
    row = page.get_by_role("row").filter(has=page.get_by_text("abandoned", exact=True))
    expect(page.get_by_role("button", name="Remove in-use")).to_have_count(0)
    row.get_by_role("button", name="Remove abandoned").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 messages of /topic/headlines wait for it")
    dialog.get_by_role("button", name="Remove it").click()
    expect(page.get_by_role("status").filter(has_text="is removed; 2 messages waited for it")).to_be_visible()
    expect(page.get_by_role("button", name="Remove abandoned")).to_have_count(0)
    assert [each["name"] for each in broker.ask("/durables")["items"]] == ["in-use"]


def test_messages_are_found_by_their_correlation_id(open_page: Open, traffic: Traffic) -> None:
    traffic.send("shop", "/queue/answers", ["yes"], **{"correlation-id": "request-77"})
    page = open_page("trail")
    page.get_by_role("button", name="correlation-id").click()
    page.get_by_role("searchbox").fill("request-77")
    page.keyboard.press("Enter")
    expect(page.get_by_text("correlation-id request-77")).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("Accepted")
    page.get_by_role("searchbox").fill("request-78")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No trail of such a message.")).to_be_visible()


def test_the_store_page_tells_writes_syncs_and_what_never_had_to_be_written(
    open_page: Open, broker: BrokerProcess, traffic: Traffic
) -> None:
    traffic.send("bank", "/queue/ledger", ["a"] * 20, persistent="true")
    page = open_page("store")
    for title in ("Writes that were avoided", "Writes", "Syncs", "Pages", "Numbers"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    numbers = page.locator("dl.pairs")
    written_count = broker.ask("/store")["store"]["written_count"]
    assert written_count >= 20
    expect(numbers).to_contain_text(re.compile(rf"Messages written\s*{written_count:,}"))
    expect(page.get_by_text("acknowledged before they had to be").first).to_be_visible()


def test_a_group_of_a_log_is_moved(open_page: Open, picture: Picture) -> None:
    page = open_page("log?name=/log/audit")
    expect(page.locator(".logline .front-name")).to_contain_text("archive")
    picture(page, "log")
    page.get_by_role("button", name="Move group archive").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox").select_option("index")
    dialog.get_by_role("spinbutton").fill("3")
    dialog.get_by_role("button", name="Move the group").click()
    expect(page.get_by_role("status").filter(has_text="continues from 3")).to_be_visible()


def test_a_connection_is_closed_after_a_question(open_page: Open, broker: BrokerProcess, traffic: Traffic) -> None:
    traffic.connect("lodger")
    page = open_page("connections")
    row = page.locator("tr", has_text="lodger")
    row.get_by_role("button", name="Close").click()
    page.get_by_role("dialog").get_by_role("button", name="Close it").click()
    expect(row).to_have_count(0)
    assert "lodger" not in json.dumps(broker.ask("/connections", limit=500))


def test_a_lost_connection_is_said_and_mended(open_page: Open, watched: list[str]) -> None:
    """What is on the page stays, marked as old; when the broker is back, all goes on."""
    page = open_page("destinations")
    expect(page.get_by_text("/queue/orders")).to_be_visible()
    page.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("Connection to the broker lost, reconnecting")
    expect(page.get_by_text("/queue/orders")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_role("alert")).to_have_count(0)
    watched[:] = [trouble for trouble in watched if "ERR_INTERNET_DISCONNECTED" not in trouble]


def test_a_broker_that_says_why_it_can_not_answer_is_not_taken_for_a_lost_one(
    open_page: Open, watched: list[str]
) -> None:
    page = open_page("destinations")
    expect(page.get_by_text("/queue/orders")).to_be_visible()
    why = {"code": "too-slow", "message": "it took longer than 60 seconds", "remedy": "Ask for less."}
    page.route("**/api/v1/overview", lambda route: route.fulfill(status=503, json={"error": why}))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The broker can't answer now, trying again: It took longer than 60 seconds.")
    expect(alert).not_to_contain_text("lost")
    expect(page.get_by_text("/queue/orders")).to_be_visible()
    page.unroute_all(behavior="wait")
    expect(alert).to_have_count(0)
    watched[:] = [trouble for trouble in watched if "503" not in trouble]


def test_draining_is_said_on_every_page(open_page: Open) -> None:
    page = open_page("logs")
    expect(page.locator("h1")).to_have_text("Logs")

    def drained(route: Route) -> None:
        answer = route.fetch().json()
        answer["broker"]["draining"] = True
        route.fulfill(json=answer)

    page.route("**/api/v1/overview", drained)
    expect(page.get_by_text("Draining: nothing new is taken")).to_be_visible()
    page.unroute_all(behavior="wait")


def test_a_page_nobody_sees_asks_for_nothing(open_page: Open) -> None:
    """A hidden tab rests, and asks at once when it is seen again."""
    page = open_page("logs")
    page.clock.install()
    page.reload()
    expect(page.locator("main .card").first).to_be_visible()
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_response("**/api/v1/logs*"):
        pass  # a round of it is over
    page.evaluate(hide, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_request("**/api/v1/overview"):
        page.evaluate(hide, False)


def test_colours_can_be_chosen_and_stay(open_page: Open, picture: Picture) -> None:
    page = open_page("overview", dark=True)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator(".node.is-culprit")).to_have_count(1)
    picture(page, "dark")
    page.get_by_role("button", name="Colours: auto").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def log_in(page: Page, login: str, passcode: str) -> None:
    """Fill the form in, by keyboard."""
    page.get_by_label("Login").fill(login)
    page.get_by_label("Passcode").fill(passcode)
    page.keyboard.press("Enter")


def test_whoever_has_no_name_logs_in_first(
    open_page: Open, watched: list[str], tmp_path: Path, picture: Picture
) -> None:
    """With users configured nothing is shown before; a wrong passcode is refused in the broker's words."""
    config = """
        [security.users]
        ann = "open sesame"
        bob = "a clerk"
        [[security.permissions]]
        users = ["ann"]
        actions = ["*"]
        [[security.permissions]]
        users = ["bob"]
        actions = ["connect"]
        [[security.permissions]]
        users = ["bob"]
        actions = ["browse"]
        destinations = ["/queue/letters"]
    """
    with BrokerProcess(tmp_path, config) as broker:
        page = open_page("destinations", url=broker.url)
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        expect(page.get_by_label("Login")).to_be_focused()
        picture(page, "login")
        expect(page.locator("nav")).to_have_count(0)
        log_in(page, "ann", "sesame")
        expect(page.get_by_role("alert")).to_contain_text(
            re.compile("authentication failed", re.IGNORECASE), timeout=DEADLINE_MS
        )
        page.get_by_label("Passcode").fill("open sesame")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Destinations")
        expect(page.locator(".who")).to_contain_text("ann")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        # Who may not `admin` the broker is not led to what is not for them.
        page.evaluate("() => { location.hash = '#/map' }")
        log_in(page, "bob", "a clerk")
        expect(page.locator("h1")).to_have_text("Destinations")
        expect(page.locator(".nav a")).to_have_text(["Destinations", "Dead letters"])
        page.goto("about:blank")  # nothing is asked for any more when the broker ends
    watched[:] = [trouble for trouble in watched if "401" not in trouble and "net::ERR_CONNECTION" not in trouble]


def test_whoever_may_act_on_one_destination_has_buttons_for_that_one(
    open_page: Open, watched: list[str], tmp_path: Path
) -> None:
    """And they work; for the others, which may only be looked at, there are none."""
    config = """
        [security.users]
        bob = "a clerk"
        [[security.permissions]]
        users = ["bob"]
        actions = ["connect"]
        [[security.permissions]]
        users = ["bob"]
        actions = ["browse", "send", "create"]
        destinations = ["/queue/>"]
        [[security.permissions]]
        users = ["bob"]
        actions = ["admin"]
        destinations = ["/queue/own"]
    """
    with BrokerProcess(tmp_path, config) as broker, Traffic(broker, "bob", "a clerk") as clients:
        for name in ("/queue/own", "/queue/other"):
            clients.send("web", name, ["a"])
        page = open_page("destinations", url=broker.url)
        log_in(page, "bob", "a clerk")
        expect(page.get_by_role("link", name="/queue/other")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^(Pause|Purge) "))).to_have_count(2)
        page.get_by_role("button", name="Pause /queue/own").click()
        expect(page.locator(".tag.is-paused")).to_be_visible()
        page.evaluate("() => { location.hash = '#/destination?name=/queue/own' }")
        expect(page.get_by_role("button", name="Resume /queue/own")).to_be_visible()
        page.evaluate("() => { location.hash = '#/destination?name=/queue/other' }")
        expect(page.locator("h1")).to_have_text("/queue/other")
        expect(page.locator(".tiles")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^(Pause|Resume|Purge) "))).to_have_count(0)
        page.goto("about:blank")  # nothing is asked for any more when the broker ends
    watched[:] = [trouble for trouble in watched if "401" not in trouble and "net::ERR_CONNECTION" not in trouble]


def test_a_selector_is_shown_where_somebody_has_one(open_page: Open, traffic: Traffic) -> None:
    traffic.consume("picky", "/queue/picked", "picky-1", selector="size > 3")
    page = open_page("consumers?q=picky-1")
    expect(page.locator("tbody code")).to_have_text("size > 3")
    page = open_page("consumers?q=billing")
    expect(page.get_by_role("columnheader", name="Unacked")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Selector")).to_have_count(0)


def test_a_name_with_all_kinds_of_signs_is_found(open_page: Open, traffic: Traffic) -> None:
    """Names are in the address as what they are: `#`, `?`, `&`, `%`, `/`, `..`"""
    name = "/queue/a?b=1&c#d%2F/../e é"
    traffic.send("web", name, ["x"])
    page = open_page("destinations?q=%252F")
    page.get_by_role("link", name=name).click()
    expect(page.locator("h1")).to_have_text(name)
    assert quote("#", safe="") in page.url.partition("#")[2]


def row_of(page: Page, name: str) -> Locator:
    """The row of a list that is about that thing."""
    return page.locator("tbody tr").filter(has=page.locator("td.lead", has_text=name))


def test_lists_begin_with_what_is_blocked_and_lead_to_the_cause(open_page: Open) -> None:
    """The queue, its senders and the consumer that is the cause: each list says its part of it."""
    page = open_page("destinations")
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("/queue/orders")
    expect(first.locator("td.standing")).to_contain_text(
        re.compile("blocking.*wait, for .*because of subscription billing")
    )
    page.evaluate("() => { location.hash = '#/connections' }")
    sender = row_of(page, "web-3")
    expect(sender.locator("td.standing")).to_contain_text(re.compile("blocked by /queue/orders for .*because of"))
    expect(row_of(page, "billing-2").locator("td.standing")).to_contain_text("blocking")
    sender.locator("td.standing a").click()
    expect(page.locator("h1")).to_have_text("Consumers")
    expect(page.locator("tbody tr").first).to_contain_text("billing")


def test_a_queues_page_says_why_it_blocks_and_offers_the_remedy_at_the_cause(open_page: Open) -> None:
    """The connection to be closed is that of the consumer, not of a sender that waits."""
    page = open_page("destination?name=/queue/orders")
    trouble = page.get_by_label("What is wrong")
    expect(trouble).to_contain_text(re.compile(r"\d+ senders? waits?, for \d+ .*because of subscription billing"))
    expect(trouble).to_contain_text("What to do")
    trouble.get_by_role("button", name="Close the connection of billing-2").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Close billing-2 (127.0.0.1:")
    expect(dialog).to_contain_text("50 unacknowledged messages")
    dialog.get_by_role("button", name="Cancel").click()


def test_a_stalled_consumer_with_no_sender_waiting_is_no_bottleneck(open_page: Open, traffic: Traffic) -> None:
    """It is named, more mildly than the bottleneck that there is."""
    taker = traffic.consume("thumb", "/queue/images", "i", does="keep", prefetch_count="2")
    traffic.send("camera", "/queue/images", ["x"] * 9)
    wait_until(lambda: taker.count == 2, "it holds what it may")
    page = open_page("overview")
    line = page.locator(".verdict .line.throttled")
    expect(line).to_contain_text("Stalled consumer: subscription i of thumb")
    expect(line).to_contain_text("2 unacknowledged messages")
    expect(page.locator(".verdict .line.blocked")).to_have_count(1)
    expect(page.locator(".node.is-culprit")).to_have_count(1)


def test_charts_show_the_last_hour(open_page: Open, broker: BrokerProcess) -> None:
    """Of the broker and of a destination; the choice stays."""
    wait_until(lambda: len(known(broker.ask("/history")["series"]["depth_count"])) >= 2, "two points are there")
    page = open_page("overview")
    page.get_by_role("button", name="1 hour").click()
    expect(page.locator(".tiles .spark .line").first).to_be_visible()
    page.evaluate("() => { location.hash = '#/destination?name=/queue/mail' }")
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".chart text", has_text="60 min ago").first).to_be_visible()


def known(points: list[float | None]) -> list[float]:
    """Those that are not null."""
    return [point for point in points if point is not None]


def test_a_message_is_published_found_and_deleted(open_page: Open, broker: BrokerProcess, traffic: Traffic) -> None:
    name = "/queue/notes"
    traffic.send("web", name, ["alpha", "beta"])
    page = open_page(f"messages?name={name}")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Body").fill("gamma ray")
    dialog.get_by_label("More headers").fill("tenant:north")
    dialog.get_by_role("button", name="Publish").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("searchbox").fill("GAMMA")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("td.lead button").click()
    detail = page.get_by_label("One message")
    expect(detail.locator("dl")).to_contain_text("tenant")
    detail.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").filter(has_text="1 message of /queue/notes dropped")).to_be_visible()
    wait_until(lambda: broker.ask("/destination", name=name)["depth_count"] == 2, "one is gone")


def test_records_of_a_log_are_found_by_index(open_page: Open) -> None:
    page = open_page("log?name=/log/audit")
    card = page.get_by_label("Records", exact=True)
    expect(card.locator("tbody tr").first).to_be_visible()
    card.get_by_label("Index", exact=True).fill("2")
    card.get_by_role("button", name="Go").click()
    expect(card.locator("td.lead").first).to_have_text("2")
    expect(card.locator("tbody tr").first).to_contain_text('"order": 17')


def test_rows_of_lists_are_two_or_three_lines_on_a_phone(open_page: Open, picture: Picture) -> None:
    """390 pixels wide: the name, the state, the numbers that are not nothing; no row is a screen of its own."""
    page = open_page("destinations", width=390, height=844)
    for address in ("destinations", "connections", "consumers"):
        page.evaluate("address => { location.hash = address }", f"#/{address}")
        rows = page.locator("main .stacks tbody tr")
        expect(rows.first).to_be_visible()
        heights = rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
        assert sum(heights) / len(heights) <= 135 and max(heights) <= 190, (address, heights)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        cut = rows.evaluate_all(
            "rows => rows.flatMap(row => [...row.cells]).filter(cell => cell.scrollWidth > cell.clientWidth + 1"
            " && getComputedStyle(cell).display !== 'none').map(cell => cell.textContent)"
        )
        assert cut == [], address
    picture(page, "phone-list")


def test_a_very_long_name_breaks_and_leads_to_its_page(open_page: Open, traffic: Traffic) -> None:
    name = "/queue/" + "x" * 200 + "<b>&amp;</b>"
    traffic.send("web", name, ["a"])
    for width in (390, 1440):
        page = open_page("destinations?q=" + "x" * 30, width=width)
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator("main .card").first).to_be_visible()
        page.get_by_role("button", name=f"Purge {name}").click()
        expect(page.get_by_role("dialog")).to_contain_text(name)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        page.keyboard.press("Escape")


def slowly(page: Page, path: str, key: str, value: str) -> list[Route]:
    """Requests of that path with this in their query are kept until they are let go."""
    kept: list[Route] = []

    def handler(route: Route) -> None:
        if f"{key}={quote(value, safe='')}" in route.request.url and not kept:
            kept.append(route)
        else:
            route.continue_()

    page.route(f"**/api/v1/{path}?*", handler)
    return kept


def test_a_late_answer_about_one_message_is_not_shown_for_another(open_page: Open, traffic: Traffic) -> None:
    name = "/queue/late"
    traffic.send("web", name, ["first body", "second body"])
    page = open_page(f"messages?name={name}")
    buttons = page.locator("td.lead button")
    expect(buttons).to_have_count(2)
    first, second = buttons.nth(0), buttons.nth(1)
    kept = slowly(page, "message", "message_id", first.inner_text())
    first.click()
    wait_until(lambda: (page.wait_for_timeout(20), bool(kept))[1], "the first is asked for")
    second.click()
    expect(page.locator(".detail h2")).to_have_text(second.inner_text())
    kept[0].continue_()
    expect(page.locator(".bodyview")).to_have_text("second body")
    page.wait_for_timeout(0)


def test_a_mistake_of_a_page_is_said_and_asking_goes_on(open_page: Open, watched: list[str]) -> None:
    """Not a page that looks up to date and is not."""
    page = open_page("destinations")
    expect(page.locator("main tbody tr").first).to_be_visible()
    page.route("**/api/v1/destinations?*", lambda route: route.fulfill(json={"items": None, "total": 1}))
    expect(page.get_by_text("the console made a mistake here", exact=False)).to_be_visible()
    page.unroute_all(behavior="wait")
    expect(page.locator("main tbody tr").first).to_be_visible()
    assert watched, "it is in the browser's own log, too"
    watched[:] = [trouble for trouble in watched if not trouble.startswith("error: ")]


def test_a_refusal_after_its_dialog_was_closed_is_still_told(
    open_page: Open, traffic: Traffic, watched: list[str]
) -> None:
    name = "/queue/slow-purge"
    traffic.send("web", name, ["a"])
    page = open_page(f"destination?name={name}")
    held: list[Route] = []
    page.route("**/api/v1/actions/publish", lambda route: held.append(route))
    page.get_by_role("button", name=f"Publish to {name}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("More headers", exact=False).fill("no colon")
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is no header: write name:value")
    dialog.get_by_label("More headers", exact=False).fill("")
    dialog.get_by_role("button", name="Publish").click()
    wait_until(lambda: (page.wait_for_timeout(20), bool(held))[1], "it is asked")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    held[0].fulfill(status=409, json={"error": {"code": "no-room", "message": "no room", "remedy": "Wait."}})
    expect(page.get_by_role("status").filter(has_text="No room. Wait.")).to_be_visible()
    watched[:] = [trouble for trouble in watched if "409" not in trouble]


def test_polling_for_long_keeps_as_many_elements_and_timers(open_page: Open) -> None:
    """Thirty rounds in place of a day: neither the document nor the listeners nor the memory of charts grow."""
    page = open_page("destinations")
    expect(page.locator("main tbody tr").first).to_be_visible()
    page.evaluate(
        """() => {
          window.listeners = 0;
          const target = EventTarget.prototype;
          for (const [name, one] of [["addEventListener", 1], ["removeEventListener", -1]]) {
            const plain = target[name];
            target[name] = function (...more) {
              if (this instanceof Node) window.listeners += one;
              return plain.apply(this, more);
            };
          }
          const timers = new Set();
          const [set, clear] = [window.setTimeout, window.clearTimeout];
          window.setTimeout = (run, delay) => {
            const done = () => { timers.delete(id); run(); };
            const id = set(done, delay > 500 ? 5 : delay);
            timers.add(id);
            return id;
          };
          window.clearTimeout = (id) => { timers.delete(id); clear(id); };
          window.timersNow = () => timers.size;
          window.rounds = 0;
          const ask = window.fetch;
          window.fetch = (...more) => { window.rounds++; return ask(...more); };
        }"""
    )
    counted: list[list[int]] = []
    for at in (15, 45):
        page.wait_for_function("at => window.rounds >= at", arg=at)
        counted.append(
            page.evaluate("() => [document.querySelectorAll('*').length, window.listeners, window.timersNow()]")
        )
    (before, after) = counted
    assert abs(after[0] - before[0]) <= 40 and abs(after[1] - before[1]) <= 20 and after[2] <= 3, counted
