"""Regions over real sockets, with and without TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from sluiceway.broker import Broker
from sluiceway.config import Config, Listener, SecurityConfig
from sluiceway.protocols.settings import TlsConfig
from sluiceway.regions.config import Region, RegionsConfig
from tests.network.authority import server_certificate, write, write_authority
from tests.regions.regions import T, client_of

PATIENCE_SECONDS = 30


@asynccontextmanager
async def taking(address: str, **login: Any) -> AsyncIterator[Broker]:
    """A broker that takes T from this address."""
    origin = Region(name="eu", hubs=(address,), topics=(T,), **login)
    config = Config(listeners=(Listener(address="127.0.0.1:0"),), regions=RegionsConfig(origins=(origin,)))
    async with Broker(config) as broker:
        yield broker


async def reason_of(broker: Broker, wanted: str) -> None:
    """Wait for these words about why there is no connection; empty: for a connection."""
    assert broker.regions is not None
    (feed,) = broker.regions.feeds
    with trio.fail_after(PATIENCE_SECONDS):
        while (wanted not in feed.reason) if wanted else not feed.connected_to:  # noqa: ASYNC110 - nothing tells it
            await trio.sleep(0.01)


async def check(far: Broker, near: Broker, **login: str) -> None:
    """A message goes from one to the other."""
    await reason_of(near, "")
    here, there = await client_of(near), await client_of(far, **login)
    await here.subscribe(T)
    await here.sync()
    await there.sent(T, "x" * 100_000)
    with trio.fail_after(PATIENCE_SECONDS):
        message = await here.next_message()
    assert (len(message.body), message.headers["origin-region"]) == (100_000, "eu")


async def test_over_tcp() -> None:
    """Also when the other side is stopped, and started again at its place."""
    async with Broker(Config(listeners=(Listener(address="127.0.0.1:0"),))) as far:
        address = far.addresses[0]
        async with taking(address) as near:
            await check(far, near)
            await far.stop()
            await reason_of(near, "all attempts to connect")
            async with Broker(Config(listeners=(Listener(address=address),))) as again:
                await check(again, near)


async def test_over_tls(tmp_path: Path) -> None:
    certificate = write(server_certificate(), tmp_path)
    ca = write_authority(tmp_path)
    listener = Listener(address="127.0.0.1:0", tls=TlsConfig(certificate=certificate))
    async with Broker(Config(listeners=(listener,))) as far:
        host, _colon, port = far.addresses[0].rpartition(":")
        async with taking(f"stomp+ssl://localhost:{port}?ca={ca}") as near:
            await check(far, near)
        async with taking(f"stomp+ssl://{host}:{port}") as stranger:
            await reason_of(stranger, "certificate verify failed")


async def test_a_login_over_there(tmp_path: Path) -> None:
    """The passcode is read anew at each attempt."""
    passcode = tmp_path / "passcode"
    passcode.write_text("wrong\n")
    users = SecurityConfig(users={"us": "secret"}, default="allow")
    async with Broker(Config(listeners=(Listener(address="127.0.0.1:0"),), security=users)) as far:
        near_one = taking(far.addresses[0], login="us", passcode_file=passcode)
        async with near_one as near:
            await reason_of(near, "refused the login")
            passcode.write_text("secret\n")
            await check(far, near, login="us", passcode="secret")


async def test_a_host_that_is_not_there() -> None:
    async with taking("127.0.0.1:1") as near:
        await reason_of(near, "127.0.0.1")
