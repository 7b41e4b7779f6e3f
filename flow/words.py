"""Sizes, ages and facts as people say them: ``64.0 MiB``, ``41 s``, ``500 unacked``."""

from collections.abc import Mapping, Sequence

_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size_in_words(size_bytes: float) -> str:
    """Return a size in binary units with one decimal (``64.0 MiB``); below 1 KiB in whole bytes (``512 B``)."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes:.0f} B"
    size = float(size_bytes)
    for unit in _SIZE_UNITS:
        size /= 1024
        # Not 1024: what would be printed as "1024.0 KiB" is one of the next unit.
        if abs(size) < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size:.1f} {_SIZE_UNITS[-1]}"


def age_in_words(age_seconds: float) -> str:
    """Return a duration in the one unit that reads best: ``350 ms``, ``41 s``, ``12 min``, ``5 h``, ``3 d``."""
    if age_seconds < 0.9995:
        return f"{age_seconds * 1000:.0f} ms"
    if age_seconds < 119.5:
        return f"{age_seconds:.0f} s"
    if age_seconds < 7170:
        return f"{age_seconds / 60:.0f} min"
    if age_seconds < 171_000:
        return f"{age_seconds / 3600:.0f} h"
    return f"{age_seconds / 86_400:.0f} d"


def count_in_words(count: int, noun: str) -> str:
    """Return ``1 message``, ``500 messages``; ``noun`` is given in the singular and takes a plain s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ranges_in_words(numbers: Sequence[int]) -> str:
    """Return whole numbers in order as text: 0-3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)


def part_in_words(part: str, owner: str) -> str:
    """Return the name of a part of something that has a name: ``billing-2 of 10.0.0.1:80``."""
    return f"{part} of {owner}"


def part_and_owner(name: str) -> tuple[str, str]:
    """Return what `part_in_words` put together; a name without a part is that of an owner."""
    part, _of, owner = name.rpartition(" of ")
    return part, owner


def facts_in_words(facts: Mapping[str, object]) -> str:
    """Return facts as one line: ``{"unacked": 500, "idle_seconds": 41.0}`` becomes ``500 unacked, idle 41 s``.

    The last part of a key is its unit: ``_seconds``, ``_bytes``, ``_count``, ``_per_second``; a key without one that
    holds a whole number counts things (``"consumers": 1`` becomes ``1 consumer``). True is said by its name alone, None
    is left out.
    """
    return ", ".join(said for key, value in facts.items() if (said := _fact_in_words(key, value)))


def _fact_in_words(key: str, value: object) -> str:
    name = key.replace("_", " ")
    if value is None:
        return ""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if not isinstance(value, (int, float)):
        return f"{name} {value}"
    # The longer ending first: it ends in "_second", not in "_seconds", but a reader should not have to check that.
    if key.endswith("_per_second"):
        return f"{name.removesuffix(' per second')} {value:,.0f}/s"
    if key.endswith("_seconds"):
        return f"{name.removesuffix(' seconds')} {age_in_words(value)}"
    if key.endswith("_bytes"):
        return f"{size_in_words(value)} {name.removesuffix(' bytes')}"
    if isinstance(value, int):
        things = name.removesuffix(" count")
        return f"{value:,} {things.removesuffix('s') if value == 1 else things}"
    return f"{name} {value:g}"
