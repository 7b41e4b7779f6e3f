"""Every case plays in virtual time, against a broker as it comes, with clients whose streams hold megabytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from tests.limits.counted_code import counted
from tests.limits.law import LawStage
from tests.scenarios.conftest import run_in_virtual_time

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every async test of this folder runs in virtual time."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


@pytest.fixture(scope="package", autouse=True)
def counted_code() -> Iterator[None]:
    """Brokers of this folder run code that counts."""
    with counted():
        yield


@pytest.fixture
async def stage() -> AsyncIterator[LawStage]:
    """A broker with the limits of the default configuration."""
    async with LawStage() as stage:
        yield stage
