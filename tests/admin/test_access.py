"""Who may ask: sessions, HTTP Basic, permissions by route and destination, and what keeps other pages out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import attrs
import httpx
import pytest
import trio

from sluiceway.admin import access, read_routes
from sluiceway.admin.access import COOKIE
from sluiceway.config import SecurityConfig
from sluiceway.config.admin import AdminConfig
from sluiceway.protocols.stomp.hub import LoginRefusedError
from sluiceway.security.config import Permission
from tests.admin.conftest import AdminStage, basic, error_of

SECURITY = SecurityConfig(
    users={"ann": "annpass", "bob": "bobpass"},
    permissions=(
        Permission(users=("ann",), actions=("*",)),
        Permission(users=("bob",), actions=("connect",)),
        Permission(users=("bob",), actions=("browse", "send"), destinations=("/queue/bob.>",)),
        Permission(users=("bob",), actions=("admin",), destinations=("/queue/bob.own",)),
    ),
)


@pytest.fixture
async def guarded() -> AsyncIterator[AdminStage]:
    """With ann, who may everything, and bob, who may little."""
    async with AdminStage(security=SECURITY) as stage:
        client = await stage.connect(login="ann", passcode="annpass")
        for name in ("/queue/bob.own", "/queue/bob.other", "/queue/secret"):
            await client.sent(name, "x")
        yield stage


async def page_at_once(*, openmetrics: bool = False) -> bytes:
    """Metrics without the thread that looks at the system: virtual time would not wait for it."""
    return b"# EOF\n" if openmetrics else b""


async def logged_in(stage: AdminStage, login: str = "ann") -> tuple[httpx.AsyncClient, str]:
    """A browser with a session, and its token."""
    http = stage.browser()
    response = await http.post("/api/v1/login", json={"login": login, "passcode": f"{login}pass"})
    assert response.status_code == 200, response.text
    return http, response.json()["csrf"]


class TestStrangers:
    @pytest.mark.parametrize(
        "path",
        ["overview", "map", "destinations", "destination?name=/queue/secret", "messages?name=/queue/secret", "config"],
    )
    async def test_they_see_nothing(self, path: str, guarded: AdminStage) -> None:
        response = await guarded.http.get(f"/api/v1/{path}")
        assert (response.status_code, error_of(response)) == (401, "log-in")
        assert response.headers["www-authenticate"].startswith("Basic")
        assert "secret" not in response.text

    async def test_they_can_log_in_and_ask_for_health(self, guarded: AdminStage) -> None:
        for path in ("/healthz", "/readyz", "/", "/api/v1/openapi.json"):
            assert (await guarded.http.get(path)).status_code == 200
        session = (await guarded.http.get("/api/v1/session")).json()
        assert session == {"user": None, "groups": [], "may": {"admin": False}, "csrf": "", "users_configured": True}

    async def test_metrics_are_for_admins_unless_they_are_open(
        self, guarded: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(guarded.broker, "metrics_page", page_at_once)
        assert (await guarded.http.get("/metrics")).status_code == 401
        assert (await guarded.http.get("/metrics", headers=basic("bob", "bobpass"))).status_code == 403
        guarded.config = AdminConfig(metrics_open=True)
        response = await guarded.browser().get("/metrics", headers={"Host": "prometheus.example"})
        assert response.status_code == 200

    async def test_metrics_that_do_not_come_are_given_up(
        self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that hangs holds no connection for ever."""

        async def stuck(**_more: Any) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(stage.broker, "metrics_page", stuck)
        began = trio.current_time()
        response = await stage.http.get("/metrics")
        assert (response.status_code, error_of(response)) == (503, "too-slow")
        assert trio.current_time() - began == pytest.approx(stage.config.request_seconds)

    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            ("", "text/plain"),
            ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
            ("application/openmetrics-text;version=9.0.0", "text/plain"),
            ("text/plain, application/openmetrics-text;q=0", "text/plain"),
        ],
    )
    async def test_metrics_come_in_the_format_that_was_asked_for(
        self, accept: str, kind: str, stage: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stage.broker, "metrics_page", page_at_once)
        response = await stage.http.get("/metrics", headers={"Accept": accept})
        assert response.headers["content-type"].startswith(kind)
        assert response.content.endswith(b"# EOF\n") is (kind != "text/plain")

    async def test_why_it_is_not_ready_names_no_folders_to_strangers(
        self, guarded: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            read_routes, "not_ready_because", lambda _broker: ["its store fails: /srv/data/1.log: no space"]
        )
        assert (await guarded.http.get("/readyz")).json()["reasons"] == ["its store fails"]
        response = await guarded.http.get("/readyz", headers=basic("ann", "annpass"))
        assert "/srv/data" in response.json()["reasons"][0]


