"""Issuers of tokens: their keys, from a file or a URL, and logins by them.

Keys of a URL are fetched at the start and again every `keys_refresh_seconds`, in a thread. While the URL is down the
keys that are known stay in force; attempts follow with back-off. A token whose key is not known (the issuer has a new
one) starts one request and waits for it; `keys_retry_seconds` is the least time between two, so keys that are made up
cost no more.

Bound: KEYS_BYTES_MAX of a document, KEYS_MAX keys (tokens.py); one request at a time for each issuer.
"""

from __future__ import annotations

import http.client
import math
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from sluiceway.client.backoff import Backoff
from sluiceway.dispatcher import Periodic
from sluiceway.protocols.log import get_logger
from sluiceway.security.outside import Accepted, NotAcceptedError, Reason
from sluiceway.security.outside_config import OAuthIssuer
from sluiceway.security.tokens import Key, KeysError, Unverified, read_keys

KEYS_BYTES_MAX: Final = 256 * 1024

log = get_logger("sluiceway.security")


class Timers(Protocol):
    """Port to timers: the dispatcher."""

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Any: ...


Spawn = Callable[[Callable[[], Awaitable[object]]], None]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: keys come from the configured address or not at all."""

    def redirect_request(self, *_request: Any, **_more: Any) -> None:
        return None


def fetch_keys(config: OAuthIssuer) -> tuple[tuple[Key, ...], tuple[str, ...]]:
    """Ask `keys_url`, and return its keys and in words those that are left out. Blocks. Raises KeysError."""
    try:
        context = ssl.create_default_context(cafile=None if config.ca_file is None else str(config.ca_file))
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
        with opener.open(config.keys_url, timeout=config.keys_timeout_seconds) as answer:
            data = answer.read(KEYS_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise KeysError(f"{config.keys_url} answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise KeysError(f"{config.keys_url} can't be reached: {reason}") from None
    if len(data) > KEYS_BYTES_MAX:
        raise KeysError(f"{config.keys_url}: the answer is longer than {KEYS_BYTES_MAX} bytes")
    try:
        return read_keys(data)
    except KeysError as error:
        raise KeysError(f"{config.keys_url}: {error}") from None


def read_file(path: Path) -> bytes:
    """Return a file of keys. Raises KeysError."""
    try:
        with path.open("rb") as file:
            data = file.read(KEYS_BYTES_MAX + 1)
    except OSError as error:
        raise KeysError(f"it can't be read: {error.strerror}") from None
    if len(data) > KEYS_BYTES_MAX:
        raise KeysError(f"it is longer than {KEYS_BYTES_MAX} bytes")
    return data


class Issuer:
    """One issuer with its keys."""

    def __init__(
        self,
        config: OAuthIssuer,
        keys: tuple[Key, ...],
        *,
        clock: Callable[[], float],
        timers: Timers,
        spawn: Spawn,
        fetch: Callable[[OAuthIssuer], tuple[tuple[Key, ...], tuple[str, ...]]] = fetch_keys,
    ) -> None:
        """`keys`: those of the file; of a URL none are known yet. `clock`: monotonic seconds."""
        self.config = config
        self.keys = keys
        self.problem = ""
        """Reason why the last request failed; empty: it did not."""
        self._clock = clock
        self._spawn = spawn
        self._fetch = fetch
        self._thread = trio.CapacityLimiter(1)
        self._fetching: trio.Event | None = None
        self._backoff = Backoff(config.keys_retry_seconds, config.keys_refresh_seconds)
        self._not_before_seconds = -math.inf
        self._left_out: tuple[str, ...] = ()
        self._refreshes = Periodic(timers.call_later, config.keys_refresh_seconds, self._refresh)

    def start(self) -> None:
        """Begin to look after the keys."""
        if self.config.keys_url:
            self._refreshes.start(0.0)

    def close(self) -> None:
        """End it."""
        self._refreshes.stop()

    def _refresh(self) -> None:
        if self._fetching is None:
            self._fetching = trio.Event()
            self._not_before_seconds = self._clock() + self.config.keys_retry_seconds
            self._spawn(self._fetch_once)

    async def _fetch_once(self) -> None:
        done = self._fetching
        assert done is not None
        try:
            self.keys, left_out = await trio.to_thread.run_sync(self._fetch, self.config, limiter=self._thread)
        except KeysError as error:
            wait_seconds = self._backoff.next_seconds()
            self._refreshes.start(wait_seconds)
            if not self.problem:
                log.warning(
                    "keys of an issuer can't be fetched: those that are known stay in force",
                    issuer=self.config.issuer,
                    problem=str(error),
                    known=len(self.keys),
                )
            self.problem = str(error)
        else:
            if self.problem:
                log.info("keys of an issuer are fetched again", issuer=self.config.issuer, known=len(self.keys))
            self.problem = ""
            self._backoff.succeeded()
            self._refreshes.start()
            if left_out != self._left_out:
                log.warning("keys of an issuer are left out", issuer=self.config.issuer, keys=list(left_out))
            self._left_out = left_out
        finally:
            self._fetching = None
            done.set()

    async def _key_of(self, token: Unverified) -> Key:
        key = token.key_of(self.keys)
        if key is None and self.config.keys_url:
            if self._fetching is None and self._clock() >= self._not_before_seconds:
                self._refresh()
            if self._fetching is not None:
                with trio.move_on_after(self.config.keys_timeout_seconds):
                    await self._fetching.wait()
                key = token.key_of(self.keys)
        if key is None and not self.keys:
            raise NotAcceptedError(Reason.UNAVAILABLE, f"no keys are known yet: {self.problem or 'they are asked for'}")
        if key is None:
            named = "names no key, and not exactly one fits" if token.kid is None else f"names key {token.kid[:80]!r}"
            raise NotAcceptedError(
                Reason.KEY,
                f"the token {named} ({token.algorithm}); known: {', '.join(str(key.kid) for key in self.keys)[:200]}",
                is_guess=True,
            )
        return key

    async def log_in(self, token: Unverified, now: Callable[[], float]) -> Accepted:
        """Check a token. Raises NotAcceptedError."""
        token.check_algorithm(self.config)
        key = await self._key_of(token)
        at = now()
        claims = token.verified(key, self.config, at)
        return Accepted(claims.user, claims.groups, self.config.label, self._clock() + claims.ends_at - at)


class Issuers:
    """All issuers: a LoginSource."""

    name = "oauth"

    def __init__(self, issuers: Iterable[Issuer], now: Callable[[], float]) -> None:
        """`now`: seconds since the epoch."""
        self.issuers = tuple(issuers)
        self._now = now

    def account(self, login: str, host: str) -> str:
        """Return a name for the host: tokens can't be guessed, so failures of one host slow no other one."""
        return f"\0tokens of {host}"

    async def log_in(self, login: str, secret: str, late: Callable[[], bool]) -> Accepted | None:
        """Do `LoginSource.log_in`."""
        token = Unverified.of(secret, max(issuer.config.token_bytes_max for issuer in self.issuers))
        issuer = next((each for each in self.issuers if each.config.issuer == token.issuer), None)
        if issuer is None:
            raise NotAcceptedError(
                Reason.ISSUER,
                f"the token is of the issuer {token.issuer[:80]!r}, which is not configured",
                is_guess=True,
            )
        if len(secret) > issuer.config.token_bytes_max:
            raise NotAcceptedError(Reason.TOKEN, "the token is longer than token_bytes_max", is_guess=True)
        accepted = await issuer.log_in(token, self._now)
        if login not in ("", accepted.user):
            raise NotAcceptedError(
                Reason.NAME, f"the login is {login[:80]!r}, and the token is that of {accepted.user!r}: leave it out"
            )
        return accepted

    def start(self) -> None:
        for issuer in self.issuers:
            issuer.start()

    def close(self) -> None:
        for issuer in self.issuers:
            issuer.close()
