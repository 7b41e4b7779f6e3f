"""Oversights in a configuration: settings that are valid, and have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sluiceway.config.model import Config, DestinationPolicy
from sluiceway.config.sources import ENVIRONMENT_PREFIX
from sluiceway.config.structure import known_keys
from sluiceway.queues.names import HOST_SIGN, edges_of, host_prefix, host_prefix_of, meant_by, without_host
from sluiceway.queues.wildcards import PatternTrie


def oversights(config: Config, environment: Mapping[str, str]) -> list[str]:
    """Return warnings: names of destinations that are nearly others, overridden settings of destinations, and variables
    whose names are nearly those of keys, and limits of retention that compaction replaces.
    """
    entries = config.destinations
    return [*_nearly_named(config), *_overridden(entries), *_compacted(entries), *_misnamed(environment)]


def _nearly_named(config: Config) -> Iterator[str]:
    """Yield names and patterns whose prefix is nearly a known one, such as `/queu/orders`."""
    named = [(f"destinations[{place}].match", entry.match) for place, entry in enumerate(config.destinations, 1)]
    for place, entry in enumerate(config.destinations, 1):
        if isinstance(name := entry.settings.get("dead_letter"), str):
            named.append((f"destinations[{place}].dead_letter", name))
    for place, permission in enumerate(config.security.permissions, 1):
        named += [(f"security.permissions[{place}].destinations", pattern) for pattern in permission.destinations]
    hosts = {"", *(host_prefix(host.path) for host in config.virtual_hosts)}
    for key, name in named:
        if config.virtual_hosts and (prefix := host_prefix_of(name)) not in hosts:
            host = prefix.removeprefix(HOST_SIGN)
            yield f"{key}: {name!r} never matters, because [[virtual_hosts]] has no host {host}"
        if meant := meant_by(name):
            yield f"{key}: {name!r} begins with no known prefix: did you mean {meant}? It is used as it is"


def _overridden(entries: Sequence[DestinationPolicy]) -> Iterator[str]:
    """Yield settings that a later entry with a wider pattern sets again. O(entries * entries that match)."""
    places: PatternTrie[int] = PatternTrie()
    for place, entry in enumerate(entries):
        places.add(edges_of(entry.match), place)
    for place, entry in enumerate(entries):
        wider = {*places.matching(edges_of(entry.match)), *places.matching(edges_of(without_host(entry.match)))}
        later = sorted(at for at in wider if at is not None and at > place)
        for key, value in entry.settings.items():
            over = next((at for at in later if entries[at].settings.get(key, value) != value), None)
            if over is not None:
                yield (
                    f"destinations[{place + 1}].{key} never matters, because destinations[{over + 1}] "
                    f"({entries[over].match}) stands below, covers {entry.match} and sets it, too: put general "
                    "entries first"
                )


def _compacted(entries: Sequence[DestinationPolicy]) -> Iterator[str]:
    """Yield limits of retention of logs that are compacted."""
    for place, entry in enumerate(entries, 1):
        for key in ("log_retention_seconds", "log_retention_bytes"):
            if entry.settings.get("log_compact") and entry.settings.get(key) is not None:
                yield (
                    f"destinations[{place}].{key} has no effect, because the same entry sets log_compact: the last "
                    "record of each key is kept for ever"
                )


def _misnamed(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield variables with one underscore in place of two, such as `SLUICEWAY_LOGGING_LEVEL`."""
    right = {key.replace(".", "_"): key.replace(".", "__") for key in known_keys() if "[]" not in key}
    for name in sorted(environment):
        key = right.get(name.removeprefix(ENVIRONMENT_PREFIX).lower())
        if name.startswith(ENVIRONMENT_PREFIX) and "__" not in name and key is not None:
            right_name = f"{ENVIRONMENT_PREFIX}{key.upper()}"
            yield f"the environment variable {name} is ignored: write {right_name}, with two underscores"
