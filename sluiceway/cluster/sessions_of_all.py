"""`/sluiceway/sessions` in a cluster: which connections may still act, wherever they are or were.

A client that lost its connection to one hub may ask at another one. What it had sent is at its hub, on a link, or at
the hubs whose destinations it used. So the hub of the session is asked first: it says no when its links carry nothing
of the session any more. Then all hubs are asked whether something that came over a link for the session waits there.

A hub that gives no answer, and is in the cluster, may have something: the session counts as one that may act. One that
is gone has nothing: its session with the coordination service has ended.

Bound: GATHERING_MAX requests under way.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import trio

from sluiceway.cluster.placement import hub_of_session
from sluiceway.cluster.questions import Answer, NoAnswerError, Questions
from sluiceway.log_service import Send
from sluiceway.queues.logs.table import LogError
from sluiceway.sessions import SessionTable

SESSIONS: Final = "sessions"
GATHERING_MAX: Final = 100
FLOWS_PER_STEP: Final = 1_000


class SessionsOfAll:
    """Sessions of all hubs of a cluster, for one hub."""

    def __init__(
        self,
        hub: str,
        questions: Questions,
        sessions: SessionTable,
        sessions_on_links: Callable[[], Iterable[str]],
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
    ) -> None:
        """Have `questions` answer other hubs, too. `hub`: this one; `sessions_on_links`: of clients of this hub for
        which there are flows to other hubs, one by one.
        """
        questions.takes(SESSIONS, self._answer)
        self._hub = hub
        self._questions = questions
        self._sessions = sessions
        self._sessions_on_links = sessions_on_links
        self._spawn = spawn
        self._contain = contain
        self._gathering_count = 0

    # ------------------------------------------------------------------ for a client

    def tell(self, names: list[str], send: Send) -> None:
        """Answer which of these sessions may still act, later."""
        if self._gathering_count >= GATHERING_MAX:
            send(LogError("TOO_MANY_REQUESTS", f"{GATHERING_MAX} such requests are under way: ask again in a moment"))
            return
        self._gathering_count += 1
        self._spawn(partial(self._tell, names, send))

    async def _tell(self, names: list[str], send: Send) -> None:
        try:
            may_act = await self._may_act(names)
            send({"sessions": [name for name in names if name in may_act]})
        except Exception as error:  # noqa: BLE001 - the outermost shell of one answer
            self._contain(error)
            send(LogError("INTERNAL_ERROR", "the broker made a mistake with this request; its log says more"))
        finally:
            self._gathering_count -= 1

    async def _may_act(self, names: list[str]) -> set[str]:
        by_home: dict[str, list[str]] = {}
        for name in names:
            by_home.setdefault(hub_of_session(name) or self._hub, []).append(name)
        found: set[str] = set()

        async def ask(hub: str, asked: list[str], *, at_home: bool) -> None:
            found.update(await self._ask(hub, asked, at_home=at_home))

        async with trio.open_nursery() as nursery:
            for hub, asked in by_home.items():
                nursery.start_soon(partial(ask, hub, asked, at_home=True))
        left = [name for name in names if name not in found]
        if left:
            async with trio.open_nursery() as nursery:
                for hub in {self._hub, *self._questions.others}:
                    nursery.start_soon(partial(ask, hub, left, at_home=False))
        return found

    async def _ask(self, hub: str, names: list[str], *, at_home: bool) -> Iterable[str]:
        if hub == self._hub:
            return await self._own(names, at_home=at_home)
        if hub not in self._questions.others:
            return ()  # gone, and all that it had
        try:
            answer = await self._questions.ask(hub, SESSIONS, {"at_home": at_home}, json.dumps(names).encode())
            return [str(name) for name in json.loads(answer.body)]
        except (NoAnswerError, ValueError):
            return names if hub in self._questions.others else ()

    # ------------------------------------------------------------------ of this hub

    async def _answer(self, facts: Mapping[str, Any], body: bytes) -> Answer:
        names = [str(name) for name in json.loads(body)]
        return Answer({}, json.dumps(sorted(await self._own(names, at_home=facts["at_home"]))).encode())

    async def _own(self, names: list[str], *, at_home: bool) -> set[str]:
        if not at_home:
            return {name for name in names if self._sessions.proxies_may_act(name)}
        found = {name for name in names if self._sessions.may_act(name)}
        left = set(names) - found
        if left:
            for number, session in enumerate(self._sessions_on_links()):
                if session in left:
                    found.add(session)
                if number % FLOWS_PER_STEP == FLOWS_PER_STEP - 1:
                    await trio.lowlevel.checkpoint()
        return found
