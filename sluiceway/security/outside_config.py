"""Configuration of logins that others vouch for: [[security.oauth]], [[security.ldap]]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from sluiceway.config.fields import is_loopback
from sluiceway.queues.settings import about, at_least, field

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures that a public key verifies. `none` and the HMAC ones (HS256, …) are not among them: with those whoever can
verify a token can make one.
"""


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ValueError("must be a list of texts")
    return tuple(values)


def _table(values: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {name: _texts(groups) for name, groups in values.items()}


def _algorithms(_instance: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for name in value:
        if name not in ALGORITHMS:
            raise ValueError(
                f"{attribute.name} must be some of {', '.join(ALGORITHMS)}, got {name!r} (none and HS… prove nothing: "
                "who can check such a token can make one)"
            )
    if not value:
        raise ValueError(f"{attribute.name} must not be empty")


def _path_or_none(value: Path | str | None) -> Path | None:
    return None if value is None or not str(value) else Path(value)


@attrs.frozen
class OAuthIssuer:
    """Issuer of bearer tokens (JWT) that clients send as their passcode. Needs the extra `oauth`."""

    issuer: str = field("", "", "The `iss` that its tokens have, to the letter.")
    audiences: tuple[str, ...] = field(
        (), "", "Names of this broker in `aud`: a token has to be for one of them. Required.", converter=_texts
    )
    keys_url: str = field(
        "",
        "",
        "Address of its public keys (JWKS), https; http to this machine only. Many issuers tell it as `jwks_uri` at "
        "`/.well-known/openid-configuration`.",
    )
    keys_file: Path | None = field(
        None, "", "File with its public keys, in place of `keys_url`. Read at the start and at each reload.",
        converter=_path_or_none,
    )  # fmt: skip
    ca_file: Path | None = field(
        None, "", "Certificates that the server of `keys_url` is verified with. None: those of the system.",
        converter=_path_or_none,
    )  # fmt: skip
    algorithms: tuple[str, ...] = field(
        ("RS256", "ES256"),
        "",
        "Signatures that are accepted, whatever a token says itself. Public keys only: never `none`, never HMAC.",
        _algorithms,
        _texts,
    )
    user_claim: str = field(
        "sub",
        "",
        "Claim with the name of the user; a dot goes into a table. Take one that the issuer gives to one user only "
        "and that users can't change themselves.",
    )
    user_prefix: str = field(
        "", "", "Put before the names, so that they can't meet those of other sources: `corp:` makes `corp:ann`."
    )
    groups_claims: tuple[str, ...] = field(
        ("scope",),
        "",
        "Claims whose values `groups` has: lists, or texts with blanks between values. A dot goes into a table: "
        "`realm_access.roles`.",
        converter=_texts,
    )
    groups: Mapping[str, tuple[str, ...]] = attrs.field(
        factory=dict,
        converter=_table,
        hash=False,
        metadata=about(
            'Groups by value of these claims: `groups = { "orders:write" = ["writers"] }`. Permissions and rates name '
            "the groups. Other values count for nothing."
        ),
    )
    leeway_seconds: float = field(
        30.0, "seconds", "Difference of clocks that is allowed for when a token begins and ends.", at_least(0)
    )
    token_bytes_max: int = field(
        8192,
        "bytes",
        "Longest token; a longer one is refused unread. `header_line_bytes_max` and `connect_frame_bytes_max` of the "
        "listener (16 KiB) bound it, too.",
        at_least(256),
    )
    keys_refresh_seconds: float = field(
        300.0,
        "seconds",
        "How often `keys_url` is asked again. A key that is gone from there is refused from then on.",
        at_least(1),
    )
    keys_retry_seconds: float = field(
        10.0,
        "seconds",
        "Least time between two requests: after a failure (it doubles with each further one, up to "
        "`keys_refresh_seconds`), and for tokens whose key is not known.",
        at_least(0.1),
    )
    keys_timeout_seconds: float = field(5.0, "seconds", "Time for one request.", at_least(0.1))

    def __attrs_post_init__(self) -> None:
        if not self.issuer or not self.audiences:
            raise ValueError("an issuer needs issuer (its iss) and audiences (names of this broker in aud)")
        if bool(self.keys_url) == (self.keys_file is not None):
            raise ValueError(f"issuer {self.issuer} needs one of keys_url and keys_file")
        if self.keys_url:
            parts = urlsplit(self.keys_url)
            local = parts.scheme == "http" and is_loopback(parts.hostname or "")
            if not parts.hostname or not (parts.scheme == "https" or local):
                raise ValueError(f"keys_url must begin with https:// (http:// for this machine only): {self.keys_url}")
        if not self.user_claim:
            raise ValueError("user_claim must not be empty")

    @property
    def label(self) -> str:
        """Name in the log."""
        return f"oauth {self.issuer}"


@attrs.frozen
class LdapDirectory:
    """Directory that checks login and passcode. Needs the extra `ldap`."""

    urls: tuple[str, ...] = field(
        (),
        "",
        "Addresses: `ldaps://HOST` or `ldap://HOST:PORT`. With several the next one is asked when one can't be "
        "reached.",
        converter=_texts,
    )
    start_tls: bool = field(False, "", "Encrypt `ldap://` by StartTLS before anything else is sent.")
    ca_file: Path | None = field(
        None, "", "Certificates that servers are verified with. None: those of the system.", converter=_path_or_none
    )
    user_dn: str = field(
        "",
        "",
        "Direct bind: the entry of a user, such as `uid={user},ou=people,dc=example,dc=org`. Empty: it is searched "
        "for (`search_base`).",
    )
    search_base: str = field("", "", "Where users are searched for, such as `ou=people,dc=example,dc=org`.")
    search_filter: str = field(
        "(uid={user})", "", "Filter of that search; `{user}` is the login, escaped. It has to find one entry."
    )
    bind_dn: str = field("", "", "Entry that the broker searches as. Empty: without a login (anonymous).")
    bind_passcode: str = attrs.field(
        default="", repr=False, metadata=about("Its passcode. Better in `bind_passcode_file`.", secret=True)
    )
    bind_passcode_file: Path | None = field(
        None, "", "File whose first line is the passcode of `bind_dn`. Read at the start and at each reload.",
        converter=_path_or_none,
    )  # fmt: skip
    user_attribute: str = field(
        "uid",
        "",
        "Attribute of the entry that is the name of the user here. Not what the client wrote: a directory takes `Ann` "
        "and `ann` for the same.",
    )
    user_prefix: str = field(
        "", "", "Put before the names, so that they can't meet those of other sources: `corp:` makes `corp:ann`."
    )
    group_attribute: str = field("memberOf", "", "Attribute of the user's entry with its groups. Empty: not looked at.")
    group_base: str = field("", "", "Where groups are searched for, beside `group_attribute`. Empty: no search.")
    group_filter: str = field(
        "(member={dn})",
        "",
        "Filter of that search: `{dn}` is the entry of the user and `{user}` its name, escaped.",
    )
    groups: Mapping[str, tuple[str, ...]] = attrs.field(
        factory=dict,
        converter=_table,
        hash=False,
        metadata=about(
            "Groups by those of the directory, which are named in full (`cn=ops,ou=groups,dc=example,dc=org`) or by "
            'the first value of it (`ops`): `groups = { ops = ["operators"] }`. Others count for nothing.'
        ),
    )
    timeout_seconds: float = field(5.0, "seconds", "Time to connect, and for each answer.", at_least(0.1))
    connections_max: int = field(
        4,
        "count",
        "Logins checked at a time, each in a thread with its connection; more wait in line.",
        at_least(1),
    )
    idle_seconds: float = field(
        60.0, "seconds", "How long an unused connection is kept for the next login.", at_least(0)
    )
    cache_seconds: float = field(
        60.0,
        "seconds",
        "How long a login that was right is taken without asking again. A new passcode, a locked user and other groups "
        "count from then on. 0: never kept. Kept is a keyed digest in memory, not the passcode.",
        at_least(0),
    )

    def __attrs_post_init__(self) -> None:
        if not self.urls:
            raise ValueError('a directory needs urls: urls = ["ldaps://directory.example.org"]')
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("ldap", "ldaps") or not parts.hostname:
                raise ValueError(f"{url!r} is no address of a directory: write ldaps://HOST or ldap://HOST:PORT")
            if parts.scheme == "ldaps" and self.start_tls:
                raise ValueError(f"{url} is encrypted from the beginning: take start_tls out, or write ldap://")
        if bool(self.user_dn) == bool(self.search_base):
            raise ValueError("a directory needs one of user_dn (direct bind) and search_base (search and bind)")
        if self.user_dn and "{user}" not in self.user_dn:
            raise ValueError("user_dn must have {user} in it")
        if self.search_base and "{user}" not in self.search_filter:
            raise ValueError("search_filter must have {user} in it")
        if self.bind_passcode and self.bind_passcode_file is not None:
            raise ValueError("give one of bind_passcode and bind_passcode_file")
        if self.bind_dn and not self.bind_passcode and self.bind_passcode_file is None:
            raise ValueError("bind_dn needs bind_passcode_file: without a passcode a directory takes it for anonymous")
        if not self.user_attribute:
            raise ValueError("user_attribute must not be empty")

    @property
    def label(self) -> str:
        """Name in the log."""
        return f"ldap {self.urls[0]}"

    @property
    def is_in_clear(self) -> bool:
        """Whether passcodes leave this machine unencrypted."""
        return not self.start_tls and any(
            url.startswith("ldap://") and not is_loopback(urlsplit(url).hostname or "") for url in self.urls
        )


def oauth_issuers(values: Sequence[OAuthIssuer]) -> tuple[OAuthIssuer, ...]:
    """Convert the list of issuers."""
    return tuple(values)


def ldap_directories(values: Sequence[LdapDirectory]) -> tuple[LdapDirectory, ...]:
    """Convert the list of directories."""
    return tuple(values)
