"""Every request, over STOMP and over HTTP, with ten thousand destinations or a hundred thousand messages there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from sluiceway.config import Config
from tests.admin.conftest import AdminStage
from tests.limits.law import LawStage, frame
from tests.limits.test_frames import MANY, MOST, Q

CROWD_COUNT = 10_000
"""Destinations."""
WAITING_COUNT = 600
"""Destinations of which all wait for one consumer."""


class AdminLawStage(LawStage, AdminStage):
    """With the admin port."""

    async def crowd(self) -> None:
        """Destinations with a message each."""
        sender = await self.client()
        await sender.send_raw(b"".join(frame("SEND", b"x", destination=f"/queue/q{n}") for n in range(CROWD_COUNT)))
        await sender.sync()

    async def apart(self, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask in a task of its own: the app runs in the task that asks, and that of the test is not counted."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)


@pytest.mark.slow
async def test_stat(stage: LawStage) -> None:
    sender = await stage.client()
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=f"/queue/q{n}") for n in range(CROWD_COUNT)))
    await sender.sync()
    await sender.subscribe("/temp-queue/r")
    with stage.law("/sluiceway/stat", limit="one request", crowd=f"{CROWD_COUNT:,} queues"):
        await sender.send("/sluiceway/stat", b"", reply_to="/temp-queue/r")
        await sender.next_message()


@pytest.mark.parametrize("request_name", ["sessions", "cluster", "trail", "log/list", "claim/open", "log/describe"])
async def test_requests_over_stomp(stage: LawStage, request_name: str) -> None:
    sender = await stage.filled(Q, MOST)
    await sender.subscribe("/temp-queue/r")
    body = b'{"queue": "/queue/q", "sessions": [%s], "names": [%s], "log": "/log/x", "correlation_id": "none"}'
    names = b",".join(b'"%d"' % n for n in range(1000))
    with stage.law(f"/sluiceway/{request_name}", limit="one request", crowd="100,000 messages"):
        await sender.send(
            f"/sluiceway/{request_name}", body % (names, b",".join(names.split(b",")[:100])), reply_to="/temp-queue/r"
        )
        await sender.next_message()


VIEWS = [
    "/api/v1/overview",
    "/api/v1/destinations?limit=500",
    "/api/v1/destinations?sort=-name&q=9",
    "/api/v1/connections",
    "/api/v1/map",
    "/api/v1/dead-letters",
    "/api/v1/config",
    "/api/v1/destination?name=/queue/q1",
    "/api/v1/messages?name=/queue/q1",
    "/api/v1/trails?correlation_id=x",
    "/api/v1/openapi.json",
    "/metrics",
    "/healthz",
    "/readyz",
]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_views() -> None:
    async with AdminLawStage() as stage:
        await stage.crowd()
        for path in VIEWS:

            async def ask(path: str = path) -> None:
                response = await stage.http.get(path)
                assert response.status_code < 500 or path == "/readyz", (path, response.text)

            with stage.law(f"GET {path}", limit="one request", crowd=f"{CROWD_COUNT:,} queues") as counting:
                counting.measures_with(stage.services.pace, stage.broker.metrics._pace)
                await stage.apart(ask)


ACTIONS: dict[str, dict[str, Any]] = {
    "pause": {"name": Q},
    "resume": {"name": Q},
    "move": {"from": Q, "to": "/queue/other", "all": True, "confirm": Q},
    "purge": {"name": "/queue/other", "confirm": "/queue/other"},
}


async def test_actions() -> None:
    async with AdminLawStage() as stage:
        await stage.filled(Q, MANY)
        token = await stage.csrf()
        for action, body in ACTIONS.items():

            async def act(action: str = action, body: dict[str, Any] = body, token: str = token) -> None:
                response = await stage.http.post(
                    f"/api/v1/actions/{action}", json=body, headers={"X-Sluiceway-CSRF": token}
                )
                assert response.status_code in (200, 404), response.text

            with stage.law(f"POST {action}", limit="10,000 messages") as counting:
                counting.measures_with(stage.services.pace)
                await stage.apart(act)


@pytest.mark.slow
async def test_reload() -> None:
    async with AdminLawStage() as stage:
        await stage.crowd()
        with (
            stage.law("reload", limit="one file", crowd=f"{CROWD_COUNT:,} queues") as counting,
            counting.called("reload"),
        ):
            stage.broker.reload(stage.broker.config if isinstance(stage.broker.config, Config) else Config())


async def test_a_connection_with_many_messages_is_closed_by_an_operator() -> None:
    async with AdminLawStage() as stage:
        client = await stage.holding(MANY)
        session = next(c.session for c in stage.broker.connections if c.session.unsettled_count)
        token = await stage.csrf()

        async def act() -> None:
            response = await stage.http.post(
                "/api/v1/actions/close-connection", json={"id": session.session_id}, headers={"X-Sluiceway-CSRF": token}
            )
            assert response.status_code in (200, 404, 400), response.text

        with stage.law("POST close", limit="10,000 deliveries") as counting:
            counting.measures_with(stage.services.pace)
            await stage.apart(act)
            await trio.sleep(3)
        client.vanish()


async def test_many_changes_of_credit_in_one_read(stage: LawStage) -> None:
    client = await stage.filled(Q, MOST)
    await client.subscribe(Q, ack="client", prefetch_count="1")
    requests = b"".join(
        frame("SEND", destination="/sluiceway/credit", id="s", credit=1 + n % 2, n=n) for n in range(500)
    )
    with stage.law("500 /sluiceway/credit", limit="one read", crowd="100,000 messages"):
        await client.send_raw(requests)
        await client.sync()


async def test_resuming_a_wildcard_for_which_much_waits(stage: LawStage) -> None:
    client, sender = await stage.client(), await stage.client()
    await client.subscribe("/queue/>")
    await client.sent("/sluiceway/credit", id="s", credit="0")
    await sender.send_raw(b"".join(frame("SEND", b"x", destination=f"/queue/q{n}") for n in range(WAITING_COUNT)))
    await sender.sync()
    with stage.law("resume of a wildcard", limit="attachments_max", crowd=f"{WAITING_COUNT:,} queues with a message"):
        await client.sent("/sluiceway/credit", id="s", paused="false")
        assert len(await client.next_messages(WAITING_COUNT)) == WAITING_COUNT


async def test_wildcard_that_gets_many_retained_messages(stage: LawStage) -> None:
    client, sender = await stage.client(), await stage.client()
    await sender.send_raw(
        b"".join(frame("SEND", b"x", destination=f"/topic/t{n}", retain="set") for n in range(WAITING_COUNT))
    )
    await sender.sync()
    with stage.law("SUBSCRIBE with retained", limit="retained_count_max", crowd=f"{WAITING_COUNT:,} of them"):
        await client.subscribe("/topic/>")
        assert len(await client.next_messages(WAITING_COUNT)) == WAITING_COUNT
