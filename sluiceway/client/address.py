"""Addresses of brokers: host, port, transport and login.

One order says which login and passcode count: those that a user gives beside an address (`Address.as_user`: options of
a command) override those in the address, and the address overrides the defaults of a program (arguments of `parse`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import attrs

DEFAULT_PORT: Final = 61613
DEFAULT_TLS_PORT: Final = 61614
TLS_SCHEME: Final = "stomp+ssl"
_OTHER_TLS_SCHEMES: Final = frozenset({"stomps", "ssl", "tls", "stomp+tls", "stomp+ssl3", "https", "amqps"})
"""Schemes of other programs by which people mean TLS."""

_PLACE: Final = re.compile(r"(?:.*@)?(?:\[[0-9A-Fa-f:.]+(?:%[\w.~-]+)?\]|[^\[\]@:]+)(?::[0-9]*)?")


@attrs.frozen
class Tls:
    """TLS settings of a client: paths of PEM files, so that they can be pickled and shown."""

    ca: str | None = None
    """Authorities that are trusted; None: those of the system."""
    cert: str | None = None
    """Certificate of the client, for brokers that ask for one."""
    key: str | None = None
    """Private key of that certificate; None: it is in the file of the certificate."""


@attrs.frozen
class Address:
    """Address of one broker."""

    host: str
    port: int
    login: str | None = None
    passcode: str | None = attrs.field(default=None, repr=False)
    tls: Tls | None = None
    """None: without TLS."""
    virtual_host: str | None = None
    """Value of the header `host` of CONNECT; None: `host`."""
    others: tuple[Address, ...] = ()
    """Other hubs of the same cluster, any of which will do."""

    def __str__(self) -> str:
        """HOST:PORT, for people; without login and passcode."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """SCHEME://HOST:PORT, for people; without login and passcode."""
        return f"{'stomp' if self.tls is None else TLS_SCHEME}://{self}"

    @classmethod
    def parse(cls, text: str, *, login: str | None = None, passcode: str | None = None) -> Address:
        """Parse HOST[:PORT], stomp://[LOGIN:PASSCODE@]HOST[:PORT], or with TLS
        stomp+ssl://…[?ca=FILE&cert=FILE&key=FILE]; several hubs of one cluster with `|` between. `login` and `passcode`
        count where the text names none.

        Raises ValueError: says how it is written.
        """
        if "|" in text:
            first, *others = [cls.parse(each, login=login, passcode=passcode) for each in text.split("|")]
            if len({str(each) for each in (first, *others)}) <= len(others):
                raise ValueError(f"a hub is given twice: {', '.join(map(str, (first, *others)))}")
            return attrs.evolve(first, others=tuple(others))
        wrong = f"{text!r} is not a broker's address: write stomp://HOST:PORT, such as stomp://127.0.0.1:{DEFAULT_PORT}"
        parts = _split(text, wrong)
        if parts.scheme in _OTHER_TLS_SCHEMES:
            raise ValueError(
                f"{text!r} is not a broker's address: with TLS write {TLS_SCHEME}://HOST:PORT, such as "
                f"{TLS_SCHEME}://127.0.0.1:{DEFAULT_TLS_PORT}"
            )
        if parts.scheme in ("ws", "wss"):
            raise ValueError(f"{text!r}: this client does not speak WebSocket; name the address of a listener without")
        if parts.scheme not in ("stomp", TLS_SCHEME) or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(wrong)
        port = parts.port
        tls = _tls_of(parts.scheme, parts.query)
        return cls(
            host=parts.hostname,
            port=port if port is not None else DEFAULT_PORT if tls is None else DEFAULT_TLS_PORT,
            login=login if parts.username is None else unquote(parts.username),
            passcode=passcode if parts.password is None else unquote(parts.password),
            tls=tls,
        )

    def as_user(self, login: str | None, passcode: str | None) -> Address:
        """Return this address with another login, passcode or both; None leaves the present one."""
        return attrs.evolve(
            self,
            login=self.login if login is None else login,
            passcode=self.passcode if passcode is None else passcode,
            others=tuple(each.as_user(login, passcode) for each in self.others),
        )


def _split(text: str, wrong: str) -> SplitResult:
    """Split a broker's address; without a scheme it is `stomp`.

    Judges host and port itself: which brackets and blanks `urlsplit` takes changes with patch releases of Python.

    Raises ValueError: `wrong`.
    """
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"stomp://{text}")
        parts.port  # noqa: B018  # raises for one that is no number, or too large
    except ValueError:
        raise ValueError(wrong) from None
    if _PLACE.fullmatch(parts.netloc) is None:
        raise ValueError(wrong)
    return parts


def _tls_of(scheme: str, query: str) -> Tls | None:
    """Return what scheme and query of an address say about TLS. Raises ValueError, which says how to write it."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [name for name, file in given.items() if name not in ("ca", "cert", "key") or not file]
    if unknown or (query and not given):
        raise ValueError(f"an address takes ?ca=FILE&cert=FILE&key=FILE for TLS, not {query!r}")
    if scheme == TLS_SCHEME:
        return Tls(**given)
    if given:
        raise ValueError(f"files for TLS need {TLS_SCHEME}:// in front of the address")
    return None


def with_files(text: str, ca: str | None, cert: str | None, key: str | None) -> str:
    """An address with these files for TLS in its query."""
    given = {name: file for name, file in (("ca", ca), ("cert", cert), ("key", key)) if file is not None}
    return f"{text}{'&' if '?' in text else '?'}{urlencode(given)}" if given else text


def parse_all(
    brokers: str | Address | Iterable[str | Address], login: str | None, passcode: str | None
) -> tuple[Address, ...]:
    """Parse one address or several. Raises ValueError for none, for an address given twice and for an invalid one."""
    given = [brokers] if isinstance(brokers, str | Address) else list(brokers)
    addresses = tuple(
        each if isinstance(each, Address) else Address.parse(each, login=login, passcode=passcode) for each in given
    )
    if not addresses:
        raise ValueError("no broker is given: name at least one as HOST:PORT")
    if len({str(address) for address in addresses}) < len(addresses):
        raise ValueError(f"a broker is given twice: {', '.join(map(str, addresses))}")
    return addresses
