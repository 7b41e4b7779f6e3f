"""Read the past: by index, by time, a range twice with the same result.

python -m examples.logs.replay
"""

from __future__ import annotations

import json
from typing import Any

from sluiceway import EmbeddedBroker
from sluiceway.client import Consumer, LogClient, Producer


def to_json(value: Any) -> bytes:
    """An encoder: from what `send` is given to the bytes of a record."""
    return json.dumps(value).encode()


def main() -> None:
    """Ten thousand measurements, compressed; then look at some of them again and again."""
    with EmbeddedBroker() as broker:
        with Producer(broker.address, "measurements", encoder=to_json, compression="zstd") as producer:
            for second in range(100):
                producer.send_many({"second": second, "sensor": sensor} for sensor in range(100))
        with LogClient(broker.address) as requests:
            info = requests.describe("measurements")
            print("records:", info.size)
            assert info.first_timestamp_ms is not None
            first = requests.closest_index("measurements", info.first_timestamp_ms)
            print("the oldest one is", first)

        def read() -> list[tuple[int, Any]]:
            with Consumer(broker.address, from_=2_500, to=2_600) as consumer:
                return [(record.index, record.value) for record in consumer.stream("measurements", decoder=json.loads)]

        once, twice = read(), read()
        assert once == twice
        print("read twice:", len(once), "records, the first of them", once[0][1])


if __name__ == "__main__":
    main()
