"""Where a broker is, and as whom to connect there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

DEFAULT_PORT: Final = 61613


@attrs.frozen
class Address:
    """Of one broker."""

    host: str
    port: int
    login: str | None = None
    passcode: str | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        """HOST:PORT, for people; without login and passcode."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, login: str | None = None, passcode: str | None = None) -> Address:
        """From HOST[:PORT] or stomp://[LOGIN:PASSCODE@]HOST[:PORT]; what the text says goes over the arguments.

        :raises ValueError: says how it is written.
        """
        wrong = f"{text!r} is not a broker's address: write HOST:PORT or stomp://LOGIN:PASSCODE@HOST:PORT"
        parts = urlsplit(text if "://" in text else f"stomp://{text}")
        try:
            port = parts.port
        except ValueError:
            raise ValueError(wrong) from None
        if parts.scheme != "stomp" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(wrong)
        return cls(
            host=parts.hostname,
            port=DEFAULT_PORT if port is None else port,
            login=login if parts.username is None else unquote(parts.username),
            passcode=passcode if parts.password is None else unquote(parts.password),
        )


def parse_all(brokers: str | Iterable[str], login: str | None, passcode: str | None) -> tuple[Address, ...]:
    """One address or several. Raises ValueError for none, for one that is given twice and for what is no address."""
    texts = [brokers] if isinstance(brokers, str) else list(brokers)
    addresses = tuple(Address.parse(text, login=login, passcode=passcode) for text in texts)
    if not addresses:
        raise ValueError("no broker is given: name at least one as HOST:PORT")
    if len({str(address) for address in addresses}) < len(addresses):
        raise ValueError(f"a broker is given twice: {', '.join(map(str, addresses))}")
    return addresses
