"""pytest plugin: a real broker for each test that asks for one.

    def test_orders(sluiceway_broker):
        connection = stomp.Connection([(sluiceway_broker.host, sluiceway_broker.port)])

Installed with Sluiceway, nothing to register. The broker listens on a free port of 127.0.0.1, has its own data folder,
and is stopped after the test; `sluiceway_config` can be overridden to change its configuration. Light to load: the
broker is imported when the first test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sluiceway.config import Config
    from sluiceway.embedded import EmbeddedBroker


@pytest.fixture
def sluiceway_config(tmp_path: Path) -> Config:
    """The configuration of `sluiceway_broker`. Override this fixture to change it, best with `attrs.evolve`."""
    import attrs

    from sluiceway.embedded import embedded_config

    config = embedded_config()
    return attrs.evolve(config, broker=attrs.evolve(config.broker, data_dir=tmp_path / "sluiceway-data"))


@pytest.fixture
def sluiceway_broker(sluiceway_config: Config) -> Iterator[EmbeddedBroker]:
    """A running broker: `.host`, `.port`, `.url`, and `.report()` for what it holds and who waits for whom."""
    from sluiceway.embedded import EmbeddedBroker

    with EmbeddedBroker(sluiceway_config) as broker:
        yield broker
