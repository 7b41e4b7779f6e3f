"""The scenarios' own fixtures and clock, with clients that come through TLS or WebSocket.

Only some of them, and only in STOMP 1.2: those in which it matters when bytes are taken, and how an end is told.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

from sluiceway.broker import Broker
from sluiceway.protocols.stomp.escaping import Version
from tests.network.layers import LAYERS, connect_through
from tests.scenarios.conftest import run_in_virtual_time, small_pieces, stage

__all__ = ["small_pieces", "stage"]

HERE = Path(__file__).parent

_OF_BARE_STREAMS = (
    "test_what_was_never_handed_over_is_not_charged_as_an_attempt[tls-auto",  # how many fit into a bare stream
    "test_connection_closes_soon_after_an_error[websocket",  # writes to a bare stream that is closed
    "test_a_reader_that_stalls_in_a_large_body_costs_a_small_buffer[websocket",  # takes wsproto seconds
    "test_stranger_is_told_as_well[",  # before TLS is agreed on nobody can be told anything
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every async test of this folder runs in virtual time. Those about bare streams do not run at all."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
    left_out = {id(item) for item in ours if item.name.startswith(_OF_BARE_STREAMS)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


@pytest.fixture(autouse=True, params=LAYERS)
def layer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What all clients of this test come through."""

    def connect(broker: Broker, **options: Any) -> Any:
        return connect_through(request.param, broker, **options)

    monkeypatch.setattr(Broker, "connect_memory", connect)
    chosen: str = request.param
    return chosen


@pytest.fixture
def version() -> Version:
    """One will do here."""
    return "1.2"


later_version = version
