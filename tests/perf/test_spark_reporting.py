"""What is said of measurements of Spark. They run by hand (`python -m perf spark`): a session takes too long here."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.reports.figures import FIGURES
from perf.reports.page import write_report
from perf.reports.results import Measurement, Results
from perf.reports.spark import spark_lines, without_spark
from perf.scenarios import UnknownScenarioError
from perf.spark.scenarios import SPARK_CATALOGUE, choose_spark


def results(*rates: float) -> Results:
    runs = [
        Measurement("spark-claims-100b", "sluiceway", number, {"rate_per_second": rate, "planning_ratio": 0.5})
        for number, rate in enumerate(rates, 1)
    ]
    other = Measurement("log-append-100b-plain", "sluiceway", 1, {"rate_per_second": 1000.0})
    return Results({"cpu": "x"}, {"sluiceway": "1", "spark": "4.3.0"}, {"runs": "3"}, (*runs, other))


def test_every_scenario_has_known_figures_and_targets_among_them() -> None:
    for scenario in SPARK_CATALOGUE:
        assert set(scenario.columns) <= set(FIGURES)
        assert {target.figure for target in scenario.targets} <= set(scenario.columns)


def test_no_name_means_all_and_a_wrong_one_is_told_the_nearest() -> None:
    assert choose_spark(()) == list(SPARK_CATALOGUE)
    assert [one.name for one in choose_spark(("spark-read-1k",))] == ["spark-read-1k"]
    with pytest.raises(UnknownScenarioError, match="spark-claims-100b"):
        choose_spark(("spark-claim-100b",))


@pytest.mark.parametrize(("rate", "verdict"), [(99_000.0, "MISSED"), (101_000.0, "met")])
def test_targets_are_judged_by_the_median(rate: float, verdict: str) -> None:
    lines = list(spark_lines(results(1.0, rate, 1e9), "spark-claims-100b"))
    assert f"{verdict}: {rate:,.0f}/s" in lines[1]


def test_the_page_has_spark_apart_from_the_brokers(tmp_path: Path) -> None:
    write_report(results(120_000.0), tmp_path)
    page = (tmp_path / "performance-details.md").read_text(encoding="utf-8")
    brokers, _, spark = page.partition("## Spark")
    assert "spark" not in brokers.lower()
    assert "met: 120,000/s" in spark
    write_report(without_spark(results(120_000.0)), tmp_path)
    assert "## Spark" not in (tmp_path / "performance-details.md").read_text(encoding="utf-8")
