"""How a configuration class documents its fields and says what they allow: for the classes of this folder, and for
those that live with the code that they govern.

    address: str = field("127.0.0.1:61613", "", "Where to listen…", is_address)

The metadata of each field are `doc` (meaning, the default's reason, the trade-off), `unit`, and `secret` where the
value must not be shown. Validators name the field and what is allowed; they look at the value alone, for they also run
before there is an instance.

Imports nothing of the other configuration modules, so that any class of theirs may be built from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs


def about(doc: str, unit: str = "", *, secret: bool = False) -> dict[str, object]:
    """The metadata of a documented field; `unit` is "bytes", "seconds", "ms", "count" or empty."""
    return {"doc": doc, "unit": unit, "secret": secret}


def field(default: Any, unit: str, doc: str, validator: Any = None, converter: Any = None) -> Any:
    """A documented field with a plain default."""
    return attrs.field(default=default, validator=validator, converter=converter, metadata=about(doc, unit))


def section(cls: type, doc: str) -> Any:
    """A field that holds another configuration class, at its defaults."""
    return attrs.field(factory=cls, metadata=about(doc))


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converter for tables: the caller's own may change later."""
    return dict(values)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPv6]:PORT`. Raises ValueError that says how an address is written."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", address)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(
            f"{address!r} is not an address: write HOST:PORT or [IPv6]:PORT, such as 127.0.0.1:61613, 0.0.0.0:61613 "
            "(all interfaces), [::1]:61613; port 0 takes any free one"
        )
    return match[1] or match[2], int(match[3])


# -- validators --------------------------------------------------------------------------------------------------------


def is_address(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    """`HOST:PORT`."""
    split_address(value)


def is_address_or_empty(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    """`HOST:PORT`, or nothing."""
    if value:
        split_address(value)


def at_least(least: float) -> Any:
    """A number from `least` on."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= least:
            raise ValueError(f"{attribute.name} must be {least:g} or more, got {value!r}")

    return check


def at_least_or_none(least: float) -> Any:
    """A number from `least` on, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None:
            at_least(least)(instance, attribute, value)

    return check


def one_of(allowed: tuple[str, ...]) -> Any:
    """One of these words."""

    def check(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
        if value not in allowed:
            raise ValueError(f"{attribute.name} must be one of {', '.join(allowed)}, got {value!r}")

    return check


def not_blank(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    """Text with something in it."""
    if not value.strip():
        raise ValueError(f"{attribute.name} must not be empty")
