"""A checked configuration of [security]: users read, entries checked, mistakes reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from sluiceway.config.model import ADMIN_NAME, Config
from sluiceway.protocols.stomp.authorization import Identity
from sluiceway.security.config import ANY, Rates, SecurityConfig
from sluiceway.security.permissions import check
from sluiceway.security.users import SecurityError, Users

OTHER_LISTENERS: Final = (ADMIN_NAME, "memory")
"""Names of connections without a listener: through the admin port, and within this process."""


@attrs.frozen(slots=True)
class Rules:
    """Users and their permissions, completely checked."""

    config: SecurityConfig
    users: Users
    listeners: Mapping[str, Rates]
    """Rates of each listener, by name."""
    warnings: tuple[str, ...]
    """Descriptions of suspicious settings."""


def rules_of(config: Config) -> Rules:
    """Return the rules of a whole configuration. Reads the users file. Raises SecurityError with all mistakes."""
    return make_rules(config.security, {listener.label: listener.rates for listener in config.listeners})


def slow_logins(config: Config) -> list[str]:
    """Describe listeners whose timeout is shorter than the longest delay of a login. The mistake is not in these rules
    alone, so it is not among their warnings.
    """
    security = config.security
    if not security.login_delay_seconds or not (
        security.users or security.users_file or security.certificates or security.oauth or security.ldap
    ):
        return []
    wait_max = max(config.security.login_delay_seconds, config.security.login_delay_seconds_max)
    return [
        f"a slowed login waits up to {wait_max:g} s (login_delay_seconds_max), and listener {listener.label} only "
        f"{listener.limits.connect_timeout_seconds:g} s (connect_timeout_seconds): the right passcode would not get in"
        for listener in config.listeners
        if listener.limits.connect_timeout_seconds <= wait_max
    ]


def make_rules(config: SecurityConfig, listeners: Mapping[str, Rates]) -> Rules:
    """Return the rules. `listeners`: the rates of each, by name. Reads the users file. Raises SecurityError with all
    mistakes.
    """
    users = Users.of(config)
    named = {name for entry in config.permissions for name in entry.users}
    named.update(name for entry in config.rates for name in entry.users)
    known = users.representatives(named - {ANY})
    warnings = check(config.permissions, known, [*listeners, *OTHER_LISTENERS])
    _check_rates(config, known)
    return Rules(config, users, dict(listeners), (*_weaknesses(config, users), *warnings))


def _weaknesses(config: SecurityConfig, users: Users) -> list[str]:
    found = []
    plain = users.in_plain_text
    if plain:
        some = ", ".join(plain[:5]) + (f" and {len(plain) - 5} more" if len(plain) > 5 else "")
        found.append(f"passcodes in plain text: {some}; `sluiceway secret` makes hashes of them")
    found += [
        f"{directory.label} gets passcodes in the clear: give it start_tls = true, or an ldaps:// address"
        for directory in config.ldap
        if directory.is_in_clear
    ]
    if users.are_configured and not config.permissions and config.default == "deny":
        found.append(
            "there are users, but no permissions, so every request is refused: add [[security.permissions]], or "
            'default = "allow" to [security]'
        )
    if not users.are_configured and config.permissions:
        found.append("there are permissions, but no users, so every client has full access: add users")
    return found


def _check_rates(config: SecurityConfig, users: Mapping[str, Identity]) -> None:
    groups = {group for identity in users.values() for group in identity.groups}
    problems = []
    for place, entry in enumerate(config.rates):
        for kind, given, known in (("user", entry.users, users), ("group", entry.groups, groups)):
            for name in given:
                if name not in known and name != ANY:
                    problems.append(f"security.rates[{place}]: there is no {kind} {name!r}")
    if problems:
        raise SecurityError(problems)
