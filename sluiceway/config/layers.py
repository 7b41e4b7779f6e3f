"""Contents of one source of the configuration, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Layer:
    """Contents of one source."""

    source: str
    """Name for messages: "sluiceway.toml", "environment variable SLUICEWAY_LOGGING__LEVEL", "--listen"."""
    data: Mapping[str, Any]
    variable: str = ""
    """Environment variable, if the source is one."""
    text: str = ""
    """Text of the file, if the source is one, to find lines in."""