class TestSessions:
    async def test_a_cookie_is_for_this_page_alone(self, guarded: AdminStage) -> None:
        """Scripts can't read it, other sites can't send it; over TLS it never goes in the clear."""
        http = guarded.browser()
        response = await http.post("/api/v1/login", json={"login": "ann", "passcode": "annpass"})
        cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie and "Secure" not in cookie
        tls = guarded.browser()
        tls.base_url = httpx.URL("https://127.0.0.1:8161")
        response = await tls.post("/api/v1/login", json={"login": "ann", "passcode": "annpass"})
        assert "Secure" in response.headers["set-cookie"]

    async def test_a_session_ends_with_logging_out(self, guarded: AdminStage) -> None:
        http, csrf = await logged_in(guarded)
        assert (await http.get("/api/v1/session")).json()["user"] == "ann"
        stolen = dict(http.cookies)
        response = await http.post("/api/v1/logout", json={}, headers={"X-Sluiceway-CSRF": csrf})
        assert response.status_code == 200
        thief = guarded.browser()
        thief.cookies.update(stolen)
        response = await thief.get("/api/v1/overview")
        assert response.status_code == 401

    async def test_a_session_ends_when_it_is_idle(self, guarded: AdminStage) -> None:
        http, _csrf = await logged_in(guarded)
        await trio.sleep(guarded.config.session_idle_seconds - 60)
        assert (await http.get("/api/v1/overview")).status_code == 200
        await trio.sleep(guarded.config.session_idle_seconds + 1)
        assert (await http.get("/api/v1/overview")).status_code == 401

    async def test_sessions_are_bounded(self) -> None:
        """The one idle for longest goes."""
        async with AdminStage(security=SECURITY, admin=AdminConfig(sessions_max=2)) as stage:
            first, _ = await logged_in(stage)
            second, _ = await logged_in(stage)
            assert (await first.get("/api/v1/overview")).status_code == 200
            await logged_in(stage)
            assert (await first.get("/api/v1/overview")).status_code == 200
            assert (await second.get("/api/v1/overview")).status_code == 401

    async def test_what_is_published_says_who_did(self) -> None:
        async with AdminStage(security=attrs.evolve(SECURITY, stamp_user=True)) as stage:
            answer = await stage.http.post(
                "/api/v1/actions/publish", json={"to": "/queue/bob.a", "body": "x"}, headers=basic("bob", "bobpass")
            )
            assert answer.status_code == 200, answer.text
            client = await stage.connect(login="ann", passcode="annpass")
            await client.subscribe("/queue/bob.a")
            assert (await client.next_message()).headers["user"] == "bob"
            answer = await stage.http.post(
                "/api/v1/actions/publish", json={"to": "/queue/secret", "body": "x"}, headers=basic("bob", "bobpass")
            )
            assert (answer.status_code, error_of(answer)) == (403, "not-permitted")

    async def test_sessions_end_when_permissions_change(self, guarded: AdminStage) -> None:
        """A user that was removed, or has another passcode, is out at once; also with remembered credentials."""
        http, _csrf = await logged_in(guarded)
        assert (await guarded.http.get("/api/v1/overview", headers=basic("ann", "annpass"))).status_code == 200
        guarded.broker.reload(attrs.evolve(guarded.broker.config, security=SecurityConfig(users={"bob": "bobpass"})))
        assert (await http.get("/api/v1/overview")).status_code == 401
        assert (await guarded.http.get("/api/v1/overview", headers=basic("ann", "annpass"))).status_code == 401
        guarded.broker.reload(attrs.evolve(guarded.broker.config, security=SECURITY))

    @pytest.mark.parametrize("cookie", ["", "x", "é".encode().decode("latin-1"), "a" * 5000], ids=len)
    async def test_a_made_up_cookie_is_nobody(self, cookie: str, guarded: AdminStage) -> None:
        response = await guarded.http.get(
            "/api/v1/overview", headers={b"Cookie": f"{COOKIE}={cookie}".encode("latin-1")}
        )
        assert response.status_code == 401


