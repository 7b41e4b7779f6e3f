"""Whatever a stranger sends to the admin port, the answer is no 500, and the log has no traceback.

Requests are made from a seed: each is a good one with some of its parts made hostile. Over real sockets, with and
without users, as a whole, in pieces, one behind the other, and broken off.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from random import Random
from typing import Final

import attrs
import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.config import Config, Listener, SecurityConfig
from sluiceway.config.admin import AdminConfig
from tests.admin.test_http import DEADLINE_SECONDS, rest_of_nothing, url_of
from tests.log_lines import LogLines

REQUESTS_COUNT: Final = 250
HURRY_SECONDS: Final = 0.3
"""Some conversations end only when the port has waited so long; on a busy machine that may cut others off, too."""
ADMIN: Final = AdminConfig(address="127.0.0.1:0", client_seconds=HURRY_SECONDS, body_bytes_max=2048)

PATHS: Final = (
    b"/",
    b"/healthz",
    b"/readyz",
    b"/metrics",
    b"/static/console.js",
    b"/static/../app.py",
    b"/static/%00",
    b"/api/v1/openapi.json",
    b"/api/v1/overview",
    b"/api/v1/session",
    b"/api/v1/destinations",
    b"/api/v1/map",
    b"/api/v1/chains",
    b"/api/v1/destination",
    b"/api/v1/messages",
    b"/api/v1/message",
    b"/api/v1/trails",
    b"/api/v1/log",
    b"/api/v1/logs",
    b"/api/v1/config",
    b"/api/v1/login",
    b"/api/v1/logout",
    b"/api/v1/pause",
    b"/api/v1/purge",
    b"/api/v1/move",
    b"/api/v1/send",
    b"/api/v1/nothing",
    b"*",
    b"//",
    b"/%",
    b"/%ff%fe",
    b"/\xff\xfe",
    b"http://elsewhere/healthz",
    b"/healthz?" + b"a=b&" * 500,
    b"/" + b"x" * 9000,
    b"",
    b"/a b",
)
QUERIES: Final = (
    b"",
    b"",
    b"?name=/queue/a",
    b"?name=%ff",
    b"?name=\xff",
    b"?limit=99999999999999999999999",
    b"?limit=-1",
    b"?limit=\xb2",
    b"?limit=%C2%B2",
    b"?limit=1e9",
    b"?limit=nan",
    b"?offset=" + b"9" * 5000,
    b"?sort=-nothing",
    b"?q=%00",
    b"?id=n1",
    b"?id=n",
    b"?id=%F0%9F%98%80",
    b"?message_id=" + b"x" * 3000,
    b"?message_id=a-" + b"1" * 30,
    b"?name=%ED%A0%80",
    b"?=&=&;",
    b"?correlation_id=%00",
    b"?name=a&name=b&limit=1&limit=2",
    b"?from=\x00",
)
METHODS: Final = (
    b"GET",
    b"GET",
    b"GET",
    b"POST",
    b"POST",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"HEAD",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"\xff",
)
BODIES: Final = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"\x00\x00\x00{",
    b"[" * 1500,
    b'{"a":' * 300,
    b"1" * 1900,
    b'{"name": ' + b"9" * 1900 + b"}",
    b'{"name": NaN, "limit": Infinity}',
    b'{"name": "\\ud800"}',
    b'{"login": "\\ud800", "passcode": "\\udfff"}',
    b'{"login": "ann", "passcode": "\\u0000"}',
    b'{"login": 1, "passcode": []}',
    b'{"name": "/queue/a", "destination": "/queue/\\ud800", "body": "x"}',
    b'{"name": "/queue/a", "name": "/queue/b"}',
    b'{"name": "/topic/>"}',
    b'{"name": "/queue/a", "message_ids": ["\\ud800-1", 5, null]}',
    b"x" * 4000,
    b"--b\r\n\r\n--b--",
    b'{"name": "/queue/' + b"\xc3\xa9" * 600 + b'"}',
    b'{"login": "ann", "passcode": "' + b"p" * 1900 + b'"}',
)


def basic(credentials: bytes) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(credentials)


HEADERS: Final = (
    b"Authorization: Basic \xe9\xe9\xe9",
    b"Authorization: Basic",
    b"Authorization: Basic =",
    b"Authorization: Basic a===",
    basic(b"\xff\xfe:x"),
    basic(b"nocolon"),
    basic(b":"),
    basic(b"ann:\x00"),
    basic(b"ann:" + b"x" * 3000),
    basic("ann:\ud800".encode("utf-8", "surrogatepass")),
    b"Authorization: \xff",
    b"Authorization: Bearer x",
    b"Authorization:",
    b'Authorization: Digest username="x"',
    b"Cookie: sluiceway-session=\xff\xfe",
    b'Cookie: sluiceway-session="\\777"',
    b"Cookie: " + b"a=b; " * 300,
    b"Cookie: =;;=",
    b"Cookie: sluiceway-session=" + b"x" * 4000,
    b"Origin: \xff",
    b"Origin: null",
    b"Origin: http://elsewhere",
    b"Sec-Fetch-Site: cross-site",
    b"X-Sluiceway-CSRF: \xff\xfe",
    b"X-Requested-With: \xff",
    b"Accept: \xff;q=\xb2",
    b"Accept: application/openmetrics-text;version=\xb2;q=9e999",
    b"Accept: " + b"a/b," * 500,
    b"If-None-Match: \xff",
    b"Range: bytes=0-\xb2",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: \xff\r\nSec-WebSocket-Version: 13",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: \xff",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: !",
    b"Expect: 100-continue",
    b"Expect: \xff",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Content-Length: \xb2",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 5, 6",
    b"X-Forwarded-For: \xff",
    b"Content-Encoding: gzip",
    b"X-\xff: y",
    b"X: " + b"y" * 20_000,
    b"\xff",
    b": x",
    b" folded",
    b"X-A: a\x00b",
    b"Connection: close",
    b"Host: \xff",
    b"Host: [::1",
    b"Host: [\xb2]",
    b"Host: a:\xb2",
    b"Host: 127.0.0.1%\xff",
    b"Host: 127.0.0.1:99999999999",
)
CONTENT_TYPES: Final = (
    b"application/json",
    b"application/json",
    b"application/json; charset=\xff",
    b"text/plain",
    b"\xff",
    b"",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=b",
    b"application/json;" * 50,
)


def request(random: Random) -> bytes:
    """One that is more or less wrong."""
    line = [random.choice(METHODS), random.choice(PATHS) + random.choice(QUERIES)]
    line.append(random.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"\xff")))
    headers = [] if random.random() < 0.1 else [b"Host: 127.0.0.1"]
    headers += random.sample(HEADERS, random.choice((0, 1, 1, 2, 3)))
    body = random.choice(BODIES) if random.random() < 0.6 else b""
    if body:
        headers.append(b"Content-Type: " + random.choice(CONTENT_TYPES))
        if random.random() < 0.9:
            headers.append(b"Content-Length: %d" % (len(body) + random.choice((0, 0, 0, 5, -1))))
    return b" ".join(line) + b"\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body


def conversation(random: Random) -> list[bytes]:
    """What goes over one connection, in pieces; it may end anywhere."""
    if random.random() < 0.05:
        data = random.choice(
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(60), random.randbytes(200), b"CONNECT\n\n\0")
        )
    else:
        data = b"".join([request(random) for _ in range(random.choice((1, 1, 1, 2, 5)))])
    if random.random() < 0.3:
        data = data[: random.randrange(len(data))]
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 4))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def speak(port: int, pieces: list[bytes], *, reads: bool) -> bytes:
    """Send it all; returns what comes back."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    answer = b""
    async with stream:
        try:
            for piece in pieces:
                await stream.send_all(piece)
                await trio.lowlevel.checkpoint()
            if not reads:
                return b""
            await stream.send_eof()
            async for part in stream:
                answer += part
        except trio.BrokenResourceError:
            return answer
    return answer


