"""SENDs to a topic without a subscriber: how many a broker takes in a second, and the processor time of each.

Brokers take turns (`perf.turns` says why): in each round every one of them is sent to for a while, one after the other,
in the other order in the next round. A producer writes as fast as its socket takes it; each 500th SEND asks for a
receipt, and the receipts count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Final

import attrs

from perf.load.plans import Endpoint
from perf.peers import Peer
from perf.probes.gaps import Client, frame
from perf.started import Started, started

TOPIC: Final = "/topic/perf.unheard"
RECEIPT_EVERY: Final = 500
WINDOW_COUNT: Final = 40
"""Receipts that may be out: more than the sockets of both sides hold."""


@attrs.frozen
class Turn:
    """One turn of one broker."""

    peer: str
    body_bytes: int
    rate_per_second: float
    broker_cpu_us: float
    """Processor time of the broker for each SEND."""


class Flood:
    """A producer of one broker."""

    def __init__(self, endpoint: Endpoint, body_bytes: int) -> None:
        self._client = Client(endpoint)
        body = b"x" * body_bytes
        head = {"destination": TOPIC, "content_length": body_bytes}
        self._plain = frame("SEND", body, **head) * (RECEIPT_EVERY - 1)
        self._last = frame("SEND", body, **head, receipt="r")

    def run(self, seconds: float) -> tuple[int, float]:
        """Send for about that long. Returns the number of SENDs and the time until the last receipt had come."""
        client, data = self._client, self._plain + self._last
        began = time.monotonic()
        sent = received = 0
        while time.monotonic() < began + seconds or received < sent:
            if time.monotonic() < began + seconds:
                client.send(data)
                sent += 1
            if sent - received >= WINDOW_COUNT or time.monotonic() >= began + seconds:
                received += client.read_until(b"\0", 1).count(b"\0")
        return sent * RECEIPT_EVERY, time.monotonic() - began

    def close(self) -> None:
        """Close the socket."""
        self._client.close()


def measure(peers: Sequence[Peer], sizes_bytes: Sequence[int], *, rounds: int, seconds: float) -> Iterator[Turn]:
    """Measure brokers in turns. Raises OSError, and PeerError if one does not start."""
    with ExitStack() as stack:
        brokers: list[Started] = [stack.enter_context(started(peer, None, "")) for peer in peers]
        for body_bytes in sizes_bytes:
            floods = [Flood(broker.endpoint, body_bytes) for broker in brokers]
            for flood in floods:
                flood.run(seconds / 4)
            for number in range(rounds):
                order = list(zip(brokers, floods, strict=True))
                for broker, flood in reversed(order) if number % 2 else order:
                    cpu_from = broker.tree.cpu_seconds()
                    count, took = flood.run(seconds)
                    cpu = broker.tree.cpu_seconds() - cpu_from
                    yield Turn(broker.peer.name, body_bytes, count / took, cpu * 1e6 / count)
            for flood in floods:
                flood.close()


def lines(turns: Sequence[Turn]) -> Iterator[str]:
    """A row for each broker and size: medians, and ratios to the first broker in the same round."""
    peers = list(dict.fromkeys(turn.peer for turn in turns))
    for body_bytes in dict.fromkeys(turn.body_bytes for turn in turns):
        first = [turn for turn in turns if (turn.peer, turn.body_bytes) == (peers[0], body_bytes)]
        for peer in peers:
            own = [turn for turn in turns if (turn.peer, turn.body_bytes) == (peer, body_bytes)]
            rates = [one.rate_per_second / other.rate_per_second for one, other in zip(own, first, strict=True)]
            cpus = [one.broker_cpu_us / other.broker_cpu_us for one, other in zip(own, first, strict=True)]
            low, high = (quantiles(rates, n=4)[::2]) if len(rates) > 1 else (rates[0], rates[0])
            yield (
                f"{body_bytes:6} B  {peer:30}  {median(turn.rate_per_second for turn in own):11,.0f}/s"
                f"  {median(turn.broker_cpu_us for turn in own):6.3f} µs"
                f"  rate {median(rates):5.2f} ({low:.2f} to {high:.2f})  processor {median(cpus):5.2f}"
            )
