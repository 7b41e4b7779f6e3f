"""What requests to the broker leave behind, and logs, which are asked for so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio

from tests.limits.cases import CASES, Play, Q, case, frames
from tests.limits.law import frame
from tests.limits.weighing import Plain
from tests.scenarios.stage import Stage


def requests(request: str, make: Callable[[int], dict[str, Any]], *, of: str = "", count: int = 200) -> None:
    """A case of requests with answers. `of`: what they are about, for the name of the case."""

    async def made(stage: Stage) -> Play:
        client = await Plain(stage).connected()
        await client.do(frame("SUBSCRIBE", id="r", destination="/temp-queue/r"))

        async def play(numbers: range) -> None:
            for n in numbers:
                body = json.dumps(make(n)).encode()
                await client.do(frame("SEND", body, destination=f"/sluiceway/{request}", reply_to="/temp-queue/r"))
                if n % 50 == 0:
                    await trio.sleep(1)
            await trio.sleep(5)
            client.take()

        return play

    CASES[f"{request} of {of}" if of else request] = (made, count)


requests("stat", lambda n: {}, count=50)


@case("stat that waits", 40)
async def _(stage: Stage) -> Play:
    """For an answer that takes long: what was asked with is not kept meanwhile."""
    client = await Plain(stage).connected()
    await client.do(frame("SUBSCRIBE", id="r", destination="/temp-queue/r"))
    stage.broker.answers._is_making = True
    stage.broker.answers._wanted["nothing"] = None  # type: ignore[assignment]

    async def play(numbers: range) -> None:
        for n in numbers:
            body = b"{}" + b" " * (50_000 + n)
            await client.do(frame("SEND", body, destination="/sluiceway/stat", reply_to="/temp-queue/r"))

    return play


requests("sessions", lambda n: {"sessions": [str(n)]}, count=100)
requests("cluster", lambda n: {"names": [str(n)]}, count=100)
requests("trail", lambda n: {"correlation_id": str(n)}, count=100)
requests("log/describe", lambda n: {"log": f"/log/{n}"}, of="nothing", count=100)
requests("log/cursor", lambda n: {"log": "/log/a", "group": str(n)})
requests("log/cursor", lambda n: {"log": f"/log/{n}", "group": "g"}, of="new logs", count=40)
requests("claim/open", lambda n: {"queue": Q, "group": str(n), "planner": "p"}, count=40)
requests("claim/open", lambda n: {"queue": f"/queue/{n}", "group": "g", "planner": "p"}, of="new queues", count=40)
requests("claim/state", lambda n: {"queue": f"/queue/{n}", "group": "g"}, count=40)
requests("claim/touch", lambda n: {"queue": f"/queue/{n}", "group": "g"}, count=40)
frames("SEND to a log", lambda n: frame("SEND", b"x", destination="/log/a", k=n))
frames("SEND to logs", lambda n: frame("SEND", b"x", destination=f"/log/{n}"), count=40)
frames("SUBSCRIBE to a log", lambda n: frame("SUBSCRIBE", id=n, destination="/log/a"))
frames("SUBSCRIBE groups of a log", lambda n: frame("SUBSCRIBE", id=n, destination="/log/a", group=n), count=200)
frames(
    "other credit of a subscription",
    lambda n: frame("SEND", destination="/sluiceway/credit", id="s", credit=n % 3),
    first=frame("SUBSCRIBE", id="s", destination=Q, ack="client"),
)
frames(
    "retained messages",
    lambda n: frame("SEND", b"x", destination=f"/topic/r{n}", retain="set"),
    count=200,
)
