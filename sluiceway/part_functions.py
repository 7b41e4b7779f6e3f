"""Functions of the operator that divide queues into parts: `partition_by = "function:MODULE:NAME"`.

A function is called in the broker's loop with a getter of headers, for each message head that the broker has not seen
lately, and returns the value that decides on the part, or None. What it raises concerns the order of one message, and
is logged; the message is in part 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from sluiceway.protocols.log import get_logger
from sluiceway.queues.environment import HeaderOf, PartFunction

log = get_logger("sluiceway.part_functions")

REMEDY = "correct it: such messages are in part 0, out of order with others of their kind"


def load(name: str) -> Callable[[HeaderOf], object]:
    """Return the function MODULE:NAME. Raises ValueError that says what is wrong with it."""
    module_name, _colon, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is not ours, and may raise anything
        raise ValueError(
            f"the function {name} can't be had: importing {module_name} raised {type(error).__name__}: {error}. "
            "Install the module where the broker runs, or name its folder in PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "nothing" if function is None else f"a {type(function).__name__}"
        raise ValueError(f"the function {name} can't be had: {module_name} has {what} by the name {function_name}")
    found: Callable[[HeaderOf], object] = function
    return found


def carefully(name: str) -> PartFunction:
    """Return the function MODULE:NAME so that it never raises; the first failure of each kind is logged. Raises
    ValueError.
    """
    function = load(name)
    told: set[type] = set()

    def value_of(header_of: HeaderOf) -> str | None:
        try:
            value = function(header_of)
        except Exception as error:  # noqa: BLE001 - the function is not ours; the message has its part all the same
            if type(error) not in told:
                told.add(type(error))
                log.warning("a function that divides a queue failed", function=name, error=repr(error), remedy=REMEDY)
            return None
        if value is None or isinstance(value, str):
            return value
        if type(value) not in told:
            told.add(type(value))
            log.warning(
                "a function that divides a queue gave no text", function=name, given=repr(value)[:100], remedy=REMEDY
            )
        return None

    return value_of
