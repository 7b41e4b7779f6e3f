"""What holds for the whole suite: property tests run the same examples every time, trio runs tasks in the same order,
logging is for one test only, and no test leaves anything in the checkout.

`SLUICEWAY_TEST_TIMES=20 scripts/test tests/...` plays twenty times as many rounds, seeds, examples and kills
(see how_often.py), `HYPOTHESIS_PROFILE=explore scripts/test tests/...` looks for new examples instead of
the usual ones, and `SLUICEWAY_TASK_ORDER=7 scripts/test tests/...` runs tasks in another order.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import bare_names, checkout
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

# Hundreds of brokers and commands are started: where compiled modules are not kept, each compiles all of them again,
# which is two seconds of processor time. Whoever set this meant programs, not the tests of this checkout.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("repeatable", max_examples=rounds(40), derandomize=True, **_PATIENT)
settings.register_profile("explore", max_examples=rounds(1000), print_blob=True, **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of the processes of pytest-xdist, the one that sees all of them end
        config.pluginmanager.register(checkout.CheckoutStaysClean(), "checkout-stays-clean")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector finds nothing among modules and tests that are new, and takes half of the time to collect
    tests; from then on it does not look at them again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    started = sys.modules.get("tests.postgresql_server")
    if started is not None:
        started.stop_server()


@pytest.fixture(autouse=True)
def each_test_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tasks run in an order that can be played again; logging that a test, or a command that it calls, has set up ends
    with it; and a test that leaves something is named at once: a stomp.py that goes on behind it (what fixtures of more
    than one test keep may stay), or a file in the working folder (perhaps of a test beside it in another process).

    One fixture for all of this: for twenty thousand tests each takes a quarter of a minute.
    """
    settle_task_order(request.node.nodeid)
    clients, strangers = client_threads(), checkout.strangers()
    yield
    structlog.reset_defaults()
    left = still_running(client_threads() - clients, _CLIENT_ENDS_SECONDS)
    new = checkout.strangers() - strangers
    assert not left, f"this test left clients that still read: {left}"
    assert not new, f"this test (or one beside it) wrote {new} into the checkout: use tmp_path"
