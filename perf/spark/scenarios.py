"""The named scenarios of Spark: rows to read or write, and targets.

A name reads spark-WHAT-SIZE. `perf.spark.runner` runs each. Reading and writing stand beside the throughput of Spark's
own path from or to Python in the same run (*ceiling*): a source that yields one Arrow batch, made once, over and over;
a sink that throws away the Arrow batches that it gets. The difference is the cost of wire, broker and columns.

Source: issue 5, "Speed".
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from attrs import frozen

from perf.scenarios import Goal, UnknownScenarioError

Kind = Literal["read", "stream", "claims", "sink", "sink-stream", "visible"]

_CPU = ("broker_cpu_us", "java_cpu_us", "python_cpu_us")
_BESIDE = ("rate_per_second", "log_bytes_per_second", "ceiling_rate_per_second", "ceiling_ratio", *_CPU)
_STREAM = (
    "rate_per_second",
    "log_bytes_per_second",
    "batch_rows_count",
    "planning_ratio",
    "spark_ratio",
    "broker_cpu_us",
)


@frozen(slots=True)
class SparkScenario:
    """One job. `share`: part of the rows of a run, since large or slow rows need fewer."""

    name: str
    summary: str
    kind: Kind
    value_bytes: int = 100
    share: float = 1.0
    columns: tuple[str, ...] = _BESIDE
    schema: str = ""
    """Columns to read; empty: all."""
    head: bytes = b""
    """Header lines of the records."""
    targets: tuple[Goal, ...] = ()


def _at_least(figure: str, value: float) -> tuple[Goal, ...]:
    return (Goal(figure, value, "itself"),)


SPARK_CATALOGUE: tuple[SparkScenario, ...] = (
    SparkScenario(
        "spark-read-100b",
        "batch read of a log into a sink that does nothing, all columns but headers",
        "read",
        targets=_at_least("rate_per_second", 500_000),
    ),
    SparkScenario("spark-read-100b-value", "the same, the column value only", "read", schema="value binary"),
    SparkScenario(
        "spark-read-100b-headers",
        "the same, all columns and two headers",
        "read",
        share=0.25,
        head=b"content-type:text/plain\nshop:north\n",
    ),
    SparkScenario(
        "spark-read-1k",
        "batch read of values of 1 KiB, all columns but headers",
        "read",
        value_bytes=1024,
        share=0.25,
        targets=_at_least("log_bytes_per_second", 300e6),
    ),
    SparkScenario(
        "spark-stream-100b",
        "streaming read of a log in micro-batches into a sink that does nothing",
        "stream",
        columns=_STREAM,
        targets=_at_least("rate_per_second", 300_000),
    ),
    SparkScenario(
        "spark-claims-100b",
        "streaming read of a queue of persistent messages by claims, in micro-batches into a sink that does nothing",
        "claims",
        share=0.5,
        columns=_STREAM,
        targets=_at_least("rate_per_second", 100_000),
    ),
    SparkScenario(
        "spark-sink-100b",
        "batch write into a log, at least once, of rows that are made once",
        "sink",
        share=0.5,
        targets=_at_least("rate_per_second", 150_000),
    ),
    SparkScenario(
        "spark-sink-stream-100b",
        "from one log into another one in micro-batches, exactly once",
        "sink-stream",
        share=0.5,
        columns=_STREAM,
        targets=_at_least("rate_per_second", 150_000),
    ),
    SparkScenario(
        "spark-visible",
        "one record at a time: from its SEND until a micro-batch of a waiting query has it in its sink",
        "visible",
        columns=("p50_us", "max_us"),
    ),
)
SPARK_BY_NAME = {scenario.name: scenario for scenario in SPARK_CATALOGUE}


def choose_spark(names: tuple[str, ...]) -> list[SparkScenario]:
    """Return the scenarios of these names; none named: all. Raises UnknownScenarioError."""
    for name in names:
        if name not in SPARK_BY_NAME:
            near = get_close_matches(name, SPARK_BY_NAME, n=3, cutoff=0.4)
            raise UnknownScenarioError(f"no scenario {name!r}; there are {', '.join(near or SPARK_BY_NAME)}")
    return [SPARK_BY_NAME[name] for name in names] or list(SPARK_CATALOGUE)
