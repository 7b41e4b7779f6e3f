"""Work shared out by credit: a quick worker gets more, and the orders of one customer never run side by side.

    python -m examples.work_queue

`prefetch-count:1` hands a worker its next message only when it has acknowledged the one before. Messages with the same
`group` go to one worker at a time, in order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import stomp

from sluiceway import EmbeddedBroker

ORDERS = 60
CUSTOMERS = 12


class Worker(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Takes one order at a time, some of them faster than others, and acknowledges each when it is done."""

    def __init__(self, name: str, host: str, port: int, seconds: float, log: OrderLog) -> None:
        self.name = name
        self._seconds = seconds
        self._log = log
        self.connection = stomp.Connection12([(host, port)])
        self.connection.set_listener("worker", self)
        self.connection.connect(wait=True)
        self.connection.subscribe("/queue/orders", id="1", ack="client-individual", headers={"prefetch-count": "1"})

    def on_message(self, frame: stomp.utils.Frame) -> None:
        with self._log.at_work(frame.headers["group"]):
            time.sleep(self._seconds)
            self._log.add(self.name, frame.headers["group"], int(frame.body))
        self.connection.ack(frame.headers["ack"])


class OrderLog:
    """Record of who did what, and whether two ever worked for the same customer at a time."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str, int]] = []
        self.all_done = threading.Event()
        self.locks = {f"customer {number}": threading.Lock() for number in range(CUSTOMERS)}

    def at_work(self, customer: str) -> threading.Lock:
        """A lock that must be free: the broker sees to it."""
        assert not self.locks[customer].locked(), f"two workers for {customer}"
        return self.locks[customer]

    def add(self, worker: str, customer: str, number: int) -> None:
        self.done.append((worker, customer, number))
        if len(self.done) == ORDERS:
            self.all_done.set()


def main() -> None:
    """Three workers, one of them slow, and sixty orders of twelve customers."""
    with EmbeddedBroker() as broker:
        log = OrderLog()
        workers = [
            Worker(name, broker.host, broker.port, seconds, log)
            for name, seconds in (("quick", 0.002), ("steady", 0.004), ("slow", 0.03))
        ]
        shop = stomp.Connection12([(broker.host, broker.port)])
        shop.connect(wait=True)
        for number in range(ORDERS):
            shop.send("/queue/orders", str(number), headers={"group": f"customer {number % CUSTOMERS}"})
        if not log.all_done.wait(30):
            raise TimeoutError(f"only {len(log.done)} of {ORDERS} orders were done")
        shares = Counter(worker for worker, _customer, _number in log.done)
        print(", ".join(f"{worker.name}: {shares[worker.name]} orders" for worker in workers))
        for customer in log.locks:
            numbers = [number for _worker, name, number in log.done if name == customer]
            assert numbers == sorted(numbers), f"{customer} was served out of order"
        print(f"the orders of each of the {CUSTOMERS} customers were done in order")
        for connection in (shop, *(worker.connection for worker in workers)):
            connection.disconnect()


if __name__ == "__main__":
    main()
