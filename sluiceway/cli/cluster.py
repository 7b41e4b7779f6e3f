"""`sluiceway cluster`: brokers whose destinations are divided into shards, and the hubs that share them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.acting import admin_options, confirmed, tell, yes_option
from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.sources import config_option, data_layers, data_option
from sluiceway.cli.suggestions import SuggestingGroup
from sluiceway.flow.words import count_in_words, ranges_in_words

if TYPE_CHECKING:
    from sluiceway.client.admin import AdminLink
    from sluiceway.config import Config

LOOK_SECONDS: Final = 0.25
"""Time between two looks at a move that is waited for."""
WAIT_SECONDS: Final = 60.0


@click.group(cls=SuggestingGroup)
def cluster() -> None:
    """Prepare and operate a broker whose destinations are divided into shards.

    A shard is a fixed share of all destination names, with a store of its own: what is opened, closed and moved as one
    thing. The name decides: all messages of a destination are in one shard, and a transaction stays within one. Names
    with the same part in braces share a shard: /queue/{orders}.new and /queue/{orders}.failed.

    A broker without this has one shard, and needs none of these commands.

    \b
    Examples:
      sluiceway cluster init --data /var/lib/sluiceway --shards 32
      sluiceway serve --data /var/lib/sluiceway
      sluiceway cluster init --config hub.toml --shards 32
      sluiceway cluster status
      sluiceway cluster move 7 hub-2
      sluiceway cluster drain hub-2
    """


@cluster.command()
@data_option()
@config_option("Configuration file (TOML) of the broker, for its data_dir, or the place of its cluster.")
@click.option(
    "--name",
    metavar="NAME",
    help="Name of a cluster on several machines, for people [default: the last part of its path].",
)
@click.option("--shards", "shards_count", type=int, required=True, help="Number of shards: a power of two, up to 1024.")
def init(data_dir: str | None, config_file: Path | None, name: str | None, shards_count: int) -> None:
    """Make a data folder with a number of shards, or a cluster on several machines, permanently.

    The number can't change later, for it decides which shard has which name. Take more than the brokers you will ever
    have, such as 32: a shard without messages costs little. A folder with data is refused (but with --shards 1, which
    is what every broker has without this command).

    Where the configuration names a coordination service ([cluster]), the cluster is made there and in the database of
    [store]: once, from any machine. A path or a database of another cluster is refused, and nothing is changed. Done
    again, it says that the cluster is there.

    \b
    Examples:
      sluiceway cluster init --shards 32
      sluiceway cluster init --data /var/lib/sluiceway --shards 32
      sluiceway cluster init --config hub.toml --shards 32
    """
    from sluiceway.config import ConfigError, load
    from sluiceway.store.directory import DirectoryError
    from sluiceway.store.shard_folders import make_shards

    flags = data_layers(data_dir)
    try:
        config = load(config_file, environment=os.environ, flags=flags, tell=warn)
    except ConfigError as error:
        fail(Exit.USAGE, f"the configuration can't be used:\n{error}")
    if config.cluster.coordination:
        if data_dir is not None:
            raise click.UsageError(
                "--data is for a data folder, and the configuration has a cluster on several machines"
            )
        _found(config, name or "", shards_count)
        return
    if name is not None:
        raise click.UsageError("--name is for a cluster on several machines: set coordination in [cluster]")
    folder = Path(config.broker.data_dir)
    try:
        made = make_shards(folder, shards_count)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--shards") from None
    except DirectoryError as error:
        fail(Exit.STORE, str(error))
    if made is None:
        click.echo(f"{folder} has one shard: it is an ordinary data folder")
    else:
        click.echo(f"{folder} has {made.shards_count} shards, in {made.folder(0)} to {made.folder(shards_count - 1)}")
    click.echo(f"start the broker with: sluiceway serve --data {folder}")


def _found(config: Config, name: str, shards_count: int) -> None:
    """Make a cluster on several machines."""
    from sluiceway.cluster.founding import found_cluster
    from sluiceway.cluster.owner_records import ClusterMismatchError
    from sluiceway.config import ConfigError
    from sluiceway.extras import MissingExtraError
    from sluiceway.store.compare_and_set import MetadataError
    from sluiceway.store.engine import EngineError

    try:
        founded = found_cluster(config, name=name, shards_count=shards_count)
    except (ValueError, ConfigError, ClusterMismatchError, MissingExtraError) as error:
        fail(Exit.USAGE, str(error))
    except MetadataError as error:
        fail(Exit.CONNECT, str(error))
    except EngineError as error:
        fail(Exit.STORE, str(error))
    record = founded.record
    made = "made" if founded.is_new else "is there already"
    click.echo(f"cluster {record.name} ({record.id}) {made}: {record.shards_count} shards")
    click.echo(f"  coordination: {founded.where}")
    click.echo(f"  messages: {founded.database}")
    click.echo(
        "start each hub with: sluiceway serve, with the same [cluster] and [store], and a name of its own as hub"
    )


@cluster.command()
@admin_options
def status(admin: AdminLink, as_json: bool) -> None:
    """Show the hubs, which of them has which shard, and what moves.

    \b
    Examples:
      sluiceway cluster status
      sluiceway cluster status --json | jq '.shards[] | select(.hub == "hub-1") | .shard'
    """
    division = admin.ask("cluster")
    click.echo(json.dumps(division, ensure_ascii=False) if as_json else division_in_words(division))


@cluster.command()
@click.argument("shard", type=click.IntRange(0))
@click.argument("hub")
@click.option("--wait/--no-wait", default=True, help="Wait until the shard is open there.", show_default=True)
@yes_option
@admin_options
def move(admin: AdminLink, shard: int, hub: str, wait: bool, yes: bool, as_json: bool) -> None:
    """Have SHARD move to HUB, and stay there as long as that hub takes shards.

    HUB `auto` leaves the choice to the cluster again. The destinations of the shard wait while it moves, usually for
    less than a second. Clients stay connected: what they hold of it is delivered again, marked as redelivered.

    \b
    Examples:
      sluiceway cluster status
      sluiceway cluster move 7 hub-2
      sluiceway cluster move 7 auto
    """
    confirmed(f"Move shard {shard} to {'the hub of its turn' if hub == 'auto' else hub}?", yes=yes)
    answer = admin.act("move-shard", {"shard": shard, "hub": "" if hub == "auto" else hub})
    to = str(answer["done"]["hub"])
    if not as_json:
        click.echo(answer["words"])

    def is_there(division: Mapping[str, Any]) -> str:
        row = division["shards"][shard]
        if row["open"] and row["hub"] == to:
            return ""
        return str(row["words"]) or f"shard {shard} is at {row['hub']}"

    if wait and to:
        _wait(admin, is_there, f"shard {shard} is not at {to} yet")
    if as_json:
        tell(answer, as_json=True)
    elif wait and to:
        click.echo(f"Shard {shard} is open at {to}.")


@cluster.command()
@click.argument("hub")
@click.option("--wait/--no-wait", default=True, help="Wait until the hub has no shard any more.", show_default=True)
@yes_option
@admin_options
def drain(admin: AdminLink, hub: str, wait: bool, yes: bool, as_json: bool) -> None:
    """Hand all shards of HUB over to the other hubs. Its clients stay connected.

    It takes none until `sluiceway cluster resume HUB`, or until it starts anew. `sluiceway drain --hub HUB` stops a hub
    in order.

    \b
    Examples:
      sluiceway cluster drain hub-2
      sluiceway cluster drain hub-2 --yes --no-wait
    """
    confirmed(f"Hand all shards of {hub} over to the other hubs?", yes=yes)
    answer = admin.act("drain-hub", {"hub": hub})
    if not as_json:
        click.echo(answer["words"])

    def is_empty(division: Mapping[str, Any]) -> str:
        rest = [row for row in division["shards"] if row["hub"] == hub or not row["open"]]
        return f"{count_in_words(len(rest), 'shard')} to go" if rest else ""

    if wait:
        _wait(admin, is_empty, f"{hub} is not empty yet")
    if as_json:
        tell(answer, as_json=True)
    elif wait:
        click.echo(f"{hub} has no shard, and all are open elsewhere.")


@cluster.command()
@click.argument("hub")
@admin_options
def resume(admin: AdminLink, hub: str, as_json: bool) -> None:
    """Have HUB take shards again, after `sluiceway cluster drain`.

    \b
    Examples:
      sluiceway cluster resume hub-2
    """
    tell(admin.act("resume-hub", {"hub": hub}), as_json=as_json)


def _wait(admin: AdminLink, why_not: Callable[[Mapping[str, Any]], str], what: str) -> None:
    """Wait until `why_not` has no reason left; tell each new one. Ends the command after WAIT_SECONDS."""
    until_seconds = time.monotonic() + WAIT_SECONDS
    said = ""
    while reason := why_not(admin.ask("cluster")):
        if time.monotonic() > until_seconds:
            fail(Exit.REFUSED, f"{what}: {reason}; `sluiceway cluster status` shows it")
        if reason != said:
            click.echo(f"  {reason} ...", err=True)
            said = reason
        time.sleep(LOOK_SECONDS)


def division_in_words(division: Mapping[str, Any]) -> str:
    """Return what `GET /api/v1/cluster` answers, for people."""
    hubs, shards = division["hubs"], division["shards"]
    names = {hub["name"] for hub in hubs}
    heads = ("hub", "state", "weight", "shards", "clients at")
    rows: list[Sequence[str]] = [heads]
    for hub in hubs:
        own = [row["shard"] for row in shards if row["hub"] == hub["name"]]
        rows.append((hub["name"], hub["state"], f"{hub['weight']:g}", f"{len(own)}", hub["clients"]))
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"cluster {division['cluster']}: {count_in_words(len(shards), 'shard')}, as {division['hub']} knows it"]
    if division["words"]:
        lines.append(f"  this may be old: {division['words']}")
    lines += [
        "",
        *("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows),
    ]
    lines.append("")
    for name in sorted(names & {row["hub"] for row in shards}):
        own = [row["shard"] for row in shards if row["hub"] == name]
        lines.append(f"{name} has {ranges_in_words(own)}")
    moving = [row for row in shards if row["to"] or (row["hub"] and not row["open"])]
    for row in moving:
        if row["hub"] and row["to"]:
            lines.append(f"moving: shard {row['shard']} from {row['hub']} to {row['to']}")
        elif row["hub"]:
            lines.append(f"opening: shard {row['shard']} at {row['hub']}")
    lines += [f"waiting: {row['words']}" for row in shards if not row["hub"]]
    pinned = [f"{row['shard']} at {row['pinned']}" for row in shards if row["pinned"]]
    if pinned:
        lines.append(f"chosen by operators: {', '.join(pinned)}")
    return "\n".join(lines)
