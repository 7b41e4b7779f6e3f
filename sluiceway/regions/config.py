"""Configuration of regions: [regions]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from sluiceway.client.address import Address
from sluiceway.queues import names
from sluiceway.queues.settings import about, at_least, field, texts

NAME_LENGTH_MAX: Final = 64


def _is_name(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not value or len(value) > NAME_LENGTH_MAX or not all(each.isalnum() or each in "._-" for each in value):
        raise ValueError(
            f"{attribute.name} must have 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' and '-', got {value!r}"
        )


def _addresses(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must name a hub of the region, such as stomp://eu-1.example.org:61613")
    for each in value:
        if Address.parse(each).passcode is not None:
            raise ValueError(f"{attribute.name}: an address here has no passcode: write login and passcode_file")


def _topics(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must name a topic, such as /topic/prices")
    for each in value:
        try:
            address = names.parse(each)
        except names.DestinationNameError as error:
            raise ValueError(f"{attribute.name}: {error}") from None
        if not each.startswith("/topic/") or address.wildcard:
            raise ValueError(
                f"{attribute.name} must be whole names of topics, such as /topic/prices, got {each!r}: a durable "
                f"subscription, which keeps the place, is to one topic"
            )
    if len(set(value)) < len(value):
        raise ValueError(f"{attribute.name} names a topic twice")


@attrs.frozen
class Region:
    """Another cluster, or another broker, whose topics are published here as well."""

    name: str = attrs.field(
        default="",
        validator=_is_name,
        metadata=about(
            "How this broker calls it: value of the header `origin-region` of messages that came from there. Needed."
        ),
    )
    hubs: tuple[str, ...] = attrs.field(
        default=(),
        converter=texts,
        validator=_addresses,
        metadata=about(
            "Addresses of its hubs, or of the one broker that it is: `stomp://HOST:PORT`, or `stomp+ssl://HOST:PORT`"
            " with `?ca=FILE&cert=FILE&key=FILE` as they are needed. They are tried in turn. Needed."
        ),
    )
    topics: tuple[str, ...] = attrs.field(
        default=(),
        converter=texts,
        validator=_topics,
        metadata=about(
            "Topics of there that are published here under the same names: whole names, for a durable subscription "
            "over there keeps the place of each. Needed."
        ),
    )
    login: str = field("", "", "Login over there; empty: none.")
    passcode_file: Path | None = field(
        None, "", "File with the passcode, in its first line. Read at each attempt to connect."
    )


def _regions(values: Sequence[Region]) -> tuple[Region, ...]:
    return tuple(values)


def _names_differ(_instance: object, attribute: attrs.Attribute[Any], value: tuple[Region, ...]) -> None:
    seen: set[str] = set()
    for region in value:
        if region.name in seen:
            raise ValueError(f"{attribute.name}: two regions are called {region.name!r}")
        seen.add(region.name)


@attrs.frozen
class RegionsConfig:
    """Other clusters from which this one takes topics."""

    own_name: str = field(
        "",
        "",
        "How other regions know this one: part of the client-id of its durable subscriptions there, so it must differ "
        "from all others that take topics from there, and stay. Empty: the name of the broker, `broker.name`.",
    )
    message_bytes_max: int = field(
        16 * 1024 * 1024,
        "bytes",
        "Largest body that is taken from another region: it is held in memory meanwhile, and to put 16 MiB together "
        "holds others up for some milliseconds. A larger one stops the topic, and the log says so.",
        at_least(1024),
    )
    origins: tuple[Region, ...] = attrs.field(
        default=(),
        converter=_regions,
        validator=_names_differ,
        metadata=about(
            "Regions from which topics are taken. Takes effect at the next start. See [regions](regions.md)."
        ),
    )
