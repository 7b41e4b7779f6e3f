"""Options of `sluiceway migrate` for moving messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import click

from sluiceway.cli.connecting import host_options

IDLE_SECONDS: Final = 3.0
CREDIT_COUNT_MAX: Final = 500
"""Limit of sluiceway.migration.moving, which is not imported for a list of options."""
LEDGER: Final = Path("sluiceway-migrate.ledger")


@attrs.frozen
class MoveOptions:
    """Values of the options."""

    queues: tuple[str, ...]
    ledger: Path
    idle_seconds: float
    credit_count: int
    persistent: bool
    dry_run: bool
    source_passcode: str | None


def message_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for moving messages. The command gets `messages`, `address` of the target, and `move`."""

    def with_options(
        queues: tuple[str, ...],
        ledger: Path,
        idle_seconds: float,
        credit_count: int,
        persistent: bool,
        dry_run: bool,
        source_passcode: str | None,
        **others: Any,
    ) -> None:
        if not others["messages"] and (queues or dry_run or persistent):
            raise click.UsageError("--queue, --dry-run and --persistent are for --messages: add it")
        if others["messages"] and others["output"] is not None:
            raise click.UsageError("--output is for a configuration: leave it out with --messages")
        command(
            move=MoveOptions(queues, ledger, idle_seconds, credit_count, persistent, dry_run, source_passcode), **others
        )

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    made: Callable[..., None] = host_options(with_options)
    for option in (
        click.option(
            "--source-passcode",
            envvar="SLUICEWAY_SOURCE_PASSCODE",
            help="Passcode at the other broker. Better from SLUICEWAY_SOURCE_PASSCODE.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="With --messages: log in at both, say what is there, move nothing."
        ),
        click.option("--persistent", is_flag=True, help="With --messages: make all of them persistent."),
        click.option(
            "--prefetch",
            "credit_count",
            type=click.IntRange(1, CREDIT_COUNT_MAX),
            default=CREDIT_COUNT_MAX,
            show_default=True,
            help="With --messages: as many are on their way at most, and may be doubled by a crash.",
        ),
        click.option(
            "--idle",
            "idle_seconds",
            type=click.FloatRange(min=0.1),
            default=IDLE_SECONDS,
            show_default=True,
            metavar="SECONDS",
            help="With --messages: a queue is finished when nothing has come for this time.",
        ),
        click.option(
            "--ledger",
            type=click.Path(dir_okay=False, path_type=Path),
            default=LEDGER,
            show_default=True,
            help="With --messages: file with how far the move is. With the same file a run that was killed continues.",
        ),
        click.option(
            "--queue", "queues", multiple=True, metavar="NAME", help="With --messages: a queue there; may be repeated."
        ),
        click.option(
            "--messages", is_flag=True, help="Move messages: SOURCE is the STOMP address of the other broker."
        ),
    ):
        made = option(made)
    return made
