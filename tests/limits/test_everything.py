"""Whoever looks, over HTTP, STOMP or metrics, while there are a thousand of everything.

Ten thousand of each take minutes to make: `LAW_CROWD=10000 scripts/test tests/limits/test_everything.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio

from sluiceway.admin.app import ROUTES
from sluiceway.admin.routes import ApiRoute
from sluiceway.answering import LISTS
from sluiceway.queues.durables import Durable
from tests.admin.conftest import AdminStage
from tests.limits.law import LawStage, frame
from tests.limits.weighing import Plain
from tests.scenarios.log_stage import LogStage

CROWD_COUNT: Final = int(os.environ.get("LAW_CROWD", "1000"))
"""Queues, topics, connections, subscriptions, durable subscriptions, groups of logs, messages with trails."""
EACH: Final = CROWD_COUNT // 10
"""Of them a connection has."""
LOGS_COUNT: Final = CROWD_COUNT // 10
CROWD: Final = f"{CROWD_COUNT:,} of everything"


class Everything(LawStage, AdminStage, LogStage):
    """A broker with ten thousand of everything."""

    async def crowd(self) -> None:
        """Make them."""
        self.kept: list[Plain] = []
        for part in range(CROWD_COUNT // EACH):
            numbers = range(part * EACH, (part + 1) * EACH)
            reader = await Plain(self).connected(client_id=f"c{part}")
            await reader.do(b"".join(frame("SUBSCRIBE", id=n, destination=f"/topic/t{n}") for n in numbers))
            sender = await Plain(self).connected()
            await sender.do(
                b"".join(
                    frame("SEND", b"x", destination=f"/queue/q{n}", correlation_id=n, persistent="true")
                    for n in numbers
                )
            )
            durable = await Plain(self).connected(client_id=f"d{part}")
            await durable.do(
                b"".join(frame("SUBSCRIBE", id=n, destination="/topic/durables", durable="true") for n in numbers)
            )
            groups = await Plain(self).connected()
            await groups.do(
                b"".join(
                    frame("SUBSCRIBE", id=n, destination=f"/log/l{n % LOGS_COUNT}", group=f"g{part}") for n in numbers
                )
            )
            self.kept += [reader, sender, durable, groups]
        while len(self.broker.connections) < CROWD_COUNT:
            self.kept.append(await Plain(self).connected())
        await trio.sleep(3)


TABLES: Final = ("limit=500", "limit=500&offset=9400&sort=-name&q=9")


def _asked(route: ApiRoute) -> list[str]:
    """Requests of this route, the dearest and one that finds little."""
    of: dict[str, list[str]] = {
        "chains": ["id=x"],
        "destination": ["name=/queue/q1", "name=/topic/durables"],
        "log": ["name=/log/l1"],
        "history": ["", "name=/queue/q1"],
        "records": ["name=/log/l1"],
        "destinations": [*TABLES, "limit=500&sort=-state"],
        "connections": [*TABLES, "limit=500&sort=-state"],
        "messages": ["name=/queue/q1", "name=/queue/q1&q=nothing"],
        "message": ["name=/queue/q1&message_id=x"],
        "trails": ["correlation_id=77", "correlation_id=none", "message_id=none"],
        "map": ["", "limit=500"],
        "subscriptions": ["limit=500", "destination=/topic/durables"],
    }
    name = route.path.rpartition("/")[2]
    paged = any(parameter.name == "offset" for parameter in route.query)
    return [f"{route.path}?{query}" for query in of.get(name, TABLES if paged else [""])]


@pytest.mark.slow
@pytest.mark.timeout(2_000 if CROWD_COUNT > 1_000 else 240)
async def test_whoever_looks() -> None:
    """Every GET of the API, the pages of the console, metrics, and every list that `stat` and `top` ask for."""
    async with Everything() as stage:
        await stage.crowd()
        looking = [request for route in ROUTES if route.method == "GET" for request in _asked(route)]
        looking += ["/metrics", "/metrics#openmetrics", "/", "/static/js/app.js", "/api/v1/openapi.json"]
        troubles: list[str] = []
        for path in looking:
            with _noting(troubles), stage.law(f"GET {path}", limit="one request", crowd=CROWD) as counting:
                counting.measures_with(stage.services.pace, stage.broker.metrics._pace)
                await _apart(stage, path)
        with _noting(troubles), stage.law("a point of history", limit="one point", crowd=CROWD) as counting:
            counting.measures_with(stage.services.pace)
            async with trio.open_nursery() as nursery:  # a task of its own: that of the test is not counted
                nursery.start_soon(stage.services.pace.run, stage.services.history.note_in_steps())
        asker = await stage.client()
        await asker.subscribe("/temp-queue/r")
        for of in ("", *LISTS):
            body: dict[str, Any] = {"of": of, "limit": 1000} if of else {}
            with _noting(troubles), stage.law(f"stat of {of or 'all'}", limit="one request", crowd=CROWD) as counting:
                counting.measures_with(stage.broker.answers._pace)
                await asker.send("/sluiceway/stat", json.dumps(body).encode(), reply_to="/temp-queue/r")
                await asker.next_message()
        for request in ("trail", "log/list", "log/groups", "claim/state"):
            with _noting(troubles), stage.law(f"{request} of many", limit="one request", crowd=CROWD) as counting:
                counting.measures_with(stage.broker.answers._pace)
                body = {"log": "/log/l1", "correlation_id": "77", "queue": "/queue/q1", "group": "g"}
                await asker.send(f"/sluiceway/{request}", json.dumps(body).encode(), reply_to="/temp-queue/r")
                await asker.next_message()
        assert not troubles, "\n\n".join(troubles)


async def test_the_sweep_of_durable_subscriptions(stage: LawStage) -> None:
    """All of one topic, to which nobody has come back for too long: all of them go."""
    client = await stage.client(client_id="me")
    await client.subscribe("/topic/t", durable="true")
    durables = stage.broker.registry.durables
    for number in range(10_000):
        durables.restore(
            Durable(
                durable_id=number + 100,
                client_id="c",
                name=f"d{number}",
                destination="/topic/t",
                created_ms=0,
                last_seen_ms=0,
            )
        )
    with stage.law("sweep of durable subscriptions", limit="durables_max"):
        await trio.sleep(30)
    assert len(durables) == 1


@contextmanager
def _noting(troubles: list[str]) -> Iterator[None]:
    """All of them are to be seen, not only the first: the crowd takes long to make."""
    try:
        yield
    except AssertionError as error:
        troubles.append(str(error))


async def _apart(stage: Everything, path: str) -> None:
    path, _, kind = path.partition("#")
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"} if kind else {}

    async def ask() -> None:
        response = await stage.http.get(path, headers=accept)
        assert response.status_code < 500 or path == "/readyz", (path, response.text)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
