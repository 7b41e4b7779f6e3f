"""A clock turned by hand and a manager that reads it."""

import pytest

from sluiceway.flow import FlowManager
from tests.flow.models import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def manager(clock: ManualClock) -> FlowManager:
    return FlowManager(clock)
