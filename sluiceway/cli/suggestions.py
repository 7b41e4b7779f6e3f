"""Groups of commands that suggest a command or option for a mistyped one, or for a word of other brokers."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

import click

OTHER_WORDS: Final = {
    "start": "serve",
    "run": "serve",
    "server": "serve",
    "broker": "serve",
    "publish": "send",
    "produce": "send",
    "put": "send",
    "subscribe": "receive",
    "consume": "receive",
    "get": "receive",
    "listen": "receive",
    "peek": "browse",
    "status": "stat",
    "stats": "stat",
    "info": "stat",
    "monitor": "top",
    "watch": "top",
    "check": "doctor",
    "diagnose": "doctor",
    "logs": "log",
    "topic": "log",
    "ls": "list",
    "show": "describe",
    "rm": "delete",
    "remove": "delete",
    "read": "tail",
    "write": "append",
    "fix": "repair",
    "backup": "export",
    "restore": "import",
    "user": "secret",
    "users": "secret",
    "passwd": "secret",
    "password": "secret",
    "acl": "permissions",
    "trace": "trail",
    "kick": "close",
    "disconnect": "close",
    "redrive": "retry",
    "truncate": "purge",
    "unpause": "resume",
    "list_queues": "stat",
    "list_connections": "stat",
    "list_channels": "stat",
    "list_consumers": "stat",
    "list_exchanges": "stat",
    "list_bindings": "stat",
    "ping": "stat",
    "observer": "top",
    "purge_queue": "purge",
    "delete_queue": "purge",
    "close_connection": "close",
    "close_all_connections": "drain",
    "stop_app": "drain",
    "shutdown": "drain",
    "stop": "drain",
    "environment": "config",
    "add_user": "secret",
    "change_password": "secret",
    "list_users": "permissions",
    "set_permissions": "permissions",
    "list_permissions": "permissions",
    "list_user_permissions": "permissions",
    "trace_on": "trail",
    "check_running": "doctor",
    "export_definitions": "config",
}
"""Commands of other programs, with the commands here."""


OTHER_OPTIONS: Final = {
    "--port": ("--listen", "--url"),
    "--bind": ("--listen",),
    "--address": ("--listen", "--url"),
    "--broker": ("--url",),
    "--server": ("--url",),
    "--user": ("--login",),
    "--username": ("--login",),
    "--password": ("--passcode",),
    "--data-dir": ("--data",),
    "--dir": ("--data",),
    "--config-file": ("--config",),
    "--verbose": ("--log-level",),
    "--debug": ("--log-level",),
    "--number": ("--count",),
    "--follow": ("--watch",),
    "--vhost": ("--host",),
    "--ack-mode": ("--ack",),
    "--prefetch": ("--header prefetch-count:10",),
}
"""Options of other programs, with the options here that a command may have."""


HELP_LENGTH_MAX: Final = 200
"""Characters of the first sentence of a command in the help of its group."""


class SuggestingGroup(click.Group):
    """Group that names the nearest command for an unknown one, as click does for options."""

    def invoke(self, ctx: click.Context) -> Any:
        """See click. An option of other programs is reported with its name here."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx is not None:
                known = {name for option in error.ctx.command.params for name in option.opts}
                near = [name for name in OTHER_OPTIONS.get(error.option_name, ()) if name.partition(" ")[0] in known]
                if near:
                    said = f"No such option '{error.option_name}': here it is called {' or '.join(near)}."
                    raise click.NoSuchOption(error.option_name, said, ctx=error.ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click, which cuts long lines; here they are wrapped."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(HELP_LENGTH_MAX)) for name, command in commands if command]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click. Raises UsageError with a suggestion."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise click.UsageError(self._unknown(ctx, name), ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: click.Context, name: str) -> str:
        known = self.list_commands(ctx)
        said = f"there is no command {name!r}"
        if name == "help":
            return f"{said}: write {ctx.command_path} --help"
        other = OTHER_WORDS.get(name.lower())
        near = [other] if other in known else get_close_matches(name.lower(), known, 2, 0.6)
        if near:
            return f"{said}; did you mean {' or '.join(near)}?"
        return f"{said}; there are {', '.join(known)}"
