"""`/sluiceway/trail` in a cluster: every hub tells what it knows, and the answers are put together (`trails_as_one`).

Bound: GATHERING_MAX requests under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from sluiceway.cluster.lines import facts_in_steps, lines_in_steps
from sluiceway.cluster.questions import Answer, NoAnswerError, Questions
from sluiceway.cluster.trails_as_one import trails_in_steps
from sluiceway.flow.graph import Steps
from sluiceway.log_service import Send
from sluiceway.queues.logs.table import LogError
from sluiceway.steps import StepPace
from sluiceway.trails.answering import BrokerTrails, TooManySearchesError, Trail

TRAIL: Final = "trail"
GATHERING_MAX: Final = 8


class TrailsOfAll:
    """Trails of all hubs of a cluster, for one hub."""

    def __init__(
        self,
        hub: str,
        questions: Questions,
        trails: BrokerTrails | None,
        pace: StepPace,
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
    ) -> None:
        """Have `questions` answer other hubs, too. `hub`: this one, with its `trails`; None: they are switched off."""
        questions.takes(TRAIL, self._answer)
        self._hub = hub
        self._questions = questions
        self._trails = trails
        self._pace = pace
        self._spawn = spawn
        self._contain = contain
        self._gathering_count = 0

    def gather(self, request: Mapping[str, Any], limit: int, found: list[Trail], send: Send) -> None:
        """Answer with what all hubs know, later. `request`: that of the client; `found`: what this hub knows. Raises
        TooManySearchesError.
        """
        if self._gathering_count >= GATHERING_MAX:
            raise TooManySearchesError(f"{GATHERING_MAX} searches are under way: ask again in a moment")
        self._gathering_count += 1
        self._spawn(partial(self._gather, request, limit, found, send))

    async def _gather(self, request: Mapping[str, Any], limit: int, own: list[Trail], send: Send) -> None:
        found: dict[str, Sequence[Trail]] = {self._hub: own}
        missing: dict[str, str] = {}
        answer: Mapping[str, Any] | LogError
        try:
            async with trio.open_nursery() as nursery:
                for hub in self._questions.known:
                    nursery.start_soon(self._ask, hub, request, found, missing)
            merged = await self._pace.run(trails_in_steps(found, [*found, *missing], limit))
            answer = {"trails": merged, **({"missing": missing} if missing else {})}
        except Exception as error:  # noqa: BLE001 - the outermost shell of one answer
            self._contain(error)
            answer = LogError("INTERNAL_ERROR", "the broker made a mistake with this request; its log says more")
        finally:
            self._gathering_count -= 1
        send(answer if isinstance(answer, LogError) else _in_steps(answer))

    async def _ask(
        self, hub: str, request: Mapping[str, Any], found: dict[str, Sequence[Trail]], missing: dict[str, str]
    ) -> None:
        try:
            answer = await self._questions.ask(hub, TRAIL, request)
            if "refused" in answer.facts:
                missing[hub] = str(answer.facts["refused"])
            else:
                found[hub] = (await self._pace.run(facts_in_steps(answer.body)))["trails"]
        except NoAnswerError as error:
            missing[hub] = str(error)
        except (ValueError, KeyError):
            missing[hub] = "its answer can't be read: it may run another version"

    # ------------------------------------------------------------------ for another hub

    async def _answer(self, facts: Mapping[str, Any], _body: bytes) -> Answer:
        if self._trails is None:
            return Answer({"refused": "it remembers no trails"})
        try:
            found = await self._trails.asked(
                message_id=facts.get("message_id"),
                correlation_id=facts.get("correlation_id"),
                **({"limit": facts["limit"]} if "limit" in facts else {}),
            )
        except (ValueError, TooManySearchesError) as error:
            return Answer({"refused": str(error)})
        return Answer({}, await self._pace.run(lines_in_steps({"trails": found})))


def _in_steps(answer: Mapping[str, Any]) -> Steps[Mapping[str, Any]]:
    """Return the answer as steps, so that its JSON, which may be long, is made in steps."""
    yield
    return answer
