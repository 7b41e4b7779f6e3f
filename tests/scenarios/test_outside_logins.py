"""Users that issuers vouch for, in a whole broker: how long their connections last, and what they may."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from sluiceway.reloading import ReloadError
from sluiceway.security.config import Permission, SecurityConfig
from sluiceway.security.outside_config import OAuthIssuer
from sluiceway.security.rules import make_rules
from sluiceway.security.users import SecurityError
from tests.admin.conftest import AdminStage
from tests.log_lines import LogLines
from tests.scenarios.client import Client, UnexpectedError
from tests.scenarios.stage import Stage, wall_clock_ms
from tests.security.signing import AUDIENCE, ISSUER, document
from tests.security.signing import token as token_at

PERMISSIONS = (
    Permission(users=("*",), actions=("connect",)),
    Permission(users=("root",), actions=("*",)),
    Permission(groups=("writers",), actions=("send", "create"), destinations=("/queue/orders",)),
    Permission(users=("ann",), actions=("receive", "create"), destinations=("/queue/{user}",)),
    Permission(groups=("operators",), actions=("admin",)),
)


def token(**claims: Any) -> str:
    return token_at(now=wall_clock_ms() / 1000, **claims)


def issuer(keys: Path, **settings: Any) -> OAuthIssuer:
    groups = {"write": ("writers",), "ops": ("operators",)}
    return OAuthIssuer(**{"issuer": ISSUER, "audiences": (AUDIENCE,), "keys_file": keys, "groups": groups, **settings})


def secured(*issuers: OAuthIssuer, **settings: Any) -> SecurityConfig:
    users = {"root": "rootpass"}
    return SecurityConfig(**{"users": users, "permissions": PERMISSIONS, "oauth": issuers, **settings})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(document("ec"))
    return path


def put(keys: Path, name: str) -> None:
    """Replace the keys. No thread writes: while one does, virtual time may pass, and tokens expire."""
    keys.write_bytes(document(name))


async def refused(stage: Stage, **headers: str) -> str:
    with pytest.raises(UnexpectedError) as error:
        await stage.connect(name="stranger:1", **headers)
    return str(error.value)


def reload(stage: Stage, security: SecurityConfig) -> None:
    stage.broker.reload(attrs.evolve(stage.broker.config, security=security))


async def ended(client: Client, words: str, code: str) -> None:
    error = await client.expect_error(words)
    assert error.headers["code"] == code


async def test_a_token_is_a_passcode_and_its_claims_are_permissions(keys: Path) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        ann = await stage.connect(passcode=token(scope="openid write"))
        await ann.sent("/queue/orders", "mine")
        await ann.subscribe("/queue/ann", id="1")
        reader = await stage.connect(login="ann", passcode=token())
        await reader.frame("SEND", {"destination": "/queue/orders"})
        await ended(reader, "no permission to send", "forbidden")
        await stage.connect(login="root", passcode="rootpass")
        assert "authentication failed" in await refused(stage, login="root", passcode="wrong")


async def test_a_connection_ends_when_its_token_does_and_a_new_one_connects_again(keys: Path) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        ann = await stage.connect(passcode=token(seconds=60))
        await ann.subscribe("/queue/ann", id="1", ack="client")
        root = await stage.connect(login="root", passcode="rootpass")
        await trio.sleep(89)  # with the leeway of 30 seconds it has one left
        await root.sent("/queue/ann", "x")
        message = await ann.next_message()
        assert message.body == b"x"
        began = trio.current_time()
        await ended(ann, "expired", "login-expired")
        assert trio.current_time() - began < 2
        assert await refused(stage, passcode=token(seconds=-60))
        again = await stage.connect(passcode=token(seconds=60))
        await again.subscribe("/queue/ann", id="1")
        assert (await again.next_message()).body == b"x", "what it had not acknowledged is there again"


async def test_a_connection_that_is_gone_leaves_no_timer(keys: Path) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        ann = await stage.connect(passcode=token(seconds=3600))
        (session,) = [connection.session for connection in stage.broker.connections]
        timer = session.entering._timer
        await ann.disconnect()
        assert not timer.pending


async def test_refusals_tell_the_client_nothing_and_the_operator_why(keys: Path, log_lines: LogLines) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        said = {
            await refused(stage, passcode=made)
            for made in (token(aud="others"), token(iss="https://evil"), token(seconds=-60), token()[:-9] + "A" * 9)
        }
        assert len(said) == 1
        logged = {line["reason"] for line in log_lines.of("login refused")}
        assert logged == {"audience", "issuer", "expired", "signature"}
        counts = stage.broker.guard.statistics().refused_counts
        assert {reason for reason, count in counts.items() if count} == {"audience", "issuer", "expired", "signature"}


async def test_a_token_can_not_become_a_user_of_the_configuration(keys: Path) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        assert "authentication failed" in await refused(stage, passcode=token(sub="root"))
        assert stage.broker.guard.statistics().refused_counts["name"] == 1


async def test_bad_tokens_slow_their_machine_and_expired_ones_do_not(keys: Path) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        for _ in range(8):
            await refused(stage, passcode=token(seconds=-60))
        assert stage.broker.guard.statistics().delayed_count == 0
        for _ in range(8):
            await refused(stage, passcode=token(iss="https://evil"))
        assert stage.broker.guard.statistics().delayed_count > 0


async def test_a_reload_changes_sources_as_a_whole_or_not_at_all(keys: Path, tmp_path: Path) -> None:
    async with Stage(security=secured(issuer(keys))) as stage:
        ann = await stage.connect(passcode=token(scope="write"))
        broken = tmp_path / "broken.json"
        broken.write_text("{}")
        with pytest.raises(ReloadError, match="no set of keys"):
            reload(stage, secured(issuer(broken)))
        await ann.sent("/queue/orders", "still there")
        reload(stage, secured(issuer(keys), stamp_user=True))
        await ann.sent("/queue/orders", "the source is the same")
        reload(stage, secured(issuer(keys, groups={"none": ("writers", "operators")})))
        await ended(ann, "no permission to connect any more", "forbidden")
        again = await stage.connect(passcode=token(scope="write"))
        put(keys, "ec-other")
        reload(stage, secured(issuer(keys, groups={"none": ("writers", "operators")})))
        await ended(again, "no permission to connect any more", "forbidden")
        assert "authentication failed" in await refused(stage, passcode=token())
        reload(stage, secured(permissions=PERMISSIONS[:2]))
        assert "authentication failed" in await refused(stage, passcode=token())


async def test_without_users_in_the_configuration_strangers_stay_out(keys: Path) -> None:
    permissions = PERMISSIONS[:1]
    async with Stage(security=secured(issuer(keys), users={}, permissions=permissions)) as stage:
        assert "authentication required" in await refused(stage)
        await stage.connect(passcode=token())


def test_mistakes_are_found_before_they_are_in_force(keys: Path) -> None:
    wrong = Permission(groups=("writer",), actions=("send",))
    with pytest.raises(SecurityError, match="did you mean writers"):
        make_rules(secured(issuer(keys), permissions=(*PERMISSIONS, wrong)), {})
    with pytest.raises(SecurityError, match="is there twice"):
        make_rules(secured(issuer(keys), issuer(keys)), {})
    with pytest.raises(SecurityError, match="can't be read"):
        make_rules(secured(issuer(keys.with_name("absent"))), {})
    hidden = (Permission(users=("*",), actions=("*",), allow=False), PERMISSIONS[2])
    with pytest.raises(SecurityError, match="never matters"):
        make_rules(secured(issuer(keys), permissions=hidden), {})


async def test_the_admin_port_takes_bearer_tokens_until_they_end(keys: Path) -> None:
    security = secured(issuer(keys))
    async with AdminStage(security=security) as stage:
        http = stage.browser()
        bearer = {"Authorization": f"Bearer {token(scope='ops', seconds=10)}"}
        assert (await http.get("/api/v1/overview", headers=bearer)).status_code == 200
        other = {"Authorization": f"Bearer {token()}"}
        assert (await http.get("/api/v1/overview", headers=other)).status_code == 403
        pair = base64.b64encode(f":{token(scope='ops')}".encode()).decode()
        assert (await http.get("/api/v1/overview", headers={"Authorization": f"Basic {pair}"})).status_code == 200
        session: httpx.Response = await http.post(
            "/api/v1/login", json={"login": "", "passcode": token(scope="ops", seconds=10)}
        )
        assert session.status_code == 200, session.text
        await trio.sleep(41)
        assert (await http.get("/api/v1/overview", headers=bearer)).status_code == 401
        assert (await http.get("/api/v1/overview")).status_code == 401, "nor does its session outlive it"
