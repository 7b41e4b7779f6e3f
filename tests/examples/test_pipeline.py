"""End to end: known events in, and Spark's sums equal the truth, though the job and a broker are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.pipeline.events import DAY_MS, DAY_START_MS, Event, events, tally
from pyspark_stomp.options import OPTIONS
from pyspark_stomp.schema import COLUMNS, HEADERS
from tests.architecture.sources import ROOT

EVENTS_COUNT = 300_000


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_sums_are_exact_through_a_kill_of_the_job_and_of_a_broker(tmp_path: Path) -> None:
    """Hourly counts in a log, rows in Parquet files, incidents from a queue, a day counted again."""
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-m", "examples.pipeline.rehearse", "--events", str(EVENTS_COUNT), "--folder",
         str(tmp_path / "rehearsal")],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("SLUICEWAY_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )  # fmt: skip
    log = tmp_path / "rehearsal" / "job.log"
    said = log.read_text(errors="replace")[-4000:] if log.exists() else ""
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{said}"
    assert done.stdout.count("✓") == 5, done.stdout


def test_an_event_is_what_its_number_says() -> None:
    """The truth is computed twice, by the producer and by who checks the sums."""
    once, twice = list(events(100, 200, 1_000)), list(events(100, 200, 1_000))
    assert once == twice
    assert [each.number for each in once] == list(range(100, 200))


def test_all_events_are_of_the_day_and_some_come_late() -> None:
    day = list(events(0, 5_000, 5_000))
    assert all(DAY_START_MS <= each.time_ms < DAY_START_MS + DAY_MS for each in day)
    newest, late_count = 0, 0
    for each in day:
        late_count += each.time_ms < newest
        newest = max(newest, each.time_ms)
    assert late_count > 250


def test_sums_go_by_hour_and_section() -> None:
    of_one = [
        Event(0, DAY_START_MS + 1, "ada", "/shop/cart", 200, 10),
        Event(1, DAY_START_MS + 2, "ben", "/shop", 200, 5),
    ]
    assert tally(of_one).counts == {(DAY_START_MS, "shop"): 2}
    assert tally(of_one).bytes_counts == {(DAY_START_MS, "shop"): 15}


def test_the_spark_page_knows_every_column() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    kinds = {**COLUMNS, **HEADERS}
    assert all(f"| `{name}` | {kind.upper()} |" in page for name, kind in kinds.items())


def test_the_spark_page_names_real_options() -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8") + (ROOT / "README.md").read_text(encoding="utf-8")
    known = {option.name for option in OPTIONS} | {"checkpointLocation", "truncate"}
    for part in page.split(".option(")[1:]:
        name = part.strip().split('"')[1]
        assert name in known
