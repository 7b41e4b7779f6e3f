"""Keys of an issuer at a URL: fetched, changed, missing, hostile. A real HTTP server, and time that the test makes."""

from __future__ import annotations

import http.server
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
import trio
import trio.testing

from sluiceway.security.issuers import KEYS_BYTES_MAX, Issuer, Issuers, fetch_keys
from sluiceway.security.outside import Accepted, NotAcceptedError, Reason
from sluiceway.security.outside_config import OAuthIssuer
from sluiceway.security.tokens import KeysError
from tests.log_lines import LogLines
from tests.security.signing import AUDIENCE, ISSUER, document, token

DEADLINE_SECONDS = 40
GOOD = {"issuer": ISSUER, "audiences": (AUDIENCE,), "keys_timeout_seconds": 30.0}


class KeyServer:
    """A server of keys on a free port."""

    def __init__(self, *names: str) -> None:
        self.body = document(*names)
        self.status = 200
        self.requests_count = 0
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests_count += 1
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_what: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Timers:
    """One timer, which the test rings."""

    def __init__(self) -> None:
        self.due: tuple[float, Callable[[], None]] | None = None

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Timers:
        self.due = delay_seconds, callback
        return self

    def cancel(self) -> None:
        self.due = None

    def ring(self) -> float:
        """Ring it; return what it was set to."""
        assert self.due is not None
        delay_seconds, callback = self.due
        callback()
        return delay_seconds


class Stage:
    """An issuer with a clock that stands still."""

    def __init__(self, server: KeyServer, nursery: trio.Nursery, **settings: Any) -> None:
        self.seconds = 1000.0
        self.timers = Timers()
        self.issuer = Issuer(
            OAuthIssuer(keys_url=server.url, **{**GOOD, **settings}),
            (),
            clock=lambda: self.seconds,
            timers=self.timers,
            spawn=nursery.start_soon,
        )
        self.issuers = Issuers([self.issuer], lambda: self.seconds)
        self.issuer.start()

    async def log_in(self, text: str, login: str = "") -> Accepted:
        with trio.fail_after(DEADLINE_SECONDS):
            accepted = await self.issuers.log_in(login, text, lambda: False)
        assert accepted is not None
        return accepted

    async def refusal(self, text: str, login: str = "") -> NotAcceptedError:
        with pytest.raises(NotAcceptedError) as refused:
            await self.log_in(text, login)
        return refused.value

    async def settled(self) -> None:
        """Wait for a request under way."""
        with trio.fail_after(DEADLINE_SECONDS):
            while self.issuer._fetching is not None:
                await self.issuer._fetching.wait()

    def token(self, name: str = "ec", **claims: Any) -> str:
        return token(name, now=self.seconds, **claims)


@asynccontextmanager
async def staged(server: KeyServer, **settings: Any) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        yield Stage(server, nursery, **settings)
        nursery.cancel_scope.cancel()


async def test_a_login_before_the_first_answer_waits_for_it() -> None:
    with KeyServer("ec") as server:
        async with staged(server) as stage:
            accepted = await stage.log_in(stage.token())
            assert (accepted.user, accepted.until_seconds) == ("ann", 1000 + 60 + 30)
            for _ in range(10):
                await stage.log_in(stage.token(), "ann")
            assert server.requests_count == 1
            assert (await stage.refusal(stage.token(), "bob")).reason is Reason.NAME


async def test_a_new_key_is_fetched_when_a_token_names_it_and_made_up_ones_cost_one_request() -> None:
    with KeyServer("ec") as server:
        async with staged(server) as stage:
            await stage.log_in(stage.token())
            server.body = document("ec", "ec-new")
            stage.seconds += 10
            assert (await stage.log_in(stage.token("ec-new"))).user == "ann"
            assert server.requests_count == 2
            for _ in range(50):
                assert (await stage.refusal(stage.token("ec-other"))).reason is Reason.KEY
            assert server.requests_count == 2
            stage.seconds += 10
            await stage.refusal(stage.token("ec-other"))
            await stage.refusal(stage.token("ec-other"))
            assert server.requests_count == 3


async def test_a_key_that_is_gone_is_refused_after_the_next_refresh() -> None:
    with KeyServer("ec", "ec-old") as server:
        async with staged(server) as stage:
            await stage.log_in(stage.token("ec-old"))
            server.body = document("ec")
            assert stage.timers.ring() == 300.0
            await stage.settled()
            assert (await stage.refusal(stage.token("ec-old"))).reason is Reason.KEY


async def test_while_the_url_is_down_known_keys_count_and_requests_back_off(log_lines: LogLines) -> None:
    with KeyServer("ec") as server:
        async with staged(server) as stage:
            await stage.log_in(stage.token())
            server.status = 503
            waits = []
            for _ in range(8):
                stage.timers.ring()
                await stage.settled()
                assert stage.timers.due is not None
                waits.append(stage.timers.due[0])
                assert (await stage.log_in(stage.token())).user == "ann"
            assert 5 <= waits[0] <= 10
            assert 150 <= waits[-1] <= 300
            said = log_lines.of("keys of an issuer can't be fetched: those that are known stay in force")
            assert len(said) == 1, "it is said once"
            assert "503" in stage.issuer.problem
            server.status = 200
            stage.timers.ring()
            await stage.settled()
            assert not stage.issuer.problem


async def test_without_any_key_logins_are_not_possible_now() -> None:
    with KeyServer("ec") as server:
        server.status = 500
        async with staged(server) as stage:
            refusal = await stage.refusal(stage.token())
            assert refusal.reason is Reason.UNAVAILABLE
            assert not refusal.is_guess


@pytest.mark.parametrize("hostile", ["redirect", "long", "html", "secret"])
def test_documents_that_are_not_taken(hostile: str) -> None:
    with KeyServer("ec") as server, KeyServer("ec") as other:
        if hostile == "redirect":
            server.status, server.headers = 302, {"Location": other.url}
        elif hostile == "long":
            server.body += b" " * KEYS_BYTES_MAX
        elif hostile == "html":
            server.body = b"<html>log in</html>"
        else:
            server.body = document(more=({"kty": "oct", "k": "c2VjcmV0"},))
        with pytest.raises(KeysError, match="127\\.0"):
            fetch_keys(OAuthIssuer(keys_url=server.url, **GOOD))  # type: ignore[arg-type]
        assert other.requests_count == 0


async def test_a_token_of_another_issuer_is_none_of_ours() -> None:
    with KeyServer("ec") as server:
        async with staged(server) as stage:
            assert (await stage.refusal(stage.token(iss="https://evil"))).reason is Reason.ISSUER
