"""The port itself, over real sockets: HTTP is spoken, clients that stall are cut, and there are only so many."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from sluiceway import serving
from sluiceway.admin.http import HttpServer
from sluiceway.broker import Broker, ListenError
from sluiceway.config import BrokerConfig, Config, Listener, SecurityConfig
from sluiceway.config.admin import AdminConfig
from sluiceway.data_folder import open_data_folder
from sluiceway.embedded import EmbeddedBroker
from sluiceway.protocols.listener import bind
from sluiceway.protocols.settings import TlsConfig
from sluiceway.protocols.tls import CertificateError
from sluiceway.reloading import ReloadError
from sluiceway.store.directory import DirectoryError
from tests.log_lines import LogLines
from tests.network.authority import authority, certificate_until, server_certificate

DEADLINE_SECONDS = 40
PATIENT = AdminConfig(address="127.0.0.1:0")
SMALL = AdminConfig(address="127.0.0.1:0", connections_max=3, body_bytes_max=2048)
HASTY = attrs.evolve(SMALL, client_seconds=0.3)
"""Nothing but to be cut may be expected of it: on a busy machine that comes before any answer."""


def config_with(admin: AdminConfig) -> Config:
    return Config(listeners=(Listener(address="127.0.0.1:0"),), admin=admin)


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker whose admin port has little room; or another one, if the test says so."""
    with trio.fail_after(DEADLINE_SECONDS):
        async with Broker(config_with(getattr(request, "param", SMALL))) as broker:
            yield broker


def url_of(broker: Broker) -> str:
    assert broker.admin is not None
    (url,) = broker.admin.urls
    return url


Connect = Callable[[], Awaitable[trio.SocketStream]]


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    """Makes bare connections, which are closed at the end."""
    streams = []

    async def connected() -> trio.SocketStream:
        host, port = url_of(broker).removeprefix("http://").split(":")
        streams.append(await trio.open_tcp_stream(host, int(port)))
        return streams[-1]

    yield connected
    for stream in streams:
        await trio.aclose_forcefully(stream)


async def rest_of(stream: trio.SocketStream) -> bytes:
    """All that comes until the other side ends it."""
    data = b""
    try:
        async for part in stream:
            data += part
    except trio.BrokenResourceError:
        return data
    return data


async def rest_of_nothing(http: HttpServer) -> None:
    """Until all connections are gone."""
    while http.tasks.connections_count:  # noqa: ASYNC110 - it is not told to anybody
        await trio.sleep(0.01)


