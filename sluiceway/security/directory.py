"""One LDAP directory: a login and passcode to a user and its groups. Blocks: runs in threads.

*Search and bind*: bound as the broker (`bind_dn`, or anonymously) it looks for the one entry of the login, then binds
as that entry with the passcode. *Direct bind*: the entry is made from a template, and read after the bind.

The name of the user is what the entry says, not what the client wrote: a directory takes `Ann`, `ann` and `ann ` for
the same, and permissions do not. An empty passcode never gets here (`Directories`): a directory takes it for anonymous,
and says yes. Passcodes go out as bytes, since the library would normalize text, perhaps to nothing.

Connections are kept for the next login, each used by one thread at a time. One that broke is replaced once.
"""

from __future__ import annotations

import contextlib
import math
import ssl
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from sluiceway.extras import needs
from sluiceway.security.outside import Accepted, NotAcceptedError, Reason
from sluiceway.security.outside_config import LdapDirectory
from sluiceway.security.secrets import check_user_name

with needs("ldap", "a login by LDAP"), warnings.catch_warnings():
    # ldap3 uses names that pyasn1 has deprecated and still has (pyproject.toml keeps it below 0.7).
    warnings.simplefilter("ignore", DeprecationWarning)
    import ldap3
    from ldap3.core.exceptions import LDAPCommunicationError, LDAPException
    from ldap3.utils.conv import escape_filter_chars
    from ldap3.utils.dn import escape_rdn, parse_dn

GROUPS_MAX: Final = 1000
"""Groups of one user that are looked at."""
_SUCCESS, _SIZE_LIMIT, _NO_SUCH_OBJECT, _WRONG = 0, 4, 32, 49

Connection = Any
"""A connection of `ldap3`, which has no types."""


@attrs.frozen(slots=True)
class _Entry:
    dn: str
    attributes: dict[str, list[str]]
    """Values by name in lower case."""


