"""The broker's loggers: they follow the program they run in.

A program that has set structlog up (the command line does, see `sluiceway.logging_setup`) gets every line its way. One
that has not, such as a test suite with an embedded broker, gets warnings and errors only, on standard error: a line per
connection would drown the program's own output.

This is decided line by line, without touching structlog's global configuration, which belongs to the program. A program
that has not even imported structlog has not set it up: structlog, which takes longer to import than all of STOMP here,
is imported with the first warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Taker = Callable[[str, dict[str, Any]], None]
"""Takes the event and the values of a line."""

_takers: list[Taker] = []


@contextmanager
def warnings_to(taker: Taker) -> Iterator[None]:
    """Give warnings and errors of all brokers of this process to a simulation, in place of the program's log."""
    _takers.append(taker)
    try:
        yield
    finally:
        _takers.remove(taker)


class _Taken:
    """Logger that has a taker."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker

    def warning(self, event: str, **values: Any) -> None:
        self._taker(event, values)

    error = exception = critical = warning


class Logger:
    """Logger of one part of the broker, with those methods of structlog's loggers that the broker uses."""

    __slots__ = ("_lines", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: Any = None

    def debug(self, event: str, **values: Any) -> None:
        if "structlog" in sys.modules and not _takers:
            self._structlog().debug(event, **values)

    def info(self, event: str, **values: Any) -> None:
        if "structlog" in sys.modules and not _takers:
            self._structlog().info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        self._structlog().warning(event, **values)

    def error(self, event: str, **values: Any) -> None:
        self._structlog().error(event, **values)

    def exception(self, event: str, **values: Any) -> None:
        self._structlog().exception(event, **values)

    def critical(self, event: str, **values: Any) -> None:
        self._structlog().critical(event, **values)

    def _structlog(self) -> Any:
        if _takers:
            return _Taken(_takers[-1])
        if self._lines is None:
            from .log_lines import lines_of

            self._lines = lines_of(self._name)
        return self._lines


def get_logger(name: str) -> Logger:
    """A logger called `name`, such as ``sluiceway.listener``."""
    return Logger(name)
