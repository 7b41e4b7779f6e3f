"""The charts of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from perf.reports.results import Results
from perf.scenarios import BY_NAME

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "sluiceway"  # the same results make the same file

from matplotlib import pyplot  # noqa: E402  (the backend has to be chosen first)
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import ScalarFormatter  # noqa: E402

_AHEAD, _BETWEEN, _BEHIND = "#2f7d4f", "#c79a2a", "#b8432f"


def draw_ratios(rows: Sequence[tuple[str, float, bool]], path: Path) -> Path | None:
    """Draw a bar for each name: how many times better, from 1 to the right or to the left, on a logarithmic axis.

    `rows`: name, times better, and whether that is clearly ahead; from the top downwards.
    Returns the path; None, and nothing is written, where there are no rows.
    """
    if not rows:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.24 * len(rows)), layout="constrained")
    colours = [_AHEAD if clearly else _BETWEEN if times >= 1 else _BEHIND for _name, times, clearly in rows]
    bars = axes.barh(range(len(rows)), [times - 1 for _name, times, _clearly in rows], 0.72, left=1.0, color=colours)
    axes.bar_label(
        bars, [f"{times:.1f}" if times >= 2 else f"{times:.2f}" for _name, times, _ in rows], padding=3, fontsize=8
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.axvline(1.0, color="#444444", linewidth=0.8)
    axes.axvline(2.0, color="#999999", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(rows)), [name for name, _times, _clearly in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("times better than the better of RabbitMQ and ActiveMQ")
    axes.spines[["top", "right"]].set_visible(False)
    return _saved(figure, path)


def draw_drains(results: Results, path: Path) -> Path | None:
    """Draw the rate at which backlogs are drained over their size, a line for each broker and kind of message.

    Returns the path; None, and nothing is written, where no line would have two points.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for name in results.scenarios():
        scenario = BY_NAME.get(name)
        if scenario is None or scenario.backlog is None:
            continue
        kind = f"{'' if scenario.persistent else 'not '}persistent, {scenario.body_bytes:,} B"
        for peer in results.peers():
            found = results.medians(name, peer)
            if "backlog_count" in found and "drain_rate_per_second" in found:
                point = found["backlog_count"], found["drain_rate_per_second"]
                lines.setdefault(f"{peer}: {kind}", []).append(point)
    lines = {label: sorted(points) for label, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("messages in the backlog")
    axes.set_ylabel("messages a second to its consumer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return _saved(figure, path)


def _saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
