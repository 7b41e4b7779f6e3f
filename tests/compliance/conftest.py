"""A broker with a listener of each kind, and runs of the kit against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from sluiceway import EmbeddedBroker
from sluiceway.compliance.kit import Settings
from sluiceway.compliance.transport import Target
from sluiceway.config import BrokerConfig, Config, Listener
from sluiceway.protocols.settings import TlsConfig
from sluiceway.protocols.stomp.limits import StompLimits
from tests.network import authority

BEAT_MS = 250


@attrs.frozen
class Addresses:
    """Where the broker is."""

    plain: str
    tls: str
    web: str
    ca: str


@pytest.fixture(scope="package")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder: Path = tmp_path_factory.mktemp("compliance")
    ca = folder / "ca.pem"
    authority.authority().cert_pem.write_to_path(str(ca))
    limits = StompLimits(heart_beat_min_ms=BEAT_MS)
    tls = TlsConfig(certificate=authority.write(authority.server_certificate(), folder))
    config = Config(
        listeners=(
            Listener(address="127.0.0.1:0", limits=limits),
            Listener(address="127.0.0.1:0", limits=limits, tls=tls),
            Listener(address="127.0.0.1:0", limits=limits, protocol="websocket"),
        ),
        broker=BrokerConfig(shutdown_seconds=2.0),
    )
    with EmbeddedBroker(config) as broker:
        plain, secure, web = (address.rpartition(":")[2] for address in broker.call(lambda it: list(it.addresses)))
        yield Addresses(f"127.0.0.1:{plain}", f"stomp+ssl://localhost:{secure}", f"ws://127.0.0.1:{web}/stomp", str(ca))


def settings(address: str, **options: object) -> Settings:
    """Settings of a run with short waits; `ca` for TLS."""
    ca = options.pop("ca", None)
    given = {"quiet_seconds": 0.1, "beat_ms": BEAT_MS, "timeout_seconds": 10.0, **options}
    return Settings(target=Target.parse(address, ca=ca if isinstance(ca, str) else None), **given)  # type: ignore[arg-type]
