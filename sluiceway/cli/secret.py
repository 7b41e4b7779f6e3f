"""`sluiceway secret`: the hash of a passcode, for the configuration."""

from __future__ import annotations

import sys

import click

from sluiceway.cli.exits import Exit, fail


@click.command()
@click.option("--user", metavar="NAME", help="Print `NAME:HASH`, a line for the users file.")
def secret(user: str | None) -> None:
    """Print the hash of a passcode.

    On a terminal it asks for the passcode, twice and without echo; else it reads the first line of standard input. The
    hash belongs in the file that `users_file` of [security] names, or in [security.users]. It can't be reversed, but
    the passcode can be guessed from it: keep it secret.

    \b
    Examples:
      sluiceway secret --user web >> users
      openssl rand -base64 18 | tee web.passcode | sluiceway secret --user web >> users
    """
    from sluiceway.security import secrets

    if user is not None:
        try:
            secrets.check_user_name(user)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--user") from None
    try:
        if sys.stdin.isatty():
            # Prompts go to standard error: standard output is the hash, and may go to a file.
            passcode = click.prompt("Passcode", hide_input=True, confirmation_prompt="Once more", err=True)
        else:
            passcode = sys.stdin.readline().rstrip("\r\n")
        made = secrets.hashed(passcode)
    except UnicodeError:
        fail(
            Exit.USAGE, "the passcode is not UTF-8; give it as one line on standard input, or start this on a terminal"
        )
    except ValueError as error:
        fail(Exit.USAGE, f"{error}; give it as one line on standard input, or start this on a terminal")
    click.echo(str(made) if user is None else f"{user}:{made}")
