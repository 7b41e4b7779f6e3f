"""The load generator over TLS and WebSocket: each message once, as over plain TCP."""

from __future__ import annotations

import pytest

from perf.peers import peer_named
from perf.runner import Effort, ScenarioRun
from perf.scenarios import BY_NAME
from perf.started import started

NAMES = ("1_1_1-20b-auto", "1_1_1-1m-auto", "10_10_10-mixed-auto", "1_1_1-100b-individual")


@pytest.mark.parametrize("peer", ["sluiceway-tls", "sluiceway-websocket"])
def test_every_message_comes_once(peer: str) -> None:
    """Tiny ones, large ones, and with acknowledgements."""
    with started(peer_named(peer), None) as broker:
        for name in NAMES:
            measured = ScenarioRun(BY_NAME[name], broker, 1, Effort().tiny()).measure()
            assert measured.faults == (), name
