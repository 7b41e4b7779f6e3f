"""An operator of one hub, and what is moved to another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sluiceway.admin.app import make_app
from sluiceway.admin.server import make_services
from sluiceway.broker import Broker
from sluiceway.config.admin import AdminConfig


class Operator:
    """Someone who asks the admin port of one hub."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, what: str, /, **query: Any) -> Any:
        """Return the answer, which must be 200."""
        answer = await self._http.get(f"/api/v1/{what}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def act(self, what: str, status: int = 200, /, **body: Any) -> Any:
        """Return the answer to an action, or (another status) the error."""
        token = (await self.get("session"))["csrf"]
        answer = await self._http.post(f"/api/v1/actions/{what}", json=body, headers={"X-Sluiceway-CSRF": token})
        assert answer.status_code == status, answer.text
        return answer.json()["done"] if status == 200 else answer.json()["error"]


@asynccontextmanager
async def operated(broker: Broker) -> AsyncIterator[Operator]:
    """Give a hub an admin port, and someone who uses it."""
    services = make_services(broker, AdminConfig())
    services.reader.open()
    app: Any = make_app(services, AdminConfig())
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8161") as http:
        yield Operator(http)
    services.reader.close()
