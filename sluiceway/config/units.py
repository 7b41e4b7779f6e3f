"""Conversion of sizes and durations between text and numbers.

A number has the field's own unit; text may name another: "64 MiB", "1500 ms", "2 min". KiB, MiB and GiB are powers of
1024; kB, MB and GB powers of 1000.
"""

from __future__ import annotations

import re
from typing import Final

SIZES: Final = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
DURATIONS_MS: Final = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_NUMBER: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Parse a size in bytes. Raises ValueError that lists the units."""
    number, unit = _split(text, SIZES, "a size", "67108864 or 64 MiB")
    size = number * SIZES.get(unit, 1)
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_seconds(text: str) -> float:
    """Parse a duration in seconds. Raises ValueError that lists the units."""
    number, unit = _split(text, DURATIONS_MS, "a duration", "1.5 or 1500 ms or 30 s")
    return number * DURATIONS_MS[unit] / 1000 if unit else number


def parse_ms(text: str) -> int:
    """Parse a duration in whole milliseconds. Raises ValueError that lists the units."""
    number, unit = _split(text, DURATIONS_MS, "a duration", "1500 or 1500 ms or 30 s")
    duration = number * DURATIONS_MS.get(unit, 1)
    if duration != int(duration):
        raise ValueError(f"{text!r} is not a whole number of milliseconds")
    return int(duration)


def format_bytes(size_bytes: int) -> str:
    """Return the shortest exact form: 67108864 is "64 MiB", 1000 is "1000 B"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= SIZES[unit] and size_bytes % SIZES[unit] == 0:
            return f"{size_bytes // SIZES[unit]} {unit}"
    return f"{size_bytes} B"


def format_ms(duration_ms: int) -> str:
    """Return the shortest exact form: 3600000 is "1 h", 1500 is "1500 ms"."""
    for unit in ("d", "h", "min", "s"):
        if duration_ms >= DURATIONS_MS[unit] and duration_ms % DURATIONS_MS[unit] == 0:
            return f"{duration_ms // DURATIONS_MS[unit]} {unit}"
    return f"{duration_ms} ms"


def _split(text: str, units: dict[str, int], what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] and match[2] not in units):
        raise ValueError(f"{text!r} is not {what}: write {example} (units: {', '.join(units)})")
    digits = match[1].replace("_", "")
    return (float(digits) if "." in digits else int(digits)), match[2]
