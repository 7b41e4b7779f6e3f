"""A broker as others can reach it: TLS, and users who may do what a Spark job needs and no more."""

from __future__ import annotations

from pathlib import Path

import attrs

from sluiceway.embedded import EmbeddedBroker, embedded_config
from sluiceway.protocols.settings import TlsConfig
from sluiceway.security.config import Permission, SecurityConfig
from tests.network.authority import server_certificate, write, write_authority

USER, PASSCODE = "pipeline", "over the wire"

MAY = (
    Permission(users=(USER,), actions=("connect",)),
    Permission(users=(USER,), actions=("receive",), destinations=("/log/in",)),
    Permission(users=(USER,), actions=("receive", "create"), destinations=("/queue/in",)),
    Permission(users=(USER,), actions=("browse",), destinations=("/queue/seen",)),
    Permission(users=(USER,), actions=("send", "create"), destinations=("/queue/out",)),
    Permission(users=(USER,), actions=("send", "create"), destinations=("/log/out", "/log/sluiceway.stage.>")),
)
"""What docs/spark.md says."""


def secured_broker(folder: Path) -> EmbeddedBroker:
    """Not started. `root` may do everything."""
    config = embedded_config()
    tls = TlsConfig(certificate=write(server_certificate(), folder))
    listener = attrs.evolve(config.listeners[0], address="127.0.0.1:0", tls=tls)
    root = Permission(users=("root",), actions=("*",))
    return EmbeddedBroker(
        attrs.evolve(
            config,
            listeners=(listener,),
            broker=attrs.evolve(config.broker, data_dir=folder / "data"),
            store=attrs.evolve(config.store, engine="leveldb"),
            security=SecurityConfig(users={"root": "root", USER: PASSCODE}, permissions=(root, *MAY)),
        )
    )


def address_of(broker: EmbeddedBroker, folder: Path, who: str = "") -> str:
    """With the authority, and `LOGIN:PASSCODE@` if that is given."""
    return f"stomp+ssl://{who}localhost:{broker.port}?ca={write_authority(folder)}"
