"""Identity of requests, sessions of browsers, and their protection.

Three ways to an identity:

- *cookie*: POST /api/v1/login made a session. The cookie is HttpOnly and SameSite=Strict, and over TLS Secure. Whoever
  acts with it must send the session's CSRF token, which only a page of ours can have read.
- *HTTP Basic*: for scripts and Prometheus. What was verified is remembered for BASIC_SECONDS as an HMAC, so that a
  scrape a second does not hash a password a second. Likewise *Bearer*, with a token of [[security.oauth]].
- *nobody*: without users everybody is everybody. Actions need the token of this run all the same, so that a page
  elsewhere can't act through the browser of somebody who sits at this machine.

`Host` must be a name of ours, or a page elsewhere could point a name of its own at this port and read everything (DNS
rebinding). An address can't be such a name. `Origin`, where a browser sends it, must be this very page; by a name in
`hosts` that may be https where we speak http, for then a proxy ends TLS before us.

Bounds: `sessions_max` sessions, the one idle for longest goes; BASIC_MAX remembered credentials. Who logs in and fails
is slowed by the broker (`Broker.log_in`); how many may be waiting for that at once is LOGINS_MAX.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import math
import secrets
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import attrs
import trio

from sluiceway.admin.errors import ApiError
from sluiceway.protocols.stomp.authorization import ANYBODY, Action, Identity
from sluiceway.protocols.stomp.hub import LoginRefusedError

if TYPE_CHECKING:
    from sluiceway.config.admin import AdminConfig
    from sluiceway.security.gate import SecurityGate

COOKIE: Final = "sluiceway-session"
CSRF_HEADER: Final = "x-sluiceway-csrf"
BASIC_SECONDS: Final = 30.0
"""Time for which verified credentials are taken without another check: a removed user or a new passcode counts at once,
for then the configuration's generation is another.
"""
BASIC_MAX: Final = 256
SESSION_BYTES: Final = 1536
BASIC_ENTRY_BYTES: Final = 1024
COOKIE_LENGTH_MAX: Final = 256
_OF_HUB: Final = "~"
"""Between the hub that has a session and the rest of its cookie."""
LOGINS_MAX: Final = 16
"""Logins under way at a time: each may be made to wait some seconds."""
LISTENER: Final = "admin"
"""Name of this port as a listener, in permissions and logs."""


@attrs.define(slots=True)
class _Session:
    identity: Identity
    csrf: str
    generation: int
    used_seconds: float


@attrs.frozen(slots=True)
class Caller:
    """Identity behind a request."""

    identity: Identity
    way: str
    """"cookie", "basic" (also a bearer token), "nobody" (no users), or "stranger" (users, but not logged in)."""
    csrf: str = ""
    """Token that actions must send; empty: none."""
    session_key: bytes = b""
    cookie: str = ""
    """Cookie of a session that another hub has; empty: it has not."""

    @property
    def is_known(self) -> bool:
        """Whether the caller is no stranger."""
        return self.way != "stranger"


STRANGER: Final = Caller(Identity(None), "stranger")


class Access:
    """One per admin server."""

    def __init__(
        self,
        guard: SecurityGate,
        config: AdminConfig,
        *,
        keep: Callable[[int], None],
        clock: Callable[[], float],
        secret: bytes | None = None,
        hub: str = "",
    ) -> None:
        """Make an empty table. `keep` is called with the change of the kept bytes; `clock`: monotonic seconds.
        `secret`: of the hubs that share one port; None: one of this process; `hub`: id of this one.
        """
        self._guard = guard
        self._keep = keep
        self._clock = clock
        self.configure(config)
        self._key = secrets.token_bytes(32) if secret is None else secret
        self._hub = hub
        self.elsewhere: Callable[..., Awaitable[Caller | None]] | None = None
        """Finds (or with `ends=True` ends) the session of a cookie at another hub, from its id and the cookie."""
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        """Sessions by hash of the cookie, the one idle for longest first."""
        self._basic: OrderedDict[bytes, tuple[Identity, int, float]] = OrderedDict()
        """Verified credentials by HMAC: identity, the guard's generation, end of validity."""
        self._kept_bytes = 0
        """Bytes of sessions and credentials, as the broker's memory counts them."""
        self._logins = trio.CapacityLimiter(LOGINS_MAX)

    def configure(self, config: AdminConfig) -> None:
        """Take hosts and limits from there."""
        hosts = {host.lower().removesuffix(".") for host in config.hosts}
        self._named = frozenset(hosts)
        """Names that a proxy or DNS has for the broker."""
        self._hosts = frozenset({"localhost", socket.gethostname().lower(), *hosts})
        self._sessions_max = config.sessions_max
        self._session_idle_seconds = config.session_idle_seconds

    @property
    def users_configured(self) -> bool:
        """Whether one has to log in."""
        return not self._guard.allows_everything

    # ------------------------------------------------------------------ who it is

    async def caller(self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str) -> Caller:
        """Identify the caller of a request. Raises ApiError for credentials that are refused. `peer`: HOST:PORT of the
        client.
        """
        if not self.users_configured:
            return Caller(ANYBODY, "nobody", self._token("nobody"))
        authorization = headers.get("authorization")
        if authorization is not None:
            return Caller(await self._by_basic(authorization, peer), "basic")
        cookie = cookies.get(COOKIE)
        if cookie:
            caller = self.session_of(cookie) or await self._session_elsewhere(cookie)
            if caller is not None:
                return caller
        return STRANGER

    def session_of(self, cookie: str) -> Caller | None:
        """Return the caller of a session of this hub; None: there is none."""
        key = _hashed(cookie)
        session = self._live_session(key)
        return None if session is None else Caller(session.identity, "cookie", session.csrf, key)

    async def _session_elsewhere(self, cookie: str) -> Caller | None:
        hub, separator, _token = cookie.partition(_OF_HUB)
        if self.elsewhere is None or not separator or hub == self._hub or len(cookie) > COOKIE_LENGTH_MAX:
            return None
        found = await self.elsewhere(hub, cookie)
        return None if found is None else attrs.evolve(found, cookie=cookie)

    async def _by_basic(self, authorization: str, peer: str) -> Identity:
        scheme, _, encoded = authorization.partition(" ")
        refused = ApiError(
            401,
            "bad-credentials",
            "authentication failed for this login",
            "Check login and passcode.",
            headers=CHALLENGE,
        )
        if scheme.lower() == "bearer":
            login, passcode = "", encoded.strip()
        elif scheme.lower() == "basic":
            try:
                login, colon, passcode = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
            except ValueError:  # no base64 (which is ASCII), or no UTF-8
                raise refused from None
            if not colon:
                raise refused
        else:
            raise refused
        generation = self._guard.generation
        key = hmac.digest(self._key, authorization.encode("utf-8", "surrogatepass"), "sha256")
        known = self._basic.get(key)
        now_seconds = self._clock()
        if known is not None and known[1] == generation and now_seconds < known[2]:
            return known[0]
        self._basic.pop(key, None)
        identity = await self._log_in(login, passcode, peer)
        self._basic[key] = identity, generation, min(self._clock() + BASIC_SECONDS, _end_of(identity))
        while len(self._basic) > BASIC_MAX:
            self._basic.popitem(last=False)
        self._count()
        return identity

    def _count(self) -> None:
        """Report the present number of kept bytes to the broker's memory."""
        size_bytes = SESSION_BYTES * len(self._sessions) + BASIC_ENTRY_BYTES * len(self._basic)
        self._keep(size_bytes - self._kept_bytes)
        self._kept_bytes = size_bytes

    async def _log_in(self, login: str, passcode: str, peer: str) -> Identity:
        try:
            self._logins.acquire_on_behalf_of_nowait(token := object())
        except trio.WouldBlock:
            raise ApiError(
                503, "too-many-logins", "too many logins are under way", "Try again.", headers={"Retry-After": "5"}
            ) from None
        try:
            identity = await self._guard.log_in(login, passcode, peer=peer, listener=LISTENER)
        except LoginRefusedError as error:
            raise ApiError(401, "bad-credentials", str(error), "Check login and passcode.", headers=CHALLENGE) from None
        finally:
            self._logins.release_on_behalf_of(token)
        return identity

    # ------------------------------------------------------------------ sessions

    async def log_in(self, login: str, passcode: str, peer: str) -> tuple[str, Caller]:
        """Begin a session; returns its cookie and the identity. Raises ApiError."""
        identity = await self._log_in(login, passcode, peer)
        self._forget_idle()
        cookie = f"{self._hub}{_OF_HUB}{secrets.token_urlsafe(32)}" if self._hub else secrets.token_urlsafe(32)
        key = _hashed(cookie)
        session = _Session(identity, self._token(cookie), self._guard.generation, self._clock())
        self._sessions[key] = session
        while len(self._sessions) > self._sessions_max:
            self._sessions.popitem(last=False)
        self._count()
        return cookie, Caller(identity, "cookie", session.csrf, key)

    async def log_out_anywhere(self, caller: Caller) -> None:
        """End its session, if it has one, also at another hub."""
        self.log_out(caller)
        if caller.cookie and self.elsewhere is not None:
            await self.elsewhere(caller.cookie.partition(_OF_HUB)[0], caller.cookie, ends=True)

    def log_out(self, caller: Caller) -> None:
        """End its session at this hub, if it has one."""
        self._sessions.pop(caller.session_key, None)
        self._count()

    def _live_session(self, key: bytes) -> _Session | None:
        session = self._sessions.get(key)
        if session is None:
            return None
        now_seconds = self._clock()
        if (
            now_seconds - session.used_seconds > self._session_idle_seconds
            or session.generation != self._guard.generation  # the user may be another now, or gone
            or now_seconds >= _end_of(session.identity)
        ):
            del self._sessions[key]
            self._count()
            return None
        session.used_seconds = now_seconds
        self._sessions.move_to_end(key)
        return session

    def _forget_idle(self) -> None:
        limit_seconds = self._clock() - self._session_idle_seconds
        while self._sessions and next(iter(self._sessions.values())).used_seconds < limit_seconds:
            self._sessions.popitem(last=False)

    def _token(self, of: str) -> str:
        return hmac.new(self._key, f"csrf {of}".encode(), hashlib.sha256).hexdigest()

    # ------------------------------------------------------------------ whether the request may be what it says

    def check_host(self, host: str | None) -> None:
        """Check that the client's name for the host is one of the broker's. Raises ApiError."""
        name = _host_of(host or "")
        if name is None or not (_is_address(name) or name in self._hosts):
            raise ApiError(
                421,
                "wrong-host",
                f"this is not {(host or 'a host without a name')[:100]}",
                "Use the address, or add the name to [admin] hosts.",
            )

    def check_origin(self, headers: Mapping[str, str], scheme: str) -> None:
        """An action comes from this very page, or from no page at all. Raises ApiError."""
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        host = headers.get("host", "").lower()
        is_ours = origin is None or origin.lower() == f"{scheme}://{host}" or self.is_proxied(headers)
        if not is_ours or site not in ("none", "same-origin"):
            raise ApiError(
                403,
                "wrong-origin",
                "this request comes from another page",
                "Use the console, or a script of your own. A proxy must pass on Host as it got it, a name that is in "
                "[admin] hosts.",
            )

    def is_proxied(self, headers: Mapping[str, str]) -> bool:
        """Whether the page came over TLS, by a configured name: from this port or from a proxy."""
        host = headers.get("host", "").lower()
        return _host_of(host) in self._named and headers.get("origin", "").lower() == f"https://{host}"

    @staticmethod
    def check_csrf(caller: Caller, headers: Mapping[str, str]) -> None:
        """Raises ApiError."""
        given = headers.get(CSRF_HEADER, "")
        if caller.csrf and not hmac.compare_digest(caller.csrf.encode(), given.encode("utf-8", "surrogatepass")):
            raise ApiError(
                403,
                "wrong-csrf-token",
                "this action does not come with the token of its session",
                "Send the `csrf` of /api/v1/session as X-Sluiceway-CSRF. Behind a log-in that has run out: log in.",
            )

    def may(self, caller: Caller, action: Action, destination: str | None = None) -> bool:
        """Whether the caller has the permission."""
        return caller.is_known and self._guard.may(caller.identity, action, destination)

    def stamp(self, caller: Caller) -> str | None:
        """Return the value of the header `user` of what a caller publishes; None: messages get no such header."""
        return caller.identity.user if self._guard.stamps_user else None

    def require(self, caller: Caller, action: Action, destination: str | None = None) -> None:
        """Raises ApiError if it may not."""
        if not caller.is_known:
            raise ApiError(401, "log-in", "who are you?", "Log in, or use HTTP Basic.", headers=CHALLENGE)
        if not self.may(caller, action, destination):
            where = "the broker" if destination is None else destination[:200]
            raise ApiError(
                403,
                "not-permitted",
                f"you may not {action.value} {where}",
                "Ask the operator for the permission ([security]), or log in as another user.",
            )


CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="sluiceway", charset="UTF-8"'}


def _end_of(identity: Identity) -> float:
    """Return the end of a login on the broker's clock."""
    return math.inf if identity.until_seconds is None else identity.until_seconds


def _hashed(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()


def _host_of(host: str) -> str | None:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1 : host.find("]")].lower() if "]" in host else None
    name, colon, port = host.partition(":")
    if colon and not port.isdigit():
        return None
    return name.lower().removesuffix(".") or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
