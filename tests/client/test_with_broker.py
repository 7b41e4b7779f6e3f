"""The client and the broker together."""

from __future__ import annotations

import threading
from pathlib import Path

import attrs
import pytest

from perf.peers.daemon import free_port
from sluiceway.client import Consumer, LogClient, Producer, RefusedError, RequestError
from sluiceway.client.producer import Compression
from sluiceway.config import Config, Listener
from sluiceway.embedded import EmbeddedBroker
from sluiceway.store.config import StoreConfig
from tests.client.conftest import quick
from tests.client.test_producer import numbers

pytestmark = pytest.mark.interop
SECONDS = 20.0


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "zstd"])
def test_what_was_sent_is_read(sluiceway_broker: EmbeddedBroker, compression: Compression) -> None:
    """Compressed batches as they are, and expanded by the broker for a reader that can't; keys and headers stay."""
    address = sluiceway_broker.address
    with Producer(address, "orders", compression=compression, headers={"of": "a:b"}, batch_count=70) as producer:
        assert producer.send_many(numbers(500), key="duck").result(SECONDS) == 0
        assert producer.send("last").result(SECONDS) == 500
    for accepted in (("gzip", "snappy", "zstd"), ()):
        with Consumer(address, from_=33, to=501, compression=accepted, batch_bytes=2000) as consumer:
            records = list(consumer.stream("orders"))
        assert [record.value for record in records] == [*numbers(500)[33:], b"last"]
        assert [record.index for record in records] == list(range(33, 501))
        assert (records[0].key, records[-1].key) == (b"duck", None)
        assert records[0].headers["of"] == "a:b"


def test_a_log_of_single_sends_is_read_as_well(sluiceway_broker: EmbeddedBroker) -> None:
    """From a plain STOMP client, with headers of its own."""
    import stomp

    connection = stomp.Connection12([(sluiceway_broker.host, sluiceway_broker.port)])
    connection.connect(wait=True)
    for number in range(3):
        connection.send("/log/orders", f"{number}", headers={"kind": f"k{number}"})
    connection.disconnect(receipt="kept")
    with Consumer(sluiceway_broker.address, from_="earliest") as consumer:
        stream = consumer.stream("orders", decoder=int)
        records = [next(stream) for _ in range(3)]
    assert [(record.value, record.headers["kind"]) for record in records] == [(0, "k0"), (1, "k1"), (2, "k2")]


def test_groups_are_independent_and_go_on_where_they_were(sluiceway_broker: EmbeddedBroker) -> None:
    """With batches of one record, each of them a MESSAGE of its own for its size."""
    address = sluiceway_broker.address
    values = [b"%06d" % number * 2000 for number in range(40)]
    with Producer(address, "orders", mode="sync", batch_count=1) as producer:
        producer.send_many(values)
    for group in ("billing", "shipping"):
        with Consumer(address, group=group, from_="earliest", batch_bytes=1) as consumer:
            stream = consumer.stream("orders")
            assert [next(stream).value for _ in range(21)] == values[:21]
    with Consumer(address, group="billing", batch_bytes=1) as consumer:
        stream = consumer.stream("orders")
        assert [next(stream).value for _ in range(20)] == values[20:]  # 20 was not acknowledged
    with LogClient(address) as client:
        assert {group.group: group.front for group in client.groups("orders")} == {"billing": 39, "shipping": 20}


def test_consumers_of_a_group_share_and_lose_nothing_when_one_goes(sluiceway_broker: EmbeddedBroker) -> None:
    address = sluiceway_broker.address
    with Producer(address, "orders", mode="sync", batch_count=10) as producer:
        producer.send_many(numbers(1000))
    leaver = Consumer(address, group="g", from_="earliest", batch_bytes=1, buffer_bytes=2000)
    stream = leaver.stream("orders")
    values = {next(stream).value for _ in range(25)}
    with Consumer(address, group="g", batch_bytes=1, buffer_bytes=2000) as consumer:
        rest = consumer.streams({"orders": 2})["orders"]
        leaver.close()
        while len(values) < 1000:
            for one in rest:
                values |= {record.value for record in one.poll(0.05)}
    assert values == set(numbers(1000))


