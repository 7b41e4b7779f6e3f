"""Requests to the admin port of one hub that are about all hubs, or about another one.

The hub that has the connection knows the caller. It asks the others in the caller's name
(`sluiceway.cluster.questions`), and each of them checks the caller's permissions by its own rules. A route says where
it is answered (`ApiRoute.reach`).

A hub that does not answer is `missing` in lists and sums; a request about a destination there is refused in words.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, Self

import trio

from sluiceway.admin.access import Access, Caller
from sluiceway.admin.errors import ApiError, bad_request
from sluiceway.admin.merging import Gathered, Merge, hub_and_id, id_at, proxies_in_steps, with_proxies
from sluiceway.admin.reach import Reach, Together
from sluiceway.admin.tables import Row
from sluiceway.cluster.calls import Calls
from sluiceway.cluster.lines import facts_in_steps, lines_in_steps
from sluiceway.cluster.questions import Answer, NoAnswerError, Questions
from sluiceway.cluster.seen_as_one import hub_order
from sluiceway.metrics.merging import merged_in_steps
from sluiceway.protocols.connection import Connection
from sluiceway.protocols.stomp.authorization import Identity
from sluiceway.steps import StepPace, rest_seconds

ADMIN: Final = "admin"
SESSION: Final = "admin session"
METRICS: Final = "metrics"
PROXIES: Final = "proxy sessions"
CONNECTIONS: Final = "/api/v1/connections"
ROWS_MAX: Final = 10_000
"""Rows of one list up to the end of a page: each hub tells so many."""


AnswerHere = Callable[[Mapping[str, Any], Mapping[str, Any]], Awaitable[tuple[int, Row]]]
"""Answers a request of another hub by this one alone, from its facts and its body: status, answer. Raises ApiError."""


class Route(Protocol):
    """A route, as `sluiceway.admin.routes.ApiRoute` has it."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def reach(self) -> Reach | Together: ...

    @property
    def handler(self) -> Callable[[Any], Awaitable[Row]]: ...


class Reply(Protocol):
    """Status of an answer."""

    status: int


class Call(Protocol):
    """A request, as `sluiceway.admin.routes.Call` has it."""

    @property
    def caller(self) -> Caller: ...

    @property
    def query(self) -> Mapping[str, Any]: ...

    @property
    def body(self) -> Mapping[str, Any]: ...

    @property
    def peer(self) -> str: ...

    @property
    def secure(self) -> bool: ...

    @property
    def together(self) -> bool: ...

    @property
    def reply(self) -> Reply: ...

    def with_query(self, changes: Mapping[str, Any]) -> Self:
        """Return the same request with other parameters."""

    def for_hubs(self) -> Self:
        """Return the same request, to be answered for other hubs."""


