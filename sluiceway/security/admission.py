"""Adapter between the broker and its guard: logins as tasks, permissions of requests, reloads with open connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from sluiceway.answering import ROWS_MAX, encoded
from sluiceway.claims import CLAIM_LOG_PREFIX
from sluiceway.config.model import Config
from sluiceway.log_service import REQUEST_BYTES_MAX, BadRequestError, Handler, Send, answer, list_known, page_of
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.authorization import ANYBODY, Action, ForbiddenError, Identity
from sluiceway.protocols.stomp.hub import LoginRefusedError
from sluiceway.report import LISTS, Part, stat_in_steps
from sluiceway.security.gate import SecurityGate
from sluiceway.security.requests import LIST, SESSIONS, SESSIONS_MAX, check_request, may_know
from sluiceway.security.rules import Rules, rules_of, slow_logins

if TYPE_CHECKING:
    from sluiceway.broker import Broker
    from sluiceway.protocols.tls import PeerCertificate

log = get_logger("sluiceway.security")

STAT: Final = "stat"

EVERYTHING: Final = Part(ROWS_MAX)

SINK_BYTES_MAX: Final = 512 * 1024
"""Maximum body of a request about staged commits, which names thousands of stages."""

OWN: Final = frozenset((STAT, SESSIONS))
"""Requests without a handler, answered here."""

Decided = Callable[[Identity | LoginRefusedError], None]
"""Callback with the identity, or the reason of the refusal."""


class Admission:
    """Guard of one broker."""

    def __init__(self, broker: Broker) -> None:
        """Take a broker that has its clock, manager and dispatcher. Raises SecurityError."""
        self._broker = broker
        self.gate = SecurityGate(
            broker.config.security,
            listeners={listener.label: listener.rates for listener in broker.config.listeners},
            manager=broker.manager,
            clock=broker.clock,
            timers=broker.dispatcher,
            origin_of=self._origin_of,
        )
        self._slow: list[str] = []
        self._warn_of_slow_logins()

    def _origin_of(self, name: str) -> str | None:
        """Return the queue whose messages this log holds."""
        if not name.startswith(CLAIM_LOG_PREFIX):
            return None
        claims = self._broker.claims
        group = None if claims is None else claims.groups.get(name)
        return name if group is None else group.state.queue

    # ------------------------------------------------------------------ logins

    def begin_login(
        self,
        login: str | None,
        passcode: str | None,
        *,
        spawn: Callable[[Callable[[], Any]], None],
        peer: str,
        listener: str,
        certificate: PeerCertificate | None,
        decided: Decided,
    ) -> Callable[[], None]:
        """Do `Hub.begin_login`; `spawn` starts a task that lives no longer than the broker."""
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

        spawn(run)
        return scope.cancel

    # ------------------------------------------------------------------ requests

    def answer(
        self,
        name: str,
        handler: Handler | None,
        body: bytes,
        reply: Callable[[bytes], None],
        identity: Identity,
    ) -> None:
        """Answer the request `/sluiceway/NAME` of this user; `handler` None: a request of OWN. Raises
        ForbiddenError.
        """
        gate = self.gate
        answers, contain = self._broker.answers, self._broker.contain
        bytes_max = _bytes_max(name)
        if name == SESSIONS:
            answer(self._sessions, body, reply, answers, contain=contain)
        elif handler is None:
            if not gate.may(identity, Action.ADMIN):
                raise ForbiddenError(Action.ADMIN)
            answer(partial(self._stat, reply), body, reply, answers, contain=contain)
        elif gate.allows_everything:
            answer(handler, body, reply, answers, bytes_max=bytes_max, contain=contain)
        else:
            answer(
                partial(self._handle, name, handler, identity),
                body,
                reply,
                answers,
                bytes_max=bytes_max,
                contain=contain,
            )

    def check(self, name: str, handler: Handler | None, body: bytes, identity: Identity) -> None:
        """Raise ForbiddenError if `answer` would."""
        gate = self.gate
        if name == SESSIONS or gate.allows_everything:
            return
        if handler is None:
            if not gate.may(identity, Action.ADMIN):
                raise ForbiddenError(Action.ADMIN)
            return
        checking = partial(self._check, name, identity)
        answer(checking, body, _ignore, self._broker.answers, bytes_max=_bytes_max(name), contain=self._broker.contain)

    def _check(self, name: str, identity: Identity, request: Mapping[str, Any], _send: Send) -> None:
        check_request(self.gate, identity, name, request, self._exists)

    def _stat(self, reply: Callable[[bytes], None], request: Mapping[str, Any], _send: Send) -> None:
        """Answer with the state of the broker, or with more rows of one of its lists. Equal requests share one
        answer.
        """
        part = _part_of(request)
        broker = self._broker
        broker.answers.make(
            lambda: encoded(stat_in_steps(broker, part, uptime_seconds=broker.uptime_seconds)),
            reply,
            key=(STAT, part),
            ration=part == EVERYTHING,
        )

    def _handle(self, name: str, handler: Handler, identity: Identity, request: Mapping[str, Any], send: Send) -> None:
        check_request(self.gate, identity, name, request, self._exists)
        if name == LIST and self._broker.logs is not None:
            list_known(self._broker.logs, partial(may_know, self.gate, identity), request, send)
        else:
            handler(request, send)

    def _sessions(self, request: Mapping[str, Any], send: Send) -> None:
        """Answer which of the given sessions may still act: a client that lost a connection must know when its session
        is over.
        """
        asked = request.get("sessions")
        if not isinstance(asked, list) or len(asked) > SESSIONS_MAX or not all(isinstance(each, str) for each in asked):
            raise BadRequestError(f'the request needs "sessions", a list of {SESSIONS_MAX:,} names at most')
        send({"sessions": [name for name in asked if self._broker.connections.sessions.may_act(name)]})

    def _exists(self, name: str) -> bool:
        logs = self._broker.logs
        return name in self._broker.registry.destinations or (logs is not None and name in logs.logs)

    # ------------------------------------------------------------------ reload

    def plan(self, config: Config) -> Rules:
        """Return the rules of a configuration, without applying them. Raises SecurityError. Reads the users file."""
        return rules_of(config)

    def carry_out(self, rules: Rules) -> bool:
        """Apply the rules, also to open connections; return False if nothing differs. The broker has its new
        configuration.
        """
        self._warn_of_slow_logins()
        if not self.gate.differs(rules):
            return False
        self.gate.follow(rules)
        for connection in list(self._broker.connections):
            session = connection.session
            session.entering.judge_again(self.gate.judge_again)
            session.identity_changed(self.gate.identity_of(session.user))
        return True

    def _warn_of_slow_logins(self) -> None:
        """Log warnings that are new."""
        slow = slow_logins(self._broker.config)
        for warning in slow:
            if warning not in self._slow:
                log.warning("look at [security]", found=warning)
        self._slow = slow


def _part_of(request: Mapping[str, Any]) -> Part:
    of = request.get("list", "")
    if not isinstance(of, str) or of not in ("", *LISTS):
        raise BadRequestError(f'"list" must be one of {", ".join(LISTS)}')
    offset, limit = page_of(request)
    return Part(limit, offset, of)


def _bytes_max(name: str) -> int:
    return SINK_BYTES_MAX if name.startswith("sink/") else REQUEST_BYTES_MAX


def _ignore(_answer: bytes) -> None:
    return


def _nothing() -> None:
    return
