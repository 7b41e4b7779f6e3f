"""Links over real sockets: who is let in, and how a refusal reads in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from sluiceway.cluster import links as links_module
from sluiceway.cluster.link_identity import link_identity
from sluiceway.cluster.links import Links, Seat
from sluiceway.cluster.placement import TablePlacement
from sluiceway.config import ConfigError
from sluiceway.config.cluster import ClusterConfig
from sluiceway.config.structure import structure
from sluiceway.protocols.link.flow import Flow, FlowUser
from sluiceway.protocols.link.records import PREFACE, Kind
from sluiceway.protocols.settings import TlsConfig
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


def identity(hub: str, folder: Path, certificate: trustme.LeafCert | None = None, **changes: Any) -> dict[str, Any]:
    """What the configuration of a hub gives its links; with TLS there is a certificate that names it."""
    own = certificate or authority.authority().issue_cert(hub)
    folder = folder / f"{hub} {len(list(folder.iterdir()))}"
    folder.mkdir()
    (folder / "secret").write_text("a secret of all hubs of this cluster\n")
    tls = TlsConfig(
        certificate=authority.write(own, folder),
        client_certificates="required",
        client_ca=authority.write_authority(folder),
    )
    facts: dict[str, Any] = {"hub": hub, "coordination": "zk-1:2181/c", "tls": tls, **changes}
    if facts.pop("with_secret", False):
        facts["secret_file"] = folder / "secret"
    made = link_identity(ClusterConfig(**facts))
    return {"secret": made.secret, "client_tls": made.client_tls, "server_tls": made.server_tls}


@pytest.mark.parametrize("way", ["tcp", "unix", "tls", "secret", "tls and secret"])
async def test_hubs_meet_and_open_flows(way: str, tmp_path: Path) -> None:
    """With a secret, as the same user on one machine, with certificates that name them, or with both."""
    listen = f"unix:{tmp_path / 'links'}" if way == "unix" else "127.0.0.1:0"
    facts: dict[str, dict[str, Any]] = {
        "tcp": {},
        "unix": {"secret": None},
    }
    changes: dict[str, dict[str, Any]] = {
        "tls": {},
        "secret": {"tls": TlsConfig(), "with_secret": True},
        "tls and secret": {"with_secret": True},
    }
    if way in changes:
        a, b = (identity(hub, tmp_path, **changes[way]) for hub in ("a", "b"))
    else:
        a = b = facts[way]
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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("dials with the certificate of another hub", "not for hub 'a'"),
        ("answers with the certificate of another hub", "the certificate of the peer is not good"),
        ("dials with a certificate of a strange authority", "the certificate of the peer is not good"),
        ("answers with a certificate of a strange authority", "the certificate of the peer is not good"),
        ("dials without TLS", "the peer does not speak TLS"),
        ("answers without TLS", "the input is not TLS"),
        ("dials with another secret", "does not know the secret"),
    ],
)
async def test_a_peer_that_does_not_prove_who_it_is_is_refused_in_words(
    wrong: str, words: str, tmp_path: Path, log_lines: LogLines
) -> None:
    """However good the rest is. No flow is opened, on neither side."""
    certificate = None
    if "another hub" in wrong:
        certificate = authority.authority().issue_cert("z", common_name="z")
    elif "strange" in wrong:
        certificate = authority.strange_authority().issue_cert(wrong[0])
    changes: dict[str, Any] = {"tls": TlsConfig()} if "without" in wrong else {}
    is_a = wrong.startswith("dials")
    with_secret = "secret" in wrong or "without" in wrong
    a = identity("a", tmp_path, certificate if is_a else None, with_secret=with_secret, **(changes if is_a else {}))
    b = identity("b", tmp_path, None if is_a else certificate, with_secret=with_secret, **({} if is_a else changes))
    if "another secret" in wrong:
        a["secret"] = b"guessed by somebody"
    async with two(a, b) as (links_a, links_b, hub_b):
        await said(log_lines, words)
        refusing = links_b if is_a else links_a  # the other one, to which the proof is good, learns it a moment later
        assert not refusing.reachable
        assert not hub_b.opened_flows


async def test_a_stranger_harms_no_link_that_is_there(tmp_path: Path, log_lines: LogLines) -> None:
    """Nor does it take the place of the hub that it claims to be."""
    async with two(identity("a", tmp_path), identity("b", tmp_path)) as (links_a, links_b, _hub_b):
        await met(links_b)
        address = links_b.addresses[0]
        async with trio.open_nursery() as nursery:

            def spawn(function: Any) -> None:
                nursery.start_soon(function)

            hub = Hub(nursery)
            stranger = authority.strange_authority().issue_cert("a")
            place = seat("a", {"b": address}, **identity("a", tmp_path, stranger))
            links = Links(place, hub, hub, spawn=spawn)
            await links.begin()
            await said(log_lines, "the certificate of the peer is not good")
            assert (links.reachable, links_a.reachable, links_b.reachable) == ([], ["b"], ["a"])
            await links.close()
            nursery.cancel_scope.cancel()


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"secret_file": "missing"}, "missing can't be read, and cluster.secret_file names it: No such file"),
        ({"secret_env": "NO_SUCH_VARIABLE"}, "the environment variable NO_SUCH_VARIABLE is not set"),
        ({"secret_file": "short"}, "short: the secret of the cluster has 5 bytes, and at least 16 are needed"),
        ({"secret_file": "bytes"}, "bytes is not UTF-8"),
        ({"secret_file": "good", "tls": {"certificate": "missing"}}, "cluster.tls: missing: can't be read"),
    ],
)
def test_what_an_identity_is_made_of_is_named_if_it_is_missing(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the remedy; the secret itself is never shown."""
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("12345\n")
    Path("good").write_text("a secret of all hubs of this cluster\n")
    Path("bytes").write_bytes(b"\xff" * 20)
    config = structure({"hub": "a", "coordination": "zk-1:2181/c", **changes}, ClusterConfig)
    with pytest.raises(ConfigError) as raised:
        link_identity(config, {})
    assert words in str(raised.value)
    assert "12345" not in str(raised.value)


def test_a_secret_is_shown_nowhere(tmp_path: Path) -> None:
    """Neither by the identity nor by the place of a hub."""
    facts = identity("a", tmp_path, with_secret=True)
    assert "secret of all hubs" not in repr(seat("a", {}, **facts))
