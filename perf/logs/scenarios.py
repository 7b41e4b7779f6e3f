"""The named scenarios of logs: records, readers, and targets.

A name reads log-WHAT-SIZE-HOW. All logs are filled with batches of 500 records, by one connection, before they are
read. `log-stream-…` are made for RabbitMQ's streams too, so they use what both brokers have over STOMP: plain SENDs,
plain MESSAGEs, ack client.

Source: issue 4, "Proof and speed". `perf.logs.runner` implements each kind.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from perf.scenarios import KIB, MIB, Ack, Goal

Kind = Literal["append", "read", "groups", "past", "memory"]

BATCH_COUNT = 500
_CACHED = "[logs]\npage_cache_bytes_max = 268435456\n"
GIB = 1024 * MIB

_APPEND = ("rate_per_second", "log_bytes_per_second", "broker_cpu_us", "generator_cpu_us", "rss_peak_bytes")
_APPEND_RAW = (*_APPEND[:2], "raw_bytes_per_second", "raw_ratio", *_APPEND[2:])
_READ = ("rate_per_second", "log_bytes_per_second", "broker_cpu_us", "generator_cpu_us", "rss_peak_bytes")
_RAW = ("log_bytes_per_second", "raw_bytes_per_second", "raw_ratio", *_READ[2:])
_GROUPS = ("one_group_seconds", "ten_groups_seconds", "groups_time_ratio", "groups_cpu_ratio", "rate_per_second")
_PAST = ("alone_rate_per_second", "rate_per_second", "retained_ratio", "past_bytes_per_second", "past_disk_bytes")
_MEMORY = (
    "log_bytes", "log_bytes_per_second", "rss_start_bytes", "filled_rss_bytes", "rss_peak_bytes", "rss_growth_bytes",
    "anon_growth_bytes", "rss_slope_bytes_per_second",
)  # fmt: skip


@frozen(slots=True)
class LogScenario:
    """One load on a log. `peers`: who can run it. The fields that `perf.comparing` and `perf.reports.tables` look at
    are called as those of `perf.scenarios.Scenario`.
    """

    name: str
    summary: str
    kind: Kind
    body_bytes: int
    columns: tuple[str, ...]
    batch_count: int = BATCH_COUNT
    """Records of a SEND (append): a batch; 0: plain SENDs."""
    window_count: int = 0
    """SENDs whose receipts may be missing; 0: none asks for one."""
    receipt_every: int = 1
    fill_count: int = 0
    """Number of records in the log before it is read."""
    batch_bytes: int = 0
    """Approximate size of the batches in MESSAGEs; 0: of one record."""
    grouped: bool = False
    ack: Ack = "auto"
    prefetch_count: int = 0
    """Asked for; 0: the broker's default."""
    beside_raw: bool = False
    """Whether the run also measures a program that does nothing else: a copy over loopback (read), or writing and
    syncing (append).
    """
    rate_per_second: float = 0.0
    """Rate of the appender; 0: as fast as the broker takes records."""
    stream: bool = False
    """Whether RabbitMQ takes part, with a stream."""
    fresh_broker: bool = False
    settings: str = ""
    idle_count: int = 0
    targets: tuple[Goal, ...] = ()


def _at_least(figure: str, value: float) -> tuple[Goal, ...]:
    return (Goal(figure, value, "itself"),)


