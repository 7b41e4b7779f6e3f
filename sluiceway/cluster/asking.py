"""Requests of clients (`/sluiceway/…`) about what is at home at another hub.

The name in a request (a log, a queue, a query) says whom it is for. What is for another hub is asked there by a call
with the identity of the client; permissions are checked at that hub, which knows what exists. The answer goes into the
client's `reply-to` by its own hub, as with a request that is answered here. The list of logs is put together from all
hubs, and staged logs are dropped where each one is.

Requests about no destination (`stat`, `trail`, `sessions`) are answered by all hubs (`stat_of_all`, `trails_of_all`,
`sessions_of_all`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from sluiceway.answering import Answers, refused
from sluiceway.cluster.calls import AWAY, Answered, Calls, Head
from sluiceway.flow.graph import Steps
from sluiceway.flow.latch import Latch
from sluiceway.log_service import BadRequestError, listed_logs, page_of
from sluiceway.protocols.stomp.authorization import Action, ForbiddenError, Guard, Identity
from sluiceway.protocols.stomp.hub import Behind
from sluiceway.protocols.stomp.placement import HERE, Home
from sluiceway.requests import PREFIX, Reply, Requests, bytes_max_of
from sluiceway.security.requests import LIST, log_named, may_know, queue_named
from sluiceway.steps import read_json

REQUEST: Final = "request"
LISTED: Final = "list of logs"
DROP: Final = "sink/drop"
COMMIT: Final = "sink/commit"
SPANS: Final = "INVALID_COMMIT"


class FarRequests:
    """Passes requests on to the hubs that have what they are about. Satisfies `sluiceway.requests.Elsewhere`."""

    def __init__(self, calls: Calls, requests: Requests, guard: Guard, answers: Answers) -> None:
        """`requests`: those of this hub, which answer what others ask."""
        self._calls = calls
        self._requests = requests
        self._guard = guard
        self._answers = answers
        calls.serve(REQUEST, self._serve)
        calls.serve(LISTED, self._serve_list)

    def has(self, name: str) -> bool:
        """Do `Elsewhere.has`."""
        home = self._calls.home_of(name)
        return bool(home.hub or home.why_not)

    def answer(self, name: str, body: bytes, reply: Reply, identity: Identity, behind: Behind | None) -> bool:
        """Do `Elsewhere.answer`."""
        if name not in (LIST, DROP) and not name.startswith(("log/", "claim/", "sink/")):
            return False
        if len(body) > bytes_max_of(name):
            return False  # refused here, as all that makes no sense
        try:
            request = read_json(body)
        except ValueError:
            return False
        if not isinstance(request, dict):
            return False
        if name == LIST:
            return self._list(request, reply, identity, behind)
        if name == DROP:
            return self._drop(request, reply, identity, behind)
        subject = subject_of(name, request)
        if subject is None:
            return False
        if name == COMMIT and (spans := self._spanning(subject, request)) is not None:
            reply(refused(SPANS, spans))
            return True
        if not self.has(subject):
            return False
        self._ask(name, subject, body, partial(_replied, reply), identity, behind)
        return True

    def _ask(
        self, name: str, subject: str, body: bytes, answered: Answered, identity: Identity, behind: Behind | None
    ) -> None:
        head = {"name": name, "about": subject, **_told(identity)}
        self._calls.ask(lambda: self._calls.home_of(subject), REQUEST, head, body, answered, behind=behind)

    def _serve(self, _peer_hub: str, head: Head, body: bytes, answered: Answered) -> None:
        if self.has(str(head["about"])):
            answered(AWAY, b"")
            return

        def reply(answer: bytes | ForbiddenError) -> None:
            assert isinstance(answer, bytes), "it is answered here"
            answered({}, answer)

        try:
            self._requests.answer_here(PREFIX + str(head["name"]), body, reply, identity_of(head))
        except ForbiddenError as error:
            answered({"forbidden": [error.action.value, error.destination]}, b"")
        except KeyError:
            answered({"error": "unknown-request", "message": f"there is no request {head['name']}"}, b"")

    # ------------------------------------------------------------------ staged records

    def _spanning(self, query: str, request: Mapping[str, Any]) -> str | None:
        """Return why a commit can't be made by one hub; None: it can."""
        home = self._calls.home_of(query)
        for part in request["parts"] if isinstance(request.get("parts"), list) else ():
            for key in ("stage", "to"):
                name = log_named(part.get(key)) if isinstance(part, Mapping) else None
                if name is not None and self._calls.home_of(name).hub != home.hub:
                    return (
                        f"{name} is at another hub than the query {query!r}, and one batch is committed by one hub: "
                        "give query, stages and logs the same part in braces, such as /log/{orders}.new"
                    )
        return None

    def _drop(self, request: Mapping[str, Any], reply: Reply, identity: Identity, behind: Behind | None) -> bool:
        stages = request.get("stages")
        if not isinstance(stages, list) or not stages or not all(isinstance(each, str) for each in stages):
            return False
        by_hub: dict[str, list[str]] = {}
        for stage in stages:
            home = self._calls.home_of(log_named(stage) or "")
            by_hub.setdefault(f"{home.hub} {home.why_not}", []).append(stage)
        if by_hub.keys() == {" "}:
            return False
        gathering = _Gathering(len(by_hub), partial(_first_refusal, reply))
        for some in by_hub.values():
            body = json.dumps({**request, "stages": some}).encode()
            self._ask(DROP, log_named(some[0]) or "", body, gathering.came, identity, behind)
        return True

    # ------------------------------------------------------------------ the list of logs

    def _list(self, request: Mapping[str, Any], reply: Reply, identity: Identity, behind: Behind | None) -> bool:
        try:
            offset, limit = page_of(request)
        except BadRequestError:
            return False
        others = self._calls.others()
        if not others:
            return False

        def came(answers: list[tuple[Head, bytes]]) -> None:
            failed = next((head for head, _body in answers if "error" in head), None)
            if failed is not None:
                reply(refused(failed["error"], failed["message"]))
            else:
                self._answers.make(lambda: _merged(answers, offset, limit), reply)

        gathering = _Gathering(1 + len(others), came)
        head = {**_told(identity), "rows": offset + limit}
        for home in (HERE, *map(Home, others)):
            self._calls.ask(partial(_same, home), LISTED, head, b"", gathering.came, behind=behind)
        return True

    def _serve_list(self, _peer_hub: str, head: Head, _body: bytes, answered: Answered) -> None:
        """Answer with a line for each log: its name, a tab, its description."""
        logs, rows_max = self._requests.logs, int(head["rows"])
        if logs is None:
            answered({"total": 0}, b"")
            return
        identity = identity_of(head)
        knows: Callable[[str], bool] = (
            (lambda _name: True) if self._guard.allows_everything else partial(may_know, self._guard, identity)
        )
        total = 0

        def steps() -> Steps[bytes]:
            nonlocal total
            lines = []
            total, rows = yield from listed_logs(logs, knows, 0, rows_max)
            for row in rows:
                lines.append(json.dumps(row["log"]).encode() + b"\t" + json.dumps(row, separators=(",", ":")).encode())
                yield
            return b"\n".join(lines)

        self._answers.make(steps, lambda body: answered({"total": total}, body))


