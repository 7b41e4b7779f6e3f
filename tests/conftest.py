"""What holds for the whole suite: property tests run the same examples every time, trio runs tasks in the same order,
logging is for one test only, and no test leaves anything in the checkout.

`SLUICEWAY_TEST_TIMES=20 scripts/test tests/...` plays twenty times as many rounds, seeds, examples and kills
(see how_often.py), `HYPOTHESIS_PROFILE=explore scripts/test tests/...` looks for new examples instead of
the usual ones, and `SLUICEWAY_TASK_ORDER=7 scripts/test tests/...` runs tasks in another order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import bare_names, bytecode, checkout
from tests.chromium import browser
from tests.client_threads import client_threads, still_running
from tests.how_often import rounds
from tests.log_lines import log_lines
from tests.task_order import settle_task_order

__all__ = ["browser", "log_lines"]

# No deadline per example: a machine that is busy with something else is not a fault of ours.
# Nor is it one when making the examples takes long.
_PATIENT: Final[dict[str, Any]] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
_CLIENT_ENDS_SECONDS: Final = 20.0
"""How long a client that a test has closed may take: stomp.py's receiving thread looks at its socket once more."""

bare_names.refuse()
bytecode.keep()

# Hundreds of brokers and commands are started: where compiled modules are not kept, each compiles all of them again,
# which is two seconds of processor time. Whoever set this meant programs, not the tests of this checkout.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("repeatable", max_examples=rounds(40), derandomize=True, **_PATIENT)
settings.register_profile("explore", max_examples=rounds(1000), print_blob=True, **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def tasks_run_in_the_same_order(request: pytest.FixtureRequest) -> None:
    """So that a test which failed can be played again."""
    settle_task_order(request.node.nodeid)


@pytest.fixture(autouse=True)
def logging_is_not_set_up() -> Iterator[None]:
    """Whatever a test, or a command that it calls, sets up ends with it."""
    yield
    structlog.reset_defaults()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of the processes of pytest-xdist, the one that sees all of them end
        config.pluginmanager.register(checkout.CheckoutStaysClean(), "checkout-stays-clean")


def pytest_unconfigure() -> None:
    started = sys.modules.get("tests.postgresql_server")
    if started is not None:
        started.stop_server()


@pytest.fixture(autouse=True)
def no_client_left() -> Iterator[None]:
    """A test whose stomp.py goes on behind it is named at once; what fixtures of more than one test keep may stay."""
    before = client_threads()
    yield
    left = still_running(client_threads() - before, _CLIENT_ENDS_SECONDS)
    assert not left, f"this test left clients that still read: {left}"


@pytest.fixture(autouse=True)
def nothing_new_at_the_root() -> Iterator[None]:
    """A test that writes into the working folder is named at once (or one that ran beside it in another process)."""
    before = checkout.strangers()
    yield
    assert checkout.strangers() <= before, "this test (or one beside it) wrote into the checkout: use tmp_path"
