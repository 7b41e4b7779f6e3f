"""Configuration of logging: `[logging]`. Logs that keep messages (`/log/...`) are in `[logs]`, a
`sluiceway.store.log_storage.LogStorageConfig`.
"""

from __future__ import annotations

from typing import Final

import attrs

from sluiceway.queues.settings import field, one_of

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "json", "console")


@attrs.frozen
class LoggingConfig:
    """Level and format of logging."""

    level: str = field(
        "info",
        "",
        "The least level that is logged: `debug`, `info`, `warning`, `error`. `info` is a few lines per connection at "
        "most, never one per message; `debug` shows every refused frame.",
        one_of(LOG_LEVELS),
    )
    format: str = field(
        "auto",
        "",
        "`json`: one object per line, for machines. `console`: aligned and coloured, for people. `auto`: `console` on "
        "a terminal, else `json`. Lines go to standard error, times are UTC.",
        one_of(LOG_FORMATS),
    )
