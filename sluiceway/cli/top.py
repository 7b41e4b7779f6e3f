"""`sluiceway top`: a live view of a broker in a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from sluiceway.cli.connecting import host_options
from sluiceway.cli.exits import Exit, fail

if TYPE_CHECKING:
    from sluiceway.client.address import Address


@click.command()
@click.option(
    "--interval",
    "interval_seconds",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Ask the broker so often.",
)
@click.option("--once", is_flag=True, help="Look twice, one interval apart, print the result, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per interval, for programs.")
@host_options
def top(address: Address, interval_seconds: float, once: bool, as_json: bool) -> None:
    """Watch a broker: what blocks it, rates, depths, ages and forecasts.

    In a terminal it stays until q or Ctrl-C; Enter on a row tells what it waits on, ? explains the keys. It asks over
    STOMP as `sluiceway stat` does, and reconnects when the broker was away.

    \b
    Examples:
      sluiceway top
      sluiceway top --interval 0.5 --url stomp://admin@broker.example:61613
      sluiceway top --once
      sluiceway top --json | jq .head.in_per_second
    """
    from sluiceway.extras import MissingExtraError, needs
    from sluiceway.top.feed import follow, link_to

    if once or as_json:
        _print(address, interval_seconds, once, as_json)
        return
    try:
        with needs("top", "top in a terminal"):
            from sluiceway.top.app import run
    except MissingExtraError as error:
        fail(Exit.USAGE, f"{error}, or try `sluiceway top --once`")
    # Textual reads from standard input and draws on standard error.
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        fail(Exit.USAGE, "top needs a terminal: try `sluiceway top --once`, or --json for programs")
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        fail(Exit.USAGE, "this terminal can't be drawn on (TERM is dumb or not set): try `sluiceway top --once`")
    with link_to(address) as link:
        link.ask("stat")  # a wrong address or passcode is reported before the screen is taken
    code = run(lambda tell, stop: follow(partial(link_to, address), tell, interval_seconds, stop))
    raise click.exceptions.Exit(code)


def _print(address: Address, interval_seconds: float, once: bool, as_json: bool) -> None:
    from rich.console import Console

    from sluiceway.cli.stat import PIPED_WIDTH
    from sluiceway.top.feed import link_to
    from sluiceway.top.picture import Painter
    from sluiceway.top.plain import as_data, draw

    painter = Painter()
    try:
        with link_to(address) as link:
            painter.paint(link.ask("stat"))
            while True:
                time.sleep(interval_seconds)
                picture = painter.paint(link.ask("stat"))
                if as_json:
                    click.echo(json.dumps(as_data(picture), ensure_ascii=False))
                else:
                    draw(picture, Console(width=None if sys.stdout.isatty() else PIPED_WIDTH))
                if once:
                    return
    except KeyboardInterrupt:
        return