class _Gathering:
    """Waits for the answers of several hubs."""

    def __init__(self, count: int, done: Callable[[list[tuple[Head, bytes]]], None]) -> None:
        self._answers: list[tuple[Head, bytes]] = []
        self._latch = Latch(count, lambda: done(self._answers))

    def came(self, head: Head, body: bytes) -> None:
        """Take one answer."""
        self._answers.append((head, body))
        self._latch()


def subject_of(name: str, request: Mapping[str, Any]) -> str | None:
    """Return the log, queue or query that a request is about; None: it names none."""
    if name.startswith("log/"):
        return log_named(request.get("log"))
    if name.startswith("claim/"):
        return queue_named(request.get("queue"))
    query = request.get("query")
    return query if isinstance(query, str) and query else None


def _same(home: Home) -> Home:
    return home


def _told(identity: Identity) -> dict[str, Any]:
    return {"user": identity.user, "groups": sorted(identity.groups)}


def identity_of(head: Head) -> Identity:
    """Return the identity for which another hub calls; the hub has proved who it is."""
    user = head["user"]
    return Identity(None if user is None else str(user), frozenset(map(str, head["groups"])))


def _replied(reply: Reply, head: Head, body: bytes) -> None:
    if "forbidden" in head:
        action, destination = head["forbidden"]
        reply(ForbiddenError(Action(action), destination))
    elif "error" in head:
        reply(refused(head["error"], head["message"]))
    else:
        reply(body)


def _first_refusal(reply: Reply, answers: list[tuple[Head, bytes]]) -> None:
    """Reply with the first answer that is a refusal, or with any."""

    def goodness(answer: tuple[Head, bytes]) -> tuple[bool, bool, bool]:
        head, body = answer
        return "forbidden" not in head, "error" not in head, body.startswith(b'{"ok":true')

    _replied(reply, *min(answers, key=goodness))


def _merged(answers: list[tuple[Head, bytes]], offset: int, limit: int) -> Steps[bytes]:
    """Return the page of the list of all logs, from the first rows of each hub."""
    rows: list[tuple[str, bytes]] = []
    for _head, body in answers:
        for line in body.split(b"\n") if body else ():
            name, _tab, row = line.partition(b"\t")
            rows.append((json.loads(name), row))
            yield
    rows.sort()
    yield
    left_count = sum(head["total"] for head, _body in answers) - offset - limit
    omitted = b',"omitted":%d' % left_count if left_count > 0 else b""
    page = b",".join([row for _name, row in rows[offset : offset + limit]])
    return b'{"ok":true,"logs":[' + page + b"]" + omitted + b"}"
