"""`sluiceway cluster`: brokers whose destinations are divided into shards."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.suggestions import SuggestingGroup


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
    help="Configuration file (TOML) of the broker, for its data_dir.",
)
@click.option("--shards", "shards_count", type=int, required=True, help="Number of shards: a power of two, up to 1024.")
def init(data_dir: str | None, config_file: Path | None, shards_count: int) -> None:
    """Make a data folder with a number of shards, permanently.

    The number can't change later, for it decides which shard has which name. Take more than the brokers you will ever
    have, such as 32: a shard without messages costs little. A folder with data is refused (but with --shards 1, which
    is what every broker has without this command).

    \b
    Examples:
      sluiceway cluster init --shards 32
      sluiceway cluster init --data /var/lib/sluiceway --shards 32
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
