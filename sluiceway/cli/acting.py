"""Commands that change something in a running broker, over its admin port: purge, move, retry, pause, resume, limit,
close and drain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.completion import complete_destination
from sluiceway.cli.connecting import CREDENTIALS
from sluiceway.cli.exits import Exit, fail
from sluiceway.flow.words import count_in_words
from sluiceway.views.limits import limit_in_words

if TYPE_CHECKING:
    from sluiceway.client.admin import AdminLink

ADMIN_URL: Final = "http://127.0.0.1:8161"
DEAD_LETTERS: Final = "/queue/dead-letters"
PAGE_ROWS: Final = 500


def admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name the admin port, hands the command its `AdminLink` as `admin`, and ends it with a
    message and an exit code when something can't be done.
    """

    @wraps(command)
    def with_link(admin_url: str, login: str | None, passcode: str | None, ca: str | None, **options: Any) -> None:
        from sluiceway.client.admin import AdminError, AdminLink
        from sluiceway.client.errors import ClientError

        try:
            link = AdminLink(admin_url, login=login, passcode=passcode, ca=ca)
        except (ValueError, OSError) as error:
            raise click.BadParameter(str(error), param_hint="--admin-url") from None
        try:
            command(admin=link, **options)
        except AdminError as error:
            who = "\nThey come from --login and SLUICEWAY_PASSCODE, or from the URL." if error.status == 401 else ""
            fail(Exit.REFUSED, f"{error}{who}")
        except ClientError as error:
            fail(Exit.CONNECT, f"{error}; start the broker with `--admin HOST:PORT`, or name it with --admin-url")

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON, for programs."),
        click.option("--ca", metavar="FILE", help="PEM file with the authorities to trust, with https://."),
        *CREDENTIALS,
        click.option(
            "--admin-url",
            envvar="SLUICEWAY_ADMIN_URL",
            default=ADMIN_URL,
            show_default=True,
            help="The admin port of the broker: http://[LOGIN:PASSCODE@]HOST:PORT, or https://. Also from "
            "SLUICEWAY_ADMIN_URL.",
        ),
    ):
        with_link = option(with_link)
    return with_link


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
_ids_option = click.option(
    "--message-id", "message_ids", multiple=True, metavar="ID", help="Only this message; may be repeated."
)
_all_option = click.option("--all", "is_all", is_flag=True, help="All messages that no consumer holds.")


def _whole_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Return the full name: `orders` is `/queue/orders`, as in every command."""
    from sluiceway.queues.names import DestinationNameError, parse

    try:
        return parse(value).canonical
    except DestinationNameError as error:
        raise click.BadParameter(str(error)) from None


_destination_argument = click.argument("destination", shell_complete=complete_destination, callback=_whole_name)


def confirmed(question: str, *, yes: bool) -> None:
    """Ask on a terminal whether it is to be done, and end the command if not."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal to ask for confirmation: give --yes")
    click.confirm(question, abort=True)