class HubsTogether:
    """The other hubs, for the admin port of one."""

    def __init__(
        self,
        hub: str,
        questions: Questions,
        calls: Calls,
        access: Access,
        pace: StepPace,
        *,
        request_seconds: float,
        own_metrics: Callable[..., Awaitable[bytes]],
        shares_port: bool,
        proxies: Callable[[], Sequence[Connection]],
    ) -> None:
        """`hub`: this one; `request_seconds`: time of an action at another hub; `own_metrics` makes the page of this
        hub; `shares_port`: all hubs answer at one port, so that a scrape has to get the metrics of all; `proxies`
        returns the connections here whose clients are at other hubs.
        """
        self._hub = hub
        self._questions = questions
        self._calls = calls
        self._access = access
        self._pace = pace
        self._request_seconds = request_seconds
        self._own_metrics = own_metrics
        self._shares_port = shares_port
        self._proxies_here = proxies
        self._pages: dict[bool, bytes] = {}
        self._pages_until_seconds = 0.0
        self._making_page = trio.Lock()
        self._answer_here: AnswerHere | None = None

    def begin(self, answer_here: AnswerHere) -> None:
        """Answer other hubs from now on."""
        self._answer_here = answer_here
        self._questions.takes(ADMIN, self._answer_hub)
        self._questions.takes(SESSION, self._answer_session)
        self._questions.takes(METRICS, self._answer_metrics)
        self._questions.takes(PROXIES, self._answer_proxies)

    # ------------------------------------------------------------------ for a client

    async def answer(self, route: Route, call: Call) -> Row:
        """Answer a request that may be about other hubs. Raises ApiError."""
        reach = route.reach
        if isinstance(reach, Reach):
            if reach is Reach.HERE:
                return await route.handler(call)
            if reach is Reach.NODE:
                return await self._of_node(route, call)
            if reach is Reach.SESSION:
                hub, separator, _rest = str(call.body["session"]).partition("~")
                return await self._at(hub if separator else self._hub, route, call)
            if reach is Reach.FIRST:
                return await self._first(route, call)
            assert reach is Reach.NAMED
            return await self._at(self._named(call), route, call)
        if callable(reach.merge) and (reach.home is None or not reach.home(call)):
            return await self._all(route, reach.merge, call)
        assert reach.home is not None, "a route has one of both"
        return await self._at(self._home_of(reach.home(call)), route, call)

    def _named(self, call: Call) -> str:
        hub = call.body.get("hub")
        known = sorted({self._hub, *self._questions.known})
        if hub not in known:
            raise bad_request('say which one: "hub"', f"The hubs are {', '.join(known)}.")
        return str(hub)

    def _home_of(self, name: str) -> str:
        home = self._calls.home_of(name)
        if home.why_not:
            raise ApiError(503, "shard-away", f"{name[:200]} can't be used: {home.why_not}", "Ask again in a while.")
        return home.hub or self._hub

    async def _of_node(self, route: Route, call: Call) -> Row:
        hub, node = hub_and_id(call.query["id"])
        row = await self._at(hub or self._hub, route, call.with_query({"id": node}))
        at = hub or self._hub
        row["id"] = id_at(at, row["id"])
        for step in row["steps"]:
            step["id"] = id_at(at, step["id"])
        if row.get("cause"):
            row["cause"]["id"] = id_at(at, row["cause"]["id"])
        return row

    async def _at(self, hub: str, route: Route, call: Call) -> Row:
        """Have one hub answer."""
        if hub == self._hub:
            return await route.handler(call)
        try:
            return await self._ask(hub, route, call, seconds=self._request_seconds)
        except NoAnswerError as error:
            raise ApiError(
                503,
                "hub-missing",
                f"it is for {hub}, which gives no answer: {error}",
                "Ask again in a while; what an action has done by now stays done.",
            ) from None

    async def _first(self, route: Route, call: Call) -> Row:
        """Have the first hub answer that has what is asked for."""
        try:
            return await route.handler(call)
        except ApiError as error:
            if error.status != 404:
                raise
            nowhere = error
        for hub in self._questions.others:
            try:
                return await self._at(hub, route, call)
            except ApiError as error:
                if error.status != 404:
                    raise
        for hub in self._questions.known:
            if self._questions.absences().get(hub, {}).get("shards_waiting"):
                await self._at(hub, route, call)  # says that it may be there
        raise nowhere

    async def _all(self, route: Route, merge: Merge, call: Call) -> Row:
        """Have all hubs answer, and merge the answers."""
        wide = call
        if "offset" in call.query:
            rows_count = call.query["offset"] + call.query["limit"]
            if rows_count > ROWS_MAX:
                raise bad_request(
                    f"of several hubs the first {ROWS_MAX:,} rows of a list can be asked for",
                    "Take q or sort to have what you look for among them.",
                )
            wide = call.with_query({"offset": 0, "limit": rows_count})
        wide = wide.for_hubs()
        rows: dict[str, Row] = {}
        missing: dict[str, str] = {}
        refused: list[ApiError] = []

        async def ask(hub: str) -> None:
            try:
                rows[hub] = await self._ask(hub, route, wide)
            except NoAnswerError as error:
                missing[hub] = str(error)
            except ApiError as error:
                if error.status in (401, 403, 404, 503):
                    missing[hub] = error.message
                else:
                    refused.append(error)

        async with trio.open_nursery() as nursery:
            for hub in self._questions.known:
                nursery.start_soon(ask, hub)
            try:
                rows[self._hub] = await route.handler(wide)
            except ApiError as error:
                refused.append(error)
        if refused:
            raise refused[0]
        found = await self._pace.run(merge(Gathered(self._hub, rows, missing, call.query, self._questions.absences())))
        return await self._with_proxies(found, rows) if route.path == CONNECTIONS else found

    async def _with_proxies(self, page: Row, rows: Mapping[str, Row]) -> Row:
        """Add to the clients of a page what they have at other hubs."""
        body = json.dumps([[row["hub"], row["peer"]] for row in page["items"]]).encode()
        found: dict[str, Row] = {}

        async def ask(hub: str) -> None:
            try:
                answer = (
                    Answer({}, await self._proxies(body))
                    if hub == self._hub
                    else await self._questions.ask(hub, PROXIES, {}, body)
                )
                found[hub] = await self._pace.run(facts_in_steps(answer.body))
            except (NoAnswerError, ValueError):
                pass  # it was missing from the rows, too, or ended since

        async with trio.open_nursery() as nursery:
            for hub in rows:
                nursery.start_soon(ask, hub)
        return await self._pace.run(with_proxies(page, found))

    async def _ask(self, hub: str, route: Route, call: Call, *, seconds: float | None = None) -> Row:
        identity = call.caller.identity
        facts = {
            "method": route.method,
            "path": route.path,
            "query": dict(call.query),
            "user": identity.user,
            "groups": sorted(identity.groups),
            "way": call.caller.way,
            "peer": call.peer,
            "secure": call.secure,
            "together": call.together,
        }
        body = await self._pace.run(lines_in_steps(dict(call.body))) if call.body else b""
        limit = {} if seconds is None else {"seconds": seconds}
        answer = await self._questions.ask(hub, ADMIN, facts, body, **limit)
        if "refused" in answer.facts:
            status, code, message, remedy = answer.facts["refused"]
            raise ApiError(status, code, message, remedy)
        call.reply.status = answer.facts["status"]
        try:
            return await self._pace.run(facts_in_steps(answer.body))
        except ValueError:
            raise NoAnswerError("its answer can't be read: it may run another version") from None

    async def metrics_page(self, *, openmetrics: bool) -> bytes:
        """Return the metrics of all hubs at this port. Putting pages together takes a tenth of the time at most: who
        asks in between gets the last one.
        """
        if not self._shares_port:
            return await self._own_metrics(openmetrics=openmetrics)
        async with self._making_page:
            if trio.current_time() >= self._pages_until_seconds:
                self._pages.clear()
            if openmetrics not in self._pages:
                pages: dict[str, bytes] = {self._hub: b""}
                missing: dict[str, str] = {}

                async def ask(hub: str) -> None:
                    try:
                        pages[hub] = (await self._questions.ask(hub, METRICS, {"openmetrics": openmetrics})).body
                    except NoAnswerError as error:
                        missing[hub] = str(error)

                async with trio.open_nursery() as nursery:
                    for hub in self._questions.known:
                        nursery.start_soon(ask, hub)
                    pages[self._hub] = await self._own_metrics(openmetrics=openmetrics)
                worked_before = self._pace.worked_seconds
                ordered = {hub: pages[hub] for hub in sorted(pages, key=hub_order)}
                page = await self._pace.run(merged_in_steps(ordered, missing, openmetrics=openmetrics))
                self._pages[openmetrics] = page
                self._pages_until_seconds = trio.current_time() + rest_seconds(
                    self._pace.worked_seconds - worked_before
                )
            return self._pages[openmetrics]

    # ------------------------------------------------------------------ for another hub

    async def _answer_proxies(self, _facts: Mapping[str, Any], body: bytes) -> Answer:
        return Answer({}, await self._proxies(body))

    async def _proxies(self, wanted: bytes) -> bytes:
        row = await self._pace.run(proxies_in_steps(self._proxies_here(), json.loads(wanted)))
        return await self._pace.run(lines_in_steps(row))

    async def _answer_metrics(self, facts: Mapping[str, Any], _body: bytes) -> Answer:
        return Answer({}, await self._own_metrics(openmetrics=facts["openmetrics"]))

    async def _answer_hub(self, facts: Mapping[str, Any], body: bytes) -> Answer:
        assert self._answer_here is not None, "it has begun"
        try:
            asked = await self._pace.run(facts_in_steps(body)) if body else {}
            status, row = await self._answer_here(facts, asked)
        except ApiError as error:
            return Answer({"refused": [error.status, error.code, error.message, error.remedy]})
        return Answer({"status": status}, await self._pace.run(lines_in_steps(row)))

    # ------------------------------------------------------------------ sessions of browsers

    async def session_at(self, hub: str, cookie: str, *, ends: bool = False) -> Caller | None:
        """Return the caller of a session that another hub has; None: there is none, or no answer. `ends`: end it."""
        if hub not in self._questions.others:
            return None
        try:
            answer = await self._questions.ask(hub, SESSION, {"ends": ends}, cookie.encode())
        except NoAnswerError:
            return None
        facts = answer.facts
        if "csrf" not in facts:
            return None
        return Caller(Identity(facts["user"], frozenset(facts["groups"])), "cookie", facts["csrf"])

    async def _answer_session(self, facts: Mapping[str, Any], body: bytes) -> Answer:
        caller = self._access.session_of(body.decode())
        if caller is None:
            return Answer({})
        if facts["ends"]:
            self._access.log_out(caller)
        identity = caller.identity
        return Answer({"user": identity.user, "groups": sorted(identity.groups), "csrf": caller.csrf})
