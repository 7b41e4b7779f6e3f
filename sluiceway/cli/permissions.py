"""`sluiceway permissions`: the effective permissions of a configuration."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sluiceway.cli.exits import Exit, fail, warn
from sluiceway.cli.sources import config_option
from sluiceway.cli.suggestions import SuggestingGroup

ACTIONS = ("connect", "send", "receive", "create", "browse", "admin")


@click.group(cls=SuggestingGroup)
def permissions() -> None:
    """Show what a configuration allows its users. Reads files only: no broker has to run."""


@permissions.command()
@config_option("The configuration file (and the environment over it).", required=True)
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="A group that a token or a directory gives the user, who is not in the configuration; may be repeated.",
)
@click.argument("user")
@click.argument("action", type=click.Choice(ACTIONS), metavar="ACTION")
@click.argument("destination", required=False)
def explain(config_file: Path, groups: tuple[str, ...], user: str, action: str, destination: str | None) -> None:
    """Say whether USER may do ACTION on DESTINATION, and which entry decides.

    ACTION is one of connect, send, receive, create, browse, admin. For `connect` the destination is the name of a
    listener (omitted: any); for `admin` it may be omitted: the broker as a whole. Ends with 0 if it is allowed, with 5
    if not.

    \b
    Examples:
      sluiceway permissions explain --config sluiceway.toml web send /queue/orders.eu
      sluiceway permissions explain --config sluiceway.toml web receive '/queue/orders.>'
      sluiceway permissions explain --config sluiceway.toml ops admin
    """
    import attrs

    from sluiceway.config import ConfigError, load
    from sluiceway.protocols.stomp.authorization import Action, Identity
    from sluiceway.queues.names import DestinationNameError, host_prefix_of, meant_by, parse
    from sluiceway.security.permissions import Permissions
    from sluiceway.security.rules import rules_of

    if destination is None and action not in ("connect", "admin"):
        raise click.UsageError(f"{action} is on a destination: name it, such as /queue/orders")
    try:
        rules = rules_of(load(config_file, environment=os.environ, tell=warn))
        if destination is not None and action != "connect":
            destination = parse(destination).canonical
    except (ConfigError, DestinationNameError) as error:
        fail(Exit.USAGE, str(error))
    if destination is not None and action != "connect" and (meant := meant_by(destination)):
        warn(f"{destination!r} begins with no known prefix: did you mean {meant}?")
    what = f"{user} {{}} {action}{'' if destination is None else f' {destination}'}"
    if not rules.users.are_configured:
        click.echo(f"{what.format('may')}: no users are configured, so every client has full access")
        return
    identity = rules.users.identities.get(user)
    if identity is None and rules.users.outside:
        identity = Identity(user, frozenset(groups))
    if identity is None:
        fail(Exit.USAGE, f"there is no user {user!r}; there are: {', '.join(sorted(rules.users.identities))}")
    if destination is not None and action != "connect":
        # The question is about clients of the host that has the destination.
        identity = attrs.evolve(identity, host=host_prefix_of(destination))
    table = Permissions(rules.config.permissions, default_allows=rules.config.default == "allow")
    decision = table.decide(identity, Action(action), destination)
    click.echo(f"{what.format('may' if decision.allowed else 'may not')}: {decision.words}")
    if not decision.allowed:
        raise click.exceptions.Exit(int(Exit.REFUSED))
