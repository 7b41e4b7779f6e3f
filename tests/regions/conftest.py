"""Tests of regions run in virtual time."""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from tests.scenarios.conftest import run_in_virtual_time

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every async test of this folder runs in virtual time, but those of real sockets."""
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.path.is_relative_to(HERE)
            and item.path.name != "test_over_sockets.py"
            and iscoroutinefunction(item.obj)
        ):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
