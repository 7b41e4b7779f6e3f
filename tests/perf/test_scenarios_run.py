"""Every scenario runs with ten messages against a real broker process, so that none of them can rot.

The broker is Sluiceway; `SLUICEWAY_PERF_PEER=rabbitmq` (or another of `perf.peers`) checks the load generator itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
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
def broker_for() -> Iterator[Callable[[Scenario], Started]]:
    """The broker for a scenario, which those with the same settings share: with ten messages none of them fills it."""
    peer_named(_PEER).install()
    with ExitStack() as stack:
        running: dict[str, Started] = {}

        def choose(scenario: Scenario) -> Started:
            if scenario.settings not in running:
                one = started(peer_named(_PEER), None, scenario.settings)
                running[scenario.settings] = stack.enter_context(one)
            return running[scenario.settings]

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
    (scenario,) = choose(["1_1_1-20b-auto"])
    with started(peer_named("sluiceway"), None) as broker:
        (pid,) = broker.peer.pids()
        # So many that they are still under way when it ends, which is as soon as the sender and the reader are there.
        lengthy = evolve(Effort().tiny(), check_count=2_000_000)
        end = threading.Thread(target=kill_with_clients, args=(pid, 2))
        end.start()
        measured = ScenarioRun(scenario, broker, 1, lengthy).measure()
        end.join()
    assert measured.faults[0].startswith("the checked prelude: ")
    assert "the broker's process has ended" in measured.faults
    assert "sluiceway ended with exit code -9; its output ends with:\n" in measured.faults[-1]


def kill_with_clients(pid: int, clients_count: int) -> None:
    """Kill a broker as soon as it has that many connections."""
    process, deadline = psutil.Process(pid), time.monotonic() + 60.0
    while sum(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections("tcp")) < clients_count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
