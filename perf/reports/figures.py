"""The figures that a run yields: name, unit, which way is better, what it means. Every table is made from this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from attrs import frozen

Better = Literal["higher", "lower", "neither"]


@frozen(slots=True)
class Figure:
    """One measured number. `unit` says how `show` prints it."""

    name: str
    unit: Literal["per_second", "bytes_per_second", "seconds", "us", "bytes", "count", "ratio"]
    better: Better
    meaning: str


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("rate_per_second", "per_second", "higher", "messages delivered to consumers a second"),
        Figure("delivered_count", "count", "neither", "messages delivered in the measured window"),
        Figure("window_seconds", "seconds", "neither", "length of the measured window"),
        Figure("broker_cpu_seconds", "seconds", "lower", "CPU time of the broker's processes in the window"),
        Figure("broker_cpu_us", "us", "lower", "the same per delivered message"),
        Figure("generator_cpu_seconds", "seconds", "neither", "CPU time of the load generator in the window"),
        Figure("generator_cpu_us", "us", "neither", "the same per delivered message"),
        Figure(
            "others_cpu_seconds",
            "seconds",
            "neither",
            "CPU time in the window of neither broker nor generator, steal included",
        ),
        Figure("spare_cpu_seconds", "seconds", "neither", "CPU time in the window that nobody used"),
        Figure("rss_start_bytes", "bytes", "neither", "resident memory of the broker before the run"),
        Figure("rss_peak_bytes", "bytes", "lower", "largest resident memory of the broker seen in the run"),
        Figure("rss_growth_bytes", "bytes", "lower", "peak less start"),
        Figure("p50_us", "us", "lower", "median time from the making of a message to its arrival"),
        Figure("p99_us", "us", "lower", "99th percentile of that"),
        Figure("p999_us", "us", "lower", "99.9th percentile of that"),
        Figure("max_us", "us", "lower", "largest of that"),
        Figure("high_p50_us", "us", "lower", "median for the messages of priority 9"),
        Figure("high_p99_us", "us", "lower", "99th percentile for the messages of priority 9"),
        Figure("alone_rate_per_second", "per_second", "higher", "rate of the fast pair before the neighbour came"),
        Figure("retained_ratio", "ratio", "higher", "rate of the fast pair beside the neighbour / alone, same run"),
        Figure(
            "rss_slope_bytes_per_second",
            "bytes_per_second",
            "lower",
            "growth of memory beside the neighbour: slope of the fitted line over the last three quarters",
        ),
        Figure(
            "memory_rate_per_second", "per_second", "higher", "rate of the same load without `persistent`, same run"
        ),
        Figure("memory_ratio", "ratio", "higher", "rate / rate without `persistent`, same run"),
        Figure("store_written_count", "count", "neither", "messages that the broker says it wrote to its store"),
        Figure("store_cancelled_count", "count", "neither", "messages acknowledged before they had to be written"),
        Figure("store_syncs_count", "count", "neither", "times that it made the disk keep what was written"),
        Figure("store_written_bytes", "bytes", "neither", "bytes that it wrote to its store"),
        Figure("cancelled_ratio", "ratio", "higher", "share of writes that were never made, since acks came first"),
        Figure("backlog_count", "count", "neither", "messages in the backlog"),
        Figure("empty_rate_per_second", "per_second", "higher", "rate of producing and consuming at once, no backlog"),
        Figure("fill_rate_per_second", "per_second", "higher", "messages taken and confirmed a second, no consumer"),
        Figure("fill_ratio", "ratio", "higher", "rate of filling / rate without a backlog"),
        Figure("fill_broker_cpu_us", "us", "lower", "CPU time of the broker per message of the fill"),
        Figure("fill_generator_cpu_us", "us", "neither", "CPU time of the load generator per message of the fill"),
        Figure("filled_rss_bytes", "bytes", "lower", "resident memory of the broker when the backlog is there"),
        Figure("disk_bytes_per_message", "bytes", "lower", "the broker's folder when the backlog is there"),
        Figure("stop_seconds", "seconds", "lower", "from asking the broker to stop until its processes were gone"),
        Figure("ready_seconds", "seconds", "lower", "from the start on that backlog until it answered a client"),
        Figure("ready_rss_bytes", "bytes", "lower", "resident memory then"),
        Figure("first_message_seconds", "seconds", "lower", "from a new client's connecting until its first message"),
        Figure("drain_rate_per_second", "per_second", "higher", "messages of the backlog delivered a second"),
        Figure("drain_ratio", "ratio", "higher", "rate of draining / rate without a backlog"),
        Figure("drain_broker_cpu_us", "us", "lower", "CPU time of the broker per message of the drain"),
        Figure("drain_generator_cpu_us", "us", "neither", "CPU time of the load generator per message of the drain"),
        Figure("flood_count", "count", "neither", "messages of the flood that the broker took"),
        Figure("idle_held_ratio", "ratio", "higher", "share of the idle connections that were alive at the end"),
        Figure("idle_bytes_per_connection", "bytes", "lower", "growth of resident memory per idle connection"),
        Figure("idle_cpu_share", "ratio", "lower", "processors that the broker takes for idle connections"),
        Figure(
            "idle_cpu_seconds", "seconds", "lower", "CPU time of the broker in the window in which nothing was sent"
        ),
        Figure("connects_per_second", "per_second", "higher", "connections opened and CONNECTED a second"),
        Figure("log_bytes_per_second", "bytes_per_second", "higher", "bytes of records (without headers) a second"),
        Figure(
            "wire_bytes_per_second", "bytes_per_second", "higher", "bytes that readers got from the socket a second"
        ),
        Figure(
            "raw_bytes_per_second",
            "bytes_per_second",
            "neither",
            "the same by a program that does nothing else, same run",
        ),
        Figure("raw_ratio", "ratio", "higher", "bytes of the broker / bytes of that program"),
        Figure("log_bytes", "bytes", "neither", "bytes of records in the log"),
        Figure("one_group_seconds", "seconds", "lower", "time until one group had read the log"),
        Figure("ten_groups_seconds", "seconds", "lower", "time until ten groups at once had read the log"),
        Figure("groups_time_ratio", "ratio", "lower", "time of ten groups / time of one"),
        Figure("groups_cpu_ratio", "ratio", "lower", "CPU time of the broker for ten groups / for one"),
        Figure("past_bytes_per_second", "bytes_per_second", "higher", "bytes a second to the reader of the past"),
        Figure("past_disk_bytes", "bytes", "neither", "bytes that the disk was read for meanwhile"),
        Figure("anon_growth_bytes", "bytes", "lower", "growth of resident memory that is no mapped file"),
        Figure(
            "ceiling_rate_per_second", "per_second", "neither", "rows a second that Spark's own path carries, same run"
        ),
        Figure("ceiling_ratio", "ratio", "higher", "rate / that ceiling"),
        Figure("java_cpu_us", "us", "neither", "CPU time of Spark's Java per row"),
        Figure("python_cpu_us", "us", "neither", "CPU time of Spark's Python processes per row"),
        Figure("batch_rows_count", "count", "neither", "rows of a micro-batch"),
        Figure("planning_ratio", "ratio", "lower", "share of the time in which the source says how far to go"),
        Figure("spark_ratio", "ratio", "neither", "share of the time in which Spark plans, keeps offsets and commits"),
    )
}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile (`share` from 0 to 1) of an ascending, non-empty sequence."""
    if not ordered:
        raise ValueError("a percentile of nothing was asked for: no sample was taken")
    rank = -int(-share * len(ordered) // 1)
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def show(name: str, value: float) -> str:
    """Print a figure for a person, in its unit, to three or four significant digits."""
    unit = FIGURES[name].unit
    if unit == "per_second":
        return f"{value:,.0f}/s"
    if unit == "bytes_per_second":
        return f"{value / 1024:,.1f} KiB/s" if abs(value) < 1e7 else f"{value / 1e6:,.0f} MB/s"
    if unit == "bytes":
        return f"{value / 1024:,.1f} KiB" if abs(value) < 1024 * 1024 else f"{value / 1024 / 1024:,.0f} MiB"
    if unit == "us":
        return f"{value / 1000:,.2f} ms" if value >= 1000 else f"{value:,.1f} µs"
    if unit == "seconds":
        return f"{value:,.2f} s"
    if unit == "count":
        return f"{value:,.0f}"
    return f"{value:.2f}"
