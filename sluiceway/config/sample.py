"""The TOML sample and the documentation page, generated from the fields' own documentation so that they can't drift
from the code.

`scripts/generate.py` writes both below docs/; `scripts/check` fails when they differ from what this module says.
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
from sluiceway.protocols.settings import TlsConfig, WebSocketConfig
from sluiceway.queues.policy import QueuePolicy
from sluiceway.security.config import Rates

_WIDTH: Final = 110


def toml_sample() -> str:
    """Return a configuration file with every key: documentation as comments, keys at their defaults and commented out
    (`#key = ...`).
    """
    return "\n".join(_sample_lines()) + "\n"


def markdown() -> str:
    """Return docs/configuration.md."""
    return "\n".join(_markdown_lines()) + "\n"


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


def _default_of(attribute: attrs.Attribute[Any]) -> Any:
    default: Any = attribute.default
    # A factory's signature depends on whether it takes the instance; here none does.
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def _keys(cls: type[Any]) -> Iterator[attrs.Attribute[Any]]:
    """Return the fields of a class that are single values."""
    hints = typing.get_type_hints(cls)
    return (
        attribute
        for attribute in attrs.fields(cls)
        if not attrs.has(hints[attribute.name]) and _entry_of(hints[attribute.name]) is None
    )


def _lists(cls: type[Any]) -> Iterator[tuple[attrs.Attribute[Any], type[Any]]]:
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
        if section.name in ("listeners", "destinations"):
            continue
        yield from ("", "", *_comment(section.metadata["doc"]), f"[{section.name}]")
        yield from _sample_keys(type(_default_of(section)))
        for attribute, entry in _lists(type(_default_of(section))):
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


def _sample_keys(cls: type[Any]) -> Iterator[str]:
    for attribute in _keys(cls):
        yield ""
        yield from _comment(_documentation(attribute))
        yield f"#{attribute.name} = {toml_value(attribute, _default_of(attribute))}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _documentation(attribute: attrs.Attribute[Any]) -> str:
    doc: str = attribute.metadata["doc"]
    unit = attribute.metadata.get("unit", "")
    return f"{doc} Unit: {unit}." if unit else doc


# -- the page ----------------------------------------------------------------------------------------------------------

_PAGE_HEAD: Final = """\
# Configuration

<!-- Generated by scripts/generate.py from the objects in sluiceway/config: change it there. -->

A broker needs no configuration: `sluiceway serve` listens on 127.0.0.1:61613 with the defaults below. Settings come
from these sources, later ones overriding earlier ones:

1. the defaults;
2. a TOML file: `sluiceway serve --config sluiceway.toml`. `sluiceway config > sluiceway.toml` writes one with every key
   and its documentation, [like this](sluiceway.toml); `sluiceway config --check sluiceway.toml` checks one;
3. the environment: `SLUICEWAY_SECTION__KEY`, for example `SLUICEWAY_LOGGING__LEVEL=debug`. Lists are JSON or separated
   by commas (`SLUICEWAY_LISTENERS=127.0.0.1:61613,[::1]:61613`), tables are JSON or `key=value` separated by commas;
4. flags: `--listen`, `--data`, `--log-level`, `--log-format`. `--listen` replaces all listeners of the file.

Sizes are bytes, or text with a unit: `67108864` or `"64 MiB"` (B, KiB, MiB, GiB, TiB; kB, MB, GB, TB are powers of
1000). Durations are in the unit that the key's name ends with, or text: `1.5`, `"1500 ms"`, `"30 s"`, `"2 min"`,
`"1 h"`, `"1 d"`. `"none"` stands for no limit where a default below says none. An unknown key is an error that names
the nearest known one.

The version before had other names for two sections: `[journal]` is `[logs]` now, and the `[logs]` with `level` and
`format` is `[logging]`. The former names, also those of variables (`SLUICEWAY_JOURNAL__…`, `SLUICEWAY_LOGS__LEVEL`),
are read for one more version. Each is named, with its line, in a warning of `sluiceway serve`, of reloads, of
`sluiceway config --check` and of `sluiceway doctor`. A key that is set by both names is an error.

A file that changes something in each section:

```toml
[broker]
name = "orders-1"

[logging]
level = "warning"

[security]
users_file = "users"
groups = { shops = ["web", "till"] }

[[security.permissions]]
users = ["*"]
actions = ["connect"]

[[security.permissions]]
groups = ["shops"]
actions = ["send", "create"]
destinations = ["/queue/orders.>"]

[[listeners]]
address = "0.0.0.0:61613"
limits = { body_bytes_max = "8 MiB" }

[[destinations]]
match = "/queue/>"
memory_bytes = "16 MiB"

[[destinations]]
match = "/queue/orders.*"
memory_bytes = "256 MiB"
prefetch_count = 10
```\
"""


def _markdown_lines() -> Iterator[str]:
    yield from _PAGE_HEAD.splitlines()
    for section in attrs.fields(Config):
        if section.name in ("listeners", "destinations"):
            continue
        yield from ("", f"## [{section.name}]", "", section.metadata["doc"], "")
        yield from _table(type(_default_of(section)))
        for attribute, entry in _lists(type(_default_of(section))):
            yield from ("", f"### [[{section.name}.{attribute.name}]]", "", attribute.metadata["doc"], "")
            yield from _table(entry)
    fields = attrs.fields(Config)
    yield from ("", "## [[listeners]]", "", fields.listeners.metadata["doc"])
    yield from ('The short form `listeners = ["127.0.0.1:61613", "[::1]:61613"]` gives addresses alone; with',)
    yield from ("`ws://127.0.0.1:15674/stomp` for one of them it is WebSocket. TLS needs a table.", "")
    yield from _table(Listener)
    yield from ("", "### listeners.limits", "", "Limits of one connection.", "")
    yield from _table(type(Listener().limits))
    yield from ("", "### listeners.rates", "", attrs.fields(Listener).rates.metadata["doc"], "")
    yield from _table(Rates)
    yield from (
        "",
        "### listeners.tls",
        "",
        "TLS: it is on when there is a certificate. See [network](network.md).",
        "",
    )
    yield from _table(TlsConfig)
    yield from ("", "### listeners.websocket", "", 'Settings for `protocol = "websocket"`.', "")
    yield from _table(WebSocketConfig)
    yield from ("", "## [[destinations]]", "", fields.destinations.metadata["doc"], "")
    yield from _TABLE_HEAD
    yield f"| `match` | (needed) | {_cell(attrs.fields(DestinationPolicy).match.metadata['doc'])} |"
    yield from _rows(QueuePolicy)


_TABLE_HEAD: Final = ("| key | default | meaning |", "|---|---|---|")


def _table(cls: type[Any]) -> Iterator[str]:
    yield from _TABLE_HEAD
    yield from _rows(cls)


def _rows(cls: type[Any]) -> Iterator[str]:
    for attribute in _keys(cls):
        default = toml_value(attribute, _default_of(attribute)).strip('"').replace("_", ",") or "(empty)"
        unit = attribute.metadata.get("unit", "")
        # "64 MiB" contains its unit, and the name of a key says what a count counts.
        bare = unit != "count" and default.replace(".", "").replace(",", "").isdigit()
        said = f"{default} {unit}" if unit and bare else default
        yield f"| `{attribute.name}` | {said} | {_cell(attribute.metadata['doc'])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
