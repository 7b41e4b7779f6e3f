"""The broker's loggers: they follow the program they run in.

A program that has set structlog up (the command line does, see `sluiceway.logging_setup`) gets every line its way. One
that has not, such as a test suite with an embedded broker, gets warnings and errors only, on standard error: a line per
connection would drown the program's own output.

This is decided line by line, without touching structlog's global configuration, which belongs to the program.
Tracebacks are plain: those that show local variables would show messages and passcodes.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import structlog

_WARNINGS_AND_ERRORS = structlog.make_filtering_bound_logger(30)
_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
]


def get_logger(name: str) -> Any:
    """A logger called `name`, such as ``sluiceway.listener``."""
    # structlog asks for a class, and calls it: a function that chooses the class serves.
    return structlog.wrap_logger(None, wrapper_class=cast(Any, _bound), logger_factory_args=(name,))


def _bound(logger: Any, processors: Any, context: Any) -> Any:
    if structlog.is_configured():
        return structlog.get_config()["wrapper_class"](logger, processors, context)
    quiet = cast(Any, _WARNINGS_AND_ERRORS)
    return quiet(structlog.PrintLogger(sys.stderr), _PROCESSORS, context)
