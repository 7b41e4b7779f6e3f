"""Sluiceway behind TLS and behind WebSocket: beside `sluiceway` in one call they tell what those cost."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from perf.load.plans import Endpoint
from perf.load.transports import make_certificate
from perf.peers.port import PeerError
from perf.peers.sluiceway import Sluiceway


class TlsSluiceway(Sluiceway):
    """Sluiceway with a certificate (ECDSA, P-256) made for the run."""

    name = "sluiceway-tls"

    def __init__(self) -> None:
        super().__init__()
        self._certificate = ""

    def flags(self) -> list[str]:
        return ["--tls-certificate", self._certificate]

    def endpoint(self, folder: Path) -> tuple[Endpoint, str]:
        plain, _ = super().endpoint(folder)
        try:
            self._certificate, authority = make_certificate(str(folder), plain.host)
        except ImportError as error:
            raise PeerError(f"{self.name} needs trustme for its certificate: pip install trustme") from error
        return evolve(plain, transport="tls", authority=authority), f"stomp+ssl://{plain.host}:{plain.port}"


class WebSluiceway(Sluiceway):
    """Each STOMP frame that is sent is a message of its own, as from a browser."""

    name = "sluiceway-websocket"

    def endpoint(self, folder: Path) -> tuple[Endpoint, str]:
        plain, _ = super().endpoint(folder)
        return evolve(plain, transport="websocket"), f"ws://{plain.host}:{plain.port}/stomp"
