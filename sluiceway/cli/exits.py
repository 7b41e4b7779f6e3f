"""Exit codes: the same for all commands, documented in `sluiceway --help`, kept stable for scripts."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NoReturn

import click


class Exit(IntEnum):
    """Exit codes of the process."""

    OK = 0
    INCOMPLETE = 1
    """receive, log tail: fewer messages arrived than --count asked for. browse: the end did not arrive. log tail: the
    log was deleted, or records are gone (--on-gap error). compliance: a duty is not kept. migrate --messages: something
    is left, or in question. All: interrupted (click's own code for Ctrl-C), unless that is the usual end.
    """
    USAGE = 2
    """A wrong argument or configuration (click's own code for it). compliance: also no session with the broker."""
    LISTEN = 3
    """serve: an address can't be listened on."""
    CONNECT = 4
    """The broker can't be reached, or the connection was lost."""
    REFUSED = 5
    """The broker answered with an ERROR, or refused a request of a `log` command. permissions explain: not allowed."""
    STORE = 6
    """serve, store: the data folder can't be used."""
    FAULTY = 7
    """store: the store, or the file to be imported, has faults. migrate: so has the configuration that should be read.
    doctor: there is a problem. spark doctor: something that Spark needs is missing.
    """


EXIT_CODES_HELP: Final = (
    "\b\nExit codes: 0 done; 1 fewer messages than asked for, or interrupted; 2 wrong usage or\n"
    "configuration; 3 can't listen; 4 can't reach the broker, or lost it; 5 the broker answered\n"
    "ERROR; 6 the data folder can't be used; 7 faults in the store or in what should be imported, or a\n"
    "doctor found a problem."
)


def warn(what: object) -> None:
    """Print a warning on standard error; the command continues."""
    click.echo(f"warning: {what}", err=True)


def fail(code: Exit, message: str) -> NoReturn:
    """Print `message` on standard error and end the command with `code`."""
    click.echo(f"sluiceway: {message}", err=True)
    raise click.exceptions.Exit(int(code))
