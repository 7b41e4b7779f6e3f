"""`sluiceway stat`: asks a running broker for its flow map.

A request over STOMP (`Link.ask`), so that it needs no port beside the one for clients.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.answers import list_of, mapping_of
from sluiceway.cli.connecting import host_options

if TYPE_CHECKING:
    from sluiceway.client.address import Address
    from sluiceway.client.link import Link

REPLIES: Final = "stat"
"""Name of the temporary queue for the answers, which the map shows, too."""
PAGE_ROWS: Final = 1_000
PIPED_WIDTH: Final = 160
"""Characters per line without a terminal."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON, for programs.")
@click.option("--watch", is_flag=True, help="Ask again every --interval seconds until Ctrl-C.")
@click.option(
    "--interval", "interval_seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS"
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Print every row, not only the busiest. With --json: all pages of the answer.",
)
@host_options
def stat(address: Address, as_json: bool, watch: bool, interval_seconds: float, show_all: bool) -> None:
    """Show what a broker holds, what is blocked by what, and the root cause.

    \b
    Examples:
      sluiceway stat
      sluiceway stat --watch --interval 1
      sluiceway stat --json | jq .bottlenecks
      sluiceway stat --url stomp://admin@broker.example:61613
    """
    from rich.console import Console

    from sluiceway.cli.stat_view import render
    from sluiceway.client.link import Link

    # A pager or a file has no width to fit.
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with Link(address, replies=REPLIES) as link:
        try:
            while True:
                report = link.ask("stat")
                if show_all:
                    complete(link, report)
                if as_json:
                    click.echo(json.dumps(report, ensure_ascii=False))
                else:
                    if watch:
                        console.clear()
                    render(report, console, rows_max=None if show_all else 20, own_session=link.session)
                if not watch:
                    return
                time.sleep(interval_seconds)
        except KeyboardInterrupt:
            return


def complete(link: Link, report: dict[str, Any]) -> None:
    """Ask for all rows of the lists that the report has a part of. Raises as `Link.ask` does."""
    for name in mapping_of(report, "omitted"):
        rows: list[Any] = []
        while True:
            page = link.ask("stat", {"list": name, "offset": len(rows), "limit": PAGE_ROWS})
            rows += list_of(page, name)
            if not list_of(page, name) or name not in mapping_of(page, "omitted"):
                break
        report[name] = rows
    report["omitted"] = {}
