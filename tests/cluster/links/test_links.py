"""Links over real sockets: who is let in, and how a refusal reads in the log."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from sluiceway.cluster import links as links_module
from sluiceway.cluster.links import Links, Seat
from sluiceway.cluster.placement import TablePlacement
from sluiceway.protocols.link.flow import Flow, FlowUser
from sluiceway.protocols.link.records import PREFACE, Kind
from tests.log_lines import LogLines
from tests.network import authority
from tests.protocols.link.pairs import Noting

PATIENCE_SECONDS = 10.0


class Hub:
    """What links need of a broker; flows are echoed."""

    arrivals = None

    def __init__(self, nursery: trio.Nursery) -> None:
        self.clock = trio.current_time
        self.nursery = nursery
        self.opened_flows: list[str] = []
        self._asked: dict[Any, None] = {}

    def at_turn_end(self, callback: Any) -> None:
        if not self._asked:
            trio.lowlevel.current_trio_token().run_sync_soon(self._end_turn)
        self._asked[callback] = None

    def _end_turn(self) -> None:
        asked, self._asked = self._asked, {}
        for callback in asked:
            callback()

    def turn_with(self, work: Any) -> None:
        work()

    def contain(self, error: Exception) -> None:
        raise error

    def opened(self, peer_hub: str, flow: Flow, payload: bytes) -> FlowUser:
        self.opened_flows.append(peer_hub)
        user = Noting()
        user.flow = flow
        flow.send(Kind.DATA, b"welcome")
        return user


def seat(name: str, known: dict[str, str], **changes: Any) -> Seat:
    """The place of a hub."""
    facts: dict[str, Any] = {
        "cluster": "c",
        "hub": name,
        "shards_count": 1,
        "placement": TablePlacement(name, lambda _name: name, [name]),
        "peers": lambda: known,
        "secret": b"secret",
    }
    return Seat(**{**facts, **changes})


@asynccontextmanager
async def two(
    a: dict[str, Any], b: dict[str, Any], listen: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[Links, Links, Hub]]:
    """Hub `b` listens, hub `a` dials it."""
    async with trio.open_nursery() as nursery:

        def spawn(function: Any) -> None:
            nursery.start_soon(function)

        hub_a, hub_b = Hub(nursery), Hub(nursery)
        links_b = Links(seat("b", {"a": ""}, listen=listen, **b), hub_b, hub_b, spawn=spawn)
        await links_b.begin()
        links_a = Links(seat("a", {"b": links_b.addresses[0]}, **a), hub_a, hub_a, spawn=spawn)
        await links_a.begin()
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                yield links_a, links_b, hub_b
        finally:
            with trio.move_on_after(PATIENCE_SECONDS, shield=True):
                await links_a.close()
                await links_b.close()
            nursery.cancel_scope.cancel()


async def met(links: Links) -> None:
    """Wait until a link is open."""
    opened = trio.Event()
    links.watch(opened.set)
    if not links.reachable:
        await opened.wait()
    links.unwatch(opened.set)


async def said(log_lines: LogLines, words: str) -> None:
    """Wait until the log has said this."""
    for _ in range(1000):
        if any(words in str(line) for line in log_lines.all()):
            return
        await trio.sleep(0.01)
    raise AssertionError(f"{words!r} is not in {log_lines.all()}")


def tls(hub: str, certificate: trustme.LeafCert | None = None) -> dict[str, Any]:
    """Contexts of a hub for both directions, with a certificate that names it."""
    own = certificate or authority.authority().issue_cert("localhost", "127.0.0.1", common_name=hub)
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
        context = ssl.SSLContext(protocol)
        own.configure_cert(context)
        authority.authority().configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        contexts.append(context)
    return {"client_tls": contexts[0], "server_tls": contexts[1], "secret": None}


@pytest.mark.parametrize("way", ["tcp", "unix", "tls"])
async def test_hubs_meet_and_open_flows(way: str, tmp_path: Path) -> None:
    """With a secret, as the same user on one machine, or with certificates that name them."""
    listen = f"unix:{tmp_path / 'links'}" if way == "unix" else "127.0.0.1:0"
    facts: dict[str, dict[str, Any]] = {
        "tcp": {},
        "unix": {"secret": None},
    }
    a, b = (tls("a"), tls("b")) if way == "tls" else (facts[way], facts[way])
    async with two(a, b, listen) as (links_a, links_b, hub_b):
        await met(links_a)
        await met(links_b)
        assert links_a.reachable == ["b"]
        user = Noting()
        flow = links_a.open("b", {"for": "a client"}, user)
        assert flow is not None
        for _ in range(1000):
            if user.received:
                break
            await trio.sleep(0.001)
        assert user.received == b"welcome"
        assert hub_b.opened_flows == ["a"]
        assert links_a.open("c", {}, user) is None
        if way == "unix":
            assert (tmp_path / "links").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"secret": b"guessed"}, "does not know the secret"),
        ({"cluster": "other"}, "belongs to the cluster"),
        ({"shards_count": 2}, "shards"),
        ({"hub": "0"}, "is no hub of this cluster"),
    ],
)
async def test_a_hub_that_does_not_belong_here_is_refused_in_words(
    changes: dict[str, Any], words: str, log_lines: LogLines
) -> None:
    """The log of the other side says why; no flow is opened."""
    async with two(changes, {}) as (_links_a, links_b, hub_b):
        await said(log_lines, words)
        assert not links_b.reachable
        assert not hub_b.opened_flows


async def test_without_secret_or_certificate_nobody_is_believed(log_lines: LogLines) -> None:
    """A TCP stream tells nothing."""
    async with two({"secret": None}, {"secret": None}):
        await said(log_lines, "nothing proves that the peer")


async def test_a_certificate_for_another_hub_proves_nothing(log_lines: LogLines) -> None:
    """Though it is good."""
    wrong = authority.authority().issue_cert("localhost", "127.0.0.1", common_name="z")
    async with two(tls("a", wrong), tls("b")) as (_links_a, links_b, _hub_b):
        await said(log_lines, "not for hub 'a'")
        assert not links_b.reachable


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"CONNECT\naccept-version:1.2\n\n\0", PREFACE + bytes(50)]
)
async def test_a_peer_that_is_no_hub_is_refused(words: bytes, log_lines: LogLines) -> None:
    """A browser, a STOMP client, or nonsense; the link that is there stays."""
    async with two({}, {}) as (links_a, links_b, _hub_b):
        await met(links_a)
        host, _, port = links_b.addresses[0].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(words)
            await _until_closed(stream)
        await said(log_lines, "a link was refused")
        assert links_a.reachable == ["b"]


async def test_silent_peers_are_few_and_given_up(monkeypatch: pytest.MonkeyPatch, log_lines: LogLines) -> None:
    """Half-open handshakes have a limit in number and in time."""
    monkeypatch.setattr(links_module, "PENDING_MAX", 2)
    monkeypatch.setattr("sluiceway.protocols.link.shell.HANDSHAKE_SECONDS", 0.2)
    async with two({"peers": dict}, {}) as (_links_a, links_b, _hub_b):
        host, _, port = links_b.addresses[0].rpartition(":")
        streams = [await trio.open_tcp_stream(host, int(port)) for _ in range(3)]
        await said(log_lines, "too many links without proof")
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(partial(_until_closed, stream))
        await said(log_lines, "has not proved who it is")


async def _until_closed(stream: trio.SocketStream) -> None:
    async with stream:
        try:
            while await stream.receive_some(1000):
                pass
        except trio.BrokenResourceError:
            return


def test_an_id_that_can_not_be_part_of_a_name_is_refused() -> None:
    """Names of temporary destinations begin with the hub."""
    with pytest.raises(ValueError, match="hub id"):
        seat("a~b", {})
