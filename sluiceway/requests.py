"""Requests to the broker over STOMP (`/sluiceway/NAME`): who may make which, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from sluiceway.answering import LISTS, ROWS_MAX, Answers, ReportPart, encoded
from sluiceway.flow.graph import Steps
from sluiceway.log_service import REQUEST_BYTES_MAX, BadRequestError, Handler, Send, answer, list_known, page_of
from sluiceway.protocols.stomp.authorization import Action, ForbiddenError, Guard, Identity
from sluiceway.protocols.stomp.hub import Behind
from sluiceway.queues.logs.table import LogTable
from sluiceway.security.requests import LIST, SESSIONS, SESSIONS_MAX, check_request, may_know
from sluiceway.sessions import SessionTable
from sluiceway.shards import Shards

PREFIX: Final = "/sluiceway/"
STAT: Final = "stat"
TRAIL: Final = "trail"
CLUSTER: Final = "cluster"
"""Needs nothing: the answer tells where hubs are, and not whether a destination exists."""
EVERYTHING: Final = ReportPart(ROWS_MAX)
SINK_BYTES_MAX: Final = 512 * 1024
"""Maximum body of a request about staged commits, which names thousands of stages."""


Reply = Callable[[bytes | ForbiddenError], None]
"""Gets an answer, or the refusal of another hub."""


class Elsewhere(Protocol):
    """The other hubs, for requests. `sluiceway.cluster.asking.FarRequests` fits."""

    def has(self, name: str) -> bool:
        """Return whether this log, queue or query is not at home here."""

    def answer(self, name: str, body: bytes, reply: Reply, identity: Identity, behind: Behind | None) -> bool:
        """Have other hubs answer a request, if it is about what they have. False: this hub is to."""


class Requests:
    """Answers the requests of all connections of one broker."""

    def __init__(
        self,
        shards: Shards,
        sessions: SessionTable,
        guard: Guard,
        answers: Answers,
        *,
        stat: Callable[[ReportPart], Steps[Mapping[str, Any]]],
        trail: Handler,
        contain: Callable[[Exception], None],
    ) -> None:
        """`stat` gives the state of the broker in steps; `trail` answers about trails; `contain` is given what a
        handler raised by mistake.
        """
        self._shards = shards
        self._sessions = sessions
        self._guard = guard
        self._answers = answers
        self._stat_in_steps = stat
        self._contain = contain
        self.trail = trail
        """Answers about trails."""
        self.directions: Handler | None = None
        """Answers where clients find what. Set before the first client comes."""
        self.elsewhere: Elsewhere | None = None
        """Other hubs; None: there is no cluster."""
        self.stat_of_all: Callable[[ReportPart, Callable[[bytes], None]], None] | None = None
        """Answers with the state of all hubs of a cluster; None: this broker is alone."""

        self.sessions_of_all: Callable[[list[str], Send], None] | None = None
        """Answers which sessions of all hubs may still act; None: this broker is alone."""

    @property
    def logs(self) -> LogTable | None:
        """Logs of this hub."""
        return self._shards.logs

    def answer(
        self, destination: str, body: bytes, reply: Reply, identity: Identity, *, behind: Behind | None = None
    ) -> None:
        """Do `Hub.answer`."""
        if self.elsewhere is None or not self.elsewhere.answer(
            destination.removeprefix(PREFIX), body, reply, identity, behind
        ):
            self.answer_here(destination, body, reply, identity)

    def answer_here(self, destination: str, body: bytes, reply: Reply, identity: Identity) -> None:
        """Answer about what this hub has. Raises KeyError for an unknown request, and ForbiddenError."""
        name = destination.removeprefix(PREFIX)
        handler: Handler
        if name == SESSIONS:
            handler = self._tell_sessions
        elif name == CLUSTER:
            handler = self._direct
        elif name == STAT:
            self._check_admin(identity)
            handler = partial(self._stat, reply)
        elif self._guard.allows_everything:
            handler = self._handler_of(name)
        else:
            handler = partial(self._handle, name, self._handler_of(name), identity)
        answer(handler, body, reply, self._answers, bytes_max=bytes_max_of(name), contain=self._contain)

    def check(self, destination: str, body: bytes, identity: Identity) -> None:
        """Do `Hub.check_request`."""
        name = destination.removeprefix(PREFIX)
        if name == STAT:
            self._check_admin(identity)
        elif name not in (SESSIONS, CLUSTER):
            self._handler_of(name)
            if not self._guard.allows_everything:
                checking = partial(self._check, name, identity)
                answer(checking, body, _ignore, self._answers, bytes_max=bytes_max_of(name), contain=self._contain)

    def _handler_of(self, name: str) -> Handler:
        """Raises KeyError for an unknown one."""
        return self.trail if name == TRAIL else self._shards.handlers[name]

    def _check_admin(self, identity: Identity) -> None:
        if not self._guard.may(identity, Action.ADMIN):
            raise ForbiddenError(Action.ADMIN)

    def _check(self, name: str, identity: Identity, request: Mapping[str, Any], _send: Send) -> None:
        check_request(self._guard, identity, name, request, self._exists)

    def _exists(self, name: str) -> bool:
        if self.elsewhere is not None and self.elsewhere.has(name):
            return True  # asked for by the hub that has it
        logs = self._shards.logs
        return name in self._shards.registry.destinations or (logs is not None and name in logs.logs)

    def _handle(self, name: str, handler: Handler, identity: Identity, request: Mapping[str, Any], send: Send) -> None:
        check_request(self._guard, identity, name, request, self._exists)
        if name == LIST and self._shards.logs is not None:
            list_known(self._shards.logs, partial(may_know, self._guard, identity), request, send)
        else:
            handler(request, send)

    def _stat(self, reply: Callable[[bytes], None], request: Mapping[str, Any], _send: Send) -> None:
        """Answer with the state of the broker, or with more rows of one of its lists. Equal requests share one
        answer. In a cluster it is that of all hubs; with `"hub": "own"` that of the one that was asked.
        """
        part = _part_of(request)
        if self.stat_of_all is not None and request.get("hub") != "own":
            self.stat_of_all(part, reply)
            return
        self._answers.make(
            lambda: encoded(self._stat_in_steps(part)), reply, key=(STAT, part), ration=part == EVERYTHING
        )

    def _direct(self, request: Mapping[str, Any], send: Send) -> None:
        assert self.directions is not None, "no client is there before"
        self.directions(request, send)

    def _tell_sessions(self, request: Mapping[str, Any], send: Send) -> None:
        """Answer which of the given sessions may still act: a client that lost a connection must know when its session
        is over.
        """
        asked = request.get("sessions")
        if not isinstance(asked, list) or len(asked) > SESSIONS_MAX or not all(isinstance(each, str) for each in asked):
            raise BadRequestError(f'the request needs "sessions", a list of {SESSIONS_MAX:,} names at most')
        if self.sessions_of_all is not None:
            self.sessions_of_all(asked, send)
        else:
            send({"sessions": [name for name in asked if self._sessions.may_act(name)]})


def _part_of(request: Mapping[str, Any]) -> ReportPart:
    of = request.get("list", "")
    if not isinstance(of, str) or of not in ("", *LISTS):
        raise BadRequestError(f'"list" must be one of {", ".join(LISTS)}')
    offset, limit = page_of(request)
    return ReportPart(limit, offset, of)


def bytes_max_of(name: str) -> int:
    """Return the maximum body of a request."""
    return SINK_BYTES_MAX if name.startswith("sink/") else REQUEST_BYTES_MAX


def _ignore(_answer: bytes) -> None:
    return
