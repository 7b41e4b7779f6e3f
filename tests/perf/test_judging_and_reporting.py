"""Medians, ratios and verdicts come out as a reader would take them, and the page is made from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.comparing import judge
from perf.reporting import write_report
from perf.results import Measurement, Results, load, merge, save
from perf.scenarios import BY_NAME, Target

QUEUE = BY_NAME["1_1_1-20b-auto"]
LATENCY = BY_NAME["latency-1000ps-100b"]
STALLED = BY_NAME["stalled-queue-consumer"]


def _results(*measurements: Measurement) -> Results:
    return Results({"cpu": "one"}, {"sluiceway": "sluiceway/1"}, {"runs": "3"}, measurements)


def _rates(peer: str, *rates: float) -> list[Measurement]:
    return [Measurement(QUEUE.name, peer, n, {"rate_per_second": rate}) for n, rate in enumerate(rates, 1)]


def test_a_rate_is_judged_against_the_better_peer_by_medians() -> None:
    """One lucky run of a peer or of ours does not decide."""
    results = _results(
        *_rates("sluiceway", 900, 400, 410), *_rates("rabbitmq", 50, 100, 99), *_rates("activemq", 60, 61, 500)
    )
    verdict = judge(results, QUEUE, QUEUE.targets[0])
    assert verdict.value == pytest.approx(410 / 99)
    assert verdict.met
    assert verdict.reason == "against rabbitmq"


def test_where_lower_is_better_the_ratio_is_turned_round() -> None:
    """A smaller p99 than the best peer's is a ratio above one."""
    runs = [
        Measurement(LATENCY.name, peer, 1, {"p99_us": p99}) for peer, p99 in (("sluiceway", 500), ("rabbitmq", 1000))
    ]
    verdict = judge(_results(*runs), LATENCY, LATENCY.targets[0])
    assert verdict.value == 2.0
    assert verdict.met


def test_a_figure_judged_by_itself_needs_no_peer() -> None:
    """Retention and memory growth are promises, not comparisons."""
    figures = {"retained_ratio": 0.96, "rss_growth_bytes": 10**9}
    results = _results(Measurement(STALLED.name, "sluiceway", 1, figures))
    assert [judge(results, STALLED, target).met for target in STALLED.targets] == [True, False]


def test_a_faulty_run_of_ours_misses_the_target() -> None:
    """Fast and wrong is not fast."""
    faulty = Measurement(QUEUE.name, "sluiceway", 3, {"rate_per_second": 1e9}, ("lost one",))
    results = _results(*_rates("sluiceway", 900, 900), faulty, *_rates("rabbitmq", 1))
    assert not judge(results, QUEUE, QUEUE.targets[0]).met
    assert results.medians(QUEUE.name, "sluiceway") == {"rate_per_second": 900}


def test_nothing_is_met_that_was_not_measured() -> None:
    """Neither without our figure nor without a peer's."""
    target = Target("rate_per_second", 1.0)
    assert not judge(_results(*_rates("rabbitmq", 1)), QUEUE, target).met
    assert not judge(_results(*_rates("sluiceway", 1)), QUEUE, target).met


def test_results_survive_their_file(tmp_path: Path) -> None:
    """What is saved is what is loaded."""
    results = _results(*_rates("sluiceway", 1.5), Measurement(QUEUE.name, "coilmq", 1, faults=("closed",)))
    save(results, tmp_path / "new" / "r.json")
    assert load(tmp_path / "new" / "r.json") == results


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    """Old figures are not silently read with new meanings."""
    (tmp_path / "r.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="measure again"):
        load(tmp_path / "r.json")


def test_later_files_win_scenario_by_scenario() -> None:
    """A scenario measured again replaces its older figures, and the others stay."""
    old = _results(*_rates("sluiceway", 1), Measurement(LATENCY.name, "sluiceway", 1, {"p99_us": 5.0}))
    merged = merge([old, _results(*_rates("sluiceway", 2, 4))])
    assert merged.medians(QUEUE.name, "sluiceway") == {"rate_per_second": 3}
    assert merged.medians(LATENCY.name, "sluiceway") == {"p99_us": 5.0}


def test_report_writes_page_and_plot_from_results_alone(tmp_path: Path) -> None:
    """Verdicts, ratios, faults and medians are all there; the same results give the same files."""
    fault = Measurement(QUEUE.name, "coilmq", 1, faults=("the broker closed <it>",))
    results = _results(*_rates("sluiceway", 400, 420, 410), *_rates("rabbitmq", 100), *_rates("activemq", 80), fault)
    page, plot = write_report(results, tmp_path)
    first = (page.read_text(), plot.read_text())
    assert (
        "| 1_1_1-20b-auto | rate ≥ 4x the better of rabbitmq and activemq | met: 4.10x against rabbitmq |" in first[0]
    )
    assert "| sluiceway | 410/s ±2% |" in first[0]
    assert "1 of 1 runs faulty: the broker closed &lt;it>" in first[0]
    assert first[1].startswith("<?xml")
    write_report(results, tmp_path)
    assert (page.read_text(), plot.read_text()) == first