class TestLogins:
    @pytest.mark.parametrize(("login", "passcode"), [("ann", "wrong"), ("nobody", "x"), ("", ""), ("ann", "")])
    async def test_a_refusal_does_not_say_what_was_wrong(self, login: str, passcode: str, guarded: AdminStage) -> None:
        response = await guarded.http.post("/api/v1/login", json={"login": login, "passcode": passcode})
        assert (response.status_code, error_of(response)) == (401, "bad-credentials")
        assert "set-cookie" not in response.headers and "wrong" not in response.json()["error"]["message"]

    async def test_guessing_is_slow(self, guarded: AdminStage) -> None:
        """A thousand guesses take ages, and few of them wait at a time."""
        began = trio.current_time()
        for guess in range(25):
            await guarded.http.post("/api/v1/login", json={"login": "ann", "passcode": str(guess)})
        assert trio.current_time() - began > 10

    async def test_logins_under_way_are_bounded(self, guarded: AdminStage, monkeypatch: pytest.MonkeyPatch) -> None:
        async def slow(*_arguments: Any, **_more: Any) -> Any:
            await trio.sleep(5)
            raise LoginRefusedError("no")

        monkeypatch.setattr(guarded.broker.guard, "log_in", slow)
        codes = []

        async def guess() -> None:
            response = await guarded.browser().post("/api/v1/login", json={"login": "ann", "passcode": "no"})
            codes.append(response.status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(access.LOGINS_MAX + 2):
                nursery.start_soon(guess)
        monkeypatch.undo()  # connections log in by the same guard
        assert sorted(codes) == [*[401] * access.LOGINS_MAX, 503, 503]

    @pytest.mark.parametrize(
        "header", ["", "Basic", "Basic !!!", "Bearer x", "Basic " + "YW5u", "Basic /////w=="], ids=repr
    )
    async def test_a_malformed_authorization_is_refused(self, header: str, guarded: AdminStage) -> None:
        response = await guarded.http.get("/api/v1/overview", headers={"Authorization": header})
        assert (response.status_code, error_of(response)) == (401, "bad-credentials")

    async def test_verified_credentials_are_remembered_for_a_while(
        self, guarded: AdminStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A scrape a second hashes no password a second; what is remembered is no password."""
        asked = []
        log_in = guarded.broker.guard.log_in

        async def counted(*arguments: Any, **more: Any) -> Any:
            asked.append(arguments[0])
            return await log_in(*arguments, **more)

        monkeypatch.setattr(guarded.broker.guard, "log_in", counted)
        for _ in range(5):
            assert (await guarded.http.get("/api/v1/store", headers=basic("ann", "annpass"))).status_code == 200
        assert asked == ["ann"]
        assert "annpass" not in repr(guarded.services.access._basic)
        await trio.sleep(access.BASIC_SECONDS + 1)
        await guarded.http.get("/api/v1/store", headers=basic("ann", "annpass"))
        assert len(asked) == 2


class TestPermissions:
    async def test_who_may_not_admin_sees_only_what_it_may_browse(self, guarded: AdminStage) -> None:
        headers = basic("bob", "bobpass")
        assert (await guarded.http.get("/api/v1/overview", headers=headers)).status_code == 403
        page = (await guarded.http.get("/api/v1/destinations", headers=headers)).json()
        assert {item["name"]: item["may_admin"] for item in page["items"]} == {
            "/queue/bob.own": True,
            "/queue/bob.other": False,
        }
        for name, status in (("/queue/bob.own", 200), ("/queue/secret", 403)):
            for path in ("messages", "destination"):
                response = await guarded.http.get(f"/api/v1/{path}", params={"name": name}, headers=headers)
                assert response.status_code == status, path

    async def test_a_refusal_does_not_say_whether_it_is_there(self, guarded: AdminStage) -> None:
        answers = [
            await guarded.http.get("/api/v1/messages", params={"name": name}, headers=basic("bob", "bobpass"))
            for name in ("/queue/secret", "/queue/none")
        ]
        assert [answer.status_code for answer in answers] == [403, 403]

    @pytest.mark.parametrize(
        ("action", "body", "status"),
        [
            ("pause", {"name": "/queue/bob.own"}, 200),
            ("pause", {"name": "/queue/bob.other"}, 403),
            ("pause", {"name": "/queue/secret"}, 403),
            ("limit", {"name": "/queue/secret", "limits": {"count_max": 1}, "confirm": "/queue/secret"}, 403),
            ("purge", {"name": "/queue/bob.own", "confirm": "/queue/bob.own"}, 200),
            ("move", {"from": "/queue/bob.own", "to": "/queue/secret", "all": True, "confirm": "/queue/bob.own"}, 403),
            ("move", {"from": "/queue/secret", "to": "/queue/bob.own", "all": True, "confirm": "/queue/secret"}, 403),
            ("drain", {"confirm": "sluiceway"}, 403),
            ("reload", {}, 403),
            ("close-connection", {"session": "x", "confirm": "x"}, 403),
            ("seek-group", {"log": "x", "group": "g", "to": "next", "confirm": "g"}, 403),
            ("remove-durable", {"client_id": "c", "name": "x", "confirm": "x"}, 403),
        ],
    )
    async def test_actions_need_the_permission(
        self, action: str, body: dict[str, Any], status: int, guarded: AdminStage
    ) -> None:
        response = await guarded.http.post(f"/api/v1/actions/{action}", json=body, headers=basic("bob", "bobpass"))
        assert response.status_code == status, response.text


class TestOtherPages:
    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:8161", "127.0.0.1.evil.example", "", "localhost.evil.example", "[::1", "a:b"],
    )
    async def test_a_name_that_is_not_ours_is_refused(self, host: str, stage: AdminStage) -> None:
        """Or a page elsewhere could point its own name here (DNS rebinding)."""
        for path in ("/", "/api/v1/overview", "/api/v1/session", "/metrics", "/static/js/app.js"):
            response = await stage.http.get(path, headers={"Host": host})
            assert (response.status_code, error_of(response)) == (421, "wrong-host")

    @pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:8161", "localhost", "LOCALHOST:80", "10.1.2.3", "box.lan"])
    async def test_addresses_and_configured_names_are_ours(self, host: str) -> None:
        async with AdminStage(admin=AdminConfig(hosts=("box.lan",))) as stage:
            assert (await stage.http.get("/api/v1/session", headers={"Host": host})).status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:9999"},
            {"Origin": "https://127.0.0.1:8161"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
        ids=str,
    )
    async def test_an_action_from_another_page_is_refused(self, headers: dict[str, str], stage: AdminStage) -> None:
        """Whether or not it got hold of the token."""
        await (await stage.connect()).sent("/queue/a", "x")
        response = await stage.http.post(
            "/api/v1/actions/pause",
            json={"name": "/queue/a"},
            headers={**headers, "X-Sluiceway-CSRF": await stage.csrf()},
        )
        assert (response.status_code, error_of(response)) == (403, "wrong-origin")
        assert not stage.destination("/queue/a").is_paused

    async def test_a_proxy_may_end_tls_if_its_name_is_configured(self) -> None:
        """The page is on https then, and we are not; the cookie is for https alone."""
        proxied = {"Host": "box.lan", "Origin": "https://box.lan"}
        async with AdminStage(security=SECURITY, admin=AdminConfig(hosts=("box.lan",))) as stage:
            http = stage.browser(**proxied)
            response = await http.post("/api/v1/login", json={"login": "ann", "passcode": "annpass"})
            assert response.status_code == 200, response.text
            assert "; Secure" in response.headers["set-cookie"]
            for other in ("https://other.lan", "https://box.lan:8443", "http://box.lan.evil.example"):
                response = await http.post("/api/v1/logout", json={}, headers={"Origin": other})
                assert (response.status_code, error_of(response)) == (403, "wrong-origin")

    @pytest.mark.parametrize("token", [None, "", "x" * 64, "é"], ids=repr)
    async def test_an_action_without_its_token_is_refused(self, token: str | None, stage: AdminStage) -> None:
        """Also where nobody has to log in."""
        await (await stage.connect()).sent("/queue/a", "x")
        headers = {} if token is None else {b"X-Sluiceway-CSRF": token.encode("latin-1")}
        response = await stage.http.post("/api/v1/actions/pause", json={"name": "/queue/a"}, headers=headers)
        assert (response.status_code, error_of(response)) == (403, "wrong-csrf-token")
        assert not stage.destination("/queue/a").is_paused

    async def test_a_token_is_of_one_session(self, guarded: AdminStage) -> None:
        _other, token = await logged_in(guarded)
        http, _own = await logged_in(guarded)
        response = await http.post(
            "/api/v1/actions/pause", json={"name": "/queue/secret"}, headers={"X-Sluiceway-CSRF": token}
        )
        assert error_of(response) == "wrong-csrf-token"

    async def test_scripts_with_basic_need_no_token(self, guarded: AdminStage) -> None:
        response = await guarded.http.post(
            "/api/v1/actions/pause", json={"name": "/queue/secret"}, headers=basic("ann", "annpass")
        )
        assert response.status_code == 200

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
    async def test_only_json_is_taken(self, kind: str, stage: AdminStage) -> None:
        """What a form of another page can send without asking is not."""
        response = await stage.http.post(
            "/api/v1/actions/pause",
            content=b'{"name": "/queue/a"}',
            headers={"Content-Type": kind, "X-Sluiceway-CSRF": await stage.csrf()},
        )
        assert (response.status_code, error_of(response)) == (415, "not-json")

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b"null", b'{"name": 1}', b'{"name": "/queue/a", "more": 1}', b"\xff", b"[" * 100_000],
        ids=lambda body: body[:20],
    )
    async def test_a_body_that_makes_no_sense_is_refused(self, body: bytes, stage: AdminStage) -> None:
        response = await stage.http.post(
            "/api/v1/actions/pause",
            content=body,
            headers={"Content-Type": "application/json", "X-Sluiceway-CSRF": await stage.csrf()},
        )
        assert (response.status_code, error_of(response)) == (400, "bad-request")

    async def test_nobody_is_answered_with_headers_of_cors(self, stage: AdminStage) -> None:
        response = await stage.http.get("/api/v1/session", headers={"Origin": "http://evil.example"})
        assert not [name for name in response.headers if name.startswith("access-control")]


class TestFaults:
    async def test_a_fault_of_ours_shows_nothing_but_an_id(
        self, stage: AdminStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The id is in the log, with the traceback."""

        def broken() -> None:
            raise RuntimeError("something private")

        monkeypatch.setattr(stage.services.state, "store", broken, raising=False)
        response = await stage.http.get("/api/v1/store")
        assert (response.status_code, error_of(response)) == (500, "internal-error")
        message = response.json()["error"]["message"]
        assert "private" not in response.text and "Traceback" not in response.text
        fault = message.partition("(fault ")[2].rstrip(")")
        logged = capsys.readouterr().err
        assert fault in logged and "something private" in logged
