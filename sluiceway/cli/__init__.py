"""The command line, `sluiceway COMMAND`: all commands are in `COMMANDS`.

    exits      exit codes, and how a command ends with one
    serve      a broker in the foreground
    client     stomp.py behind a small blocking face; maps its exceptions
    messages   send, receive and browse
    log        logs: list, describe, groups, seek, truncate, delete; log_tail reads, log_append writes, log_view draws,
               log_asking has what they share
    stat       asks a running broker for its flow map
    stat_view  draws the answer; answers reads it
    trail      where is my message?; trail_view draws the answer
    top        the same, live in a terminal (sluiceway.top)
    doctor     is all well with this machine and this configuration? (sluiceway.doctor)
    store      looks after a data folder: check, repair, export, import, compact
    progress   something to look at meanwhile
    spark      doctor: can Spark run here?
    permissions  which entry decides what a user may do
    secret     hashes of passcodes
    settings   config and version
    suggestions  what was meant by a mistyped command

Each command is imported when it is asked for, and imports what it needs when it runs: `sluiceway send` should not load
a broker, nor what the other commands are made of.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from sluiceway.cli.exits import EXIT_CODES_HELP
from sluiceway.cli.suggestions import SuggestingGroup
from sluiceway.version import VERSION

__all__ = ["main"]

COMMANDS: Final = {
    "serve": "serve",
    "send": "messages",
    "receive": "messages",
    "browse": "messages",
    "log": "log",
    "stat": "stat",
    "trail": "trail",
    "top": "top",
    "doctor": "doctor",
    "store": "store",
    "spark": "spark",
    "permissions": "permissions",
    "secret": "secret",
    "config": "settings",
    "version": "settings",
}
"""All commands, in the order of the help, and the modules of this package that have them."""


class _Commands(SuggestingGroup):
    """See `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(import_module(f"{__name__}.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES_HELP,
)
@click.version_option(VERSION, prog_name="sluiceway")
def main() -> None:
    """Sluiceway: a STOMP message broker that never lets a slow reader hurt anybody else.

    \b
    A first look, in three terminals:
      sluiceway serve
      sluiceway receive /queue/hello
      sluiceway send /queue/hello "Hello, world"
    and then:
      sluiceway stat

    Every command explains itself: sluiceway COMMAND --help.
    """
