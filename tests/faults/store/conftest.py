"""Async tests of this folder run in virtual time, as scenarios do."""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path
from typing import Final

import pytest

from tests.scenarios.conftest import run_in_virtual_time

HERE: Final = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(HERE) and iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
