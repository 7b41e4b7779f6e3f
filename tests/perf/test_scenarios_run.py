"""Every scenario runs with ten messages against a real broker process, so that none of them can rot.

The broker is Sluiceway; `SLUICEWAY_PERF_PEER=rabbitmq` (or another of `perf.peers`) checks the load generator itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from attrs import evolve

from perf.peers import peer_named
from perf.runner import Effort, ScenarioRun
from perf.scenarios import CATALOGUE, Scenario, choose
from perf.started import Started, started
from tests.how_often import rounds

_PEER = os.environ.get("SLUICEWAY_PERF_PEER", "sluiceway")

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def broker() -> Iterator[Started]:
    """One broker process for all scenarios: with ten messages none of them fills it."""
    peer = peer_named(_PEER)
    peer.install()
    with started(peer, None) as one:
        yield one


@pytest.fixture
def broker_for(request: pytest.FixtureRequest) -> Iterator[Callable[[Scenario], Started]]:
    """The broker for a scenario: one of its own where it brings settings."""
    with ExitStack() as stack:

        def choose(scenario: Scenario) -> Started:
            if scenario.settings:
                return stack.enter_context(started(peer_named(_PEER), None, scenario.settings))
            shared: Started = request.getfixturevalue("broker")
            return shared

        yield choose


# Those with a backlog are alike but for sizes, and take seconds each.
BACKLOGS = [scenario for scenario in CATALOGUE if scenario.backlog is not None]
PLAYED = CATALOGUE if rounds(1) > 1 else [each for each in CATALOGUE if each not in BACKLOGS or each in BACKLOGS[::3]]


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.name)
def test_scenario_delivers_every_message_of_ten_exactly_once(
    scenario: Scenario, broker_for: Callable[[Scenario], Started]
) -> None:
    """No fault means: each numbered message once, in its stream's order, and as many deliveries as were sent for."""
    broker = broker_for(scenario)
    effort = Effort().tiny()
    measured = ScenarioRun(scenario, broker, 1, effort).measure()
    assert measured.faults == ()
    if scenario.idle_count:
        assert measured.figures["idle_held_ratio"] == 1.0
    elif scenario.backlog is not None:
        assert effort.backlog_count and effort.backlog_bytes_max
        most = effort.backlog_bytes_max // scenario.body_bytes
        assert measured.figures["backlog_count"] == min(effort.backlog_count, most)
        # So few may all have come before the rate of draining is measured; that all came is what faults say.
        assert measured.figures["drain_rate_per_second"] >= 0
        assert measured.figures["fill_rate_per_second"] > 0
    else:
        assert measured.figures["delivered_count"] >= 10
    assert measured.figures["rss_peak_bytes"] > 0


def test_a_broker_that_ends_in_the_midst_says_why() -> None:
    """A client only sees that it closed."""
    (scenario,) = choose(["drain-1k-10k-persistent"])
    with started(peer_named("sluiceway"), None) as broker:
        (pid,) = broker.peer.pids()
        os.kill(pid, signal.SIGKILL)
        impatient = evolve(Effort().tiny(), silence_seconds=1.0, backlog_silence_seconds=1.0)
        measured = ScenarioRun(scenario, broker, 1, impatient).measure()
    assert "the broker's process has ended" in measured.faults
    assert "sluiceway ended with exit code -9; its output ends with:\n" in measured.faults[-1]
