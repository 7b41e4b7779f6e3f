"""Every scenario runs with ten messages against a real broker process, so that none of them can rot.

The broker is Sluiceway; `SLUICEWAY_PERF_PEER=rabbitmq` (or another of `perf.peers`) checks the load generator itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from perf.comparing import Started, started
from perf.peers import peer_named
from perf.runner import Effort, Run
from perf.scenarios import CATALOGUE, Scenario

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def broker() -> Iterator[Started]:
    """One broker process for all scenarios: with ten messages none of them fills it."""
    peer = peer_named(os.environ.get("SLUICEWAY_PERF_PEER", "sluiceway"))
    peer.install()
    with started(peer, None) as one:
        yield one


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_scenario_delivers_every_message_of_ten_exactly_once(scenario: Scenario, broker: Started) -> None:
    """No fault means: each numbered message once, in its stream's order, and as many deliveries as were sent for."""
    measured = Run(scenario, broker.peer.name, 1, broker.endpoint, broker.tree, Effort().tiny()).measure()
    assert measured.faults == ()
    if scenario.idle_count:
        assert measured.figures["idle_held_ratio"] == 1.0
    else:
        assert measured.figures["delivered_count"] >= 10
    assert measured.figures["rss_peak_bytes"] > 0
