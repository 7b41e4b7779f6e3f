"""What HTTP holds: connections, bodies, logins, answers that nobody takes."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from typing import Any, Self

import trio
import trio.testing

from sluiceway.admin.app import make_app
from sluiceway.admin.http import HttpServer
from sluiceway.admin.server import make_services
from sluiceway.config.admin import AdminConfig
from sluiceway.store.memory import MemoryEngine
from tests.limits.cases import CASES, POLICIES, Play, case, long
from tests.limits.law import frame
from tests.limits.weighing import Plain
from tests.scenarios.stage import Stage

HTTP_COUNT = 30
"""Connections, bodies and logins of a round."""


class HttpStage(Stage):
    """A stage with an admin port that has no port."""

    def __init__(self) -> None:
        super().__init__(POLICIES, users={f"user{n}": "p" for n in range(2 * HTTP_COUNT)}, engine=MemoryEngine())

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        config = AdminConfig(connections_max=1_000, metrics_open=True)
        self.services = make_services(self.broker, config)
        self.services.reader.open()
        self.http = HttpServer(
            make_app(self.services, config),
            [],
            connections_max=1_000,
            client_seconds=config.client_seconds,
            contain=self.broker.faults.contain,
            keep=self.broker.manager.keep,
        )
        return self

    async def asking(self, data: bytes) -> trio.StapledStream[Any, Any]:
        """A connection that has sent this."""
        ours, theirs = trio.testing.lockstep_stream_pair()
        theirs.socket = _Socket()  # type: ignore[attr-defined]
        self.http.tasks.connections_count += 1
        self.broker._nursery.start_soon(self.http.tasks._serve, theirs)
        await ours.send_all(data)
        await self.settled_down()
        return ours

    async def asked(self, data: bytes) -> bytes:
        """The answer, and everything of the connection is gone."""
        stream = await self.asking(data)
        answer = bytes(await stream.receive_some(1 << 16))
        await stream.aclose()
        await self.settled_down()
        return answer

    async def __aexit__(self, *error: Any) -> None:
        self.services.reader.close()
        await super().__aexit__(*error)


class _Socket:
    """As much of a socket as Hypercorn asks for."""

    family = socket.AF_INET

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getsockname = getpeername


def _request(method: str, path: str, *headers: str, body: bytes = b"", length: int | None = None) -> bytes:
    lines = [
        f"{method} /{path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(body) if length is None else length}",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http(name: str, data: Callable[[int], bytes], *, status: int | None = None, count: int = HTTP_COUNT) -> None:
    """A case of HTTP. `status`: each is answered so, and closed; None: the connection stays."""

    async def made(stage: Stage) -> Play:
        assert isinstance(stage, HttpStage)
        kept: list[Any] = []

        async def play(numbers: range) -> None:
            for n in numbers:
                if status is None:
                    kept.append(await stage.asking(data(n)))
                else:
                    answer = await stage.asked(data(n))
                    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            if status is not None:
                await trio.sleep(60)  # trio keeps deadlines that were called off

        return play

    CASES[f"HTTP {name}"] = (made, count)


def _basic(n: int) -> str:
    return "Authorization: Basic " + base64.b64encode(f"user{n}:p".encode()).decode()


http("connections that say nothing", lambda n: b"")
http("heads that do not end", lambda n: _request("GET", long(n, 8_000))[:-2])
http("bodies under way", lambda n: _request("POST", "api/v1/login", body=b"%d" % n * 30_000, length=200_000))
http("bodies of actions under way", lambda n: _request("POST", "api/v1/actions/purge", _basic(n), length=100_000))
http("bodies that nobody wants", lambda n: _request("GET", "nothing", body=b"x" * 60_000, length=200_000), status=404)
http(
    "logins",
    lambda n: _request("POST", "api/v1/login", body=json.dumps({"login": f"user{n}", "passcode": "p"}).encode()),
    status=200,
)
http(
    "logins that fail",
    lambda n: _request("POST", "api/v1/login", body=json.dumps({"login": long(n), "passcode": "p"}).encode()),
    status=401,
    count=10,
)
http("logins by Basic", lambda n: _request("GET", "api/v1/session", _basic(n)), status=200)
http("answers that nobody takes", lambda n: _request("GET", "api/v1/openapi.json", _basic(n)))


@case("HTTP metrics", 40)
async def _(stage: Stage) -> Play:
    """Of destinations beyond those with series of their own, which come and go and are sent to between two pages."""
    assert isinstance(stage, HttpStage)
    client = await Plain(stage).connected(login="user0", passcode="p")
    page = _request("GET", "metrics")

    async def play(numbers: range) -> None:
        for n in numbers:
            await client.do(frame("SEND", b"x", destination=f"/topic/{long(n)}"))
            if n % 20 == 19:
                await stage.broker.metrics_page()
                answer = await stage.asked(page)
                assert answer.startswith(b"HTTP/1.1 200 "), answer
        await trio.sleep(60)

    return play