def test_producers_and_readers_live_through_a_restart(sluiceway_config: Config) -> None:
    """Every record is in the log, and a reader gets each of them once and in order."""
    address = f"127.0.0.1:{free_port()}"
    sluiceway_config = attrs.evolve(
        sluiceway_config, store=StoreConfig(engine="leveldb"), listeners=(Listener(address=address),)
    )
    first = EmbeddedBroker(sluiceway_config).start()
    with (
        Consumer(address, from_="earliest", backoff=quick) as consumer,
        Producer(address, "orders", batch_count=10, backoff=quick) as producer,
    ):
        stream = consumer.stream("orders")
        sent = [producer.send(value) for value in numbers(300)]
        indexes = [next(stream).index for _ in range(5)]
        first.stop()
        sent += [producer.send(value) for value in numbers(300)]
        second = EmbeddedBroker(sluiceway_config).start()
        results = [one.result(SECONDS) for one in sent]
        while indexes[-1] < results[-1]:
            indexes.append(next(stream).index)
        assert indexes == list(range(indexes[-1] + 1))
        assert results == sorted(results)
    second.stop()


def test_reading_begins_at_a_time_or_with_what_comes_next(sluiceway_broker: EmbeddedBroker) -> None:
    address = sluiceway_broker.address
    with Producer(address, "orders", mode="sync") as producer:
        for value in numbers(5):
            producer.send(value)
        with Consumer(address, from_="earliest", to=5) as consumer:
            times = [record.timestamp_ms for record in consumer.stream("orders")]
        with LogClient(address) as client:
            place = client.closest_index("orders", times[3])
        assert times[place] == times[3]
        with Consumer(address, from_=f"time:{times[3]}", to=5) as consumer:
            assert next(consumer.stream("orders")).index == place
        with Consumer(address) as consumer, Consumer(address, from_="latest") as late:
            stream, late_stream = consumer.stream("orders"), late.stream("orders")
            assert next(late_stream).value == b"4"
            producer.send("probe")
            assert next(late_stream).value == b"probe"
            began = threading.Event()

            def send_on() -> None:
                """Nobody tells when the other one has subscribed."""
                while not began.wait(0.05):
                    producer.send("new")

            sending = threading.Thread(target=send_on)
            sending.start()
            try:
                assert next(stream).value in (b"probe", b"new")  # whichever came first after it began
            finally:
                began.set()
                sending.join()


def test_requests_say_what_there_is_and_change_it(sluiceway_broker: EmbeddedBroker) -> None:
    with LogClient(sluiceway_broker.address) as client:
        assert client.list_logs() == []
        with Producer(sluiceway_broker.address, "orders", mode="sync", batch_count=10) as producer:
            producer.send_many(numbers(100))
        info = client.describe("orders")
        assert (info.log, info.first, info.next, info.size, info.groups) == ("orders", 0, 100, 100, ())
        assert client.list_logs() == [info]
        with Consumer(sluiceway_broker.address, group="g", from_=90) as consumer:
            next(consumer.stream("orders"))
            [group] = client.groups("orders")
            assert (group.group, group.front, group.lag, group.consumers) == ("g", 90, 10, 1)
            with pytest.raises(RequestError) as caught:
                client.delete_group("orders", "g")
            assert caught.value.code == "GROUP_IN_USE"
        assert client.size("orders") == 100
        assert client.seek("orders", "g", "earliest") == 0
        assert client.size("orders", group="g") == 100
        assert client.seek("orders", "g", 17) == 17
        client.delete_group("orders", "g")
        assert client.groups("orders") == []
        for code, ask in {
            "TOPIC_NOT_EXIST": lambda: client.describe("bills"),
            "GROUP_NOT_EXIST": lambda: client.seek("orders", "g", 0),
        }.items():
            with pytest.raises(RequestError) as caught:
                ask()
            assert caught.value.code == code
        assert client.truncate("orders", 40) == 40
    with Consumer(sluiceway_broker.address, from_=0, to=100) as consumer:
        records = list(consumer.stream("orders"))
        assert consumer.statistics().gaps_count == 1
    assert [record.index for record in records] == list(range(40, 100))


