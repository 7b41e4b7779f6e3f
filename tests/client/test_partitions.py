"""A producer that chooses the partitions of a log itself does it as the broker would."""

from __future__ import annotations

import pytest

from sluiceway.client import ClientError, Consumer, Producer, RefusedError
from sluiceway.embedded import EmbeddedBroker
from sluiceway.queues.logs.partitions import partition_of
from tests.client.conftest import quick

pytestmark = pytest.mark.interop
SECONDS = 20.0
DIVIDED = {"/log/orders": {"log_partitions": 3}}


def test_records_of_a_key_are_in_its_partition_in_order() -> None:
    with EmbeddedBroker(destinations=DIVIDED) as broker:
        with Producer(broker.address, "orders", partitions=3, batch_count=10) as producer:
            for number in range(100):
                producer.send(str(number), key=f"key {number % 7}")
        seen = 0
        for partition in range(3):
            with Consumer(broker.address, from_="earliest", to=len(_numbers(partition))) as consumer:
                records = list(consumer.stream(f"orders/{partition}"))
            assert [int(record.value) for record in records] == _numbers(partition)
            seen += len(records)
        assert seen == 100
        with Consumer(broker.address, group="g", from_="earliest") as consumer:
            stream = consumer.stream("orders")
            assert sorted(int(next(stream).value) for _ in range(100)) == list(range(100))
        with Consumer(broker.address, from_="earliest") as consumer, pytest.raises(ClientError, match="has partitions"):
            next(consumer.stream("orders"))


def _numbers(partition: int) -> list[int]:
    return [number for number in range(100) if partition_of(b"key %d" % (number % 7), 3) == partition]


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_than_the_broker_has_is_an_error(count: int) -> None:
    with EmbeddedBroker(destinations=DIVIDED) as broker:
        producer = Producer(broker.address, "orders", partitions=count, backoff=quick)
        with pytest.raises(RefusedError, match="has 3 partitions"):
            producer.send("a", key="k").result(SECONDS)
        producer.close()
        with Producer(broker.address, "orders/1") as other:
            assert other.send("b").result(SECONDS) == 0
