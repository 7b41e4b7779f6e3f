"""Result of reading another broker's configuration: ours as text, and a report. Nothing is dropped silently."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sluiceway.config.model import Config
from sluiceway.config.structure import InvalidData, structure


class SourceError(ValueError):
    """The document is not what it should be. The message is for people."""


@attrs.define
class Findings:
    """Settings that were found, in the order of the file that is written."""

    source: str
    """Name of the other broker, with its version."""
    destinations: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Settings by pattern, in their order."""
    sections: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Settings of tables such as `broker`."""
    listeners: list[str] = attrs.field(factory=list)
    """Addresses to listen at."""
    users: list[str] = attrs.field(factory=list)
    groups: dict[str, list[str]] = attrs.field(factory=dict)
    permissions: list[dict[str, Any]] = attrs.field(factory=list)
    report: list[str] = attrs.field(factory=list)
    """Lines about things without an equivalent, or that need a decision."""

    def say(self, what: str) -> None:
        """Add a line to the report, once."""
        if what not in self.report:
            self.report.append(what)

    def set(self, pattern: str, **settings: Any) -> None:
        """Add settings for destinations; say which ones can't be."""
        if why_not := _why_not(pattern):
            self.say(f"{pattern}: left out: {why_not}")
            return
        taken = self.destinations.setdefault(pattern, {})
        for name, value in settings.items():
            if why_not := _why_not(pattern, name, value):
                self.say(f"{pattern}: {name} = {value!r} is left out: {why_not}")
            else:
                taken[name] = value

    def section(self, name: str, **settings: Any) -> None:
        """Add settings of a table."""
        self.sections.setdefault(name, {}).update(settings)

    def listen(self, address: str) -> None:
        """Add an address to listen at, once."""
        if address not in self.listeners:
            self.listeners.append(address)

    def allow(self, users: Sequence[str], action: str, destinations: Sequence[str] = ()) -> None:
        """Add a permission of users; one for the same users and destinations is extended."""
        self._allow("users", users, action, destinations)

    def allow_groups(self, groups: Sequence[str], action: str, destinations: Sequence[str] = ()) -> None:
        """Add a permission of groups, as `allow` does."""
        self._allow("groups", groups, action, destinations)

    def _allow(self, whose: str, names: Sequence[str], action: str, destinations: Sequence[str]) -> None:
        for entry in self.permissions:
            same = entry.get(whose) == list(names) and entry.get("destinations", []) == list(destinations)
            if same and "connect" not in entry["actions"] and action != "connect":
                if action not in entry["actions"]:
                    entry["actions"].append(action)
                return
        entry = {whose: list(names), "actions": [action]}
        if destinations:
            entry["destinations"] = list(destinations)
        self.permissions.append(entry)

    def toml(self) -> str:
        """Return the configuration, with the report as comments at its head."""
        lines = [f"# Made from {_printable(self.source)} by `sluiceway migrate`. Not carried over, or to be decided:"]
        lines += [f"#   - {_printable(line)}" for line in self.report] or ["#   nothing"]
        for name, settings in self.sections.items():
            lines += ["", f"[{name}]", *_settings(settings)]
        for address in self.listeners:
            lines += ["", "[[listeners]]", f"address = {_toml(address)}"]
        for pattern, settings in self.destinations.items():
            lines += ["", "[[destinations]]", f"match = {_toml(pattern)}", *_settings(settings)]
        if self.users:
            lines += [
                "",
                "[security]",
                "# Passcodes can't be carried over: `sluiceway secret --user NAME >> users` for each of these:",
                *(f"#   {_toml(user)}" for user in self.users),
                'users_file = "users"',
            ]
            if self.groups:
                inside = ", ".join(f"{_toml(name)} = {_toml(members)}" for name, members in self.groups.items())
                lines.append(f"groups = {{ {inside} }}")
        for entry in self.permissions:
            lines += ["", "[[security.permissions]]", *_settings(entry)]
        return "\n".join(lines) + "\n"


def _why_not(pattern: str, *setting: Any) -> str:
    """Return why our configuration can't have an entry for these destinations, with this setting (name and value);
    empty: it can.
    """
    entry = {"match": pattern, **({setting[0]: setting[1]} if setting else {})}
    try:
        structure({"destinations": [entry]}, Config)
    except InvalidData as error:
        return "; ".join(problem.what for problem in error.problems)
    return ""


def _printable(text: str) -> str:
    """Return the text as one line: names of others may have anything in them."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _settings(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in settings.items()]


def _toml(value: Any) -> str:
    """Return a text, number, boolean or list as TOML, which writes these as JSON does (DEL is the one exception)."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
