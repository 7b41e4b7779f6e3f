"""A broker with its log and a bystander; tests that need other limits start it themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
import structlog

from sluiceway import EmbeddedBroker
from sluiceway.config import DestinationPolicy
from sluiceway.embedded import embedded_config
from tests.faults.broker_log import BrokerLog
from tests.faults.bystander import Bystander

StartBroker = Callable[..., EmbeddedBroker]


@pytest.fixture
def broker_log() -> Iterator[BrokerLog]:
    """All that is logged from now on."""
    log = BrokerLog()
    structlog.configure(processors=[log])
    yield log
    structlog.reset_defaults()


@pytest.fixture
def start_broker(broker_log: BrokerLog) -> Iterator[StartBroker]:
    """Starts brokers that stop after the test. Keywords are limits of the listener."""
    with ExitStack() as running:

        def start(
            *,
            connections_max: int = 1000,
            upkeep_bytes_max: int | None = None,
            destinations: tuple[DestinationPolicy, ...] = (),
            **limits: Any,
        ) -> EmbeddedBroker:
            config = embedded_config()
            listener = attrs.evolve(
                config.listeners[0],
                connections_max=connections_max,
                limits=attrs.evolve(config.listeners[0].limits, **limits),
            )
            settings = attrs.evolve(config.broker, upkeep_bytes_max=upkeep_bytes_max)
            return running.enter_context(
                EmbeddedBroker(attrs.evolve(config, broker=settings, listeners=(listener,), destinations=destinations))
            )

        yield start


@pytest.fixture
def broker(start_broker: StartBroker) -> EmbeddedBroker:
    return start_broker()


@pytest.fixture
def address(broker: EmbeddedBroker) -> tuple[str, int]:
    return broker.host, broker.port


@pytest.fixture
def bystander(address: tuple[str, int]) -> Iterator[Bystander]:
    with Bystander(address) as bystander:
        yield bystander
