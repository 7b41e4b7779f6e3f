"""The brokers that can be measured, each behind the same small port (`perf.peers.port.Peer`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perf.peers.activemq import ActiveMq
from perf.peers.address import RemotePeer
from perf.peers.carried import TlsSluiceway, WebSluiceway
from perf.peers.ceiling import Ceiling
from perf.peers.coilmq import CoilMq
from perf.peers.hubs import AcrossSluiceway, SpreadSluiceway
from perf.peers.port import Peer
from perf.peers.rabbitmq import RabbitMq
from perf.peers.sluiceway import Sluiceway
from perf.peers.watched import BareSluiceway, WatchedSluiceway

STARTABLE: dict[str, Callable[[], Peer]] = {
    "sluiceway": Sluiceway,
    "sluiceway-bare": BareSluiceway,
    "sluiceway-watched": WatchedSluiceway,
    "sluiceway-tls": TlsSluiceway,
    "sluiceway-websocket": WebSluiceway,
    "sluiceway-across": AcrossSluiceway,
    "sluiceway-hubs": SpreadSluiceway,
    "rabbitmq": RabbitMq,
    "activemq": ActiveMq,
    "coilmq": CoilMq,
    "ceiling": Ceiling,
}
REFERENCES = ("rabbitmq", "activemq")
"""The peers whose better one a target is judged against."""

RESTLESS = ("sluiceway-watched",)
"""Peers that take some of the machine also while others are measured: a run with one of them has only that peer up."""


class UnknownPeerError(ValueError):
    """A broker was asked for that there is no adapter for."""


def peer_named(name: str) -> Peer:
    """Return the adapter of that name; `sluiceway@FOLDER` is Sluiceway from another checkout (and so
    `sluiceway-tls@FOLDER` and its like), `HOST:PORT` or `HOST:PORT/PID` stands for a broker that runs already.

    Raises UnknownPeerError: no broker goes by that name.
    Raises PeerError: the folder is no checkout.
    """
    if name in STARTABLE:
        return STARTABLE[name]()
    start, at, folder = name.partition("@")
    if at and isinstance(peer := STARTABLE.get(start, Ceiling)(), Sluiceway):
        peer.use_checkout(Path(folder))
        return peer
    if ":" in name:
        return RemotePeer.parse(name)
    raise UnknownPeerError(
        f"no peer is called {name!r}: take {', '.join(STARTABLE)}, sluiceway@FOLDER for another checkout, "
        "or HOST:PORT[/PID] of a running broker"
    )


__all__ = ["REFERENCES", "RESTLESS", "STARTABLE", "Peer", "UnknownPeerError", "peer_named"]
