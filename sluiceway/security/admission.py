"""Adapter between the broker and its guard: logins as tasks, reloads with open connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import trio

from sluiceway.config.model import Config
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import ANYBODY, Identity
from sluiceway.protocols.stomp.hub import LoginRefusedError
from sluiceway.security.gate import SecurityGate
from sluiceway.security.rules import Rules, rules_of, slow_logins

if TYPE_CHECKING:
    from sluiceway.protocols.streams import PeerCertificate

log = get_logger("sluiceway.security")

Decided = Callable[[Identity | LoginRefusedError], None]
"""Callback with the identity, or the reason of the refusal."""


class Admission:
    """Guard of one broker."""

    def __init__(
        self, gate: SecurityGate, config: Config, *, spawn: Callable[[Callable[[], Awaitable[object]]], None]
    ) -> None:
        """`spawn` starts a task that lives no longer than the broker."""
        self.gate = gate
        self._spawn = spawn
        self._slow: list[str] = []
        self._warn_of_slow_logins(config)

    def begin_login(
        self,
        login: str | None,
        passcode: str | None,
        *,
        peer: str,
        listener: str,
        certificate: PeerCertificate | None,
        decided: Decided,
    ) -> Callable[[], None]:
        """Do `Hub.begin_login`."""
        if self.gate.allows_everything:
            decided(ANYBODY)
            return _nothing
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                decision: Identity | LoginRefusedError
                try:
                    decision = await self.gate.log_in(
                        login, passcode, peer=peer, listener=listener, certificate=certificate
                    )
                except LoginRefusedError as refusal:
                    decision = refusal
                decided(decision)

        self._spawn(run)
        return scope.cancel

    # ------------------------------------------------------------------ reload

    def plan(self, config: Config) -> Rules:
        """Return the rules of a configuration, without applying them. Raises SecurityError. Reads the users file."""
        return rules_of(config)

    def carry_out(self, rules: Rules, config: Config, connections: Iterable[Connection]) -> bool:
        """Apply the rules of this configuration, also to open connections; return False if nothing differs."""
        self._warn_of_slow_logins(config)
        if not self.gate.differs(rules):
            return False
        self.gate.follow(rules)
        for connection in list(connections):
            session = connection.session
            session.entering.judge_again(self.gate.judge_again)
            if not session.origin:  # what the broker brings itself belongs to no user
                session.identity_changed(self.gate.renewed(session.identity))
        return True

    def _warn_of_slow_logins(self, config: Config) -> None:
        """Log warnings that are new."""
        slow = slow_logins(config)
        for warning in slow:
            if warning not in self._slow:
                log.warning("suspicious security configuration", found=warning)
        self._slow = slow


def _nothing() -> None:
    return
