"""Configuration of users and permissions: [security], and the rates of listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from sluiceway.config.fields import copied
from sluiceway.protocols.stomp.authorization import Action
from sluiceway.queues.settings import about, at_least, field, one_of, texts
from sluiceway.security import secrets
from sluiceway.security.outside_config import LdapDirectory, OAuthIssuer, ldap_directories, oauth_issuers
from sluiceway.security.patterns import check_pattern

ANY: Final = "*"
"""Wildcard for all users, or all actions."""

ACTIONS: Final = tuple(action.value for action in Action)


def _groups(values: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {name: texts(members) for name, members in values.items()}


def _names(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for name in value:
        if not name or name != name.strip():
            raise ValueError(f"{attribute.name}: {name!r} is empty, or has blanks around it")


_OTHER_ACTIONS: Final = {
    "write": "send",
    "publish": "send",
    "read": "receive",
    "subscribe": "receive",
    "consume": "receive",
    "configure": "create",
}
"""Actions of other brokers, with those here."""


def _actions(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for name in value:
        if name not in (*ACTIONS, ANY):
            same = _OTHER_ACTIONS.get(name)
            hint = f" ({name} is {same} here)" if same else ""
            raise ValueError(f"{attribute.name} must be some of {', '.join(ACTIONS)}, or * for all{hint}, got {name!r}")
    if not value:
        raise ValueError(f"{attribute.name} must not be empty: some of {', '.join(ACTIONS)}, or *")


def _patterns(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for pattern in value:
        try:
            check_pattern(pattern)
        except ValueError as error:
            raise ValueError(f"{attribute.name}: {error}") from None


def _users(_instance: object, attribute: attrs.Attribute[Any], value: Mapping[str, str]) -> None:
    for name, secret in value.items():
        secrets.check_user_name(name)
        if not secret:
            raise ValueError(f"{attribute.name}: {name!r} has an empty passcode")
        try:
            secrets.parse(secret)
        except secrets.SecretError as error:
            raise ValueError(f"{attribute.name}: {name!r}: {error}") from None


def _positive_or_none(_instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f'{attribute.name} must be above 0, or "none", got {value!r}')


def _path_or_none(value: Path | str | None) -> Path | None:
    return None if value is None or not str(value) else Path(value)


@attrs.frozen
class Permission:
    """Entry that allows or denies actions. The first matching entry decides."""

    users: tuple[str, ...] = field(
        (),
        "",
        "Users that this entry is for, or `*` for all that log in. Beside these, those of `groups`.",
        _names,
        texts,
    )
    groups: tuple[str, ...] = field((), "", "Groups that this entry is for.", _names, texts)
    actions: tuple[str, ...] = attrs.field(
        default=(),
        converter=texts,
        validator=_actions,
        metadata=about(
            "Action: `connect`; `send`; `receive` (SUBSCRIBE); `create` (a destination that does not "
            "exist yet); `browse` (look into it without taking); `admin` (pause, purge, the state of the broker, and"
            " all "
            "else). `*`: all of them, with `destinations` all but `connect`."
        ),
    )
    destinations: tuple[str, ...] = attrs.field(
        default=(),
        converter=texts,
        validator=_patterns,
        metadata=about(
            "Full names or patterns with `*` for one level and a last `>` for one or more; `{user}` stands for the "
            "user's own name. Empty: all destinations."
        ),
    )
    listeners: tuple[str, ...] = field(
        (),
        "",
        "For `connect` only: names of listeners (or their addresses) through which it may be done. Empty: all of them.",
        _names,
        texts,
    )
    allow: bool = field(True, "", "false: deny matching requests.")

    def __attrs_post_init__(self) -> None:
        if not self.users and not self.groups:
            raise ValueError('an entry needs users or groups: users = ["*"] is every user that logs in')
        if self.listeners and set(self.actions) != {Action.CONNECT.value}:
            raise ValueError('listeners are for actions = ["connect"] alone: make two entries of it')
        if self.destinations and Action.CONNECT.value in self.actions:
            raise ValueError("connect is not to a destination: make two entries of it, one without destinations")


@attrs.frozen
class Rates:
    """Limits of input per second. The broker pauses reading from a connection that exceeds them, without a notice."""

    messages_per_second: float | None = field(None, "", "SENDs per second. None: no limit.", _positive_or_none)
    bytes_per_second: int | None = field(
        None, "bytes", "Bytes per second, frames of all kinds. None: no limit.", _positive_or_none
    )
    burst_seconds: float = field(
        1.0,
        "seconds",
        "After a pause this many seconds' worth may come at once. A read counts as a whole: a single frame may exceed "
        "the limit, and is compensated afterwards.",
        at_least(0.01),
    )

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.messages_per_second is None and self.bytes_per_second is None


@attrs.frozen
class UserRates(Rates):
    """Limit for each of these users, over all of its connections. The first entry that names a user applies."""

    users: tuple[str, ...] = field((), "", "Users that it is for, each for itself; `*`: all.", _names, texts)
    groups: tuple[str, ...] = field((), "", "Groups for whose members it is, each for itself.", _names, texts)

    def __attrs_post_init__(self) -> None:
        if not self.users and not self.groups:
            raise ValueError('an entry needs users or groups: users = ["*"] is every user, each separately')
        if self.is_unlimited:
            raise ValueError("an entry needs messages_per_second or bytes_per_second: as it stands it limits nothing")


def _permissions(values: Sequence[Permission]) -> tuple[Permission, ...]:
    return tuple(values)


def _rates(values: Sequence[UserRates]) -> tuple[UserRates, ...]:
    return tuple(values)


@attrs.frozen
class SecurityConfig:
    """Users and permissions. Without users every client may do everything, which is meant for a broker that only this
    machine reaches. With users, actions that no entry of `permissions` allows are refused.
    """

    users: Mapping[str, str] = attrs.field(
        factory=dict,
        converter=copied,
        repr=False,
        hash=False,
        validator=_users,
        metadata=about(
            "Logins, each with its passcode as `sluiceway secret` writes it (`scrypt$…`). A passcode in plain text "
            "works too, with a warning at the start: for tests. Users may also stand in `users_file`. Empty, and no "
            "other users: every client may connect, with any login or none.",
            secret=True,
        ),
    )
    users_file: Path | None = field(
        None,
        "",
        "A file with one `name:scrypt$…` a line (`sluiceway secret --user NAME` prints one) and # for comments. Read "
        "at the start and at each reload. Relative to the working directory. Keep it to yourself (`chmod 600`).",
        converter=_path_or_none,
    )
    certificates: Mapping[str, str] = attrs.field(
        factory=dict,
        converter=copied,
        hash=False,
        metadata=about(
            "Users by client certificate: a name in it (common name, or a DNS name or e-mail address it stands for) "
            "and its user, who needs no login and passcode. The listener has to ask for certificates. Such "
            "a user needs no passcode."
        ),
    )
    oauth: tuple[OAuthIssuer, ...] = attrs.field(
        default=(),
        converter=oauth_issuers,
        metadata=about(
            "Issuers of bearer tokens. A client sends its token as passcode, without login or with the name of its "
            "user. The `iss` of a token decides which entry it is for."
        ),
    )
    ldap: tuple[LdapDirectory, ...] = attrs.field(
        default=(),
        converter=ldap_directories,
        metadata=about(
            "Directories. Asked one after the other for logins that are no users of this configuration, until one has "
            "the user."
        ),
    )
    groups: Mapping[str, tuple[str, ...]] = attrs.field(
        factory=dict,
        converter=_groups,
        hash=False,
        metadata=about('Groups of users, for permissions and rates: `groups = { staff = ["ann", "bob"] }`.'),
    )
    default: str = field(
        "deny",
        "",
        "Decision where there are users and no entry of `permissions` matches: `deny`, or `allow` (all but `admin`). "
        "An open network needs the first: a forgotten entry denies, not allows.",
        one_of(("deny", "allow")),
    )
    stamp_user: bool = field(
        False,
        "",
        "Whether each MESSAGE carries the header `user` with the name of its sender. A header of this name in a "
        "SEND is dropped in any case. Off: readers do not learn who sends, and headers go through as they came, "
        "which takes less time.",
    )
    login_free_count: int = field(
        5,
        "count",
        "Failed logins of one user, or from one machine, before further ones are slowed. Room for a mistyped passcode.",
        at_least(1),
    )
    login_delay_seconds: float = field(
        0.5,
        "seconds",
        "Delay of the first attempt after those; each failure doubles it. 0: no delay.",
        at_least(0),
    )
    login_delay_seconds_max: float = field(
        5.0,
        "seconds",
        "The longest that it comes to. Below the `connect_timeout_seconds` of the listeners, so that the right "
        "passcode gets in at last.",
        at_least(0),
    )
    login_forget_seconds: float = field(
        600.0,
        "seconds",
        "Time after the last failure after which failures are forgotten.",
        at_least(1),
    )
    login_cache_seconds: float = field(
        300.0,
        "seconds",
        "How long a passcode that was right need not be hashed again, so that ten thousand clients can come back at "
        "once. 0: never kept. Kept is a keyed digest in memory, not the passcode.",
        at_least(0),
    )
    login_parallel_max: int = field(
        2,
        "count",
        "Passcodes hashed at a time, each in a thread with 16 MiB (or what its hash says); more wait in line.",
        at_least(1),
    )
    permissions: tuple[Permission, ...] = attrs.field(
        default=(),
        converter=_permissions,
        metadata=about(
            "Permissions. The first entry that matches user, action and destination decides; if none does, the "
            "request is refused (see `default`). `sluiceway permissions explain` says which entry decides."
        ),
    )
    rates: tuple[UserRates, ...] = attrs.field(
        default=(),
        converter=_rates,
        metadata=about("Limits per second for users. See also the `rates` of listeners."),
    )
