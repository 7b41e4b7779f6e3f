"""The probe of SENDs to a topic without a subscriber."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from perf.cli import main
from perf.peers import peer_named
from perf.probes.unheard import Turn, lines, measure


@pytest.mark.timeout(120)
def test_brokers_take_turns() -> None:
    turns = list(measure([peer_named("sluiceway"), peer_named("sluiceway")], (20, 1024), rounds=2, seconds=0.05))
    assert [turn.body_bytes for turn in turns] == [20] * 4 + [1024] * 4
    assert all(turn.rate_per_second > 0 for turn in turns)


def test_rows_compare_each_with_the_first_in_the_same_round() -> None:
    turns = [Turn("a", 20, 100.0, 2.0), Turn("b", 20, 300.0, 0.5), Turn("a", 20, 200.0, 2.0), Turn("b", 20, 200.0, 1.0)]
    first, second = lines(turns)
    assert "rate  1.00" in first
    assert "rate  2.00" in second
    assert "processor  0.38" in second


def test_help_says_how_to_compare() -> None:
    assert "sluiceway@../before" in CliRunner().invoke(main, ["unheard", "--help"]).output
