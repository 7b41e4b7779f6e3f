"""The drawing of a broker's report, also of one that lacks what we know or holds what we don't."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sluiceway.cli.stat_view import bottleneck_line, render
from sluiceway.flow import FlowManager

KEYS = (
    "broker", "destinations", "connections", "dispatcher", "chains", "bottlenecks", "cycles", "used_bytes", "name",
    "words", "depth_count", "ready_count", "uptime_seconds", "login", "longest_dispatch_seconds",
)  # fmt: skip


def drawn(report: Mapping[str, Any], *, rows_max: int | None = 20, own_session: str | None = None) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=200), rows_max=rows_max, own_session=own_session)
    return out.getvalue()


def test_an_idle_broker_is_said_to_be_fine() -> None:
    assert "nothing is blocked" in drawn({})
    assert bottleneck_line({}) == "nothing is blocked"


def test_a_real_snapshot_of_the_flow_map_is_drawn() -> None:
    """The report is this dictionary with more keys beside it."""
    assert "nothing is blocked" in drawn(FlowManager(lambda: 0.0).snapshot().to_dict())


def test_a_cycle_is_worse_than_a_bottleneck() -> None:
    line = bottleneck_line({"cycles": [{"words": "cycle: a waits on b, waits on a"}], "bottlenecks": [{"words": "b"}]})
    assert "cycle: a waits on b" in line


def test_a_client_that_holds_others_up_is_named_with_a_remedy() -> None:
    def bottleneck(kind: str, name: str, age_seconds: float, **facts: object) -> str:
        worst = {"words": "who holds whom", "sink": f"{kind} {name}", "oldest_seconds": age_seconds}
        return drawn({"bottlenecks": [worst], "resources": [{"kind": kind, "name": name, "facts": facts}]})

    assert "what to do: Client 127.0.0.1:36006 holds these messages unacknowledged" in (
        bottleneck("subscription", "1 of 127.0.0.1:36006", 7.0)
    )
    assert "what to do: Client [::1]:36006 does not read" in bottleneck("outbound", "[::1]:36006", 7.0)
    assert "what to do" not in bottleneck("outbound", "127.0.0.1:36006", 0.1), "that is nobody's fault"
    assert "resume it" in bottleneck("queue", "/queue/orders", 7.0, paused_seconds=9.0, consumers=1)
    assert "No consumer: start one" in bottleneck("queue", "/queue/orders", 7.0, consumers="none: subscribe one")
    assert "add consumers" in bottleneck("queue", "/queue/orders", 7.0, consumers=1)
    assert "what to do" not in bottleneck("log group", "billing of /log/a", 7.0), "it is not the disk of the log"
    assert "what to do" not in drawn({"bottlenecks": [{"words": "w", "sink": "queue a", "oldest_seconds": 7.0}]})


def test_mistakes_of_the_broker_are_said_first() -> None:
    faults = {"count": 1200, "destinations_abandoned": 2, "connections_abandoned": 0, "other": "odd"}
    assert "internal errors: 1,200; 2 destinations closed by them" in drawn({"faults": faults})
    assert "internal errors" not in drawn({"faults": {"count": 0}})


def test_one_of_something_is_not_said_in_the_plural() -> None:
    text = drawn({"store": {"written_count": 1, "syncs_count": 1, "cancelled_count": 1200}})
    assert "store: 1 message written, 1,200 acknowledged before they had to be, 1 sync\n" in text


def test_only_columns_with_content_are_drawn() -> None:
    """Empty and zero say the same; how much a destination holds is said in any case."""
    text = drawn({"destinations": [{"name": "/queue/a", "depth_count": 0, "expired_count": None, "dropped_count": 0}]})
    assert "holds" in text
    assert "expired" not in text
    assert "dropped" not in text


def test_long_tables_are_cut_with_a_count_of_the_rest() -> None:
    report = {"destinations": [{"name": f"/queue/{number}", "depth_count": number} for number in range(30)]}
    text = drawn(report, rows_max=5)
    assert "/queue/29" in text
    assert "/queue/24" not in text
    assert "and 25 more" in text
    assert "/queue/0" in drawn(report, rows_max=None)


def test_the_connection_that_asks_is_marked() -> None:
    """It is one of those that are counted, and of no interest to the reader."""
    report = {"connections": [{"peer": "127.0.0.1:5", "session": "abc"}, {"peer": "127.0.0.1:6", "session": "def"}]}
    lines = [line.strip() for line in drawn(report, own_session="def").splitlines()]
    assert "127.0.0.1:5" in lines
    assert "127.0.0.1:6 (this one)" in lines
    assert "this one" not in drawn(report)
    assert "this one" not in drawn({"connections": [{"peer": "a", "session": ""}, {"peer": "b"}]}, own_session="")


def test_names_are_not_taken_for_markup() -> None:
    assert "/queue/[red]x" in drawn({"destinations": [{"name": "/queue/[red]x"}]})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=8))
def test_whatever_is_missing_or_odd_is_not_drawn(report: dict[str, Any]) -> None:
    """A broker of another version must not break the command that says what is wrong with it."""
    assert drawn(report)


def test_the_queue_of_the_answer_is_not_among_the_destinations() -> None:
    names = ("/queue/orders", "/remote-temp-queue/5d52.stat", "/remote-temp-queue/77aa.replies")
    said = drawn({"destinations": [{"name": name} for name in names]}, own_session="5d52")
    assert "Destinations: 2" in said and "5d52" not in said and "77aa" in said
