"""Clients of listeners with TLS and WebSocket whose destinations are at another hub. Real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sluiceway.broker import Broker
from sluiceway.config import Config, Listener, SecurityConfig
from sluiceway.protocols.settings import TlsConfig
from tests.cluster.links.two_hubs import Network, seat
from tests.network import authority
from tests.network.talking import PATIENCE_SECONDS, Talker, dial, dial_tls
from tests.network.web import WebClient

OPEN = SecurityConfig(default="allow")


@pytest.mark.parametrize("way", ["TLS", "WebSocket", "WebSocket over TLS"])
async def test_messages_of_another_hub_go_over_every_listener(tmp_path: Path, way: str) -> None:
    """Of all sizes, both ways, with receipts and ACKs."""
    network = Network()
    tls = TlsConfig(certificate=authority.write(authority.server_certificate(), tmp_path)) if "TLS" in way else None
    listener = Listener(
        address="127.0.0.1:0", protocol="websocket" if "Web" in way else "stomp", **({"tls": tls} if tls else {})
    )
    front = Broker(Config(listeners=(listener,), security=OPEN), seat=seat(network, "a", {"b": "b"}, lambda _name: "b"))
    owner = Broker(
        Config(listeners=(Listener(address="127.0.0.1:0"),), security=OPEN),
        seat=seat(network, "b", {"a": "a"}, lambda _name: "b"),
    )
    async with owner:
        network.hubs["b"] = owner
        async with front:
            network.hubs["a"] = front
            address = front.addresses[0]
            stream: trio.abc.Stream
            if tls is None:
                stream = await dial(address)
            else:
                stream = await dial_tls(address, authority.client_context())
            if "Web" in way:
                stream = await WebClient(stream).open()
            talker = Talker(stream)
            await talker.connect()
            with trio.fail_after(PATIENCE_SECONDS):
                for size in (0, 1, 10_000, 300_000):
                    body = bytes(range(1, 256)) * (size // 255 + 1)
                    assert await talker.round_trip(body[:size]) == body[:size]
            await stream.aclose()
        assert "/queue/round" in owner.registry.destinations
        assert "/queue/round" not in front.registry.destinations
