"""Plain data (from TOML, JSON or text) to the configuration objects, with all mistakes reported at once.

cattrs makes a structuring function for each class from its annotations and collects errors; each field gets a hook that
knows its unit, reads text (from the environment) and runs the field's validator, so that an error carries the path of
its key. Unknown keys are errors with the nearest known one as a suggestion.

Not here: sources of values; `sources` turns a `Problem`'s path into the file or variable that set it.
"""

from __future__ import annotations

import difflib
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from sluiceway.config.listening import listener_table
from sluiceway.config.logging import LoggingConfig
from sluiceway.config.model import Config, DestinationPolicy, Listener
from sluiceway.config.units import parse_bytes, parse_ms, parse_seconds
from sluiceway.queues.policy import QueuePolicy

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Names and list indices from the top: ("listeners", 0, "address")."""


@attrs.frozen
class Problem:
    """One mistake in the data."""

    path: KeyPath
    what: str
    """Fault and allowed values, without the value of a secret."""

    @property
    def key(self) -> str:
        """Path in its usual form, with entries of lists counted from 1: `listeners[1].address`."""
        return key_in_words(self.path)


class InvalidData(Exception):
    """Data that is not a configuration; `problems` has the reasons, at least one."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.key}: {problem.what}" for problem in problems))
        self.problems = problems


def key_in_words(path: KeyPath) -> str:
    """Return `("listeners", 0, "address")` as `listeners[1].address`: users count entries from 1."""
    said = ""
    for part in path:
        said += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if said else part
    return said or "(top level)"


def structure(data: Mapping[str, Any], cls: type[T]) -> T:
    """Make a `cls` (a `Config` or one of its parts) from plain data.

    Text is accepted for every value: sizes and durations with units, "none" where a value may be missing, lists as JSON
    or separated by commas, tables as JSON or `key=value` separated by commas.

        Raises InvalidData: with all problems found.
    """
    try:
        return _CONVERTER.structure(data, cls)
    except (cattrs.BaseValidationError, ValueError, TypeError) as error:
        raise InvalidData(list(_problems(error, ()))) from error


# -- fields ------------------------------------------------------------------------------------------------------------

_CONVERTER: Final = cattrs.Converter(detailed_validation=True)
_PARSE_BY_UNIT: Final[dict[str, Callable[[str], float]]] = {
    "bytes": parse_bytes,
    "seconds": parse_seconds,
    "ms": parse_ms,
    "milliseconds": parse_ms,
}
_UNSET: Final = object()


