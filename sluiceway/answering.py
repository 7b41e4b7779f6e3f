"""Answers to requests over STOMP (`/sluiceway/…`) whose size grows with the broker's contents: made in steps.

A small answer is made at once: the first steps of a request run within it, for INLINE_SECONDS in each PAUSE_SECONDS.
The rest is made by one task, one answer after the other, in the order of asking. Requests for the same share an answer
that is not begun yet, and none is older than the request: a client that sent a message and then asks for the report
finds the message in it. So that reports asked for again and again take a tenth of the time at most, the next one waits
as long as `rest_seconds` says.

Bounds: WAITING_MAX waiting requests, others are refused at once; an answer has at most ROWS_MAX rows of each list. An
answer for a client that has gone meanwhile is dropped by its receiver.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from itertools import count
from typing import Any, Final

import attrs
import trio

from sluiceway.flow.graph import Steps
from sluiceway.protocols.log import get_logger
from sluiceway.steps import StepPace, json_in_steps, rest_seconds

WAITING_MAX: Final = 1_000
"""Maximum of waiting requests of all connections together."""
ROWS_MAX: Final = 1_000
"""Maximum of rows of each list in one answer, and default."""
OFFSET_MAX: Final = 100_000
GROUPS_MAX: Final = 100
"""Maximum of groups of one log, in a list of logs."""
INLINE_SECONDS: Final = 0.001
PAUSE_SECONDS: Final = 0.01

LISTS: Final = (
    "destinations",
    "connections",
    "durables",
    "logs",
    "resources",
    "edges",
    "chains",
    "bottlenecks",
    "stalled",
    "cycles",
)
"""Lists of the report that grow with the number of destinations, connections and so on."""

Reply = Callable[[bytes], None]

log = get_logger("sluiceway.answers")


@attrs.frozen(slots=True)
class ReportPart:
    """Requested rows of the lists of a report: of all lists the busiest, or a page of one of them."""

    limit: int
    """Rows of each list at most."""
    offset: int = 0
    of: str = ""
    """Name of the one requested list of LISTS, in a stable order; empty: all lists."""


@attrs.define(slots=True, eq=False)
class _Wanted:
    """One answer, and who waits for it."""

    key: Hashable
    """Key of a rationed answer; None: it is not rationed."""
    steps: Steps[bytes]
    replies: list[Reply]
    is_begun: bool = False


class Answers:
    """Makes them, for one broker."""

    def __init__(
        self,
        pace: StepPace,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make an empty queue of answers. `spawn` starts a task that lives no longer than the broker; `contain` is
        given exceptions of making or delivering one answer; `clock` in seconds: of this machine, not of a simulation,
        because it measures work.
        """
        self._pace = pace
        self._spawn = spawn
        self._contain = contain
        self._clock = clock
        self._wanted: dict[Hashable, _Wanted] = {}
        """Requests in the order of their arrival."""
        self._waiting_count = 0
        self._keys = count()
        self._is_making = False
        self._not_before: dict[Hashable, float] = {}
        """Times from which on rationed answers may be made again."""
        self._came = trio.Event()
        """Set by a new request, while the task waits for the time of rationed ones."""
        self._inline_seconds = 0.0
        self._inline_until = 0.0

    @property
    def waiting_count(self) -> int:
        """Number of requests that wait for their answers."""
        return self._waiting_count

    def make(
        self, make: Callable[[], Steps[bytes]], reply: Reply, *, key: Hashable = None, ration: bool = False
    ) -> None:
        """Make an answer now or later, and give it to `reply`. `key`: identifies answers that requests may share;
        `ration`: making this answer may take a tenth of the time at most.
        """
        wanted = None if key is None else self._wanted.get(key)
        if wanted is None:
            wanted = _Wanted(key if ration else None, make(), [])
            if not self._waiting_count and self._wait_seconds(wanted) <= 0:
                if self._made_inline(wanted, reply):
                    return
                if wanted.is_begun:
                    key = None  # requests that come now are for a later state than has been looked at
            if self._waiting_count >= WAITING_MAX:
                wanted.steps.close()
            else:
                self._wanted[next(self._keys) if key is None else key] = wanted
                self._came.set()
        if self._waiting_count >= WAITING_MAX:
            reply(refused("TOO_MANY_REQUESTS", f"{WAITING_MAX:,} requests wait for their answers: ask again later"))
            return
        wanted.replies.append(reply)
        self._waiting_count += 1
        if not self._is_making:
            self._is_making = True
            self._spawn(self._make_all)

    def _made_inline(self, wanted: _Wanted, reply: Reply) -> bool:
        """Made at once, if that is soon done."""
        began = self._clock()
        if began >= self._inline_until:
            self._inline_seconds, self._inline_until = 0.0, began + PAUSE_SECONDS
        until = began + INLINE_SECONDS - self._inline_seconds
        try:
            while self._clock() < until:
                wanted.is_begun = True
                next(wanted.steps)
        except StopIteration as end:
            worked_seconds = self._clock() - began
            self._inline_seconds += worked_seconds
            self._ration(wanted, worked_seconds)
            reply(end.value)
            return True
        self._inline_seconds += self._clock() - began
        return False

    def _wait_seconds(self, wanted: _Wanted) -> float:
        """Return the seconds until this answer may be made; 0 or less: now."""
        return self._not_before.get(wanted.key, 0.0) - self._clock()

    def _ration(self, wanted: _Wanted, worked_seconds: float) -> None:
        if wanted.key is not None:
            self._not_before[wanted.key] = self._clock() + rest_seconds(worked_seconds)

    async def _make_all(self) -> None:
        try:
            while self._wanted:
                wanted = self._wanted.pop(await self._next_key())
                began = self._pace.worked_seconds
                try:
                    body = await self._pace.run(wanted.steps)
                except Exception as error:  # noqa: BLE001 - the outermost shell of one answer
                    error.add_note(f"raised while the answer to {wanted.key or 'a request'} was made")
                    self._contain(error)
                    body = refused("INTERNAL_ERROR", "the broker made a mistake with this request; its log says more")
                else:
                    self._ration(wanted, self._pace.worked_seconds - began)
                for reply in wanted.replies:
                    self._waiting_count -= 1
                    try:
                        reply(body)
                    except Exception as error:  # noqa: BLE001 - likewise, of one who asked
                        self._contain(error)
                    await trio.lowlevel.checkpoint()  # a copy of a megabyte for each of them
        finally:
            self._is_making = False

    async def _next_key(self) -> Hashable:
        """Return the key of the oldest request whose answer may be made. Where all are rationed: wait for the first one
        that may.
        """
        while True:
            for key, wanted in self._wanted.items():
                if self._wait_seconds(wanted) <= 0:
                    return key
            first = min(self._wanted.values(), key=self._wait_seconds)
            self._came = trio.Event()
            with trio.move_on_after(self._wait_seconds(first)):
                await self._came.wait()
                continue
            del self._not_before[first.key]


def refused(code: str, message: str) -> bytes:
    """The answer to a request that gets none."""
    return json.dumps({"ok": False, "error": code, "message": message}, separators=(",", ":")).encode()


def encoded(steps: Steps[Mapping[str, Any]]) -> Steps[bytes]:
    """Return the result of the steps as JSON."""
    facts = yield from steps
    body = yield from json_in_steps(facts)
    return body
