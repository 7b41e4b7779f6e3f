"""A broker inside your own program: no server to install, start or clean up.

python -m examples.embedded
"""

from __future__ import annotations

import queue

import stomp

from sluiceway import EmbeddedBroker


class Arrivals(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Hands messages from stomp.py's thread to the main thread."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[str] = queue.Queue()

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self.bodies.put(frame.body)


def main() -> None:
    """Send a message through a broker that lives as long as the block."""
    with EmbeddedBroker() as broker:  # a free port of 127.0.0.1, in a thread of its own
        arrivals = Arrivals()
        connection = stomp.Connection12([(broker.host, broker.port)])
        connection.set_listener("arrivals", arrivals)
        connection.connect(wait=True)
        connection.subscribe("/queue/orders", id="1", ack="auto")
        connection.send("/queue/orders", "42 ducks")
        print("received:", arrivals.bodies.get(timeout=10))
        orders = next(row for row in broker.report()["destinations"] if row["name"] == "/queue/orders")
        print("the broker counts:", orders["added_count"], "in,", orders["dropped_count"], "dropped")
        connection.disconnect()


if __name__ == "__main__":
    main()
