"""The load generator with two hubs: each message once, whether it goes through both or each client is at the owner."""

from __future__ import annotations

import pytest

from perf.load.plans import Endpoint
from perf.peers import peer_named
from perf.peers.hub_process import owner_among
from perf.runner import Effort, ScenarioRun
from perf.scenarios import BY_NAME
from perf.started import started


@pytest.mark.parametrize(
    ("peer", "names"),
    [("sluiceway-across", ("1_1_1-1k-auto", "1_1_1-1k-individual")), ("sluiceway-hubs", ("10_10_10-100b-auto",))],
)
def test_every_message_comes_once(peer: str, names: tuple[str, ...]) -> None:
    """Through the other hub, and spread over both."""
    with started(peer_named(peer), None) as broker:
        assert len(broker.peer.pids()) == 2
        for name in names:
            measured = ScenarioRun(BY_NAME[name], broker, 1, Effort().tiny()).measure()
            assert measured.faults == (), name


def test_clients_connect_to_the_owners_of_their_destinations() -> None:
    """The number of a stream is that at the end of its destination."""
    owner_of = owner_among(("a", "b"), "number")
    endpoint = Endpoint("127.0.0.1", 1, ports=(1, 2))
    for number in range(4):
        assert endpoint.of(number).port == {"a": 1, "b": 2}[owner_of(f"/queue/perf-x-load-{number}")]
    assert {owner_among(("a", "b"), "last")(f"/queue/{number}") for number in range(4)} == {"b"}
    assert Endpoint("127.0.0.1", 7).of(3).port == 7
