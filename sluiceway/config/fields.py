"""Fields and validators of configuration classes beside those of `sluiceway.queues.settings`.

Imports no other configuration module, so that any configuration class may use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from sluiceway.queues.settings import about


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


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches that address."""
    return host.startswith("127.") or host in ("::1", "localhost")


# -- validators --------------------------------------------------------------------------------------------------------


def is_address(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    """Require `HOST:PORT`."""
    split_address(value)


def is_address_or_empty(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    """Require `HOST:PORT`, or an empty text."""
    if value:
        split_address(value)


def not_blank(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    """Require text that is not blank."""
    if not value.strip():
        raise ValueError(f"{attribute.name} must not be empty")
