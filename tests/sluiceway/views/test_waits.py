"""Which waits count: the same for an answer of this broker and of an older one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluiceway.cli.stat_view import bottleneck_line, is_blocked
from sluiceway.top.chains import troubles
from sluiceway.views.waits import LASTING_SECONDS, bottlenecks_of, root_causes_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("row", "is_told"),
    [
        ({"senders_seconds": 5.0, "oldest_seconds": 0.1}, True),
        ({"senders_seconds": 0.9, "oldest_seconds": 9.0}, False),
        ({"oldest_seconds": LASTING_SECONDS}, True),
        ({"oldest_seconds": 0.5}, False),
        ({}, True),
    ],
)
def test_stat_and_top_name_the_same_waits(row: dict[str, Any], is_told: bool) -> None:
    """By how long senders wait; an older broker says for how long the resource itself was waited for."""
    report = {"bottlenecks": [{"words": "queue a blocks 1 sender", **row}]}
    assert bool(bottlenecks_of(report)) is is_told is is_blocked(report) is bool(troubles(report))
    assert bottleneck_line(report).startswith("bottleneck") is is_told


def test_a_root_cause_comes_before_what_waits_for_it() -> None:
    symptom = {"words": "queue a blocks 9 senders", "senders_seconds": 5.0, "waits_itself": True}
    cause = {"words": "subscription 1 blocks 9 senders", "senders_seconds": 5.0, "waits_itself": False}
    report = {"bottlenecks": [symptom, cause]}
    assert root_causes_of(report) == [cause]
    assert bottleneck_line(report) == "bottleneck: subscription 1 blocks 9 senders"
    assert [words for _age, words in troubles(report)] == ["subscription 1 blocks 9 senders"]
    assert root_causes_of({"bottlenecks": [symptom]}) == [symptom], "in a ring all wait"


def test_the_console_knows_the_same_time() -> None:
    script = (ROOT / "sluiceway" / "console" / "js" / "overview_facts.js").read_text(encoding="utf-8")
    assert f"LASTING_SECONDS = {LASTING_SECONDS:g};" in script
