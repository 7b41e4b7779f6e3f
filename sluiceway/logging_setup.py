"""Logging: structlog set up once per process, by the command line (an embedded broker leaves it to its host).

JSON lines for machines, columns for people; UTC; on standard error, so that standard output stays for what a command is
asked for. Secrets are taken out by key before anything is rendered: a passcode must not reach a log by way of a header
dump, nor by way of a traceback, so those come without local variables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import structlog

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
SECRET_KEYS: Final = frozenset({"passcode", "password", "passwd", "secret", "token", "authorization", "users"})
HIDDEN: Final = "(hidden)"


def configure(level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Sets structlog up for the whole process; a second call replaces the first.

    `level`: the least level that is logged, a key of `LEVELS`.
    `format`: "json", "console", or "auto": console if `stream` is a terminal.
    `stream`: where to, by default standard error.
    Raises ValueError: unknown level or format.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: one of {', '.join(LEVELS)}")
    if format not in ("auto", "json", "console"):
        raise ValueError(f"unknown log format {format!r}: auto, json or console")
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    if format == "console" or (format == "auto" and terminal):
        processors.append(
            structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)
        )
    else:
        processors.append(structlog.processors.format_exc_info)
        processors.append(structlog.processors.JSONRenderer(default=str))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        # A reload may change the level, also for loggers that were used before; lines are few.
        cache_logger_on_first_use=False,
    )


def hide_secrets(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replaces the values of secret keys, also inside mappings such as the headers of a frame."""
    for key, value in event.items():
        if key in SECRET_KEYS:
            event[key] = HIDDEN
        elif isinstance(value, Mapping) and not SECRET_KEYS.isdisjoint(value):
            event[key] = {inner: HIDDEN if inner in SECRET_KEYS else item for inner, item in value.items()}
    return event
