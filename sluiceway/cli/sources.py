"""Options of commands that read the configuration of a broker, or its data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from sluiceway.config.sources import Layer

Command = TypeVar("Command", bound=Callable[..., Any])
DATA_FOLDER: Final = "The data folder [default: as configured, else ./sluiceway-data]."


def config_option(help_text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the option `--config`, which the command gets as `config_file`."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="SLUICEWAY_CONFIG",
        required=required,
        help=help_text,
    )


def data_option(help_text: str = DATA_FOLDER) -> Callable[[Command], Command]:
    """Return the option `--data`, which the command gets as `data_dir`."""
    return click.option("--data", "data_dir", metavar="DIR", help=help_text)


def data_layers(data_dir: str | None) -> list[Layer]:
    """Return what `--data` says, as a part of the configuration."""
    from sluiceway.config.sources import Layer

    return [] if data_dir is None else [Layer("--data", {"broker": {"data_dir": data_dir}})]
