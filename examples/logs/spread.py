"""A log over two brokers that do not know of each other: the producer spreads, the consumer reads both.

python -m examples.logs.spread
"""

from __future__ import annotations

from collections import Counter, defaultdict

from sluiceway import EmbeddedBroker
from sluiceway.client import Consumer, Producer

EVENTS = 20_000
USERS = 50


def main() -> None:
    """Events of fifty users: those of one user stay in order."""
    with EmbeddedBroker() as east, EmbeddedBroker() as west:
        brokers = [east.address, west.address]
        with Producer(brokers, "events", partitioner="hash", linger_seconds=0.05) as producer:
            for number in range(EVENTS):
                producer.send(str(number), key=f"user {number % USERS}")
        statistics = producer.statistics()
        print(statistics.records_count, "events sent, in fewer than 100 batches:", statistics.batches_count < 100)

        seen: defaultdict[bytes | None, list[int]] = defaultdict(list)
        shares: Counter[str] = Counter()
        with Consumer(brokers, group="profiles", from_="earliest") as consumer:
            stream = consumer.stream("events")
            while shares.total() < EVENTS:
                # `poll` gives what came together, which is quicker than one by one.
                for record in stream.poll():
                    seen[record.key].append(int(record.value))
                    shares[record.broker] += 1
        print("both brokers had some:", all(shares[broker] for broker in brokers))
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        print("the events of each of the", len(seen), "users came in order")


if __name__ == "__main__":
    main()
