"""What a producer promises, against a broker that fails on command."""

from __future__ import annotations

import threading

import pytest

from sluiceway.client import (
    BufferFullError,
    CannotConnectError,
    ClosedError,
    Producer,
    ProducerStatistics,
    RefusedError,
    Sent,
)
from sluiceway.client.producer import Compression
from sluiceway.queues.logs.batches import Batch
from sluiceway.queues.logs.codecs import Codec
from tests.client.conftest import quick
from tests.client.fake_broker import FakeBroker

SECONDS = 10.0
LONG_SECONDS = 3600.0


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


# ---------------------------------------------------------------------- what comes into the log


def test_a_synchronous_send_returns_the_index(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", mode="sync", linger_seconds=LONG_SECONDS) as producer:
        assert [producer.send(value) for value in ("a", b"b", "ü")] == [0, 1, 2]
        assert producer.send_many(["d", "e"]) == 3
    assert fake_broker.log("orders").values == [b"a", b"b", "ü".encode(), b"d", b"e"]


def test_a_handle_tells_the_index_of_its_record(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "/log/orders", linger_seconds=LONG_SECONDS) as producer:
        sent = [producer.send(value) for value in numbers(5)]
        many = producer.send_many(numbers(7))
        assert not many.done
        with pytest.raises(TimeoutError, match="no receipt"):
            many.result(0.0)
        producer.flush(SECONDS)
        assert many.done
        assert [one.result(0) for one in (*sent, many)] == [0, 1, 2, 3, 4, 5]


def test_a_batch_is_sent_when_it_has_enough_records(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", batch_count=3, linger_seconds=LONG_SECONDS) as producer:
        last = [producer.send(value) for value in numbers(6)][-1]
        assert last.result(SECONDS) == 5
        assert producer.send_many(numbers(9)).result(SECONDS) == 6
    assert [batch.count for batch in fake_broker.log("orders").batches] == [3] * 5


def test_a_batch_is_sent_when_it_has_enough_bytes(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", batch_bytes=100, linger_seconds=LONG_SECONDS) as producer:
        assert [producer.send(b"x" * 50) for _ in range(2)][-1].result(SECONDS) == 1
        producer.send_many([b"x" * 40] * 4 + [b"x" * 1000])
    counts = [batch.count for batch in fake_broker.log("orders").batches]
    assert counts[0] == 2
    assert sum(counts) == len(fake_broker.log("orders").values)
    assert all(batch.plain_bytes < 300 or batch.count == 1 for batch in fake_broker.log("orders").batches)


def test_a_batch_is_sent_when_its_first_record_has_waited_long_enough(fake_broker: FakeBroker) -> None:
    """Nobody flushes, and no other limit is reached."""
    producer = Producer(fake_broker.address, "orders", linger_seconds=0.001)
    assert producer.send("alone").result(SECONDS) == 0
    producer.close(SECONDS)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "zstd"])
def test_batches_are_compressed_as_asked(fake_broker: FakeBroker, compression: Compression) -> None:
    with Producer(fake_broker.address, "orders", compression=compression) as producer:
        producer.send_many([b"a" * 100] * 10)
    [batch] = fake_broker.log("orders").batches
    assert batch.codec is Codec[compression.upper()]
    assert fake_broker.log("orders").values == [b"a" * 100] * 10


def test_keys_and_headers_are_stored(fake_broker: FakeBroker) -> None:
    """Also when the first records of a batch had no key."""
    with Producer(fake_broker.address, "orders", headers={"of": "a:b"}, linger_seconds=LONG_SECONDS) as producer:
        producer.send("1")
        producer.send("2", key="duck")
        producer.send("3")
        producer.send_many(["4", "5"], key=b"goose")
    [batch] = fake_broker.log("orders").batches
    assert [bytes(key) for key in batch.keys() or []] == [b"", b"duck", b"", b"goose", b"goose"]
    assert batch.head == b"of:a\\cb\n"


def test_an_encoder_makes_bytes_of_anything(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", encoder=lambda number: bytes([number])) as producer:
        producer.send(7)
        producer.send_many(range(3))
    assert b"".join(fake_broker.log("orders").values) == bytes([7, 0, 1, 2])


def test_without_an_encoder_only_bytes_and_text_are_records(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders") as producer, pytest.raises(TypeError, match="encoder"):
        producer.send({"ducks": 42})


def test_callbacks_hear_of_results(fake_broker: FakeBroker) -> None:
    """Before `flush` returns, and at once when the result is there already; one that fails harms nobody."""
    heard: list[int] = []

    def fails(sent: Sent) -> None:
        raise RuntimeError("not your fault")

    with Producer(fake_broker.address, "orders") as producer:
        first = producer.send("a")
        first.add_callback(fails)
        first.add_callback(lambda sent: heard.append(sent.result(0)))
        producer.send_many(["b", "c"]).add_callback(lambda sent: heard.append(sent.result(0)))
        producer.flush(SECONDS)
        assert sorted(heard) == [0, 1]
        first.add_callback(lambda sent: heard.append(100 + sent.result(0)))
        assert heard[-1] == 100


# ---------------------------------------------------------------------- several brokers


def test_records_of_one_key_stay_together_and_in_order(fake_broker: FakeBroker) -> None:
    with FakeBroker() as other:
        brokers = [fake_broker.address, other.address]
        with Producer(brokers, "orders", partitioner="hash", batch_count=3) as producer:
            for number in range(60):
                producer.send(f"{number % 6} {number}", key=f"key {number % 6}")
        logs = [broker.log("orders").values for broker in (fake_broker, other)]
        assert all(logs)
        keys = [{value.split()[0] for value in values} for values in logs]
        assert not keys[0] & keys[1]
        for values in logs:
            for key in {value.split()[0] for value in values}:
                mine = [int(value.split()[1]) for value in values if value.split()[0] == key]
                assert mine == sorted(mine)
        assert fake_broker.connects_count == other.connects_count == 1


def test_a_partitioner_of_ones_own_chooses_the_broker(fake_broker: FakeBroker) -> None:
    with FakeBroker() as other:
        seen = []

        def second(key: object, brokers: object) -> int:
            seen.append((key, brokers))
            return 1

        brokers = (fake_broker.address, other.address)
        with Producer(brokers, "orders", partitioner=second) as producer:
            producer.send("x", key="k")
        assert seen == [("k", brokers)]
        assert other.log("orders").values == [b"x"]
        with (
            Producer(brokers, "orders", partitioner=lambda _key, _brokers: 2) as producer,
            pytest.raises(ValueError, match="broker 2 of 2"),
        ):
            producer.send("x")


def test_a_broker_that_is_away_does_not_hold_up_the_others(fake_broker: FakeBroker) -> None:
    with FakeBroker() as other:
        pass
    brokers = [other.address, fake_broker.address]
    producer = Producer(brokers, "orders", partitioner=lambda key, _: int(key), backoff=quick, linger_seconds=0)
    producer.send("waits", key="0")
    assert producer.send("comes", key="1").result(SECONDS) == 0
    other.start()
    producer.close(SECONDS)
    assert other.log("orders").values == [b"waits"]
    other.stop()


# ---------------------------------------------------------------------- back-pressure


def test_a_full_buffer_refuses_or_waits(fake_broker: FakeBroker) -> None:
    fake_broker.faults.hold_receipts = True
    producer = Producer(fake_broker.address, "orders", buffer_bytes=100, linger_seconds=LONG_SECONDS)
    first = producer.send(b"x" * 40)
    producer.send(b"x" * 40)
    with pytest.raises(BufferFullError, match="80 bytes wait"):
        producer.send(b"x" * 40, timeout_seconds=0)
    with pytest.raises(BufferFullError):
        producer.send_many([b"x" * 40], timeout_seconds=0)
    fake_broker.wait_until(lambda: fake_broker.appends_count == 1)  # who finds no room does not let the pack linger
    done = threading.Event()

    def sends() -> None:
        producer.send(b"y" * 40)
        done.set()

    thread = threading.Thread(target=sends)
    thread.start()
    assert not done.is_set()
    fake_broker.release_receipts()
    assert done.wait(SECONDS)
    thread.join()
    assert first.result(SECONDS) == 0
    producer.close(SECONDS)
    assert len(fake_broker.log("orders").values) == 3


def test_a_record_larger_than_the_buffer_goes_alone(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", buffer_bytes=10, batch_bytes=10, mode="sync") as producer:
        assert [producer.send(b"x" * 1000), producer.send_many([b"y" * 1000] * 3)] == [0, 1]


def test_no_more_batches_are_under_way_than_the_window_has(fake_broker: FakeBroker) -> None:
    fake_broker.faults.hold_receipts = True
    producer = Producer(fake_broker.address, "orders", batch_count=1, window_count=2)
    producer.send_many(numbers(5))
    fake_broker.wait_until(lambda: fake_broker.appends_count == 2)
    with pytest.raises(TimeoutError, match="have no receipt"):
        producer.flush(0.05)
    assert fake_broker.appends_count == 2
    fake_broker.release_receipts()
    producer.close(SECONDS)
    assert fake_broker.log("orders").values == numbers(5)


def test_receipts_may_come_late_and_in_any_order(fake_broker: FakeBroker) -> None:
    fake_broker.faults.hold_receipts = True
    with Producer(fake_broker.address, "orders", batch_count=1) as producer:
        sent = [producer.send(value) for value in numbers(4)]
        fake_broker.wait_until(lambda: fake_broker.appends_count == 4)
        assert not any(one.done for one in sent)
        fake_broker.release_receipts()
        assert [one.result(SECONDS) for one in sent] == [0, 1, 2, 3]


# ---------------------------------------------------------------------- connections that end


def test_what_has_no_receipt_is_sent_again_in_order(fake_broker: FakeBroker) -> None:
    """At least once: the batches that the broker had appended without saying so come twice, none is missing."""
    fake_broker.faults.cut_at_appends = [3]
    with Producer(fake_broker.address, "orders", batch_count=1, window_count=4, backoff=quick) as producer:
        sent = [producer.send(value) for value in numbers(20)]
        indexes = [one.result(SECONDS) for one in sent]
        statistics = producer.statistics()
    values = fake_broker.log("orders").values
    assert [values[index] for index in indexes] == numbers(20)
    assert indexes == sorted(indexes)
    assert 1 <= statistics.resent_count <= 4
    assert 1 <= len(values) - 20 <= 4
    assert fake_broker.connects_count == 2


def test_what_a_numbered_producer_sends_again_comes_once(fake_broker: FakeBroker) -> None:
    fake_broker.faults.cut_at_appends = [3, 5]
    with Producer(fake_broker.address, "orders", batch_count=2, backoff=quick, producer_id="p") as producer:
        sent = [producer.send(value) for value in numbers(20)]
        assert [one.result(SECONDS) for one in sent] == list(range(20))
        assert producer.statistics().resent_count >= 2
    assert fake_broker.log("orders").values == numbers(20)
    with pytest.raises(ValueError, match="window_count"):
        Producer(fake_broker.address, "orders", producer_id="p", window_count=17)


def test_nothing_is_lost_over_a_restart_of_the_broker(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", batch_count=10, backoff=quick) as producer:
        sent = [producer.send(value) for value in numbers(100)]
        fake_broker.stop()
        sent += [producer.send(value) for value in numbers(100)]
        fake_broker.start()
        for one in sent:
            one.result(SECONDS)
        assert producer.statistics() == ProducerStatistics(
            records_count=200,
            batches_count=producer.statistics().batches_count,
            resent_count=producer.statistics().resent_count,
            failed_count=0,
            held_bytes=0,
        )


def test_an_idle_connection_that_was_lost_is_made_again(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders", mode="sync", backoff=quick) as producer:
        producer.send("a")
        fake_broker.cut()
        assert producer.send("b") == 1


def test_without_a_broker_for_too_long_what_waits_fails_and_the_next_is_tried_anew(fake_broker: FakeBroker) -> None:
    fake_broker.stop()
    producer = Producer(fake_broker.address, "orders", give_up_seconds=0, backoff=quick)
    sent = producer.send("a")
    with pytest.raises(CannotConnectError, match="gave up"):
        sent.result(SECONDS)
    fake_broker.start()
    assert producer.send("b").result(SECONDS) == 0
    producer.close(SECONDS)
    assert fake_broker.log("orders").values == [b"b"]


def test_a_broker_that_refuses_and_does_not_say_what_is_given_up(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse = lambda batch: True
    fake_broker.faults.refuse_without_receipt = True
    with Producer(fake_broker.address, "orders", give_up_seconds=0, backoff=quick) as producer:
        sent = producer.send("a")
        with pytest.raises(RefusedError, match="does not want it"):
            sent.result(SECONDS)


def test_a_login_that_is_refused_is_not_tried_until_the_end(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse_connect = "wrong passcode"
    with Producer(fake_broker.address, "orders", login="me", passcode="x") as producer:
        sent = producer.send("a")
        with pytest.raises(RefusedError, match="wrong passcode"):
            sent.result(SECONDS)


# ---------------------------------------------------------------------- errors


def refuses(value: bytes, batch: Batch) -> bool:
    return value in [bytes(one) for one in batch.values()]


def test_a_batch_that_is_refused_fails_alone(fake_broker: FakeBroker) -> None:
    """It is not sent again; those behind it are."""
    fake_broker.faults.refuse = lambda batch: refuses(b"3", batch)
    with Producer(fake_broker.address, "orders", batch_count=1, backoff=quick) as producer:
        sent = [producer.send(value) for value in numbers(6)]
        with pytest.raises(RefusedError, match="does not want it"):
            sent[3].result(SECONDS)
        for place in (0, 1, 2, 4, 5):
            sent[place].result(SECONDS)
    values = fake_broker.log("orders").values
    assert b"3" not in values
    assert set(values) == {b"0", b"1", b"2", b"4", b"5"}


def test_an_error_that_nobody_has_seen_is_raised_by_the_next_send(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse = lambda batch: refuses(b"bad", batch)
    with Producer(fake_broker.address, "orders", backoff=quick) as producer:
        sent = producer.send("bad")
        with pytest.raises(RefusedError):
            producer.flush(SECONDS)
        assert sent.done
        producer.send("bad")
        with pytest.raises(RefusedError):
            while True:
                producer.send("more")
        assert producer.send("good").result(SECONDS) >= 0  # told once
    assert fake_broker.log("orders").values[-1] == b"good"


def test_an_error_that_nobody_has_seen_is_raised_by_close(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse = lambda batch: True
    producer = Producer(fake_broker.address, "orders", linger_seconds=LONG_SECONDS)
    producer.send("bad")
    with pytest.raises(RefusedError):
        producer.close(SECONDS)
    producer.close(SECONDS)


def test_a_synchronous_send_raises_its_own_error(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse = lambda batch: refuses(b"bad", batch)
    with Producer(fake_broker.address, "orders", mode="sync", backoff=quick) as producer:
        with pytest.raises(RefusedError):
            producer.send("bad")
        assert producer.send("good") == 0


# ---------------------------------------------------------------------- the end


def test_close_sends_what_waits(fake_broker: FakeBroker) -> None:
    producer = Producer(fake_broker.address, "orders", linger_seconds=LONG_SECONDS)
    producer.send_many(numbers(10))
    producer.close(SECONDS)
    assert fake_broker.log("orders").values == numbers(10)
    with pytest.raises(ClosedError):
        producer.send("late")


def test_a_producer_that_never_sent_closes(fake_broker: FakeBroker) -> None:
    with Producer(fake_broker.address, "orders"):
        pass
    assert fake_broker.connects_count == 0


def test_close_may_be_told_not_to_wait(fake_broker: FakeBroker) -> None:
    fake_broker.faults.hold_receipts = True
    producer = Producer(fake_broker.address, "orders", linger_seconds=0)
    sent = producer.send("a")
    with pytest.raises(TimeoutError):
        producer.close(0.05)
    with pytest.raises(ClosedError, match="before"):
        sent.result(SECONDS)


def test_close_without_a_broker_ends_in_time(fake_broker: FakeBroker) -> None:
    fake_broker.stop()
    producer = Producer(fake_broker.address, "orders", backoff=quick)
    producer.send("a")
    with pytest.raises(TimeoutError, match="no broker answers"):
        producer.close(0.2)


def test_an_error_inside_the_block_is_not_hidden_by_one_of_closing(fake_broker: FakeBroker) -> None:
    fake_broker.faults.refuse = lambda batch: True
    with (
        pytest.raises(ZeroDivisionError) as caught,
        Producer(fake_broker.address, "orders", linger_seconds=LONG_SECONDS) as producer,
    ):
        producer.send("a")
        raise ZeroDivisionError
    assert "does not want it" in caught.value.__notes__[0]