LOG_CATALOGUE: tuple[LogScenario, ...] = (
    LogScenario(
        "log-append-100b-x500",
        "100-byte records, batches of 500, a receipt for each, 64 under way, one connection",
        "append",
        100,
        _APPEND,
        window_count=64,
        targets=_at_least("rate_per_second", 1_000_000),
    ),
    LogScenario(
        "log-append-100b-x500-w16",
        "the same with 16 under way",
        "append",
        100,
        _APPEND,
        window_count=16,
    ),
    LogScenario(
        "log-append-100b-x500-unconfirmed",
        "100-byte records, batches of 500, no receipts, one connection",
        "append",
        100,
        _APPEND,
        targets=_at_least("rate_per_second", 1_000_000),
    ),
    LogScenario(
        "log-append-1k-x500",
        "1-KiB records, batches of 500, a receipt for each, 64 under way, one connection; beside it what a program "
        "that only writes and syncs can do",
        "append",
        KIB,
        _APPEND_RAW,
        window_count=64,
        beside_raw=True,
        targets=_at_least("rate_per_second", 300_000),
    ),
    LogScenario(
        "log-append-1k-x500-cached",
        "the same with page_cache_bytes_max of 256 MiB: what is older is not left in the page cache",
        "append",
        KIB,
        _APPEND_RAW,
        window_count=64,
        beside_raw=True,
        settings=_CACHED,
        targets=_at_least("rate_per_second", 300_000),
    ),
    LogScenario(
        "log-append-1k-x500-cached-unconfirmed",
        "the same without receipts",
        "append",
        KIB,
        _APPEND,
        settings=_CACHED,
        targets=_at_least("rate_per_second", 300_000),
    ),
    LogScenario(
        "log-append-100b-plain",
        "100-byte records, one SEND each, a receipt for every thousandth, 16 under way, one connection",
        "append",
        100,
        _APPEND,
        batch_count=0,
        window_count=16,
        receipt_every=1000,
    ),
    LogScenario(
        "log-read-1k-batches",
        "1-KiB records in batch MESSAGEs of 1 MiB to one reader, and a raw loopback copy in the same run",
        "read",
        KIB,
        _RAW,
        fill_count=1_000_000,
        batch_bytes=MIB,
        beside_raw=True,
        targets=_at_least("log_bytes_per_second", 1e9),
    ),
    LogScenario(
        "log-read-100b-messages",
        "100-byte records as MESSAGEs to one reader, ack auto",
        "read",
        100,
        _READ,
        fill_count=2_000_000,
        targets=_at_least("rate_per_second", 200_000),
    ),
    LogScenario(
        "log-read-100b-group",
        "100-byte records as MESSAGEs to a group of one, cumulative acks, one per read",
        "read",
        100,
        _READ,
        fill_count=2_000_000,
        grouped=True,
        ack="client",
        prefetch_count=5000,
        targets=_at_least("rate_per_second", 200_000),
    ),
    LogScenario(
        "log-ten-groups-100b",
        "300,000 records of 100 bytes as MESSAGEs to one group, then to ten groups at once, cumulative acks",
        "groups",
        100,
        _GROUPS,
        fill_count=300_000,
        grouped=True,
        ack="client",
        prefetch_count=5000,
        targets=(Goal("groups_time_ratio", 10.0, "itself"), Goal("groups_cpu_ratio", 10.0, "itself")),
    ),
    LogScenario(
        "log-tail-beside-past",
        "100,000 records of 100 bytes a second are appended and read as MESSAGEs, then the same beside a reader of "
        "2 GB that are not in the page cache, in batches of 1 MiB",
        "past",
        100,
        _PAST,
        fill_count=2_000_000,
        rate_per_second=100_000,
        targets=_at_least("retained_ratio", 0.95),
    ),
    LogScenario(
        "log-memory-20g",
        "a log of 20 GB is filled with batches and read whole, in batches of 1 MiB",
        "memory",
        KIB,
        _MEMORY,
        window_count=16,
        fill_count=20_000_000,
        batch_bytes=MIB,
        fresh_broker=True,
        targets=(Goal("rss_growth_bytes", 256 * MIB, "itself"),),
    ),
    LogScenario(
        "log-stream-append-100b",
        "100-byte records, one SEND each, a receipt for every thousandth, 16 under way, one connection; RabbitMQ: a "
        "stream",
        "append",
        100,
        _APPEND,
        batch_count=0,
        window_count=16,
        receipt_every=1000,
        stream=True,
    ),
    LogScenario(
        "log-stream-read-100b",
        "100-byte records as MESSAGEs to one reader from the first one on, ack client, prefetch 5,000; RabbitMQ: a "
        "stream",
        "read",
        100,
        _READ,
        batch_count=0,
        fill_count=200_000,
        ack="client",
        prefetch_count=5000,
        stream=True,
    ),
)

LOGS_BY_NAME: dict[str, LogScenario] = {scenario.name: scenario for scenario in LOG_CATALOGUE}


def is_log_scenario(name: str) -> bool:
    """Whether a name on the command line is for here: `logs` stands for all of them."""
    return name == "logs" or name in LOGS_BY_NAME


def choose_logs(names: list[str]) -> list[LogScenario]:
    """Return the scenarios of these names, without doubles. `logs`: all but those that RabbitMQ has, too."""
    found: dict[str, LogScenario] = {}
    for name in names:
        some = [one for one in LOG_CATALOGUE if not one.stream] if name == "logs" else [LOGS_BY_NAME[name]]
        found |= {one.name: one for one in some}
    return list(found.values())
