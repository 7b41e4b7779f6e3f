"""All cases of the law about memory, and how one of them is weighed."""

from __future__ import annotations

import os
import re

from sluiceway.store.memory import MemoryEngine
from tests.limits import cases_of_connections, cases_of_frames, cases_of_http, cases_of_requests
from tests.limits.cases import CASES, COUNT, POLICIES, Play
from tests.limits.weighing import Balance, judge
from tests.scenarios.log_stage import LogStage
from tests.scenarios.stage import Stage

PARTS = (cases_of_frames, cases_of_connections, cases_of_http, cases_of_requests)
"""Where the cases are: each enters its own into the table."""

UNCOUNTED_ON_PURPOSE = "what nobody counts"
"""A case that is none: whatever it keeps must be found."""
DEADLY = "what ends its process"
"""Another one."""


async def weigh(name: str) -> None:
    """Play a case; AssertionError unless what it holds is counted."""
    if name == DEADLY:
        os._exit(7)
    made, count = (_keeping, COUNT) if name == UNCOUNTED_ON_PURPOSE else CASES[name]
    stage: Stage = (
        cases_of_http.HttpStage()
        if name.startswith("HTTP ")
        else LogStage(POLICIES)
        if {"log", "logs", "claim"} & set(re.split(r"[ /]", name))
        else Stage(POLICIES, engine=MemoryEngine())
    )
    async with stage:
        with Balance(stage) as balance:
            play = await made(stage)
            judge(name, await balance.weigh(play, count), balance)
            stage.check_all_accounted_for = _nothing  # what tests/scenarios are for


async def _keeping(stage: Stage) -> Play:
    kept: list[bytes] = []

    async def play(numbers: range) -> None:
        kept.extend(bytes(1_000) for _ in numbers)

    return play


async def _nothing() -> None:
    """Leave it as it is."""
