"""Report of Spark for docs/performance.md and the terminal. Not among the tables of brokers: the comparison is between
Spark's own path and that of Sluiceway.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from perf.reports import tables
from perf.reports.figures import FIGURES, show
from perf.reports.results import Results
from perf.spark.scenarios import SPARK_BY_NAME, SparkScenario

SUBJECT = tables.SUBJECT

_METHOD = """\
Broker, Java and Python processes share the machine, and `sluiceway serve` runs with its defaults. Two tasks read (or
write) at a time. A rate is rows a second, with all that Spark does around them: planning, starting tasks, checkpoints.
Only the first time is not counted, which starts workers and checks the rows; of a stream that is the first micro-batch.

*ceiling* is Spark's own path, in the same run and interleaved: a Python data source that yields one Arrow batch, made
once, over and over, or a sink that throws batches away. What is missing to it is
the broker, the wire and the columns. Where the time of a stream goes is shown as parts of it: *planning*, in which the
source says how far to go (for a queue: the broker makes the claim), *spark*, in which Spark plans and keeps its
checkpoint; the rest is reading and writing.
"""


def without_spark(results: Results) -> Results:
    """The same without the scenarios of Spark."""
    others = tuple(one for one in results.measurements if one.scenario not in SPARK_BY_NAME)
    versions = {name: text for name, text in results.versions.items() if name != "spark"}
    return evolve(results, measurements=others, versions=versions)


def spark_section(results: Results) -> Iterator[str]:
    """The section of the page; nothing if nothing of Spark was measured."""
    names = [name for name in results.scenarios() if name in SPARK_BY_NAME]
    if not names:
        return
    yield ""
    yield "## Spark"
    yield ""
    yield f"`python -m perf spark`, Spark {results.versions.get('spark', '')}, on the machine above."
    yield _METHOD
    judged = [SPARK_BY_NAME[name] for name in names if SPARK_BY_NAME[name].targets]
    if judged:
        yield from _table(
            ("scenario", "target", "verdict"),
            [(one.name, _target_text(one), _verdict_text(results, one)) for one in judged],
        )
        yield ""
    for name in names:
        scenario = SPARK_BY_NAME[name]
        yield f"### {name}"
        yield ""
        yield f"{scenario.summary[0].upper()}{scenario.summary[1:]}."
        yield ""
        yield from _table(
            tuple(tables.title(figure) for figure in scenario.columns),
            [tuple(tables.cell(results, name, SUBJECT, figure) for figure in scenario.columns)],
        )
        yield ""
        if fault := tables.faults_of(results, name, SUBJECT):
            yield f"- {fault}"
            yield ""
    yield from _table(
        ("figure", "meaning"),
        [
            (tables.title(name), FIGURES[name].meaning)
            for name in dict.fromkeys(figure for name in names for figure in SPARK_BY_NAME[name].columns)
        ],
    )


def spark_lines(results: Results, name: str) -> Iterator[str]:
    """Yield the report of a scenario for a terminal."""
    scenario = SPARK_BY_NAME[name]
    cells = [f"{tables.title(figure)} {tables.cell(results, name, SUBJECT, figure)}" for figure in scenario.columns]
    yield f"{name}: {', '.join(cells)}"
    if scenario.targets:
        yield f"  {_target_text(scenario)}: {_verdict_text(results, scenario)}"
    if fault := tables.faults_of(results, name, SUBJECT):
        yield f"  {fault}"


def _target_text(scenario: SparkScenario) -> str:
    return ", ".join(tables.target_text(target) for target in scenario.targets)


def _verdict_text(results: Results, scenario: SparkScenario) -> str:
    said = []
    medians = results.medians(scenario.name, SUBJECT)
    for target in scenario.targets:
        value = medians.get(target.figure)
        if value is None:
            said.append("not measured")
        else:
            said.append(f"{'met' if value >= target.at_least else 'MISSED'}: {show(target.figure, value)}")
    return ", ".join(said)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
