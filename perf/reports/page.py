"""docs/performance.md, its method, its details and its charts, made from result files and from nothing else: no figure
there is typed by hand. The first page is for a reader who has ten seconds; the second one says how it was measured; all
tables are on the third.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from perf.comparing import better_of, ratio
from perf.peers import REFERENCES
from perf.reports import tables
from perf.reports.charts import draw_drains, draw_ratios
from perf.reports.figures import FIGURES, show
from perf.reports.logs import log_method
from perf.reports.results import Results
from perf.reports.spark import spark_section, without_spark
from perf.reports.tables import BY_NAME
from perf.reports.turns import turns_section, without_turns

METHOD = "performance-method.md"
DETAILS = "performance-details.md"
AHEAD = 2.0
"""Ratio to the better peer from which on Sluiceway is clearly ahead."""

_INTRODUCTION = """\
Every figure comes from `python -m perf compare`, which any user can run: Sluiceway and its peers are driven by one load
generator on one machine in turns, and a ratio is made of medians of one call. The raw results are in `perf/measured`,
and `python -m perf report` makes this page of them. [How it is measured](performance-method.md), and
[all figures](performance-details.md).\
"""

_METHOD = """\
A version is what the broker said of itself in CONNECTED: what was measured before the first release, 0.2.0, still
called itself 0.1.0.

The same for every broker:

- The load generator is one process of producers and one of consumers: raw sockets, frames encoded beforehand, NUL
  bytes counted. Its own cost is the column *generator cpu*.
- Each run starts with numbered messages that must arrive exactly once and in order, and ends when everything that was
  sent has arrived, no more and no less. A run in which that fails counts as faulty.
- At most a window of messages (10,000 for a queue, less where bodies are large or queues many) is under way per
  destination, so that a broker is measured by what it delivers and not by what it hoards.
- Queues are durable on every broker, and their disk is the same one. A backlog is smaller for the reference peers
  (column *backlog*), which would take an hour for ten million messages; rates are compared. It is filled with a receipt
  for every hundredth message, and its restart is an orderly one.
- Every broker runs with its defaults on loopback, but Sluiceway's `paging` is chosen where a scenario is about slow
  consumers or backlogs: `throttle` for the stalled and sleepy ones, `page` for the others. Prefetch is 1,000 where it
  can be asked for. RabbitMQ and ActiveMQ use as many processors as there are; Sluiceway and CoilMQ are one Python
  process each.
- Sleepy neighbours stand still again and again: *retained* is the median of five windows, each beside the ones just
  before and after it.
