"""The admin port without a port: requests go straight into the app, in virtual time; clients are on memory streams."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from inspect import iscoroutinefunction
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
import trio

from sluiceway.admin.app import make_app
from sluiceway.admin.server import make_services
from sluiceway.config.admin import AdminConfig
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.stage import Stage

HERE = Path(__file__).parent
REAL_TIME = frozenset({"test_http.py", "test_hostile_requests.py"})
"""With sockets."""
LOOK_SECONDS = 0.000_05
"""From one look at the clock of work to the next one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Async tests of this folder run in virtual time, but for those with sockets."""
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.path.is_relative_to(HERE)
            and item.path.name not in REAL_TIME
            and iscoroutinefunction(item.obj)
        ):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


def _work_clock() -> Callable[[], float]:
    """Measures work by how often it is asked. By the clock of the machine one that stood still for a second would have
    worked so long, and rest for a minute.
    """
    looks = count()
    return lambda: next(looks) * LOOK_SECONDS


class AdminStage(Stage):
    """A stage with somebody who asks over HTTP."""

    def __init__(self, *arguments: Any, admin: AdminConfig | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.config = AdminConfig() if admin is None else admin

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.services = make_services(self.broker, self.config)
        self.services.pace._clock = _work_clock()
        self.services.reader.open()
        self.services.history.start()
        self._sampling = trio.CancelScope()
        self.broker._nursery.start_soon(self._sample)
        self.http = self.browser()
        return self

    async def _sample(self) -> None:
        with self._sampling:
            await self.services.sampler.run()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for destination in self.broker.registry.destinations.values():
            destination.unpause()  # or nothing of it could be drained
        self._sampling.cancel()
        self.services.reader.close()
        self.services.history.stop()
        await super().__aexit__(kind, error, trace)

    def browser(self, **headers: str) -> httpx.AsyncClient:
        """Another client, with cookies of its own."""
        app: Any = make_app(self.services, self.config)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8161", headers=headers)

    async def get(self, name: str, /, **query: Any) -> Any:
        """The answer to a GET of the API, which must be 200."""
        response = await self.http.get(f"/api/v1/{name}", params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def csrf(self, http: httpx.AsyncClient | None = None) -> str:
        """The token that actions need."""
        response = await (http or self.http).get("/api/v1/session")
        token: str = response.json()["csrf"]
        return token

    async def act(self, name: str, body: Mapping[str, Any], *, status: int = 200) -> Any:
        """Do it; the answer must have that status."""
        response = await self.http.post(
            f"/api/v1/actions/{name}", json=dict(body), headers={"X-Sluiceway-CSRF": await self.csrf()}
        )
        assert response.status_code == status, response.text
        return response.json()


def basic(login: str, passcode: str) -> dict[str, str]:
    """Headers of HTTP Basic."""
    return {"Authorization": "Basic " + base64.b64encode(f"{login}:{passcode}".encode()).decode()}


def error_of(response: httpx.Response) -> str:
    """The code of an error, whose shape is checked."""
    body = json.loads(response.content)
    assert set(body) == {"error"} and set(body["error"]) == {"code", "message", "remedy"}
    code: str = body["error"]["code"]
    return code


@pytest.fixture
async def stage() -> AsyncIterator[AdminStage]:
    """A broker as it comes."""
    async with AdminStage() as stage:
        yield stage
