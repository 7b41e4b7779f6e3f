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
from typing import Any


class Logger:
    """Logger of one part of the broker, with those methods of structlog's loggers that the broker uses."""

    __slots__ = ("_lines", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: Any = None

    def debug(self, event: str, **values: Any) -> None:
        if "structlog" in sys.modules:
            self._structlog().debug(event, **values)

    def info(self, event: str, **values: Any) -> None:
        if "structlog" in sys.modules:
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
        if self._lines is None:
            from .log_lines import lines_of

            self._lines = lines_of(self._name)
        return self._lines


def get_logger(name: str) -> Logger:
    """A logger called `name`, such as ``sluiceway.listener``."""
    return Logger(name)
