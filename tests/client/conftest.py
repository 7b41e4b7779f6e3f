"""Brokers for the tests of the client, and clients that do not wait long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluiceway.client import Backoff
from tests.client.fake_broker import FakeBroker


@pytest.fixture
def fake_broker() -> Iterator[FakeBroker]:
    """A broker that fails on command."""
    broker = FakeBroker()
    broker.start()
    yield broker
    broker.stop()


def quick() -> Backoff:
    """Hardly any wait between attempts."""
    return Backoff(0.005, 0.02)
