"""What one source of the configuration says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen
class Layer:
    """What one source says."""

    source: str
    """For people: "sluiceway.toml", "environment variable SLUICEWAY_LOGGING__LEVEL", "--listen"."""
    data: Mapping[str, Any]
    variable: str = ""
    """The environment variable that it is, if it is one."""
    text: str = ""
    """The file that it is, if it is one: lines are found in it."""