def test_a_reader_that_does_not_take_is_waited_for(sluiceway_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """More than all buffers on the way hold; batches are small beside the buffer, for one alone may be larger."""
    address = sluiceway_broker.address
    value = b"x" * 10_000
    with Producer(address, "orders", batch_bytes=50_000) as producer:
        producer.send_many([value] * 3000)
    with Consumer(address, from_="earliest", to=3000, buffer_bytes=500_000) as consumer:
        stream = consumer.stream("orders")
        assert next(stream).index == 0
        assert consumer.statistics().held_bytes <= 500_000
        assert [record.index for record in stream] == list(range(1, 3000))


def test_a_refusal_has_the_code_of_the_brokers_error(sluiceway_broker: EmbeddedBroker) -> None:
    with (
        pytest.raises(RefusedError) as refusal,
        Consumer(sluiceway_broker.address, from_=999) as consumer,
    ):
        next(consumer.stream("orders"))
    assert refusal.value.code == "index-out-of-bounds"
    assert refusal.value.result_code == "INDEX_OUT_OF_BOUNDS"


@pytest.mark.parametrize("group", [None, "g"])
def test_paused_consumer_gets_nothing_until_it_resumes(sluiceway_broker: EmbeddedBroker, group: str | None) -> None:
    """What was sent before still comes; then all the rest, once."""
    address = sluiceway_broker.address
    with Consumer(address, group=group, from_="earliest", batch_bytes=1000) as consumer:
        consumer.pause()
        stream = consumer.stream("orders")
        with Producer(address, "orders", mode="sync", batch_count=1) as producer:
            producer.send_many(numbers(50))
        assert stream.poll(0.3) == []
        consumer.resume()
        values = [next(stream).value for _ in range(50)]
        assert values == numbers(50)
        consumer.pause()
        consumer.resume()
        assert stream.poll(0.1) == []


def test_prefetch_of_a_group_is_set(sluiceway_broker: EmbeddedBroker) -> None:
    """One MESSAGE at a time: the other consumer of the group gets the next one."""
    address = sluiceway_broker.address
    with Consumer(address, group="g", from_="earliest", auto_ack=False, batch_bytes=1) as consumer:
        consumer.set_prefetch(2)
        stream = consumer.stream("orders")
        with Producer(address, "orders", mode="sync", batch_count=1) as producer:
            producer.send_many([b"%d" % number * 3000 for number in range(9)])
        first = [next(stream), next(stream)]
        assert stream.poll(0.3) == []
        consumer.set_prefetch(3)
        first.append(next(stream))
        assert stream.poll(0.3) == []
        for record in first:
            stream.ack(record)
        assert next(stream).index == 3
        for wrong in (0, -1, 10**9):
            with pytest.raises(ValueError, match="set_prefetch"):
                consumer.set_prefetch(wrong)
    with Consumer(address) as consumer, pytest.raises(ValueError, match="without a group"):
        consumer.set_prefetch(1)


def test_records_are_fetched_and_committed(sluiceway_broker: EmbeddedBroker) -> None:
    with Producer(sluiceway_broker.address, "fetched") as producer:
        for value in (b"\xff", b"two", b"three"):
            producer.send(value, key=b"k")
    with LogClient(sluiceway_broker.address) as client:
        fetched = client.fetch("fetched", "earliest", max_count=2)
        assert [(r.index, r.key, r.value) for r in fetched.records] == [(0, b"k", b"\xff"), (1, b"k", b"two")]
        assert fetched.next == 2
        client.request("cursor", log="fetched", group="g", **{"from": "earliest"})
        assert client.commit("fetched", "g", fetched.next) == 2
        assert [record.value for record in client.fetch("fetched", group="g").records] == [b"three"]
        assert client.fetch("fetched", 3, max_wait_seconds=0.1).records == ()