USERS: Final = SecurityConfig(users={"ann": "annpass"}, login_free_count=100_000)


@pytest.fixture(params=["users", "nobody"])
async def broker(request: pytest.FixtureRequest, log_lines: LogLines) -> AsyncIterator[Broker]:
    config = Config(listeners=(Listener(address="127.0.0.1:0"),), admin=ADMIN)
    if request.param == "users":
        config = attrs.evolve(config, security=USERS)
    async with Broker(config) as broker:
        yield broker


def faults_of(log_lines: LogLines) -> list[str]:
    return [str(line) for line in log_lines.all() if "exception" in line or line["level"] in ("error", "critical")]


async def check(broker: Broker, log_lines: LogLines, pieces: list[bytes], *, reads: bool = True) -> bytes:
    with trio.fail_after(DEADLINE_SECONDS):
        answer = await speak(int(url_of(broker).rpartition(":")[2]), pieces, reads=reads)
    # 501 is for a transfer coding that nobody speaks.
    assert not re.search(rb"^HTTP/1\.[01] 5(?!01 )", answer, re.MULTILINE), (pieces, answer[:500])
    assert not faults_of(log_lines), (pieces, faults_of(log_lines)[0][-3000:])
    return answer


@pytest.mark.parametrize("seed", range(2))
async def test_hostile_requests_are_the_strangers_fault(broker: Broker, log_lines: LogLines, seed: int) -> None:
    random = Random(seed)
    for _ in range(REQUESTS_COUNT):
        await check(broker, log_lines, conversation(random), reads=random.random() < 0.7)
    assert broker.admin is not None and broker.admin._http is not None
    with trio.fail_after(DEADLINE_SECONDS):
        await rest_of_nothing(broker.admin._http)
    broker.admin._http._config.keep_alive_timeout = DEADLINE_SECONDS  # from here on an answer has to come
    assert (await check(broker, log_lines, [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])).startswith(
        b"HTTP/1.1 200"
    )


async def test_each_header(broker: Broker, log_lines: LogLines) -> None:
    for header in HEADERS:
        head = b"GET /api/v1/overview HTTP/1.1\r\n" + (b"" if header.startswith(b"Host") else b"Host: 127.0.0.1\r\n")
        await check(broker, log_lines, [head + header + b"\r\n\r\n"])


@pytest.mark.parametrize("path", [b"login", b"send", b"pause", b"purge"])
async def test_each_body(broker: Broker, log_lines: LogLines, path: bytes) -> None:
    token = broker.admin.services.access._token("nobody").encode() if broker.admin and broker.admin.services else b""
    head = b"POST /api/v1/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" % path
    head += basic(b"ann:annpass") + b"\r\nX-Sluiceway-CSRF: " + token
    for body in BODIES:
        await check(broker, log_lines, [head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body])


async def test_each_path(broker: Broker, log_lines: LogLines) -> None:
    for path in PATHS:
        for query in QUERIES:
            head = b"GET " + path + query + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            await check(broker, log_lines, [head])


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_leaves_in_the_middle_of_its_body(broker: Broker, log_lines: LogLines, reads: bool) -> None:
    head = b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 100\r\n\r\n"
    await check(broker, log_lines, [head, b'{"login": '], reads=reads)
    assert broker.admin is not None and broker.admin._http is not None
    await rest_of_nothing(broker.admin._http)
    await check(broker, log_lines, [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