def tell(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the answer to an action."""
    click.echo(json.dumps(answer, ensure_ascii=False) if as_json else str(answer.get("words", "done")))


def _which(message_ids: tuple[str, ...], *, is_all: bool) -> dict[str, Any]:
    if bool(message_ids) is is_all:
        raise click.UsageError("give --all, or --message-id once or more")
    return {"all": True} if is_all else {"message_ids": list(message_ids)}


def _named(which: Mapping[str, Any]) -> str:
    ids = which.get("message_ids")
    return "all messages" if ids is None else count_in_words(len(ids), "message")


@click.command()
@_destination_argument
@_ids_option
@yes_option
@admin_options
def purge(admin: AdminLink, destination: str, message_ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Drop the messages of the queue DESTINATION, in memory and on disk, or single ones of them.

    Messages that consumers hold stay with them.

    \b
    Examples:
      sluiceway purge /queue/orders
      sluiceway purge /queue/orders --message-id 5f0c11ab-1042
      sluiceway purge /queue/orders --yes --json | jq .done.purged_count
    """
    which = {"message_ids": list(message_ids)} if message_ids else {}
    confirmed(f"Drop {_named(which)} of {destination}?", yes=yes)
    tell(admin.act("purge", {"name": destination, "confirm": destination, **which}), as_json=as_json)


@click.command()
@click.argument("source", metavar="FROM", shell_complete=complete_destination, callback=_whole_name)
@click.argument("target", metavar="TO", shell_complete=complete_destination, callback=_whole_name)
@_all_option
@_ids_option
@yes_option
@admin_options
def move(
    admin: AdminLink,
    source: str,
    target: str,
    is_all: bool,
    message_ids: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Move messages from the queue FROM to the destination TO.

    A message is in TO before it leaves FROM. Without room in TO the rest stays in FROM.

    \b
    Examples:
      sluiceway move /queue/orders /queue/orders-2 --all
      sluiceway move /queue/orders /queue/odd --message-id 5f0c11ab-1042
    """
    which = _which(message_ids, is_all=is_all)
    confirmed(f"Move {_named(which)} from {source} to {target}?", yes=yes)
    tell(admin.act("move", {"from": source, "to": target, "confirm": source, **which}), as_json=as_json)


@click.command()
@click.argument(
    "destination", default=DEAD_LETTERS, metavar="[QUEUE]", shell_complete=complete_destination, callback=_whole_name
)
@_all_option
@_ids_option
@click.option("--republish", is_flag=True, help="Also what a subscriber of a topic refused, to all its subscribers.")
@yes_option
@admin_options
def retry(
    admin: AdminLink,
    destination: str,
    is_all: bool,
    message_ids: tuple[str, ...],
    republish: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send the dead letters in QUEUE, by default /queue/dead-letters, back to the destinations they came from.

    \b
    Examples:
      sluiceway retry --all
      sluiceway retry /queue/dead-letters --message-id 5f0c11ab-1042 --yes
    """
    which = _which(message_ids, is_all=is_all)
    confirmed(f"Send {_named(which)} of {destination} back?", yes=yes)
    body = {"name": destination, "confirm": destination, "republish": republish, **which}
    tell(admin.act("retry", body), as_json=as_json)


@click.command()
@_destination_argument
@admin_options
def pause(admin: AdminLink, destination: str, as_json: bool) -> None:
    """Deliver nothing from DESTINATION until `sluiceway resume`, or a restart of the broker.

    \b
    Example:
      sluiceway pause /queue/orders
    """
    tell(admin.act("pause", {"name": destination}), as_json=as_json)


@click.command()
@_destination_argument
@admin_options
def resume(admin: AdminLink, destination: str, as_json: bool) -> None:
    """Deliver from DESTINATION again, after `sluiceway pause`.

    \b
    Example:
      sluiceway resume /queue/orders
    """
    tell(admin.act("resume", {"name": destination}), as_json=as_json)


_LIMITS: Final = ("count_max", "bytes_max", "memory_bytes", "lead_bytes")
_NO_LIMIT: Final = "none"


@click.command()
@_destination_argument
@click.option("--count-max", metavar="COUNT", help="Messages that it may hold; `none`: no limit.")
@click.option("--bytes-max", metavar="SIZE", help="Bytes in memory and on disk, such as 2GiB; `none`: no limit.")
@click.option("--memory-bytes", metavar="SIZE", help="Bytes in memory, such as 128MiB.")
@click.option("--lead-bytes", metavar="SIZE", help="Topics: how far senders may be ahead of the fastest subscriber.")
@click.option("--configured", is_flag=True, help="Return to the limits of the configuration.")
@yes_option
@admin_options
def limit(
    admin: AdminLink,
    destination: str,
    count_max: str | None,
    bytes_max: str | None,
    memory_bytes: str | None,
    lead_bytes: str | None,
    configured: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change limits of the queue or topic DESTINATION while the broker runs; without an option, show them.

    Waiting senders continue at once where there is room. Lowering a limit loses nothing. A change lasts until the
    broker restarts, or until a reload changes the same limit in the configuration.

    \b
    Examples:
      sluiceway limit /queue/orders
      sluiceway limit /queue/orders --count-max 50000 --memory-bytes 128MiB
      sluiceway limit /queue/orders --configured --yes
    """
    given = dict(zip(_LIMITS, (count_max, bytes_max, memory_bytes, lead_bytes), strict=True))
    limits = {name: None if value == _NO_LIMIT else value for name, value in given.items() if value is not None}
    if configured and limits:
        raise click.UsageError("give limits, or --configured")
    row = admin.ask("destination", name=destination)
    if not limits and not configured:
        click.echo(json.dumps(_limits_of(row), ensure_ascii=False) if as_json else _limits_in_words(row))
        return
    named = ", ".join(f"{name} {value or _NO_LIMIT}" for name, value in limits.items()) or "as configured"
    confirmed(f"Set the limits of {destination}: {named}?", yes=yes)
    wanted = {"configured": True} if configured else {"limits": limits}
    tell(admin.act("limit", {"name": destination, "confirm": destination, **wanted}), as_json=as_json)


def _limits_of(row: Mapping[str, Any]) -> dict[str, Any]:
    policy = row.get("policy") or {}
    return {
        "limits": {name: policy.get(name) for name in _LIMITS if name != "lead_bytes" or row.get("kind") == "topic"},
        "changed_limits": row.get("changed_limits") or {},
    }


def _limits_in_words(row: Mapping[str, Any]) -> str:
    found = _limits_of(row)
    lines = []
    for name, value in found["limits"].items():
        changed = found["changed_limits"].get(name)
        was = f"  changed at run time; configured: {limit_in_words(name, changed['configured'])}" if changed else ""
        lines.append(f"{name:<14}{limit_in_words(name, value)}{was}".rstrip())
    return "\n".join(lines)


@click.command()
@click.argument("connection")
@yes_option
@admin_options
def close(admin: AdminLink, connection: str, yes: bool, as_json: bool) -> None:
    """Close CONNECTION, named by its client-id, its address or its session, with an ERROR.

    Messages that it has not acknowledged go to other consumers.

    \b
    Examples:
      sluiceway close billing-2
      sluiceway close 127.0.0.1:57148 --yes
    """
    rows = admin.ask("connections", q=connection, limit=PAGE_ROWS).get("items") or []
    found = [row for row in rows if connection in (row.get("session"), row.get("client_id"), row.get("peer"))]
    if len(found) != 1:
        if not found:
            fail(Exit.REFUSED, f"there is no connection {connection!r}; `sluiceway stat` lists them")
        peers = ", ".join(str(row.get("peer")) for row in found)
        fail(Exit.REFUSED, f"{len(found)} connections are called {connection!r}: name one by its address: {peers}")
    row = found[0]
    held = count_in_words(int(row.get("unsettled_count") or 0), "unacknowledged message")
    client = f"{row['client_id']} ({row['peer']})" if row.get("client_id") else row["peer"]
    confirmed(f"Close {client}, which holds {held}?", yes=yes)
    tell(admin.act("close-connection", {"session": row["session"], "confirm": row["session"]}), as_json=as_json)


@click.command()
@click.option("--seconds", type=click.FloatRange(0, 86_400), help="Stop after this many seconds [default: 60].")
@click.option("--hub", metavar="NAME", help="Drain this one of several hubs.")
@yes_option
@admin_options
def drain(admin: AdminLink, seconds: float | None, hub: str | None, yes: bool, as_json: bool) -> None:
    """Accept no new connections, let consumers finish, then stop the broker.

    Of several hubs (`serve --hubs`) one is drained, and started again by the supervisor: name it with --hub.

    \b
    Examples:
      sluiceway drain
      sluiceway drain --seconds 300 --yes
      sluiceway drain --hub hub-2
    """
    name = str(admin.ask("overview")["broker"]["name"])
    confirmed(f"Drain {f'{hub} of ' if hub else ''}the broker {name}, and stop it?", yes=yes)
    limit: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
    if hub is not None:
        limit["hub"] = hub
    tell(admin.act("drain", {"confirm": name, **limit}), as_json=as_json)
