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
}
"""Options of other programs, with the options here that a command may have."""


class SuggestingGroup(click.Group):
    """Group that names the nearest command for an unknown one, as click does for options."""

    def invoke(self, ctx: click.Context) -> Any:
        """See click. An option of other programs is reported with its name here."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx is not None:
                known = {name for option in error.ctx.command.params for name in option.opts}
                near = [name for name in OTHER_OPTIONS.get(error.option_name, ()) if name in known]
                if near:
                    said = f"No such option '{error.option_name}': here it is called {' or '.join(near)}."
                    raise click.NoSuchOption(error.option_name, said, ctx=error.ctx) from None
            raise

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
