"""What holds for the whole suite: property tests run the same examples every time, and logging is for one test only.

`HYPOTHESIS_PROFILE=explore scripts/test tests/...` looks for new examples instead, ten times as many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from tests.chromium import browser

__all__ = ["browser"]

# No deadline per example: a machine that is busy with something else is not a fault of ours.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def logging_is_not_set_up() -> Iterator[None]:
    """Whatever a test, or a command that it calls, sets up ends with it."""
    yield
    structlog.reset_defaults()
