"""The guard of the broker: authentication, permissions, rates.

Without users every client is accepted and may do everything, at no cost here.

A login first waits if there were failures (attempts.py). Then a certificate identifies its user, or the passcode is
checked: against a keyed digest of recent successes, else with scrypt in a thread, a few at a time; attempts with the
same login and passcode share one check. An attempt that was not slowed but would be by the time a thread is free begins
again: a thousand guesses at once gain nothing over a thousand in turn. Logins that do not exist are checked against a
stand-in that takes as long. A refusal has the same text whatever the reason. Refusals are logged when a burst begins.
Logins that are no users of the configuration go to an issuer of tokens or a directory, if there are some (sources.py).

Rules are made (rules.py) before they are applied, so that an error in them changes nothing. When they are replaced,
admission.py has each open connection check its rights again.

Bound: CACHE_MAX digests (checks.py); one thread and its memory for each of `login_parallel_max` checks, on the flow map
while they run; failures as in attempts.py. Waiting connections are bounded by their listener and its
`connect_timeout_seconds`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from sluiceway.flow.kinds import ResourceKind
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import ANYBODY, Action, Identity, RateGate
from sluiceway.protocols.stomp.hub import LoginRefusedError
from sluiceway.protocols.warning_limiter import WarningLimiter
from sluiceway.security.attempts import Attempts, host_of
from sluiceway.security.checks import RecentChecks
from sluiceway.security.config import ANY, Rates, SecurityConfig, UserRates
from sluiceway.security.outside import LoginSource, NotAcceptedError, Reason
from sluiceway.security.permissions import Decision, Permissions
from sluiceway.security.rates import RateTable, RateTimers
from sluiceway.security.rules import Rules, make_rules
from sluiceway.security.secrets import Secret
from sluiceway.security.sources import LoginSources, wall_clock

if TYPE_CHECKING:
    from sluiceway.protocols.streams import PeerCertificate
    from sluiceway.security.issuers import Spawn

_SHOWN: Final = 80

log = get_logger("sluiceway.security")


@attrs.frozen(slots=True)
class GateStatistics:
    """Counts since the start."""

    users_count: int
    accepted_count: int
    """Accepted logins."""
    refused_count: int
    """Refused logins."""
    refused_counts: Mapping[str, int]
    """Refused logins by reason."""
    unseen_count: int
    """Refused logins that were not checked, as too many were waiting."""
    delayed_count: int
    """Logins delayed by earlier failures."""
    hashed_count: int
    """Hashed passcodes."""
    cached_count: int
    """Passcodes found in the cache."""
    forbidden_counts: Mapping[str, int]
    """Refused actions of users, by action."""


class _Hashing(FlowResource):
    """Memory of running checks; exists only while there are some."""

    def __init__(self, manager: FlowManager, clock: Callable[[], float], memory_bytes: int) -> None:
        super().__init__("logins", ResourceKind.SECURITY, manager)
        self.controller = Account(
            self,
            Flow("checks of passcodes"),
            SizeLimiter(max(1, memory_bytes), clock=clock),
            clock=clock,
        )
        self.open()


class SecurityGate:
    """Satisfies `sluiceway.protocols.stomp.authorization.Guard`."""

    def __init__(
        self,
        config: SecurityConfig,
        *,
        listeners: Mapping[str, Rates],
        manager: FlowManager,
        clock: Callable[[], float],
        timers: RateTimers,
        origin_of: Callable[[str], str | None] | None = None,
        spawn: Spawn | None = None,
        now: Callable[[], float] = wall_clock,
    ) -> None:
        """Take `listeners`, the rates of each by name; `origin_of` as in Permissions; `spawn` starts a task of the
        broker, `now` returns seconds since the epoch: both for sources of logins. Raises SecurityError.
        """
        self._manager = manager
        self._clock = clock
        self._origin_of = origin_of
        self._rates = RateTable(manager=manager, clock=clock, timers=timers)
        self._key = os.urandom(32)
        self._checks: RecentChecks[bool] = RecentChecks(clock)
        self.sources = LoginSources(clock, now, timers, _no_tasks if spawn is None else spawn)
        self._hashing: _Hashing | None = None
        self._rules: Rules | None = None
        self._other_secrets: set[str] = set()
        """Users whose passcode differs from the previous rules."""
        self._slots = trio.CapacityLimiter(config.login_parallel_max)
        self._threads = trio.CapacityLimiter(math.inf)
        self._attempts = Attempts(**_slowing(config))
        self._bursts = WarningLimiter(clock)
        self.generation = 0
        self._accepted_count = self._unseen_count = 0
        self._delayed_count = self._hashed_count = 0
        self._refused_counts = dict.fromkeys((reason.value for reason in Reason), 0)
        self._forbidden_counts = dict.fromkeys((action.value for action in Action), 0)
        self.follow(make_rules(config, listeners))

    def differs(self, rules: Rules) -> bool:
        """Return whether the rules differ from those in force."""
        return rules != self._rules

    def follow(self, rules: Rules) -> None:
        """Apply the rules; the caller updates open connections."""
        config, users = rules.config, rules.users
        before = {} if self._rules is None else self._rules.users.secrets
        self._other_secrets = {name for name, kept in before.items() if users.secrets.get(name) != kept}
        self._rules = rules
        self.config = config
        self._users = users
        self.sources.follow(users.outside)
        self._listeners = rules.listeners
        self._permissions = Permissions(
            config.permissions, default_allows=config.default == "allow", origin_of=self._origin_of
        )
        self.allows_everything = not users.are_configured
        self.stamps_user = config.stamp_user and users.are_configured
        self._slots.total_tokens = config.login_parallel_max
        self._attempts.configure(**_slowing(config))
        self.generation += 1
        for warning in rules.warnings:
            log.warning("suspicious security configuration", found=warning)

    def replace(self, config: SecurityConfig, *, listeners: Mapping[str, Rates]) -> None:
        """Do `make_rules` and `follow`. Raises SecurityError with nothing changed."""
        self.follow(make_rules(config, listeners))

    # ------------------------------------------------------------------ port of the guard

    def may(self, identity: Identity, action: Action, destination: str | None = None) -> bool:
        return self.allows_everything or self._permissions.may(identity, action, destination)

    def decide(self, identity: Identity, action: Action, destination: str | None = None) -> Decision:
        """Return the result of `may` with the entry that decided."""
        if self.allows_everything:
            return Decision(True, None, "no users are configured: every client has full access")
        return self._permissions.decide(identity, action, destination)

    def refused(self, action: Action) -> None:
        self._forbidden_counts[action.value] += 1

    def rates_of(self, identity: Identity, listener: str) -> list[RateGate]:
        gates: list[RateGate] = []
        rates = self._listeners.get(listener)
        if rates is not None and not rates.is_unlimited:
            gates.append(self._rates.enter("listener", listener, rates))
        user = identity.user
        mine = next((entry for entry in self.config.rates if _is_for(entry, identity)), None)
        if user is not None and mine is not None:
            gates.append(self._rates.enter("user", user, mine))
        return gates

    def renewed(self, identity: Identity) -> Identity | None:
        """Return the identity of a connection under the present rules; None if its user no longer exists, or if the
        source that vouches for the user is another one now.
        """
        user = identity.user
        if self.allows_everything:
            return ANYBODY if user is None else Identity(user)
        if identity.source:
            is_other = identity.source in self.sources.changed or user in self._users.identities
            return None if is_other else identity
        return None if user is None else self._users.identities.get(user)

    # ------------------------------------------------------------------ logins

    async def log_in(
        self,
        login: str | None,
        secret: str | None,
        *,
        peer: str,
        listener: str = "",
        certificate: PeerCertificate | None = None,
    ) -> Identity:
        """Return the identity of a login. `peer`: HOST:PORT of the client; `listener`: name of its listener, empty:
        none in particular. Raises LoginRefusedError. May wait: hashing takes a moment, and failures are slowed.
        """
        if self.allows_everything:
            return ANYBODY
        user = self._user_of(certificate)
        if user is None and not login and not secret:
            # Such an attempt guesses nothing, so it delays no other one.
            self._count(Reason.NO_LOGIN)
            quiet = self._bursts.say("no login") is None
            raise LoginRefusedError("authentication required: no login and passcode given", quiet=quiet)
        if user is None or secret or login not in (None, "", user):
            user = login or ""
            outside = await self._check(user, secret or "", peer)
            if outside is not None:
                return self._let_in(outside, listener, peer)
        return self._let_in(self._users.identities.get(user), listener, peer, user)

    def _let_in(self, identity: Identity | None, listener: str, peer: str, user: str = "") -> Identity:
        identity = self._permitted(identity, listener, peer, user)
        self._accepted_count += 1
        return identity

    def _count(self, reason: Reason) -> None:
        self._refused_counts[reason.value] += 1

    def _permitted(self, identity: Identity | None, listener: str, peer: str, user: str) -> Identity:
        """Return the identity, if it may connect through the listener. Raises LoginRefusedError."""
        user = user if identity is None else identity.user or ""
        if identity is None or not self.may(identity, Action.CONNECT, listener or None):
            self._count(Reason.NOT_PERMITTED)
            self.refused(Action.CONNECT)
            log.warning("login refused: no permission to connect", user=user[:_SHOWN], listener=listener, peer=peer)
            raise _refusal(user, quiet=True)
        return identity

    def judge_again(self, identity: Identity, listener: str, peer: str) -> Identity | LoginRefusedError:
        """Return the identity under the new rules of a user just accepted under the old ones, or the refusal. A changed
        passcode refuses the user.
        """
        if self.allows_everything:
            return identity
        user = identity.user or ""
        if user in self._other_secrets and not identity.source:
            self._count(Reason.PASSCODE)
            log.warning("login refused: the passcode was changed meanwhile", user=user[:_SHOWN], peer=peer)
            return _refusal(user, quiet=True)
        try:
            return self._permitted(self.renewed(identity), listener, peer, user)
        except LoginRefusedError as refusal:
            return refusal

    def _user_of(self, certificate: PeerCertificate | None) -> str | None:
        if certificate is None:
            return None
        by_name = self._users.certificates
        return next((by_name[name.lower()] for name in certificate.names if name.lower() in by_name), None)

    async def _check(self, login: str, passcode: str, peer: str) -> Identity | None:
        """Return if the passcode is that of the user; None for a user of the configuration, else the identity. Raises
        LoginRefusedError.
        """
        host = host_of(peer)
        right: Identity | bool | None = None
        while right is None:
            source = None if login in self._users.secrets else self.sources.of(login, passcode)
            account = login if source is None else source.account(login, host)
            admission = self._attempts.admit(account, host, self._clock())
            if admission.refused:
                self._count(Reason.SLOWED)
                self._unseen_count += 1
                raise LoginRefusedError("too many failed logins: try again in a while", quiet=True)
            if admission.wait_seconds:
                self._delayed_count += 1
                await trio.sleep(admission.wait_seconds)
            late = _never_late if admission.slowed else self._late(account, host)
            kept = self._users.secrets.get(login)
            if source is None:
                right = await self._is_right(login, kept, passcode, late)
            else:
                right = await self._ask(source, login, passcode, late, peer)
        if isinstance(right, Identity):
            self._attempts.succeeded(account, host, self._clock())
            return right
        if source is None:
            if kept is not None and right and self._users.secrets.get(login) == kept:
                self._attempts.succeeded(login, host, self._clock())
                return None
            self._count(Reason.PASSCODE)
        begins = self._attempts.failed(account, host, self._clock())
        if begins:
            log.warning(
                "logins fail: further ones are slowed",
                login=login[:_SHOWN],
                host=host,
                failures=self.config.login_free_count,
                delay_seconds_max=self.config.login_delay_seconds_max,
            )
        raise _refusal(login, quiet=begins or bool(admission.wait_seconds) or source is not None)

    async def _ask(
        self, source: LoginSource, login: str, passcode: str, late: Callable[[], bool], peer: str
    ) -> Identity | bool | None:
        """Return the identity that the source vouches for; False: it refuses, and it may be a guess; None: the attempt
        has to begin again. Raises LoginRefusedError for other refusals.
        """
        generation = self.generation
        try:
            accepted = await source.log_in(login, passcode, late)
            if accepted is None or generation != self.generation:
                return None  # late, or the rules were changed meanwhile
            if accepted.user in self._users.identities:
                raise NotAcceptedError(
                    Reason.NAME,
                    f"{accepted.user!r} is a user of the configuration: give the source a user_prefix, or rename one",
                )
        except NotAcceptedError as refusal:
            self._count(refusal.reason)
            before_count = self._bursts.say(f"{source.name} {refusal.reason.value}")
            if before_count is not None:
                log.warning(
                    "login refused",
                    source=source.name,
                    reason=refusal.reason.value,
                    why=str(refusal),
                    login=login[:_SHOWN],
                    peer=peer,
                    unlogged=before_count,
                )
            if refusal.is_guess:
                return False
            if refusal.reason is Reason.UNAVAILABLE:
                raise LoginRefusedError("logins can't be checked now: try again in a while", quiet=True) from None
            raise _refusal(login, quiet=True) from None
        return Identity(accepted.user, accepted.groups, source=accepted.source, until_seconds=accepted.until_seconds)

    def _late(self, account: str, host: str) -> Callable[[], bool]:
        return lambda: self._attempts.is_slowed(account, host, self._clock())

    async def _is_right(self, login: str, kept: Secret | None, passcode: str, late: Callable[[], bool]) -> bool | None:
        """Return whether the passcode is right; None if a thread was free only when the attempt was `late`."""
        stand_in = self._users.stand_in
        secret = stand_in if kept is None else kept
        if secret.is_quick and stand_in.is_quick:
            return secret.matches(passcode.encode("utf-8", "surrogatepass"))
        said = "\0".join((login, str(secret), passcode)).encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._key, said, hashlib.sha256)
        return await self._checks.result(
            digest,
            lambda: self._hash(secret, stand_in, passcode, late),
            lambda right: self.config.login_cache_seconds if right else 0.0,
        )

    async def _hash(self, secret: Secret, stand_in: Secret, passcode: str, late: Callable[[], bool]) -> bool | None:
        # A passcode kept in plain text takes as long as others: the time must not reveal which those are.
        work = stand_in if secret.is_quick else secret
        async with self._slots:
            if late():
                return None
            with self._memory(work.memory_bytes):
                data = passcode.encode("utf-8", "surrogatepass")
                right = await self._in_thread(work, data)
        self._hashed_count += 1
        return secret.matches(data) if secret.is_quick else right

    async def _in_thread(self, work: Secret, data: bytes) -> bool:
        try:
            return await trio.to_thread.run_sync(work.matches, data, limiter=self._threads)
        except (MemoryError, ValueError, RuntimeError) as error:  # memory or threads are exhausted
            log.error("a passcode can't be checked", error=str(error), remedy="the machine lacks memory or threads")
            raise LoginRefusedError("logins can't be checked now: try again in a while", quiet=True) from error

    @contextlib.contextmanager
    def _memory(self, size_bytes: int) -> Iterator[None]:
        """Charge the memory of a check while it runs."""
        if self._hashing is None:
            self._hashing = _Hashing(self._manager, self._clock, self.config.login_parallel_max * size_bytes)
        hashing = self._hashing
        hashing.controller.charge(1, size_bytes, None)
        try:
            yield
        finally:
            hashing.controller.release(1, size_bytes)
            if not hashing.controller.limiter.used_count:
                hashing.close()
                self._hashing = None

    def statistics(self) -> GateStatistics:
        """Return the counts."""
        return GateStatistics(
            users_count=len(self._users.identities),
            accepted_count=self._accepted_count,
            refused_count=sum(self._refused_counts.values()),
            refused_counts=dict(self._refused_counts),
            unseen_count=self._unseen_count,
            delayed_count=self._delayed_count,
            hashed_count=self._hashed_count,
            cached_count=self._checks.found_count,
            forbidden_counts=dict(self._forbidden_counts),
        )


def _is_for(entry: UserRates, identity: Identity) -> bool:
    return ANY in entry.users or identity.user in entry.users or not identity.groups.isdisjoint(entry.groups)


def _slowing(config: SecurityConfig) -> dict[str, Any]:
    return {
        "free_count": config.login_free_count,
        "delay_seconds": config.login_delay_seconds,
        "delay_seconds_max": config.login_delay_seconds_max,
        "forget_seconds": config.login_forget_seconds,
    }


def _refusal(login: str, *, quiet: bool) -> LoginRefusedError:
    return LoginRefusedError(f"authentication failed for user {login[:_SHOWN]!r}", quiet=quiet)


def _never_late() -> bool:
    return False


def _no_tasks(_function: Callable[[], Awaitable[object]]) -> None:
    raise RuntimeError("a guard without tasks has no sources of logins that need some")
