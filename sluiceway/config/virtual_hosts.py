"""Settings of virtual hosts: sets of destinations of their own, which clients name in the header `host` of CONNECT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from sluiceway.queues.names import HOST_NAME
from sluiceway.queues.settings import about, at_least, field, or_none, texts

DEFAULT_HOST: Final = "/"
"""Name of the host of clients that name none."""


def _host_name(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if value != DEFAULT_HOST and HOST_NAME.fullmatch(value) is None:
        raise ValueError(
            f"{attribute.name} must be 1 to 64 letters, digits, hyphens and underscores, such as shop, or / for the "
            f"default host, got {value[:80]!r}. What else clients call it goes into aliases"
        )


@attrs.frozen
class VirtualHost:
    """One virtual host."""

    name: str = attrs.field(
        validator=_host_name,
        metadata=about(
            "What clients say in the header `host` of CONNECT: letters, digits, hyphens and underscores. `/` is the "
            "default host, which is there without an entry, too."
        ),
    )
    aliases: tuple[str, ...] = field(
        (),
        "",
        "Other values of `host` that mean this one, such as the address that clients connect to, which many of them "
        "say there.",
        converter=texts,
    )
    users: tuple[str, ...] = field(
        (), "", "Users that may use this host. With `groups` empty, too: all.", converter=texts
    )
    groups: tuple[str, ...] = field((), "", "Groups of users that may use this host.", converter=texts)
    connections_max: int | None = field(
        None,
        "count",
        "Connections to this host at a time; one more gets an ERROR. None: no limit.",
        or_none(at_least(1)),
    )
    destinations_max: int | None = field(
        None,
        "count",
        "Destinations of this host at a time, beside `destinations_max` of the broker. None: no limit of its own.",
        or_none(at_least(1)),
    )

    @property
    def path(self) -> str:
        """The name as the prefix of names has it: empty for the default host."""
        return "" if self.name == DEFAULT_HOST else self.name


def hosts(given: Iterable[VirtualHost]) -> tuple[VirtualHost, ...]:
    """Return the hosts as a tuple."""
    return tuple(given)


def hosts_differ(_instance: object, _attribute: attrs.Attribute[Any], value: tuple[VirtualHost, ...]) -> None:
    """Raise ValueError where two hosts are called the same."""
    seen: set[str] = set()
    for host in value:
        for name in (host.name, *host.aliases):
            if name in seen:
                raise ValueError(f"two virtual hosts are called {name[:80]!r}: a name or alias means one of them")
            seen.add(name)
