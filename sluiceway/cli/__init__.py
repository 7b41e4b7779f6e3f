"""The command line: `sluiceway serve | send | receive | browse | log | stat | store | spark | config | version`.

    exits      exit codes, and how a command ends with one
    serve      a broker in the foreground
    client     stomp.py behind a small blocking face; maps its exceptions
    messages   send, receive and browse
    log        logs: list, describe, groups, seek, truncate, delete; log_tail reads, log_append writes, log_view draws,
               log_asking has what they share
    stat       asks a running broker for its flow map
    stat_view  draws the answer
    store      looks after a data folder: check, repair, export, import, compact
    progress   something to look at meanwhile
    spark      doctor: can Spark run here?
    settings   config and version

Each command imports what it needs when it runs: `sluiceway send` should not load a broker.
"""

from __future__ import annotations

import click

from sluiceway.cli.exits import EXIT_CODES_HELP
from sluiceway.cli.log import log
from sluiceway.cli.messages import browse, receive, send
from sluiceway.cli.serve import serve
from sluiceway.cli.settings import config, version
from sluiceway.cli.spark import spark
from sluiceway.cli.stat import stat
from sluiceway.cli.store import store
from sluiceway.version import VERSION

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=EXIT_CODES_HELP)
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


for _command in (serve, send, receive, browse, log, stat, store, spark, config, version):
    main.add_command(_command)
