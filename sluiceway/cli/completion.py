"""`sluiceway completion`: completion of commands, options and names of destinations in bash, zsh and fish."""

from __future__ import annotations

import os
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE: Final = "_SLUICEWAY_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
ASK_SECONDS: Final = 1.0
NAMES_MAX: Final = 1_000
_PREFIXES: Final = ("/queue/", "/topic/", "/log/")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names of destinations in SHELL.

    Names are those of the broker at SLUICEWAY_URL, or at --url if that is typed already.

    \b
    Examples:
      eval "$(sluiceway completion bash)"
      sluiceway completion zsh > "${fpath[1]}/_sluiceway"
      sluiceway completion fish > ~/.config/fish/completions/sluiceway.fish
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """Return the script for a shell."""
    from sluiceway.cli import main

    made = get_completion_class(shell)
    assert made is not None, "click knows it"
    source = made(main, {}, "sluiceway", VARIABLE).source()
    return "\n".join(line.rstrip() for line in source.strip().splitlines())


def complete_destination(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the destinations of the broker that begin with `incomplete`; without a broker the prefixes of names."""
    names = [name for name in _names(context) if name.startswith(incomplete)]
    if not names:
        names = [prefix for prefix in _PREFIXES if prefix.startswith(incomplete)]
    return [CompletionItem(name) for name in names]


def _names(context: click.Context) -> list[str]:
    from sluiceway.cli.answers import rows_of
    from sluiceway.client.address import Address
    from sluiceway.client.errors import ClientError
    from sluiceway.client.link import Link

    given: dict[str, Any] = context.params
    url = given.get("url") or os.environ.get("SLUICEWAY_URL") or "stomp://127.0.0.1:61613"
    passcode = given.get("passcode") or os.environ.get("SLUICEWAY_PASSCODE")
    found: list[str] = []
    try:
        address = Address.parse(url).as_user(given.get("login"), passcode)
        with Link(address, beats=False, replies="completion", timeout_seconds=ASK_SECONDS) as link:
            for name, key in (("destinations", "name"), ("logs", "log")):
                page = link.ask("stat", {"list": name, "limit": NAMES_MAX}, timeout_seconds=ASK_SECONDS)
                found += [str(row[key]) for row in rows_of(page, name) if key in row]
    except (ClientError, ValueError, OSError):
        return []  # completion says nothing about a broker that can't be asked
    return sorted(name for name in found if not name.startswith(("/remote-temp-", "/temp-")))
