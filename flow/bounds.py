"""Number that stands for "no limit"."""

from __future__ import annotations

from typing import Final

UNBOUNDED: Final = 1 << 62
"""More than any count, size or place ever gets. The sum of two still fits into 64 bits."""
