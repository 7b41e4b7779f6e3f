"""Results as tables for a terminal: every scenario by broker, and the ratios with their targets."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from perf.comparing import Verdict, better_of, judge, ratio
from perf.logs.scenarios import LOGS_BY_NAME, LogScenario
from perf.peers import REFERENCES
from perf.reports.figures import FIGURES, show
from perf.reports.results import Results
from perf.scenarios import BY_NAME as TRAFFIC_BY_NAME
from perf.scenarios import Goal, Scenario

BY_NAME: dict[str, Scenario | LogScenario] = {**TRAFFIC_BY_NAME, **LOGS_BY_NAME}
"""All scenarios, of logs and of the rest."""
SUBJECT = "sluiceway"
DISTURBED_CORES = 0.25
"""Share of a processor that other processes may use unremarked (the kernel's share of socket work is part of it)."""

_TRAFFIC = ("rate_per_second", "p50_us", "p99_us", "broker_cpu_us", "generator_cpu_us", "rss_peak_bytes")
_ROUND_TRIPS = ("rate_per_second", "p50_us", "p99_us", "max_us", "broker_cpu_us", "rss_peak_bytes")
_PRIORITY = ("rate_per_second", "p50_us", "p99_us", "high_p50_us", "high_p99_us", "broker_cpu_us", "rss_peak_bytes")
_NEIGHBOUR = (
    "alone_rate_per_second",
    "rate_per_second",
    "retained_ratio",
    "flood_count",
    "rss_growth_bytes",
    "rss_peak_bytes",
)
_PAGED = ("alone_rate_per_second", "rate_per_second", "retained_ratio", "flood_count", "rss_slope_bytes_per_second")
_BACKLOG = (
    "backlog_count",
    "empty_rate_per_second",
    "fill_rate_per_second",
    "fill_ratio",
    "fill_broker_cpu_us",
    "drain_rate_per_second",
    "drain_ratio",
    "drain_broker_cpu_us",
    "ready_seconds",
    "first_message_seconds",
    "filled_rss_bytes",
    "rss_peak_bytes",
    "disk_bytes_per_message",
)
_IDLE = ("idle_held_ratio", "idle_bytes_per_connection", "connects_per_second")


def figures_of(scenario: Scenario | LogScenario) -> tuple[str, ...]:
    """Return the figures worth a column in a table of this scenario."""
    if isinstance(scenario, LogScenario):
        return scenario.columns
    if scenario.idle_count:
        return (*_IDLE, *(("idle_cpu_share",) if scenario.heart_beat_ms else ()), "rss_peak_bytes")
    if scenario.backlog is not None:
        return _BACKLOG
    if scenario.disturbance is not None:
        return (*_PAGED, *_NEIGHBOUR[-2:]) if scenario.disturbance.sustained else _NEIGHBOUR
    if scenario.round_trips:
        return _ROUND_TRIPS
    if scenario.high_priority_every:
        return _PRIORITY
    figures = tuple(name for name in _TRAFFIC if scenario.tagged or name not in ("p50_us", "p99_us"))
    if scenario.beside_memory:
        figures = ("memory_rate_per_second", figures[0], "memory_ratio", *figures[1:])
    return (*figures, "cancelled_ratio") if scenario.persistent else figures


def headline(scenario: Scenario | LogScenario) -> str:
    """Return the figure that a scenario is about."""
    if isinstance(scenario, LogScenario):
        return scenario.targets[0].figure if scenario.targets else scenario.columns[0]
    if scenario.idle_count:
        return "idle_bytes_per_connection"
    if scenario.backlog is not None:
        return "drain_rate_per_second"
    if scenario.disturbance is not None:
        return "retained_ratio"
    return "p99_us" if scenario.rate_per_second or scenario.round_trips else "rate_per_second"


def title(figure: str) -> str:
    """Return a figure's name as a column head: its unit is in its values."""
    for ending in ("_per_second", "_bytes", "_us", "_seconds", "_count"):
        figure = figure.removesuffix(ending)
    return figure.replace("_", " ")


def target_text(target: Goal) -> str:
    """Say a target in words."""
    figure = FIGURES[target.figure]
    if target.against == "itself":
        return (
            f"{title(target.figure)} {'≤' if figure.better == 'lower' else '≥'} {show(target.figure, target.at_least)}"
        )
    return f"{title(target.figure)} ≥ {target.at_least:g}x the better of {' and '.join(REFERENCES)}"


def cell(results: Results, scenario: str, peer: str, figure: str) -> str:
    """Return a median with its extremes' spread over the sound runs, as in `49,100/s ±3%`; `-` where there is none."""
    values = [run.figures[figure] for run in results.runs(scenario, peer) if not run.faults and figure in run.figures]
    if not values:
        return "-"
    middle = results.medians(scenario, peer)[figure]
    text = show(figure, middle)
    if len(values) > 1 and middle:
        text += f" ±{(max(values) - min(values)) / 2 / abs(middle):.0%}"
    return text


def faults_of(results: Results, scenario: str, peer: str) -> str:
    """Return in words how many runs of one broker in one scenario broke a promise, with the first fault; or nothing."""
    runs = results.runs(scenario, peer)
    bad = [run for run in runs if run.faults]
    return f"{len(bad)} of {len(runs)} runs faulty: {bad[0].faults[0].splitlines()[0][:300]}" if bad else ""


def disturbed_note(results: Results, scenario: str) -> str:
    """Return in words the share of the machine that other programs used meanwhile, where that may have shaped the
    figures.
    """
    shares = [
        run.figures["others_cpu_seconds"] / run.figures["window_seconds"]
        for peer in results.peers()
        for run in results.runs(scenario, peer)
        if run.figures.get("window_seconds") and "others_cpu_seconds" in run.figures
    ]
    bad = [share for share in shares if share > DISTURBED_CORES]
    if not bad:
        return ""
    return f"{len(bad)} of {len(shares)} runs shared the machine with other work, up to {max(bad):.1f} processors of it"


def print_runs(console: Console, results: Results) -> None:
    """Print a table for each scenario."""
    for name in results.scenarios():
        scenario = BY_NAME[name]
        figures = figures_of(scenario)
        table = Table(title=f"{name}: {scenario.summary}", title_justify="left", title_style="bold")
        table.add_column("broker")
        for figure in figures:
            table.add_column(title(figure), justify="right")
        for peer in results.peers():
            table.add_row(peer, *(cell(results, name, peer, figure) for figure in figures))
        console.print(table)
        if note := disturbed_note(results, name):
            console.print(f"  {note}", style="yellow")
        for peer in results.peers():
            if fault := faults_of(results, name, peer):
                console.print(f"  {peer}: {fault}", style="red", markup=False)


def judged(results: Results) -> list[tuple[Scenario | LogScenario, Verdict]]:
    """Return the verdict on every target of every scenario that was measured."""
    scenarios = [BY_NAME[name] for name in results.scenarios()]
    return [
        (scenario, judge(results, scenario, target, SUBJECT)) for scenario in scenarios for target in scenario.targets
    ]


def ratio_rows(results: Results) -> list[tuple[str, str, dict[str, str], str]]:
    """Return for each scenario that Sluiceway ran: its name, a figure, the ratio by peer, the ratio to the better."""
    rows = []
    for name in results.scenarios():
        own = results.medians(name, SUBJECT)
        for figure in (headline(BY_NAME[name]), "broker_cpu_us", "rss_peak_bytes"):
            if figure not in own:
                continue
            others = [peer for peer in results.peers() if peer != SUBJECT]
            by_peer = {
                peer: f"{ratio(figure, own[figure], theirs[figure]):.2f}x"
                for peer in others
                if figure in (theirs := results.medians(name, peer))
            }
            best = better_of(results, name, figure, REFERENCES)
            rows.append((name, figure, by_peer, f"{ratio(figure, own[figure], best[1]):.2f}x" if best else "-"))
    return rows


def verdict_text(verdict: Verdict) -> str:
    """Say a verdict in a few words."""
    if verdict.value is None:
        return f"not shown: {verdict.reason}"
    value = (
        f"{verdict.value:.2f}x {verdict.reason}"
        if verdict.target.against == "peers"
        else show(verdict.target.figure, verdict.value)
    )
    return f"{'met' if verdict.met else 'MISSED'}: {value}"


def print_ratios(console: Console, results: Results) -> bool:
    """Print how many times better Sluiceway is than each peer, and the targets; return whether all targets are met."""
    others = [peer for peer in results.peers() if peer != SUBJECT]
    table = Table(title="sluiceway is so many times better than", title_justify="left", title_style="bold")
    for head in ("scenario", "figure", *others, "the better of " + "/".join(REFERENCES)):
        table.add_column(head, justify="left" if head in ("scenario", "figure") else "right")
    for name, figure, by_peer, best in ratio_rows(results):
        table.add_row(name, title(figure), *(by_peer.get(peer, "-") for peer in others), best)
    console.print(table)
    verdicts = judged(results)
    for scenario, verdict in verdicts:
        style = "green" if verdict.met else "red"
        console.print(
            f"{scenario.name}: {target_text(verdict.target)}: {verdict_text(verdict)}", style=style, markup=False
        )
    return all(verdict.met for _, verdict in verdicts)
