"""`sluiceway trail`: where is my message?

A request over STOMP, as `stat` is.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from sluiceway.cli.answers import mapping_of
from sluiceway.cli.connecting import host_options
from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.stat import PIPED_WIDTH

if TYPE_CHECKING:
    from sluiceway.client.address import Address


@click.command()
@click.argument("message_id", required=False, metavar="[MESSAGE-ID]")
@click.option("--correlation-id", metavar="ID", help="All messages that came with this correlation-id, in its place.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    help="With --correlation-id: maximum of trails, the latest first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON, for programs.")
@host_options
def trail(address: Address, message_id: str | None, correlation_id: str | None, limit: int, as_json: bool) -> None:
    """Show where a message is, and what became of it.

    MESSAGE-ID is the `message-id` header of its MESSAGE frame; a sender that never saw that gives its messages a
    `correlation-id`, and asks by it.

    \b
    Examples:
      sluiceway trail 5f0c11ab-1042
      sluiceway trail --correlation-id order-77
      sluiceway trail --correlation-id order-77 --json | jq '.trails[].words'

    Exit code 1: nothing is known of it.
    """
    if (message_id is None) is (correlation_id is None):
        raise click.UsageError("give a MESSAGE-ID or --correlation-id, one of them")
    from rich.console import Console

    from sluiceway.cli.trail_view import draw_trails
    from sluiceway.client.link import Link

    question: dict[str, Any] = {"message_id": message_id}
    if correlation_id is not None:
        question = {"correlation_id": correlation_id, "limit": limit}
    with Link(address, replies="trail") as link:
        answer = link.ask("trail", question)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    if answer.get("ok") is not True:
        fail(Exit.REFUSED, f"{answer.get('error', 'ERROR')}: {answer.get('message', 'the broker does not say why')}")
    trails = [each for each in answer.get("trails") or () if isinstance(each, dict)]
    if not trails:
        asked = message_id if message_id is not None else f"correlation-id {correlation_id}"
        fail(
            Exit.INCOMPLETE,
            f"no trail of {asked}: never received, or its trail has been "
            "evicted ([trails] bytes_max, keep_seconds)"
            + "".join(f". {hub} is missing: {why}" for hub, why in mapping_of(answer, "missing").items())
            + (
                ". Messages on the disk that an earlier run left are found by their message-id only"
                if message_id is None
                else ""
            ),
        )
    if not as_json:
        for hub, why in mapping_of(answer, "missing").items():
            warn(f"{hub} is missing: {why}; what it knows is not in this answer")
        # A pager or a file has no width to fit.
        draw_trails(trails, Console(width=None if sys.stdout.isatty() else PIPED_WIDTH))
