"""Documented fields of configuration classes, and validators, for all folders from here on.

    memory_bytes: int = field(64 * MIB, "bytes", "Memory that the messages of one destination may use…", positive)

The metadata of a field are `doc` (meaning, reason of the default, trade-off), `unit`, and `secret` if the value must
not be shown. Validators name the field and the allowed values; they use only the value, as they also run before there
is an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

Validator = Callable[[object, "attrs.Attribute[Any]", Any], None]

or_none = attrs.validators.optional
"""Makes a validator accept None, too."""


def about(doc: str, unit: str = "", *, secret: bool = False) -> dict[str, object]:
    """Return the metadata of a documented field; `unit` is "bytes", "seconds", "ms", "count" or empty."""
    return {"doc": doc, "unit": unit, "secret": secret}


def field(default: Any, unit: str, doc: str, validator: Any = None, converter: Any = None) -> Any:
    """Return a documented field with a plain default."""
    return attrs.field(default=default, validator=validator, converter=converter, metadata=about(doc, unit))


def texts(values: Sequence[str]) -> tuple[str, ...]:
    """Convert a list of texts. Raises ValueError for a single text, which would be taken for its letters."""
    if isinstance(values, str):
        raise ValueError("must be a list of texts in quotes")
    return tuple(values)


def positive(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    """Require a number above 0."""
    if not value > 0:
        raise ValueError(f"{attribute.name} must be above 0, got {value}")


def not_negative(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    """Require 0 or more."""
    if value < 0:
        raise ValueError(f"{attribute.name} must not be negative, got {value}")


def at_least(least: float) -> Validator:
    """Return a validator that requires a number of at least `least`."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not value >= least:
            raise ValueError(f"{attribute.name} must be {least:g} or more, got {value!r}")

    return check


def one_of(allowed: tuple[str, ...], others: Mapping[str, str] = MappingProxyType({})) -> Validator:
    """Return a validator that requires one of these words. `others`: words of other brokers, with those here."""

    def check(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
        if value not in allowed:
            hint = f" ({value} of other brokers is {others[value]} here)" if value in others else ""
            raise ValueError(f"{attribute.name} must be one of {', '.join(allowed)}{hint}, got {value!r}")

    return check
