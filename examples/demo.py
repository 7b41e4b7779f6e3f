"""The demonstration: a broker, real stomp.py clients, eleven situations, and a verdict that is computed.

    scripts/demo --cluster  another show, half a minute: three hubs are one broker, and one is killed under load

    scripts/demo            on a terminal: live, a minute and a half, most of it for Spark
    scripts/demo --plain    lines of text; so it is anyway when the output goes to a file or CI
    scripts/demo --quick    small numbers and no pauses
    scripts/demo --no-spark without the last situation: half a minute, with --quick some seconds

The broker is a process of its own (`sluiceway serve`), with its store in a folder. Exit code 0: every check was met; 1:
one was not, or the broker complained; 130: Ctrl-C. The broker is stopped in any case.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from stomp.exception import StompException

from examples.stage.account import Account, Check
from examples.stage.acts import DAILY_ACTS
from examples.stage.cluster_act import CLUSTER_ACT, HUBS_COUNT
from examples.stage.flow_map import FlowMap
from examples.stage.lasting_acts import LASTING_ACTS
from examples.stage.live import LiveScreen
from examples.stage.play import Act, Stage
from examples.stage.screen import PlainScreen, Screen, marks
from examples.stage.server import Server, ServerError
from examples.stage.spark_act import SPARK_ACT, missing
from sluiceway.flow.words import size_in_words

DATA_DIR: Final = Path("out/demo")
ASK_EVERY_SECONDS: Final = 0.2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Small numbers and no pauses.")
@click.option("--plain", is_flag=True, help="Lines of text, also on a terminal.")
@click.option(
    "--data",
    "data_dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA_DIR,
    show_default=True,
    help="Folder for the broker's configuration, log and data.",
)
@click.option("--spark/--no-spark", default=True, help="Play the act with Spark, too [default: if it is there].")
@click.option(
    "--cluster",
    is_flag=True,
    help="Another show, half a minute: three hubs are one broker, and one is killed under load. The hubs are processes "
    "of `sluiceway serve --hubs 3` on this machine, so nothing else has to be installed; hubs on several machines run "
    "the same code on ZooKeeper and PostgreSQL.",
)
def main(quick: bool, plain: bool, data_dir: Path, spark: bool, cluster: bool) -> None:
    """Show what Sluiceway does, and prove it. Ends with 0 if every check was met, with 1 if not."""
    logging.getLogger("stomp.py").setLevel(logging.CRITICAL)  # it warns of every connection that is cut on purpose
    signal.signal(signal.SIGTERM, _interrupt)
    if isinstance(sys.stdout.encoding, str) and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # no terminal may end the show because it lacks a letter
    console = Console()
    screen: Screen = (
        PlainScreen() if plain or not console.is_terminal or console.is_dumb_terminal else LiveScreen(console)
    )
    began_seconds = time.monotonic()
    acts = [CLUSTER_ACT] if cluster else [*DAILY_ACTS, *LASTING_ACTS]
    if spark and not cluster:
        without = missing()
        if without:
            click.echo(f"demo: the act with Spark is left out: {without}", err=True)
        else:
            acts.append(SPARK_ACT)
    try:
        checks, memory_bytes = show(screen, data_dir, acts, quick=quick, hubs_count=HUBS_COUNT if cluster else 0)
    except KeyboardInterrupt:
        click.echo("interrupted; the broker was stopped", err=True)
        sys.exit(130)
    except ServerError as error:
        click.echo(f"demo: {error}", err=True)
        sys.exit(1)
    except (StompException, OSError) as error:
        why = f"{type(error).__name__} {error}".strip()
        click.echo(f"demo: the broker went away ({why}); see {data_dir / 'broker.log'}", err=True)
        sys.exit(1)
    met = verdict(checks, seconds=time.monotonic() - began_seconds, memory_bytes=memory_bytes)
    if not met:
        click.echo(f"The broker's log and configuration are in {data_dir}.")
    sys.exit(0 if met else 1)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def show(
    screen: Screen, data_dir: Path, acts: Sequence[Act], *, quick: bool, hubs_count: int = 0
) -> tuple[list[Check], int]:
    """Plays the acts, with a broker of `hubs_count` processes (0: one). Returns the checks, and the most memory that
    the broker was seen to use, in bytes.

    Raises ServerError if there is no broker to play with. The broker has ended when this returns or raises.
    """
    total = Account()
    checks: list[Check] = []
    try:
        with Server(data_dir, hubs_count=hubs_count) as server:
            screen.open([act.title for act in acts])
            flow_map = FlowMap(server.host, server.port)
            flow_map.watch(screen.report, interval_seconds=ASK_EVERY_SECONDS)
            stage = Stage(server, screen, flow_map, data_dir, quick)
            for number, act in enumerate(acts, 1):
                screen.act(number, act.title, act.promise)
                try:
                    account, proved = act.play(stage)
                except (StompException, OSError, ServerError) as error:
                    # The broker refused or went away: that fails this act; the others say whether it is still there.
                    account, proved = (
                        Account(),
                        [Check("the act came to its end", f"{type(error).__name__}: {error}", False)],
                    )
                finally:
                    stage.clear()
                total.add(account)
                for check in proved:
                    checks.append(check)
                    screen.checked(check)
                stage.hold_the_picture()
            flow_map.close()
    finally:
        screen.close()
    checks.append(total.check())
    complaints = server.complaints()
    checks.append(
        Check(
            "the broker stopped in good order",
            f"exit code {server.exit_code}, {len(complaints)} errors in its log"
            + "".join(f": {c}" for c in complaints[:1]),
            server.exit_code == 0 and not complaints,
        )
    )
    return checks, flow_map.rss_bytes_max


def verdict(checks: Sequence[Check], *, seconds: float, memory_bytes: int) -> bool:
    """Prints it. Returns whether every check was met."""
    yes, no = marks()
    failed = [check for check in checks if not check.met]
    for check in checks[-2:]:
        click.echo(f"{yes if check.met else no} {check.claim}: {check.numbers}")
    for check in failed:
        click.echo(f"{no} NOT MET: {check.claim}: {check.numbers}")
    met = len(checks) - len(failed)
    click.echo(
        f"Verdict: {'passed' if not failed else 'FAILED'}, {met} of {len(checks)} checks met in {seconds:.0f} s; "
        f"the broker never used more than {size_in_words(memory_bytes)}."
    )
    return not failed


if __name__ == "__main__":
    main()
