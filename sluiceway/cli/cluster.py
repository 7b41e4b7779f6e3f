"""`sluiceway cluster`: brokers whose destinations are divided into shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.suggestions import SuggestingGroup

if TYPE_CHECKING:
    from sluiceway.config import Config


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
    """


@cluster.command()
@click.option(
    "--data", "data_dir", metavar="DIR", help="The data folder [default: as configured, else ./sluiceway-data]."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="SLUICEWAY_CONFIG",
    help="Configuration file (TOML) of the broker, for its data_dir, or the place of its cluster.",
)
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
    from sluiceway.config.sources import Layer
    from sluiceway.store.directory import DirectoryError
    from sluiceway.store.shard_folders import make_shards

    flags = [Layer("--data", {"broker": {"data_dir": data_dir}})] if data_dir is not None else []
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
