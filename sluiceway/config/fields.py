"""Documented fields and validators of configuration classes, for this folder and for classes that live with the code
they configure.

    address: str = field("127.0.0.1:61613", "", "Where to listen…", is_address)

The metadata of each field are `doc` (meaning, reason of the default, trade-off), `unit`, and `secret` if the value must
not be shown. Validators name the field and the allowed values; they use only the value, as they also run before there
is an instance.

Imports no other configuration module, so that any configuration class may use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs


def about(doc: str, unit: str = "", *, secret: bool = False) -> dict[str, object]:
    """Return the metadata of a documented field; `unit` is "bytes", "seconds", "ms", "count" or empty."""
    return {"doc": doc, "unit": unit, "secret": secret}


def field(default: Any, unit: str, doc: str, validator: Any = None, converter: Any = None) -> Any:
    """Return a documented field with a plain default."""
    return attrs.field(default=default, validator=validator, converter=converter, metadata=about(doc, unit))


def section(cls: type, doc: str) -> Any:
    """Return a field that holds another configuration class, at its defaults."""
    return attrs.field(factory=cls, metadata=about(doc))


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a table to a copy, as the caller may change its own."""
    return dict(values)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` or `[IPv6]:PORT`. Raises ValueError that shows the form of an address."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", address)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(
            f"{address!r} is not an address: write HOST:PORT or [IPv6]:PORT, such as 127.0.0.1:61613, 0.0.0.0:61613 "
            "(all interfaces), [::1]:61613; port 0 takes any free one"
        )
    return match[1] or match[2], int(match[3])


# -- validators --------------------------------------------------------------------------------------------------------


def is_address(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    """Require `HOST:PORT`."""
    split_address(value)


def is_address_or_empty(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    """Require `HOST:PORT`, or an empty text."""
    if value:
        split_address(value)


def at_least(least: float) -> Any:
    """Return a validator that requires a number of at least `least`."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= least:
            raise ValueError(f"{attribute.name} must be {least:g} or more, got {value!r}")

    return check


def at_least_or_none(least: float) -> Any:
    """Return a validator that requires a number of at least `least`, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
        if value is not None:
            at_least(least)(instance, attribute, value)

    return check


def one_of(allowed: tuple[str, ...]) -> Any:
    """Return a validator that requires one of these words."""

    def check(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
        if value not in allowed:
            raise ValueError(f"{attribute.name} must be one of {', '.join(allowed)}, got {value!r}")

    return check


def not_blank(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    """Require text that is not blank."""
    if not value.strip():
        raise ValueError(f"{attribute.name} must not be empty")
