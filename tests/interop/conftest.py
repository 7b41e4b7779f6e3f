"""A broker for clients; all tests here carry the mark `interop`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from sluiceway import EmbeddedBroker
from sluiceway.config import Config
from sluiceway.embedded import embedded_config
from sluiceway.protocols.stomp.limits import StompLimits

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


BEATS_MS = 50
PATIENT = 400
"""Times the interval of the beats: whoever waits so long takes no busy machine for a dead peer."""


@pytest.fixture
def quick_beats() -> Iterator[EmbeddedBroker]:
    """A broker that agrees to heart-beats of 50 ms, and ends who does not keep to that."""
    with EmbeddedBroker(beating(StompLimits().heart_beat_grace_factor)) as broker:
        yield broker


@pytest.fixture
def patient_beats() -> Iterator[EmbeddedBroker]:
    """A broker that agrees to heart-beats of 50 ms, and waits long for them."""
    with EmbeddedBroker(beating(PATIENT)) as broker:
        yield broker


def beating(grace_factor: float) -> Config:
    config = embedded_config()
    listener = config.listeners[0]
    limits = attrs.evolve(listener.limits, heart_beat_min_ms=BEATS_MS, heart_beat_grace_factor=grace_factor)
    return attrs.evolve(config, listeners=(attrs.evolve(listener, limits=limits),))
