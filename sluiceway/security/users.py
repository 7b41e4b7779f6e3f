"""All users of a broker, from the configuration, the users file and certificates, with their groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from sluiceway.config.errors import ConfigError
from sluiceway.protocols.stomp.authorization import Identity
from sluiceway.security import secrets
from sluiceway.security.config import SecurityConfig
from sluiceway.security.secrets import Hashed, Plain, Secret
from sluiceway.security.sources import Outside


class SecurityError(ConfigError):
    """Inconsistent users, groups or permissions. `problems`: each in words, with the remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@attrs.frozen(slots=True)
class Users:
    """Users by name."""

    secrets: Mapping[str, Secret] = attrs.field(repr=False)
    certificates: Mapping[str, str]
    """Users by a name in their certificate, in lower case."""
    identities: Mapping[str, Identity]
    """All users, with their groups."""
    stand_in: Secret = attrs.field(repr=False)
    """Secret that takes as long to check as the most expensive user's."""
    outside: Outside = Outside()
    """Sources of logins that are not in the configuration."""

    @classmethod
    def of(cls, config: SecurityConfig) -> Users:
        """Read the users file and combine all sources. Raises SecurityError with all mistakes."""
        problems: list[str] = []
        kept = {name: secrets.parse(text) for name, text in config.users.items()}
        if config.users_file is not None:
            for name, secret in read_users_file(config.users_file, problems).items():
                if name in kept:
                    problems.append(f"user {name!r} stands in security.users and in {config.users_file}: take one out")
                kept[name] = secret
        certificates: dict[str, str] = {}
        for in_certificate, user in config.certificates.items():
            try:
                secrets.check_user_name(user)
            except ValueError as error:
                problems.append(f"security.certificates: {error}")
            if certificates.setdefault(in_certificate.lower(), user) != user:
                problems.append(
                    f"security.certificates: {in_certificate!r} is there twice, for two users: upper and lower case "
                    "are the same in it"
                )
        names = {**dict.fromkeys(kept), **dict.fromkeys(certificates.values())}
        groups: dict[str, set[str]] = {name: set() for name in names}
        for group, members in config.groups.items():
            for member in members:
                if member in groups:
                    groups[member].add(group)
                else:
                    problems.append(f"security.groups: {group} has a member {member!r} who is no user")
        outside = Outside.of(config, problems)
        if problems:
            raise SecurityError(problems)
        identities = {name: Identity(name, frozenset(groups[name])) for name in names}
        return cls(kept, certificates, identities, _stand_in(kept), outside)

    @property
    def are_configured(self) -> bool:
        """Whether there is at least one user, or a source of them, so that unknown clients are refused."""
        return bool(self.identities or self.outside)

    def representatives(self, named: Iterable[str]) -> dict[str, Identity]:
        """Return all users, and for those of outside sources, of whom nothing is known before they log in: the `named`
        ones, one without groups, and one in each group. What matters for any of them matters for one of these.
        """
        if not self.outside:
            return dict(self.identities)
        strangers = {name: Identity(name) for name in named}
        members = {f"\0{group}": Identity(f"\0{group}", frozenset((group,))) for group in self.outside.groups}
        return {**strangers, "\0": Identity("\0"), **members, **self.identities}

    @property
    def in_plain_text(self) -> list[str]:
        """Users whose passcode is stored in plain text."""
        return sorted(name for name, secret in self.secrets.items() if isinstance(secret, Plain))


def read_users_file(path: Path, problems: list[str]) -> dict[str, Secret]:
    """Return the users of a file; add its mistakes to `problems`, by line, without the contents."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        problems.append(
            f"security.users_file: {path} can't be read: {error.strerror}; `sluiceway secret --user NAME >> {path}` "
            "adds a user"
        )
        return {}
    except UnicodeDecodeError as error:
        problems.append(f"security.users_file: {path} is not UTF-8 (byte {error.start}); save it as UTF-8")
        return {}
    users: dict[str, Secret] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}, line {number}"
        name, colon, text = line.strip().rpartition(":")
        if not colon or not name:
            problems.append(f"{where}: is not name:scrypt$…; `sluiceway secret --user NAME` prints such a line")
            continue
        try:
            secrets.check_user_name(name)
            secret = secrets.parse(text)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        if not isinstance(secret, Hashed):
            problems.append(f"{where}: the passcode of {name!r} is no hash: `sluiceway secret --user {name}` makes one")
        elif name in users:
            problems.append(f"{where}: there is a user {name!r} above already")
        else:
            users[name] = secret
    return users


def _stand_in(kept: Mapping[str, Secret]) -> Secret:
    hashes = [secret for secret in kept.values() if isinstance(secret, Hashed)]
    if not hashes:
        return Plain(b"\0nobody")
    costliest = max(hashes, key=lambda secret: (secret.r * secret.p) << secret.log_n)
    stand_in = secrets.STAND_IN
    return attrs.evolve(stand_in, log_n=costliest.log_n, r=costliest.r, p=costliest.p)
