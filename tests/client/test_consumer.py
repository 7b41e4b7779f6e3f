"""What a consumer promises, against a broker that fails on command."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sluiceway.client import (
    CannotConnectError,
    ClosedError,
    Consumer,
    DamagedError,
    Gap,
    GapError,
    LogDeletedError,
    Record,
    RefusedError,
    Stream,
)
from sluiceway.queues.logs.batches import Batch, encode, stamped
from sluiceway.queues.logs.codecs import Codec
from tests.client.conftest import quick
from tests.client.fake_broker import TIMESTAMP_MS, FakeBroker
from tests.client.test_producer import numbers

SECONDS = 10.0


def taken(stream: Stream[Any], count: int) -> list[Any]:
    """So many values."""
    return [next(stream).value for _ in range(count)]


class Taker(threading.Thread):
    """Iterates over a stream until it ends."""

    def __init__(self, stream: Stream[bytes]) -> None:
        super().__init__(daemon=True)
        self.records: list[Record[bytes]] = []
        self._stream = stream
        self.start()

    def run(self) -> None:
        for record in self._stream:
            self.records.append(record)


# ---------------------------------------------------------------------- what is read


def test_a_range_is_read_to_its_end(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", numbers(95))
    with Consumer(fake_broker.address, from_="earliest", to=95, batch_bytes=300) as consumer:
        records = list(consumer.stream("orders"))
    assert [record.value for record in records] == numbers(95)
    assert [record.index for record in records] == list(range(95))
    assert {record.timestamp_ms for record in records} == set(range(TIMESTAMP_MS, TIMESTAMP_MS + 10))
    assert {(record.log, record.broker) for record in records} == {("orders", fake_broker.address)}
    assert fake_broker.messages_count > 2


@pytest.mark.parametrize("codec", list(Codec))
def test_reading_may_begin_and_end_in_the_middle_of_a_batch(fake_broker: FakeBroker, codec: Codec) -> None:
    fake_broker.log("orders").append(Batch(encode(numbers(30), codec=codec)))
    fake_broker.log("orders").append(Batch(encode(numbers(30), codec=codec)))
    with Consumer(fake_broker.address, from_=7, to=41) as consumer:
        records = list(consumer.stream("orders"))
    assert [(record.index, record.value) for record in records] == [
        (index, str(index % 30).encode()) for index in range(7, 41)
    ]


def test_records_come_with_keys_headers_and_decoded(fake_broker: FakeBroker) -> None:
    batch = encode([b"1", b"2"], head=b"of:a\\cb\nof:twice\n", keys=[b"", b"duck"])
    fake_broker.log("orders").append(Batch(batch))
    with Consumer(fake_broker.address, from_="earliest", to=2) as consumer:
        first, second = consumer.stream("orders", decoder=int)
    assert (first.value, second.value, first.key, second.key) == (1, 2, None, b"duck")
    assert first.headers == {"of": "a:b"}


def test_reading_begins_with_what_comes_next_unless_told_otherwise(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", [b"old", b"last"])
    with Consumer(fake_broker.address) as consumer, Consumer(fake_broker.address, from_="latest") as late:
        stream, late_stream = consumer.stream("orders"), late.stream("orders")
        assert next(late_stream).value == b"last"
        fake_broker.wait_until(lambda: len(fake_broker.subscribes) == 2)
        fake_broker.fill("orders", [b"new"])
        assert next(stream).value == b"new"


def test_logs_of_several_brokers_are_read_together(fake_broker: FakeBroker) -> None:
    with FakeBroker() as other:
        fake_broker.fill("orders", [b"a"] * 30)
        other.fill("orders", [b"b"] * 30)
        other.fill("bills", [b"c"] * 30)
        fake_broker.fill("bills", [b"d"] * 30)
        with Consumer([fake_broker.address, other.address], from_="earliest", to=30) as consumer:
            streams = consumer.streams({"orders": 1, "bills": 1})
            orders = [(record.value, record.broker) for record in streams["orders"][0]]
            bills = [record.value for record in streams["bills"][0]]
        assert sorted(orders) == sorted([(b"a", fake_broker.address)] * 30 + [(b"b", other.address)] * 30)
        assert sorted(bills) == [b"c"] * 30 + [b"d"] * 30


def test_streams_of_a_log_share_what_comes(fake_broker: FakeBroker) -> None:
    """Each record goes to one of them, and none waits for the others."""
    fake_broker.fill("orders", numbers(100))
    with Consumer(fake_broker.address, from_="earliest", to=100, batch_bytes=100) as consumer:
        one, two = consumer.streams({"orders": 2})["orders"]
        values = one.poll(SECONDS) + two.poll(SECONDS)
        takers = [Taker(one), Taker(two)]
        for taker in takers:
            taker.join(SECONDS)
            values += taker.records
    assert sorted(record.index for record in values) == list(range(100))


def test_a_poll_gives_what_came_together_and_the_rest_of_it(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", numbers(20))
    with Consumer(fake_broker.address, from_="earliest", to=20, batch_bytes=1) as consumer:
        stream = consumer.stream("orders")
        assert next(stream).index == 0
        assert [record.index for record in stream.poll()] == list(range(1, 10))
        assert [record.index for record in stream.poll()] == list(range(10, 20))
        assert stream.poll(SECONDS) == []
        assert stream.ended


def test_a_poll_without_records_ends_in_time(fake_broker: FakeBroker) -> None:
    with Consumer(fake_broker.address) as consumer:
        stream = consumer.stream("orders")
        assert stream.poll(0.01) == []
        assert not stream.ended


def test_a_loop_that_was_left_can_be_gone_on_with(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", numbers(30))
    with Consumer(fake_broker.address, from_="earliest", to=30) as consumer:
        stream = consumer.stream("orders")
        for record in stream:
            if record.index == 4:
                break
        assert [record.index for record in stream] == list(range(5, 30))


# ---------------------------------------------------------------------- groups


def test_records_are_acknowledged_when_the_next_ones_are_asked_for(fake_broker: FakeBroker) -> None:
    log = fake_broker.fill("orders", numbers(30))
    with Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1) as consumer:
        stream = consumer.stream("orders")
        taken(stream, 20)
        fake_broker.wait_until(lambda: log.groups["g"].acknowledged == [(0, 10)])
    fake_broker.wait_until(lambda: len(log.groups["g"].returned) == 2)
    assert sorted(log.groups["g"].returned) == [(10, 20), (20, 30)]
    with Consumer(fake_broker.address, group="g") as consumer:
        assert sorted(taken(consumer.stream("orders"), 20)) == sorted(numbers(30)[10:])


def test_an_explicit_message_is_settled_when_all_its_records_are(fake_broker: FakeBroker) -> None:
    """In any order, and twice is once."""
    log = fake_broker.fill("orders", numbers(30))
    with Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1, auto_ack=False) as consumer:
        stream = consumer.stream("orders")
        records = [next(stream) for _ in range(30)]
        for record in [*records[1:10], *records[1:10], *reversed(records[20:])]:
            stream.ack(record)
        fake_broker.wait_until(lambda: log.groups["g"].acknowledged == [(20, 30)])
        stream.ack(records[0])
        fake_broker.wait_until(lambda: log.groups["g"].acknowledged == [(20, 30), (0, 10)])
    fake_broker.wait_until(lambda: list(log.groups["g"].returned) == [(10, 20)])


def test_who_acknowledges_by_itself_is_not_helped(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", [b"a"])
    with Consumer(fake_broker.address, group="g", from_="earliest") as consumer:
        stream = consumer.stream("orders")
        with pytest.raises(ValueError, match="auto_ack=False"):
            stream.ack(next(stream))
    made_up = Record("orders", 0, 0, None, b"", {}, "a:1")
    with (
        Consumer(fake_broker.address, group="g", auto_ack=False) as consumer,
        pytest.raises(ValueError, match="did not come"),
    ):
        consumer.stream("orders").ack(made_up)


def test_a_group_shares_its_records(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", numbers(200))
    with (
        Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1, buffer_bytes=1) as one,
        Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1, buffer_bytes=1) as two,
    ):
        takers = [Taker(one.stream("orders")), Taker(two.stream("orders"))]
        group = fake_broker.log("orders").groups
        fake_broker.wait_until(lambda: "g" in group and len(group["g"].acknowledged) >= 19)
    for taker in takers:
        taker.join(SECONDS)
    indexes = sorted(record.index for taker in takers for record in taker.records)
    assert len(set(indexes)) >= 190, "whichever one was not acknowledged"


# ---------------------------------------------------------------------- back-pressure


def test_a_group_gets_no_more_than_its_credit(fake_broker: FakeBroker) -> None:
    log = fake_broker.fill("orders", [b"x" * 100] * 1000)
    with Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1, buffer_bytes=3000) as consumer:
        stream = consumer.stream("orders")
        next(stream)
        fake_broker.wait_until(lambda: log.groups["g"].next >= 30)
        assert log.groups["g"].next <= 40
        assert fake_broker.subscribes[0]["credit"] == "1000000,3000"


def test_a_reader_holds_no_more_than_its_buffer(fake_broker: FakeBroker) -> None:
    """The rest waits in the broker: all of it comes nevertheless."""
    fake_broker.fill("orders", [b"x" * 100] * 1000)
    with Consumer(fake_broker.address, from_="earliest", to=1000, batch_bytes=1, buffer_bytes=3000) as consumer:
        stream = consumer.stream("orders")
        held = []
        count = 0
        while records := stream.poll():
            count += len(records)
            held.append(consumer.statistics().held_bytes)
    assert count == 1000
    assert max(held) <= 3000


# ---------------------------------------------------------------------- connections that end


def test_a_reader_goes_on_where_it_was_and_gets_each_record_once(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", numbers(500))
    fake_broker.faults.cut_at_messages = [3, 7, 8, 20]
    with Consumer(fake_broker.address, from_="earliest", to=500, batch_bytes=1, backoff=quick) as consumer:
        assert [record.value for record in consumer.stream("orders")] == numbers(500)
        assert consumer.statistics().reconnects_count == 4
    assert len(fake_broker.subscribes) == 5


def test_a_reader_that_waits_for_room_loses_its_connection_and_nothing_else(fake_broker: FakeBroker) -> None:
    fake_broker.fill("orders", numbers(500))
    with Consumer(
        fake_broker.address, from_="earliest", to=500, batch_bytes=1, buffer_bytes=600, backoff=quick
    ) as consumer:
        stream = consumer.stream("orders")
        values = taken(stream, 15)
        fake_broker.cut()
        values += [record.value for record in stream]
    assert values == numbers(500)


def test_what_is_appended_while_a_connection_is_lost_is_not_skipped(fake_broker: FakeBroker) -> None:
    """Also by a reader that began with `next` and has not had a record yet."""
    fake_broker.fill("orders", [b"old"])
    with Consumer(fake_broker.address, from_="next", backoff=quick) as consumer:
        stream = consumer.stream("orders")
        fake_broker.wait_until(lambda: len(fake_broker.subscribes) == 1)
        fake_broker.stop()
        fake_broker.fill("orders", [b"meanwhile"])
        fake_broker.start()
        assert next(stream).value == b"meanwhile"


def test_a_log_that_is_not_there_yet_is_read_from_its_beginning(fake_broker: FakeBroker) -> None:
    with Consumer(fake_broker.address, from_="next", backoff=quick) as consumer:
        stream = consumer.stream("orders")
        fake_broker.wait_until(lambda: len(fake_broker.subscribes) == 1)
        fake_broker.fill("orders", [b"first"])
        assert next(stream).value == b"first"


def test_a_group_gets_what_it_did_not_acknowledge_again(fake_broker: FakeBroker) -> None:
    log = fake_broker.fill("orders", numbers(100))
    fake_broker.faults.cut_at_messages = [5, 9]
    with Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1, backoff=quick) as consumer:
        taker = Taker(consumer.stream("orders"))
        fake_broker.wait_until(
            lambda: (
                {first for first, _end in log.groups["g"].acknowledged} >= set(range(0, 100, 10))
                if "g" in log.groups
                else False
            )
        )
    taker.join(SECONDS)
    assert {record.value for record in taker.records} == set(numbers(100))


def test_without_a_broker_for_too_long_the_streams_fail(fake_broker: FakeBroker) -> None:
    fake_broker.stop()
    with Consumer(fake_broker.address, give_up_seconds=0, backoff=quick) as consumer:
        one, two = consumer.streams({"orders": 2})["orders"]
        for stream in (one, two):
            with pytest.raises(CannotConnectError, match="gave up"):
                next(stream)


def test_a_broker_that_refuses_is_not_asked_again(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse_subscribe = "not for you"
    with Consumer(fake_broker.address, group="g") as consumer, pytest.raises(RefusedError, match="not for you"):
        next(consumer.stream("orders"))
    fake_broker.faults.refuse_connect = "who are you"
    with Consumer(fake_broker.address, group="g") as consumer, pytest.raises(RefusedError, match="who are you"):
        next(consumer.stream("orders"))


# ---------------------------------------------------------------------- gaps, damage, deletion


def with_a_gap(broker: FakeBroker) -> None:
    broker.fill("orders", numbers(40)).first = 20


def test_a_gap_is_reported_and_gone_over(fake_broker: FakeBroker) -> None:
    with_a_gap(fake_broker)
    gaps: list[Gap] = []
    with Consumer(fake_broker.address, from_=5, to=40, gap_callback=gaps.append) as consumer:
        assert [record.index for record in consumer.stream("orders")] == list(range(20, 40))
        assert consumer.statistics().gaps_count == 1
    assert gaps == [Gap("orders", fake_broker.address, 5, 20, "retention")]


def test_a_gap_is_an_error_where_it_was_asked_to_be(fake_broker: FakeBroker) -> None:
    with_a_gap(fake_broker)
    with Consumer(fake_broker.address, from_=5, on_gap="error") as consumer:
        with pytest.raises(GapError, match="read from 20") as caught:
            next(consumer.stream("orders"))
        assert caught.value.gap.end == 20


def damaged_at(fake_broker: FakeBroker, place: int, *, byte: int = -1) -> None:
    """Three batches of ten records; one has a wrong bit, as a disk that forgets leaves it."""
    log = fake_broker.fill("orders", numbers(30))
    bad = bytearray(log.batches[place].data)
    bad[byte] ^= 1
    batch = log.batches[place]
    batch.data = memoryview(bad)  # its place is known from the index


@pytest.mark.parametrize("batch_bytes", [1, 100_000])
@pytest.mark.parametrize("byte", [0, 5, 9, 29, -1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_damaged_records_are_a_gap(fake_broker: FakeBroker, place: int, byte: int, batch_bytes: int) -> None:
    """As for plain readers, whom the broker tells; it does not look at batches that it passes on. What stands behind
    a batch of which not even the size is right can't be found in that MESSAGE.
    """
    damaged_at(fake_broker, place, byte=byte)
    gaps: list[Gap] = []
    with Consumer(fake_broker.address, from_=0, to=30, batch_bytes=batch_bytes, gap_callback=gaps.append) as consumer:
        found = {record.index: record.value for record in consumer.stream("orders")}
        assert consumer.statistics().gaps_count == len(gaps) == 1
    (gap,) = gaps
    first, end = place * 10, place * 10 + 10
    if byte in (0, 5) and batch_bytes > 1:
        end = 30
    assert (gap.first, gap.end, gap.reason) == (first, end, "damaged")
    assert found == {index: b"%d" % index for index in range(30) if not first <= index < end}


def test_damaged_records_are_an_error_for_those_who_want_it(fake_broker: FakeBroker) -> None:
    damaged_at(fake_broker, 1)
    with Consumer(fake_broker.address, from_=0, to=30, batch_bytes=1, on_gap="error") as consumer:
        stream = consumer.stream("orders")
        assert taken(stream, 10) == numbers(10)
        with pytest.raises(GapError, match=r"records 10 to 19 .* \(damaged\); .* read from 20") as caught:
            next(stream)
        assert caught.value.gap.end == 20


@pytest.mark.parametrize("auto_ack", [True, False])
def test_damaged_records_of_a_group_count_as_done(fake_broker: FakeBroker, auto_ack: bool) -> None:
    """Or the same MESSAGE would come again for ever."""
    damaged_at(fake_broker, 0)
    with Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1, auto_ack=auto_ack) as consumer:
        stream = consumer.stream("orders")
        for _ in range(20):
            record = next(stream)
            if not auto_ack:
                stream.ack(record)
        assert stream.poll(0.01) == []
        group = fake_broker.log("orders").groups["g"]
        fake_broker.wait_until(lambda: sum(end - first for first, end in group.acknowledged) == 30)


def test_a_message_that_holds_less_than_it_says_is_an_error(fake_broker: FakeBroker) -> None:
    log = fake_broker.fill("orders", numbers(20))
    batch = log.batches[1]
    shorter = Batch(encode(numbers(5)))
    batch.data = memoryview(stamped(bytes(shorter.data[:32]), 10, TIMESTAMP_MS) + bytes(shorter.data[32:]))
    with Consumer(fake_broker.address, from_=0, to=20, batch_bytes=1) as consumer:
        stream = consumer.stream("orders")
        assert taken(stream, 10) == numbers(10)
        with pytest.raises(DamagedError, match="announced 10 records from 10"):
            next(stream)


def test_the_end_of_a_log_is_an_error_behind_its_records(fake_broker: FakeBroker) -> None:
    log = fake_broker.fill("orders", numbers(10))
    with Consumer(fake_broker.address, from_="earliest") as consumer:
        stream = consumer.stream("orders")
        assert taken(stream, 10) == numbers(10)
        with fake_broker.changed:
            log.deleted = True
            fake_broker.changed.notify_all()
        with pytest.raises(LogDeletedError):
            next(stream)


# ---------------------------------------------------------------------- the end


def test_close_ends_the_streams_of_other_threads(fake_broker: FakeBroker) -> None:
    consumer = Consumer(fake_broker.address)
    takers = [Taker(stream) for stream in consumer.streams({"orders": 2})["orders"]]
    consumer.close()
    consumer.close()
    for taker in takers:
        taker.join(SECONDS)
        assert not taker.is_alive()
    with pytest.raises(ClosedError):
        consumer.stream("bills")


def test_close_may_wait_until_all_that_came_is_done(fake_broker: FakeBroker) -> None:
    """And acknowledged: nothing of it comes again."""
    log = fake_broker.fill("orders", numbers(100))
    consumer = Consumer(fake_broker.address, group="g", from_="earliest", batch_bytes=1)
    stream = consumer.stream("orders")
    next(stream)
    fake_broker.wait_until(lambda: log.groups["g"].next == 100)
    inbox = stream._inbox
    with inbox._arrived:
        assert inbox._arrived.wait_for(lambda: len(inbox._items) == 9, SECONDS)
    taker = Taker(stream)
    consumer.close(drain_seconds=SECONDS)
    taker.join(SECONDS)
    assert len(taker.records) == 99
    fake_broker.wait_until(lambda: len(log.groups["g"].acknowledged) == 10)
    assert not log.groups["g"].returned


def test_close_before_a_broker_answers_does_not_wait_for_it(fake_broker: FakeBroker) -> None:
    fake_broker.faults.silent = True
    consumer = Consumer(fake_broker.address)
    stream = consumer.stream("orders")
    fake_broker.wait_until(lambda: fake_broker.connects_count == 1)
    consumer.close()
    assert list(stream) == []
