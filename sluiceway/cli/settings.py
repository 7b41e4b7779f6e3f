"""`sluiceway config` and `sluiceway version`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sluiceway.cli.exits import Exit, fail
from sluiceway.version import VERSION


@click.command()
@click.option(
    "--check",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Check this file (and the environment over it) instead.",
)
def config(file: Path | None) -> None:
    """Print a configuration file with every key, its documentation and its default; or check one.

    \b
    Examples:
      sluiceway config > sluiceway.toml
      sluiceway config --check sluiceway.toml
    """
    if file is None:
        from sluiceway.config.sample import toml_sample

        click.echo(toml_sample(), nl=False)
        return
    from sluiceway.config import ConfigError, load
    from sluiceway.security.rules import rules_of

    try:
        loaded = load(file, environment=os.environ)
        rules = rules_of(loaded)
    except ConfigError as error:
        fail(Exit.USAGE, f"the configuration can't be used:\n{error}")
    where = ", ".join(listener.address for listener in loaded.listeners)
    entries = len(loaded.destinations)
    click.echo(
        f"{file} is fine: listens on {where}; {entries} destination {'entry' if entries == 1 else 'entries'}; "
        f"{len(rules.users.identities) or 'no'} users"
    )
    for warning in rules.warnings:
        click.echo(f"warning: {warning}", err=True)


@click.command()
def version() -> None:
    """Print the version, and those of Python and of the packages that matter for a bug report.

    \b
    Example:
      sluiceway version
    """
    import platform
    from importlib import metadata

    click.echo(f"sluiceway {VERSION}")
    click.echo(f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}")
    for package in ("trio", "attrs", "cattrs", "structlog", "click", "rich", "stomp.py", "plyvel", "plyvel-next"):
        try:
            click.echo(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue  # one of plyvel and plyvel-next is always absent
