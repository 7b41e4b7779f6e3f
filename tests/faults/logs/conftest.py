"""Async tests of this folder run in virtual time, as scenarios do."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Final

import pytest
import structlog

from tests.faults.broker_log import BrokerLog
from tests.scenarios.conftest import run_in_virtual_time

HERE: Final = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)


@pytest.fixture
def said() -> Iterator[BrokerLog]:
    """All that the broker logs from now on."""
    log = BrokerLog()
    structlog.configure(processors=[log])
    yield log
    structlog.reset_defaults()
