"""`sluiceway log`: the logs of a broker, the positions of their groups, and operations on them.

The commands are requests over STOMP (docs/log-wire.md), so the broker must run, here or elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.connecting import host_options
from sluiceway.cli.log_append import append
from sluiceway.cli.log_asking import (
    WORK_SECONDS,
    AskedPosition,
    asking,
    json_option,
    log_argument,
    place_option,
    size_option,
)
from sluiceway.cli.log_tail import tail
from sluiceway.cli.suggestions import SuggestingGroup
from sluiceway.flow.words import count_in_words, size_in_words

if TYPE_CHECKING:
    from rich.console import Console

    from sluiceway.client.address import Address

PIPED_WIDTH: Final = 160
"""Characters per line without a terminal."""
_DELETE_PASSCODE: Final = "SLUICEWAY_DELETE_PASSCODE"


@click.group(cls=SuggestingGroup)
def log() -> None:
    """Logs: records that stay when they are read, each with an index.

    LOG is the name of a log, with or without /log/. PLACE is a position in it:

    \b
      earliest, latest     the first existing record, the last one
      next                 behind the last record: only new records
      1200                 the record with this index
      -10                  the tenth record from the end
      time:2026-11-21T20:15, time:1795292100000, ago:15min
                           the first record appended then or later

    \b
    Examples:
      date | sluiceway log append clock
      sluiceway log tail clock --follow
      sluiceway log list
      sluiceway log groups clock
      sluiceway log seek clock billing --to earliest
    """


# -- reading -----------------------------------------------------------------------------------------------------------


@log.command("list")
@json_option
@host_options
def list_(address: Address, as_json: bool) -> None:
    """Show the logs of a broker.

    \b
    Examples:
      sluiceway log list
      sluiceway log list --json | jq '.logs[] | select(.failing != "")'
    """
    from sluiceway.cli.log_view import draw_logs

    with asking(address) as client:
        reply = client.request("list")
    if as_json:
        _print_json(reply)
    elif not reply["logs"]:
        click.echo("there are no logs: `sluiceway log append NAME` makes one")
    else:
        draw_logs(reply["logs"], _console())


@log.command()
@log_argument
@json_option
@host_options
def describe(address: Address, log: str, as_json: bool) -> None:
    """Show one log: its indexes, its size, its age and its groups.

    \b
    Examples:
      sluiceway log describe orders
      sluiceway log describe orders --json | jq .next
    """
    from sluiceway.cli.log_view import draw_groups, draw_log

    with asking(address) as client:
        reply = client.request("describe", log=log)
    if as_json:
        _print_json(reply)
        return
    console = _console()
    draw_log(reply, console)
    draw_groups(reply["groups"], console)


@log.command()
@log_argument
@json_option
@host_options
def groups(address: Address, log: str, as_json: bool) -> None:
    """Show the groups that read LOG, with their lag.

    \b
    Examples:
      sluiceway log groups orders
      sluiceway log groups orders --json | jq '.groups[] | select(.lag_seconds > 60) | .group'
    """
    from sluiceway.cli.log_view import draw_groups

    with asking(address) as client:
        reply = client.request("groups", log=log)
    if as_json:
        _print_json(reply)
    elif not reply["groups"]:
        click.echo(f"no group reads /log/{log}: a SUBSCRIBE with the header group makes one")
    else:
        draw_groups(reply["groups"], _console())


# -- groups ------------------------------------------------------------------------------------------------------------


@log.command()
@log_argument
@click.argument("group")
@click.option("--to", "place", callback=place_option, required=True, metavar="PLACE", help="New offset of the group.")
@json_option
@host_options
def seek(address: Address, log: str, group: str, place: AskedPosition, as_json: bool) -> None:
    """Move GROUP of LOG: back to read records again, or forward to skip some.

    Its consumers may stay, and keep the records they hold. Acknowledging a record that was delivered before the move
    has no effect.

    \b
    Examples:
      sluiceway log seek orders billing --to earliest
      sluiceway log seek orders billing --to ago:1h
      sluiceway log seek orders billing --to next
    """
    with asking(address) as client:
        to = place.in_log(client.request("describe", log=log) if place.wire is None else {})
        at = int(to) if to.isdecimal() else to
        reply = client.request("seek", log=log, group=group, to=at, log_id=place.log_id or None)
    if as_json:
        _print_json(reply)
    else:
        click.echo(f"group {group} of /log/{log} continues at index {reply['front']}")


@log.command("delete-group")
@log_argument
@click.argument("group")
@host_options
def delete_group(address: Address, log: str, group: str) -> None:
    """Delete GROUP of LOG, and its position. It must not have consumers. The records stay.

    \b
    Example:
      sluiceway log delete-group orders billing
    """
    with asking(address) as client:
        client.request("delete-group", log=log, group=group)
    click.echo(f"group {group} of /log/{log} is forgotten")


# -- records -----------------------------------------------------------------------------------------------------------


@log.command()
@log_argument
@click.option("--before", "place", callback=place_option, metavar="PLACE", help="Remove the records before this place.")
@click.option(
    "--size",
    "size_bytes",
    callback=size_option,
    metavar="SIZE",
    help="Remove the oldest files until this is left, such as 2GiB.",
)
@json_option
@host_options
def truncate(address: Address, log: str, place: AskedPosition | None, size_bytes: int | None, as_json: bool) -> None:
    """Remove the oldest records of LOG.

    By index the removal is exact. By time and by size only whole files are removed (`data_page_bytes` of [logs], 128
    MiB), never the one being written, so more records may stay. Readers of removed records are notified of a gap.

    \b
    Examples:
      sluiceway log truncate orders --before 120000
      sluiceway log truncate orders --before ago:7d
      sluiceway log truncate orders --size 2GiB
    """
    if (place is None) is (size_bytes is None):
        raise click.UsageError("give --before or --size: one says what goes, the other what stays")
    with asking(address, timeout_seconds=WORK_SECONDS) as client:
        before: str | int
        log_id = None
        if place is None:
            before = f"size:{size_bytes}"
        else:
            before = place.in_log(client.request("describe", log=log) if place.wire is None else {})
            log_id = place.log_id or None
        reply = client.request("truncate", log=log, before=before, log_id=log_id)
    if as_json:
        _print_json(reply)
    else:
        click.echo(f"/log/{log} begins with index {reply['first']}")


@log.command()
@log_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--delete-passcode",
    envvar=_DELETE_PASSCODE,
    help=f"The `delete_passcode` of [logs] in the broker's configuration. Better from {_DELETE_PASSCODE}, or "
    "typed when it is asked for: other users can see the arguments of a process.",
)
@host_options
def delete(address: Address, log: str, yes: bool, delete_passcode: str | None) -> None:
    """Delete LOG with all its records and groups.

    Readers are notified and unsubscribed. Disabled unless the broker sets `delete_passcode`.

    \b
    Examples:
      sluiceway log delete orders
      SLUICEWAY_DELETE_PASSCODE=... sluiceway log delete orders --yes
    """
    with asking(address, timeout_seconds=WORK_SECONDS) as client:
        if not yes:
            _confirm(client.request("describe", log=log))
        if delete_passcode is None:
            if not _can_ask():
                raise click.UsageError(f"deleting needs the broker's passcode for it: set {_DELETE_PASSCODE}")
            delete_passcode = click.prompt("Passcode for deleting logs", hide_input=True)
        client.request("delete", log=log, passcode=delete_passcode)
    click.echo(f"/log/{log} is deleted")


def _confirm(described: Mapping[str, Any]) -> None:
    if not _can_ask():
        raise click.UsageError("no terminal to ask for confirmation: use --yes")
    groups_count = len(described["groups"])
    with_groups = f" and {count_in_words(groups_count, 'group')}" if groups_count else ""
    what = f"{described['log']} with {count_in_words(described['size'], 'record')}{with_groups}"
    click.confirm(f"Delete {what}, {size_in_words(described['bytes'])}permanently?", abort=True)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _print_json(reply: Mapping[str, Any]) -> None:
    click.echo(json.dumps({name: value for name, value in reply.items() if name != "ok"}, ensure_ascii=False))


def _console() -> Console:
    from rich.console import Console

    # A pager or a file has no width to fit.
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


log.add_command(append)
log.add_command(tail)
