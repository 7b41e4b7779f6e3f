"""The TOML sample, generated from the fields' own documentation so that it can't drift from the code.

`scripts/generate.py` writes it below docs/; `scripts/check` fails when it differs from what this module says.
"""

from __future__ import annotations

import json
import textwrap
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from sluiceway.config.model import Config, DestinationPolicy, Listener
from sluiceway.config.units import format_bytes, format_ms
from sluiceway.config.virtual_hosts import VirtualHost
from sluiceway.protocols.settings import TlsConfig, WebSocketConfig
from sluiceway.queues.policy import QueuePolicy
from sluiceway.security.config import Rates

_WIDTH: Final = 110


def toml_sample() -> str:
    """Return a configuration file with every key: documentation as comments, keys at their defaults and commented out
    (`#key = ...`).
    """
    return "\n".join(_sample_lines()) + "\n"


# -- values ------------------------------------------------------------------------------------------------------------


def toml_value(attribute: attrs.Attribute[Any], value: object) -> str:
    """Return a value in the file's syntax, in the most readable unit."""
    unit = attribute.metadata.get("unit", "")
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and unit == "bytes" and value >= 1024:
        return json.dumps(format_bytes(value))
    if isinstance(value, int) and unit in ("ms", "milliseconds") and value:
        return json.dumps(format_ms(value))
    if isinstance(value, float) and unit == "seconds" and value and (value * 1000).is_integer():
        return json.dumps(format_ms(int(value * 1000)))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    if isinstance(value, str | Path):
        return json.dumps(str(value))
    if isinstance(value, tuple | list):
        return json.dumps(list(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"{attribute.name}: no TOML form for a {type(value).__name__}; teach sample.toml_value")


def default_of(attribute: attrs.Attribute[Any]) -> Any:
    """Return the default of a field."""
    default: Any = attribute.default
    # A factory's signature depends on whether it takes the instance; here none does.
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def keys_of(cls: type[Any]) -> Iterator[attrs.Attribute[Any]]:
    """Return the fields of a class that are single values."""
    hints = typing.get_type_hints(cls)
    return (
        attribute
        for attribute in attrs.fields(cls)
        if not attrs.has(hints[attribute.name]) and _entry_of(hints[attribute.name]) is None
    )


def lists_of(cls: type[Any]) -> Iterator[tuple[attrs.Attribute[Any], type[Any]]]:
    """Yield the fields of a class that are lists of tables, each with the class of its entries."""
    hints = typing.get_type_hints(cls)
    for attribute in attrs.fields(cls):
        entry = _entry_of(hints[attribute.name])
        if entry is not None:
            yield attribute, entry


def _entry_of(kind: Any) -> type[Any] | None:
    arguments = typing.get_args(kind)
    is_list = typing.get_origin(kind) is tuple and attrs.has(arguments[0])
    return arguments[0] if is_list else None


# -- the sample --------------------------------------------------------------------------------------------------------

_SAMPLE_HEAD: Final = """\
# Sluiceway configuration: every key, at its default. Take the # from the front of a key to change it.
# Sizes take units (67108864 or "64 MiB"), durations too (1.5 or "1500 ms" or "30 s"), "none" stands for no limit.
# Check a file with: sluiceway config --check FILE\
"""


def _sample_lines() -> Iterator[str]:
    yield from _SAMPLE_HEAD.splitlines()
    for section in attrs.fields(Config):
        if section.name in ("listeners", "destinations", "virtual_hosts"):
            continue
        yield from ("", "", *_comment(section.metadata["doc"]), f"[{section.name}]")
        yield from _sample_keys(type(default_of(section)))
        for attribute, entry in lists_of(type(default_of(section))):
            yield from ("", *_comment(attribute.metadata["doc"]), f"#[[{section.name}.{attribute.name}]]")
            yield from _sample_keys(entry)
    fields = attrs.fields(Config)
    yield from ("", "", *_comment(fields.listeners.metadata["doc"]), "[[listeners]]")
    yield from _sample_keys(Listener)
    yield from ("", *_comment("Limits of one connection of the listener above."), "[listeners.limits]")
    yield from _sample_keys(type(Listener().limits))
    yield from ("", *_comment(attrs.fields(Listener).rates.metadata["doc"]), "[listeners.rates]")
    yield from _sample_keys(Rates)
    yield from ("", *_comment("TLS of the listener above: it is on when there is a certificate."), "[listeners.tls]")
    yield from _sample_keys(TlsConfig)
    yield from ("", *_comment('If its protocol is "websocket".'), "[listeners.websocket]")
    yield from _sample_keys(WebSocketConfig)
    yield from ("", "", *_comment(fields.destinations.metadata["doc"]), "#[[destinations]]")
    match = attrs.fields(DestinationPolicy).match
    yield from ("", *_comment(match.metadata["doc"]), '#match = "/>"')
    yield from _sample_keys(QueuePolicy)
    yield from ("", "", *_comment(fields.virtual_hosts.metadata["doc"]), "#[[virtual_hosts]]")
    yield from ("", *_comment(attrs.fields(VirtualHost).name.metadata["doc"]), '#name = "shop"')
    yield from _sample_keys(VirtualHost)


def _sample_keys(cls: type[Any]) -> Iterator[str]:
    for attribute in keys_of(cls):
        if attribute.default is attrs.NOTHING:
            continue
        yield ""
        yield from _comment(_documentation(attribute))
        yield f"#{attribute.name} = {toml_value(attribute, default_of(attribute))}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _documentation(attribute: attrs.Attribute[Any]) -> str:
    doc: str = attribute.metadata["doc"]
    unit = attribute.metadata.get("unit", "")
    return f"{doc} Unit: {unit}." if unit else doc
