"""One log, two groups of readers: each group gets all records, and resumes at its offset.

    python -m examples.logs.groups

A consumer acknowledges records when it asks for more. So records that it held at its end are delivered again, to it or
to another of its group: at least once.
"""

from __future__ import annotations

from sluiceway import EmbeddedBroker
from sluiceway.client import Consumer, LogClient, Producer

ORDERS = 40


def main() -> None:
    """Sell ducks; bill them at once, ship them in two goes."""
    with EmbeddedBroker() as broker:
        with Producer(broker.address, "orders", mode="sync") as shop:
            for number in range(ORDERS):
                index = shop.send(f"{number} ducks", key=f"customer {number % 5}")
        print("the last order has the index", index)

        with Consumer(broker.address, group="billing", from_="earliest") as consumer:
            orders = consumer.stream("orders", decoder=bytes.decode)
            bills = [next(orders).value for _ in range(ORDERS)]
        print("billed:", len(bills), "orders, from", bills[0], "to", bills[-1])

        shipped: set[int] = set()
        with Consumer(broker.address, group="shipping", from_="earliest", auto_ack=False) as consumer:
            stream = consumer.stream("orders")
            for record in stream:
                shipped.add(record.index)
                stream.ack(record)
                if len(shipped) == ORDERS // 2:
                    break  # the shift is over; no one is told
        with Consumer(broker.address, group="shipping") as consumer:
            for again in consumer.stream("orders"):
                shipped.add(again.index)  # some come twice: an order is shipped by its index, so that does no harm
                if len(shipped) == ORDERS:
                    break
        print("shipped:", len(shipped), "orders")

        with LogClient(broker.address) as requests:
            print("groups:", ", ".join(sorted(group.group for group in requests.groups("orders"))))


if __name__ == "__main__":
    main()
