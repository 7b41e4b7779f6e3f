"""Parser of a client's stream at a hub that passes SENDs on to another one: a run of them stays as it lies.

Frames of one head and one length, to a destination of one other hub, are looked at as those of any run (strides), but
nothing is cut out: the run is one slice of what was read, and goes into the link so. All other frames, and the first
one that is not whole or not like its run, are met by the parser as always.

Deliberately not here: whether a head may pass (`relaying`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .frames import Event, PassedRun
from .head import SendHead
from .limits import StompLimits
from .parser import RUN_COUNT_MIN, Parser
from .unheard import pass_counted

PASSED_COUNT_MIN: Final = 2
"""Frames that make a run worth passing."""


class PassingParser(Parser):
    """Parser that gives `PassedRun`s, in place of `SendRun`s, for heads that may pass."""

    __slots__ = ("_may_pass",)

    def __init__(self, limits: StompLimits, *, stages: bool, may_pass: Callable[[SendHead], bool]) -> None:
        """`may_pass`: whether SENDs with this head go to another hub as they lie. It is asked before what was read
        earlier has its effect, so the owner looks again.
        """
        super().__init__(limits, role="server", stages=stages)
        self._may_pass = may_pass

    def _take_counted(
        self, buf: bytes, pos: int, before: bytes, head: SendHead, verbatim: bool, events: list[Event]
    ) -> int:
        if verbatim and self._may_pass(head):
            span = len(before) + head.content_length
            stop = min(len(buf) - span, max(self._step_end, pos + RUN_COUNT_MIN * span))
            end, count = pass_counted(buf, pos, stop, before, span)
            if count >= PASSED_COUNT_MIN:
                events.append(PassedRun(head, buf[pos:end], count, span))
                return end
        return super()._take_counted(buf, pos, before, head, verbatim, events)
