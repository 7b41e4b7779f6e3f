"""`/sluiceway/stat` in a cluster: the reports of all hubs, gathered and merged.

Requests for the same part share an answer that is not begun yet, as in `sluiceway.answering`, where each hub makes its
own part (and rations it). The busiest rows come from all hubs at once; a page of one list goes through the hubs in
their order, one behind the other.

Bounds: `WAITING_MAX` waiting requests, `PARTS_MAX` answers under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from sluiceway.answering import ROWS_MAX, WAITING_MAX, Answers, Reply, ReportPart, refused
from sluiceway.cluster.lines import facts_in_steps, lines_in_steps
from sluiceway.cluster.questions import Answer, NoAnswerError, Questions
from sluiceway.cluster.seen_as_one import hub_order, merged_in_steps
from sluiceway.flow.graph import Steps
from sluiceway.steps import StepPace, json_in_steps

STAT: Final = "stat"
PARTS_MAX: Final = 8
MakeStat = Callable[[ReportPart], Steps[Mapping[str, Any]]]


class StatOfAll:
    """The reports of all hubs of a cluster, for one hub."""

    def __init__(
        self,
        hub: str,
        questions: Questions,
        answers: Answers,
        make: MakeStat,
        pace: StepPace,
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
    ) -> None:
        """Have `questions` answer other hubs, too. `hub`: this one; `answers` makes its own reports from the steps of
        `make`.
        """
        questions.takes(STAT, self._answer)
        self._hub = hub
        self._questions = questions
        self._answers = answers
        self._make = make
        self._pace = pace
        self._spawn = spawn
        self._contain = contain
        self._waiting: dict[ReportPart, list[Reply]] = {}
        self._under_way: set[ReportPart] = set()
        self._waiting_count = 0

    # ------------------------------------------------------------------ of this hub, for others

    async def _answer(self, facts: Mapping[str, Any], _body: bytes) -> Answer:
        """Answer another hub, with the report of this one."""
        part = ReportPart(int(facts["limit"]), int(facts["offset"]), str(facts["of"]))
        return Answer({}, await self._own(part))

    async def _own(self, part: ReportPart) -> bytes:
        made = trio.Event()
        lines: list[bytes] = []

        def take(body: bytes) -> None:
            lines.append(body)
            made.set()

        is_everything = part == ReportPart(ROWS_MAX)
        self._answers.make(partial(self._lines, part), take, key=("stat of a hub", part), ration=is_everything)
        await made.wait()
        return lines[0]

    def _lines(self, part: ReportPart) -> Steps[bytes]:
        facts = yield from self._make(part)
        return (yield from lines_in_steps(facts))

    # ------------------------------------------------------------------ of all hubs

    def ask(self, part: ReportPart, reply: Reply) -> None:
        """Have `reply` called with the report of all hubs, as JSON."""
        if self._waiting_count >= WAITING_MAX:
            reply(refused("TOO_MANY_REQUESTS", f"{WAITING_MAX:,} requests wait for their answers: ask again later"))
            return
        self._waiting_count += 1
        self._waiting.setdefault(part, []).append(reply)
        self._begin_more()

    def _begin_more(self) -> None:
        for part in [part for part in self._waiting if part not in self._under_way]:
            if len(self._under_way) < PARTS_MAX:
                self._under_way.add(part)
                self._spawn(partial(self._answer_all, part, self._waiting.pop(part)))

    async def _answer_all(self, part: ReportPart, replies: list[Reply]) -> None:
        body = refused("INTERNAL_ERROR", "the broker made a mistake with this request; its log says more")
        try:
            body = await self._gather(part)
        except Exception as error:  # noqa: BLE001 - the outermost shell of one answer
            error.add_note("raised while the reports of all hubs were put together")
            self._contain(error)
        finally:
            self._under_way.discard(part)
            self._waiting_count -= len(replies)
        self._begin_more()
        for reply in replies:
            try:
                reply(body)
            except Exception as error:  # noqa: BLE001 - likewise, of one who asked
                self._contain(error)
            await trio.lowlevel.checkpoint()

    async def _gather(self, part: ReportPart) -> bytes:
        reports, missing = await (self._page(part) if part.of else self._all(part))
        if self._hub not in reports:  # it had no time for a report: said in the answer
            return refused("TOO_MANY_REQUESTS", f"{self._hub} {missing.get(self._hub, 'has no report')}")

        def steps() -> Steps[bytes]:
            merged = yield from merged_in_steps(
                reports,
                missing,
                asked=self._hub,
                rows_max=part.limit,
                is_page=bool(part.of),
                absences=self._questions.absences(),
            )
            return (yield from json_in_steps(merged))

        return await self._pace.run(steps())

    async def _all(self, part: ReportPart) -> tuple[dict[str, Any], dict[str, str]]:
        reports: dict[str, Any] = {}
        missing: dict[str, str] = {}

        async def ask(hub: str) -> None:
            await self._ask(hub, part, reports, missing)

        async with trio.open_nursery() as nursery:
            for hub in self._hubs:
                nursery.start_soon(ask, hub)
        return reports, missing

    async def _page(self, part: ReportPart) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a page of one list, behind each other hub by hub."""
        reports: dict[str, Any] = {}
        missing: dict[str, str] = {}
        offset, limit = part.offset, part.limit
        for hub in self._hubs:
            await self._ask(hub, attrs.evolve(part, offset=offset, limit=limit), reports, missing)
            report = reports.get(hub)
            if report is not None:
                rows_count = len(report.get(part.of, ()))
                total = report.get("totals", {}).get(part.of, rows_count)
                offset, limit = max(0, offset - total), limit - rows_count
        return reports, missing

    @property
    def _hubs(self) -> list[str]:
        return sorted({self._hub, *self._questions.known}, key=hub_order)

    async def _ask(self, hub: str, part: ReportPart, reports: dict[str, Any], missing: dict[str, str]) -> None:
        try:
            if hub == self._hub:
                lines = await self._own(part)
            else:
                lines = (await self._questions.ask(hub, STAT, attrs.asdict(part))).body
            report = await self._pace.run(facts_in_steps(lines))
        except NoAnswerError as error:
            missing[hub] = str(error)
            return
        except (ValueError, KeyError, TypeError, AttributeError):
            missing[hub] = "its report can't be read: it may run another version"
            return
        if report.get("ok") is False:
            missing[hub] = str(report.get("message", "it has too much to do"))
        else:
            reports[hub] = report
