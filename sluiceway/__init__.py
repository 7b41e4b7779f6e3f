"""Sluiceway, a STOMP message broker that never lets a slow reader hurt anybody else. This is the only package that
users import.

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

__all__ = ["Broker", "Config", "EmbeddedBroker", "__version__"]

_HOMES = {"Broker": "sluiceway.broker", "Config": "sluiceway.config", "EmbeddedBroker": "sluiceway.embedded"}

__getattr__, __dir__ = _lazy_names(__name__, globals(), _HOMES)