- A cell is the median of the runs, and ± half the distance between the largest and the smallest.
"""


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write the pages and the charts into `folder` and return their paths. Existing files are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    of_brokers = without_turns(without_spark(results))
    rows = _compared(of_brokers)
    ratios = draw_ratios(
        [(row.name, row.times, row.times >= AHEAD) for row in rows if row.times], folder / "performance.svg"
    )
    drains = draw_drains(of_brokers, folder / "performance-drains.svg")
    page, method, details = folder / "performance.md", folder / METHOD, folder / DETAILS
    page.write_text("\n".join(_page(of_brokers, rows, ratios, drains)) + "\n", encoding="utf-8")
    method.write_text("\n".join(_method(of_brokers)) + "\n", encoding="utf-8")
    lines = [*_details(of_brokers), *turns_section(results), *spark_section(results)]
    details.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [page, method, details, *(path for path in (ratios, drains) if path is not None)]


@frozen(slots=True)
class _Row:
    """One scenario that a peer ran, too. `times`: how many times better Sluiceway is than the better one."""

    name: str
    summary: str
    figure: str
    own: float
    peer: str
    theirs: float
    times: float


def _compared(results: Results) -> list[_Row]:
    """Return the scenarios that Sluiceway and a reference peer ran without a fault, those first in which it is best."""
    rows = []
    for name in results.scenarios():
        figure = tables.headline(BY_NAME[name])
        own = results.medians(name, tables.SUBJECT).get(figure)
        best = better_of(results, name, figure, REFERENCES)
        if own is not None and best is not None:
            peer, theirs = best
            rows.append(_Row(name, BY_NAME[name].summary, figure, own, peer, theirs, ratio(figure, own, theirs)))
    return sorted(rows, key=lambda row: -row.times)


def _page(results: Results, rows: list[_Row], ratios: Path | None, drains: Path | None) -> Iterator[str]:
    yield "# Performance"
    yield ""
    if rows:
        ahead = [row for row in rows if row.times >= AHEAD]
        behind = [row.name for row in rows if row.times < 1]
        yield (
            f"In {len(ahead)} of {len(rows)} loads Sluiceway is at least {AHEAD:g} times better than the better of "
            f"{' and '.join(REFERENCES)}. It is behind in {', '.join(behind) if behind else 'none'}."
        )
        yield ""
    if ratios is not None:
        yield f"![How many times better than the better peer, by load]({ratios.name})"
        yield ""
    if rows:
        yield from _table(
            ("load", "what it is", "figure", "Sluiceway", "the better peer", "times better"),
            [
                (
                    row.name,
                    row.summary,
                    tables.title(row.figure),
                    show(row.figure, row.own),
                    f"{show(row.figure, row.theirs)} ({row.peer})",
                    f"**{row.times:.2f}**" if row.times < AHEAD else f"{row.times:.2f}",
                )
                for row in rows
            ],
        )
        yield ""
    if drains is not None:
        yield "How fast a backlog is drained, by its size:"
        yield ""
        yield f"![Messages a second by the size of the backlog]({drains.name})"
        yield ""
    yield from _missed(results)
    yield _INTRODUCTION


def _circumstances(results: Results) -> list[tuple[str, str]]:
    facts = {**results.machine, **results.settings}
    return [*((key.replace("_", " "), value) for key, value in facts.items()), *results.versions.items()]


def _missed(results: Results) -> Iterator[str]:
    verdicts = tables.judged(results)
    if tables.SUBJECT not in results.peers():
        return
    missed = [(scenario, verdict) for scenario, verdict in verdicts if not verdict.met]
    yield f"Of {len(verdicts)} targets {len(verdicts) - len(missed)} are met." + (" Missed:" if missed else "")
    yield ""
    if missed:
        yield from _table(
            ("scenario", "target", "verdict"),
            [(one.name, tables.target_text(verdict.target), tables.verdict_text(verdict)) for one, verdict in missed],
        )
        yield ""


def _method(results: Results) -> Iterator[str]:
    yield "# Performance: how it is measured"
    yield ""
    yield f"For the figures of [Performance](performance.md) and [all others]({DETAILS})."
    yield ""
    yield from _table(("what", "measured with"), _circumstances(results))
    yield ""
    yield _METHOD
    yield from log_method(results.scenarios())


def _details(results: Results) -> Iterator[str]:
    yield "# Performance: all figures"
    yield ""
    yield (
        "The tables behind [Performance](performance.md), made by `python -m perf report`; "
        f"[how they were measured]({METHOD})."
    )
    yield ""
    yield from _targets(results)
    yield from _ratios(results)
    yield "## Every scenario"
    yield ""
    for name in results.scenarios():
        yield from _scenario(results, name)
    yield "## The figures"
    yield ""
    shown = dict.fromkeys(figure for name in results.scenarios() for figure in tables.figures_of(BY_NAME[name]))
    yield from _table(("figure", "meaning"), [(tables.title(name), FIGURES[name].meaning) for name in shown])


def _targets(results: Results) -> Iterator[str]:
    verdicts = tables.judged(results)
    if not verdicts or tables.SUBJECT not in results.peers():
        return
    yield "## Targets"
    yield ""
    rows = [
        (scenario.name, tables.target_text(verdict.target), tables.verdict_text(verdict))
        for scenario, verdict in verdicts
    ]
    yield from _table(("scenario", "target", "verdict"), rows)
    yield ""


def _ratios(results: Results) -> Iterator[str]:
    rows = tables.ratio_rows(results)
    others = [peer for peer in results.peers() if peer != tables.SUBJECT]
    if not rows or not others:
        return
    yield "## Ratio of Sluiceway to"
    yield ""
    yield "Above 1 is better, whichever way the figure points."
    yield ""
    heads = ("scenario", "figure", *others, "the better of " + "/".join(REFERENCES))
    yield from _table(
        heads,
        [
            (name, tables.title(figure), *(by_peer.get(peer, "-") for peer in others), best)
            for name, figure, by_peer, best in rows
        ],
    )
    yield ""


def _scenario(results: Results, name: str) -> Iterator[str]:
    scenario = BY_NAME[name]
    figures = tables.figures_of(scenario)
    yield f"### {name}"
    yield ""
    yield f"{scenario.summary[0].upper()}{scenario.summary[1:]}."
    yield ""
    yield from _table(
        ("broker", *(tables.title(figure) for figure in figures)),
        [(peer, *(tables.cell(results, name, peer, figure) for figure in figures)) for peer in results.peers()],
    )
    yield ""
    if note := tables.disturbed_note(results, name):
        yield f"{note}."
        yield ""
    faults = [(peer, fault) for peer in results.peers() if (fault := tables.faults_of(results, name, peer))]
    for peer, fault in faults:
        yield f"- {peer}: {fault.replace('<', '&lt;')}"
    if faults:
        yield ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"
