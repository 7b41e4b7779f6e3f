"""A test of back-pressure: fill a small queue, and let the broker say who holds everybody up.

    python -m examples.bottleneck

What `sluiceway stat` prints comes from `report()`: plain data that a test can look at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import attrs
import stomp

from sluiceway import EmbeddedBroker
from sluiceway.config import DestinationPolicy
from sluiceway.embedded import embedded_config

MESSAGES = 2_000
PREFETCH = 50


class Rester(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Takes messages up to its credit, but acknowledges none before it is told to."""

    def __init__(self) -> None:
        self.acks: list[str] = []

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self.acks.append(frame.headers["ack"])


def wait_until(condition: Callable[[], bool]) -> None:
    """Look a hundred times a second; TimeoutError after ten."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen within 10 s")
        time.sleep(0.01)


def main() -> None:
    """A producer runs into a consumer that does not acknowledge; then it does."""
    config = attrs.evolve(
        embedded_config(),
        # With a store it would go to disk instead of blocking senders, but for the throttle.
        destinations=(
            DestinationPolicy(match="/queue/orders", settings={"memory_bytes": 64 * 1024, "paging": "throttle"}),
        ),
    )
    with EmbeddedBroker(config) as broker:
        rester = Rester()
        consumer = stomp.Connection12([(broker.host, broker.port)])
        consumer.set_listener("rester", rester)
        consumer.connect(wait=True)
        consumer.subscribe(
            "/queue/orders", id="billing", ack="client-individual", headers={"prefetch-count": str(PREFETCH)}
        )

        producer = stomp.Connection12([(broker.host, broker.port)])
        producer.connect(wait=True)
        body = "x" * 500
        sending = threading.Thread(target=lambda: [producer.send("/queue/orders", body) for _ in range(MESSAGES)])
        sending.start()

        wait_until(lambda: bool(broker.report()["bottlenecks"]) and len(rester.acks) == PREFETCH)
        worst = broker.report()["bottlenecks"][0]
        assert worst["sink"].startswith("subscription billing"), worst["words"]
        print("while it rests:", worst["sink"].split(" of ")[0], "blocks", worst["waiting_count"], "flows")

        acknowledged = 0
        while acknowledged < MESSAGES:
            wait_until(lambda: len(rester.acks) > acknowledged)  # noqa: B023  # called at once, in this very turn
            consumer.ack(rester.acks[acknowledged])
            acknowledged += 1
        sending.join()
        wait_until(lambda: not broker.report()["chains"])
        print(f"after {acknowledged:,} acknowledgements: nothing is blocked")
        for connection in (producer, consumer):
            connection.disconnect()


if __name__ == "__main__":
    main()
