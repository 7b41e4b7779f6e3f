"""Medians, ratios and verdicts come out as a reader would take them, and the page is made from a file."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from attrs import evolve

from perf.comparing import judge
from perf.reports import tables
from perf.reports.charts import draw_drains
from perf.reports.page import write_report
from perf.reports.results import Measurement, Results, drop_superseded, keep, kept_in, load, merge, save
from perf.scenarios import BY_NAME, Goal

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
    target = Goal("rate_per_second", 1.0)
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


def test_the_report_is_written_from_results_alone(tmp_path: Path) -> None:
    """Ratios and what is missed on the first page; verdicts, faults and medians on the second one; the same results
    give the same files.
    """
    fault = Measurement(QUEUE.name, "coilmq", 1, faults=("the broker closed <it>",))
    slow = [
        Measurement(LATENCY.name, peer, 1, {"p99_us": us}) for peer, us in (("sluiceway", 900.0), ("rabbitmq", 600.0))
    ]
    results = _results(
        *_rates("sluiceway", 400, 420, 410), *_rates("rabbitmq", 100), *_rates("activemq", 80), fault, *slow
    )
    files = write_report(results, tmp_path)
    page, method, details, plot = [path.read_text(encoding="utf-8") for path in files]
    assert "In 1 of 2 loads Sluiceway is at least 2 times better" in page
    assert f"It is behind in {LATENCY.name}." in page
    assert "| 1_1_1-20b-auto | one pair, one queue, tiny bodies | rate | 410/s | 100/s (rabbitmq) | 4.10 |" in page
    assert f"| {LATENCY.name} | p99 ≥ 1x the better of rabbitmq and activemq | MISSED: 0.67x against rabbitmq |" in page
    assert "| 1_1_1-20b-auto | rate ≥ 4x the better of rabbitmq and activemq | met: 4.10x against rabbitmq |" in details
    assert "| sluiceway | 410/s ±2% |" in details
    assert "1 of 1 runs faulty: the broker closed &lt;it>" in details
    assert plot.startswith("<?xml")
    write_report(results, tmp_path)
    assert [path.read_text(encoding="utf-8") for path in files] == [page, method, details, plot]
    assert "A cell is the median of the runs" in method


def test_backlogs_of_several_sizes_are_one_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each broker and kind of message that was measured with two sizes."""
    backlog = BY_NAME["backlog-100b"]
    smaller = evolve(backlog, name="smaller")
    for table in (BY_NAME, tables.BY_NAME):
        monkeypatch.setitem(table, smaller.name, smaller)
    one = Measurement(backlog.name, "sluiceway", 1, {"backlog_count": 1e6, "drain_rate_per_second": 2e5})
    rabbit = evolve(one, peer="rabbitmq")
    assert draw_drains(_results(one, rabbit), tmp_path / "drains.svg") is None
    other = evolve(one, scenario=smaller.name, figures={"backlog_count": 1e5, "drain_rate_per_second": 2e5})
    assert [path.name for path in write_report(_results(one, rabbit, other), tmp_path)] == [
        "performance.md",
        "performance-method.md",
        "performance-details.md",
        "performance.svg",
        "performance-drains.svg",
    ]
    chart = (tmp_path / "performance-drains.svg").read_text(encoding="utf-8")
    assert "sluiceway: persistent, 100 B" in chart
    assert "rabbitmq" not in chart


def _measured(when: str, *measurements: Measurement) -> Results:
    return evolve(_results(*measurements), machine={"cpu": "one", "measured_at": f"{when} UTC"})


def test_results_are_kept_compressed_until_they_are_measured_again(tmp_path: Path) -> None:
    """The page can be made from a checkout; a call all of whose scenarios are in later ones goes."""
    latency = Measurement(LATENCY.name, "sluiceway", 1, {"p99_us": 5.0})
    for name, results in (
        ("both", _measured("2026-01-01 10:00", *_rates("sluiceway", 1), latency)),
        ("one", _measured("2026-01-02 10:00", *_rates("sluiceway", 2))),
        ("again", _measured("2026-01-03 10:00", *_rates("sluiceway", 3))),
    ):
        save(results, tmp_path / f"{name}.json")
        kept = keep(tmp_path / f"{name}.json", tmp_path / "kept")
        assert load(kept) == results
    assert [path.name for path in drop_superseded(tmp_path / "kept")] == ["2026-01-02T1000-one.json.xz"]
    kept_files = kept_in(tmp_path / "kept")
    assert [path.name for path in kept_files] == ["2026-01-01T1000-both.json.xz", "2026-01-03T1000-again.json.xz"]
    merged = merge([load(path) for path in kept_files])
    assert merged.medians(QUEUE.name, "sluiceway") == {"rate_per_second": 3}
    assert merged.medians(LATENCY.name, "sluiceway") == {"p99_us": 5.0}


def test_ratios_are_never_made_of_different_calls() -> None:
    """A scenario that is measured again without its peers has none."""
    old = _results(*_rates("sluiceway", 4), *_rates("rabbitmq", 1))
    assert merge([old, _results(*_rates("sluiceway", 9))]).peers() == ["sluiceway"]


@pytest.mark.parametrize("content", [b"", b"no xz", lzma.compress(b"no json")])
def test_what_is_no_result_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """With its name."""
    path = tmp_path / "broken.json.xz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken.json.xz can't be read"):
        load(path)
