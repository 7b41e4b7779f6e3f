"""Sources of logins beside the users of the configuration: what was read for them, and the sources in force.

A login that is a user of the configuration never gets here. A passcode with the form of a token goes to the issuers, if
there are some, and never to a directory; any other goes to the directories.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import attrs

from sluiceway.extras import MissingExtraError
from sluiceway.security.config import SecurityConfig
from sluiceway.security.outside import LoginSource, NotAcceptedError
from sluiceway.security.outside_config import LdapDirectory, OAuthIssuer

if TYPE_CHECKING:
    from sluiceway.security.directories import Directories
    from sluiceway.security.issuers import Issuers, Spawn, Timers


def wall_clock() -> float:
    """Return the seconds since the epoch."""
    return time.time()


@attrs.frozen(slots=True)
class Outside:
    """The configuration of all sources with the contents of their files."""

    issuers: tuple[tuple[OAuthIssuer, bytes], ...] = ()
    """Each with its file of keys; empty: they come from a URL."""
    directories: tuple[tuple[LdapDirectory, str], ...] = attrs.field(default=(), repr=False)
    """Each with the passcode of `bind_dn`."""

    @classmethod
    def of(cls, config: SecurityConfig, problems: list[str]) -> Outside:
        """Read the files of all sources; add mistakes to `problems`. Imports the libraries of the extras."""
        issuers: list[tuple[OAuthIssuer, bytes]] = []
        directories: list[tuple[LdapDirectory, str]] = []
        try:
            if config.oauth:
                issuers = [(issuer, _keys_of(issuer, place, problems)) for place, issuer in enumerate(config.oauth)]
            if config.ldap:
                import_module("sluiceway.security.directory")  # so that a missing extra is found here

                directories = [(it, _passcode_of(it, place, problems)) for place, it in enumerate(config.ldap)]
        except MissingExtraError as error:
            problems.append(str(error))
        for kind, labels in (
            ("oauth", [issuer.label for issuer, _keys in issuers]),
            ("ldap", [directory.label for directory, _passcode in directories]),
        ):
            twice = sorted({label for label in labels if labels.count(label) > 1})
            problems.extend(f"security.{kind}: {label} is there twice: take one out" for label in twice)
        return cls(tuple(issuers), tuple(directories))

    @property
    def groups(self) -> frozenset[str]:
        """Groups that logins may get from these sources."""
        tables = [issuer.groups for issuer, _keys in self.issuers]
        tables += [directory.groups for directory, _passcode in self.directories]
        return frozenset(group for table in tables for groups in table.values() for group in groups)

    @property
    def by_label(self) -> dict[str, object]:
        """Settings and contents of files of each source, by its label."""
        issuers = {issuer.label: (issuer, keys) for issuer, keys in self.issuers}
        directories = {directory.label: (directory, passcode) for directory, passcode in self.directories}
        return {**issuers, **directories}

    def __bool__(self) -> bool:
        return bool(self.issuers or self.directories)


def _keys_of(issuer: OAuthIssuer, place: int, problems: list[str]) -> bytes:
    from sluiceway.security.issuers import read_file
    from sluiceway.security.tokens import KeysError, read_keys

    if issuer.keys_file is None:
        return b""
    try:
        data = read_file(issuer.keys_file)
        read_keys(data)
    except KeysError as error:
        problems.append(f"security.oauth[{place}].keys_file: {issuer.keys_file}: {error}")
        return b""
    return data


def _passcode_of(directory: LdapDirectory, place: int, problems: list[str]) -> str:
    path = directory.bind_passcode_file
    if path is None:
        return directory.bind_passcode
    where = f"security.ldap[{place}].bind_passcode_file: {path}"
    try:
        passcode = next(iter(path.read_text(encoding="utf-8").splitlines()), "")
    except OSError as error:
        problems.append(f"{where} can't be read: {error.strerror}")
        return ""
    except UnicodeDecodeError:
        problems.append(f"{where} is not UTF-8")
        return ""
    if not passcode:
        problems.append(f"{where} has an empty first line: it has to be the passcode of {directory.bind_dn}")
    return passcode


def try_sources(outside: Outside) -> dict[str, str]:
    """Return for each source why it can't be used; empty: it can. Blocks: asks all of them."""
    found: dict[str, str] = {}
    if outside.issuers:
        from sluiceway.security.issuers import fetch_keys
        from sluiceway.security.tokens import KeysError, read_keys

        for issuer, data in outside.issuers:
            try:
                _keys, left_out = read_keys(data) if data else fetch_keys(issuer)
                found[issuer.label] = "; ".join(left_out)
            except KeysError as error:
                found[issuer.label] = str(error)
    if outside.directories:
        from sluiceway.security.directory import Directory

        for config, passcode in outside.directories:
            directory = Directory(config, passcode, time.monotonic)
            try:
                directory.try_out()
                found[config.label] = ""
            except NotAcceptedError as error:
                found[config.label] = str(error)
            finally:
                directory.close()
    return found


class LoginSources:
    """The sources in force."""

    __slots__ = ("_clock", "_directories", "_issuers", "_now", "_outside", "_spawn", "_timers", "changed")

    def __init__(self, clock: Callable[[], float], now: Callable[[], float], timers: Timers, spawn: Spawn) -> None:
        """`clock`: monotonic seconds; `now`: seconds since the epoch; `spawn` starts a task of the broker."""
        self._clock = clock
        self._now = now
        self._timers = timers
        self._spawn = spawn
        self._outside = Outside()
        self._issuers: Issuers | None = None
        self._directories: Directories | None = None
        self.changed: frozenset[str] = frozenset()
        """Labels of sources that the last change has changed or taken out."""

    def follow(self, outside: Outside) -> None:
        """Put these in force. Issuers that are the same keep their keys."""
        before, after = self._outside.by_label, outside.by_label
        self.changed = frozenset(label for label, what in before.items() if after.get(label) != what)
        if outside.issuers != self._outside.issuers:
            self._follow_issuers(outside)
        if outside.directories != self._outside.directories:
            self._follow_directories(outside)
        self._outside = outside

    def _follow_issuers(self, outside: Outside) -> None:
        from sluiceway.security.issuers import Issuer, Issuers
        from sluiceway.security.tokens import read_keys

        known = {} if self._issuers is None else {each.config.label: each for each in self._issuers.issuers}
        for label in self.changed & known.keys():
            known.pop(label).close()
        made = []
        for config, data in outside.issuers:
            issuer = known.get(config.label)
            if issuer is None:
                keys = read_keys(data)[0] if data else ()
                issuer = Issuer(config, keys, clock=self._clock, timers=self._timers, spawn=self._spawn)
                issuer.start()
            made.append(issuer)
        self._issuers = Issuers(made, self._now) if made else None

    def _follow_directories(self, outside: Outside) -> None:
        from sluiceway.security.directories import Directories
        from sluiceway.security.directory import Directory

        self._close_directories()
        made = [Directory(config, passcode, self._clock) for config, passcode in outside.directories]
        self._directories = Directories(made, self._clock) if made else None

    def _close_directories(self) -> None:
        if self._directories is not None:
            self._directories.close()

    def of(self, login: str, secret: str) -> LoginSource | None:
        """Return the source that checks this login; None: there is none."""
        if self._issuers is not None:
            from sluiceway.security.tokens import is_token

            if is_token(secret):
                return self._issuers
        return self._directories if login else None

    def close(self) -> None:
        """End work in the background, and close connections."""
        if self._issuers is not None:
            self._issuers.close()
        self._close_directories()
