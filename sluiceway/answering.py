"""Answers to requests over STOMP (`/sluiceway/…`) that grow with what the broker has: made in steps.

What is small is made at once: the first steps of a request run within it, for INLINE_SECONDS in each PAUSE_SECONDS. The
rest is made by one task, one answer after the other, in the order of asking; so nobody is told of a later moment first.
Who asks for what is being made or waits to be made shares that answer; a report of the broker that took steps is also
kept as long as `cached_answer` says. What is made at once is never kept: a client that sent a message and asks then for
the report finds it there.

Bounds: WAITING_MAX who wait, the others are refused at once; an answer has at most ROWS_MAX rows of each list. Who has
gone meanwhile is told as anybody else: what takes the answer drops it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from itertools import count
from typing import Any, Final

import attrs
import trio

from sluiceway.cached_answer import kept_seconds
from sluiceway.flow.graph import Steps
from sluiceway.protocols.log import get_logger
from sluiceway.steps import Pace, json_in_steps

WAITING_MAX: Final = 1_000
"""Of all connections together."""
ROWS_MAX: Final = 1_000
"""Of each list in one answer, and if nothing else is asked for."""
OFFSET_MAX: Final = 100_000
GROUPS_MAX: Final = 100
"""Of one log, in a list of logs."""
INLINE_SECONDS: Final = 0.001
PAUSE_SECONDS: Final = 0.01

Reply = Callable[[bytes], None]

log = get_logger("sluiceway.answers")


@attrs.define(slots=True, eq=False)
class _Wanted:
    """One answer, and who waits for it."""

    steps: Steps[bytes]
    replies: list[Reply]
    kept: bool


class Answers:
    """Makes them, for one broker."""

    def __init__(
        self,
        pace: Pace,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        contain: Callable[[Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`spawn` starts a task that lives no longer than the broker; `contain` is given what the making of one answer,
        or one who takes it, raised; `clock` in seconds: of this machine, not of a
        simulation, because it measures work.
        """
        self._pace = pace
        self._spawn = spawn
        self._contain = contain
        self._clock = clock
        self._wanted: dict[Hashable, _Wanted] = {}
        """In the order of asking."""
        self._waiting_count = 0
        self._keys = count()
        self._is_making = False
        self._kept: dict[Hashable, tuple[bytes, float]] = {}
        """Answers that are good for some time yet, and until when."""
        self._inline_seconds = 0.0
        self._inline_until = 0.0

    @property
    def waiting_count(self) -> int:
        """How many who asked wait for their answers."""
        return self._waiting_count

    def make(self, make: Callable[[], Steps[bytes]], reply: Reply, *, key: Hashable = None, keep: bool = False) -> None:
        """`reply` gets what these steps come to, now or later. `key`: what is asked for, if others may share it;
        `keep`: the answer is good for a while.
        """
        if key is not None and key in self._kept:
            body, good_until = self._kept[key]
            if self._clock() < good_until:
                reply(body)
                return
            del self._kept[key]
        wanted = None if key is None else self._wanted.get(key)
        if wanted is None:
            wanted = _Wanted(make(), [], keep)
            if not self._wanted and self._made_inline(wanted, key, reply):
                return
            if self._waiting_count >= WAITING_MAX:
                wanted.steps.close()
            else:
                self._wanted[next(self._keys) if key is None else key] = wanted
        if self._waiting_count >= WAITING_MAX:
            reply(refused("TOO_MANY_REQUESTS", f"{WAITING_MAX:,} requests wait for their answers: ask again later"))
            return
        wanted.replies.append(reply)
        self._waiting_count += 1
        if not self._is_making:
            self._is_making = True
            self._spawn(self._make_all)

    def _made_inline(self, wanted: _Wanted, key: Hashable, reply: Reply) -> bool:
        """Made at once, if that is soon done."""
        began = self._clock()
        if began >= self._inline_until:
            self._inline_seconds, self._inline_until = 0.0, began + PAUSE_SECONDS
        until = began + INLINE_SECONDS - self._inline_seconds
        try:
            while self._clock() < until:
                next(wanted.steps)
        except StopIteration as end:
            self._inline_seconds += self._clock() - began
            reply(end.value)
            return True
        self._inline_seconds += self._clock() - began
        return False

    def _keep(self, key: Hashable, wanted: _Wanted, body: bytes, worked_seconds: float) -> None:
        if wanted.kept and key is not None:
            self._kept[key] = body, self._clock() + kept_seconds(worked_seconds)

    async def _make_all(self) -> None:
        try:
            while self._wanted:
                key, wanted = next(iter(self._wanted.items()))
                began = self._pace.worked_seconds
                try:
                    body = await self._pace.run(wanted.steps)
                except Exception as error:  # noqa: BLE001 - the outermost shell of one answer
                    error.add_note(f"raised while the answer to {key} was made")
                    self._contain(error)
                    body = refused("INTERNAL_ERROR", "the broker made a mistake with this request; its log says more")
                else:
                    self._keep(key, wanted, body, self._pace.worked_seconds - began)
                del self._wanted[key]
                for reply in wanted.replies:
                    self._waiting_count -= 1
                    try:
                        reply(body)
                    except Exception as error:  # noqa: BLE001 - likewise, of one who asked
                        self._contain(error)
                    await trio.lowlevel.checkpoint()  # a copy of a megabyte for each of them
        finally:
            self._is_making = False


def refused(code: str, message: str) -> bytes:
    """The answer to a request that gets none."""
    return json.dumps({"ok": False, "error": code, "message": message}, separators=(",", ":")).encode()


def encoded(steps: Steps[Mapping[str, Any]]) -> Steps[bytes]:
    """What these steps come to, as JSON."""
    facts = yield from steps
    body = yield from json_in_steps(facts)
    return body
