"""Former names of sections: read for one more version, each with a warning that names the remedy.

    former name                      name now
    [journal]                        [logs]
    level and format of [logs]       [logging]

The keys of a `[logs]` decide which of the two it means: `[logging]` and `[logs]` have no key in common, which a test
checks. A `[logs]` with keys of both kinds is split. A source (the file, or the environment as a whole) must not set the
same key by its former and by its present name; between sources the later one overrides the earlier one, as for all
keys.

Remove with the next version, together with `tell` of `sources.load` and `former_arguments`.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final

import attrs

from sluiceway.config.layers import Layer
from sluiceway.config.logging import LoggingConfig

KeyPath = tuple[str, ...]
FORMER_LOGS: Final = "journal"
LOGS: Final = "logs"
LOGGING: Final = "logging"
LOGGING_KEYS: Final = frozenset(field.name for field in attrs.fields(LoggingConfig))
_UNTIL: Final = "The next version no longer reads the former name"


@attrs.frozen
class FormerName:
    """A former name in use."""

    where: str
    """Source, with the line of a file."""
    said: str
    """Former and present name."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.said}: {self.remedy}. {_UNTIL}"


@attrs.frozen
class Translated:
    """Layers of one source, by present names."""

    layers: tuple[Layer, ...]
    former: tuple[FormerName, ...]
    clashes: tuple[str, ...]
    """Mistakes: settings by their former and by their present name. The value by the former name is dropped."""


def by_present_names(layers: Sequence[Layer]) -> Translated:
    """Translate the layers of one source: the file, all environment variables, or all flags."""
    split = [_split(layer) for layer in layers]
    told = {path: layer for layer, (kept, _moved) in zip(layers, split, strict=True) for path in _paths(kept)}
    found: list[Layer] = []
    former: list[FormerName] = []
    clashes: list[str] = []
    for layer, (kept, moved) in zip(layers, split, strict=True):
        found.append(attrs.evolve(layer, data=kept))
        former.extend(_former_names(layer, kept, moved))
        for old, new, value in moved:
            other = None if value == {} else _clash(new, told)
            if other is None:
                source = layer.source if layer.variable else f"{layer.source} ({_name(layer, old)} there)"
                found.append(attrs.evolve(layer, source=source, data=_nested(new, value)))
            else:
                was, now = _name(layer, old), _name(told[other], other)
                clashes.append(
                    f"{_where(layer, old)}: {was} and {now} set the same, {was} by its former name: remove {was}"
                )
    return Translated(tuple(found), tuple(former), tuple(clashes))


Move = tuple[KeyPath, KeyPath, Any]
"""Former path, present path, value."""


def _split(layer: Layer) -> tuple[dict[str, Any], list[Move]]:
    """Split a layer into data by present names, and settings by former names."""
    kept = dict(layer.data)
    moved: list[Move] = []
    logs = kept.get(LOGS)
    if isinstance(logs, Mapping) and LOGGING_KEYS & logs.keys():
        moved += [((LOGS, key), (LOGGING, key), value) for key, value in logs.items() if key in LOGGING_KEYS]
        kept[LOGS] = {key: value for key, value in logs.items() if key not in LOGGING_KEYS}
        if not kept[LOGS]:
            del kept[LOGS]
    if FORMER_LOGS in kept:
        journal = kept.pop(FORMER_LOGS)
        if isinstance(journal, Mapping) and journal:
            moved += [((FORMER_LOGS, key), (LOGS, key), value) for key, value in journal.items()]
        else:
            moved.append(((FORMER_LOGS,), (LOGS,), journal))
    return kept, moved


def _paths(data: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the paths set in the two sections: keys, or the section itself if it is not a table."""
    for section in (LOGS, LOGGING):
        value = data.get(section, {})
        if isinstance(value, Mapping):
            yield from ((section, key) for key in value)
        else:
            yield (section,)


def _clash(new: KeyPath, told: Mapping[KeyPath, Layer]) -> KeyPath | None:
    """Return the path by present names that `new` would also set."""
    return next((path for path in told if path[: len(new)] == new[: len(path)]), None)


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)


# -- in words ----------------------------------------------------------------------------------------------------------


def _former_names(layer: Layer, kept: Mapping[str, Any], moved: Sequence[Move]) -> Iterator[FormerName]:
    for section in dict.fromkeys(old[0] for old, _new, _value in moved):
        mine = [(old, new) for old, new, _value in moved if old[0] == section]
        target = mine[0][1][0]
        # A section is renamed as a whole, unless that leaves keys in the wrong section or one section twice.
        if not layer.variable and section not in kept and target not in kept:
            said = f"the section [{section}] is now called [{target}]"
            if section == LOGS:
                said = f"the section [{section}] with {' and '.join(old[-1] for old, _new in mine)} is now [{target}]"
            yield FormerName(_where(layer, (section,)), said, f"write [{target}] in place of [{section}]")
            continue
        for old, new in mine:
            was, now = _name(layer, old), _name(layer, new)
            if layer.variable:
                remedy = f"write {now} in place of {was}"
            elif len(old) == 1:
                remedy = f"remove {was}"
            else:
                remedy = f"move it to the section [{target}]"
            yield FormerName(_where(layer, old), f"{was} is now called {now}", remedy)


def _name(layer: Layer, path: KeyPath) -> str:
    """Return the path as the source writes it."""
    if layer.variable:
        prefix, _underscore, _key = layer.variable.partition("_")
        return f"{prefix}_{'__'.join(path).upper()}"
    return ".".join(path) if len(path) > 1 else f"[{path[0]}]"


def _where(layer: Layer, path: KeyPath) -> str:
    line = _line(layer.text, path)
    return f"{layer.source}, line {line}" if line else layer.source


def _line(text: str, path: KeyPath) -> int | None:
    """Return the line of a TOML file that sets this path: the first one with which the text up to it contains the
    path.
    """
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if re.search(rf"\b{re.escape(path[-1])}\b", line) is None:
            continue
        try:
            value: Any = tomllib.loads("".join(lines[:number]))
            for part in path:
                value = value[part]
        except (tomllib.TOMLDecodeError, KeyError, TypeError):
            continue
        return number
    return None


# -- programs ----------------------------------------------------------------------------------------------------------


def former_arguments(make: Callable[..., None]) -> Callable[..., None]:
    """Return an initializer of `Config` that also takes `journal=` for `logs`, and `logs=` for `logging`. The former
    name overrides the present one, as `attrs.evolve` passes both.
    """

    @wraps(make)
    def with_former(self: Any, *args: Any, **fields: Any) -> None:
        if isinstance(fields.get(LOGS), LoggingConfig):
            warnings.warn(f"Config({LOGS}=) of logging is now Config({LOGGING}=)", DeprecationWarning, stacklevel=2)
            fields[LOGGING] = fields.pop(LOGS)
        if FORMER_LOGS in fields:
            warnings.warn(f"Config({FORMER_LOGS}=) is now Config({LOGS}=)", DeprecationWarning, stacklevel=2)
            fields[LOGS] = fields.pop(FORMER_LOGS)
        make(self, *args, **fields)

    return with_former
