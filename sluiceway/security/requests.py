"""Permissions of requests to the broker (`/sluiceway/…`).

A request about a log needs what reading the log needs, a request about claims what receiving from the queue needs.
Removing records for all readers needs `admin` of the log, and the state of the broker needs `admin` as such. So does
any request not listed here, so that a new one is not open by mistake.

Malformed requests are left to their handler, which refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sluiceway.protocols.stomp.authorization import Action, ForbiddenError, Guard, Identity
from sluiceway.queues.logs.staged_commits import STAGE_PREFIX
from sluiceway.queues.logs.table import PREFIX
from sluiceway.queues.names import DestinationNameError, parse

Need = tuple[tuple[Action, ...], str]
"""Actions, one of which is needed, and their destination."""

LIST: Final = "log/list"
"""Needs nothing: the answer contains only logs that the user may know of."""

SESSIONS: Final = "sessions"
"""Needs nothing: names of sessions can't be guessed, so a client that knows one has owned it, or is an
administrator.
"""

SESSIONS_MAX: Final = 1_000
"""Maximum sessions in one request."""

SIZE: Final = "log/size"
"""Senders may ask for the size of the log: they know it from receipts anyway, unless one was lost."""

_ABOUT_READING: Final = frozenset({"log/describe", "log/closest", "log/groups"})
_ABOUT_GROUPS: Final = frozenset({"log/seek", "log/commit", "log/cursor", "log/delete-group", "log/fetch"})
_ABOUT_ALL: Final = frozenset({"log/truncate", "log/delete"})
_READING: Final = (Action.RECEIVE, Action.BROWSE)


def check_request(
    guard: Guard, identity: Identity, name: str, request: Mapping[str, Any], exists: Callable[[str], bool]
) -> None:
    """Check a request. `name`: the part behind `/sluiceway/`; `exists`: whether there is such a log or queue. Raises
    ForbiddenError.
    """
    if name in (LIST, SESSIONS):
        return
    if not _is_known(name):
        if not guard.may(identity, Action.ADMIN):
            raise ForbiddenError(Action.ADMIN)
        return
    for actions, destination in _needs(name, request, exists):
        if not any(guard.may(identity, action, destination) for action in actions):
            raise ForbiddenError(actions[0], destination)


def may_know(guard: Guard, identity: Identity, destination: str) -> bool:
    """Return whether the user may know of this log."""
    return any(guard.may(identity, action, destination) for action in (*_READING, Action.ADMIN))


def _is_known(name: str) -> bool:
    return name == SIZE or name in _ABOUT_READING | _ABOUT_GROUPS | _ABOUT_ALL or name.startswith(("claim/", "sink/"))


def _needs(name: str, request: Mapping[str, Any], exists: Callable[[str], bool]) -> Iterator[Need]:
    """Yield the permissions in the order of the checks: only users with access learn whether a destination exists."""
    if name.startswith("log/"):
        log = log_named(request.get("log"))
        if log is None:
            return
        if name == SIZE and request.get("group") is None:
            yield (*_READING, Action.SEND), log
        elif name == SIZE or name in _ABOUT_READING:
            yield _READING, log
        elif name in _ABOUT_GROUPS:
            yield (Action.RECEIVE,), log
            if name == "log/cursor" and not exists(log):
                yield (Action.CREATE,), log
        else:
            yield (Action.ADMIN,), log
    elif name.startswith("claim/"):
        queue = queue_named(request.get("queue"))
        if queue is not None:
            yield (Action.RECEIVE,), queue
            if not exists(queue):
                yield (Action.CREATE,), queue
    elif name == "sink/commit":
        parts = request.get("parts")
        if parts == []:
            yield (Action.SEND,), STAGE_PREFIX + ">"  # publishes nothing, but uses the batch of the query up
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping):
                yield from _sends_to(part.get("stage"), exists)
                yield from _sends_to(part.get("to"), exists)
    elif name == "sink/drop":
        stages = request.get("stages")
        for stage in stages if isinstance(stages, list) else ():
            yield from _sends_to(stage, exists)
    else:
        yield (Action.SEND,), STAGE_PREFIX + ">"


def _sends_to(given: object, exists: Callable[[str], bool]) -> Iterator[Need]:
    log = log_named(given)
    if log is not None:
        yield (Action.SEND,), log
        if not exists(log):
            yield (Action.CREATE,), log


def log_named(given: object) -> str | None:
    """Return the log that a request names; None: it names none."""
    if not isinstance(given, str) or not given:
        return None
    return given if given.startswith(PREFIX) else PREFIX + given


def queue_named(given: object) -> str | None:
    """Return the queue that a request names, in full; None: it names none."""
    if not isinstance(given, str) or not given:
        return None
    try:
        return parse(given).canonical
    except DestinationNameError:
        return None
