"""Plays a function with many seeds, and prints the smallest history that fails.

    python -m sluiceway.simulation tests.orders:orders_arrive --seeds 1000
    python -m sluiceway.simulation tests.orders:orders_arrive --first 4711 --seeds 1      one of them again

The function is async and takes a seed. Exit code 1: a seed fails; 2: there is no such function.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from sluiceway.simulation.running import SECONDS_MAX
from sluiceway.simulation.seeds import SeedError, run_seeds


def function_of(name: str) -> Any:
    """Return the function that MODULE:FUNCTION names. Raises ValueError, which says what is wrong."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ValueError(f"{name!r} is not MODULE:FUNCTION, such as tests.orders:orders_arrive")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"there is no module {error.name!r}: run this where `import {module_name}` works, such as the folder of "
            "the project"
        ) from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {path}")
        found = getattr(found, part)
    if not inspect.iscoroutinefunction(found):
        raise ValueError(f"{name} is no async function: write `async def {path}(seed)`")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sluiceway.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument(
        "--seconds-max", type=float, default=SECONDS_MAX, help="virtual time of one (default: %(default)g)"
    )
    given = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    try:
        function = function_of(given.function)
    except ValueError as error:
        print(f"simulation: {error}", file=sys.stderr)
        return 2
    try:
        print(run_seeds(function, seeds=given.seeds, first=given.first, seconds_max=given.seconds_max))
    except SeedError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
