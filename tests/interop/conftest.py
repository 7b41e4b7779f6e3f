"""A broker for clients; all tests here carry the mark `interop`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from sluiceway import EmbeddedBroker
from sluiceway.embedded import embedded_config

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.interop)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def address(broker: EmbeddedBroker) -> tuple[str, int]:
    return broker.host, broker.port


@pytest.fixture
def quick_beats() -> Iterator[EmbeddedBroker]:
    """A broker that agrees to heart-beats of 50 ms."""
    config = embedded_config()
    listener = config.listeners[0]
    limits = attrs.evolve(listener.limits, heart_beat_min_ms=50)
    with EmbeddedBroker(attrs.evolve(config, listeners=(attrs.evolve(listener, limits=limits),))) as broker:
        yield broker
