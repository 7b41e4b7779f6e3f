"""Sources of the configuration: a TOML file, overridden by the environment, overridden by flags.

A layer is nested plain data with a name. Layers are merged table by table; lists and single values replace earlier
ones. Each value remembers its layer, so that a mistake is reported with its file, variable or flag.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from sluiceway.config.errors import ConfigError
from sluiceway.config.former import FormerName, by_present_names
from sluiceway.config.layers import Layer as Layer
from sluiceway.config.model import Config
from sluiceway.config.structure import InvalidData, KeyPath, Problem, structure

ENVIRONMENT_PREFIX: Final = "SLUICEWAY_"
SECRET_KEYS: Final = frozenset(
    (section.name, field.name)
    for section in attrs.fields(Config)
    for field in (attrs.fields(section.type) if section.type is not None and attrs.has(section.type) else ())
    if field.metadata.get("secret")
)
_LISTS: Final = ("listeners", "destinations")
_VALUE_LENGTH_MAX: Final = 80


def _warn(former: FormerName) -> None:
    warnings.warn(str(former), FutureWarning, stacklevel=3)


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[Layer] = (),
    tell: Callable[[FormerName], None] = _warn,
) -> Config:
    """Make a configuration from its sources, later ones overriding earlier ones: defaults, `file`, `environment`,
    `flags`.

        `file`: a TOML file; None: no file.
        `environment`: `SLUICEWAY_SECTION__KEY` and `SLUICEWAY_LISTENERS`; other variables are ignored. None: none (a
        caller that wants it passes `os.environ`).
        `flags`: one layer per flag.
        `tell`: called for each former name in use, even if there are mistakes. By default Python warns.
        Raises ConfigError: all mistakes, one line each.
    """
    merged: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    mistakes: list[str] = []
    for layers in ([] if file is None else [_read(file)], environment_layers(environment or {}), flags):
        translated = by_present_names(layers)
        for former in translated.former:
            tell(former)
        mistakes.extend(translated.clashes)
        for layer in translated.layers:
            _merge(merged, layer.data, layer.source, (), origins)
    try:
        config = structure(merged, Config)
    except InvalidData as error:
        mistakes.extend(_in_words(problem, merged, origins) for problem in error.problems)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return config


def environment_layers(environment: Mapping[str, str]) -> list[Layer]:
    """Return each variable as a layer: `SLUICEWAY_LOGGING__LEVEL=debug` sets `logging.level`; `SLUICEWAY_LISTENERS` and
    `SLUICEWAY_DESTINATIONS` set whole lists.
    """
    layers = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        parts = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(parts) == 1 and parts[0] not in _LISTS:
            continue  # SLUICEWAY_URL and the like are not configuration
        data: Any = environment[name]
        for part in reversed(parts):
            data = {part: data}
        layers.append(Layer(f"environment variable {name}", data, variable=name))
    return layers


def _read(file: Path) -> Layer:
    try:
        text = file.read_text(encoding="utf-8")
        return Layer(str(file), tomllib.loads(text), text=text)
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: there is no such file; `sluiceway config > {file}` writes one with all defaults"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from error


def _merge(
    into: dict[str, Any], data: Mapping[str, Any], source: str, path: KeyPath, origins: dict[KeyPath, str]
) -> None:
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            below = into.get(key)
            if not isinstance(below, dict):
                into[key] = below = {}
                origins[here] = source
            _merge(below, value, source, here, origins)
        else:
            into[key] = value
            origins[here] = source


def _in_words(problem: Problem, data: Any, origins: Mapping[KeyPath, str]) -> str:
    path, what = problem.path, problem.what
    source = next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), "configuration")
    value = data
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):  # a missing key; or text that stands for a list
            return f"{source}: {problem.key}: {problem.what}"
    if path[:2] in SECRET_KEYS:
        said = "(not shown)"
    elif isinstance(value, dict | list):
        return f"{source}: {problem.key}: {problem.what}"
    else:
        said = repr(value)
        what = what.removesuffix(f", got {said}")
        if len(said) > _VALUE_LENGTH_MAX:
            said = said[:_VALUE_LENGTH_MAX] + "…"
    return f"{source}: {problem.key} = {said}: {what}"
