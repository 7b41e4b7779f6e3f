"""`sluiceway config` and `sluiceway version`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.flow.words import count_in_words
from sluiceway.version import VERSION

if TYPE_CHECKING:
    from sluiceway.config import Config
    from sluiceway.config.former import FormerName


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
    from sluiceway.config.oversights import oversights
    from sluiceway.security.rules import rules_of, slow_logins

    former: list[FormerName] = []
    try:
        loaded = load(file, environment=os.environ, tell=former.append)
        rules = rules_of(loaded)
        wrong = _certificate_mistakes(loaded)
    except ConfigError as error:
        fail(Exit.USAGE, f"the configuration can't be used:\n{error}")
    if wrong:
        fail(Exit.USAGE, "\n".join(["the configuration can't be used:", *wrong]))
    where = ", ".join(listener.address for listener in loaded.listeners)
    entries, users = len(loaded.destinations), len(rules.users.identities)
    click.echo(
        f"{file} is fine: listens on {where}; {entries} destination {'entry' if entries == 1 else 'entries'}; "
        + (count_in_words(users, "user") if users else "no users")
        + "".join(f", and those of {label}" for label in rules.users.outside.by_label)
    )
    for warning in (*former, *rules.warnings, *slow_logins(loaded), *oversights(loaded, os.environ)):
        warn(warning)


def _certificate_mistakes(loaded: Config) -> list[str]:
    """Return faults of TLS files, which prevent a start as any invalid key does."""
    wanted = [(f"listeners[{listener.label}].tls", listener.tls) for listener in loaded.listeners]
    wanted = [(key, tls) for key, tls in [*wanted, ("admin.tls", loaded.admin.tls)] if tls.is_on]
    if not wanted:
        return []
    from sluiceway.protocols.tls import CertificateError, TlsServer

    mistakes = []
    for key, tls in wanted:
        try:
            TlsServer(tls)
        except CertificateError as error:
            mistakes.append(f"{key}: {error}")
    return mistakes


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
