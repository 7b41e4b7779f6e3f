"""`python -m perf`: list, run, compare, turns, report."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from perf.comparing import Comparison
from perf.load.idling import raise_descriptor_limit
from perf.logs.scenarios import LOG_CATALOGUE, LogScenario, choose_logs, is_log_scenario
from perf.peers import STARTABLE, Peer, UnknownPeerError, peer_named
from perf.peers.port import PeerError
from perf.probes.gaps import Scene, lines, measure
from perf.probes.unheard import lines as unheard_lines
from perf.probes.unheard import measure as measure_unheard
from perf.reports import tables
from perf.reports.results import Results, drop_superseded, keep, kept_in, load, merge, save
from perf.reports.spark import spark_lines
from perf.reports.turns import turns_lines
from perf.runner import Effort
from perf.scenarios import CATALOGUE, Scenario, UnknownScenarioError, choose
from perf.spark.scenarios import choose_spark
from perf.started import started
from perf.turns import measure_in_turns

_OUT = Path(__file__).resolve().parent / "out"
_MEASURED = Path(__file__).resolve().parent / "measured"
_DOCS = Path(__file__).resolve().parent.parent / "docs"


def _with_effort(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that make an `Effort`, and `pin`."""
    options = (
        click.option(
            "--seconds",
            default=5.0,
            show_default=True,
            type=click.FloatRange(0.1, 600),
            help="Length of the measured window.",
        ),
        click.option(
            "--flood-seconds",
            default=60.0,
            show_default=True,
            type=click.FloatRange(0.1, 3600),
            help="The same for the floods that are paged to disk; memory's slope wants 600.",
        ),
        click.option(
            "--backlog-count",
            type=click.IntRange(100),
            help="Messages of a backlog, for every broker alike  [default: what the scenario says]",
        ),
        click.option(
            "--pin", is_flag=True, help="Broker on processor 0, load generator on processor 1, for every broker alike."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _effort(seconds: float, flood_seconds: float, backlog_count: int | None, pin: bool) -> Effort:
    return Effort(
        seconds=seconds,
        flood_seconds=flood_seconds,
        backlog_count=backlog_count,
        generator_cores=frozenset({1}) if pin else None,
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure Sluiceway, and other STOMP brokers beside it, with one load generator.

    \b
    python -m perf list
    python -m perf run 1_1_1-20b-auto --runs 3
    python -m perf compare --scenarios targets
    python -m perf report perf/out/compare.json

    A full comparison installs RabbitMQ and ActiveMQ from Debian (root or sudo) and CoilMQ from PyPI (into a cache
    folder), starts them on loopback, and takes about three minutes a scenario, those of paging and backlogs more (ten
    million messages want 10 GiB of disk; --backlog-count says otherwise). Leave the machine alone meanwhile.
    """


@main.command("list")
def list_scenarios() -> None:
    """Show the scenarios and their targets."""
    table = Table("scenario", "what it does", "target", box=None, pad_edge=False)
    for scenario in (*CATALOGUE, *LOG_CATALOGUE):
        wanted = "; ".join(tables.target_text(target) for target in scenario.targets)
        table.add_row(scenario.name, scenario.summary, wanted)
    Console().print(table)


@main.command()
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    default=["sluiceway"],
    show_default=True,
    help="Broker to measure; repeatable. A name or HOST:PORT[/PID].",
)
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1))
@_with_effort
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the results as JSON.")
def run(
    scenarios: tuple[str, ...],
    peers: tuple[str, ...],
    runs: int,
    seconds: float,
    flood_seconds: float,
    backlog_count: int | None,
    pin: bool,
    out: Path | None,
) -> None:
    """Run scenarios against one broker (or a few) and print the results.

    SCENARIO is a name from `list`, or `all`, or `targets` for those with a target, `persistence` for those that need a
    disk, or `logs`. Exit status 1: a run was faulty.
    """
    effort = _effort(seconds, flood_seconds, backlog_count, pin)
    results = _measure(_scenarios(scenarios), _peers(peers), runs, effort, pin, out)
    tables.print_runs(Console(), results)
    if any(measurement.faults for measurement in results.measurements):
        sys.exit(1)


@main.command()
@click.option(
    "--peers", default="rabbitmq,activemq,coilmq", show_default=True, help="Brokers to compare Sluiceway with."
)
@click.option(
    "--scenarios",
    default="targets",
    show_default=True,
    help="Names from `list` with commas between, `all`, `targets`, `persistence` or `logs`.",
)
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1))
@_with_effort
@click.option(
    "--subject/--no-subject", default=True, show_default=True, help="Measure Sluiceway too, or only the peers."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_OUT / "compare.json",
    show_default="perf/out/compare.json",
)
def compare(
    peers: str,
    scenarios: str,
    runs: int,
    seconds: float,
    flood_seconds: float,
    backlog_count: int | None,
    pin: bool,
    subject: bool,
    out: Path,
) -> None:
    """Install, start, drive and stop other brokers, with Sluiceway's runs between theirs, and print the ratios.

    Exit status 1: a target is missed. Other people's faulty runs are shown and do not count.
    """
    names = (["sluiceway"] if subject else []) + [name.strip() for name in peers.split(",") if name.strip()]
    chosen = _scenarios(tuple(name.strip() for name in scenarios.split(",")))
    effort = _effort(seconds, flood_seconds, backlog_count, pin)
    results = _measure(chosen, _peers(tuple(names)), runs, effort, pin, out)
    console = Console()
    tables.print_runs(console, results)
    if subject and not tables.print_ratios(console, results):
        sys.exit(1)


@main.command()
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO...")
@click.option(
    "--peers", required=True, help="Two or more, with commas between; the first is what others are compared with."
)
@click.option("--starts", default=3, show_default=True, type=click.IntRange(1), help="How often all are started anew.")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(1), help="Turns of each, for each start.")
@click.option("--seconds", default=3.0, show_default=True, type=click.FloatRange(0.1, 60), help="Length of a turn.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the results as JSON.")
def turns(scenarios: tuple[str, ...], peers: str, starts: int, rounds: int, seconds: float, out: Path | None) -> None:
    """Load brokers in turns of a few seconds, and print what each keeps of the first one's rate.

    For differences that are smaller than a machine's noise: what TLS costs, or being watched.

    \b
    python -m perf turns 1_1_1-1k-auto --peers sluiceway-bare,sluiceway-watched
    python -m perf turns 1_1_1-1k-auto --peers sluiceway,sluiceway-tls,sluiceway-websocket
    python -m perf turns 1_1_1-1k-auto --peers sluiceway,sluiceway-across
    python -m perf turns 10_10_10-100b-auto --peers sluiceway,sluiceway-hubs
    git worktree add ../before HEAD~1 && python -m perf turns 1_1_1-1k-auto --peers sluiceway@../before,sluiceway
    """
    chosen = _scenarios(scenarios)
    of_brokers = [scenario for scenario in chosen if isinstance(scenario, Scenario)]
    if len(of_brokers) < len(chosen):
        raise click.BadParameter("logs are not measured in turns")
    sides = _peers(tuple(peers.split(",")))
    if len(sides) < 2:
        raise click.BadParameter("name two peers or more", param_hint="--peers")
    _ending_kills()
    parts: list[Results] = []
    for scenario in of_brokers:
        try:
            part = measure_in_turns(
                scenario,
                sides,
                starts=starts,
                rounds=rounds,
                seconds=seconds,
                tell=lambda text: click.echo(text, err=True),
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        parts.append(part)
        if out is not None:
            save(merge(parts), out)
        for line in turns_lines(part):
            click.echo(line)
    if any(one.faults for part in parts for one in part.measurements):
        sys.exit(1)


@main.command()
@click.option(
    "--peer", "peer_name", default="sluiceway", show_default=True, help="Also sluiceway@FOLDER: another checkout."
)
@click.option("--count", default=10_000, show_default=True, type=click.IntRange(100), help="Of things that are many.")
def gaps(peer_name: str, count: int) -> None:
    """Print how long one client's expensive frames and requests delay all other clients.

    A broker process with its defaults, one client that does one expensive thing after the other, and a pair that ticks
    each millisecond. A row says the largest delay of the pair's message while the client did that (gap), the largest
    delay without any work (idle: the noise of the machine), and the ratio of the two. Compare `times`, and each gap
    with that of `nothing`; a gap that grows with --count is work in one step. docs/gaps.md tells more.

    Before and after a change: python -m perf gaps --peer sluiceway@../before; python -m perf gaps

    `tests/limits` holds the same to a budget that is counted, not measured.
    """
    (peer,) = _peers((peer_name,))
    _ending_kills()
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    with started(peer, None, f'[admin]\naddress = "{http}"\n') as broker:
        scene = Scene(broker.endpoint, f"http://{http}")
        for line in lines(measure(scene, count, lambda text: click.echo(text, err=True))):
            click.echo(line)


@main.command()
@click.option("--peers", default="sluiceway", show_default=True, help="Comma-separated; also sluiceway@FOLDER.")
@click.option("--rounds", default=8, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=1.0, show_default=True, type=click.FloatRange(0.05), help="Of each turn.")
def unheard(peers: str, rounds: int, seconds: float) -> None:
    """Print how fast brokers drop SENDs to a topic without a subscriber, of 20 bytes and of 1 KiB, in turns.

    A row says the rate, the broker's processor time for each SEND, and the ratios of both to the first peer's.

    Before and after a change: python -m perf unheard --peers sluiceway@../before,sluiceway
    """
    sides = _peers(tuple(peers.split(",")))
    _ending_kills()
    for line in unheard_lines(list(measure_unheard(sides, (20, 1024), rounds=rounds, seconds=seconds))):
        click.echo(line)


@main.command("spark")
@click.option("--rows", default=2_000_000, show_default=True, type=click.IntRange(10_000), help="Of 100 bytes each.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=_OUT / "spark.json", show_default=True)
@click.argument("names", nargs=-1)
def spark(rows: int, runs: int, out: Path, names: tuple[str, ...]) -> None:
    """Measure how fast Spark reads and writes, and the throughput of its own path from and to Python beside it.

    NAMES: of scenarios; none: all. What was measured of others before stays in the result file.
    """
    try:
        from perf.spark.runner import measure
    except ImportError as error:
        raise click.ClickException(f"{error}: install pyspark and pyarrow (the extra spark)") from error
    try:
        chosen = choose_spark(names)
    except UnknownScenarioError as error:
        raise click.BadParameter(str(error)) from error
    before = [load(out)] if out.exists() else []
    told: set[str] = set()

    def done(results: Results) -> None:
        save(merge([*before, results]), out)
        for name in [name for name in results.scenarios() if name not in told]:
            told.add(name)
            for line in spark_lines(results, name):
                click.echo(line)

    results = measure(chosen, rows, runs, done)
    if any(one.faults for one in results.measurements):
        sys.exit(1)


@main.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--measured",
    type=click.Path(path_type=Path, file_okay=False),
    default=_MEASURED,
    show_default="perf/measured",
    help="Where the raw results are kept, compressed.",
)
@click.option("--docs", "folder", type=click.Path(path_type=Path, file_okay=False), default=_DOCS, show_default="docs")
def report(files: tuple[Path, ...], measured: Path, folder: Path) -> None:
    """Keep result files, and make docs/performance.md, its method, details and charts of all that are kept.

    FILES (from --out of `compare`, `run`, `turns` or `spark`) are kept first; without any the pages are made anew. Of a
    scenario that was measured several times the latest call counts. Files of which nothing counts any more are removed.
    """
    from perf.reports.page import write_report  # matplotlib takes a second to import, and only this command needs it

    try:
        for path in files:
            click.echo(f"kept {keep(path, measured)}")
        for path in drop_superseded(measured):
            click.echo(f"removed {path}: all of its scenarios were measured again")
        kept = kept_in(measured)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not kept:
        raise click.ClickException(
            f"nothing is kept in {measured}: measure with `perf compare`, and name its file here"
        )
    for written in write_report(merge([load(path) for path in kept]), folder):
        click.echo(f"wrote {written}")


def _scenarios(names: tuple[str, ...]) -> list[Scenario | LogScenario]:
    of_logs = [name for name in names if is_log_scenario(name)]
    try:
        return [*choose([name for name in names if name not in of_logs]), *choose_logs(of_logs)]
    except UnknownScenarioError as error:
        raise click.BadParameter(str(error)) from error


def _peers(names: tuple[str, ...]) -> list[Peer]:
    try:
        return [peer_named(name) for name in dict.fromkeys(names)]
    except (UnknownPeerError, PeerError) as error:
        raise click.BadParameter(f"{error} (startable: {', '.join(STARTABLE)})") from error


def _ending_kills() -> None:
    """A kill must end the brokers like Ctrl-C does: as an exception, so that every `finally` runs. Ctrl-C itself is
    ignored by what a shell starts in the background, unless it is asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))


def _measure(
    scenarios: list[Scenario | LogScenario], peers: list[Peer], runs: int, effort: Effort, pin: bool, out: Path | None
) -> Results:
    """Install and measure with a progress bar, saving after each scenario."""
    _ending_kills()
    raise_descriptor_limit()
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Two drawings a second: the progress bar shares the machine with what it shows.
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        task = progress.add_task("installing", total=len(scenarios))
        for peer in peers:
            progress.update(task, description=f"installing {peer.name} where it is missing")
            try:
                peer.install()
            except PeerError as error:
                raise click.ClickException(str(error)) from error
        comparison = Comparison(
            peers,
            effort,
            runs,
            frozenset({0}) if pin else None,
            lambda text: progress.update(task, description=text),
        )
        for scenario in scenarios:
            comparison.measure(scenario)
            progress.advance(task)
            if out is not None:
                save(comparison.results(), out)
    if out is not None:
        console.print(f"results are in {out}")
    return comparison.results()
