"""Scenarios run on a clock that jumps ahead when everybody waits: minutes of broker time take milliseconds.

Real sockets do not mix with such a clock, so clients come in over memory streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from sluiceway.protocols.stomp import spooling
from sluiceway.protocols.stomp.escaping import Version
from sluiceway.queues.selectors.grammar import prepare
from tests.scenarios.stage import Stage

HERE = Path(__file__).parent


def run_in_virtual_time(scenario: Callable[..., Awaitable[Any]], **options: Any) -> Any:
    """`trio.run` on a clock that starts at 0 and jumps, also while a thread makes what selectors need: so that is made
    before.
    """
    prepare()
    return trio.run(scenario, **{**options, "clock": MockClock(autojump_threshold=0)})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every async test of this folder runs in virtual time."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A broker as it comes, without any policy. Tests that need another one say `async with Stage(...)`."""
    async with Stage() as stage:
        yield stage


@pytest.fixture(params=["1.0", "1.1", "1.2"])
def version(request: pytest.FixtureRequest) -> Version:
    """Each version of the protocol."""
    chosen: Version = request.param
    return chosen


@pytest.fixture(params=["1.1", "1.2"])
def later_version(request: pytest.FixtureRequest) -> Version:
    """The versions with NACK, client-individual and escapes."""
    chosen: Version = request.param
    return chosen


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spooled transactions in pieces of five messages or so, so that there are many of them."""
    monkeypatch.setattr(spooling, "PIECE_BYTES", 6_000)
