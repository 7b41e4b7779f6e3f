"""The command line, `sluiceway COMMAND`: all commands are in `COMMANDS`.

    exits      exit codes, and the end of a command with one
    serve      a broker in the foreground
    messages   send, receive and browse
    log        logs: list, describe, groups, seek, truncate, delete; log_tail reads, log_append writes, log_view draws,
               log_asking has their common parts
    stat       the flow map of a running broker
    stat_view  display of that answer; answers reads it
    waiting    messages of a command that waits for the broker
    trail      where is my message?; trail_view draws the answer
    acting     purge, move, retry, pause, resume, close, drain: over the admin port
    completion scripts for shells; names of destinations
    top        the flow map, live in a terminal (sluiceway.top)
    doctor     checks of this machine and this configuration (sluiceway.doctor)
    compliance checks of any STOMP broker against the specifications (sluiceway.compliance)
    store      maintenance of a data folder: check, repair, export, import, compact
    cluster    data folders with several shards
    progress   display of progress
    spark      doctor: can Spark run here?
    permissions  the entry that decides about a user's action
    migrate    the configuration of another broker, as ours; its messages, moved
    secret     hashes of passcodes
    settings   config and version
    suggestions  suggestions for a mistyped command

Each command is imported on its first use, and imports its dependencies when it runs: `sluiceway send` should load
neither a broker nor the modules of other commands.
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
    "purge": "acting",
    "move": "acting",
    "retry": "acting",
    "pause": "acting",
    "resume": "acting",
    "limit": "acting",
    "close": "acting",
    "drain": "acting",
    "top": "top",
    "doctor": "doctor",
    "compliance": "compliance",
    "store": "store",
    "cluster": "cluster",
    "spark": "spark",
    "permissions": "permissions",
    "migrate": "migrate",
    "secret": "secret",
    "config": "settings",
    "version": "settings",
    "completion": "completion",
}
"""All commands, in the order of the help, with the modules of this package that define them."""


class _Commands(SuggestingGroup):
    """Group of the commands in `COMMANDS`."""

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
    """Sluiceway: a STOMP message broker with back-pressure that isolates slow consumers.

    \b
    A first look, in three terminals:
      sluiceway serve
      sluiceway receive /queue/hello
      sluiceway send /queue/hello "Hello, world"
    and then:
      sluiceway stat

    Every command explains itself: sluiceway COMMAND --help.
    """