class TestServing:
    async def test_it_is_served_and_ends_with_the_broker(self) -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(config_with(PATIENT)) as broker:
                url = url_of(broker)
                async with httpx.AsyncClient(base_url=url) as http:
                    assert (await http.get("/healthz")).json() == {"ok": True}
                    assert (await http.get("/api/v1/overview")).status_code == 200
            with pytest.raises(OSError):
                await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))

    async def test_a_port_that_is_taken_is_told_before_anything_starts(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ListenError, match="in use"):
                async with Broker(config_with(AdminConfig(address=address))):
                    raise AssertionError("it started")

    async def test_nobody_can_connect_before_all_ports_are_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a client of STOMP gets in, and is cut off when the admin port turns out to be taken."""
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as probe:
            stomp = probe.getsockname()
            probe.close()
            refused: list[int] = []

            async def bind_late(address: str) -> list[socket.socket]:
                with socket.socket() as client:
                    refused.append(client.connect_ex(stomp))
                return await bind(address)

            monkeypatch.setattr("sluiceway.admin.server.bind", bind_late)
            config = config_with(AdminConfig(address=f"127.0.0.1:{taken.getsockname()[1]}"))
            config = attrs.evolve(config, listeners=(Listener(address=f"127.0.0.1:{stomp[1]}"),))
            with pytest.raises(ListenError, match="in use"):
                async with Broker(config):
                    raise AssertionError("it started")
            assert refused == [errno.ECONNREFUSED]

    async def test_probes_are_answered_while_the_store_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Alive, and not ready: whoever sees to it must not take a long start for a dead broker."""
        begun, over = trio.Event(), trio.Event()

        async def open_late(*arguments: Any, **more: Any) -> Any:
            begun.set()
            await over.wait()
            return await open_data_folder(*arguments, **more)

        monkeypatch.setattr("sluiceway.shard.open_data_folder", open_late)
        broker, ready, is_over = Broker(config_with(PATIENT)), trio.Event(), trio.Event()

        async def run() -> None:
            async with broker:
                ready.set()
                await is_over.wait()

        with trio.fail_after(DEADLINE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await begun.wait()
                assert broker.admin is not None
                async with httpx.AsyncClient(base_url=broker.admin.urls[0]) as http:
                    assert (await http.get("/healthz")).json() == {"ok": True}
                    response = await http.get("/readyz")
                    assert response.status_code == 503
                    assert response.json() == {"ready": False, "reasons": ["it is starting"]}
                    for path in ("/", "/metrics", "/api/v1/overview", "/nothing"):
                        response = await http.get(path)
                        assert response.status_code == 503 and response.json()["error"]["code"] == "starting"
                        assert response.headers["Retry-After"] and response.headers["X-Frame-Options"] == "DENY"
                    response = await http.post("/api/v1/login", json={"login": "x" * 100_000, "passcode": "y"})
                    assert response.status_code == 503
                    over.set()
                    await ready.wait()
                    assert (await http.get("/readyz")).json() == {"ready": True, "reasons": []}
                    assert (await http.get("/api/v1/overview")).status_code == 200
                is_over.set()

    async def test_a_start_that_fails_gives_the_admin_port_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And is told as what it is, not in a group."""

        async def fails(*_arguments: Any, **_more: Any) -> Any:
            raise DirectoryError("there is no room")

        monkeypatch.setattr("sluiceway.shard.open_data_folder", fails)
        broker = Broker(config_with(PATIENT))
        with trio.fail_after(DEADLINE_SECONDS):
            with pytest.raises(DirectoryError, match="no room"):
                await broker.__aenter__()
            assert broker.admin is not None
            with pytest.raises(OSError):
                await trio.open_tcp_stream("127.0.0.1", int(broker.admin.urls[0].rpartition(":")[2]))

    async def test_an_embedded_broker_has_one_if_it_is_configured(self) -> None:
        def ask() -> int:
            with EmbeddedBroker(config_with(PATIENT)) as embedded:
                return httpx.get(f"{embedded.call(url_of)}/readyz").status_code

        assert await trio.to_thread.run_sync(ask) == 200

    async def test_serve_announces_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And ends when the broker is drained."""
        for tuning in ("tune_garbage_collector", "tune_allocator"):
            monkeypatch.setattr(serving, tuning, lambda: None)  # of the whole process
        config = attrs.evolve(config_with(PATIENT), broker=BrokerConfig(data_dir=tmp_path))
        urls: list[str] = []
        with trio.fail_after(DEADLINE_SECONDS):
            async with trio.open_nursery() as nursery:
                ready = trio.Event()

                def announced(found: list[str]) -> None:
                    urls.extend(found)
                    ready.set()

                async def run() -> None:
                    await serving.serve(config, on_ready=lambda _urls: None, on_admin=announced)

                nursery.start_soon(run)
                await ready.wait()
                async with httpx.AsyncClient(base_url=urls[0]) as http:
                    csrf = (await http.get("/api/v1/session")).json()["csrf"]
                    response = await http.post(
                        "/api/v1/actions/drain",
                        json={"confirm": "sluiceway", "seconds": 5},
                        headers={"X-Sluiceway-CSRF": csrf},
                    )
                    assert response.status_code == 200
        assert urls


class TestClients:
    @pytest.mark.parametrize("broker", [HASTY], indirect=True)
    async def test_one_that_never_finishes_its_head_is_cut(self, connect: Connect) -> None:
        """However many bytes it drips meanwhile."""
        stream = await connect()
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        with trio.fail_after(DEADLINE_SECONDS):
            try:
                while True:
                    await stream.send_all(b"X: y\r\n")
                    await trio.sleep(0.05)
            except trio.BrokenResourceError:
                pass

    @pytest.mark.parametrize("broker", [HASTY], indirect=True)
    async def test_one_that_says_nothing_is_cut(self, broker: Broker, connect: Connect) -> None:
        stream = await connect()
        with trio.fail_after(DEADLINE_SECONDS):
            assert await rest_of(stream) == b""

    async def test_one_that_does_not_read_is_cut(
        self, broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its answer holds nothing and nobody for long, nor does it keep the broker from stopping."""
        assert broker.admin is not None and broker.admin._http is not None
        http = broker.admin._http
        asked = trio.Event()

        async def endless(**_more: Any) -> bytes:
            http._config.keep_alive_timeout = HASTY.client_seconds
            asked.set()
            return b"x" * 50_000_000

        monkeypatch.setattr(broker, "metrics_page", endless)
        http._client_seconds = HASTY.client_seconds  # for the answer; the request may take its time
        stream = await connect()
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with trio.fail_after(DEADLINE_SECONDS):
            await asked.wait()
            await rest_of_nothing(http)

    @pytest.mark.parametrize("broker", [HASTY], indirect=True)
    async def test_one_whose_body_does_not_come_is_told_and_cut(self, broker: Broker, connect: Connect) -> None:
        assert broker.admin is not None and broker.admin._http is not None
        broker.admin._http._config.keep_alive_timeout = DEADLINE_SECONDS  # its head may take its time
        stream = await connect()
        await stream.send_all(
            b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        with trio.fail_after(DEADLINE_SECONDS):
            assert b" 408 " in await rest_of(stream)

    @pytest.mark.parametrize(
        "request_head",
        [
            b"Content-Length: 999999999\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n",
        ],
        ids=["announced", "chunked"],
    )
    async def test_a_body_that_is_too_large_is_refused(self, request_head: bytes, connect: Connect) -> None:
        """Before it is read, or as soon as it is too large."""
        stream = await connect()
        await stream.send_all(
            b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + request_head
        )
        if b"chunked" in request_head:
            await stream.send_all(b"400\r\n" + b" " * 1024 + b"\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n")
        with trio.fail_after(DEADLINE_SECONDS):
            assert b" 413 " in await rest_of(stream)

    @pytest.mark.parametrize(
        "data",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"CONNECT\naccept-version:1.2\n\n\0",
            b"\0" * 100,
            b"GET /\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        ],
        ids=["tls", "stomp", "zeros", "no-version", "two-hosts", "long-header"],
    )
    async def test_what_is_no_http_is_answered_or_cut(self, data: bytes, broker: Broker, connect: Connect) -> None:
        """And the port goes on."""
        stream = await connect()
        await stream.send_all(data)
        with trio.fail_after(DEADLINE_SECONDS):
            answer = await rest_of(stream)
        assert not answer or b" 400 " in answer[:20] or b" 431 " in answer[:20]
        async with httpx.AsyncClient(base_url=url_of(broker)) as http:
            assert (await http.get("/healthz")).status_code == 200

    @pytest.mark.parametrize("path", [b"/metrics", b"/api/v1/overview", b"/healthz"])
    async def test_a_body_that_nobody_wants_holds_no_connection(
        self, path: bytes, broker: Broker, connect: Connect
    ) -> None:
        """In however many pieces it comes; or a stranger could take all connections for good."""
        stream = await connect()
        await stream.send_all(
            b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100
        )
        assert broker.admin is not None and broker.admin._http is not None
        with trio.fail_after(DEADLINE_SECONDS):
            assert b" 200 " in (await rest_of(stream))[:20]
            await rest_of_nothing(broker.admin._http)

    @pytest.mark.parametrize("upgrade", [False, True])
    async def test_http_2_is_not_spoken(self, upgrade: bool, broker: Broker, connect: Connect) -> None:
        """Who grants no window there would be waited for without end."""
        client = H2Connection(H2Configuration(client_side=True))
        stream = await connect()
        if upgrade:
            settings = client.initiate_upgrade_connection() or b""
            await stream.send_all(
                b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: h2c\r\nHTTP2-Settings: " + settings + b"\r\n"
                b"Connection: Upgrade, HTTP2-Settings\r\n\r\n"
            )
        else:
            client.initiate_connection()
            client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            about = {":method": "GET", ":path": "/", ":scheme": "http", ":authority": "127.0.0.1"}
            client.send_headers(1, list(about.items()), end_stream=True)
        await stream.send_all(client.data_to_send())
        assert broker.admin is not None and broker.admin._http is not None
        with trio.fail_after(DEADLINE_SECONDS):
            assert b"<html" not in await rest_of(stream)
            await rest_of_nothing(broker.admin._http)

    async def test_a_websocket_is_refused(self, broker: Broker, connect: Connect) -> None:
        stream = await connect()
        await stream.send_all(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        with trio.fail_after(DEADLINE_SECONDS):
            assert b" 403 " in (await rest_of(stream))[:20]

    async def test_one_more_than_allowed_is_closed_at_once(self, broker: Broker, connect: Connect) -> None:
        """The others go on, and there is room again when one has left."""
        async with httpx.AsyncClient(base_url=url_of(broker)) as http:
            assert (await http.get("/healthz")).status_code == 200  # one is kept alive
            others = [await connect() for _ in range(2)]
            with trio.fail_after(DEADLINE_SECONDS):
                one_more = await connect()
                assert await rest_of(one_more) == b""
            assert (await http.get("/healthz")).status_code == 200
            for stream in others:
                await stream.aclose()

    async def test_answers_carry_no_server_name(self, broker: Broker) -> None:
        async with httpx.AsyncClient(base_url=url_of(broker)) as http:
            assert "server" not in (await http.get("/healthz")).headers


class TestTls:
    @pytest.fixture
    def files(self, tmp_path: Path) -> AdminConfig:
        certificate = tmp_path / "admin.pem"
        server_certificate().private_key_and_cert_chain_pem.write_to_path(str(certificate))
        return attrs.evolve(PATIENT, tls=TlsConfig(certificate=certificate))

    async def test_it_speaks_https(self, files: AdminConfig) -> None:
        context = ssl.create_default_context()
        authority().configure_trust(context)
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(config_with(files)) as broker:
                url = url_of(broker)
                assert url.startswith("https://")
                port = url.rpartition(":")[2]
                async with httpx.AsyncClient(base_url=f"https://localhost:{port}", verify=context) as http:
                    assert (await http.get("/api/v1/session")).status_code == 200
                    await broker.metrics_page()
                async with httpx.AsyncClient(base_url=f"http://localhost:{port}") as http:
                    with pytest.raises(httpx.TransportError):
                        await http.get("/healthz")

    async def test_a_reload_reads_the_certificate_again(self, files: AdminConfig) -> None:
        """A broken one changes nothing."""
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(config_with(files)) as broker:
                assert broker.admin is not None and files.tls.certificate is not None
                before = broker.admin._tls
                assert broker.reload(broker.config).changed == ()
                assert broker.admin._tls is not before
                certificate_until(days=30).private_key_and_cert_chain_pem.write_to_path(str(files.tls.certificate))
                assert broker.reload(broker.config).changed == ("admin.tls (certificate read again)",)
                renewed = broker.admin._tls
                files.tls.certificate.write_text("nonsense")
                with pytest.raises(ReloadError, match=r"admin\.pem"):
                    broker.reload(broker.config)
                assert broker.admin._tls is renewed

    async def test_when_its_certificate_ends_is_in_the_metrics_and_in_the_log(
        self, files: AdminConfig, log_lines: LogLines
    ) -> None:
        assert files.tls.certificate is not None
        certificate_until(days=3).private_key_and_cert_chain_pem.write_to_path(str(files.tls.certificate))
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(config_with(files)) as broker:
                ((label, not_after),) = broker.certificates()
                page = (await broker.metrics_page()).decode()
                (line,) = log_lines.of("the certificate expires soon")
        assert label == line["listener"] == "admin"
        (found,) = re.findall(r'^sluiceway_certificate_expires_timestamp_seconds{listener="admin"} (\S+)$', page, re.M)
        assert float(found) == not_after

    async def test_a_broken_certificate_stops_the_start(self, files: AdminConfig) -> None:
        assert files.tls.certificate is not None
        files.tls.certificate.write_text("nonsense")
        with pytest.raises(CertificateError, match=r"admin\.pem"):
            async with Broker(config_with(files)):
                raise AssertionError("it started")


class TestWarnings:
    @pytest.mark.parametrize(
        ("address", "security", "about"),
        [
            ("0.0.0.0:0", SecurityConfig(), "without users"),
            ("0.0.0.0:0", SecurityConfig(users={"ann": "x"}), "plain text"),
            ("127.0.0.1:0", SecurityConfig(), ""),
        ],
    )
    async def test_a_port_that_is_open_too_wide_is_warned_of(
        self, address: str, security: SecurityConfig, about: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = attrs.evolve(config_with(AdminConfig(address=address)), security=security)
        with trio.fail_after(DEADLINE_SECONDS):
            async with Broker(config):
                pass
        warned = [line for line in capsys.readouterr().err.splitlines() if "admin" in line]
        assert bool(warned) is bool(about) and all(about in line for line in warned)


class TestReload:
    async def test_limits_change_while_it_runs(self) -> None:
        """The address does not."""
        with trio.fail_after(DEADLINE_SECONDS):
            async with (
                Broker(config_with(PATIENT)) as broker,
                httpx.AsyncClient(base_url=url_of(broker), headers={"Host": "box.lan"}) as http,
            ):
                assert (await http.get("/api/v1/session")).status_code == 421
                changed = attrs.evolve(PATIENT, hosts=("box.lan",), address="127.0.0.1:1")
                report = broker.reload(attrs.evolve(broker.config, admin=changed))
                assert report.changed == ("admin.hosts",) and report.needs_restart == ("admin.address",)
                assert (await http.get("/api/v1/session")).status_code == 200


class TestConfiguration:
    def test_it_is_off_by_default(self) -> None:
        assert Config().admin.address == ""

    @pytest.mark.parametrize(
        "wrong",
        [
            {"address": "8161"},
            {"connections_max": 0},
            {"client_seconds": 0},
            {"body_bytes_max": 1},
            {"sessions_max": 0},
        ],
        ids=str,
    )
    def test_values_that_make_no_sense_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong)) if "address" not in wrong else "HOST:PORT"):
            attrs.evolve(AdminConfig(), **wrong)