def _structure_int(value: Any, _type: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _structure_float(value: Any, _type: Any) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not math.isfinite(float(value)):
            raise ValueError
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("must be a number (of a size that a computer has)") from None


def _structure_bool(value: Any, _type: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _structure_str(value: Any, _type: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text in quotes")
    return value


def _structure_path(value: Any, _type: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be a path, as text in quotes")
    return Path(value)


def _list_of_text(text: str) -> Any:
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    return _json(text)


def _table_of_text(text: str) -> Any:
    if text.lstrip().startswith("{"):
        return _json(text)
    table = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError("must be a JSON object, or key=value pairs separated by commas")
        table[key.strip()] = value.strip()
    return table


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"looks like JSON, but is not ({error.msg} at character {error.pos + 1})") from None


def _field_hook(attribute: attrs.Attribute[Any], kind: Any) -> Callable[[Any, Any], Any]:
    """Return a hook that structures one field: text by unit and type first, then by type, then the field's
    validator.
    """
    parse = _PARSE_BY_UNIT.get(attribute.metadata.get("unit", ""))
    origin = typing.get_origin(kind)
    optional = origin in (typing.Union, types.UnionType) and type(None) in typing.get_args(kind)

    def hook(value: Any, _type: Any) -> Any:
        if isinstance(value, str):
            if optional and value.strip().lower() == "none":
                value = None
            elif parse is not None:
                value = parse(value)
            elif origin is tuple:
                value = _list_of_text(value)
            elif origin is Mapping:
                value = _table_of_text(value)
        if origin is tuple and not isinstance(value, list | tuple):
            is_entry = isinstance(value, Mapping) and attrs.has(typing.get_args(kind)[0])
            raise ValueError(
                f"must be a list{f': write [[{attribute.name}]] in front of each entry' if is_entry else ''}"
            )
        if origin is Mapping and not isinstance(value, Mapping):
            raise ValueError("must be a table")
        result = _CONVERTER.structure(value, kind)
        if attribute.validator is not None:
            # Validators use only the value, so they can run before there is an instance; the error then names the key.
            attribute.validator(None, attribute, result)
        return result

    return hook


# -- classes -----------------------------------------------------------------------------------------------------------


def _class_hook(cls: type[Any]) -> Callable[[Any, Any], Any]:
    hints = typing.get_type_hints(cls)
    hooks = {
        attribute.name: override(
            struct_hook=_field_hook(attribute.metadata.get("like", attribute), hints[attribute.name])
        )
        for attribute in attrs.fields(cls)
    }
    make = make_dict_structure_fn(cls, _CONVERTER, _cattrs_forbid_extra_keys=True, **hooks)  # type: ignore[arg-type]

    def hook(value: Any, _type: Any) -> Any:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = _json(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a table, such as {{ {attrs.fields(cls)[0].name} = … }}")
        return make(value, cls)

    return hook


def _listener_hook() -> Callable[[Any, Any], Any]:
    whole = _class_hook(Listener)

    def hook(value: Any, kind: Any) -> Any:
        if isinstance(value, str) and not value.lstrip().startswith("{"):
            value = listener_table(value)  # the short form: listeners = ["127.0.0.1:61613"]
        elif not isinstance(value, str | Mapping):
            raise ValueError('must be an address in quotes, such as "127.0.0.1:61613", or a table')
        return whole(value, kind)

    return hook


def _policy_entry() -> type[Any]:
    """Return a class with `match` and all fields of `QueuePolicy`, which may be omitted."""
    hints = typing.get_type_hints(QueuePolicy)
    fields: dict[str, Any] = {
        "match": attrs.field(type=str, metadata={"like": attrs.fields(DestinationPolicy).match}),
    }
    for attribute in attrs.fields(QueuePolicy):
        fields[attribute.name] = attrs.field(default=_UNSET, type=hints[attribute.name], metadata={"like": attribute})
    made: type[Any] = attrs.make_class("DestinationEntry", fields)
    made.__annotations__ = {"match": str, **{name: hints[name] for name in fields if name != "match"}}
    return made


def _policy_hook() -> Callable[[Any, Any], DestinationPolicy]:
    entry_class = _policy_entry()
    whole = _class_hook(entry_class)

    def hook(value: Any, _type: Any) -> DestinationPolicy:
        given = attrs.asdict(whole(value, entry_class), recurse=False)
        return DestinationPolicy(
            given.pop("match"), {key: setting for key, setting in given.items() if setting is not _UNSET}
        )

    return hook


def _structure_texts(value: Any, _type: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of texts in quotes")
    return tuple(_structure_str(each, str) for each in value)


_CONVERTER.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _structure_texts)
_CONVERTER.register_structure_hook(int, _structure_int)
_CONVERTER.register_structure_hook(float, _structure_float)
_CONVERTER.register_structure_hook(bool, _structure_bool)
_CONVERTER.register_structure_hook(str, _structure_str)
_CONVERTER.register_structure_hook(Path, _structure_path)
_CONVERTER.register_structure_hook_factory(attrs.has, _class_hook)
_CONVERTER.register_structure_hook(Listener, _listener_hook())
_CONVERTER.register_structure_hook(DestinationPolicy, _policy_hook())


# -- problems ----------------------------------------------------------------------------------------------------------


def _problems(error: BaseException, path: KeyPath) -> Iterator[Problem]:
    """Yield the errors that cattrs collected; the path is in the notes on each error."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, cattrs.AttributeValidationNote):
            path = (*path, note.name)
        elif isinstance(note, cattrs.IterableValidationNote):
            path = (*path, note.index)
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [attribute.name for attribute in attrs.fields(error.cl)]
        for key in sorted(error.extra_fields):
            yield Problem((*path, key), f"unknown key{_suggestion(key, path, known)}")
    elif isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _problems(part, path)
    elif isinstance(error, KeyError):
        yield Problem(path, "is missing, and has no default")
    else:
        yield Problem(path, _without_key(str(error), path))


def _without_key(what: str, path: KeyPath) -> str:
    """Return a validator's message without the leading name of the field, which the path has already."""
    key = path[-1] if path else None
    if isinstance(key, str) and what.startswith((f"{key}: ", f"{key} ")):
        return what[len(key) :].removeprefix(":").lstrip()
    return what


def _suggestion(key: str, path: KeyPath, known: list[str]) -> str:
    same = OTHER_KEYS.get(key.lower().replace("-", "_").removeprefix("x_"))
    if same is not None:
        return f"; here it is called {key_in_words((*path, same)) if same in known else same}"
    words = sorted(key.split("_"))
    near = [name for name in known if sorted(name.split("_")) == words] or difflib.get_close_matches(key, known, 1)
    if near:
        return f"; did you mean {key_in_words((*path, near[0]))}?"
    if path == ("logs",):  # the former [logs] is [logging]
        near = difflib.get_close_matches(key, [field.name for field in attrs.fields(LoggingConfig)], 1)
        if near:
            return f"; did you mean logging.{near[0]}?"
    elsewhere = [candidate for candidate in known_keys() if candidate.rpartition(".")[2] == key]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    return f"; known here: {', '.join(known)}"


OTHER_KEYS: Final = {
    "max_length": "count_max",
    "max_length_bytes": "bytes_max",
    "max_in_memory_bytes": "memory_bytes",
    "message_ttl": "expires_max_ms",
    "delivery_limit": "redeliveries_max",
    "max_redeliveries": "redeliveries_max",
    "overflow": "full",
    "dead_letter_exchange": "dead_letter",
    "dead_letter_routing_key": "dead_letter",
    "pattern": "match",
    "vm_memory_high_watermark": "broker.memory_bytes",
    "disk_free_limit": "store.disk_free_min_bytes",
    "heartbeat": "listeners[].limits.heart_beat_min_ms",
    "max_message_size": "listeners[].limits.body_bytes_max",
    "connection_max": "listeners[].connections_max",
    "ssl_options": "listeners[].tls",
    "default_user": "security.users",
    "default_pass": "security.users",
    "loopback_users": "listeners[].address",
}
"""Keys and arguments of RabbitMQ and ActiveMQ, with those here: of the same table, or in full."""


def known_keys() -> list[str]:
    """Return all keys: `broker.name`, `listeners[].limits.header_count_max`, `destinations[].memory_bytes`."""
    keys: list[str] = []

    def walk(cls: type[Any], prefix: str) -> None:
        hints = typing.get_type_hints(cls)
        for attribute in attrs.fields(cls):
            kind = hints[attribute.name]
            key = f"{prefix}{attribute.name}"
            arguments = typing.get_args(kind)
            if attrs.has(kind):
                walk(kind, f"{key}.")
            elif typing.get_origin(kind) is tuple and attrs.has(arguments[0]):
                walk(_ENTRIES.get(arguments[0], arguments[0]), f"{key}[].")
            else:
                keys.append(key)

    walk(Config, "")
    return keys


_ENTRIES: Final[dict[type[Any], type[Any]]] = {DestinationPolicy: _policy_entry()}
