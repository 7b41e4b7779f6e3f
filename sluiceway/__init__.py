"""Sluiceway, a STOMP message broker with back-pressure that isolates slow consumers.

Programs import the names below, `sluiceway.config` and `sluiceway.client`; what else is public is in docs/versions.md.

The names below are looked up on first use, so that `import sluiceway` costs next to nothing: a client, a test plugin or
a Spark worker that only wants a part does not load the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluiceway.lazy import lazy_names as _lazy_names
from sluiceway.version import VERSION as __version__

if TYPE_CHECKING:
    from sluiceway.broker import Broker
    from sluiceway.config import Config
    from sluiceway.embedded import EmbeddedBroker
    from sluiceway.embedded_async import AsyncEmbeddedBroker

__all__ = ["AsyncEmbeddedBroker", "Broker", "Config", "EmbeddedBroker", "__version__"]

_HOMES = {
    "AsyncEmbeddedBroker": "sluiceway.embedded_async",
    "Broker": "sluiceway.broker",
    "Config": "sluiceway.config",
    "EmbeddedBroker": "sluiceway.embedded",
}

__getattr__, __dir__ = _lazy_names(__name__, globals(), _HOMES)
