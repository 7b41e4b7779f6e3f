"""Lines of the broker's loggers, by structlog: all lines the way of the program, or warnings on standard error.

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


def lines_of(name: str) -> Any:
    """Return the logger of structlog for a logger of the broker."""
    # structlog asks for a class, and calls it: a function that chooses the class serves.
    return structlog.wrap_logger(None, wrapper_class=cast(Any, _bound), logger_factory_args=(name,))


def _bound(logger: Any, processors: Any, context: Any) -> Any:
    if structlog.is_configured():
        return structlog.get_config()["wrapper_class"](logger, processors, context)
    quiet = cast(Any, _WARNINGS_AND_ERRORS)
    return quiet(structlog.PrintLogger(sys.stderr), _PROCESSORS, context)
