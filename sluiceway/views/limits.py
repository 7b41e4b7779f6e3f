"""Limits of destinations in words, for all that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluiceway.flow.words import size_in_words


def limit_in_words(limit: str, value: int | None) -> str:
    """Return the value of a limit: ``5,000``, ``64.0 MiB``, ``none``."""
    if value is None:
        return "none"
    return f"{value:,}" if limit == "count_max" else size_in_words(value)


def changed_limits_in_words(changed: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the limits that were changed at run time: ``count_max 5,000 (configured: 1,000)``."""
    return ", ".join(
        f"{limit} {limit_in_words(limit, change.get('value'))} "
        f"(configured: {limit_in_words(limit, change.get('configured'))})"
        for limit, change in changed.items()
    )
