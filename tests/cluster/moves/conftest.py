"""Tests of several hubs run in virtual time."""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path

import pytest

from tests.scenarios.conftest import run_in_virtual_time

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every async test of this folder runs in virtual time, but those of real sockets."""
    ours = [item for item in items if item.path.parent == HERE and item.path.name != "test_links.py"]
    for item in ours:
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