class Directory:
    """One directory, with the connections to it."""

    def __init__(self, config: LdapDirectory, bind_passcode: str, clock: Callable[[], float]) -> None:
        self.config = config
        self._bind_passcode = bind_passcode.encode()
        self._clock = clock
        self._idle: list[tuple[Connection, float]] = []
        """Connections that no thread uses, with the time of their last use."""
        self._is_closed = False
        self._groups = {_known_as(name): groups for name, groups in config.groups.items()}

    # ------------------------------------------------------------------ connections

    def close(self) -> None:
        """Close the connections that no thread uses; others are closed after their use."""
        self._is_closed = True
        while self._idle:
            _drop(self._idle.pop()[0])

    @contextlib.contextmanager
    def _connection(self, *, fresh: bool) -> Iterator[tuple[Connection, bool]]:
        """Lend a connection, and whether it was used before."""
        connection = None
        while self._idle and connection is None:
            try:
                connection, since_seconds = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if fresh or self._clock() - since_seconds > self.config.idle_seconds:
                _drop(connection)
                connection = None
        is_used = connection is not None
        if connection is None:
            connection = self._open()
        is_whole = False
        try:
            yield connection, is_used
            is_whole = True
        except NotAcceptedError:
            is_whole = True
            raise
        finally:
            if is_whole:
                self._idle.append((connection, self._clock()))
            else:
                _drop(connection)
            if self._is_closed:
                self.close()

    def _open(self) -> Connection:
        """Connect to the first server that can be reached. Raises NotAcceptedError."""
        config, problems = self.config, []
        for url in config.urls:
            connection = None
            try:
                tls = None
                if config.start_tls or url.startswith("ldaps"):
                    ca_file = None if config.ca_file is None else str(config.ca_file)
                    tls = ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=ca_file)
                server = ldap3.Server(url, tls=tls, connect_timeout=config.timeout_seconds, get_info=ldap3.NONE)
                connection = ldap3.Connection(
                    server,
                    auto_bind=ldap3.AUTO_BIND_NONE,
                    auto_referrals=False,
                    check_names=False,
                    read_only=True,
                    receive_timeout=math.ceil(config.timeout_seconds),
                )
                connection.open(read_server_info=False)
                if config.start_tls and not connection.start_tls(read_server_info=False):
                    raise LDAPCommunicationError(f"it refuses StartTLS ({connection.result['description']})")
                return connection
            except (LDAPException, OSError, ValueError) as error:
                if connection is not None:
                    _drop(connection)
                problems.append(f"{url}: {str(error)[:200]}")
        raise NotAcceptedError(Reason.UNAVAILABLE, f"the directory can't be reached: {'; '.join(problems)}")

    # ------------------------------------------------------------------ logins

    def check(self, login: str, passcode: str) -> Accepted:
        """Check a login. Raises NotAcceptedError."""
        accepted: Accepted = self._on_connection(lambda connection: self._accept(connection, login, passcode))
        return accepted

    def try_out(self) -> None:
        """Connect, and bind as the broker. Raises NotAcceptedError."""
        if self.config.user_dn:
            self._on_connection(lambda _connection: None)
        else:
            self._on_connection(self._become_searcher)

    def _on_connection(self, work: Callable[[Connection], Any]) -> Any:
        try:
            try:
                with self._connection(fresh=False) as (connection, is_used):
                    return work(connection)
            except LDAPException:
                if not is_used:
                    raise
            with self._connection(fresh=True) as (connection, _is_used):
                return work(connection)
        except LDAPException as error:
            raise NotAcceptedError(Reason.UNAVAILABLE, f"the directory fails: {str(error)[:200]}") from None

    def _accept(self, connection: Connection, login: str, passcode: str) -> Accepted:
        config = self.config
        if config.user_dn:
            dn = config.user_dn.replace("{user}", escape_rdn(login))
            self._bind_as_user(connection, dn, passcode)
            found = self._search(connection, dn, "(objectClass=*)", ldap3.BASE, 1)
            entry = found[0] if found else _Entry(dn, {})
        else:
            self._become_searcher(connection)
            where = config.search_filter.replace("{user}", escape_filter_chars(login))
            found = self._search(connection, config.search_base, where, ldap3.SUBTREE, 2)
            if not found:
                raise NotAcceptedError(Reason.UNKNOWN, "the directory has no such user", is_guess=True)
            if len(found) > 1:
                raise NotAcceptedError(Reason.NAME, f"search_filter finds more than one entry: {where[:200]}")
            entry = found[0]
            if not entry.dn:
                raise NotAcceptedError(Reason.NAME, "the entry that was found has no name (DN)")
        user = self._name_of(entry)
        groups = self._groups_of(connection, entry, login)
        if not config.user_dn:
            self._bind_as_user(connection, entry.dn, passcode)
        return Accepted(user, groups, config.label)

    def _become_searcher(self, connection: Connection) -> None:
        if self.config.bind_dn:
            done = connection.rebind(self.config.bind_dn, self._bind_passcode, ldap3.SIMPLE, read_server_info=False)
        else:
            connection.user = connection.password = None
            done = connection.rebind(authentication=ldap3.ANONYMOUS, read_server_info=False)
        if not done:
            who = self.config.bind_dn or "an anonymous login"
            raise NotAcceptedError(Reason.UNAVAILABLE, f"the directory refuses {who}: {_result(connection)}")

    def _bind_as_user(self, connection: Connection, dn: str, passcode: str) -> None:
        assert dn and passcode, "a directory takes such a bind for an anonymous one"
        if connection.rebind(dn, passcode.encode(), ldap3.SIMPLE, read_server_info=False):
            return
        code = connection.result["result"]
        if code in (_WRONG, _NO_SUCH_OBJECT):
            # A direct bind does not tell which: the entry is made up from the login.
            reason = Reason.UNKNOWN if self.config.user_dn else Reason.PASSCODE
            raise NotAcceptedError(
                reason, f"the directory refuses login and passcode: {_result(connection)}", is_guess=True
            )
        raise NotAcceptedError(
            Reason.PASSCODE, f"the directory refuses {dn[:200]}: {_result(connection)}", is_guess=True
        )

    def _search(self, connection: Connection, base: str, where: str, scope: str, count_max: int) -> list[_Entry]:
        config = self.config
        wanted = [name for name in (config.user_attribute, config.group_attribute) if name]
        connection.search(
            base, where, scope, attributes=wanted, size_limit=count_max, time_limit=math.ceil(config.timeout_seconds)
        )
        code = connection.result["result"]
        if code == _NO_SUCH_OBJECT and scope == ldap3.BASE:
            return []
        if code not in (_SUCCESS, _SIZE_LIMIT):
            raise NotAcceptedError(
                Reason.UNAVAILABLE, f"the directory refuses a search in {base[:200]}: {_result(connection)}"
            )
        return [
            _Entry(
                each["dn"],
                {
                    name.lower(): [value.decode("utf-8", "replace") for value in values]
                    for name, values in each["raw_attributes"].items()
                },
            )
            for each in connection.response or ()
            if each["type"] == "searchResEntry"
        ]

    def _name_of(self, entry: _Entry) -> str:
        attribute = self.config.user_attribute
        names = entry.attributes.get(attribute.lower(), [])
        if len(names) != 1:
            raise NotAcceptedError(
                Reason.NAME,
                f"{entry.dn[:200]} has {len(names)} values of {attribute} (user_attribute), or may not be read: it "
                "has to be one",
            )
        user = self.config.user_prefix + names[0]
        try:
            check_user_name(user)
        except ValueError as error:
            raise NotAcceptedError(Reason.NAME, str(error)) from None
        return user

    def _groups_of(self, connection: Connection, entry: _Entry, login: str) -> frozenset[str]:
        config = self.config
        if not self._groups:
            return frozenset()
        names = entry.attributes.get(config.group_attribute.lower(), [])[:GROUPS_MAX]
        if config.group_base:
            where = config.group_filter.replace("{dn}", escape_filter_chars(entry.dn)).replace(
                "{user}", escape_filter_chars(entry.attributes[config.user_attribute.lower()][0])
            )
            names += [
                found.dn for found in self._search(connection, config.group_base, where, ldap3.SUBTREE, GROUPS_MAX)
            ]
        found_groups: set[str] = set()
        for name in names:
            for known in (_known_as(name), _first_value(name)):
                found_groups.update(self._groups.get(known, ()))
        return frozenset(found_groups)


def _known_as(name: str) -> str:
    """Return a name of a group as it is compared: upper and lower case, and blanks around its parts, do not differ."""
    if "=" not in name:
        return name.strip().casefold()
    try:
        return ",".join(f"{kind}={value}".casefold() for kind, value, _ in parse_dn(name, strip=True))
    except LDAPException:
        return name.casefold()


def _first_value(name: str) -> str:
    try:
        return str(parse_dn(name, strip=True)[0][1]).casefold()
    except (LDAPException, IndexError):
        return name.casefold()


def _result(connection: Connection) -> str:
    result = connection.result or {}
    said = f"{result.get('description', 'no answer')} {result.get('message') or ''}".strip()
    return said[:200]


def _drop(connection: Connection) -> None:
    with contextlib.suppress(LDAPException, OSError):
        connection.strategy.close()
    if connection.socket is not None:  # the library keeps one that could not connect
        connection.socket.close()
